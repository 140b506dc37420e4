"""The text of the launcher: allocates the outputs, brings operands into the planned layout,
launches.
"""

from __future__ import annotations

from fusion_kernels.emit.config import KernelConfig
from fusion_kernels.emit.kernel import KernelText, strided_axes
from fusion_kernels.emit.layout import Layout
from fusion_kernels.emit.wrap import bracketed
from fusion_kernels.ir import Region


def launcher_text(region: Region, layout: Layout, config: KernelConfig, kernel: KernelText) -> str:
    """A function of the region's inputs in order that returns its output, or a tuple of
    outputs.
    """
    names = [item.name for item in region.inputs]
    returns = "torch.Tensor" if len(region.outputs) == 1 else _tuple_of(len(region.outputs))
    arguments = [*names, *kernel.output_names, *kernel.sizes, *_strides(region, layout)]
    arguments += [f"{name}={name}" for name in (*config.constexprs(),)] + ["num_warps=NUM_WARPS"]
    lines = [
        *bracketed(
            f"def {region.name}(", [f"{n}: torch.Tensor" for n in names], f") -> {returns}:"
        ),
        *_prepare(region, layout),
        *_shape(region, layout),
        *_outputs(region, kernel),
        *_sizes(layout, kernel),
        f"    if {kernel.output_names[0]}.numel():",
        f"        grid = {_grid(region, kernel, config)}",
        *bracketed(f"        {region.name}_kernel[grid](", arguments, ")"),
        f"    return {_returned(layout, kernel)}",
    ]
    return "\n".join(lines) + "\n"


def _tuple_of(count: int) -> str:
    return f"tuple[{', '.join(['torch.Tensor'] * count)}]"


def _prepare(region: Region, layout: Layout) -> list[str]:
    """Dense operands are made contiguous where they are not; strided ones are taken as they
    come.
    """
    lines = []
    for item in region.inputs:
        walk, text = layout.walks[item.name], item.name
        if layout.permuted and len(item.shape) > 0:
            text += f"[(None,) * ({len(region.shape)} - {text}.dim())].permute{layout.order}"
        if walk.dense:
            text += ".contiguous()"
        if text != item.name:
            lines.append(f"    {item.name} = {text}")
    return lines


def _shape(region: Region, layout: Layout) -> list[str]:
    full = [item.name for item in region.inputs if layout.walks[item.name].full]
    if full:
        return [f"    shape = {full[0]}.shape"]
    shapes = ", ".join(f"{item.name}.shape" for item in region.inputs)
    return [f"    shape = torch.broadcast_shapes({shapes})"]


def _outputs(region: Region, kernel: KernelText) -> list[str]:
    device = region.inputs[0].name
    return [
        f"    {name} = torch.empty(shape, dtype=torch.{output.dtype}, device={device}.device)"
        for name, output in zip(kernel.output_names, region.outputs, strict=True)
    ]


def _sizes(layout: Layout, kernel: KernelText) -> list[str]:
    out = kernel.output_names[0]
    if kernel.sizes == ("n_elements",):
        return [f"    n_elements = {out}.numel()"]
    lines = [f"    n_cols = {_product(layout.axes[-1].dims, len(layout.order))}"]
    lines += [
        f"    n_{axis} = {_product(layout.axes[axis].dims, len(layout.order))}"
        for axis in range(1, len(layout.axes) - 1)
    ]
    return [*lines, f"    n_rows = {out}.numel() // max(n_cols, 1)"]


def _product(dims: tuple[int, ...], rank: int) -> str:
    return " * ".join(f"shape[{d - rank}]" for d in dims) or "1"


def _strides(region: Region, layout: Layout) -> list[str]:
    """An axis's stride is that of the innermost dimension the operand moves along within it."""
    rank = len(layout.order)
    texts = []
    for item in region.inputs:
        walk = layout.walks[item.name]
        for axis in strided_axes(walk, len(layout.axes)):
            moving = [d for d in layout.axes[axis].dims if item.shape[layout.order[d]] != 1]
            texts.append(f"{item.name}.stride({moving[-1] - rank})")
    return texts


def _grid(region: Region, kernel: KernelText, config: KernelConfig) -> str:
    if kernel.sizes == ("n_elements",):
        return "(triton.cdiv(n_elements, BLOCK_SIZE),)"
    rows = "triton.cdiv(n_rows, ROWS)" if (config.rows or 1) > 1 else "n_rows"
    return f"({rows},)" if region.row_rank else f"({rows}, triton.cdiv(n_cols, BLOCK_SIZE))"


def _returned(layout: Layout, kernel: KernelText) -> str:
    inverse = tuple(layout.order.index(d) for d in range(len(layout.order)))
    names = [
        f"{name}.permute{inverse}" if layout.permuted else name for name in kernel.output_names
    ]
    return ", ".join(names)
