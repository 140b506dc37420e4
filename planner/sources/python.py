"""`FILE.py:NAME` and `package.module:NAME`: the user's own code, which returns the model.

A file is imported under a name of its own, with its folder first on the search path as if it were
run; the path is put back afterwards. What a failed import left in `sys.modules` is taken out
again. After a good import the modules stay, because torch.compile imports them by name.
"""

from __future__ import annotations

import copy
import hashlib
import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from planner.errors import FuseplanError
from planner.sources.subject import Batch, Built
from planner.sources.user_error import told


class ModelNotBuilt(FuseplanError):
    """The model's source was found wanting: not importable, no such name, or not a model."""


def build(text: str) -> Built:
    """Import what `text` names and call it.

    NAME is a module, or a callable without arguments (a class too) that returns a module or
    `(module, args, kwargs)`. A module that is found rather than built is copied, so that the
    owner's stays as it is.

    Raises `ModelNotBuilt` with the user's file and line where their code failed.
    """
    where, _, name = text.rpartition(":")
    is_file = where.endswith(".py")
    folder = Path(where).resolve().parent if is_file else Path.cwd()
    with _importable(folder):
        source = _import_file(Path(where), folder) if is_file else _import_module(where, folder)
        if not hasattr(source, name):
            raise ModelNotBuilt(f"{where} has no '{name}'.{_offers(source, name)}")
        found = getattr(source, name)
        if isinstance(found, nn.Module):
            return Built(copy.deepcopy(found), None)
        return _from_call(text, found, folder)


def _from_call(text: str, found: Any, folder: Path) -> Built:
    if not callable(found):
        raise ModelNotBuilt(
            f"{text} is of type {type(found).__name__}; name a callable that returns a module or "
            "(module, args, kwargs), or a torch.nn.Module."
        )
    needed = _required(found)
    if needed:
        raise ModelNotBuilt(
            f"{text} needs arguments ({', '.join(needed)}); it is called without any. Name a "
            "function that takes none, or give them defaults."
        )
    try:
        result = found()
    except Exception as error:
        raise ModelNotBuilt(f"{text}: {told(error, folder)}") from error
    return _checked(text, result)


def _checked(text: str, result: Any) -> Built:
    if isinstance(result, nn.Module):
        return Built(result, None)
    form = "return a torch.nn.Module, or (module, args, kwargs) with a tuple and a dict"
    if not isinstance(result, tuple) or len(result) != 3:
        got = f"{len(result)} values" if isinstance(result, tuple) else type(result).__name__
        raise ModelNotBuilt(f"{text} returned {got}; it should {form}.")
    module, args, kwargs = result
    if not isinstance(module, nn.Module):
        kind = type(module).__name__
        raise ModelNotBuilt(f"{text} returned a {kind} as the module; it should {form}.")
    if not isinstance(args, (tuple, list)):
        kind = type(args).__name__
        raise ModelNotBuilt(f"{text} returned a {kind} as args; a tuple of one is written (x,).")
    if not isinstance(kwargs, dict) or not all(isinstance(key, str) for key in kwargs):
        raise ModelNotBuilt(
            f"{text} returned kwargs that are not a dict of names; it should {form}."
        )
    return Built(module, Batch(tuple(args), dict(kwargs)))


def _required(found: Any) -> list[str]:
    try:
        parameters = inspect.signature(found).parameters.values()
    except (TypeError, ValueError):  # a builtin without a signature: the call will tell
        return []
    fixed = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p.name for p in parameters if p.default is p.empty and p.kind not in fixed]


@contextmanager
def _importable(folder: Path) -> Iterator[None]:
    path_before, modules_before = list(sys.path), set(sys.modules)
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    try:
        yield
    except BaseException:
        for name in set(sys.modules) - modules_before:
            if _lies_in(sys.modules.get(name), folder) or _lies_in(
                sys.modules.get(name.partition(".")[0]), folder
            ):
                del sys.modules[name]
        raise
    finally:
        sys.path[:] = path_before


def _lies_in(module: ModuleType | None, folder: Path) -> bool:
    """Whether a top-level module was found directly in `folder`, not in an environment inside
    it.
    """
    places = [getattr(module, "__file__", None), *(getattr(module, "__path__", None) or ())]
    for place in filter(None, places):
        path = Path(place)
        home = path.parent.parent if path.name == "__init__.py" else path.parent
        if home == folder:
            return True
    return False


def _import_file(path: Path, folder: Path) -> ModuleType:
    if not path.is_file():
        raise ModelNotBuilt(f"{path}: there is no such file.")
    # the folder is part of the name: two files called model.py are two modules
    digest = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:8]
    name = re.sub(r"\W", "_", f"{path.stem}_{digest}")
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    if spec is None or spec.loader is None:
        raise ModelNotBuilt(f"{path}: is not a Python file that can be imported.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise ModelNotBuilt(f"{path} cannot be imported: {told(error, folder)}") from error
    return module


def _import_module(name: str, folder: Path) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not (name == error.name or name.startswith(f"{error.name}.")):
            raise ModelNotBuilt(f"{name} cannot be imported: {told(error, folder)}") from error
        raise ModelNotBuilt(
            f"there is no module '{error.name}' among the installed packages or in the current "
            "folder. For a file, write FILE.py:NAME."
        ) from error
    except (Exception, SystemExit) as error:
        raise ModelNotBuilt(f"{name} cannot be imported: {told(error, folder)}") from error


def _offers(source: ModuleType, name: str) -> str:
    own = [
        key
        for key, value in vars(source).items()
        if not key.startswith("_")
        and (isinstance(value, nn.Module) or getattr(value, "__module__", "") == source.__name__)
    ]
    close = get_close_matches(name, own, n=1)
    if close:
        return f" Did you mean '{close[0]}'?"
    return f" It defines: {', '.join(own[:12])}." if own else " It defines nothing to call."
