"""Cheap producers are computed again where that saves time, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn

from fusion_kernels.library import define
from planner.cost.devices import Device
from planner.fusion.candidate import after, before
from planner.fusion.places import find_places
from planner.fusion.plan import write_kernel
from planner.fusion.recompute import COPY
from planner.fusion.regions import find_regions, recomputed
from planner.fusion.rewrite import replace_regions
from planner.fusion.weights import Rates
from planner.pipeline import capture

GPU = Rates(bytes_per_us=1e6, launch_us=5.0, latency_us=1.0, on_gpu=True)
SIZE = 1024
X, W = torch.randn(SIZE, SIZE), torch.randn(SIZE, SIZE) / 32
MASK = torch.rand(SIZE, SIZE) > 0.5


@pytest.fixture
def copied(trace: Any) -> Callable[..., fx.GraphModule]:
    """The graph of a function once its regions have their copies, which it tells by their
    operators.
    """

    def run(function: Any, *tensors: Tensor) -> fx.GraphModule:
        module = trace(function, *tensors)
        plans, _ = find_regions(module.graph, (), lambda node: node.name, GPU)
        recomputed(module.graph, [plan.lowered.nodes for plan in plans], GPU)
        module.graph.lint()
        module.recompile()
        return module

    return run


def _copies(module: fx.GraphModule) -> list[str]:
    return [str(n.target).split(".")[1] for n in module.graph.nodes if COPY in n.meta]


def _masked(mask: Tensor, x: Tensor, w: Tensor) -> Any:
    """The mask in floats is read by two regions, which a product keeps apart."""
    floats = mask.float()
    return ((x * floats).exp() @ w * floats).sin()


def test_a_cast_that_another_region_reads_is_made_there(copied: Any) -> None:
    """A byte is read where four were, and four are not stored."""
    module = copied(_masked, MASK, X, W)
    assert _copies(module) == ["to"]
    plans, _ = find_regions(module.graph, (), lambda node: node.name, GPU)
    assert [len(plan.lowered.outputs) for plan in plans] == [1, 1]
    read = [{item.dtype for item in plan.lowered.region.inputs} for plan in plans]
    assert read == [{"bool", "float32"}] * 2
    torch.testing.assert_close(module(MASK, X, W), _masked(MASK, X, W), rtol=0, atol=0)


def test_several_cheap_producers_in_a_row_are_computed_again(copied: Any) -> None:
    def form(mask: Tensor, x: Tensor, w: Tensor) -> Any:
        bias = mask.float() * -100.0
        return ((x + bias).exp() @ w + bias).sin()

    module = copied(form, MASK, X, W)
    assert _copies(module) == ["to", "mul"]
    torch.testing.assert_close(module(MASK, X, W), form(MASK, X, W), rtol=0, atol=0)


def test_a_copy_has_its_producer_s_dtype(copied: Any) -> None:
    def form(x: Tensor, w: Tensor) -> Any:
        wide = x.float()
        return (wide * 2).exp() @ w, wide

    def two(x: Tensor, w: Tensor) -> Any:
        wide = x.float()
        return ((wide * 2).exp() @ w * wide).sin()

    module = copied(two, X.bfloat16(), W)
    (copy,) = (n for n in module.graph.nodes if COPY in n.meta)
    assert copy.meta["val"].dtype == torch.float32
    assert _copies(copied(form, X.bfloat16(), W)) == []


def test_what_must_be_stored_anyhow_may_still_be_computed_again(copied: Any) -> None:
    """The caller gets the mask in floats; the second region reads bytes all the same."""

    def form(mask: Tensor, x: Tensor, w: Tensor) -> Any:
        floats = mask.float()
        return ((x * floats).exp() @ w * floats).sin(), floats

    module = copied(form, MASK, X, W)
    assert _copies(module) == ["to"]
    torch.testing.assert_close(module(MASK, X, W), form(MASK, X, W), rtol=0, atol=0)


def _exponential(x: Tensor, w: Tensor) -> Any:
    h = x.exp()
    return ((h * 2).tanh() @ w * h).sin()


def _reduction(x: Tensor, w: Tensor) -> Any:
    h = x.sum(-1, keepdim=True)
    return ((x * h).tanh() @ w * h).sin()


def _random(x: Tensor, w: Tensor) -> Any:
    h = torch.rand_like(x)
    return ((x * h).tanh() @ w * h).sin()


def _of_two(x: Tensor, w: Tensor) -> Any:
    """Two tensors would be read in place of one, to store one less: nothing is gained."""
    h = x + w
    return (h.tanh() @ w * h).sin()


def _overwritten(x: Tensor, w: Tensor) -> Any:
    """By the time of the second region another value stands where the mask was."""
    mask = x > 0
    floats = mask.float()
    h = (x * floats).exp() @ w
    mask.fill_(True)
    return (h * floats).sin(), mask


def _small(x: Tensor, w: Tensor) -> Any:
    return _masked(x[:8, :8] > 0, x[:8, :8], w[:8, :8])


def _read_by_a_product(x: Tensor, w: Tensor) -> Any:
    h = x.float()
    return (h @ w) @ h


@pytest.mark.parametrize(
    "form", [_exponential, _reduction, _random, _of_two, _overwritten, _small, _read_by_a_product]
)
def test_what_is_not_cheap_or_gains_nothing_is_stored(copied: Any, form: Any) -> None:
    assert _copies(copied(form, X, W)) == []


def test_a_trial_that_gains_nothing_leaves_the_graph_as_it_was(trace: Any) -> None:
    module = trace(_of_two, X, W)
    text = module.code
    plans, _ = find_regions(module.graph, (), lambda node: node.name, GPU)
    recomputed(module.graph, [plan.lowered.nodes for plan in plans], GPU)
    module.recompile()
    assert module.code == text


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(W.clone())

    def forward(self, mask: Tensor, x: Tensor) -> Any:
        return _masked(mask, x, self.weight)


def test_a_fused_model_stores_the_producer_nowhere(fuse_all: Any) -> None:
    model = Masked().eval()
    fused = fuse_all(model, (MASK, X))
    assert "_to_copy" not in fused.module.code
    torch.testing.assert_close(fused.module(MASK, X), model(MASK, X))
    assert fused.module.fallbacks == 0


@pytest.mark.parametrize("kept", [[], [0], [1], [0, 1]])
def test_what_no_kernel_took_is_computed_once(tmp_path: Any, kept: list[int]) -> None:
    program = capture(Masked().eval(), (MASK, X)).program
    places, _ = find_places(program, Device("d", "", (), {}), "cuda")
    assert len(places) == 2
    chosen = [places[n][0] for n in kept]
    replace_regions(
        program.graph,
        [(c.lowered, define(c.source, write_kernel(c.source, tmp_path)).overload) for c in chosen],
    )
    program.graph.lint()
    casts = [n for n in program.graph.nodes if "_to_copy" in str(n.target)]
    assert len(casts) == {0: 1, 1: 1, 2: 0}[len(kept)]
    program.graph_module.recompile()
    expected = _masked(MASK, X, W)
    torch.testing.assert_close(program.graph_module(W, MASK, X)[0], expected)


def test_what_is_raced_reads_the_stored_value_and_computes_the_same(tmp_path: Any) -> None:
    """Before, the value is there: a kernel that makes it anew must pay for that."""
    program = capture(Masked().eval(), (MASK, X)).program
    places, _ = find_places(program, Device("d", "", (), {}), "cuda")
    (one,) = (ways[0] for ways in places if any(COPY in n.meta for n in ways[0].lowered.nodes))
    operator = define(one.source, write_kernel(one.source, tmp_path))
    today, fused = (
        before(one, with_linears=False),
        after(one, operator, with_linears=False),
    )
    assert [n.name for n in today.inputs] == [n.name for n in fused.inputs]
    assert not any("aten._to_copy" in str(n.target) for n in today.module.graph.nodes)
    values = {n: MASK if n.meta["val"].dtype == torch.bool else X for n in today.inputs}
    values |= {n: MASK.float() for n in today.inputs if COPY in n.meta}
    given = [values[n] for n in today.inputs]
    torch.testing.assert_close(fused.module(*given), today.module(*given))
    assert one.traffic.launches_before == len(one.lowered.nodes) - 1
