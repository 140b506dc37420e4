"""The text of the launcher: allocates the outputs, brings operands into the planned layout,
launches.
"""

from __future__ import annotations

from collections.abc import Sequence

from fusion_kernels.emit.addressing import strided_axes
from fusion_kernels.emit.config import KernelConfig
from fusion_kernels.emit.expressions import call
from fusion_kernels.emit.kernel import KernelText
from fusion_kernels.emit.layout import Layout, output_names
from fusion_kernels.emit.wrap import WIDTH, assigned, bracketed
from fusion_kernels.ir import FLOAT8, Input, Output, Region, memory_order


def launcher_text(region: Region, layout: Layout, config: KernelConfig, kernel: KernelText) -> str:
    """A function of the region's inputs in order that returns its output, or a tuple of
    outputs.
    """
    names = [item.name for item in region.inputs]
    returns = _return_type(len(region.outputs))
    operands = [*_operands(names, region.inputs), *_operands(kernel.output_names, region.outputs)]
    arguments = [*operands, *kernel.sizes, *_strides(region, layout)]
    arguments += [f"{name}={name}" for name in config.constexprs()]
    inner = "n_elements" if kernel.sizes == ("n_elements",) else "n_cols"
    arguments += [f"GROUP=math.gcd({inner}, 16)", "num_warps=NUM_WARPS"]
    lines = [
        *bracketed(
            f"def {region.name}(", [f"{n}: torch.Tensor" for n in names], f") -> {returns}:"
        ),
        *_prepare(region, layout),
        *_shape(region, layout),
        *_outputs(region, layout, kernel),
        *_sizes(region, layout, kernel),
        f"    if {_something(region, kernel)}:",
        f"        grid = {_grid(region, kernel, config)}",
        *bracketed(f"        {region.name}_kernel[grid](", arguments, ")"),
        *_return(layout, kernel),
    ]
    return "\n".join(lines) + "\n"


def _operands(names: Sequence[str], tensors: Sequence[Input | Output]) -> list[str]:
    """What the kernel is given; of an 8-bit floating tensor its codes."""
    pairs = zip(names, tensors, strict=True)
    return [f"{n}.view(torch.uint8)" if item.dtype in FLOAT8 else n for n, item in pairs]


def _return_type(count: int) -> str:
    if count == 1:
        return "torch.Tensor"
    return f"tuple[{', '.join(['torch.Tensor'] * count) if count <= 4 else 'torch.Tensor, ...'}]"


def _prepare(region: Region, layout: Layout) -> list[str]:
    """Dense operands are made contiguous where they are not; strided ones are taken as they
    come.
    """
    lines = []
    rank = len(region.shape)
    for item in region.inputs:
        name, text = item.name, item.name
        if layout.permuted:
            if item.rank < rank:
                lines.append(f"    {name} = {name}[{', '.join(['None'] * (rank - item.rank))}]")
            order = (*layout.order, rank) if item.table else layout.order
            text += f".permute{order}"
        if layout.walks[name].dense:
            text += ".contiguous()"
        if text != name:
            lines.append(f"    {name} = {text}")
    return lines


def _shape(region: Region, layout: Layout) -> list[str]:
    """That of an operand with all dimensions, else the broadcast one, of the region's rank."""
    for item in region.inputs:
        whole = layout.permuted or item.rank == len(region.shape)
        if layout.walks[item.name].full and whole:
            return [f"    shape = {item.name}.shape"]
    shapes = [_shape_of(item, region, layout) for item in region.inputs]
    alone = [all(item.shape[d] == 1 for item in region.inputs) for d in range(len(region.shape))]
    short = not layout.permuted and all(item.rank < len(alone) for item in region.inputs)
    if short or any(alone[d] for d in region.cut):
        sizes = [region.shape[d] if d in region.cut and alone[d] else 1 for d in layout.order]
        shapes.append(f"({', '.join(map(str, sizes))})")
    return assigned("shape", call("torch.broadcast_shapes", *shapes))


def _shape_of(item: Input, region: Region, layout: Layout) -> str:
    """An operand's shape; a piece is as long as the region is captured where it is cut."""
    if item.table:
        return f"{item.name}.shape[:-1]"
    if item.window is None or item.shape[item.window.dim] == 1:
        return f"{item.name}.shape"
    rank = len(layout.order)
    position = layout.order.index(item.window.dim % rank) - rank
    size = region.shape[item.window.dim]
    after = f", *{item.name}.shape[{position + 1}:]" if position + 1 else ""
    return f"(*{item.name}.shape[:{position}], {size}{after})"


