"""Runs a kernel file's launcher in Triton's interpreter on the CPU, without TRITON_INTERPRET and
without disturbing compilation in the same process.

Triton's interpreter expects the variable to be set before `triton` is imported. Without it three
things are missing, which a scope around each launch supplies: functions of the standard library
(`tl.sum`, `tl.sigmoid`) stand ready for the compiler only; what the interpreter patches in
`triton.language` for the sake of device functions is not put back; and functions of libdevice
have no body. In the same scope float32 is rounded to bfloat16 instead of truncated, as every GPU
does, and a comparison of scalars stays a boolean where it meets a block. The interpreter does not
see races and does not certify the GPU's own float32.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton.language.extra import libdevice
from triton.language.extra.cuda import libdevice as cuda_libdevice
from triton.runtime import interpreter
from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import JITFunction, mangle_type

_LIBRARIES = (tl, tl.core, tl.math, tl.standard, tl.random)
_CLASSES = (tl.core.tensor, tl.core.dtype, tl.core.tensor_descriptor_base)
# Functions of libdevice that torch has under the same name, and what it calls otherwise.
_SAME_NAME = (
    *("acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "ceil", "copysign", "cos"),
    *("cosh", "erf", "erfc", "erfinv", "exp", "exp2", "expm1", "floor", "fmod", "hypot"),
    *("lgamma", "log", "log10", "log1p", "log2", "pow", "rsqrt", "sin", "sinh", "sqrt", "tan"),
    *("tanh", "trunc"),
)
_LIBDEVICE = {
    **{name: getattr(torch, name) for name in _SAME_NAME},
    "rint": torch.round,
    "nearbyint": torch.round,
}

# The first launch of a process imports more of triton, which must not happen inside the scope.
mangle_type(1)

# The scope changes `triton.language` itself, so that one launch at a time may be in it.
_LOCK = threading.RLock()


def interpret_module(module: ModuleType, launcher: str) -> Callable[..., Any]:
    """The function `launcher` of `module`, made to run on CPU tensors in the interpreter.

    Every `@triton.jit` function of `module` is replaced by its interpreted form, so `module` must
    be a copy that nobody compiles. Device functions of the module may call each other. Raises
    `triton.runtime.errors.InterpreterError` from a launch whose kernel fails.
    """
    for name, value in list(vars(module).items()):
        if isinstance(value, JITFunction):
            setattr(module, name, _interpreted(value.fn))
    run = getattr(module, launcher)

    def launch(*args: Any, **kwargs: Any) -> Any:
        with _scope():
            return run(*args, **kwargs)

    launch.__name__ = launch.__qualname__ = launcher
    launch.__doc__ = run.__doc__
    return launch


@contextmanager
def _scope() -> Iterator[None]:
    builder = interpreter.InterpreterBuilder
    spaces = (*_LIBRARIES, *_CLASSES, libdevice, cuda_libdevice, interpreter, builder)
    with _LOCK:
        before = [(space, dict(vars(space))) for space in spaces]
        try:
            _open_standard_library()
            for space in (libdevice, cuda_libdevice):
                for name, function in _LIBDEVICE.items():
                    setattr(space, name, _elementwise(function))
            interpreter._convert_float = _rounding_convert(interpreter._convert_float)
            interpreter._patch_lang_tensor = _indexable(interpreter._patch_lang_tensor)
            builder.create_splat = _truth_keeping(builder.create_splat)
            yield
        finally:
            for space, names in before:
                _restore(space, names)


def _open_standard_library() -> None:
    for space in _LIBRARIES:
        for name, value in list(vars(space).items()):
            if isinstance(value, JITFunction):
                setattr(space, name, _interpreted(value.fn))
    for name, value in list(vars(tl.core.tensor).items()):
        if isinstance(value, JITFunction):
            setattr(tl.core.tensor, name, _method(_interpreted(value.fn)))


def _restore(space: Any, names: dict[str, Any]) -> None:
    """Put changed names back. Added ones stay: rewritten functions of the space refer to them."""
    for name, value in names.items():
        if vars(space).get(name) is not value:
            setattr(space, name, value)


@cache
def _interpreted(function: Callable[..., Any]) -> Any:
    interpreted = InterpretedFunction(function)
    # Now, while the file on disk is the one that was imported.
    interpreted.rewrite()
    return interpreted


def _method(function: Any) -> Callable[..., Any]:
    # A plain function binds to the instance it is called on; an InterpretedFunction does not.
    return lambda *args, **kwargs: function(*args, **kwargs)


def _elementwise(function: Callable[..., torch.Tensor]) -> Callable[..., Any]:
    def call(*args: Any, **_: Any) -> Any:
        operands = [interpreter.interpreter_semantic.to_tensor(arg) for arg in args]
        arrays = [torch.from_numpy(np.ascontiguousarray(x.handle.data)) for x in operands]
        result = function(*arrays).numpy()
        widest = max(operands, key=lambda x: x.handle.data.size)
        return tl.core.tensor(interpreter.TensorHandle(result, widest.dtype.scalar), widest.type)

    return call


def _rounding_convert(truncating: Callable[..., Any]) -> Callable[..., Any]:
    def convert(data: Any, source: Any, target: Any, rounding: Any) -> Any:
        toward_zero = rounding is not None and "RTZ" in str(rounding)
        if source != tl.float32 or target != tl.bfloat16 or toward_zero:
            return truncating(data, source, target, rounding)
        rounded = torch.from_numpy(np.ascontiguousarray(data)).to(torch.bfloat16)
        return rounded.view(torch.uint16).numpy()

    return convert


def _truth_keeping(splat: Callable[..., Any]) -> Callable[..., Any]:
    # A comparison's result is labelled with its operands' dtype, to which a splat would convert it.
    def kept(self: Any, block: Any, value: Any) -> Any:
        if value.data.dtype == np.bool_ and not isinstance(value.dtype, tl.block_type):
            return interpreter.TensorHandle(np.full(block.shape, value.data), tl.int1)
        return splat(self, block, value)

    return kept


def _indexable(patch: Callable[..., None]) -> Callable[..., None]:
    # Triton 3.6 reads a loop bound, an array of one element, in a way that numpy 2.4 refuses.
    def patched(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    return patched
