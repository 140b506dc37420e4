"""Region IR: what one generated kernel computes, as a small list of named values.

A region iterates over `shape`. Inputs are loaded at every point (a dimension of size 1
broadcasts), the body is a sequence of statements in float32 (integers and booleans keep their
dtype), outputs are stored rounded once to their dtype. A tensor in an 8-bit floating dtype is read
and stored as its codes, which are "uint8" and which functions turn into float32 and back. With
`row_rank` > 0 the last `row_rank` dimensions form a row: `row_sum`, `row_prod`, `row_mean`,
`row_max` and `row_min` reduce over it to one value a row, and `layer_norm(x, weight, bias, eps)`
is (x - mean) / sqrt(variance + eps) * weight + bias over it, with None for a missing weight or
bias. An output is as large as the region, or holds one value a row. `row_max` and `row_min` need
not see a NaN; what must is written out by the lowering.

`cat(dim, start, a, end, b, end ...)` puts pieces beside one another along a dimension of the
region, counted from the last: `a` from `start` to the first `end`, and so on. What a piece is made
of stands in that window alone, and inputs of it say so.

`gather(table, index)` reads an input along its last dimension, which is none of the region's, at
the position that `index` holds; a position outside of the table gives NaN, or 0.

The IR says nothing of blocks, warps or devices; `emit` decides those.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

FLOATING = ("float16", "bfloat16", "float32")
FLOAT8 = ("float8_e4m3fn", "float8_e5m2")
SHORT_DTYPE = {
    "float8_e4m3fn": "f8e4m3",
    "float8_e5m2": "f8e5m2",
    "float16": "f16",
    "bfloat16": "bf16",
    "float32": "f32",
    "uint8": "u8",
    "int8": "i8",
    "int16": "i16",
    "int32": "i32",
    "int64": "i64",
    "bool": "b8",
}

INTEGER_LIMITS = {f"int{bits}": (-(1 << bits - 1), (1 << bits - 1) - 1) for bits in (32, 64)}

REDUCTIONS = ("row_sum", "row_prod", "row_mean", "row_max", "row_min")
ROW_OPS = (*REDUCTIONS, "layer_norm")

INFIX = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "div": "/",
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
    "eq": "==",
    "ne": "!=",
    "and": "&",
    "or": "|",
    "xor": "^",
    "shl": "<<",
    "shr": ">>",
    "idiv": "//",
    "rem": "%",
}
PREFIX = {"neg": "-", "not": "~"}
FUNCTIONS = (
    "abs",
    "exp",
    "log",
    "sqrt",
    "rsqrt",
    "erf",
    "tanh",
    "sigmoid",
    "sin",
    "cos",
    "floor",
    "ceil",
    "maximum",
    "minimum",
    "where",
    "cast",
    "cat",
    "gather",
    "full",
    "exp2",
    "log2",
    "signbit",
    *ROW_OPS,
)

Operand = str | float | int | bool | None
"""The name of an input or earlier statement, or a literal; None where an operand is left out."""


@dataclass(frozen=True, slots=True)
class Window:
    """A stretch of the region along one dimension, where a piece of a concatenation stands.

    `dim` counts from the last dimension, which is -1.
    """

    dim: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Input:
    """A tensor the region reads. `shape` has the region's rank, 1 where the tensor broadcasts;
    `stride` counts elements, 0 where it broadcasts. `rank` is the tensor's own; the dimensions
    before it are padding. With a `window` it stands in that stretch alone, and its size there is
    the window's. A `table` has one dimension more, its last, along which it is looked up.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    rank: int
    window: Window | None = None
    table: bool = False


@dataclass(frozen=True, slots=True)
class Statement:
    """`name = op(args)`, computed in `dtype` ("float32", "int64", "bool" ...).

    `origin` is the graph node it comes from. `cast` has the dtype to round through as second
    operand.
    """

    name: str
    op: str
    args: tuple[Operand, ...]
    dtype: str
    origin: str


@dataclass(frozen=True, slots=True)
class Output:
    """A value to store: `value` names an input or statement. `shape` is the region's, with 1 along
    the row for one value a row; `stride` is the layout of the result.
    """

    value: str
    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Region:
    """One kernel's work. Sizes are those of the capture; the emitted kernel takes them as
    arguments.
    """

    name: str
    shape: tuple[int, ...]
    row_rank: int
    inputs: tuple[Input, ...]
    body: tuple[Statement, ...]
    outputs: tuple[Output, ...]

    @property
    def row_length(self) -> int:
        """Elements of one row; 1 for a region without reductions."""
        return prod(self.shape[len(self.shape) - self.row_rank :]) if self.row_rank else 1

    @property
    def numel(self) -> int:
        return prod(self.shape)

    @property
    def cut(self) -> frozenset[int]:
        """The dimensions along which something is concatenated, counted from the first."""
        dims = (int(item.args[0] or 0) for item in self.body if item.op == "cat")
        return frozenset(dim % len(self.shape) for dim in dims)

    def statement(self, name: str) -> Statement | None:
        """The statement that defines `name`, or None for an input."""
        return next((item for item in self.body if item.name == name), None)

    def __str__(self) -> str:
        return region_text(self)


def region_text(region: Region) -> str:
    """The region as readable text, one line a statement with its origin."""
    inputs = ", ".join(f"{item.name}: {_tensor(item.dtype, item.shape)}" for item in region.inputs)
    outputs = ", ".join(_tensor(item.dtype, item.shape) for item in region.outputs)
    rows = f", rows over the last {region.row_rank}" if region.row_rank else ""
    lines = [f"region {region.name}({inputs}) -> {outputs}{rows}"]
    width = max((len(item.name) for item in region.body), default=0)
    right = [expression(item.op, item.args) for item in region.body]
    column = max((len(text) for text in right), default=0)
    for item, text in zip(region.body, right, strict=True):
        lines.append(f"  {item.name:<{width}} = {text:<{column}}  # {item.origin}")
    lines.append(f"  store {', '.join(item.value for item in region.outputs)}")
    return "\n".join(lines)


def expression(op: str, args: tuple[Operand, ...]) -> str:
    """One operation in infix or call form, without precedence: arguments are names or literals."""
    texts = [str(arg) for arg in args]
    if op in INFIX:
        return f"{texts[0]} {INFIX[op]} {texts[1]}"
    if op in PREFIX:
        return f"{PREFIX[op]}{texts[0]}"
    return f"{op}({', '.join(texts)})"


def memory_order(shape: tuple[int, ...], stride: tuple[int, ...]) -> tuple[int, ...]:
    """Dimensions from the largest stride to the smallest; those of size 1 stay where they are."""
    moving = sorted(
        (d for d in range(len(shape)) if shape[d] != 1), key=lambda d: stride[d], reverse=True
    )
    remaining = iter(moving)
    return tuple(d if shape[d] == 1 else next(remaining) for d in range(len(shape)))


def _tensor(dtype: str, shape: tuple[int, ...]) -> str:
    return f"{SHORT_DTYPE.get(dtype, dtype)}[{', '.join(map(str, shape))}]"
