"""Deterministic random inputs for checks: scales, large means, layouts and special values.

What is small is drawn on the CPU, so that a seed gives the same values on every device. A tensor
of a captured size is drawn where it will lie: one CPU thread takes some 35 ns an element, and the
inputs that the kernels of a 1B Llama (batch 4, sequence 2048) are verified, tuned and raced on have
over a billion elements.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Literal

import torch
from torch import Tensor

Kind = Literal["normal", "constant_rows", "zeros", "nan", "inf"]
Layout = Literal["contiguous", "strided", "transposed", "expanded", "offset"]

_UNBOUNDED = 8
_DRAWN_ON_CPU = 1 << 16
"""Elements of the largest tensor that is the same on every device."""


@dataclass(frozen=True, slots=True)
class InputSpec:
    """What one tensor argument must be.

    `bound` limits integers to 0 <= value < bound (an index into a dimension of that size);
    without it they are -8 to 8 (0 to 8 where unsigned). `fixed` marks parameters and tables:
    always normal or bounded, contiguous and of scale 1, whatever the case asks of the
    activations.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    bound: int | None = None
    fixed: bool = False


@dataclass(frozen=True, slots=True)
class InputCase:
    """How the inputs of one check are drawn: `mean` + `scale` x normal values, of some `kind`, in
    some memory layout.
    """

    label: str
    scale: float = 1.0
    mean: float = 0.0
    kind: Kind = "normal"
    layout: Layout = "contiguous"


CASES: tuple[InputCase, ...] = (
    InputCase("normal"),
    InputCase("scale 1e-6", scale=1e-6),
    InputCase("scale 1e-3", scale=1e-3),
    InputCase("scale 1e2", scale=1e2),
    InputCase("scale 1e4", scale=1e4),
    InputCase("mean 1000", mean=1000.0),
    InputCase("strided", layout="strided"),
    InputCase("transposed", layout="transposed"),
    InputCase("expanded", layout="expanded"),
    InputCase("offset", layout="offset"),
    InputCase("zeros", kind="zeros"),
    InputCase("constant rows", kind="constant_rows"),
    InputCase("nan", kind="nan"),
    InputCase("inf", kind="inf"),
)


def input_cases(
    specs: Sequence[InputSpec],
    seed: int,
    *,
    cases: Sequence[InputCase] = CASES,
    device: str = "cpu",
) -> Iterator[tuple[str, tuple[Tensor, ...]]]:
    """(label, one tensor a spec) for each case that can be told from "normal" on these specs: a
    layout that no activation can take, and special values where all are integers, are left out.
    """
    for case in told_apart(specs, cases):
        yield case.label, draw_case(specs, case, seed, device=device)


def told_apart(
    specs: Sequence[InputSpec], cases: Sequence[InputCase] = CASES
) -> tuple[InputCase, ...]:
    """The cases that `input_cases` draws."""
    return tuple(case for case in cases if _tells_apart(case, specs))


def draw_case(
    specs: Sequence[InputSpec], case: InputCase, seed: int, *, device: str = "cpu"
) -> tuple[Tensor, ...]:
    """One tensor a spec, each from a stream of its own; other seeds give other draws."""
    tensors = []
    for position, spec in enumerate(specs):
        stream = zlib.crc32(f"{seed}/{case.label}/{position}".encode())
        used = InputCase("fixed") if spec.fixed else case
        tensors.append(
            draw(spec.shape, spec.dtype, stream, case=used, bound=spec.bound, device=device)
        )
    return tuple(tensors)


def lay_out_case(
    specs: Sequence[InputSpec], case: InputCase, *, device: str = "cpu"
) -> tuple[Tensor, ...]:
    """Tensors that lie in memory as those of `draw_case` do, without values."""
    tensors = []
    for spec in specs:
        layout = _layout_of(spec.shape, InputCase("fixed") if spec.fixed else case)
        stored = _stored(spec.shape, layout)
        values = torch.empty(stored, dtype=spec.dtype, device=device)
        tensors.append(_laid_out(values, spec.shape, layout))
    return tuple(tensors)


