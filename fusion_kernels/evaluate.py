"""A region run by torch, operation by operation: traced for Inductor on CPU, and eager's stand-in
for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from fusion_kernels.functions.table import FUNCTIONS
from fusion_kernels.ir import FLOAT8, FLOATING, ROW_OPS, Output, Region, Statement, memory_order
from fusion_kernels.rational import RATIONALS, OddRational

_DTYPES = {
    name: getattr(torch, name)
    for name in (
        *("float16", "bfloat16", "float32", "float64", "bool"),
        *("uint8", "int8", "int16", "int32", "int64"),
    )
}

_OPERATIONS: dict[str, Callable[..., Any]] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "lt": torch.lt,
    "le": torch.le,
    "gt": torch.gt,
    "ge": torch.ge,
    "eq": torch.eq,
    "ne": torch.ne,
    "and": torch.bitwise_and,
    "or": torch.bitwise_or,
    "xor": torch.bitwise_xor,
    "shl": torch.bitwise_left_shift,
    "shr": torch.bitwise_right_shift,
    "idiv": partial(torch.div, rounding_mode="trunc"),
    "rem": torch.fmod,
    "neg": torch.neg,
    "not": torch.bitwise_not,
    "abs": torch.abs,
    "exp": torch.exp,
    "exp2": torch.exp2,
    "log": torch.log,
    "log2": torch.log2,
    "signbit": torch.signbit,
    "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt,
    "sigmoid": torch.sigmoid,
    "sin": torch.sin,
    "cos": torch.cos,
    "floor": torch.floor,
    "ceil": torch.ceil,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "where": torch.where,
    **{item.name: item.evaluate for item in FUNCTIONS.values()},
}


def evaluate(
    region: Region, tensors: Sequence[torch.Tensor], *, guarded: bool = False
) -> tuple[torch.Tensor, ...]:
    """The region's outputs for inputs in the region's order; sizes may differ from the capture's.

    Floating inputs are widened to float32, the body runs in float32, outputs are rounded once. A
    position outside of a table raises IndexError or RuntimeError as torch.gather does; where it
    is `guarded` it gives NaN, or 0, as in a kernel.
    """
    values: dict[str, Any] = {}
    for item, tensor in zip(region.inputs, tensors, strict=True):
        values[item.name] = tensor if item.table else _loaded(tensor, item.dtype)
    shape = region_shape(region, tensors)
    row = shape[len(shape) - region.row_rank :] if region.row_rank else ()
    for statement in region.body:
        if statement.op == "cat":
            values[statement.name] = _concatenated(statement, values, len(shape))
        else:
            values[statement.name] = _run(statement, values, tuple(row), guarded)
    return tuple(_stored(values[output.value], output, shape, region) for output in region.outputs)


def region_shape(region: Region, tensors: Sequence[torch.Tensor]) -> tuple[int, ...]:
    """What the region runs over for these tensors; where it is cut into pieces, as captured."""
    shapes = []
    for item, tensor in zip(region.inputs, tensors, strict=True):
        shape = list(tensor.shape[:-1] if item.table else tensor.shape)
        if item.window is not None:
            shape[item.window.dim] = region.shape[item.window.dim]
        shapes.append(shape)
    cut = [size if d in region.cut else 1 for d, size in enumerate(region.shape)]
    return tuple(torch.broadcast_shapes(*shapes, cut))


def output_shape(output: Output, region: Region, shape: Sequence[int]) -> tuple[int, ...]:
    """The output's sizes where the region runs over `shape`."""
    captured = zip(output.shape, region.shape, shape, strict=True)
    return tuple(size if own == whole else 1 for own, whole, size in captured)


def _loaded(tensor: torch.Tensor, dtype: str) -> torch.Tensor:
    if dtype in FLOAT8:
        return tensor.view(torch.uint8)
    return tensor.float() if dtype in FLOATING else tensor


def _stored(
    value: torch.Tensor, output: Output, shape: Sequence[int], region: Region
) -> torch.Tensor:
    """The value rounded to the output's dtype, a fresh tensor in the output's memory order."""
    order = memory_order(output.shape, output.stride)
    inverse = tuple(order.index(d) for d in range(len(order)))
    codes = output.dtype in FLOAT8
    rounded = value if codes else value.to(_DTYPES[output.dtype])
    whole = rounded.expand(output_shape(output, region, shape)).permute(order)
    made = whole.clone(memory_format=torch.contiguous_format).permute(inverse)
    return made.view(getattr(torch, output.dtype)) if codes else made


def _run(statement: Statement, values: dict[str, Any], row: tuple[int, ...], guarded: bool) -> Any:
    args: list[Any] = [
        values[arg] if isinstance(arg, str) and arg in values else arg for arg in statement.args
    ]
    if statement.op in ROW_OPS:
        return _row_operation(statement.op, args, row)
    if statement.op == "gather":
        look_up = _looked_up_within if guarded else _looked_up
        return look_up(args[0], args[1]).to(_DTYPES[statement.dtype])
    if statement.op == "full":
        device = next(iter(values.values())).device
        return torch.full((), args[0], dtype=_DTYPES[statement.dtype], device=device)
    if statement.op == "cast":
        return _cast(args[0], str(args[1]), statement.dtype)
    if statement.op in RATIONALS:
        return _odd_rational(RATIONALS[statement.op], args[0])
    result = _OPERATIONS[statement.op](*_as_tensors(statement, args))
    return result.to(_DTYPES[statement.dtype])


