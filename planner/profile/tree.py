"""The tree of calls in a profiled run: nested by time on each thread, device work hung under the
operator that launched it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from planner.profile.events import ITERATION, Event


@dataclass(slots=True, eq=False)
class Call:
    """An operator or range with what ran inside it. `module_path` is the innermost module around
    it, None outside the model; `device_us` the device work it launched itself.
    """

    event: Event
    module_path: str | None
    children: list[Call] = field(default_factory=list)
    device_us: float = 0.0

    def walk(self) -> Iterator[Call]:
        """The call and everything inside it, outermost first."""
        yield self
        for child in self.children:
            yield from child.walk()


@dataclass(slots=True)
class Iteration:
    """One forward: its range, its outermost calls on all threads, and device work launched
    outside any operator.
    """

    range: Event
    calls: list[Call] = field(default_factory=list)
    loose: list[Event] = field(default_factory=list)


def iterations_of(events: Sequence[Event]) -> tuple[Iteration, ...]:
    """The iterations of a run, each with its calls.

    Device work belongs to the innermost operator that contains its launch on the launch's thread,
    found by correlation; where the launch was not recorded, to the operator it names as linked.
    What neither finds is loose.
    """
    roots = _nest(event for event in events if event.kind in ("operator", "range"))
    ranges = sorted(
        (event for event in events if event.name == ITERATION and event.kind == "range"),
        key=lambda event: event.start_ns,
    )
    iterations = tuple(Iteration(event) for event in ranges)
    starts = [event.start_ns for event in ranges]
    for root in _outermost(roots):
        index = bisect_right(starts, root.event.start_ns) - 1
        if index >= 0 and root.event.start_ns <= ranges[index].end_ns:
            iterations[index].calls.append(root)
    for event in _loose_work(events, roots):
        index = bisect_right(starts, event.start_ns) - 1
        if index >= 0:
            iterations[index].loose.append(event)
    return iterations


def _nest(events: Iterable[Event]) -> dict[int, list[Call]]:
    """Trees by thread. Events come sorted by start, the longer first."""
    roots: dict[int, list[Call]] = {}
    open_calls: dict[int, list[Call]] = {}
    for event in events:
        stack = open_calls.setdefault(event.thread, [])
        while stack and stack[-1].event.end_ns <= event.start_ns:
            stack.pop()
        path = event.module_path
        if path is None:
            path = stack[-1].module_path if stack else None
        call = Call(event, path)
        (stack[-1].children if stack else roots.setdefault(event.thread, [])).append(call)
        stack.append(call)
    return roots


def _outermost(roots: dict[int, list[Call]]) -> Iterator[Call]:
    """Every outermost call, with the iteration ranges themselves unwrapped."""
    for calls in roots.values():
        for call in calls:
            if call.event.name == ITERATION:
                yield from call.children
            else:
                yield call


def _loose_work(events: Sequence[Event], roots: dict[int, list[Call]]) -> Iterator[Event]:
    """Add device work to the operators that launched it; yield what no operator did."""
    launches = {event.correlation: event for event in events if event.kind == "launch"}
    by_number = {
        call.event.correlation: call
        for calls in roots.values()
        for root in calls
        for call in root.walk()
        if call.event.kind == "operator"
    }
    for event in events:
        if event.kind != "device":
            continue
        launch = launches.get(event.correlation)
        # Number 0 is no link.
        named = by_number.get(event.linked) if event.linked else None
        owner = named if launch is None else _launcher(launch, named, roots)
        if owner is None:
            yield event
        else:
            owner.device_us += event.duration_us


def _launcher(launch: Event, named: Call | None, roots: dict[int, list[Call]]) -> Call | None:
    """The innermost operator around a launch. The named operator is a cross-check only: its number
    can collide with a launch's, so it counts where it contains the launch.

    A launch recorded under a thread of its own is looked for on every thread.
    """
    found = _innermost(launch.start_ns, [named]) if named is not None else None
    if found is not None:
        return found
    threads = [roots[launch.thread]] if launch.thread in roots else list(roots.values())
    for calls in threads:
        found = _innermost(launch.start_ns, calls)
        if found is not None:
            return found
    return None


def _innermost(moment_ns: int, calls: list[Call]) -> Call | None:
    """The deepest operator that runs at a moment."""
    found: Call | None = None
    while calls:
        index = bisect_right(calls, moment_ns, key=lambda call: call.event.start_ns) - 1
        if index < 0 or calls[index].event.end_ns < moment_ns:
            break
        if calls[index].event.kind == "operator":
            found = calls[index]
        calls = calls[index].children
    return found
