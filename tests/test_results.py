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
    return replace(ledger("opinfo"), path=tmp_path / "results" / "opinfo.json")


def test_what_is_kept_is_found_again_and_what_failed_is_not(kept: Any) -> None:
    assert kept.record("one") is None
    kept.add("one", {"samples": 3, "failures": []})
    kept.add("two", {"samples": 3, "failures": ["wrong"]})
    assert kept.record("one") == {"samples": 3, "failures": []}
    assert kept.record("two") is None
    assert json.loads(kept.path.read_text())["records"]["two"]["failures"] == ["wrong"]


def test_another_state_of_the_sources_starts_anew(kept: Any) -> None:
    kept.add("one", {"failures": []})
    later = replace(kept, made_with={**kept.made_with, "sources": "others"})
    assert later.record("one") is None
    later.add("two", {"failures": []})
    assert set(json.loads(kept.path.read_text())["records"]) == {"two"}


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


def test_no_committed_result_holds_a_failure() -> None:
    for path in COMMITTED:
        records = json.loads(path.read_text(encoding="utf-8"))["records"]
        assert records
        failed = {key: found["failures"] for key, found in records.items() if found["failures"]}
        assert failed == {}, path.name
