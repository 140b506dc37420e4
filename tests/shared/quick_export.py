"""Export of many small programs in one process, without what torch does anew for every one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import pytest
from torch.export import exported_program


@contextmanager
def quick_export() -> Iterator[None]:
    """Within it `run_decompositions` finds the composite operators once for all programs, and marks
    as whole those that the program calls, not all five hundred that there are: marking takes ten
    times as long as tracing a small program does. The graphs are the same.
    """
    decompose: Any = exported_program._decompose_exported_program
    collect: Any = exported_program._collect_all_valid_cia_ops

    def of_the_program(program: Any, *, cia_to_decomp: dict[Any, Any], **others: Any) -> Any:
        called = {node.target for node in program.graph.nodes}
        marked = {op: call for op, call in cia_to_decomp.items() if op in called}
        return decompose(program, cia_to_decomp=marked, **others)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exported_program, "_decompose_exported_program", of_the_program)
        patch.setattr(exported_program, "_collect_all_valid_cia_ops", cache(collect))
        yield
