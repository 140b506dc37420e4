"""The 8-bit floating dtypes as codes of one byte: code to float32 and float32 to code, bit for bit
as torch converts.

A GPU's own conversion is not used: sm_80 has none to float8_e4m3fn, and those of others turn
infinity into the largest number where torch keeps it. Layouts: Micikevicius et al., "FP8 Formats
for Deep Learning", 2022.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fusion_kernels.functions.function import Function


@dataclass(frozen=True, slots=True)
class _Format:
    """Bits of mantissa, bias of the exponent, and the codes of the largest number and of infinity
    (None where there is none). The last code is NaN.
    """

    dtype: torch.dtype
    mantissa: int
    bias: int
    largest: int
    infinity: int | None

    @property
    def name(self) -> str:
        return str(self.dtype).removeprefix("torch.")

    @property
    def shift(self) -> int:
        """How far float32's mantissa is longer."""
        return 23 - self.mantissa

    @property
    def rebias(self) -> int:
        return (127 - self.bias) << 23


_E4M3FN = _Format(torch.float8_e4m3fn, 3, 7, 0x7E, None)
_EDGE = 464.0
"""Halfway from float8_e4m3fn's largest number to the next, which it lacks; the tie goes down."""
_E5M2 = _Format(torch.float8_e5m2, 2, 15, 0x7B, 0x7C)


def _decoder(of: _Format) -> Function:
    special = [f'value = tl.where(size > {of.infinity or of.largest}, float("nan"), value)']
    if of.infinity is not None:
        special.append(f'value = tl.where(size == {of.infinity}, float("inf"), value)')
    lines = "\n    ".join(special)
    return Function(
        f"from_{of.name}",
        lambda code: code.view(of.dtype).float(),
        f'''@triton.jit
def from_{of.name}(code):
    """The value of a code; below {1 << of.mantissa} it is subnormal."""
    bits = code.to(tl.int32)
    size = bits & 127
    value = ((size << {of.shift}) + {of.rebias}).to(tl.float32, bitcast=True)
    subnormal = size.to(tl.float32) * {2.0 ** (1 - of.bias - of.mantissa)!r}
    value = tl.where(size < {1 << of.mantissa}, subnormal, value)
    {lines}
    return tl.where(bits > 127, -1.0 * value, value)
''',
    )


def _encoder(of: _Format, saturates: bool) -> Function:
    """A number past the largest one becomes that where it `saturates`, else infinity or NaN."""
    beyond = of.largest if saturates else of.infinity or 127
    name = f"to_{of.name}_saturated" if saturates else f"to_{of.name}"
    least_normal = (128 - of.bias) << 23
    # Adding this leaves the count of the smallest subnormals in the last bits, ties to even.
    anchor = 2.0 ** (24 - of.bias - of.mantissa)
    anchor_bits = int(torch.tensor(anchor).view(torch.int32))
    # The first value past all codes but NaN's; larger ones are no further away.
    ceiling = (((of.infinity or 127) << of.shift) + of.rebias) & 0x7FFFFFFF
    return Function(
        name,
        lambda x: _by_torch(x, of, saturates=saturates),
        f'''@triton.jit
def {name}(x):
    """The code of the nearest value, ties to even; {_said(beyond, of)} past the largest."""
    bits = x.to(tl.int32, bitcast=True)
    size = bits & 0x7FFFFFFF
    capped = tl.minimum(size, {ceiling})
    even = (capped >> {of.shift}) & 1
    code = (capped - {of.rebias} + {(1 << of.shift - 1) - 1} + even) >> {of.shift}
    subnormal = (tl.abs(x) + {anchor!r}).to(tl.int32, bitcast=True) - {anchor_bits}
    code = tl.minimum(tl.where(size < {least_normal}, subnormal, code), {beyond})
    code = tl.where(size > 0x7F800000, 127, code)
    return (code | ((bits >> 24) & 128)).to(tl.uint8)
''',
    )


def _said(beyond: int, of: _Format) -> str:
    return {of.largest: "no further", of.infinity: "infinity"}.get(beyond, "NaN")


def _by_torch(x: Tensor, of: _Format, *, saturates: bool) -> Tensor:
    """Right whichever torch does past the largest number."""
    if of.infinity is None:
        largest = torch.finfo(of.dtype).max
        past = x.sign() * largest if saturates else torch.nan
        x = torch.where(x.abs() > _EDGE, past, x)
    return x.to(of.dtype).view(torch.uint8)


def _saturates(dtype: torch.dtype) -> bool:
    """Whether torch makes infinity the largest number, as 2.13 does; earlier ones make it NaN."""
    return bool(torch.tensor(torch.inf).to(dtype).float() == torch.finfo(dtype).max)


FLOAT8 = (
    _decoder(_E4M3FN),
    _encoder(_E4M3FN, saturates=False),
    _encoder(_E4M3FN, saturates=True),
    _decoder(_E5M2),
    _encoder(_E5M2, saturates=False),
)
ENCODERS = {
    of.name: f"to_{of.name}{'_saturated' if _saturates(of.dtype) else ''}"
    for of in (_E4M3FN, _E5M2)
}
"""For each dtype the function that converts as this torch does."""
DECODERS = {of.name: f"from_{of.name}" for of in (_E4M3FN, _E5M2)}
