"""Builds a region statement by statement: names values, promotes dtypes, refuses what has no
expression.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any

import torch

from fusion_kernels.functions.float8 import DECODERS, ENCODERS
from fusion_kernels.functions.table import FUNCTION_NAMES
from fusion_kernels.ir import FLOAT8, FLOATING, Input, Operand, Output, Region, Statement, Window

Lowering = Callable[..., str]
Value = Any  # the name of a value in the region, or a Python literal

INTEGER_BITS = {"uint8": 8, "int8": 8, "int16": 16, "int32": 32, "int64": 64}
_TRUTHS = ("lt", "le", "gt", "ge", "eq", "ne", "signbit")
_ALWAYS_FLOATING = (
    *("exp", "exp2", "log", "log2", "sqrt", "rsqrt", "erf", "tanh", "sigmoid", "sin", "cos"),
    *("div", "signbit", "row_mean", "layer_norm"),
    *(name for name in FUNCTION_NAMES if name not in ("int_power", "gcd")),
)
_ARITHMETIC = ("add", "sub", "mul", "neg", "abs", "idiv", "rem", "shl", "shr", "int_power", "gcd")
_WRAPPING = ("add", "sub", "mul", "and", "or", "xor")
_LONGEST_NAME = 24
_LARGEST_FLOAT32 = (2 - 2**-23) * 2.0**127
_SUPPORTED = (*FLOATING, *FLOAT8, *INTEGER_BITS, "bool")


class NotLowered(Exception):
    """A graph node that a region cannot express; the message is the reason shown to the user."""


def dtype_refusal(dtype: str) -> str:
    """Why a region holds no tensor of this dtype ("float64"); "" where it does."""
    if dtype in _SUPPORTED:
        return ""
    if dtype == "float64":
        return "float64 tensors are left to eager: kernels compute in float32"
    return f"{dtype} tensors have no kernel expression"


class Builder:
    """Collects the statements of one region. Floating values are float32 whatever their
    storage; 8-bit ones are decoded where they are first read.
    """

    def __init__(self, row_rank: int = 0, row_length: int = 1) -> None:
        """The last `row_rank` dimensions form a row, of `row_length` elements."""
        self._inputs: list[Input] = []
        self._body: list[Statement] = []
        self._dtypes: dict[str, str] = {}
        self._decoded: dict[str, str] = {}
        self._origin = ""
        self._hint = ""
        self.row_rank, self.row_length = row_rank, row_length
        self.result_dtype = "float32"

    def __contains__(self, name: str) -> bool:
        return name in self._dtypes

    def input(
        self,
        hint: str,
        dtype: str,
        shape: Sequence[int],
        stride: Sequence[int],
        rank: int,
        window: Window | None = None,
        *,
        table: bool = False,
    ) -> str:
        """Declare a tensor the region reads (see `Input`); returns its name."""
        _require_supported(dtype)
        name = self._fresh(hint)
        self._inputs.append(Input(name, dtype, tuple(shape), tuple(stride), rank, window, table))
        self._dtypes[name] = dtype if dtype in FLOAT8 else _compute_dtype(dtype)
        return name

    def at(self, origin: str, hint: str, result_dtype: str) -> None:
        """The statements that follow come from graph node `origin`, whose result has
        `result_dtype`.
        """
        _require_supported(result_dtype)
        self._origin, self._hint, self.result_dtype = origin, hint, result_dtype

    def apply(self, op: str, *args: Operand, hint: str = "") -> str:
        """Append `op(args)` with operands promoted to one dtype; returns the result's name."""
        operands = tuple(args)
        if op == "where":
            dtype = self._common(operands[1:])
            branches = (self._converted(operand, dtype) for operand in operands[1:])
            operands = (operands[0], *branches)
        else:
            dtype, operands = self._promoted(op, operands)
        if op in FUNCTION_NAMES:
            operands = tuple(
                self.full(arg, dtype) if isinstance(arg, int | float) else arg for arg in operands
            )
        return self._append(op, operands, "bool" if op in _TRUTHS else dtype, hint)

    def cast(self, value: Operand, dtype: str) -> str:
        """The user's cast: a floating value is rounded through `dtype` and stays float32."""
        _require_supported(dtype)
        if dtype not in (*FLOATING, *FLOAT8):
            return str(self._converted(value, dtype))
        widened = str(self.floating(value))
        if dtype in FLOAT8:
            code = self._append(ENCODERS[dtype], (widened,), "uint8", "")
            return self._append(DECODERS[dtype], (code,), "float32", "")
        if dtype == "float32":
            return widened
        return self._append("cast", (widened, dtype), "float32", "")

    def floating(self, value: Operand) -> Operand:
        """`value` as float32: literals become floats, integers and booleans are converted."""
        if value is None:
            return None
        if not isinstance(value, str):
            if _LARGEST_FLOAT32 < abs(value) < float("inf"):
                raise NotLowered(f"the number {value} is beyond float32")
            return float(value)
        if self._dtypes[value] == "float32":
            return value
        if self._dtypes[value] in FLOAT8:
            return self._read(value)
        return self._append("cast", (value, "float32"), "float32", "")

    def cat(self, dim: int, start: int, pieces: Sequence[tuple[str, int]]) -> str:
        """The pieces, each with the index of the region where it ends, beside one another from
        `start` on.
        """
        dtype = self._common(tuple(value for value, _ in pieces))
        args: list[Operand] = [dim, start]
        for value, end in pieces:
            args += [self._converted(value, dtype), end]
        return self._append("cat", tuple(args), dtype, "")

    def gather(self, table: str, index: str) -> str:
        """The table's element at the position in `index`."""
        return self._append("gather", (table, index), self._dtypes[table], "")

    def copy(self, value: Operand) -> str:
        """A value that is itself: nothing to compute."""
        return str(value)

    def full(self, value: float, dtype: str | None = None) -> str:
        """A number everywhere, in `dtype` (default: the result's)."""
        kept = dtype or self.result_dtype
        wanted = _compute_dtype(kept)
        return self._append("full", (self._converted(value, wanted),), wanted, "")

    def full_of(self, value: Operand, number: float, dtype: str | None = None) -> str:
        """A number everywhere, in the dtype of `value` or in `dtype`."""
        return self.full(number, dtype or self.dtype_of(value))

    def zero_like(self, value: Operand) -> Operand:
        """The literal zero of the value's dtype."""
        return 0.0 if self.dtype_of(value) == "float32" else 0

    def dtype_of(self, value: Operand) -> str:
        """Compute dtype of a value or literal."""
        if isinstance(value, str):
            return _compute_dtype(self._dtypes[value])
        if isinstance(value, bool):
            return "bool"
        return "float32" if isinstance(value, float) else "int64"

    def name_result(self, value: str) -> str:
        """Give the value that the current graph node results in the node's own name.

        It is brought to the node's dtype where promotion inside the region found another: a
        tensor without dimensions does not widen integers in eager, for one.
        """
        value = self.as_result(value)
        last = self._body[-1] if self._body else None
        if last is None or last.name != value or last.origin != self._origin:
            return value
        name = self._fresh(self._hint)
        self._body[-1] = replace(last, name=name)
        self._dtypes[name] = self._dtypes.pop(value)
        self._decoded = {x: name if y == value else y for x, y in self._decoded.items()}
        return name

    def as_result(self, value: str) -> str:
        """The value brought to the compute dtype of `result_dtype`."""
        return str(self._converted(value, _compute_dtype(self.result_dtype)))

    def finish(self, name: str, shape: Sequence[int], outputs: Sequence[Output]) -> Region:
        """The region, with statements nothing reads left out. Inputs stay: also one whose values
        decide nothing tells the sizes and the device.
        """
        stored = [self._stored(output) for output in outputs]
        needed = {output.value for output in stored}
        body: list[Statement] = []
        for item in reversed(self._body):
            if item.name in needed:
                needed.update(arg for arg in item.args if isinstance(arg, str))
                body.append(item)
        return Region(
            name,
            tuple(shape),
            self.row_rank,
            tuple(self._inputs),
            tuple(reversed(body)),
            tuple(stored),
        )

    def _promoted(self, op: str, args: tuple[Operand, ...]) -> tuple[str, tuple[Operand, ...]]:
        if not any(isinstance(arg, str) for arg in args):
            raise NotLowered(f"{op} of numbers alone has no kernel expression")
        dtype = self._common(args)
        if dtype == "float32" or op in _ALWAYS_FLOATING:
            return "float32", tuple(self.floating(arg) for arg in args)
        if dtype == "bool" and op in _ARITHMETIC:
            raise NotLowered(f"{op} of booleans has no kernel expression")
        wrapped = (_wrapped(arg, dtype) if op in _WRAPPING else arg for arg in args)
        return dtype, tuple(self._converted(arg, dtype) for arg in wrapped)

    def _common(self, args: tuple[Operand, ...]) -> str:
        """The widest kind of the operands; of tensors of that kind the widest integer."""
        kinds = [self.dtype_of(arg) for arg in args if arg is not None]
        if "float32" in kinds:
            return "float32"
        tensors = [self.dtype_of(arg) for arg in args if isinstance(arg, str)]
        widest = reduce(_promoted_dtype, tensors, "bool")
        return "int64" if widest == "bool" and "int64" in kinds else widest

    def _converted(self, value: Operand, dtype: str) -> Operand:
        """A tensor cast to `dtype`, a literal as Python's number of that kind."""
        if isinstance(value, str):
            if self._dtypes[value] in FLOAT8:
                value = self._read(value)
            if self._dtypes[value] == dtype:
                return value
            if self._dtypes[value] == "float32" and dtype in _THROUGH:
                value = self._append("cast", (value, _THROUGH[dtype]), _THROUGH[dtype], "")
            return self._append("cast", (value, dtype), dtype, "")
        if value is None or dtype == "float32":
            return self.floating(value)
        if dtype == "bool":
            return bool(value)
        if value != value or abs(value) == float("inf") or int(value) not in _range(dtype):
            raise NotLowered(f"the number {value} is beyond {dtype}")
        return int(value)

    def _read(self, codes: str) -> str:
        """The values of an input in an 8-bit floating dtype."""
        if codes not in self._decoded:
            decoder = DECODERS[self._dtypes[codes]]
            self._decoded[codes] = self._append(decoder, (codes,), "float32", f"{codes}_value")
        return self._decoded[codes]

    def _stored(self, output: Output) -> Output:
        """An output in an 8-bit floating dtype stores codes."""
        if output.dtype not in FLOAT8:
            return output
        source = next((item for item in self._body if item.name == output.value), None)
        if source is not None and source.op == DECODERS[output.dtype]:
            return replace(output, value=str(source.args[0]))
        value = str(self.floating(output.value))
        code = self._append(ENCODERS[output.dtype], (value,), "uint8", f"{output.value}_code")
        return replace(output, value=code)

    def _append(self, op: str, args: tuple[Operand, ...], dtype: str, hint: str) -> str:
        name = self._fresh(hint or f"{self._hint}_part")
        self._body.append(Statement(name, op, args, dtype, self._origin))
        self._dtypes[name] = dtype
        return name

    def _fresh(self, hint: str) -> str:
        """A readable name without the capture's numbering, so that equal places give equal
        regions.
        """
        base = re.sub(r"(_\d+)+$", "", re.sub(r"\W", "_", hint)).strip("_") or "value"
        while len(base) > _LONGEST_NAME and "_" in base:
            base = base.rpartition("_")[0].rstrip("_")
        base = base[:_LONGEST_NAME] or "value"
        if not base.isidentifier() or _PARAMETER.search(base):
            base = f"value_{base}_"
        name, number = base, 1
        while name in self._dtypes or name in _RESERVED:
            number += 1
            name = f"{base}_{number}"
        return name


