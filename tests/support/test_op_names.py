"""Operator names: both spellings, and twins by schema."""

import pytest
import torch

from planner.support.op_names import from_dispatcher, to_dispatcher, twins


@pytest.mark.parametrize(
    ("dispatcher", "op"),
    [
        ("aten::add.Tensor", "aten.add.Tensor"),
        ("aten::gelu", "aten.gelu.default"),
        ("transformers::grouped_mm", "transformers.grouped_mm.default"),
    ],
)
def test_names_translate_both_ways(dispatcher: str, op: str) -> None:
    assert from_dispatcher(dispatcher) == op
    assert to_dispatcher(op) == dispatcher


def test_graph_names_are_the_ones_torch_prints() -> None:
    overload = torch.ops.aten.div.Tensor_mode
    assert from_dispatcher(overload.name()) == str(overload)


@pytest.mark.parametrize(
    ("op", "first"),
    [
        ("aten.isin.Tensor_Tensor", "aten.isin.Tensor_Tensor_out"),
        ("aten.hardsigmoid.default", "aten.hardsigmoid.out"),
        ("aten.all.default", "aten.all.all_out"),
        ("aten.all.dim", "aten.all.out"),
        ("aten.max.dim", "aten.max.dim_max"),
        ("aten.div.Tensor_mode", "aten.div.out_mode"),
        ("aten.rand.default", "aten.rand.out"),
        ("aten.gelu.out", "aten.gelu.default"),
        ("aten.relu_.default", "aten.relu.out"),
    ],
)
def test_twins_are_found_by_arguments_not_by_name(op: str, first: str) -> None:
    assert twins(op)[0] == first


def test_another_overload_is_no_twin() -> None:
    assert "aten.all.out" not in twins("aten.all.default")
    assert "aten.add.Scalar" not in twins("aten.add.Tensor")


@pytest.mark.parametrize("op", ["nowhere.nothing.default", "aten.nothing.default", "cond"])
def test_an_unknown_operator_has_no_twins(op: str) -> None:
    assert twins(op) == ()