def draw(
    shape: tuple[int, ...],
    dtype: torch.dtype,
    seed: int,
    *,
    case: InputCase = CASES[0],
    bound: int | None = None,
    device: str = "cpu",
) -> Tensor:
    """A tensor of `shape` and `dtype`: booleans are fair coins, integers bounded, floating values
    as `case` says, rounded to `dtype`. A layout that the shape cannot take is contiguous. What
    lies between a strided view's elements is NaN (0 for integers), so that a kernel which
    overlooks a stride shows it.
    """
    layout = _layout_of(shape, case)
    drawn = _stored(shape, layout)
    own = generator_for(prod(drawn), device, seed)
    if dtype.is_floating_point:
        values = _floating(drawn, case, own).to(dtype)
    elif dtype is torch.bool:
        values = torch.randint(0, 2, drawn, generator=own, device=own.device).to(dtype)
    else:
        low = -_UNBOUNDED if dtype.is_signed and bound is None else 0
        high = _UNBOUNDED + 1 if bound is None else max(bound, 1)
        values = torch.randint(low, high, drawn, generator=own, device=own.device).to(dtype)
    return _laid_out(values.to(device), shape, layout)


def generator_for(elements: int, device: str | torch.device, seed: int) -> torch.Generator:
    """Where so many values for `device` are drawn: on the CPU, or on the device when they are
    many.
    """
    return torch.Generator("cpu" if elements <= _DRAWN_ON_CPU else device).manual_seed(seed)


def _tells_apart(case: InputCase, specs: Sequence[InputSpec]) -> bool:
    """Whether the case changes any activation, or is the plain one."""
    free = [spec for spec in specs if not spec.fixed]
    if case.layout != "contiguous":
        return any(_takes(spec.shape, case.layout) for spec in free)
    plain = case == InputCase(case.label)
    return plain or any(spec.dtype.is_floating_point for spec in free)


def _layout_of(shape: tuple[int, ...], case: InputCase) -> Layout:
    return case.layout if _takes(shape, case.layout) else "contiguous"


def _stored(shape: tuple[int, ...], layout: Layout) -> tuple[int, ...]:
    """The shape of the elements that lie in memory once each."""
    return (1, *shape[1:]) if layout == "expanded" else shape


def _takes(shape: tuple[int, ...], layout: Layout) -> bool:
    if layout == "transposed":
        return len(shape) >= 2 and min(shape[-2:]) > 1
    if layout == "expanded":
        return len(shape) >= 2 and shape[0] > 1
    return len(shape) >= 1


def _floating(shape: tuple[int, ...], case: InputCase, generator: torch.Generator) -> Tensor:
    """Float64 values of the case, contiguous."""
    of_row = (*shape[:-1], 1) if shape and case.kind == "constant_rows" else shape
    place = generator.device
    normal = torch.randn(of_row, generator=generator, dtype=torch.float64, device=place)
    values = (case.mean + case.scale * normal).expand(shape).contiguous()
    flat = values.view(-1)
    if case.kind == "zeros":
        flat.zero_()
    elif case.kind == "nan" and flat.numel():
        flat[flat.numel() // 2] = torch.nan
    elif case.kind == "inf" and flat.numel():
        flat[flat.numel() // 3] = torch.inf
        flat[flat.numel() * 2 // 3] = -torch.inf
    return values


def _laid_out(values: Tensor, shape: tuple[int, ...], layout: Layout) -> Tensor:
    gap = torch.nan if values.dtype.is_floating_point else 0
    if layout == "expanded":
        return values.expand(shape)
    if layout == "transposed":
        return values.transpose(-1, -2).contiguous().transpose(-1, -2)
    if layout == "strided":
        wide = values.new_full((*shape[:-1], 2 * shape[-1]), gap)
        wide[..., ::2] = values
        return wide[..., ::2]
    if layout == "offset":
        long = values.new_full((values.numel() + 1,), gap)
        long[1:] = values.reshape(-1)
        return long[1:].view(shape)
    return values
