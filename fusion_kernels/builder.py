"""Builds a region statement by statement: names values, promotes dtypes, refuses what has no
expression.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Sequence
from dataclasses import replace

from fusion_kernels.ir import FLOATING, Input, Operand, Output, Region, Statement

_COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")
_ALWAYS_FLOATING = ("exp", "log", "sqrt", "rsqrt", "erf", "tanh", "sigmoid", "sin", "cos", "div")

_ARITHMETIC = ("add", "sub", "mul", "neg", "abs", "floor", "ceil")
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
        self._row_rank = 0
        self.result_dtype = "float32"

    def input(
        self, hint: str, dtype: str, shape: Sequence[int], stride: Sequence[int], rank: int
    ) -> str:
        """Declare a tensor the region reads (see `Input`); returns its name."""
        if dtype not in _SUPPORTED:
            raise NotLowered(f"{dtype} tensors have no kernel expression")
        name = self._fresh(hint)
        self._inputs.append(Input(name, dtype, tuple(shape), tuple(stride), rank))
        self._dtypes[name] = "float32" if dtype in FLOATING else dtype
        return name

    def at(self, origin: str, hint: str, result_dtype: str) -> None:
        """The statements that follow come from graph node `origin`, whose result has
        `result_dtype`.
        """
        if result_dtype not in _SUPPORTED:
            raise NotLowered(f"{result_dtype} tensors have no kernel expression")
        self._origin, self._hint, self.result_dtype = origin, hint, result_dtype

    def apply(self, op: str, *args: Operand, hint: str = "") -> str:
        """Append `op(args)` with operands promoted to one dtype; returns the result's name."""
        operands = tuple(args)
        if op == "where":
            dtype, branches = self._promoted(op, operands[1:])
            operands = (operands[0], *branches)
        else:
            dtype, operands = self._promoted(op, operands)
        return self._append(op, operands, "bool" if op in _COMPARISONS else dtype, hint)

    def cast(self, value: Operand, dtype: str) -> str:
        """The user's cast: a floating value is rounded through `dtype` and stays float32."""
        if dtype not in _SUPPORTED:
            raise NotLowered(f"a cast to {dtype} has no kernel expression")
        result = "float32" if dtype in FLOATING else dtype
        if dtype == "float32" and self.dtype_of(value) == "float32":
            return str(value)
        return self._append("cast", (value, dtype), result, "")

    def floating(self, value: Operand) -> Operand:
        """`value` as float32: literals become floats, integers and booleans are converted."""
        if value is None:
            return None
        if not isinstance(value, str):
            return float(value)
        if self._dtypes[value] == "float32":
            return value
        return self._append("cast", (value, "float32"), "float32", "")

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
        """Give the value that the current graph node results in the node's own name."""
        last = self._body[-1] if self._body else None
        if last is None or last.name != value or last.origin != self._origin:
            return value
        name = self._fresh(self._hint)
        self._body[-1] = replace(last, name=name)
        self._dtypes[name] = self._dtypes.pop(value)
        return name

    def row_over(self, rank: int) -> None:
        """Declare that the last `rank` dimensions form a row; one region has one kind of row."""
        if self._row_rank not in (0, rank):
            raise NotLowered("two reductions over different dimensions in one region")
        self._row_rank = rank

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
            self._row_rank,
            tuple(item for item in self._inputs if item.name in needed),
            tuple(reversed(body)),
            tuple(outputs),
        )

    def _promoted(self, op: str, args: tuple[Operand, ...]) -> tuple[str, tuple[Operand, ...]]:
        tensors = [self._dtypes[arg] for arg in args if isinstance(arg, str)]
        literal_floats = any(isinstance(arg, float) for arg in args)
        if "float32" in tensors or literal_floats or op in _ALWAYS_FLOATING:
            return "float32", tuple(self.floating(arg) for arg in args)
        for dtype in ("int64", "int32", "bool"):
            if dtype in tensors:
                if dtype == "bool" and op in _ARITHMETIC:
                    raise NotLowered(f"{op} of booleans has no kernel expression")
                return dtype, tuple(self._integer(arg, dtype) for arg in args)
        raise NotLowered(f"{op} of literals only")

    def _integer(self, value: Operand, dtype: str) -> Operand:
        if not isinstance(value, str) or self._dtypes[value] == dtype:
            return value
        return self._append("cast", (value, dtype), dtype, "")

    def _append(self, op: str, args: tuple[Operand, ...], dtype: str, hint: str) -> str:
        name = self._fresh(hint or f"{self._hint}_part")
        self._body.append(Statement(name, op, args, dtype, self._origin))
        self._dtypes[name] = dtype
        return name

    def _fresh(self, hint: str) -> str:
        """A readable name without the capture's numbering, so that equal places give equal
        regions.
        """
        base = re.sub(r"(_\d+)+$", "", hint).strip("_") or "value"
        name, number = base, 1
        while name in self._dtypes or name in _RESERVED:
            number += 1
            name = f"{base}_{number}"
        return name


_TEMPLATE_NAMES = (
    "tl torch triton row rows cols mask row_mask col_mask offsets shape n_rows n_cols n_elements "
    "erf tanh grid mean centered variance"
)
_RESERVED = frozenset((*keyword.kwlist, *_TEMPLATE_NAMES.split()))
