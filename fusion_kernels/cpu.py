"""A region compiled for CPU by Inductor. The only file that touches torch._inductor.

`standalone_compile` is private to torch; it costs a tenth of what torch.compile inside an
operator costs a call, serves several sizes with one artifact, and needs a C++ compiler. Without
one the region runs operation by operation, and the reason is kept. So does a region with a cast
where Inductor would drop it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import (
    DimDynamic,
    ShapeEnv,
    StatelessSymbolicContext,
)

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


def compile_region(region: Region, reuse: int | None = None) -> CpuRegion:
    """Compile `region` for CPU, its leading size left open; eager where Inductor cannot.

    With `reuse` the only output overwrites that input (of the output's shape and dtype) and is it.
    """

    def run_eager(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        results = evaluate(region, tensors)
        if reuse is None:
            return results
        return (tensors[reuse].copy_(results[0]),)

    if _loses_casts() and any(item.op == "cast" for item in region.body):
        reason = f"Inductor of torch {torch.__version__} drops a cast to fewer bits and back"
        return CpuRegion(run_eager, f"not compiled ({reason}; torch 2.13 keeps it)")
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            return CpuRegion(_compile(region, run_eager, reuse), "")
    except Exception as error:
        lines = str(error).strip().splitlines()
        reason = f"{type(error).__name__}: {lines[0] if lines else ''}"
        return CpuRegion(run_eager, f"not compiled ({reason})")


def _loses_casts() -> bool:
    """Whether Inductor merges two casts into one even when told to emulate them.

    Before torch 2.13 both a graph pass and the cache of generated C++ conversions do
    (https://github.com/pytorch/pytorch/issues/185337).
    """
    return tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13)


def _compile(region: Region, run_eager: Run, reuse: int | None) -> Run:
    from torch._inductor import config, standalone_compile

    leading = _leading_size(region)
    examples: list[Any] = [_example(_with_leading(item, region, leading)) for item in region.inputs]
    module = make_fx(run_eager, tracing_mode="symbolic")(*_with_open_leading_size(region, examples))
    # Multiply-add in one rounding: a fifth faster on polynomials and no less exact. Inductor drops
    # a cast to a narrower dtype and back unless it is told to keep it.
    options: dict[str, Any] = {"cpp.enable_floating_point_contract_flag": "fast"}
    options["emulate_precision_casts"] = any(item.op == "cast" for item in region.body)
    with config.patch(options):
        artifact: Any = standalone_compile(module, examples, dynamic_shapes="from_graph")
    contiguous = all(example.is_contiguous() for example in examples)
    strides = tuple(example.stride() for example in examples)

    def run(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The artifact asserts the layout it was compiled for; another one is brought into it."""
        if reuse is not None and not tensors[reuse].is_contiguous():
            return run_eager(*tensors)  # a copy would be overwritten in its place
        if contiguous:
            tensors = tuple([tensor.contiguous() for tensor in tensors])
        elif tuple([tensor.stride() for tensor in tensors]) != strides:
            return run_eager(*tensors)
        result = artifact(*tensors)
        if reuse is not None:
            return (tensors[reuse],)
        return (result,) if isinstance(result, torch.Tensor) else tuple(result)

    return run


def _leading_size(region: Region) -> int:
    """The captured size of the leading dimension, or the next that no other dimension has: where
    two sizes are equal Inductor takes them for one and would fix both.
    """
    size = region.shape[0] if region.shape else 1
    leading = [item for item in region.inputs if _leads(item, region)]
    if any(item.stride[0] < max(item.stride) for item in leading):
        return size  # other sizes would need other strides, and such a call runs uncompiled
    others = {size for item in region.inputs for size in item.shape[1:]}
    while size > 1 and size in others:
        size += 1
    return size


def _with_leading(item: Input, region: Region, size: int) -> Input:
    return replace(item, shape=(size, *item.shape[1:])) if _leads(item, region) else item


def _leads(item: Input, region: Region) -> bool:
    """Whether the input moves along the region's leading dimension, which is left open."""
    return item.rank == len(region.shape) > region.row_rank and item.shape[0] > 1


def _with_open_leading_size(region: Region, examples: list[torch.Tensor]) -> list[torch.Tensor]:
    """Fake tensors whose size along the region's leading dimension is a symbol, all others fixed.

    Loops over a known row length run in half the time of loops over a symbol.
    """
    mode = FakeTensorMode(shape_env=ShapeEnv())
    fakes: list[torch.Tensor] = []
    for item, example in zip(region.inputs, examples, strict=True):
        sizes = [DimDynamic.STATIC] * item.rank
        if _leads(item, region):
            sizes[0] = DimDynamic.DUCK
        context: Any = StatelessSymbolicContext(dynamic_sizes=sizes)
        fakes.append(mode.from_tensor(example, symbolic_context=context))
    return fakes


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
