"""The text of the @triton.jit function: flat over elements, or tiles of rows and columns."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fusion_kernels.emit.body import body_lines
from fusion_kernels.emit.config import KernelConfig
from fusion_kernels.emit.expressions import call
from fusion_kernels.emit.layout import Layout, Walk
from fusion_kernels.emit.wrap import WIDTH, assigned, bracketed, fits, summed
from fusion_kernels.ir import FLOATING, Input, Region

_LONGEST_OFFSET = 60


@dataclass(frozen=True, slots=True)
class KernelText:
    """The kernel's text and its parameters in order: tensors, outputs, sizes (int32), strides
    (int64).
    """

    text: str
    output_names: tuple[str, ...]
    sizes: tuple[str, ...]
    strides: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Frame:
    """Index names of one template and the masks that go with them."""

    flat: bool
    tall: bool
    outer: tuple[str, ...]
    inner: str


def kernel_text(region: Region, layout: Layout, config: KernelConfig) -> KernelText:
    """The jitted function of `region`, with one comment a graph node."""
    flat = len(layout.axes) == 1 and not region.row_rank
    outer = len(layout.axes) - 1
    names = ("row",) if outer <= 1 else tuple(f"i{axis}" for axis in range(outer))
    read = {arg for item in region.body for arg in item.args} | {o.value for o in region.outputs}
    loaded = [item for item in region.inputs if item.name in read]
    frame = _Frame(flat, (config.rows or 1) > 1, names, "offsets" if flat else "cols")
    outputs = output_names(region)
    sizes = _sizes(frame, outer)
    strides = _stride_names(region, layout)
    pointers = [f"{item.name}_ptr" for item in region.inputs] + [f"{name}_ptr" for name in outputs]
    constexprs = [f"{name}: tl.constexpr" for name in (*config.constexprs(), "GROUP")]
    parameters = [*pointers, *sizes, *strides, *constexprs]
    lines = [
        "@triton.jit",
        *bracketed(f"def {region.name}_kernel(", parameters, "):"),
        f'    """{_summary(region)}"""',
        *_indent(_indices(frame, region, _axes_read(layout))),
        "",
        *_followed_by_blank([line for item in loaded for line in _load(item, layout, frame)]),
        *_followed_by_blank(body_lines(region, frame.tall)),
        *_stores(region, frame, outputs),
    ]
    return KernelText("\n".join(lines) + "\n", outputs, sizes, strides)


def output_names(region: Region) -> tuple[str, ...]:
    """Pointer names of the outputs: `out`, or `out_` and the value's name when there are
    several.
    """
    if len(region.outputs) == 1:
        return ("out",)
    return tuple(f"out_{output.value}" for output in region.outputs)


def _sizes(frame: _Frame, outer: int) -> tuple[str, ...]:
    if frame.flat:
        return ("n_elements",)
    inner_sizes = tuple(f"n_{axis}" for axis in range(1, outer))
    return (*(("n_rows",) if frame.tall else ()), *inner_sizes, "n_cols")


def stride_axes(walk: Walk) -> tuple[int, ...]:
    """Axes along which an operand needs a stride argument: all it moves along, when it is not
    dense.
    """
    if walk.dense:
        return ()
    return tuple(axis for axis, moves in enumerate(walk.steps) if moves)


def needs_dense_strides(walk: Walk, axes: int) -> bool:
    """A dense operand that broadcasts along some axes but moves along two or more outer ones."""
    return walk.dense and not walk.full and sum(walk.steps[: axes - 1]) > 0 and axes > 2


def _stride_names(region: Region, layout: Layout) -> tuple[str, ...]:
    names: list[str] = []
    for item in region.inputs:
        walk = layout.walks[item.name]
        names += [f"{item.name}_stride_{axis}" for axis in strided_axes(walk, len(layout.axes))]
    return tuple(names)


def strided_axes(walk: Walk, axes: int) -> tuple[int, ...]:
    """The axes whose stride the launcher passes for this operand."""
    if needs_dense_strides(walk, axes):
        return tuple(axis for axis in range(axes - 1) if walk.steps[axis])
    return stride_axes(walk)


def _axes_read(layout: Layout) -> set[int]:
    """The axes whose own index some operand is addressed by."""
    partial = [walk for walk in layout.walks.values() if not walk.full]
    return {axis for walk in partial for axis, moves in enumerate(walk.steps) if moves}


def _indices(frame: _Frame, region: Region, read: set[int]) -> list[str]:
    if frame.flat:
        return [
            _known_multiple("n_elements"),
            "offsets = tl.program_id(0).to(tl.int64) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)",
            "mask = offsets < n_elements",
        ]
    column = "tl.arange(0, BLOCK_SIZE)"
    if not region.row_rank:
        column = f"tl.program_id(1) * BLOCK_SIZE + {column}"
    if not frame.tall:
        lines = ["row = tl.program_id(0).to(tl.int64)", f"cols = {column}", "mask = cols < n_cols"]
    else:
        lines = [
            "row = (tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]",
            f"cols = {column if region.row_rank else f'({column})'}[None, :]",
            "row_mask = row < n_rows",
            "col_mask = cols < n_cols",
            "mask = row_mask & col_mask",
        ]
    return [_known_multiple("n_cols"), *lines, *_outer_indices(frame, read)]


def _known_multiple(size: str) -> str:
    """The size unchanged, told to the compiler as a multiple of GROUP: without it a size that 16
    does not divide makes every load one element wide (a fifth of the copy rate on an H200).
    """
    return f"{size} = {size} // GROUP * GROUP"


def _outer_indices(frame: _Frame, read: set[int]) -> list[str]:
    if len(frame.outer) == 1:
        return []
    lines, rest = [], "row"
    for axis in range(len(frame.outer) - 1, -1, -1):
        if axis in read:
            lines.append(f"{frame.outer[axis]} = {rest}{f' % n_{axis}' if axis else ''}")
        rest = f"{rest} // n_{axis}"
    return lines


def _offset(item: Input, layout: Layout, frame: _Frame) -> list[str]:
    """The terms of the operand's offset; none where it is one value."""
    walk = layout.walks[item.name]
    if walk.full:
        return ["offsets"] if frame.flat else ["row * n_cols", "cols"]
    strided = strided_axes(walk, len(layout.axes))
    indices = (frame.inner,) if frame.flat else (*frame.outer, frame.inner)
    terms = []
    for axis, moves in enumerate(walk.steps):
        if moves and axis in strided:
            # A column times a stride may pass 2**31 where rows, which are int64, do not.
            wide = indices[axis] if frame.flat or indices[axis] != "cols" else "cols.to(tl.int64)"
            terms.append(f"{wide} * {item.name}_stride_{axis}")
        elif moves:
            terms.append(indices[axis])
    return terms


