"""Builds a region statement by statement: names values, promotes dtypes, refuses what has no
expression.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Sequence
from dataclasses import replace
from math import prod

from fusion_kernels.ir import FLOATING, Input, Operand, Output, Region, Statement, Window

_COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")
_ALWAYS_FLOATING = (
    *("exp", "log", "sqrt", "rsqrt", "erf", "tanh", "sigmoid", "sin", "cos", "div"),
    *("row_mean", "layer_norm"),
)
_ARITHMETIC = ("add", "sub", "mul", "neg", "abs")
_LONGEST_NAME = 24
_LARGEST_FLOAT32 = (2 - 2**-23) * 2.0**127
_SUPPORTED = (*FLOATING, "int32", "int64", "bool")


class NotLowered(Exception):
    """A graph node that a region cannot express; the message is the reason shown to the user."""


class Builder:
    """Collects the statements of one region. Floating values are float32 whatever their
    storage.
    """

    def __init__(self) -> None:
        self._inputs: list[Input] = []
        self._body: list[Statement] = []
        self._dtypes: dict[str, str] = {}
        self._origin = ""
        self._hint = ""
        self.row_rank = 0
        self.result_dtype = "float32"
        self.operand_shape: tuple[int, ...] = ()

    def input(
        self,
        hint: str,
        dtype: str,
        shape: Sequence[int],
        stride: Sequence[int],
        rank: int,
        window: Window | None = None,
    ) -> str:
        """Declare a tensor the region reads (see `Input`); returns its name."""
        if dtype not in _SUPPORTED:
            raise NotLowered(f"{dtype} tensors have no kernel expression")
        name = self._fresh(hint)
        self._inputs.append(Input(name, dtype, tuple(shape), tuple(stride), rank, window))
        self._dtypes[name] = "float32" if dtype in FLOATING else dtype
        return name

    def at(
        self, origin: str, hint: str, result_dtype: str, operand_shape: Sequence[int] = ()
    ) -> None:
        """The statements that follow come from graph node `origin`, whose result has
        `result_dtype` and whose first operand has `operand_shape`.
        """
        if result_dtype not in _SUPPORTED:
            raise NotLowered(f"{result_dtype} tensors have no kernel expression")
        self._origin, self._hint, self.result_dtype = origin, hint, result_dtype
        self.operand_shape = tuple(operand_shape)

    def apply(self, op: str, *args: Operand, hint: str = "") -> str:
        """Append `op(args)` with operands promoted to one dtype; returns the result's name."""
        operands = tuple(args)
        if op == "where":
            dtype = self._common(operands[1:])
            branches = (self._converted(operand, dtype) for operand in operands[1:])
            operands = (operands[0], *branches)
        else:
            dtype, operands = self._promoted(op, operands)
        return self._append(op, operands, "bool" if op in _COMPARISONS else dtype, hint)

    def cast(self, value: Operand, dtype: str) -> str:
        """The user's cast: a floating value is rounded through `dtype` and stays float32."""
        if dtype not in _SUPPORTED:
            raise NotLowered(f"a cast to {dtype} has no kernel expression")
        if dtype not in FLOATING:
            return str(self._converted(value, dtype))
        widened = str(self.floating(value))
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

    def copy(self, value: Operand) -> str:
        """A value that is itself: nothing to compute."""
        return str(value)

    def zero_like(self, value: Operand) -> Operand:
        """The literal zero of the value's dtype."""
        return 0.0 if self.dtype_of(value) == "float32" else 0

    def dtype_of(self, value: Operand) -> str:
        """Compute dtype of a value or literal."""
        if isinstance(value, str):
            return self._dtypes[value]
        if isinstance(value, bool):
            return "bool"
        return "float32" if isinstance(value, float) else "int64"

    def name_result(self, value: str) -> str:
        """Give the value that the current graph node results in the node's own name.

        It is brought to the node's dtype where promotion inside the region found another: a
        tensor without dimensions does not widen integers in eager, for one.
        """
        wanted = "float32" if self.result_dtype in FLOATING else self.result_dtype
        value = str(self._converted(value, wanted))
        last = self._body[-1] if self._body else None
        if last is None or last.name != value or last.origin != self._origin:
            return value
        name = self._fresh(self._hint)
        self._body[-1] = replace(last, name=name)
        self._dtypes[name] = self._dtypes.pop(value)
        return name

    def row_over(self, rank: int) -> None:
        """Declare that the last `rank` dimensions form a row; one region has one kind of row."""
        if self.row_rank not in (0, rank):
            raise NotLowered("two reductions over different dimensions in one region")
        self.row_rank = rank

    @property
    def row_length(self) -> int:
        """Elements of the current operand's row."""
        return prod(self.operand_shape[len(self.operand_shape) - self.row_rank :])

    def finish(self, name: str, shape: Sequence[int], outputs: Sequence[Output]) -> Region:
        """The region, with statements nothing reads left out."""
        needed = {output.value for output in outputs}
        body: list[Statement] = []
        for item in reversed(self._body):
            if item.name in needed:
                needed.update(arg for arg in item.args if isinstance(arg, str))
                body.append(item)
        return Region(
            name,
            tuple(shape),
            self.row_rank,
            tuple(item for item in self._inputs if item.name in needed),
            tuple(reversed(body)),
            tuple(outputs),
        )

    def _promoted(self, op: str, args: tuple[Operand, ...]) -> tuple[str, tuple[Operand, ...]]:
        if not any(isinstance(arg, str) for arg in args):
            raise NotLowered(f"{op} of numbers alone has no kernel expression")
        dtype = self._common(args)
        if dtype == "float32" or op in _ALWAYS_FLOATING:
            return "float32", tuple(self.floating(arg) for arg in args)
        if dtype == "bool" and op in _ARITHMETIC:
            raise NotLowered(f"{op} of booleans has no kernel expression")
        return dtype, tuple(self._converted(arg, dtype) for arg in args)

    def _common(self, args: tuple[Operand, ...]) -> str:
        """The widest kind of the operands; of tensors of that kind the widest integer."""
        kinds = [self.dtype_of(arg) for arg in args if arg is not None]
        if "float32" in kinds:
            return "float32"
        tensors = [self._dtypes[arg] for arg in args if isinstance(arg, str)]
        for dtype in ("int64", "int32"):
            if dtype in tensors:
                return dtype
        return "int64" if "int64" in kinds else "bool"

    def _converted(self, value: Operand, dtype: str) -> Operand:
        """A tensor cast to `dtype`, a literal as Python's number of that kind."""
        if isinstance(value, str):
            if self._dtypes[value] == dtype:
                return value
            return self._append("cast", (value, dtype), dtype, "")
        if value is None or dtype == "float32":
            return self.floating(value)
        return bool(value) if dtype == "bool" else int(value)

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


# What the text of a kernel or its launcher calls its own.
_TEMPLATE_NAMES = (
    "tl torch triton row rows cols mask row_mask col_mask offsets shape n_rows n_cols n_elements "
    "erf tanh grid start mean centered variance out max float tuple BLOCK_SIZE ROWS NUM_WARPS"
)
# Names made of others: pointers, strides, sizes, indices.
_PARAMETER = re.compile(
    r"_ptr$|_stride$|_offsets$|^out_|^n$|^i\d*$|_kernel$|_total$"
    r"|_(mean|deviation|rest|centered|square|variance|padded|factor|normed|scaled)$"
)
_RESERVED = frozenset((*keyword.kwlist, *_TEMPLATE_NAMES.split()))
