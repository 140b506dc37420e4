"""Linking of device work, on events made by hand in the shape of a CUDA trace.

Launch kinds, number collisions and events without an operator are those seen in recorded traces.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from planner.graph.op_graph import OpGraph, OpNode, TensorMeta
from planner.profile.events import ITERATION, MODULE_PREFIX, Event, read_events
from planner.profile.measure import profile_of
from planner.profile.tree import iterations_of
from planner.timing import Timing

X = TensorMeta((4, 8), "float32", (8, 1), "cuda:0")
WALL = Timing((100.0,))


def op(name: str, start: int, end: int, number: int = 0, composite: bool = False) -> Event:
    return Event(
        "operator",
        name,
        start,
        end,
        thread=1,
        correlation=number,
        shapes=((4, 8),),
        dtypes=("float32",),
        composite=composite,
    )


def scope(name: str, start: int, end: int) -> Event:
    return Event("range", name, start, end, thread=1)


def launch(start: int, number: int, thread: int = 1) -> Event:
    return Event("launch", "cudaLaunchKernel", start, start + 5, thread, number)


def kernel(start: int, duration: int, number: int, linked: int = 0, name: str = "k") -> Event:
    return Event("device", name, start, start + duration, correlation=number, linked=linked)


def ordered(*events: Event) -> tuple[Event, ...]:
    return tuple(sorted(events, key=lambda event: (event.start_ns, -event.end_ns)))


def node(name: str, packet: str) -> OpNode:
    return OpNode(name, f"aten.{packet}.default", (X,), {}, (X,), (X,), "", "", None, ())


GRAPH = OpGraph((node("relu", "relu"), node("gelu", "gelu")))


def forward(*events: Event) -> tuple[Event, ...]:
    return ordered(scope(ITERATION, 0, 10_000), scope(MODULE_PREFIX, 10, 9_000), *events)


def test_kernel_time_goes_to_the_operator_around_its_launch() -> None:
    events = forward(
        op("aten::relu", 100, 200), launch(150, 7), kernel(5_000, 3_000, 7),
        op("aten::gelu", 300, 400), launch(350, 8), kernel(8_000, 500, 8),
    )  # fmt: skip
    profile = profile_of(events, GRAPH, "cuda", WALL)
    totals = {row.node_names: row.timing.median_us for row in profile.rows}
    assert totals == {("relu",): 3.0, ("gelu",): 0.5}
    assert profile.unlinked_share == 0.0


def test_work_of_nested_operators_counts_once_in_the_joined_one() -> None:
    events = forward(
        op("aten::relu", 100, 300),
        op("aten::clamp_min", 120, 280),
        launch(150, 7),
        kernel(5_000, 3_000, 7),
    )
    profile = profile_of(events, GRAPH, "cuda", WALL)
    assert profile.operators_us == 3.0


def test_linked_number_that_collides_with_another_operator_is_not_believed() -> None:
    events = forward(
        op("aten::relu", 100, 200, number=7),
        op("aten::gelu", 300, 400, number=9),
        launch(350, 7),
        kernel(5_000, 1_000, 7, linked=7),
    )
    profile = profile_of(events, GRAPH, "cuda", WALL)
    assert {row.node_names: row.timing.median_us for row in profile.rows}[("gelu",)] == 1.0


def test_linked_number_is_used_where_the_launch_was_not_recorded() -> None:
    events = forward(op("aten::relu", 100, 200, number=7), kernel(5_000, 1_000, 99, linked=7))
    assert profile_of(events, GRAPH, "cuda", WALL).linked_us == 1.0


def test_launch_on_a_thread_of_its_own_is_found_by_time() -> None:
    events = forward(
        op("aten::relu", 100, 200), launch(150, 7, thread=4242), kernel(5_000, 1_000, 7)
    )
    assert profile_of(events, GRAPH, "cuda", WALL).linked_us == 1.0


def test_kernel_launched_outside_any_operator_is_unlinked_by_its_name() -> None:
    events = forward(
        op("aten::relu", 100, 200), launch(150, 7), kernel(5_000, 3_000, 7),
        launch(250, 8), kernel(8_100, 1_000, 8, name="triton_rope"),
    )  # fmt: skip
    profile = profile_of(events, GRAPH, "cuda", WALL)
    assert [(row.name, row.timing.median_us) for row in profile.unlinked] == [("triton_rope", 1.0)]
    assert profile.unlinked_share == 0.25


def test_many_kernels_of_one_launch_stay_together() -> None:
    events = forward(
        launch(250, 8), *(kernel(5_000 + 100 * i, 50, 8, name="replayed") for i in range(4))
    )
    profile = profile_of(events, GRAPH, "cuda", WALL)
    assert profile.unlinked_us == pytest.approx(0.2)
    assert profile.unlinked_share == 1.0


def test_operator_that_launches_nothing_took_no_device_time() -> None:
    events = forward(op("aten::relu", 100, 200))
    profile = profile_of(events, GRAPH, "cuda", WALL)
    assert profile.rows[0].timing.median_us == 0.0
    assert profile.not_run == ("gelu",)


def test_device_work_before_the_first_iteration_is_left_out() -> None:
    early = ordered(
        op("aten::relu", 10, 20), launch(15, 6), kernel(20, 5, 6), kernel(30, 5, 3),
        scope(ITERATION, 100, 200), op("aten::relu", 110, 120), launch(115, 7), kernel(130, 50, 7),
    )  # fmt: skip
    profile = profile_of(early, GRAPH, "cuda", WALL)
    assert profile.operators_us == pytest.approx(0.05)


def test_iterations_are_samples() -> None:
    events: list[Event] = []
    for index, duration in enumerate((1_000, 3_000, 2_000)):
        base = index * 10_000
        events += [
            scope(ITERATION, base, base + 9_000),
            op("aten::relu", base + 100, base + 200),
            launch(base + 150, index),
            kernel(base + 4_000, duration, index),
        ]
    profile = profile_of(ordered(*events), GRAPH, "cuda", WALL)
    assert profile.rows[0].timing.samples_us == (1.0, 3.0, 2.0)
    assert profile.iterations == 3


def test_note_when_the_host_sets_the_pace() -> None:
    events = forward(op("aten::relu", 100, 200), launch(150, 7), kernel(5_000, 3_000, 7))
    assert "host sets the pace" in profile_of(events, GRAPH, "cuda", WALL).note
    assert profile_of(events, GRAPH, "cuda", Timing((3.5,))).note == ""


@dataclass
class RawEvent:
    """What torch's event object answers, of which only these questions are asked."""

    raw_name: str
    device: str = "DeviceType.CPU"
    activity: str = "cpu_op"
    start: int = 0
    annotation: bool = False
    raw_shapes: list[list[int]] = field(default_factory=list)
    raw_dtypes: list[str] = field(default_factory=list)

    def name(self) -> str:
        return self.raw_name

    def start_ns(self) -> int:
        return self.start

    def duration_ns(self) -> int:
        return 10

    def start_thread_id(self) -> int:
        return 1

    def correlation_id(self) -> int:
        return 5

    def linked_correlation_id(self) -> int:
        return 6

    def shapes(self) -> list[list[int]]:
        return self.raw_shapes

    def dtypes(self) -> list[str]:
        return self.raw_dtypes

    def device_type(self) -> str:
        return self.device

    def is_user_annotation(self) -> bool:
        return self.annotation

    def activity_type(self) -> str:
        return self.activity


