"""Names each module call in a profile, by hooks that hold for all modules and leave none of them
changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)

from planner.profile.events import MODULE_PREFIX


@contextmanager
def module_ranges(root: nn.Module) -> Iterator[None]:
    """Within the context every call of a submodule of `root` is a profiler range named by its
    path, of `root` itself by "".

    An object reachable by several names has the first of `named_modules`. The hooks are global
    and temporary: no module is touched, and they are gone however the context is left.
    """
    paths = {id(module): path for path, module in root.named_modules()}
    open_ranges: list[tuple[int, Any]] = []

    def enter(module: nn.Module, _: Any) -> None:
        path = paths.get(id(module))
        if path is not None:
            entered = torch.profiler.record_function(MODULE_PREFIX + path)
            entered.__enter__()
            open_ranges.append((id(module), entered))

    def leave(module: nn.Module, _: Any, __: Any) -> None:
        # A forward that another hook kept from starting has no range to close.
        if open_ranges and open_ranges[-1][0] == id(module):
            open_ranges.pop()[1].__exit__(None, None, None)

    handles = [
        register_module_forward_pre_hook(enter),
        register_module_forward_hook(leave, always_call=True),
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
        while open_ranges:
            open_ranges.pop()[1].__exit__(None, None, None)
