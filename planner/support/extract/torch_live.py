"""PyTorch CPU: the table of the kernels registered in the running torch's dispatcher."""

from __future__ import annotations

from planner.support.backend_table import BackendTable, Provenance, Source, SupportEntry
from planner.support.dispatcher import registered_level
from planner.support.extract.generated import demote_generated
from planner.support.extract.interface import Extractor, installed_release
from planner.support.op_names import from_dispatcher

_KEY = "CPU"
_UNSUPPORTED = "no CPU kernel and no composite is registered"


def extract_live_cpu(checked: str) -> BackendTable:
    """The table of every aten operator of the running torch.

    Absence of a kernel is a fact here, not a gap: the dispatcher would refuse the call.
    """
    import torch

    names = [
        from_dispatcher(name)
        for name in torch._C._dispatch_get_all_op_names()
        if name.startswith("aten::")
    ]
    provenance = Provenance(
        source=Source("measured", "the dispatcher of the running library", checked),
        packages=installed_release(("torch",)),
        extractor="planner.support.extract.torch_live",
    )
    return BackendTable(
        name="cpu",
        title="PyTorch CPU",
        family="dispatcher",
        default_level="unknown",
        default_reason=(
            "The table holds every aten operator of its PyTorch release; this one is not there."
        ),
        provenance=provenance,
        entries=demote_generated(_entry(op, provenance.citation) for op in names),
        dispatch_key=_KEY,
    )


def _entry(op: str, citation: str) -> SupportEntry:
    level = registered_level(op, _KEY)
    note = _UNSUPPORTED if level == "unsupported" else None
    return SupportEntry(op, level, None, None, note, citation)


CPU = Extractor("cpu", ("torch",), extract_live_cpu)
