"""A region with its kernel: what it would save by prediction, and the two programs to race."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import fx

from fusion_kernels.emit.source import KernelSource, Provenance, emit
from fusion_kernels.library import FusedOperator
from planner.cost.devices import Device
from planner.cost.formulas import cost_of
from planner.fusion.direct import with_direct_launches
from planner.fusion.epilogue import Epilogue, use_epilogue
from planner.fusion.lookups import lookup_of
from planner.fusion.lower import Hint, bound_hint, is_view, lower
from planner.fusion.lowered import LoweredRegion
from planner.fusion.recompute import COPY
from planner.fusion.regions import RegionPlan
from planner.fusion.rewrite import replace_regions
from planner.fusion.subgraph import Subgraph, extract
from planner.graph.source import source_line
from planner.graph.view import module_of, op_node, tensor_meta
from planner.passes.composites import put_back
from planner.passes.linear_bias import SPLIT, merge_biases
from planner.passes.reuse_buffers import reuse_inputs


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes and launches of the operators as they are, and of the one kernel."""

    bytes_before: int
    bytes_after: int
    launches_before: int

    @property
    def saved_bytes(self) -> int:
        return self.bytes_before - self.bytes_after


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to fuse one place. `predicted_us` is the kernel's traffic over the device's copy
    rate.

    `linears` are those whose bias the planned region took over, `biases` the additions that this
    way leaves to them: what is raced and compared is the region with both. `elsewhere` is the
    region at other sizes, where the program leaves some open, and `refusal` says why this way does
    not serve all of them, "" where it does.
    """

    plan: RegionPlan
    lowered: LoweredRegion
    provenance: Provenance
    source: KernelSource
    traffic: Traffic
    linears: tuple[fx.Node, ...]
    biases: tuple[fx.Node, ...]
    predicted_us: float | None
    predicted_saving_us: float | None
    module: str
    source_line: str | None
    elsewhere: LoweredRegion | None = None
    refusal: str = ""

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(node.name for node in self.lowered.nodes)

    @property
    def way(self) -> str:
        """Where the bias is added, for a place where that is a choice."""
        if not self.linears:
            return "fused"
        return "bias in the GEMM" if self.biases else "bias in the kernel"


def alternatives(
    plan: RegionPlan, hint: Hint, device: Device, torch_device: str
) -> tuple[Candidate, ...]:
    """The ways to fuse a planned region, kernels emitted with the default configuration.

    Where the region took over a linear's bias, the second way leaves it in the GEMM. Which is
    faster depends on the machine's BLAS, so both are raced.
    """
    found = [_candidate(plan, plan.lowered, device, torch_device)]
    rest = _without_biases(plan)
    named = bool(plan.matches)
    if rest:
        name = plan.lowered.region.name.replace("bias_", "").removeprefix(
            "add_" if not named else ""
        )
        lowered = lower(rest, name, _unsplit_hint(plan, hint))
        found.append(_candidate(plan, lowered, device, torch_device))
    return tuple(found)


def _without_biases(plan: RegionPlan) -> list[fx.Node]:
    """The region's nodes less the biases of linears; none where that is no choice.

    A bias that the region itself computes keeps its addition inside: outside, the linear would
    need a result of the kernel that reads the linear.
    """
    nodes = plan.lowered.nodes
    rest = [node for node in nodes if SPLIT not in node.meta]
    computed = any(source in rest for n in nodes if SPLIT in n.meta for source in n.all_input_nodes)
    least = 1 if plan.matches else 2
    return rest if least <= len(rest) < len(nodes) and not computed else []


def _unsplit_hint(plan: RegionPlan, hint: Hint) -> Hint:
    """A linear with its bias is called what the rule calls the linear."""
    bound = bound_hint(plan.matches, hint)

    def name(node: fx.Node) -> str:
        if SPLIT in node.meta and isinstance(node.args[0], fx.Node):
            return bound(node.args[0])
        return bound(node)

    return name


def _candidate(
    plan: RegionPlan, lowered: LoweredRegion, device: Device, torch_device: str
) -> Candidate:
    nodes = lowered.nodes
    traffic = _traffic(lowered, on_cpu=torch_device.startswith("cpu"))
    module, _ = module_of(nodes[-1])
    line = source_line(nodes[-1].meta.get("stack_trace"))
    whole = max(tensor_meta(nodes[-1].meta["val"]).nbytes, 1)
    provenance = Provenance(
        rule=plan.rule,
        replaces=tuple(node.name for node in nodes),
        modules=(module or "(root)",),
        source=f"{line}  {line.text}" if line else "",
        passes_before=round(traffic.bytes_before / whole),
        passes_after=round(traffic.bytes_after / whole),
    )
    predicted, saving = _predict(traffic, device)
    return Candidate(
        plan=plan,
        lowered=lowered,
        provenance=provenance,
        source=emit(lowered.region, provenance),
        traffic=traffic,
        linears=tuple(_linears(plan.lowered.nodes)),
        biases=tuple(n for n in plan.lowered.nodes if SPLIT in n.meta and n not in nodes),
        predicted_us=predicted,
        predicted_saving_us=saving,
        module=module,
        source_line=str(line) if line else None,
    )


def before(candidate: Candidate, *, with_linears: bool) -> Subgraph:
    """What runs today as a module: the region's operators alone, or with the linears whose bias
    is at stake, biases in their linears, and composites whole whose parts it holds all. What the
    region computes again is read as it was stored.
    """
    nodes = [node for node in _place(candidate, with_linears=with_linears) if COPY not in node.meta]
    place = extract(nodes, _read(candidate, with_linears=with_linears))
    put_back(place.module.graph)
    merge_biases(place.module.graph)
    place.module.recompile()
    return place


def after(candidate: Candidate, operator: FusedOperator, *, with_linears: bool) -> Subgraph:
    """The same with the region replaced by its operator, as a module of the same inputs."""
    place = extract(
        _place(candidate, with_linears=with_linears), _read(candidate, with_linears=with_linears)
    )
    graph = place.module.graph
    replace_regions(graph, [(within(place, candidate.lowered), operator.overload)])
    merge_biases(graph)
    reuse_inputs(graph)
    place.module.recompile()
    return replace(place, module=with_direct_launches(place.module))


def in_library(candidate: Candidate, epilogue: Epilogue) -> Subgraph:
    """The same with the library's own form of the place, linear included."""
    place = extract(_place(candidate, with_linears=True), _read(candidate, with_linears=True))
    found = replace(
        epilogue,
        linear=place.copies[epilogue.linear],
        bias=place.copies[epilogue.bias],
        activation=place.copies[epilogue.activation],
    )
    use_epilogue(place.module.graph, found)
    place.module.recompile()
    return place


