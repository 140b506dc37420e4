"""The module a user gets back: same call, same outputs, same state_dict keys, running the fused
program.

It shares parameters with the user's module as torch.compile's wrapper does; buffers that the
forward changes are its own. Whenever the captured program does not apply - other shapes, dtypes,
devices or strides, training mode, gradients - it runs the original program, says so once, and
counts it in `fallbacks`.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import ExportGraphSignature, InputKind, OutputKind
from torch.utils import _pytree as pytree

from planner.report.model import Report

_Target = Callable[[Sequence[Any]], Tensor]


class FusedModule(nn.Module):
    """Runs the fused program where its guards hold, the original elsewhere.

    `report` and `plan` tell what was done; `fallbacks` counts calls that ran the original.
    """

    report: Report
    plan: Any
    _twin: Any

    def __init__(self, twin: nn.Module, program: ExportedProgram | None) -> None:
        super().__init__()
        # Not registered: the twin's own parameters and children stand in its place, under their
        # names.
        self.__dict__["_twin"] = twin
        self._parameters = twin._parameters
        self._buffers = twin._buffers
        self._modules = twin._modules
        self._non_persistent_buffers_set = twin._non_persistent_buffers_set
        self.training = twin.training
        self.fallbacks = 0
        self._warned = False
        self._program = None if program is None else _Program(twin, program)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self._program is None:
            return self._twin(*args, **kwargs)
        leaves = None if self.training else self._program.leaves(args, kwargs)
        if leaves is None:
            return self._fall_back(args, kwargs)
        return self._program.run(leaves)

    @property
    def fused(self) -> bool:
        """Whether a fused program is there to run; if not, the original won or nothing was
        found.
        """
        return self._program is not None

    @property
    def code(self) -> str:
        """The fused program as Python text; "" when there is none."""
        return "" if self._program is None else self._program.code

    def train(self, mode: bool = True) -> FusedModule:
        self._twin.training = mode
        super().train(mode)
        return self

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> FusedModule:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if self._program is not None:
            self._program.apply(fn)
        return self

    def _fall_back(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.fallbacks += 1
        if not self._warned:
            self._warned = True
            program = self._program
            assert program is not None
            reason = "it is in training mode" if self.training else program.refusal(args, kwargs)
            warnings.warn(
                f"fuseplan runs the original program: {reason}. Further such calls are only "
                "counted, in `.fallbacks`.",
                stacklevel=3,
            )
        return self._twin(*args, **kwargs)


class _Program:
    """The fused graph with its weights' places, its guards, and the shape of its outputs."""

    def __init__(self, twin: nn.Module, program: ExportedProgram) -> None:
        self._module = program.graph_module
        self._signature = program.graph_signature
        self._slots = [_slot(twin, spec) for spec in _weights(self._signature)]
        self._constants = [
            program.constants[str(spec.target)] for spec in _constants(self._signature)
        ]
        self._mutations = _mutations(twin, self._signature)
        in_spec, out_spec = program.call_spec.in_spec, program.call_spec.out_spec
        assert in_spec is not None
        assert out_spec is not None
        self._out_spec = out_spec
        args, kwargs = program.example_inputs or ((), {})
        self._call = _Call(twin, args, kwargs)
        self._expected = [_meta(leaf) for leaf in pytree.tree_leaves((args, kwargs))]
        self._seen: list[Tensor] = []
        self._weight_metas = [_meta(owner[key]) for owner, key in self._slots]
        _require_order(self._signature)

    @property
    def code(self) -> str:
        return str(self._module.code)

    def leaves(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any] | None:
        """The call's tensors in the program's order, or None when a guard does not hold."""
        leaves = self._call.leaves(args, kwargs)
        if leaves is None or not self._accepts(leaves) or not self._weights_as_captured():
            return None
        return leaves

    def refusal(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """The guard that does not hold, in words."""
        leaves = self._call.leaves(args, kwargs)
        if leaves is None or len(leaves) != len(self._expected):
            return "the call has other arguments than the captured one"
        for leaf, expected in zip(leaves, self._expected, strict=True):
            if _meta(leaf) != expected:
                return f"an input is {_describe(_meta(leaf))}, captured was {_describe(expected)}"
            if isinstance(leaf, Tensor) and leaf.requires_grad and torch.is_grad_enabled():
                return "an input requires grad"
        return "a parameter has changed its shape, dtype, device or layout"

    def run(self, leaves: Sequence[Any]) -> Any:
        weights = [owner[key] for owner, key in self._slots]
        with torch._C._AutoDispatchBelowAutograd():
            values = self._module(*weights, *self._constants, *leaves)
            results = []
            for value, target in zip(values, self._mutations, strict=True):
                if target is None:
                    results.append(value)
                else:
                    target(leaves).copy_(value)
        return pytree.tree_unflatten(results, self._out_spec)

    def apply(self, fn: Callable[[Tensor], Tensor]) -> None:
        """Move the program's own constants along with the module."""
        self._constants = [fn(value) for value in self._constants]

    def _accepts(self, leaves: Sequence[Any]) -> bool:
        if len(leaves) != len(self._expected):
            return False
        grad = torch.is_grad_enabled()
        for leaf, expected in zip(leaves, self._expected, strict=True):
            if isinstance(leaf, Tensor):
                if grad and leaf.requires_grad:
                    return False
                if (leaf.shape, leaf.dtype, leaf.device, leaf.stride()) != expected:
                    return False
            elif leaf is not expected and leaf != expected:
                return False
        return True

    def _weights_as_captured(self) -> bool:
        """Whether the weights are those seen before, or new ones with the captured metadata."""
        current = [owner[key] for owner, key in self._slots]
        if self._unchanged(current):
            return True
        if [_meta(weight) for weight in current] != self._weight_metas:
            return False
        self._seen = current
        return True

    def _unchanged(self, current: list[Tensor]) -> bool:
        """`.to` changes all parameters in place: the first one tells."""
        if len(current) != len(self._seen) or not all(map(_is, current, self._seen)):
            return False
        firsts = zip(current[:1], self._weight_metas[:1], strict=True)
        return all(t.dtype is meta[1] and t.device == meta[2] for t, meta in firsts)


class _Call:
    """Turns a call into the captured order of leaves, whichever way its arguments are written."""

    def __init__(self, twin: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        self._count, self._names = len(args), tuple(kwargs)
        self._plain = all(
            isinstance(leaf, Tensor) or leaf is None for leaf in (*args, *kwargs.values())
        )
        self._spec = pytree.tree_structure((tuple(args), dict(kwargs)))
        try:
            self._signature: inspect.Signature | None = inspect.signature(twin.forward)
        except (TypeError, ValueError):
            self._signature = None
        self._captured = self._bound(tuple(args), dict(kwargs))

    def leaves(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any] | None:
        if self._plain and len(args) == self._count and tuple(kwargs) == self._names:
            given = [*args, *kwargs.values()]
            return [leaf for leaf in given if leaf is not None]
        leaves, spec = pytree.tree_flatten((args, kwargs))
        if spec == self._spec:
            return leaves
        return self._reordered(args, kwargs)

    def _reordered(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any] | None:
        given = self._bound(args, kwargs)
        if given is None or self._captured is None or given.keys() != self._captured.keys():
            return None
        ordered = [given[name] for name in self._captured]
        spec = pytree.tree_structure(list(self._captured.values()))
        leaves, actual = pytree.tree_flatten(ordered)
        return leaves if actual == spec else None

    def _bound(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any] | None:
        """Arguments by parameter name, those equal to their default left out, in captured
        order.
        """
        if self._signature is None:
            return None
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError:
            return None
        found: dict[str, Any] = {}
        for name, value in bound.arguments.items():
            kind = self._signature.parameters[name].kind
            if kind is inspect.Parameter.VAR_KEYWORD:
                found.update(value)
            elif kind is inspect.Parameter.VAR_POSITIONAL:
                found.update({f"{name}[{i}]": item for i, item in enumerate(value)})
            else:
                found[name] = value
        defaults = {name: p.default for name, p in self._signature.parameters.items()}
        kept = {n: v for n, v in found.items() if not (n in defaults and v is defaults[n])}
        positional = list(kept)[: self._count]
        order = [*positional, *(name for name in self._names if name in kept)]
        order += [name for name in kept if name not in order]
        return {name: kept[name] for name in order}


def _is(a: object, b: object) -> bool:
    return a is b


def _meta(value: Any) -> Any:
    if isinstance(value, Tensor):
        return (value.shape, value.dtype, value.device, value.stride())
    return value


def _describe(meta: Any) -> str:
    if not isinstance(meta, tuple) or len(meta) != 4:
        return repr(meta)
    shape, dtype, device, stride = meta
    return f"{str(dtype).removeprefix('torch.')}{list(shape)} on {device} with strides {stride}"


def _weights(signature: ExportGraphSignature) -> list[Any]:
    kinds = (InputKind.PARAMETER, InputKind.BUFFER)
    return [spec for spec in signature.input_specs if spec.kind in kinds]


def _constants(signature: ExportGraphSignature) -> list[Any]:
    return [s for s in signature.input_specs if s.kind is InputKind.CONSTANT_TENSOR]


def _require_order(signature: ExportGraphSignature) -> None:
    """Weights, then constants, then inputs: the order in which `run` passes them."""
    order = {InputKind.PARAMETER: 0, InputKind.BUFFER: 0, InputKind.CONSTANT_TENSOR: 1}
    ranks = [order.get(spec.kind, 2) for spec in signature.input_specs]
    assert ranks == sorted(ranks), "weights, constants and inputs must come in this order"


def _slot(twin: nn.Module, spec: Any) -> tuple[dict[str, Any], str]:
    """Where a weight lives: the owner's dictionary and its key, so that a replaced one is seen."""
    path, _, key = str(spec.target).rpartition(".")
    owner = twin.get_submodule(path)
    return (owner._parameters if key in owner._parameters else owner._buffers), key


def _mutations(twin: nn.Module, signature: ExportGraphSignature) -> list[_Target | None]:
    """For each output of the graph where it is written back to, None for the user's outputs."""
    inputs = [s for s in signature.input_specs if s.kind is InputKind.USER_INPUT]
    names = [getattr(spec.arg, "name", None) for spec in inputs]
    targets: list[_Target | None] = []
    for spec in signature.output_specs:
        if spec.kind is OutputKind.USER_OUTPUT:
            targets.append(None)
        elif spec.kind is OutputKind.USER_INPUT_MUTATION:
            targets.append(_input(names.index(str(spec.target))))
        else:
            targets.append(_weight(*_slot(twin, spec)))
    return targets


def _input(position: int) -> _Target:
    def find(leaves: Sequence[Any]) -> Tensor:
        leaf: Tensor = leaves[position]
        return leaf

    return find


def _weight(owner: dict[str, Any], key: str) -> _Target:
    def find(_: Sequence[Any]) -> Tensor:
        weight: Tensor = owner[key]
        return weight

    return find
