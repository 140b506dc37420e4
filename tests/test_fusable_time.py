"""What becomes of the eager time outside products, on programs and profiles made by hand."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from fusion_kernels.rule import Mismatch
from planner.fusable_time import fusable_time
from planner.graph.op_graph import OpGraph, OpKey, OpNode
from planner.profile.model import Profile, ProfileRow, UnlinkedRow
from planner.report.model import FusableTime
from planner.timing import Timing

_ONE = Timing((1.0,))


@dataclass(frozen=True)
class Places:
    """Stands in for a candidate, whose nodes alone are read."""

    nodes: tuple[str, ...]


@dataclass(frozen=True)
class Verdict:
    kept: bool


@dataclass(frozen=True)
class Fusion:
    candidate: Places
    judged: Verdict
    kept: bool
    reason: str = "slower than the operators it replaces"


@dataclass(frozen=True)
class Named:
    name: str


@dataclass(frozen=True)
class Epilogue:
    bias: Named
    activation: Named


@dataclass(frozen=True)
class Plan:
    fusions: tuple[Fusion, ...] = ()
    rejected: tuple[Mismatch, ...] = ()
    by_library: tuple[Epilogue, ...] = ()
    parts: dict[str, tuple[str, float]] = field(default_factory=dict)

    @property
    def chosen(self) -> tuple[Fusion, ...]:
        return tuple(fusion for fusion in self.fusions if fusion.kept)


def place(*nodes: str, kept: bool = True, alone: bool = True) -> Fusion:
    return Fusion(Places(nodes), Verdict(alone), kept)


def graph(**ops: str) -> OpGraph:
    return OpGraph(
        tuple(OpNode(name, op, (), {}, (), (), "", "", None, ()) for name, op in ops.items())
    )


PROGRAM = graph(
    linear="aten.linear.default",
    add="aten.add.Tensor",
    add_1="aten.add.Tensor",
    gelu="aten.gelu.default",
    cast="aten._to_copy.default",
    view="aten.view.default",
)
TIMES = {"linear": 100.0, "add": 8.0, "gelu": 6.0, "cast": 4.0, "view": 0.0}


def profile(unlinked: dict[str, float], removed: dict[str, float]) -> Profile:
    """The two additions are one row of 8 us."""
    rows = []
    for name, us in TIMES.items():
        names = ("add", "add_1") if name == "add" else (name,)
        rows.append(ProfileRow(OpKey(name, (), ()), names, len(names), Timing((us, us))))
    apart, lost = (
        tuple(UnlinkedRow(name, Timing((us,))) for name, us in found.items())
        for found in (unlinked, removed)
    )
    return Profile("cuda:0", 2, _ONE, _ONE, tuple(rows), apart, (), (), removed=lost)


def found(
    plan: Plan,
    rewritten: OpGraph | None = PROGRAM,
    unlinked: dict[str, float] | None = None,
    removed: dict[str, float] | None = None,
) -> FusableTime:
    made: Any = plan
    result = fusable_time(profile(unlinked or {}, removed or {}), PROGRAM, rewritten, made)
    assert result is not None
    return result


def without(*names: str) -> OpGraph:
    return OpGraph(tuple(node for node in PROGRAM if node.name not in names))


def left(result: FusableTime) -> dict[str, tuple[int, float | None, str]]:
    return {row.op: (row.calls, row.us, row.reason) for row in result.left}


def test_products_are_set_apart_and_all_other_time_is_the_total() -> None:
    result = found(Plan())
    assert (result.products_us, result.total_us) == (100.0, 18.0)
    assert result.covered == 0.0


def test_a_kernel_takes_the_time_of_its_nodes_alone() -> None:
    result = found(Plan((place("add", "gelu"),)))
    assert result.in_kernels_us == 4.0 + 6.0
    assert result.covered == pytest.approx(10 / 18)
    assert left(result) == {
        "aten.add": (1, 4.0, "no region holds aten.add.Tensor"),
        "aten._to_copy": (1, 4.0, "no region holds aten._to_copy.default"),
    }


PARTS = {"exp": ("gelu", 0.75), "sum": ("gelu", 0.25)}


def test_of_what_was_taken_apart_the_share_in_kernels_counts() -> None:
    result = found(Plan((place("exp"), place("sum", kept=False, alone=False)), parts=PARTS))
    assert result.in_kernels_us == 6.0 * 0.75
    assert left(result)["aten.gelu"] == (1, 6.0 * 0.25, "slower than the operators it replaces")
    assert result.total_us == 18.0


def test_all_of_it_is_in_kernels_where_all_parts_are() -> None:
    result = found(Plan((place("exp"), place("sum")), parts=PARTS))
    assert result.in_kernels_us == 6.0
    assert "aten.gelu" not in left(result)


def test_what_was_put_back_is_left_with_the_reason_of_its_parts() -> None:
    result = found(Plan((place("exp", kept=False),), parts=PARTS))
    assert (result.in_kernels_us, result.withdrawn_us) == (0.0, 6.0)
    assert left(result)["aten.gelu"] == (1, 6.0, "slower than the operators it replaces")
    refused = Mismatch("", "check", "aten.exp has no kernel expression", "exp")
    result = found(Plan(rejected=(refused,), parts=PARTS))
    assert left(result)["aten.gelu"] == (1, 6.0, "aten.exp has no kernel expression")


def test_a_node_that_the_rewritten_program_lacks_was_rewritten_away() -> None:
    result = found(Plan((place("add", "gelu"),)), without("cast"))
    assert (result.in_kernels_us, result.rewritten_us) == (10.0, 4.0)
    assert result.covered == pytest.approx(14 / 18)


def test_what_the_library_computes_with_a_product_was_rewritten_away() -> None:
    lost = place("bias", "gelu", kept=False, alone=False)
    result = found(Plan((lost,), by_library=(Epilogue(Named("bias"), Named("gelu")),)))
    assert (result.in_kernels_us, result.rewritten_us) == (0.0, 6.0)
    assert "aten.gelu" not in left(result)


def test_a_kernel_that_lost_its_race_covers_nothing() -> None:
    result = found(Plan((place("gelu", kept=False, alone=False),)))
    assert (result.in_kernels_us, result.withdrawn_us) == (0.0, 0.0)
    assert left(result)["aten.gelu"] == (1, 6.0, "slower than the operators it replaces")


def test_a_kernel_withdrawn_with_the_whole_is_told_apart() -> None:
    result = found(Plan((place("gelu", "cast", kept=False),)))
    assert (result.in_kernels_us, result.withdrawn_us) == (0.0, 10.0)
    assert result.covered == 0.0


def test_the_original_covers_nothing_whatever_was_rewritten() -> None:
    result = found(Plan((place("gelu", kept=False),)), None)
    assert (result.in_kernels_us, result.rewritten_us) == (0.0, 0.0)
    assert left(result)["aten.add"][2] == "the original module is returned"


def test_work_without_a_node_is_in_the_total_and_never_covered() -> None:
    result = found(Plan((place("add", "add_1", "gelu", "cast"),)), unlinked={"aten::copy_": 2.0})
    assert (result.total_us, result.unlinked_us) == (20.0, 2.0)
    assert result.covered == pytest.approx(0.9)


def test_work_that_the_capture_folded_is_rewritten_unless_the_original_runs() -> None:
    apart = {"aten::arange": 3.0, "aten::copy_": 2.0}
    result = found(Plan(), unlinked=apart, removed={"aten.arange": 3.0})
    assert (result.rewritten_us, result.unlinked_us, result.total_us) == (3.0, 2.0, 23.0)
    result = found(Plan(), None, apart, {"aten.arange": 3.0})
    assert (result.rewritten_us, result.unlinked_us) == (0.0, 5.0)


def test_a_product_that_was_folded_is_no_part_of_the_total() -> None:
    result = found(Plan(), unlinked={"aten::mm": 9.0}, removed={"aten.mm": 9.0})
    assert (result.rewritten_us, result.total_us) == (0.0, 18.0)


def test_a_product_without_a_node_is_no_part_of_the_total() -> None:
    result = found(Plan(), unlinked={"aten::mm": 50.0})
    assert (result.products_us, result.total_us, result.unlinked_us) == (150.0, 18.0, 0.0)


def test_the_longest_operator_comes_first_and_views_are_no_obstacle() -> None:
    assert [row.op for row in found(Plan()).left] == ["aten.add", "aten.gelu", "aten._to_copy"]


def test_the_reason_of_a_single_operator_goes_before_a_named_rules() -> None:
    refused = (
        Mismatch("pointwise_chain", "check", "not joined with linear: two rows", "gelu"),
        Mismatch("gelu_residual", "pattern", "its user is no addition", "gelu"),
    )
    for order in (refused, refused[::-1]):
        assert left(found(Plan(rejected=order)))["aten.gelu"][2] == refused[0].reason


def test_what_a_rewrite_put_in_is_named_without_a_time() -> None:
    more = graph(where="aten.where.self", where_1="aten.where.self", wide="aten.expand.default")
    result = found(Plan(), OpGraph((*PROGRAM, *more)))
    assert left(result)["aten.where"][:2] == (2, None)
    assert "aten.expand" not in left(result)
    held = found(Plan((place("where", "where_1"),)), OpGraph((*PROGRAM, *more)))
    assert "aten.where" not in left(held)


def test_without_a_profile_there_is_nothing_to_say() -> None:
    plan: Any = Plan()
    assert fusable_time(None, PROGRAM, PROGRAM, plan) is None


def test_a_forward_of_products_alone_has_no_share() -> None:
    only = Profile(
        "cuda:0",
        1,
        _ONE,
        _ONE,
        (ProfileRow(OpKey("aten.linear.default", (), ()), ("linear",), 1, _ONE),),
        (),
        (),
        (),
    )
    plan: Any = Plan()
    result = fusable_time(only, PROGRAM, PROGRAM, plan)
    assert result is not None
    assert result.covered is None
