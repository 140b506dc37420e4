"""The text of the @triton.jit function: flat over elements, or tiles of rows and columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from fusion_kernels.emit.config import KernelConfig
from fusion_kernels.emit.expressions import ATOM, Text, triton_text
from fusion_kernels.emit.layout import Layout, Walk
from fusion_kernels.emit.wrap import assigned, bracketed
from fusion_kernels.ir import FLOATING, ROW_OPS, Input, Region, Statement

_LONGEST_INLINED = 60


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
    frame = _Frame(flat, (config.rows or 1) > 1, names, "offsets" if flat else "cols")
    outputs = output_names(region)
    sizes = _sizes(frame, outer)
    strides = _stride_names(region, layout)
    pointers = [f"{item.name}_ptr" for item in region.inputs] + [f"{name}_ptr" for name in outputs]
    constexprs = [f"{name}: tl.constexpr" for name in config.constexprs()]
    parameters = [*pointers, *sizes, *strides, *constexprs]
    lines = [
        "@triton.jit",
        *bracketed(f"def {region.name}_kernel(", parameters, "):"),
        f'    """{_summary(region)}"""',
        *_indent(_indices(frame, region)),
        "",
        *_indent(line for item in region.inputs for line in _load(item, layout, frame)),
        "",
        *_indent(_body(region, frame)),
        "",
        *_indent(_stores(region, frame, outputs)),
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


def _indices(frame: _Frame, region: Region) -> list[str]:
    if frame.flat:
        return [
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
    return lines + _outer_indices(frame)


def _outer_indices(frame: _Frame) -> list[str]:
    if len(frame.outer) == 1:
        return []
    lines, rest = [], "row"
    for axis in range(len(frame.outer) - 1, 0, -1):
        lines.append(f"{frame.outer[axis]} = {rest} % n_{axis}")
        rest = f"{rest} // n_{axis}"
    return [*lines, f"{frame.outer[0]} = {rest}"]


def _offset(item: Input, layout: Layout, frame: _Frame) -> str:
    walk = layout.walks[item.name]
    if walk.full:
        return "offsets" if frame.flat else "row * n_cols + cols"
    strided = strided_axes(walk, len(layout.axes))
    indices = (frame.inner,) if frame.flat else (*frame.outer, frame.inner)
    terms = []
    for axis, moves in enumerate(walk.steps):
        if not moves:
            continue
        if axis in strided:
            terms.append(f"{indices[axis]} * {item.name}_stride_{axis}")
        elif axis == len(walk.steps) - 1 or not walk.steps[-1]:
            terms.append(indices[axis])
        else:
            terms.append(f"{indices[axis]} * n_cols")
    return " + ".join(terms)


def _mask(walk: Walk, frame: _Frame) -> str:
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
    offset = _offset(item, layout, frame)
    pointer = f"{item.name}_ptr + {offset}" if offset else f"{item.name}_ptr"
    mask = _mask(layout.walks[item.name], frame)
    zero = "0.0" if item.dtype in FLOATING else "0"
    masked = f", mask={mask}, other={zero}" if mask else ""
    widened = ".to(tl.float32)" if item.dtype in FLOATING else ""
    return assigned(item.name, f"tl.load({pointer}{masked}){widened}")


def _body(region: Region, frame: _Frame) -> list[str]:
    """Statements with one comment a graph node; what one statement alone reads is written into
    it.
    """
    lines: list[str] = []
    origin = None
    inlined: dict[str, Text] = {}
    once = _read_once(region)
    for item in region.body:
        if item.name in once:
            text = triton_text(item, inlined)
            if len(text.text) <= _LONGEST_INLINED:
                inlined[item.name] = text
                continue
        if item.origin != origin:
            origin = item.origin
            lines.append(f"# {origin}")
        if item.op in ROW_OPS:
            lines += _row_operation(item, frame, inlined)
        else:
            lines += assigned(item.name, triton_text(item, inlined).text)
    return lines


def _read_once(region: Region) -> set[str]:
    """Pointwise values that exactly one statement of the same graph node reads, once."""
    readers: dict[str, list[str]] = {}
    for item in region.body:
        for arg in item.args:
            if isinstance(arg, str):
                readers.setdefault(arg, []).append(item.origin)
    stored = {output.value for output in region.outputs}
    return {
        item.name
        for item in region.body
        if item.op not in ROW_OPS
        and item.name not in stored
        and readers.get(item.name) == [item.origin]
    }


def _row_operation(item: Statement, frame: _Frame, inlined: Mapping[str, Text]) -> list[str]:
    """Lanes past the row's end hold whatever the body made of zeros; they never count."""
    name = str(item.args[0])
    value = inlined[name].text if name in inlined else name
    if item.op == "row_sum":
        return assigned(item.name, _sum(frame, value))
    if item.op == "row_mean":
        return assigned(item.name, f"{_sum(frame, value)} / n_cols")
    return _layer_norm(item, frame, inlined[name].at(ATOM) if name in inlined else name)


def _layer_norm(item: Statement, frame: _Frame, x: str) -> list[str]:
    """The mean is taken twice, the second time of what the first left over: a large mean or a
    constant row then loses nothing to the rounding of the sum.
    """
    _, weight, bias, eps = item.args
    prefix = "" if item.name == "layer_norm" else f"{item.name}_"
    mean, centered, variance = (f"{prefix}{part}" for part in ("mean", "centered", "variance"))
    result = f"{centered} * tl.rsqrt({variance} + {eps})"
    if weight is not None:
        result += f" * {weight}"
    if bias is not None:
        result += f" + {bias}"
    return [
        *assigned(mean, f"{_sum(frame, x)} / n_cols"),
        f"{mean} += {_sum(frame, f'{x} - {mean}')} / n_cols",
        *assigned(centered, f"tl.where(mask, {x} - {mean}, 0.0)"),
        *assigned(variance, f"{_sum_of(frame, f'{centered} * {centered}')} / n_cols"),
        *assigned(item.name, result),
    ]


def _sum(frame: _Frame, value: str) -> str:
    return _sum_of(frame, f"tl.where(mask, {value}, 0.0)")


def _sum_of(frame: _Frame, value: str) -> str:
    return f"tl.sum({value}, {'axis=1, keep_dims=True' if frame.tall else 'axis=0'})"


def _stores(region: Region, frame: _Frame, names: tuple[str, ...]) -> list[str]:
    offset = "offsets" if frame.flat else "row * n_cols + cols"
    return [
        f"tl.store({name}_ptr + {offset}, {output.value}, mask=mask)"
        for name, output in zip(names, region.outputs, strict=True)
    ]


def _summary(region: Region) -> str:
    reads = ", ".join(item.name for item in region.inputs)
    rows = f" over rows of {region.row_length}" if region.row_rank else ""
    return f"{', '.join(output.value for output in region.outputs)} from {reads}{rows}."


def _indent(lines: Iterable[str]) -> list[str]:
    return [f"    {line}" for line in lines]