def _outputs(region: Region, layout: Layout, kernel: KernelText) -> list[str]:
    """Each is allocated dense, with its dimensions in the order of the kernel's."""
    device = region.inputs[0].name
    lines: list[str] = []
    for name, output in zip(kernel.output_names, region.outputs, strict=True):
        options = (f"dtype=torch.{output.dtype}", f"device={device}.device")
        sizes = _own_sizes(output, region, layout)
        order = _own_order(output, layout)
        if order == tuple(range(len(order))):
            lines += assigned(name, call("torch.empty", _size_text(sizes), *options))
            continue
        made = call("torch.empty", _size_text([sizes[d] for d in order]), *options)
        lines += assigned(name, made)
        inverse = tuple(order.index(d) for d in range(len(order)))
        lines.append(f"    {name} = {name}.permute{inverse}")
    return lines


def _own_sizes(output: Output, region: Region, layout: Layout) -> list[str]:
    rank = len(layout.order)
    kept = [output.shape[d] == region.shape[d] for d in layout.order]
    return [f"shape[{d - rank}]" if kept[d] else "1" for d in range(rank)]


def _own_order(output: Output, layout: Layout) -> tuple[int, ...]:
    """The output's memory order within the kernel's dimensions."""
    shape = tuple(output.shape[d] for d in layout.order)
    return memory_order(shape, tuple(output.stride[d] for d in layout.order))


def _size_text(sizes: list[str]) -> str:
    if sizes == [f"shape[{d - len(sizes)}]" for d in range(len(sizes))]:
        return "shape"
    return f"({', '.join(sizes)}{',' if len(sizes) == 1 else ''})"


def _something(region: Region, kernel: KernelText) -> str:
    """Whether there is anything to compute: a row of no elements still has its sum."""
    whole = [
        name
        for name, output in zip(kernel.output_names, region.outputs, strict=True)
        if output.shape == region.shape
    ]
    return f"{whole[0]}.numel()" if len(whole) == len(region.outputs) else "n_rows"


def _sizes(region: Region, layout: Layout, kernel: KernelText) -> list[str]:
    out = kernel.output_names[0]
    if kernel.sizes == ("n_elements",):
        return [f"    n_elements = {out}.numel()"]
    rank = len(layout.order)
    inside = tuple(d for axis in layout.axes[layout.outer :] for d in axis.dims)
    outside = tuple(d for axis in layout.axes[: layout.outer] for d in axis.dims)
    lines = [f"    n_cols = {_product(inside, rank)}"]
    axes = (*range(1, layout.outer), *range(layout.outer + 1, len(layout.axes)))
    lines += [f"    n_{axis} = {_product(layout.axes[axis].dims, rank)}" for axis in axes]
    if region.outputs[0].shape == region.shape:
        return [*lines, f"    n_rows = {out}.numel() // max(n_cols, 1)"]
    return [*lines, f"    n_rows = {_product(outside, rank)}"]


def _product(dims: tuple[int, ...], rank: int) -> str:
    return " * ".join(f"shape[{d - rank}]" for d in dims) or "1"


def _strides(region: Region, layout: Layout) -> list[str]:
    """An axis's stride is that of the innermost dimension the operand moves along within it."""
    rank = len(layout.order)
    texts = []
    operands: dict[str, Input | Output] = {item.name: item for item in region.inputs}
    operands |= dict(zip(output_names(region), region.outputs, strict=True))
    for name, item in operands.items():
        is_table = isinstance(item, Input) and item.table
        for axis in strided_axes(layout.walks[name], len(layout.axes)):
            moving = [d for d in layout.axes[axis].dims if item.shape[layout.order[d]] != 1]
            texts.append(f"{name}.stride({moving[-1] - rank - is_table})")
        if is_table:
            texts += [f"{name}.stride(-1)", f"{name}.shape[-1]"]
    return texts


def _grid(region: Region, kernel: KernelText, config: KernelConfig) -> str:
    if kernel.sizes == ("n_elements",):
        return "(triton.cdiv(n_elements, BLOCK_SIZE),)"
    rows = "triton.cdiv(n_rows, ROWS)" if (config.rows or 1) > 1 else "n_rows"
    return f"({rows},)" if region.row_rank else f"({rows}, triton.cdiv(n_cols, BLOCK_SIZE))"


def _return(layout: Layout, kernel: KernelText) -> list[str]:
    inverse = tuple(layout.order.index(d) for d in range(len(layout.order)))
    values = [
        f"{name}.permute{inverse}" if layout.permuted else name for name in kernel.output_names
    ]
    whole = f"    return {', '.join(values)}"
    if len(whole) <= WIDTH:
        return [whole]
    return ["    return (", *(f"        {value}," for value in values), "    )"]
