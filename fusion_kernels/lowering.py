"""ATen operators as region statements: the table of what a region may hold.

Each entry takes the builder and the operator's arguments (names of values, or literals) and
returns the name of the result. Absent from the table means: not fusable, and the planner says so.
"""

from __future__ import annotations

from fusion_kernels.builder import Lowering
from fusion_kernels.pointwise.activation import ACTIVATION
from fusion_kernels.pointwise.arithmetic import ARITHMETIC
from fusion_kernels.pointwise.casts import CASTS
from fusion_kernels.pointwise.comparison import COMPARISON
from fusion_kernels.pointwise.decomposed import decomposed
from fusion_kernels.pointwise.normalization import NORMALIZATION
from fusion_kernels.pointwise.special import SPECIAL
from fusion_kernels.reductions import REDUCTIONS

# Operators that torch's own decomposition brings down to the others.
_DECOMPOSED = (
    *("elu.default", "selu.default", "softplus.default", "hardswish.default"),
    *("hardsigmoid.default", "hardshrink.default", "softshrink.default", "threshold.default"),
    *("log_sigmoid.default", "logit.default", "special_logit.default", "sinc.default"),
    *("special_sinc.default", "logaddexp.default", "logaddexp2.default"),
    *("xlogy.Tensor", "xlogy.Scalar_Self", "xlogy.Scalar_Other", "special_entr.default"),
    *("special_xlog1py.default", "special_xlog1py.self_scalar", "special_xlog1py.other_scalar"),
    *("special_xlogy.default", "special_xlogy.self_scalar", "special_xlogy.other_scalar"),
    *("special_ndtr.default", "special_log_ndtr.default", "special_exp2.default"),
    *("special_expm1.default", "special_log1p.default", "special_expit.default"),
    *("special_erf.default", "special_erfc.default", "special_round.default"),
    *("ldexp.Tensor", "negative.default", "absolute.default"),
    *("divide.Tensor", "divide.Scalar", "multiply.Tensor", "subtract.Tensor", "multiply.Scalar"),
    *("arctan2.default", "arccos.default", "arcsin.default", "arctan.default", "fix.default"),
    *("greater.Tensor", "greater.Scalar", "less.Tensor", "less.Scalar", "greater_equal.Tensor"),
    *("greater_equal.Scalar", "less_equal.Tensor", "less_equal.Scalar", "not_equal.Tensor"),
    "not_equal.Scalar",
)


POINTWISE: dict[str, Lowering] = {
    **ARITHMETIC,
    **COMPARISON,
    **ACTIVATION,
    **CASTS,
    **SPECIAL,
    **NORMALIZATION,
}
POINTWISE |= decomposed((f"aten.{name}" for name in _DECOMPOSED), POINTWISE)

LOWERINGS: dict[str, Lowering] = {**POINTWISE, **REDUCTIONS}
