"""What tests of several folders share: the option of golden tests, a stand-in for the compiler,
results of long tests.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "tests" / "results"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--refresh-golden", action="store_true", help="write golden files instead of comparing"
    )


@pytest.fixture
def refresh_golden(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--refresh-golden"))


@pytest.fixture(scope="session")
def uncompiled() -> Callable[[], AbstractContextManager[None]]:
    """Within `uncompiled()` regions run operation by operation on CPU. Operators live as long as
    the process, so what they hold is forgotten before and after.
    """
    return _uncompiled


@contextmanager
def _uncompiled() -> Iterator[None]:
    from fusion_kernels import library

    _forget()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(library, "compile_region", _by_operation)
        yield
    _forget()


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, uncompiled: Any) -> Iterator[Callable[..., None]]:
    """Kernels run operation by operation and each wins its race; rewrites neither win nor lose
    theirs; the whole wins by the given ratio (2), without kernels by another (1).
    """
    from made_up_machine import even, made_up, race_won_by

    from planner import pipeline, rewriting
    from planner.fusion import contest

    monkeypatch.setattr(contest, "interleaved", made_up)
    monkeypatch.setattr(rewriting, "interleaved", even)

    def won_by(fused: float, normalized: float = 1.0) -> None:
        monkeypatch.setattr(pipeline, "race", race_won_by(fused, normalized))

    won_by(2.0)
    with uncompiled():
        yield won_by


def _forget() -> None:
    from fusion_kernels import library

    for operator in library._DEFINED.values():
        operator._cpu.clear()


def _by_operation(region: Any, reuse: int | None = None) -> Any:
    from fusion_kernels.cpu import CpuRegion
    from fusion_kernels.evaluate import evaluate

    def run(*tensors: Any) -> tuple[Any, ...]:
        results = evaluate(region, tensors)
        return results if reuse is None else (tensors[reuse].copy_(results[0]),)

    return CpuRegion(run, "not compiled in this test")


@dataclass(frozen=True, slots=True)
class Ledger:
    """What a long test found so far: one record a key, in a JSON file that is committed, which is
    whole with as many records as it says "cases".

    Each record says what it was `made_with`: versions, and a digest of the sources. One of other
    sources counts no more and is made again. Processes may write at once.
    """

    path: Path
    cases: int
    made_with: dict[str, str]

    def record(self, key: str) -> dict[str, Any] | None:
        """The record of these sources without failures; what failed is to be run again."""
        found: dict[str, Any] | None = self._read().get(key)
        if found is None or found["failures"]:
            return None
        return found if found["made_with"]["sources"] == self.made_with["sources"] else None

    def add(self, key: str, record: dict[str, Any]) -> None:
        """Keep a record, whose "failures" is a list of texts."""
        self.path.parent.mkdir(exist_ok=True)
        with (self.path.parent / f".{self.path.stem}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            records = {**self._read(), key: {**record, "made_with": self.made_with}}
            lines = ",\n".join(
                f"  {json.dumps(name)}: {json.dumps(records[name])}" for name in sorted(records)
            )
            head = f'{{"cases": {self.cases},\n "records": {{'
            partial = self.path.with_suffix(".partial")
            partial.write_text(f"{head}\n{lines}\n}}}}\n", encoding="utf-8")
            os.replace(partial, self.path)

    def _read(self) -> dict[str, Any]:
        if not self.path.exists():
            return {}
        kept: dict[str, Any] = json.loads(self.path.read_text(encoding="utf-8"))
        return dict(kept["records"])


@pytest.fixture(scope="session")
def ledger() -> Callable[..., Ledger]:
    """The ledger of a name and of so many records; further keywords tell what else but torch those
    are made with.
    """

    def open_ledger(name: str, cases: int, **versions: str) -> Ledger:
        import torch

        made_with = {"torch": torch.__version__, **versions, "sources": _sources_digest()}
        return Ledger(RESULTS / f"{name}.json", cases, made_with)

    return open_ledger


def _sources_digest() -> str:
    """Of everything that decides what a region computes."""
    digest = hashlib.sha256()
    for folder in ("fusion_kernels", "planner/fusion"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            digest.update(path.relative_to(ROOT).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()[:16]
