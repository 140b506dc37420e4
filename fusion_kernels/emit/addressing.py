"""Where a kernel reads and writes: index names, sizes and strides it takes, loads and stores."""

from __future__ import annotations

from dataclasses import dataclass

from fusion_kernels.emit.config import KernelConfig
from fusion_kernels.emit.expressions import call
from fusion_kernels.emit.layout import Layout, Walk, output_names
from fusion_kernels.emit.wrap import assigned, bracketed, fits, summed
from fusion_kernels.ir import FLOATING, Input, Output, Region, Statement, Window

_LONGEST_OFFSET = 60


@dataclass(frozen=True, slots=True)
class Frame:
    """Index names of one template: `outer` for the axes outside of the row, `inner` for the others,
    and the names of their sizes by axis.
    """

    flat: bool
    tall: bool
    looped: bool
    outer: tuple[str, ...]
    inner: tuple[str, ...]

    @property
    def indices(self) -> tuple[str, ...]:
        """One name an axis."""
        return (*self.outer, *self.inner)


def frame_of(region: Region, layout: Layout, config: KernelConfig) -> Frame:
    tall = (config.rows or 1) > 1
    inside = range(layout.outer, len(layout.axes))
    if len(layout.axes) == 1 and not region.row_rank:
        return Frame(True, tall, False, (), ("offsets",))
    outer = tuple(f"i{axis}" for axis in range(layout.outer)) if layout.outer > 1 else ("row",)
    outer = outer if layout.outer else ()
    inner = ("cols",) if len(inside) == 1 else tuple(f"i{axis}" for axis in inside)
    return Frame(False, tall, config.looped, outer, inner)


def size_names(frame: Frame) -> tuple[str, ...]:
    if frame.flat:
        return ("n_elements",)
    inside = range(len(frame.outer) + 1, len(frame.indices))
    return (
        *(("n_rows",) if frame.tall else ()),
        *(f"n_{axis}" for axis in range(1, len(frame.outer))),
        *(f"n_{axis}" for axis in inside),
        "n_cols",
    )


def stride_names(region: Region, layout: Layout) -> tuple[str, ...]:
    names: list[str] = []
    tables = [item.name for item in region.inputs if item.table]
    for name in (*(item.name for item in region.inputs), *output_names(region)):
        axes = strided_axes(layout.walks[name], len(layout.axes))
        names += [f"{name}_stride_{axis}" for axis in axes]
        names += [f"{name}_stride_table", f"{name}_size_table"] if name in tables else []
    return tuple(names)


def strided_axes(walk: Walk, axes: int) -> tuple[int, ...]:
    """The axes whose stride the launcher passes for this operand."""
    if needs_dense_strides(walk, axes):
        return tuple(axis for axis in range(axes - 1) if walk.steps[axis])
    return stride_axes(walk)


def load(
    item: Input, region: Region, layout: Layout, frame: Frame, indent: str = "    "
) -> list[str]:
    """The operand's value, widened to float32 where it is floating."""
    terms = _offset(item.name, layout, frame, item.window)
    lines = []
    if len(" + ".join(terms)) > _LONGEST_OFFSET:
        lines = summed(f"{item.name}_offsets", terms, indent)
        terms = [f"{item.name}_offsets"]
    mask = _mask(layout.walks[item.name], frame)
    inside = _inside(item, region, layout, frame)
    if inside:
        mask = f"{mask} & {inside}" if mask else inside
    zero = "0.0" if item.dtype in FLOATING else "0"
    masked = (f"mask={mask}", f"other={zero}") if mask else ()
    loaded = call("tl.load", " + ".join([f"{item.name}_ptr", *terms]), *masked)
    if item.dtype not in FLOATING:
        return [*lines, *assigned(item.name, loaded, indent)]
    widened = call(f"{loaded.text}.to", "tl.float32")
    if fits(item.name, widened, indent):
        return [*lines, *assigned(item.name, widened, indent)]
    widen = f"{indent}{item.name} = {item.name}.to(tl.float32)"
    return [*lines, *assigned(item.name, loaded, indent), widen]


def looked_up(
    item: Statement, region: Region, layout: Layout, frame: Frame, indent: str = "    "
) -> list[str]:
    """A table's value at a position that an input holds, or that is made of inputs; NaN or 0
    outside of it.
    """
    name, index = map(str, item.args)
    table = next(found for found in region.inputs if found.name == name)
    walks = [layout.walks[read] for read in (name, *_made_of(index, region))]
    split = len(frame.outer)
    along_rows = any(walk.full or any(walk.steps[:split]) for walk in walks)
    along_cols = any(walk.full or any(walk.steps[split:]) for walk in walks)
    terms = [f"{name}_ptr", *_offset(name, layout, frame)]
    terms.append(f"{index}.to(tl.int64) * {name}_stride_table")
    lines = summed(f"{item.name}_pointers", terms, indent)
    mask = _mask_of(along_rows, along_cols, frame)
    inside = f"({index} >= 0) & ({index} < {name}_size_table)"
    other = 'float("nan")' if table.dtype in FLOATING else "0"
    masked = (f"mask={mask} & {inside}" if mask else f"mask={inside}", f"other={other}")
    loaded = call("tl.load", f"{item.name}_pointers", *masked)
    lines += assigned(item.name, loaded, indent)
    if table.dtype in FLOATING:
        lines.append(f"{indent}{item.name} = {item.name}.to(tl.float32)")
    return lines


def _made_of(name: str, region: Region) -> list[str]:
    """The inputs that a value is computed from; an input itself."""
    item = region.statement(name)
    if item is None:
        return [name] if any(found.name == name for found in region.inputs) else []
    return [read for arg in item.args if isinstance(arg, str) for read in _made_of(arg, region)]


