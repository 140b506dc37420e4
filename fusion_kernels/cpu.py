"""A region compiled for CPU by Inductor. The only file that touches torch._inductor.

`standalone_compile` is private to torch; it costs a tenth of what torch.compile inside an
operator costs a call, serves several sizes with one artifact, and needs a C++ compiler. Without
one the region runs operation by operation, and the reason is kept.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from fusion_kernels.evaluate import evaluate
from fusion_kernels.ir import Input, Region

Run = Callable[..., tuple[torch.Tensor, ...]]


@dataclass(frozen=True, slots=True)
class CpuRegion:
    """A region that runs on CPU tensors. `reason` says why it is not compiled, "" when it is."""

    run: Run
    reason: str

    @property
    def compiled(self) -> bool:
        return not self.reason


def compile_region(region: Region) -> CpuRegion:
    """Compile `region` for CPU with sizes left open; eager where Inductor cannot."""

    def run_eager(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return evaluate(region, tensors)

    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            return CpuRegion(_compile(region, run_eager), "")
    except Exception as error:
        lines = str(error).strip().splitlines()
        reason = f"{type(error).__name__}: {lines[0] if lines else ''}"
        return CpuRegion(run_eager, f"not compiled ({reason})")


def _compile(region: Region, run_eager: Run) -> Run:
    from torch._inductor import config, standalone_compile

    examples: list[Any] = [_example(item) for item in region.inputs]
    module = make_fx(run_eager, tracing_mode="symbolic")(*examples)
    # Multiply-add in one rounding: a fifth faster on polynomials and no less exact.
    with config.patch({"cpp.enable_floating_point_contract_flag": "fast"}):
        artifact: Any = standalone_compile(module, examples, dynamic_shapes="from_graph")
    contiguous = all(example.is_contiguous() for example in examples)
    strides = tuple(example.stride() for example in examples)

    def run(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The artifact asserts the layout it was compiled for; another one is brought into it."""
        if contiguous:
            tensors = tuple([tensor.contiguous() for tensor in tensors])
        elif tuple([tensor.stride() for tensor in tensors]) != strides:
            return run_eager(*tensors)
        result = artifact(*tensors)
        return (result,) if isinstance(result, torch.Tensor) else tuple(result)

    return run


def _example(item: Input) -> torch.Tensor:
    """A tensor of the captured rank, sizes and strides; its values do not matter."""
    shape, stride = item.shape[-item.rank :], item.stride[-item.rank :]
    if not item.rank:
        return torch.ones((), dtype=getattr(torch, item.dtype))
    if all(size == 1 or step for size, step in zip(shape, stride, strict=True)):
        dense = torch.ones(shape, dtype=getattr(torch, item.dtype))
        if _same_layout(shape, stride, dense.stride()):
            return dense
    reach = 1 + sum((n - 1) * s for n, s in zip(shape, stride, strict=True))
    storage = torch.ones(max(reach, 1), dtype=getattr(torch, item.dtype))
    return storage.as_strided(shape, stride)


def _same_layout(shape: tuple[int, ...], stride: tuple[int, ...], other: tuple[int, ...]) -> bool:
    return all(n == 1 or a == b for n, a, b in zip(shape, stride, other, strict=True))
