"""What rounding in float32 may do to a graph's results, by eager's own and by the model of Monte
Carlo arithmetic (D. S. Parker, 1997): the graph in float64, each operation off by some steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx

from fusion_kernels.measures import error_of
from fusion_kernels.tolerances import NumericsResult, check
from planner.fusion.subgraph import _Float64, run_in_float64, widened
from planner.graph.autocast import without_autocast
from planner.graph.view import op_name

DRAWS = 16
STEP = torch.finfo(torch.float32).eps
OF_A_FUNCTION = 4
"""Steps: rational.py states 4e-7 for tanh and erf, test_functions.py 5e-7 for most others."""

_COUNTED = ("exact", "nonfinite")
_ARITHMETIC = (
    *("add", "sub", "rsub", "mul", "div", "reciprocal", "sqrt", "rsqrt", "pow", "square"),
    *("leaky_relu", "hardswish"),
)
_FUNCTIONS = (
    *("erf", "tanh", "sigmoid", "exp", "log", "log1p", "sin", "cos", "atan2"),
    *("silu", "elu", "softplus"),
)
_CANCELLING = ("add", "sub", "rsub", "sum", "mean", "layer_norm")
_OVER_ROWS = (
    *("sum", "mean", "var", "std", "linalg_vector_norm", "softmax", "log_softmax", "logsumexp"),
    *("layer_norm", "rms_norm"),
)


def beyond_float32(
    operators: fx.GraphModule, inputs: Sequence[Tensor], index: int, out: Tensor
) -> list[NumericsResult]:
    """What breaks the contract in a result of `operators` once each element's reference is moved
    towards it by twice what float32 may be off there, and places of NaN or whole results that are
    wrong oftener than twice as often as float32's.

    That is the contract's clause for ill-conditioned inputs, an element at a time: as small values
    stand beside large ones, a tensor's largest error would hide wrong small ones. What float32 may
    be off is the largest error of two kinds of draws. The operators in float32, on inputs some
    steps off: what eager reaches. And `run_off_by_steps`, as eager alone is one draw of the
    roundings that the graph magnifies, at times a lucky one: x - tanh(x) of 1e-3 asks for the last
    bit of tanh, the mean of a layer norm is nothing but what its sums were off by. Neither kind
    reaches a wrong constant or a lost cast, unless the graph magnifies a step as much.
    """
    exact = run_in_float64(operators, inputs)[index]
    allowed, counts = _float32_errors(operators, inputs, index, exact, out.dtype)
    if out.dtype.is_floating_point:
        error = (out.double() - exact).clamp(-2 * allowed, 2 * allowed)
        exact = exact + torch.where(error.isfinite(), error, 0.0)
    return [
        result
        for result in check(out, exact)
        if not result.passed
        and (result.measure not in counts or (result.error or 0) > 2 * counts[result.measure])
    ]


def _float32_errors(
    operators: fx.GraphModule,
    inputs: Sequence[Tensor],
    index: int,
    exact: Tensor,
    dtype: torch.dtype,
) -> tuple[Tensor, dict[str, float]]:
    """Each element's largest error over the draws, and the largest counts of wrong places."""
    generator = torch.Generator().manual_seed(0)
    pairs = []
    for draw in range(DRAWS):
        near = [_off(t, OF_A_FUNCTION * STEP * bool(draw), generator) for t in inputs]
        pairs.append((operators(*near)[index], run_in_float64(operators, near)[index]))
        pairs.append((run_off_by_steps(operators, inputs, generator)[index], exact))
    # Below it a float32 has few bits, or none where a processor flushes it.
    smallest = torch.finfo(torch.float32).smallest_normal
    worst = torch.full_like(exact, smallest, dtype=torch.float64)
    counts = dict.fromkeys(_COUNTED, 0.0)
    for value, reference in pairs:
        if dtype.is_floating_point:
            worst = torch.maximum(worst, error_of(value, reference))
        for result in check(value.to(dtype), reference):
            if result.measure in counts and result.error is not None:
                counts[result.measure] = max(counts[result.measure], result.error)
    return worst, counts


def _off(tensor: Tensor, share: float, generator: torch.Generator) -> Tensor:
    if not tensor.is_floating_point():
        return tensor
    noise = torch.randn(tensor.shape, generator=generator)
    return tensor.float() * (1 + share * noise)


