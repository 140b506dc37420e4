"""A fused kernel overwrites an input only when that is spent: no other reader, view or owner."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from fusion_kernels.emit.source import Provenance, emit
from fusion_kernels.library import define
from planner.fusion.lower import input_hint, lower
from planner.fusion.rewrite import replace_regions
from planner.passes.reuse_buffers import reuse_buffers

X, R = torch.randn(3, 4), torch.randn(3, 5)


def weights() -> dict[str, Tensor]:
    torch.manual_seed(1)
    return {"w": nn.Parameter(torch.randn(5, 4))}


def fuse(exported: Any, folder: Path, *names: str) -> fx.Node:
    """The operators of these names as one call of a generated kernel."""
    graph = exported.program.graph
    nodes = [
        node
        for node in graph.nodes
        if node.op == "call_function" and str(node.target).split(".")[1] in names
    ]
    lowered = lower(nodes, "spent", input_hint({}))
    source = emit(lowered.region, Provenance("test"))
    operator = define(source, folder / f"{source.file_name}.py")
    (call,) = replace_regions(graph, [(lowered, operator.overload)])
    return call


def overwrites(call: fx.Node) -> bool:
    return any(argument.alias_info for argument in call.target._schema.arguments)


REUSED = {
    "linear": lambda x, r, w: F.gelu(F.linear(x, w)) * r,
    "product": lambda x, r, w: F.gelu(x @ w.t()) * r,
    "embedding": lambda x, r, w: F.gelu(F.embedding((x[:, 0] > 0).int(), w)) * r[:, :4],
}


@pytest.mark.parametrize("name", REUSED)
def test_a_spent_result_is_overwritten(export: Any, tmp_path: Path, name: str) -> None:
    exported = export(REUSED[name], X, R, **weights())
    call = fuse(exported, tmp_path, "gelu", "mul")
    notes = reuse_buffers(exported.program)
    assert notes == ("1 kernel made to write over an input that nothing reads afterwards",)
    assert overwrites(call)


KEPT = {
    "read_by_another": lambda x, r, w: _also(F.linear(x, w), r, lambda y: y.sum()),
    "viewed_by_another": lambda x, r, w: _also(F.linear(x, w), r, lambda y: y.view(-1).sin()),
    "returned": lambda x, r, w: _also(F.linear(x, w), r, lambda y: y),
    "an_input": lambda x, r, w: F.gelu(r) * 2 + F.linear(x, w),
    "a_parameter": lambda x, r, w: (F.gelu(w) * 2, x + 1, r + 1),
    "broadcast": lambda x, r, w: F.gelu(F.linear(x[:1], w)) * r,
    "other_dtype": lambda x, r, w: (F.gelu(F.linear(x, w)) * r).to(torch.bfloat16),
    "a_view": lambda x, r, w: F.gelu(F.linear(x, w).view(5, 3)) * r.view(5, 3),
    "transposed": lambda x, r, w: F.gelu(F.linear(x, w).t()) * r.t(),
    "not_fresh": lambda x, r, w: F.gelu(F.linear(x, w).relu()) * r,
}


def _also(y: Tensor, r: Tensor, other: Any) -> tuple[Tensor, Tensor]:
    return F.gelu(y) * r, other(y)


@pytest.mark.parametrize("name", KEPT)
def test_what_is_not_spent_is_left_alone(export: Any, tmp_path: Path, name: str) -> None:
    exported = export(KEPT[name], X, R, **weights())
    call = fuse(exported, tmp_path, "gelu", "mul", "to", "_to_copy")
    assert reuse_buffers(exported.program) == ()
    assert not overwrites(call)


def test_a_kernel_over_rows_is_left_alone(export: Any, tmp_path: Path) -> None:
    exported = export(lambda x, w: F.layer_norm(F.linear(x, w), (5,)) * 2, X, **weights())
    call = fuse(exported, tmp_path, "layer_norm", "mul")
    assert reuse_buffers(exported.program) == ()
    assert not overwrites(call)


def test_a_kernel_with_two_results_is_left_alone(export: Any, tmp_path: Path) -> None:
    def function(x: Tensor, r: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        y = F.gelu(F.linear(x, w))
        return y, y * r

    exported = export(function, X, R, **weights())
    call = fuse(exported, tmp_path, "gelu", "mul")
    assert reuse_buffers(exported.program) == ()
    assert not overwrites(call)


def test_one_value_given_twice_to_a_kernel_is_left_alone(export: Any, tmp_path: Path) -> None:
    exported = export(REUSED["linear"], X, R, **weights())
    call = fuse(exported, tmp_path, "gelu", "mul")
    call.args = (call.args[0], call.args[0])
    assert reuse_buffers(exported.program) == ()
    assert not overwrites(call)


def test_applied_twice_it_changes_nothing_more(export: Any, tmp_path: Path) -> None:
    exported = export(REUSED["linear"], X, R, **weights())
    call = fuse(exported, tmp_path, "gelu", "mul")
    reuse_buffers(exported.program)
    first = call.target
    assert reuse_buffers(exported.program) == ()
    assert call.target is first


def test_repeated_calls_give_the_same_and_leave_inputs_alone(export: Any, tmp_path: Path) -> None:
    exported = export(REUSED["linear"], X, R, **weights())
    fuse(exported, tmp_path, "gelu", "mul")
    reuse_buffers(exported.program)
    exported.program.graph_module.recompile()
    w = exported.module.w.detach()
    saved = [tensor.clone() for tensor in (w, X, R)]
    with torch.no_grad():
        expected = exported.module(X, R)
        results = [exported.program.graph_module(w, X, R)[0] for _ in range(3)]
    for result in results:
        torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-6)
    assert len({result.data_ptr() for result in results}) == 3
    assert all(torch.equal(now, before) for now, before in zip((w, X, R), saved, strict=True))
