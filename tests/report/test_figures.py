"""Figures for people: units, rounding at the borders, and the unknown."""

from __future__ import annotations

import pytest

from planner.report import figures


@pytest.mark.parametrize(
    ("us", "text"),
    [
        (None, "?"),
        (0.0, "0 us"),
        (0.1234, "0.123 us"),
        (9.996, "10.0 us"),
        (99.96, "100 us"),
        (412.4, "412 us"),
        (999.4, "999 us"),
        (999.6, "1.00 ms"),
        (1_240.0, "1.24 ms"),
        (999_700.0, "1.00 s"),
        (61e6, "61.0 s"),
    ],
)
def test_times(us: float | None, text: str) -> None:
    assert figures.time(us) == text


def test_a_predicted_time_is_marked() -> None:
    assert figures.time(12.0, "predicted") == "~12.0 us"


@pytest.mark.parametrize(
    ("fraction", "text"),
    [
        (None, "?"),
        (0.0, "0 %"),
        (1e-6, "<0.1 %"),
        (0.0012, "0.1 %"),
        (0.5, "50.0 %"),
        (0.99999, "99.9 %"),
        (1.0, "100 %"),
        (-0.031, "-3.1 %"),
    ],
)
def test_percentages_never_claim_all_or_none_by_rounding(fraction: float | None, text: str) -> None:
    assert figures.percent(fraction) == text


@pytest.mark.parametrize(
    ("number", "text"),
    [(None, "?"), (0, "0 B"), (999, "999 B"), (1_000, "1.00 kB"), (218_964_480, "219 MB")],
)
def test_sizes(number: int | None, text: str) -> None:
    assert figures.count(number, "B") == text


@pytest.mark.parametrize(
    ("shapes", "dtypes", "text"),
    [
        ((), (), "-"),
        (((8, 128),), ("float32",), "f32 8x128"),
        (((),), ("bfloat16",), "bf16 scalar"),
        (((30522, 768), (2, 8)), ("float32", "int64"), "f32/i64 30522x768, 2x8"),
        (((1,), (2,), (3,), (4,), (5,)), ("float16",) * 5, "f16 1, 2, 3 +2"),
    ],
)
def test_shapes(shapes: tuple[tuple[int, ...], ...], dtypes: tuple[str, ...], text: str) -> None:
    assert figures.shapes(shapes, dtypes) == text


@pytest.mark.parametrize(
    ("name", "short"),
    [("float32", "f32"), ("uint8", "u8"), ("float8_e4m3fn", "f8_e4m3fn"), ("bool", "b8")],
)
def test_dtypes(name: str, short: str) -> None:
    assert figures.short_dtype(name) == short
