"""What the checks of a kernel draw and compute: every case at few rows, the captured size and each
truth once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.functional import layer_norm

from fusion_kernels.emit.source import Provenance, emit
from fusion_kernels.evaluate import evaluate
from fusion_kernels.inputs import CASES
from fusion_kernels.library import FusedOperator, define
from fusion_kernels.rules import RULES
from planner import verify
from planner.fusion.lowered import LoweredRegion
from planner.fusion.match import match_rules
from planner.fusion.plan import write_kernel
from planner.fusion.regions import find_regions

SHAPE = (4, 96, 512)


@pytest.fixture(autouse=True)
def by_operation(uncompiled: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing is compiled, and the kernel's text is not run."""

    def targets(lowered: LoweredRegion, operator: FusedOperator, _: str) -> list[Any]:
        run = verify._placed(lowered, operator.overload)
        return [verify._Target("evaluated", run, "cpu", True)]

    monkeypatch.setattr(verify, "_targets", targets)
    with uncompiled():
        yield


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[str, int]]:
    """How often each case is drawn with how many elements, and truths under "float64"."""
    found: Counter[tuple[str, int]] = Counter()

    def drawn(specs: Any, case: Any, seed: int, *, device: str) -> Any:
        found[case.label, sum(prod(spec.shape) for spec in specs)] += 1
        return draw(specs, case, seed, device=device)

    def exact(module: Any, values: Any) -> Any:
        found["float64", sum(value.numel() for value in values)] += 1
        return run(module, values)

    draw, run = verify.draw_case, verify.run_in_float64
    monkeypatch.setattr(verify, "draw_case", drawn)
    monkeypatch.setattr(verify, "run_in_float64", exact)
    return found


def _subject(form: Callable[..., Any], folder: Path, *shapes: tuple[int, ...]) -> Any:
    tensors = [torch.randn(shape) for shape in shapes]
    module = make_fx(form, tracing_mode="fake", pre_dispatch=True)(*tensors)
    matches, _ = match_rules(module.graph, RULES)
    (plan,), _ = find_regions(module.graph, matches, lambda node: node.name)
    source = emit(plan.lowered.region, Provenance("this test"))
    return plan.lowered, define(source, write_kernel(source, folder))


def _norm(x: Tensor, residual: Tensor) -> Tensor:
    return layer_norm(x + residual, [SHAPE[-1]])


def _cancelling(x: Tensor, residual: Tensor) -> Tensor:
    """Float32 keeps four digits of the residual, in eager as well."""
    return (x * 1000 + residual) - x * 1000


def _by_label(seen: Counter[tuple[str, int]]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for (label, elements), times in seen.items():
        found.setdefault(label, []).extend([elements] * times)
    return found


def test_every_case_has_few_rows_and_the_captured_size_is_drawn_once(
    tmp_path: Path, seen: Counter[tuple[str, int]]
) -> None:
    subject = _subject(_norm, tmp_path, SHAPE, SHAPE)
    rows = verify.verify_region(*subject, "cpu", seed=0)
    assert all(row.passed for row in rows)
    labels = _by_label(seen)
    assert labels.pop("captured size") == [2 * prod(SHAPE)]
    assert labels.pop("no rows") == [0]
    truths = labels.pop("float64")
    assert len(truths) == sum(map(len, labels.values())) + 2
    assert set(labels) == {"one row", *(case.label for case in CASES)}
    assert max(max(sizes) for sizes in labels.values()) <= 2 * (1 << 16)


def test_what_is_compiled_for_its_inner_sizes_is_checked_at_those(
    tmp_path: Path, seen: Counter[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At others it would not run as compiled, and the check would be of something else."""
    whole = verify._targets

    def targets(*args: Any) -> list[Any]:
        return [replace(target, leading_alone=True) for target in whole(*args)]

    monkeypatch.setattr(verify, "_targets", targets)
    verify.verify_region(*_subject(_norm, tmp_path, SHAPE, SHAPE), "cpu", seed=0)
    rows = {elements / (2 * prod(SHAPE[1:])) for _, elements in seen}
    assert rows == {0, 1, 2, SHAPE[0]}


def test_a_bug_past_the_few_rows_shows_at_the_captured_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lowered, operator = _subject(_norm, tmp_path, SHAPE, SHAPE)

    def last_row_is_zero(*tensors: Tensor) -> Tensor:
        out = evaluate(lowered.region, tensors)[0].clone()
        if out.shape == SHAPE:
            out[-1, -1] = 0.0
        return out

    target = verify._Target("planted", last_row_is_zero, "cpu", True)
    monkeypatch.setattr(verify, "_targets", lambda *_: [target])
    failed = [row for row in verify.verify_region(lowered, operator, "cpu", 0) if not row.passed]
    assert failed
    assert all(row.case == "planted, captured size" for row in failed)


def test_a_failing_draw_is_judged_among_smaller_ones_where_it_is_large(
    tmp_path: Path, seen: Counter[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify, "_MOST_OF_MANY", 1 << 16)
    subject = _subject(_cancelling, tmp_path, SHAPE, SHAPE)
    rows = verify.verify_region(*subject, "cpu", seed=0)
    assert all(row.passed for row in rows)
    assert {"largest", "rms"} <= {row.measure for row in rows}
    sizes = _by_label(seen)["captured size"]
    assert len(sizes) == 16
    assert sorted(sizes)[-1] == 2 * prod(SHAPE)
    assert sorted(sizes)[-2] <= 2 * (1 << 16)


def test_each_truth_is_computed_once(tmp_path: Path, seen: Counter[tuple[str, int]]) -> None:
    """Also where a draw fails and is judged among sixteen."""
    subject = _subject(_cancelling, tmp_path, SHAPE, SHAPE)
    verify.verify_region(*subject, "cpu", seed=0)
    labels = _by_label(seen)
    truths = labels.pop("float64")
    assert len(truths) == sum(map(len, labels.values()))
    assert len(labels["normal"]) == 16


@pytest.mark.parametrize("shape", [SHAPE, (2, 64, 64), (2, 40, 60), (512, 8), (3, 2)])
def test_what_the_interpreter_is_given_takes_three_programs(
    tmp_path: Path, shape: tuple[int, ...]
) -> None:
    lowered, _ = _subject(lambda x: torch.relu(x * 2), tmp_path, shape)
    elements = 2048
    target = verify._Target("interpreted", lambda: None, "cpu", False, elements)
    sizes = verify._kinds(lowered, target)[0].sizes
    given = prod(sizes.get(dim, size) for dim, size in enumerate(lowered.region.shape))
    assert given > elements or given == prod(shape)
    assert given <= max(prod(shape[1:]), 8 * elements)


def test_a_kernel_that_fails_is_checked_no_further(
    tmp_path: Path, seen: Counter[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    lowered, operator = _subject(_norm, tmp_path, SHAPE, SHAPE)

    def wrong_when_large(*tensors: Tensor) -> Tensor:
        out = evaluate(lowered.region, tensors)[0]
        return out * 1.5 if 50 < float(tensors[0].std()) < 200 else out

    ways = [verify._Target(name, wrong_when_large, "cpu", True) for name in ("first", "second")]
    monkeypatch.setattr(verify, "_targets", lambda *_: ways)
    rows = verify.verify_region(lowered, operator, "cpu", 0)
    failed = [row for row in rows if not row.passed]
    assert {row.case for row in failed} == {"first, scale 1e2"}
    assert all(row.case.startswith("first") for row in rows)
    assert {label for label, _ in seen} == {*(case.label for case in CASES[:4]), "float64"}