def moves_along_row(name: str, layout: Layout) -> bool:
    """Whether the operand is addressed by column: a row of one element is, too."""
    walk = layout.walks[name]
    return walk.full or any(walk.steps[layout.outer :])


def store(
    name: str, output: Output, region: Region, layout: Layout, frame: Frame, indent: str = "    "
) -> list[str]:
    """An output as large as the region is addressed by row and column even where it has but one;
    one value a row is stored under the rows' mask.
    """
    whole = output.shape == region.shape
    walk = layout.walks[name]
    terms = _offset(name, layout, frame)
    if not walk.full:
        split = len(frame.outer)
        if whole and not any(walk.steps[split:]):
            terms.append("cols")
        if not whole and frame.tall and not any(walk.steps[:split]):
            terms.append("row")
    lines = []
    if len(" + ".join(terms)) > _LONGEST_OFFSET:
        lines = summed(f"{name}_offsets", terms, indent)
        terms = [f"{name}_offsets"]
    mask = "mask" if whole else "row_mask" if frame.tall else ""
    stored = [" + ".join([f"{name}_ptr", *terms]), output.value]
    stored += [f"mask={mask}"] if mask else []
    return [*lines, *bracketed(f"{indent}tl.store(", stored, ")")]


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


def _axes_read(region: Region, layout: Layout) -> set[int]:
    """The axes whose own index some operand is addressed by."""
    partial = [walk for walk in layout.walks.values() if not walk.full]
    moving = {axis for walk in partial for axis, moves in enumerate(walk.steps) if moves}
    return moving | {layout.axis_of(dim) for dim in region.cut}


def index_lines(frame: Frame, region: Region, layout: Layout) -> list[str]:
    """The indices and masks of one program; those of the row's blocks come with each pass where
    the row is longer than one.
    """
    read = _axes_read(region, layout)
    if frame.flat:
        return [
            _known_multiple("n_elements"),
            "offsets = tl.program_id(0).to(tl.int64) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)",
            "mask = offsets < n_elements",
        ]
    if frame.looped:
        lines = ["row = tl.program_id(0).to(tl.int64)"]
        return [_known_multiple("n_cols"), *lines, *_split_indices(frame, "row", read)]
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
    split = [line for whole in ("row", "cols") for line in _split_indices(frame, whole, read)]
    return [_known_multiple("n_cols"), *lines, *split]


def block_lines(frame: Frame, region: Region, layout: Layout) -> list[str]:
    """The indices and the mask of one block of a row that is passed over in a loop."""
    return [
        "cols = start + tl.arange(0, BLOCK_SIZE)",
        "mask = cols < n_cols",
        *_split_indices(frame, "cols", _axes_read(region, layout)),
    ]


def _known_multiple(size: str) -> str:
    """The size unchanged, told to the compiler as a multiple of GROUP: without it a size that 16
    does not divide makes every load one element wide (a fifth of the copy rate on an H200).
    """
    return f"{size} = {size} // GROUP * GROUP"


def _split_indices(frame: Frame, whole: str, read: set[int]) -> list[str]:
    """The indices of the single axes that `row` or `cols` is made of, where an operand needs
    them.
    """
    names, first = (frame.outer, 0) if whole == "row" else (frame.inner, len(frame.outer))
    if len(names) == 1:
        return []
    lines, rest = [], whole
    for position in range(len(names) - 1, -1, -1):
        axis = first + position
        if axis in read:
            lines.append(f"{names[position]} = {rest}{f' % n_{axis}' if position else ''}")
        rest = f"{rest} // n_{axis}"
    return lines


def _inside(item: Input, region: Region, layout: Layout, frame: Frame) -> str:
    """Whether an index lies in the window of an operand that moves along it, as text."""
    window = item.window
    if window is None or item.shape[window.dim] == 1:
        return ""
    index = cut_index(window.dim, layout, frame)
    parts = [f"({index} >= {window.start})"] if window.start else []
    parts += [f"({index} < {window.stop})"] if window.stop < region.shape[window.dim] else []
    return " & ".join(parts)


def cut_index(dim: int, layout: Layout, frame: Frame) -> str:
    """The name of the index along a dimension that is cut into pieces."""
    return frame.indices[layout.axis_of(dim)]


def _offset(name: str, layout: Layout, frame: Frame, window: Window | None = None) -> list[str]:
    """The terms of the operand's offset; none where it is one value."""
    walk = layout.walks[name]
    if walk.full:
        return ["offsets"] if frame.flat else ["row * n_cols", "cols"]
    strided = strided_axes(walk, len(layout.axes))
    terms = []
    for axis, moves in enumerate(walk.steps):
        index = frame.indices[axis]
        if moves and axis in strided:
            # A column times a stride may pass 2**31 where rows, which are int64, do not.
            wide = f"{index}.to(tl.int64)" if index in frame.inner and not frame.flat else index
            if window is not None and window.start and axis == layout.axis_of(window.dim):
                wide = f"({wide} - {window.start})"
            terms.append(f"{wide} * {name}_stride_{axis}")
        elif moves:
            terms.append(index)
    return terms


def _mask(walk: Walk, frame: Frame) -> str:
    """The mask of the axes the operand is read along, of all for a full one: it may have but one
    row or column, and is addressed by both.
    """
    if walk.full:
        return "mask"
    split = len(frame.outer)
    return _mask_of(any(walk.steps[:split]), any(walk.steps[split:]), frame)


def _mask_of(along_rows: bool, along_cols: bool, frame: Frame) -> str:
    if not frame.tall or frame.flat:
        return "mask" if along_cols else ""
    return {
        (True, True): "mask",
        (True, False): "row_mask",
        (False, True): "col_mask",
        (False, False): "",
    }[along_rows, along_cols]
