"""Tables as files: strict reading, deterministic writing, names, chips."""

from collections.abc import Callable
from pathlib import Path

import pytest

from planner.facts import BadFacts
from planner.support.tables import (
    BackendTable,
    UnknownBackend,
    dump_table,
    load_table,
    read_table,
    table_names,
)

TableFrom = Callable[..., BackendTable]

RICH = {
    "aten.add.Tensor": {"level": "native_delegate", "via": "aten.add.out", "evidence": "line 7"},
    "aten.gelu.default": {"level": "conditional", "condition": "approximate is 'none'"},
    "aten.mm.default": {
        "level": "native",
        "dtypes": ["bfloat16", "float32"],
        "disputed": {"docs": "unsupported"},
        "chips": {"B": {"level": "native", "dtypes": ["float32"]}, "C": "unsupported"},
    },
    "aten.sort": {"level": "cpu_fallback", "note": "copies both ways"},
    "aten.topk.default": "stub",
}
DOCS = {
    "kind": "documentation",
    "ref": "page of operators",
    "checked": "2026-11-30",
    "packages": {"made-up-docs": "1.0"},
    "extractor": "by hand",
}


def test_a_written_table_reads_back_equal(table_from: TableFrom, tmp_path: Path) -> None:
    table = table_from(entries=RICH, chips=["B", "C"], further_sources={"docs": DOCS})
    dump_table(table, tmp_path / "made-up.yaml")
    assert read_table(tmp_path / "made-up.yaml") == table


def test_the_order_of_entries_does_not_change_the_bytes(
    table_from: TableFrom, tmp_path: Path
) -> None:
    parts = {"chips": ["B", "C"], "further_sources": {"docs": DOCS}}
    dump_table(table_from(entries=RICH, **parts), tmp_path / "one.yaml")
    dump_table(table_from(entries=dict(reversed(RICH.items())), **parts), tmp_path / "two.yaml")
    assert (tmp_path / "one.yaml").read_bytes() == (tmp_path / "two.yaml").read_bytes()


def test_an_entry_takes_one_line(table_from: TableFrom, tmp_path: Path) -> None:
    long_note = "a note that is longer than any line a person would want to read " * 4
    entries = {"aten.mm.default": {"level": "native", "note": long_note.strip()}}
    dump_table(table_from(entries=entries), tmp_path / "made-up.yaml")
    lines = (tmp_path / "made-up.yaml").read_text(encoding="utf-8").splitlines()
    assert len(lines) - lines.index("entries:") == 2


@pytest.mark.parametrize(
    ("entry", "complaint"),
    [
        ("supported", "'supported' is not one of"),
        ({"level": "native", "dtype": ["float32"]}, "the field 'dtype' is unknown"),
        ({"note": "no level"}, "the field 'level' is missing"),
        ({"level": "native", "dtypes": "float32"}, "must be a list"),
        ({"level": "native", "dtypes": [32]}, "must be text"),
        ({"level": "conditional"}, "go together"),
        ({"level": "native", "condition": "even sizes"}, "go together"),
        ({"level": "native", "disputed": {"docs": "stub"}}, "which further_sources does not hold"),
        ({"level": "native", "chips": {"Z": "stub"}}, "not among the table's chips"),
        (["native"], "must be a mapping"),
    ],
)
def test_a_bad_entry_is_refused_by_file_and_name(
    table_from: TableFrom, entry: object, complaint: str
) -> None:
    with pytest.raises(BadFacts, match=complaint) as caught:
        table_from(entries={"aten.mm.default": entry})
    assert "made-up.yaml" in str(caught.value)
    assert "aten.mm.default" in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"family": "compiler"}, "family: 'compiler' is not one of dispatcher, converter"),
        ({"default": {"level": "unknown"}}, "default: the field 'reason' is missing"),
        ({"schema": 2}, "make the table anew"),
        ({"colour": "blue"}, "the field 'colour' is unknown"),
        ({"provenance": {**DOCS, "kind": "hearsay"}}, "'hearsay' is not one of datasheet"),
        ({"provenance": {**DOCS, "packages": {}}}, "'packages' is empty"),
        ({"provenance": {**DOCS, "packages": {"torch": 2.1}}}, "must be text, is 2.1"),
        ({"name": "other"}, "name the file other.yaml"),
    ],
)
def test_a_bad_table_is_refused(table_from: TableFrom, changes: object, complaint: str) -> None:
    with pytest.raises(BadFacts, match=complaint):
        table_from(**changes)


def test_an_operator_written_twice_is_refused(table_from: TableFrom, tmp_path: Path) -> None:
    table_from(entries={"aten.mm.default": "native"})
    path = tmp_path / "made-up.yaml"
    text = path.read_text(encoding="utf-8")
    line = "  aten.mm.default: native\n"
    path.write_text(text.replace(line, line + "  aten.mm.default: stub\n"), encoding="utf-8")
    with pytest.raises(BadFacts, match=r"'aten\.mm\.default' stands twice"):
        read_table(path)


def test_an_unknown_backend_is_answered_with_those_known() -> None:
    with pytest.raises(UnknownBackend, match=r"'abacus'.*cpu, cuda, onnx"):
        load_table("abacus")


def test_a_name_is_no_path() -> None:
    with pytest.raises(UnknownBackend):
        load_table("../backends/cpu")


def test_the_committed_backends_are_listed() -> None:
    assert {"cpu", "cuda", "onnx"} <= set(table_names())


def test_a_chip_takes_what_the_table_says_of_it(table_from: TableFrom, tmp_path: Path) -> None:
    table_from(entries=RICH, chips=["B", "C"], further_sources={"docs": DOCS})
    on_b, on_c = (load_table(f"made-up@{chip}", tmp_path).entries for chip in "BC")
    assert on_b["aten.mm.default"].dtypes == ("float32",)
    assert on_c["aten.mm.default"].level == "unsupported"
    assert on_c["aten.mm.default"].dtypes is None
    assert on_c["aten.add.Tensor"].via == "aten.add.out"


def test_an_unknown_chip_is_answered_with_those_known(
    table_from: TableFrom, tmp_path: Path
) -> None:
    table_from(entries=RICH, chips=["B", "C"], further_sources={"docs": DOCS})
    with pytest.raises(UnknownBackend, match="made-up@B, made-up@C"):
        load_table("made-up@Z", tmp_path)