def _looked_up(table: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    shape = torch.broadcast_shapes(table.shape[:-1], index.shape)
    positions = index.long().expand(shape).unsqueeze(-1)
    return torch.gather(table.expand(*shape, table.shape[-1]), -1, positions).squeeze(-1)


def _looked_up_within(table: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """The same of positions that may lie outside, where it gives NaN or 0. A table has one
    position at least.
    """
    last = table.shape[-1] - 1
    inside = (index >= 0) & (index <= last)
    found = _looked_up(table, index.clamp(0, last))
    return torch.where(inside, found, float("nan") if table.is_floating_point() else 0)


def _concatenated(statement: Statement, values: dict[str, Any], rank: int) -> torch.Tensor:
    """As large as the pieces broadcast to: what has one value a row keeps one."""
    dim, begin, *rest = statement.args
    assert isinstance(dim, int)
    pieces = [values[str(name)] for name in rest[::2]]
    sizes = [_sizes_beside(piece, dim, rank) for piece in pieces]
    whole = list(torch.broadcast_shapes(*sizes))
    found = []
    for piece, end in zip(pieces, rest[1::2], strict=True):
        assert isinstance(end, int)
        assert isinstance(begin, int)
        whole[dim] = end - begin
        found.append(piece.expand(whole))
        begin = end
    return torch.cat(found, dim)


def _sizes_beside(piece: torch.Tensor, dim: int, rank: int) -> tuple[int, ...]:
    """The piece's sizes in `rank` dimensions, 1 along `dim`."""
    sizes = [1] * (rank - piece.dim()) + list(piece.shape)
    sizes[dim] = 1
    return tuple(sizes)


def _row_operation(op: str, args: list[Any], row: tuple[int, ...]) -> Any:
    """A reduction over the row; what broadcasts along it counts once for every element."""
    x = args[0].expand((*args[0].shape[: args[0].dim() - len(row)], *row))
    dims = tuple(range(-len(row), 0))
    if op == "layer_norm":
        return _layer_norm(x, row, *args[1:])
    if op == "row_sum":
        return x.sum(dims, keepdim=True, dtype=x.dtype)
    if op == "row_prod":
        for dim in dims:
            x = x.prod(dim, keepdim=True, dtype=x.dtype)
        return x
    if op == "row_mean":
        return x.mean(dims, keepdim=True)
    return x.amax(dims, keepdim=True) if op == "row_max" else x.amin(dims, keepdim=True)


def _layer_norm(
    x: torch.Tensor, row: tuple[int, ...], weight: Any, bias: Any, eps: float
) -> torch.Tensor:
    """torch's layer_norm of the row less its first element, which changes nothing but the
    rounding.

    Inductor takes the plain mean of a row of known length, and a large mean or a constant row
    would lose in it what eager's kernel keeps. |x - x[0]| is at most sqrt(n) standard deviations,
    so the shift costs 6e-8 * sqrt(n) at worst.
    """
    weight, bias = (None if value is None else _of_row(value, row) for value in (weight, bias))
    first = x
    for dim in range(-len(row), 0):
        first = first.narrow(dim, 0, 1)
    return torch.native_layer_norm(x - first, row, weight, bias, eps)[0]


def _of_row(value: torch.Tensor, row: tuple[int, ...]) -> torch.Tensor:
    """A value that is the same for every row, as large as one."""
    return value.reshape(value.shape[max(0, value.dim() - len(row)) :]).expand(row)


def _cast(value: torch.Tensor, through: str, dtype: str) -> torch.Tensor:
    return value.to(_DTYPES[through]).to(_DTYPES[dtype])


def _as_tensors(statement: Statement, args: list[Any]) -> list[Any]:
    """torch.maximum, where and a literal left operand take no Python number; give it as a 0-d
    tensor.
    """
    like = next(arg for arg in args if isinstance(arg, torch.Tensor))
    numbers = statement.op in ("maximum", "minimum") or not isinstance(args[0], torch.Tensor)
    if not numbers:
        return args
    return [
        arg
        if isinstance(arg, torch.Tensor)
        else torch.full((), arg, dtype=like.dtype, device=like.device)
        for arg in args
    ]


def _odd_rational(rational: OddRational, x: torch.Tensor) -> torch.Tensor:
    square = x * x
    inside = x * _polynomial(rational.numerator, square) / _polynomial(rational.denominator, square)
    beyond = torch.where(x < 0, -1.0, 1.0)
    return torch.where(x.abs() >= rational.limit, beyond, inside)


def _polynomial(coefficients: tuple[float, ...], t: torch.Tensor) -> Any:
    total: Any = coefficients[-1]
    for coefficient in reversed(coefficients[:-1]):
        total = total * t + coefficient
    return total
