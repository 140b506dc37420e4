"""A region compiled for CPU by Inductor. The only file that touches torch._inductor.

`standalone_compile` is private to torch; it costs a tenth of what torch.compile inside an
operator costs a call, serves several sizes with one artifact, and needs a C++ compiler. Without
one the region runs operation by operation, and the reason is kept. So does a region with a cast
where Inductor would drop it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import (
    DimDynamic,
    ShapeEnv,
    StatelessSymbolicContext,
)

from fusion_kernels.cpu_tables import example_tables, fake_table, tables_fit
from fusion_kernels.evaluate import evaluate
from fusion_kernels.ir import Input, Region, memory_order

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
    """Compile `region` for CPU, its leading size left open, and those of its `open_dims`; eager
    where Inductor cannot.

    With `reuse` the only output overwrites that input (of the output's shape and dtype) and is it.
    """

    def form(*tensors: torch.Tensor, guarded: bool) -> tuple[torch.Tensor, ...]:
        results = evaluate(region, tensors, guarded=guarded)
        if reuse is None:
            return results
        return (tensors[reuse].copy_(results[0]),)

    run_eager, traced = partial(form, guarded=False), partial(form, guarded=True)
    if _loses_casts() and any(item.op == "cast" for item in region.body):
        reason = f"Inductor of torch {torch.__version__} drops a cast to fewer bits and back"
        return CpuRegion(run_eager, f"not compiled ({reason}; torch 2.13 keeps it)")
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            compile_one = _compile_open if region.open_dims else _compile
            return CpuRegion(compile_one(region, run_eager, traced, reuse), "")
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


def _compile(region: Region, run_eager: Run, traced: Run, reuse: int | None) -> Run:
    leading = _leading_size(region)
    inputs = [_with_leading(item, region, leading) for item in region.inputs]
    tables = example_tables(inputs)
    examples: list[Any] = [tables[item.name] if item.table else _example(item) for item in inputs]
    module = make_fx(traced, tracing_mode="symbolic")(*_with_open_leading_size(region, examples))
    artifact = _artifact(region, module, examples)
    whole = [n for n, item in enumerate(region.inputs) if not item.table]
    contiguous = all(examples[n].is_contiguous() for n in whole)
    strides = [examples[n].stride() for n in whole]
    fits = tables_fit(region)
    known = [
        (n, tuple(examples[n].shape[first : item.rank]), slice(first, item.rank))
        for n, item in enumerate(region.inputs)
        for first in [int(_leads(item, region))]
    ]

    def run(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The artifact asserts the layout it was compiled for; another one is brought into it, and
        other sizes but the leading one run uncompiled.
        """
        if not all(tensors[n].shape[own] == sizes for n, sizes, own in known):
            return run_eager(*tensors)
        if reuse is not None and not tensors[reuse].is_contiguous():
            return run_eager(*tensors)  # a copy would be overwritten in its place
        if fits is not None and not fits(tensors):
            return run_eager(*tensors)
        if contiguous:
            given = list(tensors)
            for n in whole:
                given[n] = given[n].contiguous()
            tensors = tuple(given)
        elif [tensors[n].stride() for n in whole] != strides:
            return run_eager(*tensors)
        result = artifact(*tensors)
        if reuse is not None:
            return (tensors[reuse],)
        return (result,) if isinstance(result, torch.Tensor) else tuple(result)

    return run


def _compile_open(region: Region, run_eager: Run, traced: Run, reuse: int | None) -> Run:
    """One artifact for all sizes of the open dimensions. Strides follow the sizes, so each input
    is taken as a contiguous one in the order that its dimensions have in memory.
    """
    orders = [_order(item) for item in region.inputs]
    inverses = [tuple(order.index(d) for d in range(len(order))) for order in orders]
    sizes, mode = _apart(region), FakeTensorMode(shape_env=ShapeEnv())
    tables, fits = example_tables([_opened(i, sizes) for i in region.inputs]), tables_fit(region)
    examples, fakes = [], []
    for item, order in zip(region.inputs, orders, strict=True):
        if item.table:
            example = tables[item.name]
            fake = fake_table(example, _is_open(item, sizes), mode)
        else:
            example, fake = _open_example(item, order, region, sizes, mode)
        examples.append(example)
        fakes.append(fake)

    def in_order(*dense: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return traced(*(t.permute(back) for t, back in zip(dense, inverses, strict=True)))

    module = make_fx(in_order, tracing_mode="symbolic")(*fakes)
    artifact = _artifact(region, module, examples)

    def run(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        dense = [t.permute(order) for t, order in zip(tensors, orders, strict=True)]
        if not all(t.numel() for t in dense):
            return run_eager(*tensors)  # strides of an empty tensor do not follow its sizes
        if fits is not None and not fits(tensors):
            return run_eager(*tensors)
        if reuse is not None and not dense[reuse].is_contiguous():
            return run_eager(*tensors)
        pairs = zip(dense, region.inputs, strict=True)
        result = artifact(*[t if item.table else t.contiguous() for t, item in pairs])
        if reuse is not None:
            return (tensors[reuse],)
        return (result,) if isinstance(result, torch.Tensor) else tuple(result)

    return run


def _order(item: Input) -> tuple[int, ...]:
    """The input's own dimensions as they lie in memory; a table's as they are."""
    if item.table:
        return tuple(range(item.rank + 1))
    own = len(item.shape) - item.rank
    return memory_order(item.shape[own:], item.stride[own:])


def _open_example(
    item: Input,
    order: tuple[int, ...],
    region: Region,
    sizes: Mapping[int, int],
    mode: FakeTensorMode,
) -> tuple[torch.Tensor, torch.Tensor]:
    """A contiguous tensor of the input's dimensions in that order, and a fake one of which those
    in `sizes` are symbols.
    """
    first = len(region.shape) - item.rank
    dims = [first + d for d in order]
    is_open = [dim in sizes and item.shape[dim] != 1 for dim in dims]
    shape = [sizes[d] if free else item.shape[d] for d, free in zip(dims, is_open, strict=True)]
    kinds = [DimDynamic.DUCK if free else DimDynamic.STATIC for free in is_open]
    example = torch.ones(shape, dtype=getattr(torch, item.dtype))
    context: Any = StatelessSymbolicContext(dynamic_sizes=kinds)
    return example, mode.from_tensor(example, symbolic_context=context)


def _is_open(item: Input, sizes: Mapping[int, int]) -> list[bool]:
    """For each of the input's own dimensions whether its size is open."""
    first = len(item.shape) - item.rank
    return [d in sizes and item.shape[d] != 1 for d in range(first, len(item.shape))]


def _opened(item: Input, sizes: Mapping[int, int]) -> Input:
    """The input with these sizes along the open dimensions that it has."""
    shape = [sizes.get(d, size) if size != 1 else 1 for d, size in enumerate(item.shape)]
    return replace(item, shape=tuple(shape))


def _apart(region: Region) -> dict[int, int]:
    """A size for each open dimension that no other dimension has: where two sizes are equal
    Inductor takes them for one.
    """
    leading = {0} if any(_leads(item, region) for item in region.inputs) else set()
    found = dict.fromkeys(sorted(leading.union(region.open_dims)), 0)
    taken = {size for item in region.inputs for size in item.shape}
    for dim in found:
        size = max(region.shape[dim], 2)
        while size in taken:
            size += 1
        taken.add(size)
        found[dim] = size
    return found


def _artifact(region: Region, module: Any, examples: list[Any]) -> Any:
    from torch._inductor import config, standalone_compile

    # Multiply-add in one rounding: a fifth faster on polynomials and no less exact. Inductor drops
    # a cast to a narrower dtype and back unless it is told to keep it.
    options: dict[str, Any] = {"cpp.enable_floating_point_contract_flag": "fast"}
    options["emulate_precision_casts"] = any(item.op == "cast" for item in region.body)
    # `evaluate` keeps positions within the table, and a check would end the process: it throws
    # on a thread of OpenMP.
    options["assert_indirect_indexing"] = False
    with config.patch(options):
        return standalone_compile(module, examples, dynamic_shapes="from_graph")


def _leading_size(region: Region) -> int:
    """The captured size of the leading dimension, or the next that no other dimension has: where
    two sizes are equal Inductor takes them for one and would fix both.
    """
    size = region.shape[0] if region.shape else 1
    leading = [item for item in region.inputs if _leads(item, region) and not item.table]
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
        if item.table:
            is_open = [_leads(item, region) and d == 0 for d in range(item.rank)]
            fakes.append(fake_table(example, is_open, mode))
            continue
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
