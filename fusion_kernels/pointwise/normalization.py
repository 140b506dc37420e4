"""Normalizations that are pointwise in inference: their statistics are given."""

from __future__ import annotations

from fusion_kernels.builder import Builder, Lowering, NotLowered, Value


def _batch_norm(
    b: Builder,
    x: Value,
    weight: Value,
    bias: Value,
    mean: Value,
    variance: Value,
    training: bool,
    _momentum: float,
    eps: float,
    *_: object,
) -> str:
    """(x - mean) / sqrt(variance + eps) * weight + bias, one of each a channel."""
    if training or mean is None or variance is None:
        raise NotLowered("a batch norm in training takes statistics of the batch")
    factor = b.apply("rsqrt", b.apply("add", b.floating(variance), float(eps)))
    if weight is not None:
        factor = b.apply("mul", factor, weight)
    scaled = b.apply("mul", b.apply("sub", x, mean), factor)
    return scaled if bias is None else b.apply("add", scaled, bias)


NORMALIZATION: dict[str, Lowering] = {"aten.batch_norm.default": _batch_norm}
