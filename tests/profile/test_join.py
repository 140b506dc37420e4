"""Joining on events made by hand: what is opened, what an alias may stand for, whose time it is."""

from __future__ import annotations

import pytest

from planner.graph.op_graph import OpGraph, OpNode, TensorMeta
from planner.profile.events import ITERATION, MODULE_PREFIX, Event, is_composite
from planner.profile.join import Joined, join
from planner.profile.tree import iterations_of

SHAPE = (4, 8)


def node(name: str, packet: str, module: str = "", dtype: str = "float32") -> OpNode:
    x = TensorMeta(SHAPE, dtype, (8, 1), "cpu")
    return OpNode(name, f"aten.{packet}.default", (x,), {}, (x,), (x,), module, "", None, ())


def call(
    name: str, start_us: int, end_us: int, *, composite: bool = False, dtype: str = "float32"
) -> Event:
    return Event(
        "operator", name, start_us * 1000, end_us * 1000, shapes=(SHAPE,), dtypes=(dtype,),
        composite=composite,
    )  # fmt: skip


def scope(name: str, start_us: int, end_us: int) -> Event:
    return Event("range", name, start_us * 1000, end_us * 1000)


def joined(nodes: list[OpNode], *events: Event, removed: tuple[OpNode, ...] = ()) -> Joined:
    whole = [scope(ITERATION, 0, 1000), scope(MODULE_PREFIX, 1, 999), *events]
    whole.sort(key=lambda event: (event.start_ns, -event.end_ns))
    (iteration,) = iterations_of(whole)
    return join(iteration, OpGraph(tuple(nodes)), on_device=False, removed=OpGraph(removed))


def test_outermost_call_that_fits_carries_all_inside() -> None:
    result = joined(
        [node("relu", "relu")], call("aten::relu", 10, 60), call("aten::clamp_min", 20, 50)
    )
    assert result == Joined({"relu": 50.0}, {})


def test_composite_wrapper_gives_its_own_time_and_allocation_to_the_longest_inside() -> None:
    result = joined(
        [node("t", "t"), node("mm", "mm")],
        call("aten::linear", 10, 100, composite=True),
        call("aten::t", 20, 25),
        call("aten::empty", 30, 40),
        call("aten::mm", 50, 90),
    )
    assert result == Joined({"t": 5.0, "mm": 85.0}, {})


def test_operator_with_a_kernel_of_its_own_is_not_opened() -> None:
    result = joined(
        [node("relu", "relu")], call("aten::fused", 10, 100), call("aten::relu", 20, 25)
    )
    assert result == Joined({}, {"aten::fused": 90.0})


def test_operator_that_calls_itself_is_opened() -> None:
    result = joined(
        [node("mm", "mm", dtype="bfloat16"), node("cast", "_to_copy")],
        call("aten::mm", 10, 100),
        call("aten::_to_copy", 20, 40),
        call("aten::mm", 50, 90, dtype="bfloat16"),
    )
    assert result == Joined({"cast": 20.0, "mm": 70.0}, {})


def test_work_inside_an_opened_composite_that_fits_nothing_is_unlinked() -> None:
    result = joined(
        [node("mm", "mm")],
        call("aten::linear", 10, 100, composite=True),
        call("aten::mystery", 20, 60),
        call("aten::mm", 60, 90),
    )
    assert result == Joined({"mm": 50.0}, {"aten::mystery": 40.0})


def test_reshape_stands_for_a_view() -> None:
    result = joined([node("view", "view")], call("aten::reshape", 10, 20, composite=True))
    assert result == Joined({"view": 10.0}, {})


def test_copy_inside_a_reshape_comes_before_the_alias() -> None:
    result = joined(
        [node("clone", "clone"), node("view", "view")],
        call("aten::reshape", 10, 50, composite=True),
        call("aten::clone", 15, 40),
        call("aten::_unsafe_view", 42, 45),
    )
    assert result == Joined({"clone": 37.0, "view": 3.0}, {})


def test_calls_of_two_modules_do_not_swap_nodes() -> None:
    result = joined(
        [node("relu_b", "relu", "b"), node("relu_a", "relu", "a")],
        scope(MODULE_PREFIX + "a", 10, 50),
        call("aten::relu", 20, 30),
        scope(MODULE_PREFIX + "b", 50, 90),
        call("aten::relu", 60, 80),
    )
    assert result.by_node == {"relu_a": 10.0, "relu_b": 20.0}


def test_module_path_that_differs_is_the_last_resort() -> None:
    result = joined(
        [node("relu", "relu", "elsewhere")],
        scope(MODULE_PREFIX + "a", 10, 50),
        call("aten::relu", 20, 30),
    )
    assert result == Joined({"relu": 10.0}, {})


def test_unlinked_calls_are_joined_to_nodes_that_the_graph_has_lost() -> None:
    result = joined(
        [node("relu", "relu")],
        call("aten::relu", 10, 20),
        call("aten::relu", 30, 70),
        call("aten::exp", 80, 85),
        removed=(node("relu_1", "relu"), node("tanh", "tanh")),
    )
    assert result == Joined(
        {"relu": 10.0}, {"aten::relu": 40.0, "aten::exp": 5.0}, {"relu_1": 40.0}
    )


def test_a_lost_node_never_takes_the_call_of_one_that_is_there() -> None:
    result = joined(
        [node("relu_1", "relu")],
        call("aten::relu", 10, 20),
        removed=(node("relu", "relu"),),
    )
    assert result == Joined({"relu_1": 10.0}, {})


def test_more_calls_than_nodes_are_unlinked() -> None:
    result = joined([node("relu", "relu")], call("aten::relu", 10, 20), call("aten::relu_", 30, 70))
    assert result == Joined({"relu": 10.0}, {"aten::relu_": 40.0})


@pytest.mark.parametrize(
    ("name", "composite"),
    [
        ("aten::reshape", True),
        ("aten::scaled_dot_product_attention", True),
        ("aten::linear", True),
        ("aten::_scaled_dot_product_flash_attention_for_cpu", False),
        ("aten::copy_", False),
        ("aten::no_such_operator", True),
        ("MyFunction", True),
    ],
)
def test_composite_operators_are_those_without_a_kernel(name: str, composite: bool) -> None:
    assert is_composite(name) is composite
