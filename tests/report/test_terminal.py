"""The terminal report against golden text, at two widths, and what must hold of any report."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from planner.report.model import (
    Benchmark,
    FusableTime,
    NumericsRow,
    Outcome,
    PassRecord,
    ProfileInfo,
    RejectionRow,
    Report,
)
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
        fusable=None,
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
        fusable=None,
    )
    text = render(bare)
    for title in ("Coverage", "Fusions", "Not fused", "Covered", "Numerics", "Benchmark"):
        assert title not in text
    assert "module is used" not in text


def test_the_covered_share_names_its_denominator_and_what_is_left(report: Report) -> None:
    text = render(replace(report, fusable=replace(_fusable(report), unlinked_us=0.0)), width=200)
    assert "Covered  93.9 % of 3.14 ms" in text
    assert "2.61 ms in kernels, 340 us rewritten away, 190 us left" in text
    assert "not in the captured program" not in text
    row = next(line for line in text.splitlines() if "embedding_1" in line)
    assert row.split()[:4] == ["embedding", "2", "52.0", "us"]


def test_what_is_left_is_cut_and_says_so(report: Report) -> None:
    rows = tuple(replace(_fusable(report).left[0], op=f"aten.op{i}") for i in range(12))
    text = render(replace(report, fusable=replace(_fusable(report), left=rows)))
    assert "… 4 more operators: report.json has all" in text


def _fusable(report: Report) -> FusableTime:
    assert report.fusable is not None
    return report.fusable


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
    text = render(replace(report, ops=ops))
    assert "… 15 more rows, 15.0 % of the time: report.json has all" in text
    assert "… 1 more row, 1.0 % of" in render(replace(report, ops=ops[:26]))


def test_what_is_cut_of_a_run_without_a_folder_names_the_option(report: Report) -> None:
    ops = tuple(replace(report.ops[0], id=f"op{i}") for i in range(40))
    fusions = tuple(replace(report.fusions[0], rule="x" * i) for i in range(40))
    rejections = tuple(replace(report.rejections[0], rule="x" * i) for i in range(20))
    numerics = tuple(replace(report.numerics[1], subject=f"k{i}") for i in range(30))
    long = replace(report, ops=ops, fusions=fusions, rejections=rejections, numerics=numerics)
    text = render(long, width=200, kept=False)
    assert text.count(": --out DIR keeps all in report.json") == 4
    assert "report.json has all" not in text
    assert render(long, width=200).count(": report.json has all") == 4


def test_on_cpu_the_fusions_say_what_was_timed(report: Report) -> None:
    said = "timed on CPU: the same regions compiled by Inductor"
    assert said not in render(report)
    on_cpu = replace(report, environment=replace(report.environment, device="cpu"))
    assert said in render(on_cpu)
    assert said not in render(replace(on_cpu, fusions=()))


def test_shares_name_their_whole_and_the_forward_beside_it(report: Report) -> None:
    slowed = replace(report, profile=replace(report.profile, operators_us=9_120.0))
    said = "shares are of 9.12 ms, all operators added up under the profiler, which slows them; "
    assert said + "a forward without it takes 8.29 ms" in render(slowed, width=200)
    unknown = replace(report, profile=replace(report.profile, operators_us=None))
    assert "shares are of" not in render(unknown)


def test_a_ranking_of_nothing_that_ran_says_why(report: Report) -> None:
    said = "eager ran other operators than the captured graph"
    instead = "no row has a time, so FLOPs and traffic stand there instead"
    assert said not in render(report)
    bare = tuple(replace(op, total_us=None, share=None, kind="unknown") for op in report.ops)
    text = render(replace(report, ops=bare, unlinked_share=1.0), width=200)
    assert said in text
    assert instead in text
    assert "shares are of" not in text
    text = render(replace(report, unlinked_share=0.97), width=200)
    assert said in text
    assert instead not in text


def test_one_of_a_kind_is_said_in_the_singular(report: Report) -> None:
    one = replace(
        report,
        model=replace(report.model, parameters=1, parameter_bytes=4),
        capture=replace(report.capture, nodes=1),
        profile=replace(report.profile, iterations=1),
        ops=report.ops[:1],
        fusions=report.fusions[:1],
        rejections=report.rejections[:1],
        numerics=report.numerics[:1],
        benchmark=replace(report.benchmark, rounds=1),
    )
    text = render(one)
    for said in (
        *("1 parameter, ", "1 graph, 1 operator ", "1 row, ", "over 1 run "),
        *("1 distinct operator ", "0 of 1 place kept", "1 place, 1 reason ", "1 check against"),
        "1 round in turn",
    ):
        assert said in text, said


def test_a_model_without_weights_has_no_size(report: Report) -> None:
    model = replace(report.model, parameters=0, parameter_bytes=0, dtype="none")
    first = render(replace(report, model=model)).splitlines()[0]
    assert first == " hf:bert  BertModel, no parameters"


def test_the_numerics_say_which_casts_the_reference_lacks(report: Report) -> None:
    fusions = tuple(replace(row, unrounded=("to_copy", "to_copy_1")) for row in report.fusions)
    assert "float64 lacks 2 casts of the model, as the kernels do" in render(
        replace(report, fusions=fusions, precision="high")
    )
    dropped = tuple(replace(row, kept=False) for row in fusions)
    assert "float64 lacks" not in render(replace(report, fusions=dropped, precision="high"))


def test_passes_that_did_nothing_are_named_once_in_one_line(report: Report) -> None:
    idle = PassRecord("drop_noops", 361, 361, 5.0)
    passes = (*report.capture.passes, idle, idle, replace(idle, name="normalize"))
    text = render(replace(report, capture=replace(report.capture, passes=passes)))
    assert " nothing to do for merge_linears, drop_noops\n" in text


def test_a_capture_without_notes_is_no_pass(report: Report) -> None:
    passes = (PassRecord("captured", 377, 377, 5.0),)
    text = render(replace(report, capture=replace(report.capture, passes=passes)))
    assert "captured  " not in text
    assert "nothing to do" not in text


def test_a_kernel_that_does_not_run_says_why_and_is_no_measure(report: Report) -> None:
    row = NumericsRow("gelu", "float32", None, None, 0.0, False, "runs", "KeyError: x")
    text = render(replace(report, numerics=(*report.numerics, row)), width=120)
    assert " failed gelu, float32: it does not run: KeyError: x\n" in text
    assert not any(line.split()[1:2] == ["runs"] for line in text.splitlines())


def test_a_place_that_was_tried_is_told_once(report: Report) -> None:
    lost = replace(report.fusions[0], kept=False, reason="slower than eager here")
    again = RejectionRow(lost.rule, "speed", lost.reason, "gelu_0")
    changed = replace(report, fusions=(lost,), rejections=(*report.rejections, again))
    text = render(changed, width=160)
    assert "Not fused  4 places, 2 reasons" in text
    assert text.count("slower than eager here") == 1


def test_coverage_says_how_many_are_covered_in_another_way(report: Report) -> None:
    found = report.coverage["onnx"]
    rows = tuple(replace(row, level="composite_implicit") for row in found.rows)
    text = render(replace(report, coverage={"onnx": replace(found, rows=rows)}))
    assert "onnx: 7 operators covered indirectly" in text


def test_no_time_left_over_is_said_in_words(report: Report) -> None:
    text = render(replace(report, unlinked_share=0.0))
    assert " all operator time joined to the graph\n" in text
