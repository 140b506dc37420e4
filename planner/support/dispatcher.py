"""What the dispatcher of this process holds: the kernels registered for an operator under a
dispatch key, custom operators included.
"""

from __future__ import annotations

from planner.support.op_names import to_dispatcher

_EXPLICIT = "CompositeExplicitAutograd"
_EXPLICIT_NON_FUNCTIONAL = "CompositeExplicitAutogradNonFunctional"
_IMPLICIT = "CompositeImplicitAutograd"


def registered_level(op: str, dispatch_key: str) -> str:
    """The level that the registered kernels give `op` under `dispatch_key`.

    `native` for a kernel of the key itself, `composite_explicit`, `composite_implicit`,
    `unsupported` when the operator has no kernel that the key would reach, `unknown` when this
    process does not know the operator.
    """
    name = to_dispatcher(op)
    if not is_registered(op):
        return "unknown"
    if _has_kernel(name, dispatch_key):
        return "native"
    if _has_kernel(name, _EXPLICIT) or _has_kernel(name, _EXPLICIT_NON_FUNCTIONAL):
        return "composite_explicit"
    if _has_kernel(name, _IMPLICIT):
        return "composite_implicit"
    return "unsupported"


def is_registered(op: str) -> bool:
    """Whether this process's dispatcher knows the operator. Schemas of the JIT (prim::) are no
    part of it.
    """
    import torch

    name = to_dispatcher(op)
    return "::" in name and torch._C._dispatch_has_kernel(name)


def is_composite_implicit(op: str) -> bool:
    """Whether torch runs `op` as a series of other operators on every device without own
    kernel.
    """
    return is_registered(op) and _has_kernel(to_dispatcher(op), _IMPLICIT)


def is_composite_explicit(op: str) -> bool:
    """Whether torch has one implementation of `op` for every device.

    Leaves out CompositeExplicitAutogradNonFunctional: the code generator registers that for every
    structured operator, and it ends in the device's own out= kernel.
    """
    return is_registered(op) and _has_kernel(to_dispatcher(op), _EXPLICIT)


def _has_kernel(name: str, key: str) -> bool:
    import torch

    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(name, key))
