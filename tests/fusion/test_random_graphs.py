"""Whatever graph comes, its regions keep the numerics contract, and the rewritten graph is the same
program.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import hypothesis
import pytest
import torch
from float32_model import beyond_float32
from hypothesis import HealthCheck, given, settings
from hypothesis import seed as seeded
from quick_export import quick_export
from torch import Tensor, fx, nn
from torch.nn.functional import layer_norm

from fusion_kernels.emit.source import Provenance, emit
from fusion_kernels.evaluate import evaluate
from fusion_kernels.ir import Region
from fusion_kernels.load import interpreted, load_kernel
from fusion_kernels.lowering import POINTWISE
from fusion_kernels.tolerances import check
from planner.fusion.dimensions import VIEWS
from planner.fusion.lowered import LoweredRegion
from planner.fusion.reference import reference
from planner.fusion.rewrite import replace_regions
from planner.fusion.subgraph import run_in_float64
from planner.graph.errors import CaptureDiffers
from planner.graph.export import capture
from random_programs import Program, programs

Run = Callable[[Region, Sequence[Tensor]], Sequence[Tensor]]

COMPUTES = POINTWISE.keys() - VIEWS
BLOCKS, BLOCK = 100, 500
LEAST_FUSED, MOST_REFUSED = 0.8, 0.02


@dataclass(eq=False)
class Found:
    """What was seen over many programs, and the text of the last one that failed; `refused` were
    not captured, since the export differs from eager.
    """

    programs: int = 0
    fused: int = 0
    regions: int = 0
    ill_conditioned: int = 0
    refused: int = 0
    failing: str = ""

    @property
    def fused_share(self) -> float:
        return self.fused / max(self.programs, 1)


class AsFunction(nn.Module):
    """A program as the module that a user would write."""

    def __init__(self, program: Program) -> None:
        super().__init__()
        self.program = program

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        return self.program(*tensors)


@dataclass(eq=False)
class Place:
    """Stands in the rewritten graph for a region: must be called with what the region's nodes read
    in the program, holds `run` of the region against float64, and returns the program's own values,
    so that the rewritten graph must give eager's bits.
    """

    lowered: LoweredRegion
    operators: fx.GraphModule
    values: dict[fx.Node, Tensor]
    run: Run
    found: Found
    __name__: str = field(default="region", init=False)

    def __call__(self, *given: Tensor) -> Any:
        inputs = [self.values[node] for node in self.lowered.inputs]
        for tensor, wanted in zip(given, self.lowered.arguments(inputs), strict=True):
            assert place_in_memory(tensor) == place_in_memory(wanted)
            assert same(tensor, wanted)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            results = self.run(self.lowered.region, given)
        outs = self.lowered.returned(results)
        eager = [self.values[node] for node in self.lowered.outputs]
        assert [place_in_memory(out) for out in outs] == [place_in_memory(out) for out in eager]
        self.judge(inputs, outs)
        for out, value in zip(outs, eager, strict=True):
            out.copy_(value)
        return results[0] if len(results) == 1 else tuple(results)

    def judge(self, inputs: Sequence[Tensor], outs: Sequence[Tensor]) -> None:
        exact = run_in_float64(self.operators, inputs)
        for index, (out, wanted) in enumerate(zip(outs, exact, strict=True)):
            if not all(result.passed for result in check(out, wanted)):
                broken = beyond_float32(self.operators, inputs, index, out)
                assert not broken, (str(self.lowered.region), broken)
                self.found.ill_conditioned += 1


def place_in_memory(tensor: Tensor) -> tuple[Any, ...]:
    """Dtype, shape, and the strides of the dimensions that have any."""
    strides = zip(tensor.shape, tensor.stride(), strict=True)
    moving = tuple(stride for n, stride in strides if n > 1) if tensor.numel() else ()
    return tensor.dtype, tensor.shape, moving


def same(first: Tensor, second: Tensor) -> bool:
    """Bit for bit, any NaN like any other."""
    equal = (first == second) | ((first != first) & (second != second))
    return bool(equal.all())


class Recorded(fx.Interpreter):
    """Runs a graph and keeps what each node gave."""

    def of(self, tensors: Sequence[Tensor]) -> dict[fx.Node, Tensor]:
        self.values: dict[fx.Node, Tensor] = {}
        self.run(*tensors)
        return self.values

    def run_node(self, n: fx.Node) -> Any:
        self.values[n] = super().run_node(n)
        return self.values[n]


def examine(program: Program, run: Run, found: Found, grow: Any, grow_graph: Any) -> None:
    """Fuse the program, run it, and compare: regions with float64, the whole with eager."""
    found.failing = program.text
    tensors = program.tensors()
    expected = program(*tensors)
    if program.mutates:
        try:
            exported = capture(AsFunction(program).eval(), tensors)
        except CaptureDiffers:
            # torch 2.11's export loses a write into what another tensor is expanded from.
            found.refused += 1
            return
        grown = grow_graph(exported.program.graph_module)
    else:
        grown = grow(program, *tensors)
    inside = [node for plan in grown.plans for node in plan.lowered.nodes]
    alone = {n.name for n in grown.module.graph.nodes if str(n.target) in COMPUTES}
    alone -= {node.name for node in inside}
    assert len(inside) == len(set(inside))
    assert alone <= {mismatch.node for mismatch in grown.rejected}
    values = Recorded(grown.module).of(tensors)
    chosen = [
        (plan.lowered, Place(plan.lowered, reference(plan.lowered), values, run, found))
        for plan in grown.plans
    ]
    replace_regions(grown.module.graph, chosen)
    grown.module.graph.lint()
    grown.module.recompile()
    for out, wanted in zip(grown.module(*tensors), expected, strict=True):
        assert place_in_memory(out) == place_in_memory(wanted)
        assert same(out, wanted)
    found.programs += 1
    found.fused += bool(chosen)
    found.regions += len(chosen)


def explore(
    examples: int, run: Run, grow: Any, grow_graph: Any, block: int | None = None
) -> tuple[Found, str]:
    """Draw programs (always the same ones without `block`); the failure's text, "" without one."""
    found = Found()

    @settings(
        max_examples=examples,
        derandomize=block is None,
        database=None,
        deadline=None,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    @given(programs())
    def one(program: Program) -> None:
        examine(program, run, found, grow, grow_graph)

    try:
        with quick_export():
            (one if block is None else seeded(block)(one))()
    except Exception as error:
        return found, f"{found.failing}\n{error!r}"[:4000]
    return found, ""


def as_text(region: Region, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    """The emitted kernel in Triton's interpreter."""
    source = emit(region, Provenance("test"))
    outs = interpreted(source.text, source.name)(*tensors)
    return (outs,) if isinstance(outs, Tensor) else tuple(outs)


def on_gpu(region: Region, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    """The emitted kernel on the GPU, on copies that lie in memory as the tensors do."""
    source = emit(region, Provenance("test"))
    copies = []
    for tensor in tensors:
        base = torch.empty(0, dtype=tensor.dtype, device="cuda")
        storage = tensor.untyped_storage().cuda()
        place = (tensor.storage_offset(), tensor.shape, tensor.stride())
        copies.append(base.set_(storage, *place))
    outs = load_kernel(source.text, source.name).launcher(*copies)
    return tuple(out.cpu() for out in ((outs,) if isinstance(outs, Tensor) else outs))


def test_random_programs(grow: Any, grow_graph: Any) -> None:
    found, failure = explore(300, evaluate, grow, grow_graph)
    assert not failure, failure
    assert found.fused_share >= LEAST_FUSED


def test_random_programs_as_text(grow: Any, grow_graph: Any) -> None:
    found, failure = explore(20, as_text, grow, grow_graph)
    assert not failure, failure
    assert found.regions >= 10


@pytest.mark.gpu
def test_random_programs_on_a_gpu(grow: Any, grow_graph: Any) -> None:
    found, failure = explore(100, on_gpu, grow, grow_graph)
    assert not failure, failure
    assert found.fused_share >= LEAST_FUSED


@pytest.mark.slow
@pytest.mark.parametrize("block", range(BLOCKS))
def test_many_random_programs(block: int, ledger: Any, grow: Any, grow_graph: Any) -> None:
    """50,000 programs, other ones in each block; every fiftieth block runs kernels as text."""
    kept = ledger("random_graphs", cases=BLOCKS, hypothesis=hypothesis.__version__)
    key = f"block {block:03}"
    record = kept.record(key)
    if record is None:
        run = as_text if block % 50 == 0 else evaluate
        found, failure = explore(BLOCK, run, grow, grow_graph, block)
        record = {
            "programs": found.programs,
            "fused": found.fused,
            "regions": found.regions,
            "ill_conditioned": found.ill_conditioned,
            "refused": found.refused,
            "failures": [failure] if failure else [],
        }
        kept.add(key, record)
    assert not record["failures"], record["failures"][0]
    assert record["fused"] >= LEAST_FUSED * record["programs"]
    assert record["refused"] <= MOST_REFUSED * record["programs"]


def test_the_quick_export_gives_the_same_graph() -> None:
    """Composites that stay whole, ones that do not, and steps in place."""

    class Stepped(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            total = (x.type_as(y) + y).mul_(2)
            total[..., :1].fill_(1)
            product = layer_norm(total.flatten(0, -2), y.shape[-1:]) @ y.transpose(-1, -2)
            return torch.nn.functional.gelu(product)

    tensors = torch.randn(3, 8), torch.randn(3, 8, dtype=torch.bfloat16)
    plain = capture(Stepped().eval(), tensors).program
    with quick_export():
        quick = capture(Stepped().eval(), tensors).program
    assert str(quick.graph) == str(plain.graph)


# Programs that failed once, as hypothesis shrank them.


def test_a_value_that_is_stored_twice(grow: Any, rewritten: Any) -> None:
    """Two outputs of a kernel had one name."""
    x, y = torch.randn(3, 8), torch.randn(3, 8)
    grown = grow(_sum_and_its_copy, x, y)
    (plan,) = grown.plans
    assert [out.value for out in plan.lowered.region.outputs] == ["add", "add", "mul"]
    for out in as_text(plan.lowered.region, (x, y))[:2]:
        assert torch.equal(out, x + y)
    first, second, _ = rewritten(grown)(x, y)
    assert torch.equal(first, second)
    assert first.data_ptr() != second.data_ptr()


def _sum_and_its_copy(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    total = x + y
    return total, total.clone(), total * 2


@pytest.mark.parametrize("reduced", [torch.all, torch.any, torch.sum], ids=lambda f: f.__name__)
def test_a_row_without_elements_is_left_to_eager(grow: Any, rewritten: Any, reduced: Any) -> None:
    """There is nothing to start a largest or smallest value from; eager knows what it gives."""
    x = torch.ones(3, 0)
    grown = grow(lambda x: reduced(x * 2 > 1, -1, keepdim=True), x)
    assert "a row without elements is left to eager" in " ".join(m.reason for m in grown.rejected)
    assert torch.equal(rewritten(grown)(x), reduced(x > 0, -1, keepdim=True))


def test_a_region_with_more_dimensions_than_what_it_reads(grow: Any) -> None:
    """The kernel's launcher made results of as many dimensions as its input had left."""
    x = torch.randn(2, 1)
    (plan,) = grow(lambda x: layer_norm(x, (2, 1)), x).plans
    (source,) = plan.lowered.arguments((x,))
    assert source.dim() < len(plan.lowered.region.shape)
    (out,) = plan.lowered.returned(as_text(plan.lowered.region, (source,)))
    torch.testing.assert_close(out, layer_norm(x, (2, 1)))


def test_a_concatenation_that_gives_one_element(grow: Any, rewritten: Any) -> None:
    """Its pieces have no dimension to stand in; looking for one raised."""
    x = torch.randn(3, 1)
    grown = grow(lambda x: torch.cat((-x[..., 0:], x[..., :0]), -1).exp() * 2, x)
    torch.testing.assert_close(rewritten(grown)(x), (-x).exp() * 2)
