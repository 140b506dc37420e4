"""Casts, copies, and tensors that hold one value everywhere."""

from __future__ import annotations

from typing import Any

from fusion_kernels.builder import Builder, Lowering, Value


def _cast(b: Builder, x: Value, dtype: Any = None, *_: object, **kwargs: object) -> str:
    return b.cast(x, str(dtype or kwargs.get("dtype") or b.result_dtype))


def _as_result(b: Builder, x: Value, *_: object, **__: object) -> str:
    """A cast whose dtype stands in the node alone: that of another tensor."""
    return b.cast(x, b.result_dtype)


def _copy(b: Builder, x: Value, *_: object, **__: object) -> str:
    return b.copy(x)


def _filled(b: Builder, _x: Value, value: Value, *_: object, **__: object) -> str:
    """The value in the result's dtype, whatever the tensor holds; NaN does not pass."""
    return b.cast(value, b.result_dtype) if isinstance(value, str) else b.full(value)


def _constant(value: float) -> Lowering:
    return lambda b, *_, **__: b.full(value)


CASTS: dict[str, Lowering] = {
    "aten._to_copy.default": _cast,
    "aten.to.dtype": _cast,
    "aten.to.dtype_layout": _cast,
    "aten.to.device": _as_result,
    "aten.to.other": _as_result,
    "aten.type_as.default": _as_result,
    "prims.convert_element_type.default": _cast,
    "aten.clone.default": _copy,
    "aten.alias.default": _copy,
    "aten.alias_copy.default": _copy,
    "aten.detach.default": _copy,
    "aten.positive.default": _copy,
    "aten.conj.default": _copy,
    "aten._conj.default": _copy,
    "aten.conj_physical.default": _copy,
    "aten.resolve_conj.default": _copy,
    "aten.resolve_neg.default": _copy,
    "aten.contiguous.default": _copy,
    "aten.real.default": _copy,
    "aten.full_like.default": _filled,
    "aten.fill.Scalar": _filled,
    "aten.fill.Tensor": _filled,
    "aten.full.default": lambda b, _size, value, **__: b.full(value),
    "aten.new_full.default": lambda b, _x, _size, value, **__: b.full(value),
    "aten.scalar_tensor.default": lambda b, value, **__: b.full(value),
    "aten.zeros_like.default": _constant(0),
    "aten.ones_like.default": _constant(1),
    "aten.zeros.default": _constant(0),
    "aten.ones.default": _constant(1),
    "aten.new_zeros.default": _constant(0),
    "aten.new_ones.default": _constant(1),
}
