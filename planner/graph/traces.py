"""Lets torch.export record the user's whole stack: it keeps frames called `forward` alone, and an
operator in a helper function would stand on its caller's line.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.fx.proxy import TracerBase

from planner.graph.source import is_user_file

# Private to torch; where it is missing, the frames are those that torch records.
_FILTER = "_filter_traceback_frames"


@contextmanager
def user_traces() -> Iterator[None]:
    """For the duration of the block, graph nodes carry every frame of the user's from the first
    `forward` inward.
    """
    torch_filter = getattr(TracerBase, _FILTER, None)
    if torch_filter is None:
        yield
        return
    setattr(TracerBase, _FILTER, _user_frames)
    try:
        yield
    finally:
        setattr(TracerBase, _FILTER, torch_filter)


def _user_frames(_: Any, summary: traceback.StackSummary) -> traceback.StackSummary:
    names = [frame.name for frame in summary]
    first = names.index("forward") if "forward" in names else len(names)
    kept = [frame for frame in summary[first:] if is_user_file(frame.filename)]
    return traceback.StackSummary.from_list(kept)
