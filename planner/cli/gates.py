"""Gates: what makes a finished run exit with 1, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from planner.report.model import Report


def coverage_gaps(report: Report, least_percent: float) -> list[str]:
    """One sentence for each backend whose coverage by calls is under `least_percent`, or unknown:
    what is not known does not pass.
    """
    said = []
    for backend, found in report.coverage.items():
        if found.by_calls is None:
            said.append(f"{backend}: coverage by calls is unknown")
        elif found.by_calls * 100 < least_percent - 1e-9:
            share = f"{found.by_calls * 100:.2f}".rstrip("0").rstrip(".")
            said.append(f"{backend} covers {share} % of calls, under {least_percent:g} %")
    return said


def numerics_gaps(report: Report) -> list[str]:
    """One sentence for each failed check of what is in use: the whole model, or a kernel that was
    kept. A kernel that failed and was dropped, or lost to another way to fuse its place, is no
    gap.
    """
    kept = {name for row in report.fusions if row.kept for name in (row.name, row.kernel)}
    in_use = kept | {report.model.name}
    return [
        f"numerics: {row.subject} in {row.dtype} is past its limit"
        for row in report.numerics
        if not row.passed and row.subject in in_use
    ]
