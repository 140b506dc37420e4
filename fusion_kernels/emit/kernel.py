"""The text of the @triton.jit function: flat over elements, or tiles of rows and columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from fusion_kernels.emit.addressing import (
    Frame,
    block_lines,
    cut_index,
    frame_of,
    index_lines,
    load,
    looked_up,
    moves_along_row,
    size_names,
    store,
    stride_names,
)
from fusion_kernels.emit.body import accumulated, accumulator, body_lines, concluded
from fusion_kernels.emit.config import KernelConfig
from fusion_kernels.emit.layout import Layout, output_names
from fusion_kernels.emit.loops import Pass, passes_over, written_out
from fusion_kernels.emit.pieces import with_choices
from fusion_kernels.emit.wrap import WIDTH, assigned, bracketed
from fusion_kernels.ir import Operand, Region, Statement

_BLOCK = "        "


@dataclass(frozen=True, slots=True)
class KernelText:
    """The kernel's text and its parameters in order: tensors, outputs, sizes (int32), strides
    (int64).
    """

    text: str
    output_names: tuple[str, ...]
    sizes: tuple[str, ...]
    strides: tuple[str, ...]


def kernel_text(region: Region, layout: Layout, config: KernelConfig) -> KernelText:
    """The jitted function of `region`, with one comment a graph node."""
    frame = frame_of(region, layout, config)
    outputs = output_names(region)
    sizes = size_names(frame)
    strides = stride_names(region, layout)
    pointers = [f"{item.name}_ptr" for item in region.inputs] + [f"{name}_ptr" for name in outputs]
    constexprs = [f"{name}: tl.constexpr" for name in (*config.constexprs(), "GROUP")]
    parameters = [*pointers, *sizes, *strides, *constexprs]
    computed = with_choices(region, lambda dim: cut_index(dim, layout, frame))
    work = _looped(written_out(computed), layout, frame) if config.looped else None
    lines = [
        "@triton.jit",
        *bracketed(f"def {region.name}_kernel(", parameters, "):"),
        f'    """{_summary(region)}"""',
        *_indent(index_lines(frame, region, layout)),
        "",
        *(work or _in_one_block(computed, layout, frame)),
    ]
    return KernelText("\n".join(lines) + "\n", outputs, sizes, strides)


def _in_one_block(region: Region, layout: Layout, frame: Frame) -> list[str]:
    """Everything is read once, computed and stored."""
    kept = {output.value for output in region.outputs}
    read = _read(region)
    loaded = [item for item in region.inputs if item.name in read and not item.table]
    find = _lookups(region, layout, frame)
    return [
        *_followed_by_blank([x for item in loaded for x in load(item, region, layout, frame)]),
        *_followed_by_blank(body_lines(region.body, kept, find, frame.tall)),
        *_stores(region, layout, frame, whole=True),
        *_stores(region, layout, frame, whole=False),
    ]


def _looped(region: Region, layout: Layout, frame: Frame) -> list[str]:
    """The row in blocks: a pass for the reductions that can be taken together, and a last one for
    what is as large as the region.
    """
    rows = [item for item in region.inputs if not moves_along_row(item.name, layout)]
    passes = passes_over(region, [item.name for item in rows])
    kept = {item.name for item in region.body}
    read = _read(region)
    loaded = [item for item in rows if item.name in read and not item.table]
    find = _lookups(region, layout, frame)
    lines = [line for item in loaded for line in load(item, region, layout, frame)]
    lines += body_lines(passes.before, kept, find)
    for reducing in passes.reducing:
        lines += _followed_by_blank(_reducing_pass(reducing, region, layout, frame))
    stores = _stores(region, layout, frame, whole=True, indent=_BLOCK)
    if stores:
        wanted = {o.value for o in region.outputs}
        lines += _block(passes.last, wanted, region, layout, frame)
        lines += stores
    return [*lines, *_stores(region, layout, frame, whole=False)]


def _reducing_pass(reducing: Pass, region: Region, layout: Layout, frame: Frame) -> list[str]:
    totals = {item.name: f"{item.name}_total" for item in reducing.reductions}
    wanted = {str(item.args[0]) for item in reducing.reductions}
    lines = []
    for item in reducing.reductions:
        lines += assigned(totals[item.name], accumulator(item))
    lines += _block(reducing.statements, wanted, region, layout, frame)
    for item in reducing.reductions:
        total = totals[item.name]
        lines += assigned(total, accumulated(item, total), _BLOCK)
    for item in reducing.reductions:
        lines += assigned(item.name, concluded(item, totals[item.name]))
    after = {item.name for item in reducing.after}
    return [*lines, *body_lines(reducing.after, after, _lookups(region, layout, frame))]


def _block(
    statements: Sequence[Statement], wanted: set[str], region: Region, layout: Layout, frame: Frame
) -> list[str]:
    """The head of a loop over the row, what it reads, and the statements."""
    read = wanted | {str(arg) for item in statements for arg in item.args}
    along = [
        item
        for item in region.inputs
        if item.name in read and not item.table and moves_along_row(item.name, layout)
    ]
    return [
        "    for start in range(0, n_cols, BLOCK_SIZE):",
        *(f"{_BLOCK}{line}" for line in block_lines(frame, region, layout)),
        *(line for item in along for line in load(item, region, layout, frame, _BLOCK)),
        *body_lines(statements, wanted, _lookups(region, layout, frame), indent=_BLOCK),
    ]


def _stores(
    region: Region, layout: Layout, frame: Frame, *, whole: bool, indent: str = "    "
) -> list[str]:
    """The stores of what is as large as the region, or of what is one value a row."""
    return [
        line
        for name, output in zip(output_names(region), region.outputs, strict=True)
        if (output.shape == region.shape) is whole
        for line in store(name, output, region, layout, frame, indent)
    ]


def _lookups(region: Region, layout: Layout, frame: Frame) -> Callable[[Statement, str], list[str]]:
    return lambda item, indent: looked_up(item, region, layout, frame, indent)


def _read(region: Region) -> set[Operand]:
    """What a statement or a store reads; an input can be there for its sizes alone."""
    values = {output.value for output in region.outputs}
    return {arg for item in region.body for arg in item.args} | values


def _followed_by_blank(lines: list[str]) -> list[str]:
    return [*lines, ""] if lines else []


def _summary(region: Region) -> str:
    values = ", ".join(output.value for output in region.outputs)
    reads = ", ".join(item.name for item in region.inputs)
    rows = f" over rows of {region.row_length}" if region.row_rank else ""
    summary = f"{values} from {reads}{rows}."
    if len(summary) <= WIDTH - len('    """"""'):
        return summary
    return f"{len(region.outputs)} values from {len(region.inputs)} tensors{rows}."


def _indent(lines: Iterable[str]) -> list[str]:
    return [f"    {line}" for line in lines]
