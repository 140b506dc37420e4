"""A read-only view of a captured program for analysis: operators with their tensors, module path
and source line.

The view holds no torch object: dtypes and devices are strings, shapes are tuples, so that cost,
coverage and reports can be computed, compared and saved without the model. `planner.graph.view`
makes it from a program.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

BYTES_PER_ELEMENT = {
    "bool": 1,
    "uint8": 1,
    "int8": 1,
    "int16": 2,
    "uint16": 2,
    "int32": 4,
    "uint32": 4,
    "int64": 8,
    "uint64": 8,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float64": 8,
    "complex64": 8,
    "complex128": 16,
}


@dataclass(frozen=True, slots=True)
class TensorMeta:
    """What is known of a tensor without its data.

    `shape` and `stride` count elements; `dtype` is torch's name without the prefix ("bfloat16");
    `device` is torch's ("cuda:0").
    """

    shape: tuple[int, ...]
    dtype: str
    stride: tuple[int, ...]
    device: str

    @property
    def numel(self) -> int:
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the elements the tensor addresses at least once: an expanded dimension counts
        once.
        """
        distinct = prod(n for n, s in zip(self.shape, self.stride, strict=True) if s != 0)
        return (distinct if self.numel else 0) * BYTES_PER_ELEMENT[self.dtype]

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True)
class SourceLine:
    """A line of the user's code: `file` is relative to its package root or the working
    directory.
    """

    file: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class OpKey:
    """What one row of a ranking stands for: an operator, the shapes and the dtypes of its tensor
    inputs.
    """

    op: str
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class OpNode:
    """One operator call of the captured graph.

    `op` is the full overload name ("aten.gelu.default"). `args` and `kwargs` are the call's
    arguments with every tensor replaced by its `TensorMeta`, lists by tuples, dtypes and devices
    by their names. `inputs` are the tensor arguments in order, `outputs` the tensors returned.
    `module_path` is the fully qualified name of the innermost user module ("" is the root),
    `module_type` its class name.
    """

    name: str
    op: str
    args: tuple[object, ...]
    kwargs: dict[str, object]
    inputs: tuple[TensorMeta, ...]
    outputs: tuple[TensorMeta, ...]
    module_path: str
    module_type: str
    source: SourceLine | None
    users: tuple[str, ...]

    @property
    def key(self) -> OpKey:
        return OpKey(
            self.op,
            tuple(meta.shape for meta in self.inputs),
            tuple(meta.dtype for meta in self.inputs),
        )

    def arg(self, position: int, name: str, default: object = None) -> object:
        """The argument at `position`, or the keyword `name`, or `default`."""
        if position < len(self.args):
            return self.args[position]
        return self.kwargs.get(name, default)


@dataclass(frozen=True, slots=True)
class OpGraph:
    """The operators of one captured program in execution order."""

    nodes: tuple[OpNode, ...]

    def __iter__(self) -> Iterator[OpNode]:
        return iter(self.nodes)

    def __len__(self) -> int:
        return len(self.nodes)

    def without(self, other: OpGraph) -> OpGraph:
        """The nodes whose names `other` does not have."""
        there = {node.name for node in other}
        return OpGraph(tuple(node for node in self.nodes if node.name not in there))

    def by_key(self) -> dict[OpKey, tuple[OpNode, ...]]:
        """Nodes grouped by operator, shapes and dtypes, in order of first appearance."""
        groups: dict[OpKey, list[OpNode]] = {}
        for node in self.nodes:
            groups.setdefault(node.key, []).append(node)
        return {key: tuple(nodes) for key, nodes in groups.items()}
