"""Turns a call into the captured order of its leaves, whichever way its arguments are written."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from torch import nn
from torch.utils import _pytree as pytree


def signature_of(module: nn.Module) -> inspect.Signature | None:
    """The parameters of the module's forward, None where Python cannot tell. A module that stands
    for another has the other's as `call_signature`.
    """
    stated = getattr(module, "call_signature", None)
    if isinstance(stated, inspect.Signature):
        return stated
    try:
        return inspect.signature(module.forward)
    except (TypeError, ValueError):
        return None


class CallForm:
    """The captured call of a forward, whose parameters `signature` tells. `leaves` brings another
    call into its order.
    """

    def __init__(
        self,
        signature: inspect.Signature | None,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> None:
        self._count, self._names = len(args), tuple(kwargs)
        self._plain = all(_is_leaf(value) for value in (*args, *kwargs.values()))
        self._spec = pytree.tree_structure((tuple(args), dict(kwargs)))
        self._signature = signature
        self._whole = self._bound(tuple(args), dict(kwargs)) or {}
        self._order = self._captured_order(tuple(args), dict(kwargs))
        self._ordered_spec = pytree.tree_structure([self._whole[name] for name in self._order])

    def leaves(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any] | None:
        """The call's leaves in captured order, None included; or None when it is another call.

        Positions, keywords in any order and defaults written out or left out are the same call.
        The values of the leaves are not looked at.
        """
        if self._plain and len(args) == self._count and tuple(kwargs) == self._names:
            return [*args, *kwargs.values()]
        leaves, spec = pytree.tree_flatten((args, kwargs))
        if spec == self._spec:
            return leaves
        return self._reordered(args, kwargs)

    def _reordered(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any] | None:
        given = self._bound(args, kwargs)
        if given is None or given.keys() != self._whole.keys():
            return None
        left_out = (name for name in given if name not in self._order)
        if not all(_same(given[name], self._whole[name]) for name in left_out):
            return None
        leaves, spec = pytree.tree_flatten([given[name] for name in self._order])
        return leaves if spec == self._ordered_spec else None

    def _captured_order(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str, ...]:
        """Names in the order of the captured leaves: positions first, then keywords as written."""
        given = self._bound(args, kwargs, with_defaults=False) or {}
        return (*list(given)[: len(args)], *kwargs) if given else ()

    def _bound(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], *, with_defaults: bool = True
    ) -> dict[str, Any] | None:
        """Every argument by its parameter's name; None when the forward does not take the call."""
        if self._signature is None:
            return None
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError:
            return None
        if with_defaults:
            bound.apply_defaults()
        found: dict[str, Any] = {}
        for name, value in bound.arguments.items():
            kind = self._signature.parameters[name].kind
            if kind is inspect.Parameter.VAR_KEYWORD:
                found.update(value)
            elif kind is inspect.Parameter.VAR_POSITIONAL:
                found.update({f"*{name}[{i}]": item for i, item in enumerate(value)})
            else:
                found[name] = value
        return found


def same_constant(a: object, b: object) -> bool:
    """Equal and of one type: 2 and 2.0 promote differently, 1 and True are told apart."""
    return a is b or (type(a) is type(b) and bool(a == b))


def _same(given: object, captured: object) -> bool:
    """For a default that was not part of the capture: the same object, or an equal plain value."""
    plain = isinstance(given, bool | int | float | complex | str | bytes)
    return given is captured or (plain and same_constant(given, captured))


def _is_leaf(value: object) -> bool:
    leaves = pytree.tree_leaves(value)
    return len(leaves) == 1 and leaves[0] is value
