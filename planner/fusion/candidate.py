"""A region with its kernel: what it would save by prediction, and the two programs to race."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import fx

from fusion_kernels.emit.source import KernelSource, Provenance, emit
from fusion_kernels.library import FusedOperator
from planner.cost.devices import Device
from planner.cost.formulas import cost_of
from planner.fusion.lower import LoweredRegion
from planner.fusion.regions import RegionPlan
from planner.fusion.rewrite import replace_regions
from planner.fusion.subgraph import Subgraph, extract
from planner.graph.op_graph import TensorMeta
from planner.graph.source import source_line
from planner.graph.view import module_of, op_node, tensor_meta
from planner.passes.linear_bias import SPLIT, merge_biases


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
    """One place to fuse. `companions` are the linears whose bias the region took over: what is
    raced and compared is the region with them.
    """

    plan: RegionPlan
    provenance: Provenance
    source: KernelSource
    traffic: Traffic
    companions: tuple[fx.Node, ...]
    predicted_us: float | None
    predicted_saving_us: float | None
    module: str
    source_line: str | None

    @property
    def lowered(self) -> LoweredRegion:
        return self.plan.lowered

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(node.name for node in self.lowered.nodes)


def candidate_of(plan: RegionPlan, device: Device, torch_device: str) -> Candidate:
    """The candidate of a planned region, its kernel emitted with the default configuration.

    `predicted_us` is the kernel's traffic over the device's measured copy rate.
    """
    lowered = plan.lowered
    nodes = lowered.nodes
    traffic = _traffic(lowered, on_cpu=torch_device.startswith("cpu"))
    module, _ = module_of(nodes[-1])
    line = source_line(nodes[-1].meta.get("stack_trace"))
    region = lowered.region
    whole = max(_bytes(tensor_meta(nodes[-1].meta["val"])), 1)
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
        plan,
        provenance,
        emit(region, provenance),
        traffic,
        tuple(_companions(nodes)),
        predicted,
        saving,
        module,
        str(line) if line else None,
    )


def race(candidate: Candidate, operator: FusedOperator) -> tuple[Subgraph, Subgraph]:
    """The place before and after, with its companions, as modules of the same inputs.

    Before, split biases are back in their linears: it is what runs today.
    """
    nodes = sorted((*candidate.companions, *candidate.lowered.nodes))
    before = extract(nodes)
    after = extract(nodes, before.inputs)
    merge_biases(before.module.graph)
    before.module.recompile()
    replace_regions(after.module.graph, [(_within(after, candidate.lowered), operator.overload)])
    after.module.recompile()
    return before, after


def _within(subgraph: Subgraph, lowered: LoweredRegion) -> LoweredRegion:
    """The same region in terms of the nodes of an extracted graph."""

    def here(nodes: Sequence[fx.Node]) -> tuple[fx.Node, ...]:
        return tuple(subgraph.copies[node] for node in nodes)

    return LoweredRegion(
        lowered.region, here(lowered.inputs), here(lowered.nodes), here(lowered.outputs)
    )


def _companions(nodes: Sequence[fx.Node]) -> list[fx.Node]:
    linears = [node.args[0] for node in nodes if SPLIT in node.meta]
    return [linear for linear in linears if isinstance(linear, fx.Node)]


def _traffic(lowered: LoweredRegion, on_cpu: bool) -> Traffic:
    """A split bias costs a pass on CPU, where the linear copies it first, and nothing on CUDA."""
    before = launches = 0
    for node in lowered.nodes:
        if SPLIT in node.meta and not on_cpu:
            continue
        before += cost_of(op_node(node)).bytes or 0
        launches += 1
    inputs = [tensor_meta(node.meta["val"]) for node in lowered.inputs]
    outputs = [tensor_meta(node.meta["val"]) for node in lowered.outputs]
    return Traffic(before, sum(map(_bytes, (*inputs, *outputs))), launches)


def _bytes(meta: TensorMeta) -> int:
    return meta.nbytes


def _predict(traffic: Traffic, device: Device) -> tuple[float | None, float | None]:
    """Traffic over bandwidth, and what fewer passes and fewer launches save."""
    if device.bandwidth_gbs is None:
        return None, None
    per_us = device.bandwidth_gbs * 1e3
    launches = (traffic.launches_before - 1) * (device.launch_overhead_us or 0.0)
    return traffic.bytes_after / per_us, traffic.saved_bytes / per_us + launches
