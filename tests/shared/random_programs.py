"""Draws random programs of tensors with hypothesis: two to twelve operators over strided, broadcast
and mixed inputs, written as a user would, in-place steps and views among them.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from hypothesis import assume
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

Kind = Literal["any", "float", "whole", "bool", "own"]
Layout = Literal["contiguous", "transposed", "sliced", "expanded", "offset"]

DTYPES = (
    *(torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.int32),
    *(torch.bool, torch.uint8, torch.int16, torch.int8),
)
LAYOUTS: tuple[Layout, ...] = ("contiguous", "transposed", "sliced", "expanded", "offset")
ROWS, COLUMNS = (3, 1, 2, 5), (8, 3, 17, 1, 2, 257)
SCALES = (1.0, 1e-3, 30.0)
MOST_ELEMENTS = 1 << 13


@dataclass(frozen=True, slots=True)
class Input:
    """One argument of the program."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    layout: Layout
    scale: float

    def tensor(self, generator: torch.Generator) -> Tensor:
        """Fresh values in the layout asked for, where the shape has it."""
        shape = list(self.shape)
        if self.layout == "expanded" and shape:
            shape[0] = 1
            return self._values(shape, generator).expand(self.shape)
        if self.layout == "transposed" and len(shape) > 1:
            shape[-1], shape[-2] = shape[-2], shape[-1]
            return self._values(shape, generator).transpose(-1, -2)
        if self.layout == "sliced" and shape:
            shape[-1] *= 2
            return self._values(shape, generator)[..., ::2]
        if self.layout == "offset" and shape:
            shape[-1] += 1
            return self._values(shape, generator)[..., 1:]
        return self._values(shape, generator)

    def _values(self, shape: Sequence[int], generator: torch.Generator) -> Tensor:
        if self.dtype is torch.bool:
            return torch.randint(0, 2, shape, generator=generator).bool()
        if not self.dtype.is_floating_point:
            low = 0 if self.dtype is torch.uint8 else -8
            return torch.randint(low, 9, shape, generator=generator).to(self.dtype)
        return (torch.randn(shape, generator=generator) * self.scale).to(self.dtype)


@dataclass(frozen=True, slots=True)
class Step:
    """One operation on earlier values: inputs first, then the steps' results in order."""

    name: str
    operands: tuple[int, ...]
    options: tuple[Any, ...]

    def run(self, values: Sequence[Tensor]) -> Tensor:
        operands = [values[index] for index in self.operands]
        result: Tensor = OPERATIONS[self.name].function(*operands, *self.options)
        return result


@dataclass(frozen=True, slots=True)
class Program:
    """A function of its inputs; `text` reads as its source."""

    inputs: tuple[Input, ...]
    steps: tuple[Step, ...]
    outputs: tuple[int, ...]

    def __call__(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        values = list(tensors)
        for step in self.steps:
            values.append(step.run(values))
        return tuple(values[index] for index in self.outputs)

    def tensors(self) -> tuple[Tensor, ...]:
        """The same values each time."""
        generator = torch.Generator().manual_seed(len(self.steps))
        return tuple(item.tensor(generator) for item in self.inputs)

    @property
    def mutates(self) -> bool:
        return any(OPERATIONS[step.name].kinds[0] == "own" for step in self.steps)

    @property
    def text(self) -> str:
        lines = [f"v{n} = {item}" for n, item in enumerate(self.inputs)]
        for n, step in enumerate(self.steps, len(self.inputs)):
            given = [f"v{index}" for index in step.operands] + [str(x) for x in step.options]
            lines.append(f"v{n} = {step.name}({', '.join(given)})")
        return "\n".join([*lines, f"return {', '.join(f'v{index}' for index in self.outputs)}"])


@dataclass(frozen=True, slots=True)
class Operation:
    """What a step may be: what its operands must be, its function, and choices of its options."""

    kinds: tuple[Kind, ...]
    function: Callable[..., Any]
    options: tuple[tuple[Any, ...], ...] = ()
    is_view: bool = False
    """Whether the result may share the first operand's memory."""


_NUMBERS = (0.5, 2, -1.5, 1, 0.1, -3)
_DIMS = ((-1,), (-1,), (-2, -1))


def _unary(function: Callable[..., Any]) -> Operation:
    return Operation(("float",), function)


def _binary(function: Callable[..., Any], kind: Kind = "any") -> Operation:
    return Operation((kind, kind), function)


def _reduction(function: Callable[..., Any], kind: Kind = "float") -> Operation:
    return Operation((kind,), function, (_DIMS, (True, True, False)))


def _normalized(x: Tensor, weight: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], weight.expand(x.shape[-1:]))


