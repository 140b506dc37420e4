"""Launches every rule's kernels and some chains once, at small shapes, for compute-sanitizer:

    PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool memcheck \\
        --error-exitcode 1 python tests/gpu/sanitizer_run.py

Without the caching allocator each tensor is an allocation of its own, so that an access past its
end is seen. Tools: memcheck, racecheck, initcheck. It exits with 1 where a result breaks the
numerics contract.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "shared")]

from fusion_kernels.emit.source import Provenance, emit  # noqa: E402
from fusion_kernels.load import load_kernel  # noqa: E402
from fusion_kernels.tolerances import check  # noqa: E402
from planner.fusion.lower import input_hint, lower  # noqa: E402
from planner.fusion.reference import reference  # noqa: E402
from planner.fusion.subgraph import run_in_float64  # noqa: E402
from rule_calls import VARIANTS, call_of  # noqa: E402

SHAPES = (((2, 3), 257), ((1, 1), 257), ((3, 5), 64))
DTYPES = (torch.bfloat16, torch.float32)


@dataclass(frozen=True, slots=True)
class Call:
    """A function of tensors, which lie on the CPU."""

    label: str
    function: Callable[..., Any]
    tensors: tuple[Tensor, ...]


def calls() -> Iterator[Call]:
    """Every variant in each dtype and shape, then chains that no rule knows."""
    for name in VARIANTS:
        for dtype in DTYPES:
            for rows, cols in SHAPES:
                call = call_of(name, rows, dtype, cols)
                yield Call(f"{name} {dtype} {(*rows, cols)}", call.function, call.tensors)
    yield from chains()


def chains() -> Iterator[Call]:
    """Loops over long rows, tiles, transposed and windowed reads, reductions over leading and
    several dimensions, integers.
    """
    generator = torch.Generator().manual_seed(0)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    yield Call("long softmax", lambda x: torch.softmax(x * 2, -1), (drawn(3, 20001),))
    yield Call("long norm", _norm, (drawn(2, 20001), drawn(20001)))
    yield Call("statistics", _statistics, (drawn(65, 300),))
    yield Call("transposed", lambda x, y: torch.relu(x.t() + y), (drawn(129, 33), drawn(33, 129)))
    yield Call("columns", lambda x: (x * 2).sum(0, keepdim=True) * 0.5, (drawn(65, 33),))
    yield Call("group norm", _group_norm, (drawn(2, 6, 5, 7), drawn(6), drawn(6)))
    yield Call("halves", lambda x, y: torch.cat((-x, y * 2), -1) * 1.5, (drawn(7, 9), drawn(7, 5)))
    whole = torch.arange(7 * 33).reshape(7, 33)
    yield Call("integers", lambda n: (n * 3 + 1) // 2 % 5, (whole,))


def _norm(x: Tensor, weight: Tensor) -> Tensor:
    return torch.nn.functional.layer_norm(x * 2, x.shape[-1:], weight)


def _group_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return torch.nn.functional.silu(torch.nn.functional.group_norm(x, 3, weight, bias))


def _statistics(x: Tensor) -> tuple[Tensor, Tensor]:
    mean, spread = x.mean(-1, keepdim=True), x.std(-1, keepdim=True)
    return mean, (x - mean) / (spread + 1)


def failure(call: Call) -> str:
    """What the kernel's results break of the contract; empty when nothing."""
    graph = make_fx(call.function, tracing_mode="fake", pre_dispatch=True)(*call.tensors).graph
    nodes = [node for node in graph.nodes if node.op == "call_function"]
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    lowered = lower(nodes, "region", input_hint({}))
    given = [call.tensors[placeholders.index(node)] for node in lowered.inputs]
    operators = reference(lowered)
    exact = run_in_float64(operators, given)
    eager = operators(*(t.float() if t.is_floating_point() else t for t in given))
    source = emit(lowered.region, Provenance("test"))
    launcher = load_kernel(source.text, source.name).launcher
    results = launcher(*lowered.arguments([tensor.cuda() for tensor in given]))
    torch.cuda.synchronize()
    outs = [out.cpu() for out in lowered.returned(results)]
    broken = [text for tensors in zip(outs, exact, eager, strict=True) for text in beyond(*tensors)]
    return f"{call.label}: {broken}" if broken else ""


def beyond(out: Tensor, exact: Tensor, eager: Tensor) -> list[str]:
    """What is broken beyond twice the error of the same operators in float32: a sum of two 16-bit
    numbers is often as near to one as to the other, and a last bit decides.
    """
    beside = {result.measure: result.error or 0.0 for result in check(eager.to(out.dtype), exact)}
    return [
        str(result)
        for result in check(out, exact)
        if not result.passed and not (result.error or 0.0) <= 2 * beside.get(result.measure, 0.0)
    ]


def main() -> int:
    made = list(calls())
    failures = list(filter(None, map(failure, made)))
    print(f"{len(made)} kernels launched, {len(failures)} wrong", *failures, sep="\n")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
