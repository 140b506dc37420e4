"""Regions from functions, their kernels run in the interpreter, and the contract's verdict."""

import inspect
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from fusion_kernels.emit.config import KernelConfig
from fusion_kernels.emit.source import KernelSource, Provenance, emit
from fusion_kernels.evaluate import evaluate
from fusion_kernels.ir import Region
from fusion_kernels.load import interpreted
from fusion_kernels.rule import FusionRule, Variant
from fusion_kernels.rules import RULES
from fusion_kernels.tolerances import check
from planner.fusion.lower import input_hint, lower
from planner.fusion.lowered import LoweredRegion
from planner.fusion.subgraph import extract, run_in_float64


@dataclass(frozen=True, slots=True)
class Traced:
    """A function of tensors as a region: `inputs` are the example's in the region's order.

    `order` holds for each input its position among the function's arguments. Where views stand
    between them and what the kernel reads or returns, `lowered` has these.
    """

    region: Region
    inputs: tuple[Tensor, ...]
    order: tuple[int, ...]
    operators: fx.GraphModule
    output_dtypes: tuple[torch.dtype, ...]
    lowered: LoweredRegion

    def ordered(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Other arguments of the function in the region's order."""
        return tuple(tensors[position] for position in self.order)

    def exact(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """The operators themselves in float64; tensors in the region's order."""
        return run_in_float64(self.operators, tensors or self.inputs)


def trace_region(
    function: Callable[..., Any],
    *tensors: Tensor,
    name: str = "region",
    names: Sequence[str] = tuple("xyzuvw"),
) -> Traced:
    """Every operator that `function` calls, lowered to one region; `names` are its arguments'."""
    graph = make_fx(function, tracing_mode="fake", pre_dispatch=True)(*tensors).graph
    calls = [node for node in graph.nodes if node.op == "call_function"]
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    hints = dict(zip((node.name for node in placeholders), names, strict=False))
    lowered = lower(calls, name, input_hint(hints))
    order = tuple(placeholders.index(node) for node in lowered.inputs)
    return Traced(
        lowered.region,
        tuple(tensors[position] for position in order),
        order,
        extract(lowered.nodes, lowered.inputs).module,
        tuple(node.meta["val"].dtype for node in lowered.outputs),
        lowered,
    )


def trace_operator(overload: Any, *args: Any, **kwargs: Any) -> Traced:
    """One call of an ATen operator, lowered as it stands; tensors among the arguments are read."""
    graph = fx.Graph()
    tensors = [arg for arg in (*args, *kwargs.values()) if isinstance(arg, Tensor)]
    nodes = {}
    for letter, tensor in zip("xyz", tensors, strict=False):
        nodes[id(tensor)] = graph.placeholder(letter)
        nodes[id(tensor)].meta["val"] = tensor

    def node_of(value: Any) -> Any:
        return nodes.get(id(value), value) if isinstance(value, Tensor) else value

    named = {key: node_of(value) for key, value in kwargs.items()}
    call = graph.call_function(overload, tuple(node_of(arg) for arg in args), named)
    call.meta["val"] = overload(*args, **kwargs)
    graph.output(call)
    lowered = lower([call], "region", input_hint({}))
    positions = [list(nodes.values()).index(node) for node in lowered.inputs]
    return Traced(
        lowered.region,
        tuple(tensors[position] for position in positions),
        tuple(positions),
        extract(lowered.nodes, lowered.inputs).module,
        (call.meta["val"].dtype,),
        lowered,
    )


def emit_region(region: Region, config: KernelConfig | None = None) -> KernelSource:
    """The kernel with an empty provenance."""
    return emit(region, Provenance("test"), config)


def run_kernel(
    region: Region, tensors: Sequence[Tensor], config: KernelConfig | None = None
) -> Any:
    """The emitted text in Triton's interpreter: a tuple of outputs."""
    source = emit_region(region, config)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # numpy's, on infinities
        out = interpreted(source.text, source.name)(*tensors)
    return (out,) if isinstance(out, Tensor) else out


def assert_keeps_the_contract(
    outs: Sequence[Tensor], exact: Sequence[Tensor], dtypes: Sequence[torch.dtype]
) -> None:
    """Every output within the numerics contract of its float64 reference."""
    for out, reference, dtype in zip(outs, exact, dtypes, strict=True):
        failed = [result for result in check(out, reference, dtype=dtype) if not result.passed]
        assert not failed, failed


def assert_region_is_right(traced: Traced, *tensors: Tensor) -> None:
    """The region by torch and as Triton text against its operators in float64."""
    inputs = traced.ordered(*tensors) if tensors else traced.inputs
    exact, read = traced.exact(*inputs), traced.lowered.arguments(inputs)
    for outs in (evaluate(traced.region, read), run_kernel(traced.region, read)):
        assert_keeps_the_contract(traced.lowered.returned(outs), exact, traced.output_dtypes)


class MemoryWatch:
    """The addresses that interpreted kernels read and write, held against their tensor arguments.

    `strays` counts unmasked accesses outside every argument, which a GPU may answer with a fault;
    `repeats` counts elements that a launch stores more than once, a race between programs.
    """

    def __init__(self) -> None:
        self.strays = 0
        self.repeats = 0
        self._ranges: list[tuple[int, int]] = []
        self._stored: list[np.ndarray[Any, Any]] = []

    def launch(self, tensors: Sequence[Tensor]) -> None:
        self._ranges = [
            (t.data_ptr(), t.data_ptr() + _reach(t) * t.element_size()) for t in tensors
        ]
        self._stored = []

    def touch(self, addresses: Any, mask: Any) -> Any:
        active = np.asarray(addresses)[np.asarray(mask).astype(bool)]
        inside = np.zeros(active.shape, dtype=bool)
        for low, high in self._ranges:
            inside |= (active >= low) & (active < high)
        self.strays += int((~inside).sum())
        return active

    def store(self, addresses: Any, mask: Any) -> None:
        self._stored.append(self.touch(addresses, mask))
        written = np.concatenate([part.reshape(-1) for part in self._stored])
        self.repeats += written.size - np.unique(written).size


def _reach(tensor: Tensor) -> int:
    """Elements from the first to the last one of a view, both counted."""
    if not tensor.numel():
        return 0
    return 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))


