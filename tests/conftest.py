"""What tests of several folders share: the option of golden tests, a stand-in for the compiler."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest


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