def _require_supported(dtype: str) -> None:
    reason = dtype_refusal(dtype)
    if reason:
        raise NotLowered(reason)


def _compute_dtype(dtype: str) -> str:
    return "float32" if dtype in FLOATING or dtype in FLOAT8 else dtype


def _promoted_dtype(first: str, second: str) -> str:
    promoted = torch.promote_types(getattr(torch, first), getattr(torch, second))
    return str(promoted).removeprefix("torch.")


def _range(dtype: str) -> range:
    """The integers of a dtype."""
    bits = INTEGER_BITS[dtype]
    return range(2**bits) if dtype == "uint8" else range(-(2 ** (bits - 1)), 2 ** (bits - 1))


def _wrapped(value: Operand, dtype: str) -> Operand:
    """An integer literal as the dtype's arithmetic sees it, modulo 2**bits."""
    if not isinstance(value, int) or dtype not in INTEGER_BITS:
        return value
    lowest, count = _range(dtype).start, 1 << INTEGER_BITS[dtype]
    return (int(value) - lowest) % count + lowest


# Narrow integers are cut out of wide ones, as C does it: a direct conversion saturates on GPUs.
_THROUGH = {"uint8": "int64", "int8": "int32", "int16": "int32"}

# What the text of a kernel or its launcher calls its own.
_TEMPLATE_NAMES = (
    "tl torch triton row rows cols mask row_mask col_mask offsets shape n_rows n_cols n_elements "
    "erf tanh grid start product mean centered variance out max float tuple BLOCK_SIZE ROWS "
    "NUM_WARPS"
)
# Names made of others: pointers, strides, sizes, indices.
_PARAMETER = re.compile(
    r"_ptr$|_stride$|_offsets$|^out_|^n$|^i\d*$|_kernel$|_total$"
    r"|_(mean|deviation|rest|centered|square|variance|padded|factor|normed|scaled)$"
)
_RESERVED = frozenset((*keyword.kwlist, *_TEMPLATE_NAMES.split(), *FUNCTION_NAMES))
