"""Kernel source to callable: imports an emitted kernel file, compiled or interpreted."""

from __future__ import annotations

import hashlib
import importlib.util
import linecache
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any


class BadKernelFile(ValueError):
    """A kernel file that cannot be imported, or that lacks the launcher asked for."""


@dataclass(frozen=True, slots=True)
class KernelModule:
    """An imported kernel file: its launcher, and its `@triton.jit` functions by name (those that
    end in `_kernel` are entry points, the others device functions).
    """

    path: Path
    launcher: Callable[..., Any]
    kernels: Mapping[str, Any]
    module: ModuleType


def load_kernel(
    path_or_source: Path | str, name: str, *, folder: Path | None = None
) -> KernelModule:
    """Import a kernel file; `name` is its launcher, a function of tensors and numbers.

    A `str` that holds a line break is source text: it is written to `folder` (default: a
    temporary folder that lasts as long as the process) under its content's hash, since Triton
    reads a kernel's source back from its file. Each content is imported under a module name of
    its own and never from stale bytecode. Needs triton. Raises `BadKernelFile`.
    """
    path = _on_disk(path_or_source, folder)
    module = _import(path, "compiled")
    kernels = {
        key: value
        for key, value in vars(module).items()
        if type(value).__name__ == "JITFunction" and value.__module__ == module.__name__
    }
    return KernelModule(path, _launcher(module, name, path), kernels, module)


def interpreted(
    path_or_source: Path | str, name: str, *, folder: Path | None = None
) -> Callable[..., Any]:
    """The launcher `name` of a kernel file, run on CPU tensors by Triton's interpreter.

    It is a second import of the file, so the one `load_kernel` gives still compiles. Launches
    from several threads take turns, and nothing may be compiled while one runs. Arguments as for
    `load_kernel`. Raises `BadKernelFile`.
    """
    from fusion_kernels.interpreter import interpret_module

    path = _on_disk(path_or_source, folder)
    module = _import(path, "interpreted")
    _launcher(module, name, path)
    return interpret_module(module, name)


class _FreshLoader(SourceFileLoader):
    """Compiles the source each time: bytecode is keyed by whole seconds, and a tuner rewrites a
    file faster than that.
    """

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        code: CodeType = self.source_to_code(self.get_data(path), path)
        return code


def _import(path: Path, variant: str) -> ModuleType:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise BadKernelFile(f"{path}: cannot be read ({error.strerror})") from error
    identity = hashlib.sha256(str(path).encode() + b"\0" + content).hexdigest()[:16]
    name = f"fuseplan_kernel_{identity}_{variant}"
    spec = importlib.util.spec_from_loader(name, _FreshLoader(name, str(path)))
    if spec is None:
        raise BadKernelFile(f"{path}: is not a Python file")
    module = importlib.util.module_from_spec(spec)
    # `inspect` reads sources through this cache, which may hold an earlier file of this name.
    linecache.cache.pop(str(path), None)
    sys.modules[name] = module
    try:
        _FreshLoader(name, str(path)).exec_module(module)
    except Exception as error:
        del sys.modules[name]
        if isinstance(error, ModuleNotFoundError) and error.name == "triton":
            raise
        raise BadKernelFile(f"{path}: cannot be imported: {error!r}") from error
    return module


def _launcher(module: ModuleType, name: str, path: Path) -> Callable[..., Any]:
    launcher = getattr(module, name, None)
    if not callable(launcher):
        raise BadKernelFile(f"{path}: has no function '{name}'")
    found: Callable[..., Any] = launcher
    return found


def _on_disk(path_or_source: Path | str, folder: Path | None) -> Path:
    if isinstance(path_or_source, Path) or "\n" not in path_or_source:
        return Path(path_or_source).resolve()
    content = path_or_source.encode()
    home = Path(_temporary_folder().name) if folder is None else folder
    home.mkdir(parents=True, exist_ok=True)
    path = home.resolve() / f"kernel_{hashlib.sha256(content).hexdigest()[:16]}.py"
    if not path.exists():
        path.write_bytes(content)
    return path


@cache
def _temporary_folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="fuseplan_kernels_")