@pytest.fixture
def memory_watch(monkeypatch: pytest.MonkeyPatch) -> MemoryWatch:
    """Watches every launch in the interpreter while the test runs."""
    from triton.runtime import interpreter

    watch = MemoryWatch()
    builder, executor = interpreter.InterpreterBuilder, interpreter.GridExecutor
    load, store = builder.create_masked_load, builder.create_masked_store
    arguments = executor._init_args_hst

    def watched_load(self: Any, pointers: Any, mask: Any, *rest: Any) -> Any:
        watch.touch(pointers.data, mask.data)
        return load(self, pointers, mask, *rest)

    def watched_store(self: Any, pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
        watch.store(pointers.data, mask.data)
        return store(self, pointers, value, mask, *rest)

    def watched_arguments(self: Any, *given: Any) -> Any:
        on_host = arguments(self, *given)
        watch.launch([value for value in on_host[0] if isinstance(value, Tensor)])
        return on_host

    monkeypatch.setattr(builder, "create_masked_load", watched_load)
    monkeypatch.setattr(builder, "create_masked_store", watched_store)
    monkeypatch.setattr(executor, "_init_args_hst", watched_arguments)
    return watch


@dataclass(frozen=True, slots=True)
class Golden:
    """One kernel of the golden set: its region, and the provenance its header tells."""

    traced: Traced
    provenance: Provenance


def _golden_shape(example: tuple[int, ...]) -> tuple[int, ...]:
    """The larger tensor that an example stands for; what it holds once stays one."""
    if example in ((4, 8), (4, 4)):
        return (4, 128, 96 * example[-1])
    return tuple({1: 1, 2: 128, 4: 4, 8: 768, 16: 64}[n] for n in example)


def _golden_dtype(variant: Variant, name: str, dtype: torch.dtype) -> torch.dtype:
    if name in variant.indices:
        return torch.int64
    return torch.bool if name in variant.masks else dtype


_NUMBERS = {"eps": 1e-12, "cap": 30.0, "scale": 0.125, "value": float("-inf")}


def _of_rule(rule: FusionRule, variant: Variant, dtype: torch.dtype) -> Golden:
    """A variant of a named rule over [4, 128, 768], vectors of 768, conditions of [4, 1, 768]."""
    taken = inspect.signature(variant.pattern).parameters
    shapes = {n: s for n, s in variant.examples.items() if isinstance(s, tuple) and n in taken}
    tensors = [
        torch.ones(_golden_shape(shape), dtype=_golden_dtype(variant, n, dtype))
        for n, shape in shapes.items()
    ]
    numbers = {n: _NUMBERS[n] for n in taken if isinstance(variant.examples.get(n), float)}

    def function(*values: Tensor) -> Any:
        return variant.pattern(**dict(zip(shapes, values, strict=True)), **numbers)

    provenance = Provenance(
        rule=rule.name,
        modules=("encoder.layer.0.output",),
        source="model.py:42  return self.norm(self.dense(hidden) + residual)",
        passes_before=5,
        passes_after=3,
    )
    return Golden(
        trace_region(function, *tensors, name=variant.name, names=tuple(shapes)), provenance
    )


def _masked_scores(scores: Tensor, bias: Tensor, keep: Tensor) -> Tensor:
    return (scores * 0.125 + bias).masked_fill(~keep, float("-inf")).clamp(max=1e4)


def _affine_relu(image: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    return torch.relu(image * scale + shift)


def _gated(gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    opened = torch.nn.functional.silu(gate.float()).to(gate.dtype)
    return opened, opened * up


def _counted(count: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
    total = count * 2 + chosen
    return total, (total > 3) & chosen


def _long_softmax(scores: Tensor) -> Tensor:
    return torch.softmax(scores * 0.5, -1)


def _statistics(x: Tensor) -> tuple[Tensor, Tensor]:
    mean = x.mean(-1, keepdim=True)
    return mean, (x - mean) * torch.rsqrt(x.var(-1, correction=0, keepdim=True) + 1e-5)


def _dequantized(codes: Tensor, scale: Tensor) -> Tensor:
    return codes.to(torch.bfloat16) * scale


def _quantized(x: Tensor) -> tuple[Tensor, Tensor]:
    scale = x.abs().amax(-1, keepdim=True).clamp(min=1e-6) / torch.finfo(torch.float8_e5m2).max
    return (x / scale).to(torch.float8_e5m2), scale


def _chains() -> dict[str, Golden]:
    image = torch.ones(2, 64, 8, 8).to(memory_format=torch.channels_last)
    keep = torch.ones(4, 1, 1, 128, dtype=torch.bool)
    gates = torch.ones(4, 128, 2 * 512, dtype=torch.bfloat16).chunk(2, dim=-1)
    whole = torch.ones(4, 100, dtype=torch.int64)
    made = {
        "masked_scores_f32": (_masked_scores, (torch.ones(4, 12, 128, 128), torch.ones(128), keep)),
        "affine_relu_f32": (_affine_relu, (image, torch.ones(64, 1, 1), torch.ones(64, 1, 1))),
        "gated_bf16": (_gated, gates),
        "counted_i64": (_counted, (whole, whole.bool())),
        "long_softmax_bf16": (_long_softmax, (torch.ones(4, 32000, dtype=torch.bfloat16),)),
        "statistics_f32": (_statistics, (torch.ones(64, 768),)),
        "dequantized_f8e4m3": (
            _dequantized,
            (torch.ones(64, 768).to(torch.float8_e4m3fn), torch.ones(64, 1, dtype=torch.bfloat16)),
        ),
        "quantized_f8e5m2": (_quantized, (torch.ones(64, 768, dtype=torch.bfloat16),)),
    }
    return {
        label: Golden(
            trace_region(
                function,
                *tensors,
                name=label.rpartition("_")[0],
                names=tuple(inspect.signature(function).parameters),
            ),
            Provenance("pointwise_chain"),
        )
        for label, (function, tensors) in made.items()
    }


@cache
def golden_set() -> dict[str, Golden]:
    """Both named rules in every form, float32 and bfloat16, and some automatic chains."""
    dtypes = {"f32": torch.float32, "bf16": torch.bfloat16}
    rules = {
        f"{variant.name}_{short}": _of_rule(rule, variant, dtype)
        for rule in RULES
        for variant in rule.variants
        for short, dtype in dtypes.items()
    }
    return {**rules, **_chains()}


@pytest.fixture(scope="session")
def golden_kernels() -> dict[str, Golden]:
    return golden_set()


@pytest.fixture(scope="session")
def traced() -> Callable[..., Traced]:
    return trace_region


@pytest.fixture(scope="session")
def traced_operator() -> Callable[..., Traced]:
    return trace_operator


@pytest.fixture(scope="session")
def kernel_source() -> Callable[..., KernelSource]:
    return emit_region


@pytest.fixture(scope="session")
def kernel_run() -> Callable[..., Any]:
    return run_kernel


@pytest.fixture(scope="session")
def assert_right() -> Callable[..., None]:
    return assert_region_is_right


@pytest.fixture(scope="session")
def keeps_contract() -> Callable[..., None]:
    return assert_keeps_the_contract


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """`golden` stands for each label of the golden set in turn."""
    if "golden" in metafunc.fixturenames:
        metafunc.parametrize("golden", sorted(golden_set()))
