"""The sentences of coverage rows: why a level was given, for an engineer who has never seen a
table.
"""

from __future__ import annotations

from collections.abc import Mapping

from planner.support.backend_table import BackendTable, SupportEntry

THIS_PROCESS = "the dispatcher of this process"

_NAMES_SHOWN = 8

_LEVELS = {
    "native": "{backend} has its own kernel for {op}",
    "native_delegate": "{backend} runs the kernel of {via}, which {op} delegates to",
    "converter": "{backend} translates {op} directly",
    "composite_explicit": (
        "PyTorch has one implementation of {op} for every device; "
        "which operators it calls inside is not checked"
    ),
    "composite_implicit": "PyTorch runs {op} as other operators; which ones depends on the inputs",
    "decomposed": "{backend} decomposes {op} itself",
    "conditional": (
        "{backend} supports {op} under a condition that cannot be checked here: {condition}"
    ),
    "stub": "{backend} registers {op}, but only to raise an error when it is reached",
    "cpu_fallback": "{backend} has no kernel for {op} and computes it on the CPU, with copies",
    "unsupported": "{backend} does not support {op}",
    "unknown": "Nothing is known of {op} on {backend}",
}


def entry_reason(entry: SupportEntry, match: str, table: BackendTable) -> str:
    """For an operator that the table lists, itself or under another name."""
    text = _LEVELS[entry.level].format(
        backend=table.title, op=entry.op, via=entry.via, condition=entry.condition
    )
    if entry.note is not None:
        text += f" ({entry.note})"
    text += "."
    if match == "twin" or (match == "delegate" and entry.level != "native_delegate"):
        text += f" The table lists the operator only as {entry.op}, the same with other outputs."
    if match == "packet":
        text += (
            " The source names operators without overloads, so that this overload is likely but "
            "not certain (weaker evidence)."
        )
    for source, level in entry.disputed:
        text += f" Another source, {table.further_sources[source].citation}, says {level}."
    return text


def entry_evidence(entry: SupportEntry, table: BackendTable) -> str:
    citation = table.provenance.citation
    return citation if entry.evidence == citation else f"{entry.evidence} ({citation})"


def dtype_reason(entry: SupportEntry, met: str, table: BackendTable) -> str:
    """For an operator that the backend has, but not in the model's dtype."""
    allowed = ", ".join(entry.dtypes or ()) or "no dtype"
    return f"{table.title} has {entry.op} for {allowed}; this model needs it in {met}."


def parts_reason(
    via: tuple[str, ...],
    lacking: Mapping[str, str],
    fused: tuple[str, ...],
    table: BackendTable,
) -> str:
    """For an operator that runs as others: `lacking` maps those not covered to their reasons,
    `fused` are single kernels that the backend may take in their place.
    """
    if not via:
        return "For these inputs it runs no operator at all."
    text = f"For these inputs it runs as {_listed(via)}"
    if lacking:
        reasons = " ".join(f"{op}: {reason}" for op, reason in lacking.items())
        return f"{text}. {table.title} does not cover {_listed(tuple(lacking))}. {reasons}"
    text += f"; {table.title} covers {'it' if len(via) == 1 else 'all of them'}."
    if fused:
        text += f" At run time it may take one fused kernel instead: {_listed(fused)}."
    return text


def parts_evidence(table: BackendTable) -> str:
    return f"run on tensors without data in this process; parts by {table.provenance.citation}"


def registered_reason(level: str, table: BackendTable) -> str:
    """For an operator that only the running process knows to be there."""
    if level == "native":
        return (
            f"The table does not list this custom operator, but this process has a "
            f"{table.dispatch_key} kernel registered for it."
        )
    return (
        f"The table of {table.title} does not list it, but an implementation for every device is "
        "registered; which operators it calls inside is not checked."
    )


def absent_reason(op: str, own: bool, overloads: list[str], table: BackendTable) -> str:
    """For an operator that the table does not hold; `own` says whether it is one of torch's."""
    if not own:
        key = table.dispatch_key
        here = f", and this process has no {key} kernel registered for it" if key else ""
        return (
            f"{op} is a custom operator, which the table of {table.title} does not list{here}. "
            "Whether the backend can run it is not known."
        )
    text = table.default_reason
    if overloads:
        text += (
            f" Other overloads are listed ({', '.join(overloads)}), which says nothing of this one."
        )
    return text


def not_in_torch_reason(op: str) -> str:
    """For a name in torch's namespace that the installed torch does not have."""
    return f"The installed PyTorch has no operator {op}, so that nothing can be said of it."


def not_followed_reason(why: str) -> str:
    """For a composite whose parts could not be found."""
    return (
        "It runs as other operators, and which ones could not be found out, so that nothing can be "
        f"said of it: {why}."
    )


def _listed(names: tuple[str, ...]) -> str:
    more = len(names) - _NAMES_SHOWN
    shown = ", ".join(names[:_NAMES_SHOWN])
    return f"{shown} and {more} more" if more > 0 else shown
