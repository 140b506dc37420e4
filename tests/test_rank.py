"""The ranking: order, shares, headroom, and what is said of operators without a measured time."""

from __future__ import annotations

import pytest

from planner.cost.devices import Claim, Device, Source
from planner.graph.op_graph import OpGraph, OpKey, OpNode, SourceLine, TensorMeta
from planner.profile.model import Profile, ProfileRow, UnlinkedRow
from planner.rank import op_ids, rank
from planner.timing import Timing

SOURCE = Source("assumed", "chosen by hand", "2026-11-30")
DEVICE = Device(
    "made",
    "made",
    ("made",),
    {
        "bandwidth_gbs": (Claim(1.0, SOURCE),),
        "peak_tflops.float32": (Claim(1.0, SOURCE),),
        "launch_overhead_us": (Claim(2.0, SOURCE),),
    },
)
X = TensorMeta((100, 10), "float32", (10, 1), "cpu")


def node(name: str, op: str, module: str = "", line: int = 1) -> OpNode:
    source = SourceLine("model.py", line, "y = f(x)")
    return OpNode(name, op, (X,), {}, (X,), (X,), module, "M", source, ())


RELU_1 = node("relu", "aten.relu.default", "a", 3)
RELU_2 = node("relu_1", "aten.relu.default", "b", 3)
MASK = node("tril", "aten.tril.default", "", 5)
MINE = node("mine", "mine.op.default", "", 7)
PICK = OpNode("getitem", "getitem", (), {}, (), (X,), "", "", None, ())
GRAPH = OpGraph((RELU_1, MASK, RELU_2, MINE, PICK))
PROFILE = Profile(
    device="cpu",
    iterations=3,
    wall=Timing((120.0,)),
    profiled_wall=Timing((150.0,)),
    rows=(
        ProfileRow(RELU_1.key, ("relu", "relu_1"), 2, Timing((50.0, 40.0, 30.0))),
        ProfileRow(MINE.key, ("mine",), 1, Timing((50.0, 50.0, 50.0))),
    ),
    unlinked=(UnlinkedRow("aten::to", Timing((10.0,))),),
    not_run=("tril",),
    module_calls=(),
)


def test_longest_total_time_first_then_predicted() -> None:
    rows = rank(GRAPH, PROFILE, DEVICE)
    assert [(row.id, row.op) for row in rows] == [
        ("op01", "mine.op.default"),
        ("op02", "aten.relu.default"),
        ("op03", "aten.tril.default"),
    ]


def test_measured_row() -> None:
    row = rank(GRAPH, PROFILE, DEVICE)[1]
    assert (row.kind, row.calls, row.tier) == ("measured", 2, "core")
    assert (row.total_us, row.p20_us, row.p80_us) == (40.0, pytest.approx(34.0), 46.0)
    assert (row.flops, row.bytes) == (2_000, 16_000)
    assert row.attainable_us == pytest.approx(16.0)
    assert row.headroom_us == pytest.approx(24.0)
    assert row.model_gain == pytest.approx(0.24)
    assert (row.bound, row.intensity) == ("memory", pytest.approx(0.125))
    assert row.modules == ("a", "b")
    assert row.sources == ("model.py:3",)


def test_shares_and_unlinked_share_add_up_to_one() -> None:
    shares = [row.share for row in rank(GRAPH, PROFILE, DEVICE) if row.share is not None]
    assert sum(shares) + PROFILE.unlinked_share == pytest.approx(1.0)


def test_unknown_flops_stay_unknown() -> None:
    row = rank(GRAPH, PROFILE, DEVICE)[0]
    assert row.total_us == 50.0
    assert (row.flops, row.attainable_us, row.headroom_us, row.model_gain) == (None,) * 4
    assert row.bound is None


def test_node_that_eager_never_ran_has_no_time_but_a_prediction() -> None:
    row = rank(GRAPH, PROFILE, DEVICE)[2]
    assert (row.kind, row.total_us, row.share, row.headroom_us) == ("unknown", None, None, None)
    assert row.attainable_us == pytest.approx(8.0)


def test_row_counts_only_the_calls_that_ran() -> None:
    profile = Profile(
        "cpu", 1, Timing((1.0,)), Timing((1.0,)),
        (ProfileRow(RELU_1.key, ("relu_1",), 1, Timing((5.0,))),), (), ("relu",), (),
    )  # fmt: skip
    row = rank(GRAPH, profile, DEVICE)[0]
    assert (row.calls, row.modules, row.bytes) == (1, ("b",), 8_000)


def test_without_a_profile_rows_follow_their_attainable_time() -> None:
    rows = rank(GRAPH, None, DEVICE)
    assert [row.op for row in rows] == ["aten.relu.default", "aten.tril.default", "mine.op.default"]
    assert {row.kind for row in rows} == {"unknown"}
    assert all(row.total_us is None and row.share is None for row in rows)


def test_device_without_figures_predicts_nothing() -> None:
    rows = rank(GRAPH, PROFILE, Device("unknown", "x", ("x",), {}, reason="no file"))
    assert all(row.attainable_us is None and row.bound is None for row in rows)
    assert rows[0].share == pytest.approx(0.5)


def test_ids_by_operator_key() -> None:
    ids = op_ids(rank(GRAPH, PROFILE, DEVICE))
    assert ids[RELU_1.key] == "op02"
    assert OpKey("aten.relu.default", ((1,),), ("float32",)) not in ids