def _mask(walk: Walk, frame: _Frame) -> str:
    """The mask of the axes the operand is read along, of all for a full one: it may have but one
    row or column, and is addressed by both.
    """
    if walk.full:
        return "mask"
    if frame.flat:
        return "mask" if walk.steps[0] else ""
    along_rows, along_cols = any(walk.steps[:-1]), walk.steps[-1]
    if not frame.tall:
        return "mask" if along_cols else ""
    return {
        (True, True): "mask",
        (True, False): "row_mask",
        (False, True): "col_mask",
        (False, False): "",
    }[along_rows, along_cols]


def _load(item: Input, layout: Layout, frame: _Frame) -> list[str]:
    terms = _offset(item, layout, frame)
    lines = []
    if len(" + ".join(terms)) > _LONGEST_OFFSET:
        lines = summed(f"{item.name}_offsets", terms)
        terms = [f"{item.name}_offsets"]
    mask = _mask(layout.walks[item.name], frame)
    zero = "0.0" if item.dtype in FLOATING else "0"
    masked = (f"mask={mask}", f"other={zero}") if mask else ()
    loaded = call("tl.load", " + ".join([f"{item.name}_ptr", *terms]), *masked)
    if item.dtype not in FLOATING:
        return [*lines, *assigned(item.name, loaded)]
    widened = call(f"{loaded.text}.to", "tl.float32")
    if fits(item.name, widened):
        return [*lines, *assigned(item.name, widened)]
    return [*lines, *assigned(item.name, loaded), f"    {item.name} = {item.name}.to(tl.float32)"]


def _followed_by_blank(lines: list[str]) -> list[str]:
    return [*lines, ""] if lines else []


def _stores(region: Region, frame: _Frame, names: tuple[str, ...]) -> list[str]:
    offset = "offsets" if frame.flat else "row * n_cols + cols"
    return [
        line
        for name, output in zip(names, region.outputs, strict=True)
        for line in bracketed(
            "    tl.store(", (f"{name}_ptr + {offset}", output.value, "mask=mask"), ")"
        )
    ]


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