def _place(candidate: Candidate, *, with_linears: bool) -> list[fx.Node]:
    around = (*candidate.linears, *candidate.biases) if with_linears else ()
    return sorted((*around, *candidate.lowered.nodes))


def _read(candidate: Candidate, *, with_linears: bool) -> list[fx.Node]:
    """The inputs of both modules: what the place reads, and what was stored before and is computed
    again.
    """
    nodes = _place(candidate, with_linears=with_linears)
    inside = {node for node in nodes if COPY not in node.meta}
    sources = (source for node in nodes for source in node.all_input_nodes)
    return list(dict.fromkeys(source for source in sources if source not in inside))


def within(subgraph: Subgraph, lowered: LoweredRegion) -> LoweredRegion:
    """The region in terms of the nodes of an extracted graph."""

    def here(nodes: Sequence[fx.Node]) -> tuple[fx.Node, ...]:
        return tuple(subgraph.copies[node] for node in nodes)

    return replace(
        lowered,
        inputs=here(lowered.inputs),
        nodes=here(lowered.nodes),
        outputs=here(lowered.outputs),
        kept=frozenset(here(tuple(lowered.kept))),
        tables={subgraph.copies[node]: dim for node, dim in lowered.tables.items()},
    )


def _linears(nodes: Sequence[fx.Node]) -> list[fx.Node]:
    linears = [node.args[0] for node in nodes if SPLIT in node.meta]
    return [linear for linear in linears if isinstance(linear, fx.Node)]


def _traffic(lowered: LoweredRegion, on_cpu: bool) -> Traffic:
    """A split bias costs a pass on CPU, where the linear copies it first, and nothing on CUDA.
    What is computed again costs nothing before: it is computed elsewhere.
    """
    before = launches = 0
    for node in lowered.nodes:
        free = is_view(node) or COPY in node.meta
        if free or (SPLIT in node.meta and not on_cpu):
            continue
        before += cost_of(op_node(node)).bytes or 0
        launches += 1
    # Of a table the rows that are read, which are as large as the result.
    found = map(lookup_of, lowered.nodes)
    walked = {node for node, dim in lowered.tables.items() if lowered.places[node][dim]}
    rows = [tensor_meta(item.node.meta["val"]) for item in found if item is not None]
    read = [node for node in lowered.inputs if node not in lowered.tables or node in walked]
    inputs = [*rows, *(tensor_meta(node.meta["val"]) for node in read)]
    outputs = [tensor_meta(node.meta["val"]) for node in lowered.outputs]
    return Traffic(before, sum(meta.nbytes for meta in (*inputs, *outputs)), launches)


def _predict(traffic: Traffic, device: Device) -> tuple[float | None, float | None]:
    """Traffic over bandwidth, and what fewer passes and fewer launches save."""
    if device.bandwidth_gbs is None:
        return None, None
    per_us = device.bandwidth_gbs * 1e3
    launches = (traffic.launches_before - 1) * (device.launch_overhead_us or 0.0)
    return traffic.bytes_after / per_us, traffic.saved_bytes / per_us + launches
