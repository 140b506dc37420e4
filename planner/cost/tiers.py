"""The tier of an operator: where kernel work on it belongs."""

from __future__ import annotations

from planner.cost.families import CORE, MOVEMENT, packet
from planner.report.model import Tier


def tier_of(op: str) -> Tier:
    """The tier of an overload ("aten.gelu.default").

    `core`: matrix products, convolution, attention, normalization, softmax, activation.
    `movement`: views, copies, joins, lookups and pads. `long_tail`: everything else.
    """
    name = packet(op)
    if name in CORE:
        return "core"
    return "movement" if name in MOVEMENT else "long_tail"
