"""Holds a captured program's result against eager's: structure, dtypes, special values,
distance.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from planner.graph.errors import CaptureDiffers

# How far a capture may lie from eager, norm-wise. Only the order of rounding may differ (another
# attention kernel, say); a wrong mask or a lost branch lies orders of magnitude further out.
_LIMITS = {torch.float64: 1e-10, torch.float32: 1e-4}
_LIMIT_LOW = 3e-2
# An output that is all zeros in eager may be this far from it, as the numerics contract has it.
_LIMIT_AT_ZERO = 1e-6


def require_equal(actual: Any, expected: Any) -> None:
    """Both results have the same structure and, leaf by leaf, the same values.

    Floating-point leaves may differ by rounding, norm-wise; NaN and infinity must stand where
    eager has them; all else is exact. Raises `CaptureDiffers` with the first output that differs.
    """
    wanted, structure = pytree.tree_flatten_with_path(expected)
    got, other_structure = pytree.tree_flatten_with_path(actual)
    if structure != other_structure:
        raise CaptureDiffers(
            "the exported program returns another structure than eager: "
            f"{len(got)} leaves in {_outermost(actual)} instead of {len(wanted)} in "
            f"{_outermost(expected)}. The export is not used; please report the model."
        )
    for (path, reference), (_, value) in zip(wanted, got, strict=True):
        reason = _difference(reference, value)
        if reason:
            raise CaptureDiffers(
                f"the exported program differs from eager in output "
                f"'{pytree.keystr(path) or 'result'}': {reason}. The export is not used; "
                "please report the model, it shows a fault of the export."
            )


def _outermost(value: Any) -> str:
    return type(value).__name__


def _difference(reference: Any, value: Any) -> str | None:
    if not isinstance(reference, Tensor) or not isinstance(value, Tensor):
        same = not isinstance(value, Tensor) and reference == value
        return None if same else f"{value!r} instead of {reference!r}"
    if (reference.shape, reference.dtype) != (value.shape, value.dtype):
        return (
            f"{value.dtype}{list(value.shape)} instead of {reference.dtype}{list(reference.shape)}"
        )
    if reference.is_complex():
        return _difference(_as_real(reference), _as_real(value))
    if not reference.dtype.is_floating_point:
        return None if torch.equal(reference, value) else "integer or boolean values differ"
    exact, close = reference.double(), value.double()
    finite = exact.isfinite()
    if not torch.equal(finite, close.isfinite()) or not _equal(exact[~finite], close[~finite]):
        return "NaN or infinity stands in other places"
    limit = _LIMITS.get(reference.dtype, _LIMIT_LOW)
    error = torch.linalg.vector_norm((exact - close)[finite])
    norm = torch.linalg.vector_norm(exact[finite])
    if error > (limit * norm if norm else _LIMIT_AT_ZERO):
        return f"norm-wise error above {limit:g}"
    return None


def _equal(left: Tensor, right: Tensor) -> bool:
    """Equal, with NaN equal to NaN."""
    return bool(((left == right) | (left.isnan() & right.isnan())).all())


def _as_real(value: Tensor) -> Tensor:
    return torch.view_as_real(value.resolve_conj())
