"""FLOP formulas of everything but matrix products: norms, softmax, activations, pointwise,
reductions, pooling.

Convention: an addition, multiplication, division, comparison or elementary function (exp, log,
erf, tanh, sqrt, sin) counts one each, for each element. Moving, choosing and converting elements
counts zero.
"""

from __future__ import annotations

from math import prod

from planner.cost.families import NO_ARITHMETIC
from planner.cost.registry import FlopFormula, FormulaTable, out_numel, per_input, per_output
from planner.graph.op_graph import OpNode, TensorMeta


def register(table: FormulaTable) -> None:
    """File the formulas of this module."""
    table.add(NO_ARITHMETIC - {"aten.dropout", "aten.feature_dropout"}, _nothing)
    table.add(_aten("dropout feature_dropout"), _dropout)
    _register_norms(table)
    # max, subtract, exp, sum, divide (or log and subtract)
    table.add(_aten("softmax _softmax _safe_softmax log_softmax _log_softmax"), per_output(5))
    for count, names in _PER_OUTPUT.items():
        table.add(_aten(names), per_output(count))
    table.add(_aten("gelu"), _gelu)
    table.add(_aten("add sub rsub"), _scaled_sum)
    for count, names in _PER_INPUT.items():
        table.add(_aten(names), per_input(count))
    table.add(_aten("mean"), _mean)
    table.add(_aten("max min"), _extremum)
    table.add(_aten("max_pool1d max_pool2d max_pool3d"), _pool)
    table.add(_aten("max_pool2d_with_indices max_pool3d_with_indices"), _pool)
    table.add(_aten("avg_pool1d avg_pool2d avg_pool3d"), _pool)


_PER_OUTPUT = {
    1: "relu tanh threshold mul div neg abs exp exp2 expm1 log log2 log10 log1p pow square sqrt "
    "rsqrt reciprocal sin cos tan asin acos atan sinh cosh asinh acosh atanh atan2 erf erfc erfinv "
    "floor ceil round trunc frac sign sgn maximum minimum fmax fmin eq ne lt le gt ge "
    "logical_and logical_or logical_not logical_xor bitwise_and bitwise_or bitwise_not "
    "bitwise_xor bitwise_left_shift bitwise_right_shift __and__ __or__ __xor__ remainder fmod "
    "floor_divide true_divide isnan isinf isfinite clamp_min clamp_max signbit copysign "
    "logaddexp conj_physical",
    2: "relu6 hardtanh leaky_relu prelu clamp hardshrink softshrink tanhshrink softsign",
    3: "softplus lerp addcmul addcdiv hardsigmoid log_sigmoid log_sigmoid_forward nan_to_num",
    4: "sigmoid elu selu celu hardswish",
    5: "silu mish glu",
}
_PER_INPUT = {
    1: "sum nansum prod amax amin aminmax argmax argmin any all cumsum cumprod cummax cummin "
    "count_nonzero adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d "
    "_adaptive_avg_pool2d _adaptive_avg_pool3d adaptive_max_pool1d adaptive_max_pool2d",
    2: "norm linalg_vector_norm",
    3: "logsumexp",
    4: "var std var_mean std_mean",
}
# Operator -> positions of weight and bias in its schema.
_ROW_NORMS = {
    "layer_norm": (2, 3),
    "native_layer_norm": (2, 3),
    "group_norm": (2, 3),
    "native_group_norm": (1, 2),
    "instance_norm": (1, 2),
}
_BATCH_NORMS = (
    "batch_norm native_batch_norm _native_batch_norm_legit cudnn_batch_norm "
    "_native_batch_norm_legit_no_training"
)


def _aten(names: str) -> tuple[str, ...]:
    return tuple(f"aten.{name}" for name in names.split())


def _nothing(_: OpNode) -> int:
    return 0


def _register_norms(table: FormulaTable) -> None:
    # With statistics of the data: sum, subtract, square, sum, scale.
    for name, (weight, bias) in _ROW_NORMS.items():
        table.add(_aten(name), _norm(5, weight, bias))
    # square, sum, scale
    table.add(_aten("rms_norm _fused_rms_norm"), _norm(3, 2, None))
    table.add(_aten(_BATCH_NORMS), _batch_norm)


def _norm(count: int, weight: int, bias: int | None) -> FlopFormula:
    """`count` FLOPs for each element, one more for a weight, one more for a bias."""

    def formula(node: OpNode) -> int | None:
        numel = out_numel(node)
        if numel is None:
            return None
        extra = int(node.arg(weight, "weight") is not None)
        extra += int(bias is not None and node.arg(bias, "bias") is not None)
        return (count + extra) * numel

    return formula


def _batch_norm(node: OpNode) -> int | None:
    """Subtract and scale with running statistics; in training also their sums, as a row norm
    does.
    """
    training = bool(node.arg(5, "training", False)) and "no_training" not in node.op
    return _norm(5 if training else 2, 1, 2)(node)


def _gelu(node: OpNode) -> int | None:
    """0.5*x*(1 + erf(x/sqrt 2)): 5; with tanh x*(...)*(x + c*x^3): 9."""
    tanh = node.arg(1, "approximate", "none") == "tanh"
    return per_output(9 if tanh else 5)(node)


def _scaled_sum(node: OpNode) -> int | None:
    """One FLOP, or two when the second operand is scaled by `alpha`."""
    return per_output(1 if node.arg(2, "alpha", 1) == 1 else 2)(node)


def _mean(node: OpNode) -> int | None:
    """Every element added, every mean divided."""
    numel = out_numel(node)
    return None if numel is None or not node.inputs else node.inputs[0].numel + numel


def _extremum(node: OpNode) -> int | None:
    """A reduction compares every input; the two-tensor overload every output."""
    two_tensors = isinstance(node.arg(1, "other"), TensorMeta)
    return per_output(1)(node) if two_tensors else per_input(1)(node)


def _pool(node: OpNode) -> int | None:
    """One comparison or addition for each output and each element of its window."""
    numel, window = out_numel(node), node.arg(1, "kernel_size")
    dimensions = int(node.op.split("pool", 1)[1][0])
    if numel is None or not isinstance(window, int | tuple):
        return None
    sizes = (window,) if isinstance(window, int) else window
    return numel * (prod(sizes) if len(sizes) > 1 else sizes[0] ** dimensions)


def _dropout(node: OpNode) -> int | None:
    """The identity in evaluation; in training the cost of the random draw is not known."""
    return None if node.arg(2, "train", True) else 0
