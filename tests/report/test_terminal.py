"""The terminal report against golden text, at two widths, and what must hold of any report."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from planner.report.model import Benchmark, Outcome, ProfileInfo, Report
from planner.report.terminal import render

GOLDEN = Path(__file__).parents[1] / "golden" / "reports"


@pytest.mark.parametrize("width", [80, 120])
def test_golden(report: Report, width: int, refresh_golden: bool) -> None:
    text = render(report, width=width)
    file = GOLDEN / f"terminal_{width}.txt"
    if refresh_golden:
        file.write_text(text, encoding="utf-8")
    assert text == file.read_text(encoding="utf-8")


@pytest.mark.parametrize("width", [60, 80, 97, 120, 200])
def test_no_line_is_wider_than_asked(report: Report, width: int) -> None:
    assert max(map(len, render(report, width=width).splitlines())) <= width


@pytest.mark.parametrize("width", [80, 100, 120])
def test_no_figure_is_cut(report: Report, width: int) -> None:
    lines = render(report, width=width).splitlines()
    cut = [line for line in lines if re.search(r"\d…(?! more)", line)]
    assert cut == []


def test_colour_only_repeats_the_words(report: Report) -> None:
    colored = render(report, width=100, color=True)
    assert "\x1b[" in colored
    bare = re.sub(r"\x1b\[[\d;]*m", "", colored)
    assert [line.rstrip() for line in bare.splitlines()] == render(report, width=100).splitlines()


def test_brackets_in_names_are_text_and_not_markup(report: Report) -> None:
    model = replace(report.model, name="[red]m[/red]", inputs={"x": "float32[bold]"})
    text = render(replace(report, model=model))
    assert "[red]m[/red]" in text
    assert "float32[bold]" in text


def test_unknown_times_are_never_zero(report: Report) -> None:
    ops = tuple(
        replace(op, total_us=None, share=None, headroom_us=None, model_gain=None, kind="unknown")
        for op in report.ops
    )
    profile = ProfileInfo("unknown", 0, None, None, None)
    bare = replace(
        report,
        ops=ops,
        profile=profile,
        unlinked_share=None,
        coverage={},
        fusions=(),
        rejections=(),
        numerics=(),
        benchmark=Benchmark(()),
        outcome=None,
    )
    text = render(bare)
    assert "times unknown" in text
    assert "0 us" not in text.partition("Ranking")[2]
    assert "77.3 G" in text  # the cost columns take the place of the times


def test_sections_without_content_are_left_out(report: Report) -> None:
    bare = replace(
        report,
        coverage={},
        fusions=(),
        rejections=(),
        numerics=(),
        benchmark=Benchmark(()),
        outcome=None,
    )
    text = render(bare)
    for title in ("Coverage", "Fusions", "Not fused", "Numerics", "Benchmark", "module is used"):
        assert title not in text


def test_a_program_without_kernels_is_named_as_the_outcome(report: Report) -> None:
    text = render(replace(report, outcome=Outcome("normalized", "it wins without kernels")))
    last = text.splitlines()[-1]
    assert last == " The captured program without kernels is used: it wins without kernels"


def test_copies_of_weights_are_told(report: Report) -> None:
    text = render(replace(report, outcome=Outcome("fused", "it wins", 2_500_000)))
    assert "it wins; 2.5 MB of weights are copies, folded or packed" in text
    text = render(replace(report, outcome=Outcome("fused", "it wins")))
    assert "copies" not in text


def test_the_original_is_named_as_the_outcome(report: Report) -> None:
    text = render(replace(report, outcome=Outcome("original", "no fusion was faster")))
    assert text.splitlines()[-1] == " The original module is used: no fusion was faster"


def test_a_long_ranking_is_cut_and_says_so(report: Report) -> None:
    ops = tuple(replace(report.ops[0], id=f"op{i}", share=0.01) for i in range(40))
    assert "… 15 more rows, 15.0 % of the time" in render(replace(report, ops=ops))
