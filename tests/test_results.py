"""Results of long tests: how they are kept, and that none that is committed holds a failure."""

from __future__ import annotations

import json
import multiprocessing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

COMMITTED = sorted((Path(__file__).parent / "results").glob("*.json"))


@pytest.fixture
def kept(ledger: Any, tmp_path: Path) -> Any:
    return replace(ledger("opinfo", cases=2), path=tmp_path / "results" / "opinfo.json")


def test_what_is_kept_is_found_again_and_what_failed_is_not(kept: Any) -> None:
    assert kept.record("one") is None
    kept.add("one", {"samples": 3, "failures": []})
    kept.add("two", {"samples": 3, "failures": ["wrong"]})
    assert kept.record("one") == {"samples": 3, "failures": [], "made_with": kept.made_with}
    assert kept.record("two") is None
    assert json.loads(kept.path.read_text())["records"]["two"]["failures"] == ["wrong"]


def test_what_was_made_with_other_sources_is_made_again(kept: Any) -> None:
    """Until then it stays, and says what it was made with."""
    kept.add("one", {"failures": []})
    kept.add("two", {"failures": []})
    later = replace(kept, made_with={**kept.made_with, "sources": "others"})
    assert later.record("one") is None
    later.add("two", {"failures": []})
    records = json.loads(kept.path.read_text())["records"]
    assert {key: found["made_with"] for key, found in records.items()} == {
        "one": kept.made_with,
        "two": later.made_with,
    }


def _add_ten(kept: Any, start: int) -> None:
    for number in range(start, start + 10):
        kept.add(f"{number:02}", {"failures": []})


def test_processes_that_write_at_once_lose_nothing(kept: Any) -> None:
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_add_ten, args=(kept, start)) for start in (0, 10, 20)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    records = json.loads(kept.path.read_text())["records"]
    assert list(records) == [f"{number:02}" for number in range(30)]


def whole_and_right(kept: dict[str, Any]) -> bool:
    """Whether a ledger's file has all of its records, each of something, and no failure."""
    records = kept["records"]
    counted = ("held", "fused", "compiled")
    counts = [any(found.get(name) for name in counted) for found in records.values()]
    return (
        len(records) == kept["cases"]
        and all(counts)
        and all({"torch", "sources"} <= set(found["made_with"]) for found in records.values())
        and not any(found["failures"] for found in records.values())
    )


def test_a_committed_result_is_whole_and_holds_no_failure() -> None:
    """Records may be of older sources: they say which."""
    for path in COMMITTED:
        assert whole_and_right(json.loads(path.read_text(encoding="utf-8"))), path.name


def test_a_result_with_a_failure_or_a_gap_is_noticed(kept: Any) -> None:
    kept.add("one", {"samples": 3, "held": 2, "failures": []})
    assert not whole_and_right(json.loads(kept.path.read_text()))
    kept.add("two", {"samples": 3, "held": 3, "failures": []})
    assert whole_and_right(json.loads(kept.path.read_text()))
    kept.add("two", {"samples": 3, "held": 3, "failures": ["wrong"]})
    assert not whole_and_right(json.loads(kept.path.read_text()))
    kept.add("two", {"samples": 3, "held": 0, "failures": []})
    assert not whole_and_right(json.loads(kept.path.read_text()))
