"""Operator names: the project's ("aten.add.Tensor") and the dispatcher's ("aten::add.Tensor"), the
operator behind a name, and its functional, in-place and out= twins.
"""

from __future__ import annotations

from typing import Any

_TENSOR_OPTIONS = frozenset({"dtype", "layout", "device", "pin_memory"})


def from_dispatcher(name: str) -> str:
    """ "aten::add.Tensor" -> "aten.add.Tensor", "aten::gelu" -> "aten.gelu.default"."""
    namespace, _, rest = name.partition("::")
    packet, _, overload = rest.partition(".")
    return f"{namespace}.{packet}.{overload or 'default'}"


def to_dispatcher(op: str) -> str:
    """ "aten.gelu.default" -> "aten::gelu"; a name without a namespace comes back unchanged."""
    namespace, _, rest = op.partition(".")
    name, _, overload = rest.partition(".")
    if not name:
        return op
    return (
        f"{namespace}::{name}" if overload in ("", "default") else f"{namespace}::{name}.{overload}"
    )


def namespace_of(op: str) -> str:
    return op.partition(".")[0]


def packet_of(op: str) -> str:
    """ "aten.add.Tensor" -> "aten.add"."""
    return ".".join(op.split(".")[:2])


def overload_of(op: str) -> Any | None:
    """The `torch.ops` overload of that name, or None when this process has none."""
    import torch

    namespace, _, rest = op.partition(".")
    name, _, overload = rest.partition(".")
    if not name:
        return None
    packet = getattr(getattr(torch.ops, namespace), name, None)
    return getattr(packet, overload or "default", None)


def twins(op: str) -> tuple[str, ...]:
    """The other variants of `op` with the same arguments: out= first, then functional, then in
    place.

    Names do not tell (the out= variant of `aten.all.dim` is `aten.all.out`), so the dispatcher's
    schemas are compared: equal names of the operator, equal argument types once the out arguments
    and the options that make a tensor are left aside. Empty when torch does not know `op`.
    """
    import torch

    namespace, _, rest = op.partition(".")
    packet, _, overload = rest.partition(".")
    base = packet if packet.startswith("__") else packet.rstrip("_")
    schemas = {
        f"{namespace}.{name}.{schema.overload_name or 'default'}": schema
        for name in (base, f"{base}_")
        for schema in torch._C._jit_get_schemas_for_operator(f"{namespace}::{name}")
    }
    own = schemas.get(f"{namespace}.{packet}.{overload or 'default'}")
    if own is None:
        return ()
    signature = _signature(own)
    found = [
        name
        for name, schema in schemas.items()
        if schema is not own and _signature(schema) == signature
    ]
    return tuple(sorted(found, key=lambda name: (_variant(schemas[name]), name)))


def _signature(schema: Any) -> tuple[str, ...]:
    arguments = [argument for argument in schema.arguments if not argument.is_out]
    if any(argument.name == "layout" for argument in arguments):
        arguments = [argument for argument in arguments if argument.name not in _TENSOR_OPTIONS]
    return tuple(str(argument.real_type) for argument in arguments)


def _variant(schema: Any) -> int:
    if any(argument.is_out for argument in schema.arguments):
        return 0
    return 2 if schema.name.endswith("_") else 1