def run_off_by_steps(
    module: fx.GraphModule, values: Sequence[Tensor], generator: torch.Generator
) -> tuple[Tensor, ...]:
    """The module's results in float64 where each operation is off by a normal draw: arithmetic by a
    step of its result, a function by `OF_A_FUNCTION`, and what goes over rows by a step of each
    value it reads too for every level of a pairwise sum (whose errors add up so: Higham, "The
    accuracy of floating point summation", 1993). What does not round (a sign, a choice, a copy, a
    comparison) is exact, and every result is brought to float32.
    """
    with torch.no_grad(), without_autocast():
        results: tuple[Tensor, ...] = _OffBySteps(module, generator).run(*map(widened, values))
    return results


class _OffBySteps(_Float64):
    def __init__(self, module: fx.GraphModule, generator: torch.Generator) -> None:
        super().__init__(module)
        self.generator = generator

    def fetch_args_kwargs_from_env(self, n: fx.Node) -> tuple[Any, Any]:
        args, kwargs = super().fetch_args_kwargs_from_env(n)
        if _name(n) in _OVER_ROWS:
            args = (self._moved(args[0], _levels(args[0]) ** 0.5), *args[1:])
        return args, kwargs

    def run_node(self, n: fx.Node) -> Any:
        name = _name(n)
        if name == "gelu":
            return self._gelu(*self.fetch_args_kwargs_from_env(n))
        result = super().run_node(n)
        if name in _CANCELLING:
            result = self._cancelled(result, _size(n, result, *self.fetch_args_kwargs_from_env(n)))
        if name in _ARITHMETIC:
            return self._moved(result, 1)
        return self._moved(result, OF_A_FUNCTION if name in (*_FUNCTIONS, *_OVER_ROWS) else 0)

    def _cancelled(self, result: Tensor, size: Tensor) -> Tensor:
        """A difference as small as the rounding of what cancels is in half of cases zero."""
        tails = torch.rand(result.shape, generator=self.generator) < 0.5
        return result.masked_fill(tails & (result.abs() <= OF_A_FUNCTION * STEP * size), 0.0)

    def _gelu(self, args: Any, kwargs: Any) -> Tensor:
        """As eager writes it: 1 + erf loses what erf is off by for x below 0."""
        (x,) = args
        if kwargs.get("approximate", "none") == "tanh":
            inner = torch.tanh(0.7978845608028654 * (x + 0.044715 * x**3))
        else:
            inner = torch.erf(x * 0.5**0.5)
        whole = 1 + self._moved(inner, OF_A_FUNCTION)
        return self._moved(0.5 * x * self._cancelled(whole, torch.ones_like(x)), 1)

    def _moved(self, value: Any, steps: float) -> Any:
        if not isinstance(value, Tensor) or value.dtype is not torch.float64:
            return value
        noise = torch.randn(value.shape, generator=self.generator, dtype=torch.float64)
        return (value * (1 + steps * STEP * noise)).float().double()


def _levels(x: Any) -> int:
    """Of a pairwise sum over at most all elements, each level an independent error."""
    return max(1, (x.numel() - 1).bit_length()) if isinstance(x, Tensor) else 1


def _size(n: fx.Node, result: Tensor, args: Any, kwargs: Any) -> Tensor:
    """How large the result would be if nothing cancelled."""
    name, x = _name(n), args[0]
    if name == "layer_norm":
        own = x - x.mean(tuple(range(-len(args[1]), 0)), keepdim=True)
        return result.abs() * x.abs() / own.abs()
    if name in ("sum", "mean"):
        whole: Tensor = n.target(x.abs(), *args[1:], **kwargs)  # type: ignore[operator]
        return whole
    return torch.maximum(*(torch.as_tensor(value, dtype=torch.float64).abs() for value in args[:2]))


def _name(node: fx.Node) -> str:
    """ "add" of aten.add.Tensor; nothing of what is no operator, or of an integer result."""
    value = node.meta.get("val")
    floats = isinstance(value, Tensor) and value.dtype.is_floating_point
    return op_name(node).split(".")[1] if node.op == "call_function" and floats else ""
