"""The original forward's parameters as plain rows and back, so that a call may be written in any
form that the original took.
"""

from __future__ import annotations

import inspect

from planner.artifact.manifest import Argument

_KINDS = {kind.name: kind for kind in inspect._ParameterKind}
_PLAIN = (str, int, float, bool, type(None))


def arguments_of(signature: inspect.Signature | None) -> tuple[Argument, ...] | None:
    """A row a parameter. A default that is no plain value is known as such only."""
    if signature is None:
        return None
    return tuple(_argument(parameter) for parameter in signature.parameters.values())


def signature_from(arguments: tuple[Argument, ...] | None) -> inspect.Signature | None:
    """The signature again. In place of a default that was no plain value stands an object that
    equals nothing: it may be left out as before, but not written out.
    """
    if arguments is None:
        return None
    return inspect.Signature([_parameter(argument) for argument in arguments])


def _argument(parameter: inspect.Parameter) -> Argument:
    required = parameter.default is inspect.Parameter.empty
    plain = not required and type(parameter.default) in _PLAIN
    return Argument(
        parameter.name,
        parameter.kind.name,
        required,
        plain,
        parameter.default if plain else None,
    )


def _parameter(argument: Argument) -> inspect.Parameter:
    default: object = inspect.Parameter.empty
    if not argument.required:
        default = argument.default if argument.plain else object()
    return inspect.Parameter(argument.name, _KINDS[argument.kind], default=default)