OPERATIONS: dict[str, Operation] = {
    "add": _binary(torch.add),
    "mul": _binary(torch.mul),
    "sub": Operation(("float", "float"), torch.sub),
    "add_scaled": Operation(
        ("float", "any"), lambda x, y, c: torch.add(x, y, alpha=c), (_NUMBERS,)
    ),
    "rsub": Operation(("float",), lambda x, c: c - x, (_NUMBERS,)),
    "plus": Operation(("any",), torch.add, (_NUMBERS,)),
    "times": Operation(("any",), torch.mul, (_NUMBERS,)),
    "over": Operation(("any",), torch.div, ((2.0, 3, -0.7),)),
    "ratio": Operation(("any", "float"), lambda x, y: x / (1 + y.abs())),
    "reciprocal": _unary(lambda x: 1.0 / (x.abs() + 0.5)),
    "power": Operation(("float",), torch.pow, ((2, 3, 0),)),
    "maximum": _binary(torch.maximum),
    "minimum": _binary(torch.minimum),
    "atan2": Operation(("float", "float"), torch.atan2),
    "relu": _unary(torch.relu),
    "gelu": Operation(("float",), lambda x, form: F.gelu(x, approximate=form), (("none", "tanh"),)),
    "silu": _unary(F.silu),
    "sigmoid": _unary(torch.sigmoid),
    "tanh": _unary(torch.tanh),
    "erf": _unary(torch.erf),
    "sin": _unary(torch.sin),
    "cos": _unary(torch.cos),
    "exp": _unary(lambda x: torch.exp(-x.abs())),
    "log": _unary(lambda x: torch.log1p(x.abs())),
    "sqrt": _unary(lambda x: torch.sqrt(x.abs())),
    "rsqrt": _unary(lambda x: torch.rsqrt(x.abs() + 0.5)),
    "neg": Operation(("float",), torch.neg),
    "abs": Operation(("float",), torch.abs),
    "square": _unary(torch.square),
    "leaky_relu": Operation(("float",), F.leaky_relu, ((0.01, 0.3),)),
    "elu": _unary(F.elu),
    "hardswish": _unary(F.hardswish),
    "softplus": _unary(F.softplus),
    "clamp": Operation(("any",), torch.clamp, ((-1, 0, -0.5), (1, 2, 0.5))),
    "sign": Operation(("any",), torch.sign),
    "greater": Operation(("any", "any"), torch.gt),
    "at_most": Operation(("any",), torch.le, (_NUMBERS,)),
    "equal": Operation(("whole", "whole"), torch.eq),
    "not": Operation(("whole",), torch.logical_not),
    "bit_and": _binary(torch.bitwise_and, "whole"),
    "bit_or": _binary(torch.bitwise_or, "whole"),
    "bit_xor": _binary(torch.bitwise_xor, "whole"),
    "remainder": Operation(("whole",), torch.remainder, ((3, 5, -4),)),
    "floor_divide": Operation(("whole",), torch.floor_divide, ((3, 2, -4),)),
    "where": Operation(("bool", "any", "any"), torch.where),
    "where_number": Operation(("bool", "float"), lambda c, x: torch.where(c, x, 0.5)),
    "masked_fill": Operation(("float", "bool"), lambda x, c: x.masked_fill(c, -2.0)),
    "to": Operation(("any",), Tensor.to, (DTYPES,), is_view=True),
    "type_as": Operation(("any", "any"), Tensor.type_as, is_view=True),
    "sum": _reduction(torch.sum, "any"),
    "mean": _reduction(torch.mean),
    "amax": _reduction(torch.amax, "any"),
    "amin": _reduction(torch.amin),
    "any": Operation(("any",), torch.any, ((-1,), (True,))),
    "all": Operation(("any",), torch.all, ((-1,), (True,))),
    "var": Operation(
        ("float",), lambda x, dim, c: x.var(dim, correction=c, keepdim=True), (_DIMS, (0, 1))
    ),
    "std": Operation(("float",), lambda x: x.std(-1, correction=0, keepdim=True)),
    "l2_norm": _unary(lambda x: torch.linalg.vector_norm(x, 2, -1, True)),
    "softmax": Operation(("float",), torch.softmax, ((-1,),)),
    "log_softmax": Operation(("float",), torch.log_softmax, ((-1,),)),
    "logsumexp": Operation(("float",), torch.logsumexp, ((-1,), (True,))),
    "layer_norm": _unary(lambda x: F.layer_norm(x, x.shape[-1:])),
    "layer_norm_over_two": _unary(lambda x: F.layer_norm(x, x.shape[-2:])),
    "scaled_norm": Operation(("float", "float"), _normalized),
    "rms_norm": _unary(lambda x: F.rms_norm(x, x.shape[-1:], eps=1e-6)),
    "cat": Operation(("any", "any"), lambda x, y: torch.cat((x, y), -1)),
    "rotate": _unary(
        lambda x: torch.cat((-x[..., x.shape[-1] // 2 :], x[..., : x.shape[-1] // 2]), -1)
    ),
    "matmul": _unary(lambda x: x @ x.transpose(-1, -2)),
    "transpose": Operation(("any",), Tensor.transpose, ((-1,), (-2, 0)), is_view=True),
    "first_half": Operation(("any",), lambda x: x[..., : (x.shape[-1] + 1) // 2], is_view=True),
    "flatten": Operation(("any",), torch.flatten, ((0, -2), (1, -1)), is_view=True),
    "unsqueeze": Operation(("any",), torch.unsqueeze, ((0, -1, 1),), is_view=True),
    "expand": Operation(("any",), lambda x: x.expand(2, *x.shape), is_view=True),
    "clone": Operation(("any",), Tensor.clone),
    "contiguous": Operation(("any",), Tensor.contiguous, is_view=True),
    "add_": Operation(("own", "any"), Tensor.add_),
    "mul_": Operation(("own",), Tensor.mul_, (_NUMBERS,)),
    "relu_": Operation(("own",), torch.relu_),
    "fill_first_": Operation(("own",), lambda x: _changed(x, x[..., :1].fill_(1))),
    "scale_half_": Operation(
        ("own",), lambda x: _changed(x, x[..., : (x.shape[-1] + 1) // 2].mul_(2))
    ),
}


# Views and products end a region; a third of the steps that may be one is not.
_NAMES = sorted(n for n, o in OPERATIONS.items() if not o.is_view) * 2 + sorted(OPERATIONS)


def _changed(whole: Tensor, _: Tensor) -> Tensor:
    return whole


@dataclass(slots=True)
class _Pool:
    """The values so far, and whether a step may overwrite each; the last come first, and oftener,
    where one is chosen.
    """

    values: list[Tensor]
    owned: list[bool]

    def choices(self, kind: Kind, beside: Tensor | None) -> list[int]:
        found = [n for n in range(len(self.values)) if self._fits(n, kind, beside)]
        return [*found[:-3:-1], *found[:-3:-1], *found[::-1]]

    def _fits(self, index: int, kind: Kind, beside: Tensor | None) -> bool:
        value = self.values[index]
        is_float = value.dtype.is_floating_point
        fits = {
            "any": True,
            "float": is_float,
            "whole": not is_float,
            "bool": value.dtype is torch.bool,
            "own": self.owned[index],
        }[kind]
        return fits and (beside is None or _broadcasts(value.shape, beside.shape))


def _broadcasts(first: Sequence[int], second: Sequence[int]) -> bool:
    pairs = zip(reversed(first), reversed(second), strict=False)
    return all(a == b or 1 in (a, b) for a, b in pairs)


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """Programs that run: a step that torch refuses for its operands is left out."""
    inputs = draw(_inputs())
    generator = torch.Generator().manual_seed(0)
    pool = _Pool([item.tensor(generator) for item in inputs], [False] * len(inputs))
    steps: list[Step] = []
    wanted = draw(st.sampled_from((6, 4, 5, 7, 8, 9, 10, 11, 12, 3, 2)))
    for _ in range(3 * wanted):
        step = draw(_steps(pool))
        if step is not None:
            steps.append(step)
        if len(steps) == wanted:
            break
    assume(len(steps) > 1)
    first, count = len(inputs), len(pool.values)
    read = {index for step in steps for index in step.operands}
    others = draw(st.lists(st.integers(first, count - 1), max_size=2))
    unread = [index for index in range(first, count) if index not in read]
    return Program(inputs, tuple(steps), tuple(dict.fromkeys((*unread, *others))))


@st.composite
def _inputs(draw: st.DrawFn) -> tuple[Input, ...]:
    rank = draw(st.sampled_from((2, 1, 3, 2, 3, 4)))
    leading = [draw(st.sampled_from(ROWS)) for _ in range(rank - 1)]
    if leading and draw(st.integers(0, 15)) == 15:
        leading[0] = 0
    shape = (*leading, draw(st.sampled_from(COLUMNS)))
    found = []
    for number in range(draw(st.integers(1, 4))):
        own = shape
        if number:
            own = tuple(1 if draw(st.integers(0, 4)) == 4 else n for n in shape)
            own = own[draw(st.sampled_from((0, 0, 0, *range(len(shape))))) :]
        dtype = draw(st.sampled_from((*DTYPES[:3], *DTYPES[:2], *DTYPES)))
        layout = draw(st.sampled_from(("contiguous", *LAYOUTS)))
        found.append(Input(own, dtype, layout, draw(st.sampled_from(SCALES))))
    return tuple(found)


@st.composite
def _steps(draw: st.DrawFn, pool: _Pool) -> Step | None:
    name = draw(st.sampled_from(_NAMES))
    operation = OPERATIONS[name]
    operands: list[int] = []
    for kind in operation.kinds:
        beside = pool.values[operands[-1]] if operands else None
        choices = pool.choices(kind, beside)
        if not choices:
            return None
        operands.append(draw(st.sampled_from(choices)))
    options = tuple(draw(st.sampled_from(choice)) for choice in operation.options)
    step = Step(name, tuple(operands), options)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a variance of one element
            result = step.run(pool.values)
    except (RuntimeError, IndexError, TypeError, ValueError):
        return None
    if result.numel() > MOST_ELEMENTS:
        return None
    first = pool.owned[operands[0]]
    pool.values.append(result)
    pool.owned.append(first if operation.is_view or operation.kinds[0] == "own" else True)
    return step
