"""ATen reductions over a row, and what is made of them, as region statements.

A row is the last dimensions of the region. Each entry takes the builder and the operator's
arguments, and returns the name of the result: one value a row, or one an element for softmax and
the norms. Which dimensions a call reduces, and whether it keeps them, is settled before: here the
row is the builder's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fusion_kernels.builder import Builder, NotLowered
from fusion_kernels.ir import FLOATING

Value = Any  # the name of a value in the region, or a Python literal


def _layer_norm(
    b: Builder,
    x: Value,
    _normalized_shape: tuple[int, ...],
    weight: Value = None,
    bias: Value = None,
    eps: float = 1e-5,
    *_: object,
) -> str:
    return b.apply("layer_norm", x, weight, bias, float(eps))


def _group_norm(
    b: Builder,
    x: Value,
    _num_groups: int,
    weight: Value = None,
    bias: Value = None,
    eps: float = 1e-5,
    *_: object,
) -> str:
    """A layer_norm of each group; weight and bias have one element a channel."""
    normed = b.apply("layer_norm", x, None, None, float(eps))
    scaled = normed if weight is None else b.apply("mul", normed, weight)
    return scaled if bias is None else b.apply("add", scaled, bias)


def _rms_norm(
    b: Builder,
    x: Value,
    _normalized_shape: tuple[int, ...],
    weight: Value = None,
    eps: float | None = None,
) -> str:
    """x / sqrt(mean(x^2) + eps) * weight; without eps that of float32, in which eager computes
    16-bit tensors too.
    """
    least = _EPSILON if eps is None else float(eps)
    mean = b.apply("row_mean", b.apply("mul", x, x))
    normed = b.apply("mul", x, b.apply("rsqrt", b.apply("add", mean, least)))
    return normed if weight is None else b.apply("mul", normed, weight)


def _softmax(b: Builder, x: Value, *_: object, **__: object) -> str:
    exponential = _shifted_exponential(b, x)[1]
    return b.apply("div", exponential, b.apply("row_sum", exponential))


def _log_softmax(b: Builder, x: Value, *_: object, **__: object) -> str:
    shifted, exponential = _shifted_exponential(b, x)
    return b.apply("sub", shifted, b.apply("log", b.apply("row_sum", exponential)))


def _logsumexp(b: Builder, x: Value, *_: object, **__: object) -> str:
    """An infinite largest value is not taken off: inf - inf is no number, and exp(-inf) is 0."""
    x = b.floating(x)
    largest = b.apply("row_max", x)
    finite = b.apply("lt", b.apply("abs", largest), float("inf"))
    largest = b.apply("where", finite, largest, 0.0)
    total = b.apply("row_sum", b.apply("exp", b.apply("sub", x, largest)))
    return b.apply("add", b.apply("log", total), largest)


def _shifted_exponential(b: Builder, x: Value) -> tuple[str, str]:
    """x - max and its exponential. A NaN reaches every element through the sum, so the largest
    value need not see it; a row of -inf alone gives NaN, as in eager.
    """
    x = b.floating(x)
    shifted = b.apply("sub", x, b.apply("row_max", x))
    return shifted, b.apply("exp", shifted)


def _sum(b: Builder, x: Value, *_: object, **__: object) -> str:
    return b.apply("row_sum", b.cast(x, b.result_dtype) if _is_whole(b) else b.floating(x))


def _count(b: Builder, x: Value, *_: object, **__: object) -> str:
    """How many elements are not zero."""
    true = x if b.dtype_of(x) == "bool" else b.apply("ne", x, b.zero_like(x))
    return b.apply("row_sum", b.cast(true, "int64"))


def _sum_of_numbers(b: Builder, x: Value, *_: object, **__: object) -> str:
    """The sum, where what is no number counts nothing."""
    if b.dtype_of(x) != "float32":
        return _sum(b, x)
    return b.apply("row_sum", b.apply("where", b.apply("ne", x, x), 0.0, x))


def _mean_of_numbers(b: Builder, x: Value, *_: object, **__: object) -> str:
    count = b.apply("row_sum", b.apply("where", b.apply("eq", x, x), 1.0, 0.0))
    return b.apply("div", _sum_of_numbers(b, x), count)


def _product(b: Builder, x: Value, *_: object, **__: object) -> str:
    return b.apply("row_prod", b.cast(x, b.result_dtype) if _is_whole(b) else b.floating(x))


def _mean(b: Builder, x: Value, *_: object, **__: object) -> str:
    return b.apply("row_mean", x)


def _extreme(op: str) -> Callable[..., str]:
    """amax and amin, which are NaN for a row that holds one; narrow integers are compared wide."""

    def lower(b: Builder, x: Value, *_: object, **__: object) -> str:
        if b.dtype_of(x) == "bool":
            return b.apply("ne", b.apply(op, b.cast(x, "int32")), 0)
        dtype = b.dtype_of(x)
        if dtype in ("uint8", "int8", "int16"):
            return b.cast(b.apply(op, b.cast(x, "int32")), dtype)
        found = b.apply(op, x)
        if dtype != "float32":
            return found
        missing = b.apply("row_max", b.apply("where", b.apply("ne", x, x), 1.0, 0.0))
        return b.apply("where", b.apply("gt", missing, 0.0), float("nan"), found)

    return lower


def _truth(op: str) -> Callable[..., str]:
    """any and all: the largest and the smallest of what is true."""

    def lower(b: Builder, x: Value, *_: object, **__: object) -> str:
        true = x if b.dtype_of(x) == "bool" else b.apply("ne", x, b.zero_like(x))
        return b.apply("ne", b.apply(op, b.cast(true, "int32")), 0)

    return lower


def _variance(b: Builder, x: Value, *_: object, **kwargs: Any) -> str:
    """Of deviations from the mean, whose own mean (the rounding of the first) is taken off."""
    correction = kwargs.get("correction")
    degrees = b.row_length - (1.0 if correction is None else float(correction))
    if degrees <= 0:
        raise NotLowered("a variance of fewer elements than its correction is no number")
    deviation = b.apply("sub", x, b.apply("row_mean", x))
    deviation = b.apply("sub", deviation, b.apply("row_mean", deviation))
    squares = b.apply("row_sum", b.apply("mul", deviation, deviation))
    return b.apply("div", squares, degrees)


def _unbiased(b: Builder, x: Value, _dim: Any, unbiased: bool = True, *_: object) -> str:
    return _variance(b, x, correction=int(unbiased))


def _unbiased_of_all(b: Builder, x: Value, unbiased: bool = True) -> str:
    return _variance(b, x, correction=int(unbiased))


def _root(variance: Callable[..., str]) -> Callable[..., str]:
    """The standard deviation."""

    def lower(b: Builder, *args: Any, **kwargs: Any) -> str:
        return b.apply("sqrt", variance(b, *args, **kwargs))

    return lower


def _norm(b: Builder, x: Value, order: Any = 2, *_: object, **__: object) -> str:
    """The 1-, 2- and both infinity norms of a row."""
    size = b.apply("abs", b.floating(x))
    if order in (1, 1.0):
        return b.apply("row_sum", size)
    if order in (2, 2.0):
        return b.apply("sqrt", b.apply("row_sum", b.apply("mul", x, x)))
    if order in (_INFINITY, -_INFINITY):
        return _extreme("row_max" if order > 0 else "row_min")(b, size)
    raise NotLowered(f"a norm of order {order} has no kernel expression")


def _is_whole(b: Builder) -> bool:
    return b.result_dtype not in FLOATING


_INFINITY = float("inf")
_EPSILON = 2.0**-23
"""torch.finfo(torch.float32).eps, which rms_norm adds where it is given no other."""

REDUCTIONS: dict[str, Callable[..., str]] = {
    "aten.layer_norm.default": _layer_norm,
    "aten.group_norm.default": _group_norm,
    "aten.rms_norm.default": _rms_norm,
    "aten.softmax.int": _softmax,
    "aten._softmax.default": _softmax,
    "aten.log_softmax.int": _log_softmax,
    "aten._log_softmax.default": _log_softmax,
    "aten.logsumexp.default": _logsumexp,
    "aten.sum.default": _sum,
    "aten.sum.dim_IntList": _sum,
    "aten.nansum.default": _sum_of_numbers,
    "aten.nanmean.default": _mean_of_numbers,
    "aten.count_nonzero.default": _count,
    "aten.count_nonzero.dim_IntList": _count,
    "aten.prod.default": _product,
    "aten.prod.dim_int": _product,
    "aten.mean.default": _mean,
    "aten.mean.dim": _mean,
    "aten.amax.default": _extreme("row_max"),
    "aten.amin.default": _extreme("row_min"),
    "aten.any.default": _truth("row_max"),
    "aten.any.dim": _truth("row_max"),
    "aten.any.dims": _truth("row_max"),
    "aten.all.default": _truth("row_min"),
    "aten.all.dim": _truth("row_min"),
    "aten.all.dims": _truth("row_min"),
    "aten.var.correction": _variance,
    "aten.var.default": _unbiased_of_all,
    "aten.var.dim": _unbiased,
    "aten.std.correction": _root(_variance),
    "aten.std.default": _root(_unbiased_of_all),
    "aten.std.dim": _root(_unbiased),
    "aten.linalg_vector_norm.default": _norm,
}