class OlderRawEvent(RawEvent):
    """As above from a release without activity types."""

    def __getattribute__(self, name: str) -> object:
        if name == "activity_type":
            raise AttributeError(name)
        return super().__getattribute__(name)


@pytest.mark.parametrize("cls", [RawEvent, OlderRawEvent])
@pytest.mark.parametrize(
    ("name", "activity", "kind"),
    [
        ("aten::relu", "cpu_op", "operator"),
        ("cudaLaunchKernel", "cuda_runtime", "launch"),
        ("cuLaunchKernelEx", "cuda_driver", "launch"),
        ("hipLaunchKernel", "cuda_runtime", "launch"),
        ("mine::cudalike", "cpu_op", "operator"),
    ],
)
def test_kind_of_host_events(cls: type[RawEvent], name: str, activity: str, kind: str) -> None:
    (event,) = read_events([cls(name, activity=activity)])
    assert event.kind == kind


@pytest.mark.parametrize("cls", [RawEvent, OlderRawEvent])
def test_memory_events_are_neither_work_nor_context(cls: type[RawEvent]) -> None:
    assert read_events([cls("[memory]", activity="cpu_instant_event")]) == ()


def test_range_mirrored_onto_the_device_is_not_device_work() -> None:
    events = read_events(
        [
            RawEvent("my step", activity="user_annotation", annotation=True),
            RawEvent("my step", device="DeviceType.CUDA", activity="gpu_user_annotation"),
            RawEvent(ITERATION, device="DeviceType.CUDA", activity="gpu_user_annotation"),
            RawEvent("vectorized_kernel", device="DeviceType.CUDA", activity="kernel"),
        ]
    )
    assert [(event.kind, event.name) for event in events] == [
        ("range", "my step"),
        ("device", "vectorized_kernel"),
    ]


def test_numbers_and_zero_dimensional_tensors_are_left_out_of_shapes() -> None:
    raw = RawEvent(
        "aten::div", raw_shapes=[[3, 4], [], []], raw_dtypes=["c10::BFloat16", "double", "Scalar"]
    )
    (event,) = read_events([raw])
    assert (event.shapes, event.dtypes, event.complete) == (((3, 4),), ("bfloat16",), True)


def test_list_of_tensors_without_shapes_is_incomplete() -> None:
    (event,) = read_events(
        [RawEvent("aten::cat", raw_shapes=[[], []], raw_dtypes=["TensorList", "Scalar"])]
    )
    assert event.complete is False


def test_back_to_back_ranges_are_siblings() -> None:
    events = ordered(
        scope(ITERATION, 0, 100),
        scope(MODULE_PREFIX + "shared", 10, 20),
        scope(MODULE_PREFIX + "shared", 20, 30),
    )
    (run,) = iterations_of(events)
    assert [call.event.start_ns for call in run.calls] == [10, 20]
