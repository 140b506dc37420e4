"""Region operations as Triton text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite

from fusion_kernels.functions.table import FUNCTIONS, needed
from fusion_kernels.ir import FLOATING, INFIX, Operand, Statement
from fusion_kernels.rational import RATIONALS, OddRational

_CALLS = {
    "abs": "tl.abs",
    "exp": "tl.exp",
    "exp2": "tl.exp2",
    "log": "tl.log",
    "log2": "tl.log2",
    "sqrt": "tl.sqrt",
    "rsqrt": "tl.rsqrt",
    "sigmoid": "tl.sigmoid",
    "sin": "tl.sin",
    "cos": "tl.cos",
    "floor": "tl.floor",
    "ceil": "tl.ceil",
    "where": "tl.where",
    "erf": "erf",
    "tanh": "tanh",
    **{name: name for name in FUNCTIONS},
}
# Python's precedence, loosest first. Bits bind tighter than comparisons.
_COMPARISON = 1
_LEVEL = {"<": 1, "<=": 1, ">": 1, ">=": 1, "==": 1, "!=": 1, "|": 2, "^": 3, "&": 4}
_LEVEL |= {"<<": 5, ">>": 5, "+": 6, "-": 6}
QUOTIENT, ATOM = 7, 9
_LEVEL |= {"*": QUOTIENT, "/": QUOTIENT, "//": QUOTIENT, "%": QUOTIENT}
# Triton's own / and sqrt are off by up to two units in the last place on NVIDIA, and x - sum / n
# shows it beside eager, which rounds (https://github.com/triton-lang/triton/issues/10661).
_ROUNDED = {"div": "tl.div_rn", "sqrt": "tl.sqrt_rn"}
_NAN_KEEPING = {"maximum": "tl.maximum", "minimum": "tl.minimum"}
TL_DTYPE = {
    "float16": "tl.float16",
    "bfloat16": "tl.bfloat16",
    "float32": "tl.float32",
    "uint8": "tl.uint8",
    "int8": "tl.int8",
    "int16": "tl.int16",
    "int32": "tl.int32",
    "int64": "tl.int64",
    "bool": "tl.int1",
}


PRODUCT = "product"
_PRODUCT = f"@triton.jit\ndef {PRODUCT}(a, b):\n    return a * b\n"


@dataclass(frozen=True, slots=True)
class Text:
    """Python text and how tightly it binds; a higher level binds tighter.

    A call has its parts too, for a line break within its parentheses: `head(items)`.
    """

    text: str
    level: int
    head: str = ""
    items: tuple[str, ...] = ()

    def at(self, level: int) -> str:
        """The text as an operand that needs at least `level`, in parentheses where it binds
        less.
        """
        return self.text if self.level >= level else f"({self.text})"


def call(head: str, *items: str) -> Text:
    """`head(item, item)`."""
    return Text(f"{head}({', '.join(items)})", ATOM, head, items)


def triton_text(statement: Statement, inlined: Mapping[str, Text] | None = None) -> Text:
    """The right-hand side of a pointwise statement, with `inlined` names replaced by their text.

    Reductions are the template's business.
    """
    known = inlined or {}
    args = [
        known[arg] if isinstance(arg, str) and arg in known else Text(literal(arg), ATOM)
        for arg in statement.args
    ]
    op = statement.op
    if op in _ROUNDED and statement.dtype == "float32":
        return call(_ROUNDED[op], *(arg.text for arg in args))
    if op in INFIX:
        level = _LEVEL[INFIX[op]]
        # A comparison beside a comparison would be read as a chain.
        left = level + 1 if level == _COMPARISON else level
        return Text(f"{args[0].at(left)} {INFIX[op]} {args[1].at(level + 1)}", level)
    if op == "neg" and statement.dtype == "float32":
        # Triton's minus is 0 - x, and -0.0 for 0.0 gets lost.
        return Text(f"-1.0 * {args[0].at(QUOTIENT + 1)}", QUOTIENT)
    if op == "neg":
        return Text(f"-{args[0].at(ATOM)}", ATOM - 1)
    if op == "not":
        return Text(f"~{args[0].at(ATOM)}", ATOM - 1)
    if op == "full":
        return call("tl.full", "()", args[0].text, TL_DTYPE[statement.dtype])
    if op == "signbit":
        return Text(f"{args[0].at(ATOM)}.to(tl.int32, bitcast=True) < 0", _COMPARISON)
    if op == "cast":
        return Text(_cast_text(args[0].at(ATOM), str(statement.args[1]), statement.dtype), ATOM)
    plain = [arg.text for arg in args]
    if op in _NAN_KEEPING:
        return call(_NAN_KEEPING[op], *plain, "propagate_nan=tl.PropagateNan.ALL")
    return call(_CALLS[op], *plain)


def literal(value: Operand) -> str:
    """A name as it is, a number as a formatter leaves it; infinities and NaN by name."""
    if isinstance(value, float) and not isfinite(value):
        return f'float("{value}")'
    return value if isinstance(value, str) else repr(value).replace("e+", "e")


def device_function(rational: OddRational) -> str:
    """The @triton.jit text of an odd rational, by Horner's scheme."""
    return f'''@triton.jit
def {rational.name}(x):
    """x * P(x*x) / Q(x*x), exactly +-1 from |x| = {rational.limit} on; error below 4e-7."""
    t = x * x
{_horner("p", rational.numerator)}
{_horner("q", rational.denominator)}
    return tl.where(tl.abs(x) >= {rational.limit}, tl.where(x < 0.0, -1.0, 1.0), x * p / q)
'''


def device_functions(region_ops: set[str]) -> list[str]:
    """The device functions the operations need, in a fixed order."""
    rationals = [name for name in sorted(RATIONALS) if name in region_ops]
    texts = [device_function(RATIONALS[name]) for name in rationals]
    texts += [_PRODUCT] if "row_prod" in region_ops else []
    return [*texts, *(item.text for item in needed(region_ops))]


def _cast_text(value: str, through: str, dtype: str) -> str:
    if through in FLOATING and through != "float32":
        return f"{value}.to({TL_DTYPE[through]}).to(tl.float32)"
    return f"{value}.to({TL_DTYPE[dtype]})"


def _horner(name: str, coefficients: tuple[float, ...]) -> str:
    lines = [f"    {name} = {coefficients[-1]!r}"]
    lines += [f"    {name} = {name} * t + {c!r}" for c in reversed(coefficients[:-1])]
    return "\n".join(lines)
