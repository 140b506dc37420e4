"""The text of the launcher: allocates the outputs, brings operands into the planned layout,
launches.
"""

from __future__ import annotations

from fusion_kernels.emit.config import KernelConfig
from fusion_kernels.emit.expressions import call
from fusion_kernels.emit.kernel import KernelText, strided_axes
from fusion_kernels.emit.layout import Layout
from fusion_kernels.emit.wrap import WIDTH, assigned, bracketed
from fusion_kernels.ir import Region


def launcher_text(region: Region, layout: Layout, config: KernelConfig, kernel: KernelText) -> str:
    """A function of the region's inputs in order that returns its output, or a tuple of
    outputs.
    """
    names = [item.name for item in region.inputs]
    returns = _return_type(len(region.outputs))
    arguments = [*names, *kernel.output_names, *kernel.sizes, *_strides(region, layout)]
    arguments += [f"{name}={name}" for name in config.constexprs()]
    inner = "n_elements" if kernel.sizes == ("n_elements",) else "n_cols"
    arguments += [f"GROUP=math.gcd({inner}, 16)", "num_warps=NUM_WARPS"]
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
        *_return(layout, kernel),
    ]
    return "\n".join(lines) + "\n"


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
            text += f".permute{layout.order}"
        if layout.walks[name].dense:
            text += ".contiguous()"
        if text != name:
            lines.append(f"    {name} = {text}")
    return lines


def _shape(region: Region, layout: Layout) -> list[str]:
    """That of an operand with all dimensions, else the broadcast one."""
    for item in region.inputs:
        whole = layout.permuted or item.rank == len(region.shape)
        if layout.walks[item.name].full and whole:
            return [f"    shape = {item.name}.shape"]
    shapes = [f"{item.name}.shape" for item in region.inputs]
    return assigned("shape", call("torch.broadcast_shapes", *shapes))


def _outputs(region: Region, kernel: KernelText) -> list[str]:
    device = region.inputs[0].name
    lines: list[str] = []
    for name, output in zip(kernel.output_names, region.outputs, strict=True):
        options = (f"dtype=torch.{output.dtype}", f"device={device}.device")
        lines += assigned(name, call("torch.empty", "shape", *options))
    return lines


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


def _return(layout: Layout, kernel: KernelText) -> list[str]:
    inverse = tuple(layout.order.index(d) for d in range(len(layout.order)))
    values = [
        f"{name}.permute{inverse}" if layout.permuted else name for name in kernel.output_names
    ]
    whole = f"    return {', '.join(values)}"
    if len(whole) <= WIDTH:
        return [whole]
    return ["    return (", *(f"        {value}," for value in values), "    )"]
