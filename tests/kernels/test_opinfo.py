"""torch's operator database: every pointwise and reduction entry, alone and in a chain, by torch
and as text.
"""

from __future__ import annotations

import importlib.util
import sys
import unittest
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_flatten, tree_unflatten

if importlib.util.find_spec("expecttest") is None:
    # torch's test base class derives from it; the operator database uses nothing of it.
    stand_in: Any = ModuleType("expecttest")
    stand_in.TestCase = unittest.TestCase
    sys.modules["expecttest"] = stand_in

from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import (
    BinaryUfuncInfo,
    OpInfo,
    ReductionOpInfo,
    UnaryUfuncInfo,
)

from fusion_kernels.builder import NotLowered
from fusion_kernels.emit.source import Provenance, emit
from fusion_kernels.evaluate import evaluate
from fusion_kernels.ir import Region
from fusion_kernels.load import load_kernel
from fusion_kernels.tolerances import NumericsResult, check
from planner.fusion.exact import NEXT_AFTER
from planner.fusion.lower import input_hint, lower
from planner.fusion.lowered import LoweredRegion
from planner.fusion.reference import reference
from planner.fusion.subgraph import run_in_float64
from planner.graph.view import op_name

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.bool)
KINDS = (UnaryUfuncInfo, BinaryUfuncInfo, ReductionOpInfo)
NARROW = (torch.uint8, torch.int8, torch.int16)
MOST_EXCLUDED = 0.05

# Entries that are elementwise or reduce without being filed as such functions.
OTHERS = (
    *("addcmul", "addcdiv", "lerp", "clamp", "where", "masked_fill", "logaddexp2", "clone"),
    *("nn.functional.hardswish", "nn.functional.leaky_relu", "nn.functional.gelu"),
    *("full_like", "zeros_like", "ones_like", "resolve_conj", "resolve_neg"),
    *("alias_copy", "softmax", "log_softmax", "nn.functional.softmin", "logsumexp"),
    *("nn.functional.layer_norm", "nn.functional.rms_norm", "nn.functional.group_norm"),
    *("nn.functional.batch_norm", "norm", "norm.fro", "norm.inf"),
)

# Of the entries those that no region holds, and why.
EXCLUDED = {
    "complex": "its result is complex",
    "polar": "its result is complex",
    "cdouble": "its result is complex",
    "cfloat": "its result is complex",
    "chalf": "its result is complex",
    "double": "its result is float64, in which a region does not compute",
    "float_power": "its result is float64, in which a region does not compute",
    "frexp": "it returns two tensors",
    "argmax": "its result is a position, not a value of the row",
    "argmin": "its result is a position, not a value of the row",
    "igamma": "a series of as many terms as the values ask for",
    "igammac": "a continued fraction of as many terms as the values ask for",
}


def label(entry: OpInfo) -> str:
    """ "nn.functional.elu", or "div.floor_rounding" where there are variants."""
    return f"{entry.name}.{entry.variant_test_name}" if entry.variant_test_name else entry.name


def entries() -> tuple[OpInfo, ...]:
    """The pointwise and reduction entries that are operators on one of `DTYPES` on CPU:
    jiterator's run on GPUs only, conj of a real tensor is the tensor, hash_tensor is a checksum of
    bits, and those of torch.masked are Python functions of operators that the database has too.
    """
    found = [entry for entry in op_db if isinstance(entry, KINDS) or label(entry) in OTHERS]
    return tuple(
        entry
        for entry in found
        if set(DTYPES) & set(entry.dtypes)
        and not entry.name.startswith(("jiterator", "masked."))
        and entry.name not in ("conj", "hash_tensor")
    )


ENTRIES = {label(entry): entry for entry in entries()}
EVERY_CASE = [
    pytest.param(entry, dtype, id=f"{name}-{str(dtype)[6:]}")
    for name, entry in ENTRIES.items()
    for dtype in (*DTYPES, *NARROW)
    if dtype in entry.dtypes and name not in EXCLUDED
]
CASES = [case for case in EVERY_CASE if case.values[1] in DTYPES]


@dataclass(frozen=True, slots=True)
class Sample:
    """One call of an entry: `function(*tensors)`."""

    function: Callable[..., Any]
    tensors: tuple[Tensor, ...]
    text: str


def samples(entry: OpInfo, dtype: torch.dtype) -> Iterator[Sample]:
    """The entry's sample inputs in a fixed draw."""
    torch.manual_seed(0)
    for sample in entry.sample_inputs("cpu", dtype, requires_grad=False):
        # The samples of rrelu draw random slopes, as in training; a region is for inference.
        kwargs = dict(sample.kwargs)
        if entry.name == "nn.functional.rrelu":
            kwargs["training"] = False
        # Where there is a GPU the database asks for results there of inputs on the CPU.
        if "device" in kwargs:
            kwargs["device"] = "cpu"
        leaves, spec = tree_flatten((sample.input, sample.args, kwargs))
        places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
        yield Sample(
            _call(entry, leaves, places, spec),
            tuple(leaves[place] for place in places),
            ", ".join(map(_described, leaves)),
        )


def _call(entry: OpInfo, leaves: list[Any], places: list[int], spec: Any) -> Callable[..., Any]:
    def call(*tensors: Tensor) -> Any:
        filled = list(leaves)
        for place, tensor in zip(places, tensors, strict=True):
            filled[place] = tensor
        first, args, kwargs = tree_unflatten(filled, spec)
        return entry.op(first, *args, **kwargs)

    return call


def _described(leaf: Any) -> str:
    if isinstance(leaf, Tensor):
        return f"{str(leaf.dtype)[6:]}{list(leaf.shape)}"
    return str(leaf)


def chained(sample: Sample) -> Sample:
    """The call in a chain: its result scaled, and the first tensor added where it is as large."""

    def call(*tensors: Tensor) -> Any:
        result = sample.function(*tensors)
        scaled = result * 1.5
        return scaled + tensors[0] if tensors[0].shape == result.shape else scaled + 0.25

    return Sample(call, sample.tensors, f"{sample.text} in a chain")


def both(sample: Sample) -> Sample:
    """The call's result and that of the chain, out of one region."""
    chain = chained(sample).function

    def call(*tensors: Tensor) -> Any:
        return sample.function(*tensors), chain(*tensors)

    return Sample(call, sample.tensors, f"{sample.text} and in a chain")


@dataclass(frozen=True, slots=True)
class Case:
    """A lowered call, its float64 reference, and what eager makes of it in float32."""

    lowered: LoweredRegion
    inputs: tuple[Tensor, ...]
    exact: tuple[Tensor, ...]
    eager: tuple[Tensor, ...]
    dtypes: tuple[torch.dtype, ...]

    def run(self, kernel: Callable[..., Any]) -> tuple[Tensor, ...]:
        """The values of the nodes, out of `kernel(region, tensors)`."""
        return self.lowered.returned(
            kernel(self.lowered.region, self.lowered.arguments(self.inputs))
        )


def case_of(sample: Sample) -> Case:
    """The call traced and lowered as the planner does it. Raises `NotLowered`."""
    graph = make_fx(sample.function, tracing_mode="fake", pre_dispatch=True)(*sample.tensors).graph
    calls = [node for node in graph.nodes if node.op == "call_function"]
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    if not calls:
        raise NotLowered("it hands its input on without an operator")
    lowered = lower(calls, "region", input_hint({}))
    inputs = tuple(sample.tensors[placeholders.index(node)] for node in lowered.inputs)
    module = reference(lowered)
    dtypes = tuple(node.meta["val"].dtype for node in lowered.outputs)
    exact = run_in_float64(module, inputs)
    # A neighbour is one of a dtype; float32's says nothing of 16 bits.
    in_float32 = all(op_name(node) != NEXT_AFTER for node in calls)
    eager = module(*map(_as_float32, inputs) if in_float32 else inputs)
    rounded = tuple(out.to(dtype) for out, dtype in zip(eager, dtypes, strict=True))
    return Case(lowered, inputs, exact, rounded, dtypes)


def _as_float32(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.is_floating_point() else tensor


def failures(case: Case, outs: tuple[Tensor, ...]) -> list[NumericsResult]:
    """What breaks the contract. Where eager's own float32 breaks it too, the limit is twice its
    error.
    """
    failed = []
    for out, exact, eager, dtype in zip(outs, case.exact, case.eager, case.dtypes, strict=True):
        for result in check(out, exact, eager=eager, dtype=dtype):
            error, beside = result.error, result.eager_error
            ill = error is not None and beside is not None and beside > result.limit
            if not result.passed and not (ill and error <= 2 * beside):
                failed.append(result)
    return failed


def assert_right(case: Case, text: str, dtype: torch.dtype, kernel_run: Callable[..., Any]) -> None:
    """By torch in every dtype; as text where the interpreter's word counts, up to float32."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        outs = case.run(evaluate)
    assert not failures(case, outs), (text, failures(case, outs))
    if dtype in (torch.bfloat16, torch.float16):
        return
    outs = case.run(kernel_run)
    assert not failures(case, outs), (f"{text}, as text", failures(case, outs))


def first_case(entry: OpInfo, dtype: torch.dtype) -> tuple[Case, str]:
    """The first sample with several elements that lowers, else the first that lowers, alone and in
    a chain.
    """
    drawn = list(samples(entry, dtype))
    drawn.sort(key=lambda sample: max(t.numel() for t in sample.tensors) < 2)
    for sample in map(both, drawn):
        with suppress(NotLowered):
            return case_of(sample), sample.text
    raise AssertionError("no sample lowers")


@pytest.mark.parametrize(("entry", "dtype"), CASES)
def test_an_entry_alone_and_in_a_chain(entry: OpInfo, dtype: torch.dtype, kernel_run: Any) -> None:
    case, text = first_case(entry, dtype)
    assert_right(case, text, dtype, kernel_run)


@pytest.mark.slow
@pytest.mark.parametrize(("entry", "dtype"), EVERY_CASE)
def test_all_samples_alone_and_in_a_chain(entry: OpInfo, dtype: torch.dtype, ledger: Any) -> None:
    """By torch: no compiler and no interpreter, which the first sample goes through."""
    kept = ledger("opinfo", cases=len(EVERY_CASE), device="cpu")
    key = f"{label(entry)}-{str(dtype)[6:]}"
    record = kept.record(key) or tally(entry, dtype, evaluate)
    kept.add(key, record)
    assert not record["failures"]
    assert record["held"]


HALVES = [case for case in CASES if case.values[1] in (torch.bfloat16, torch.float16)]


@pytest.mark.gpu
@pytest.mark.parametrize(("entry", "dtype"), HALVES)
def test_all_half_samples_on_a_gpu(entry: OpInfo, dtype: torch.dtype, ledger: Any) -> None:
    """Every sample's kernel compiled and launched; the interpreter does not speak for 16 bits."""
    kept = ledger("opinfo_gpu", cases=len(HALVES), device=torch.cuda.get_device_name())
    key = f"{label(entry)}-{str(dtype)[6:]}"
    record = kept.record(key) or tally(entry, dtype, launched)
    kept.add(key, record)
    assert not record["failures"]
    assert record["held"]


def tally(entry: OpInfo, dtype: torch.dtype, run: Callable[..., Any]) -> dict[str, Any]:
    """How many samples of the entry a region holds, why it does not hold the others, and what
    breaks the contract. The call and its chain come out of one region.
    """
    count, held, left, failed = 0, 0, Counter[str](), []
    for sample in samples(entry, dtype):
        count += 1
        try:
            case = case_of(both(sample))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                broken = failures(case, case.run(run))
        except NotLowered as reason:
            left[str(reason)] += 1
        except Exception as error:  # of whatever kind, it is a finding
            failed.append(f"{sample.text}: {error!r}"[:500])
        else:
            held += 1
            failed += [f"{sample.text}: {result}" for result in broken]
    return {"samples": count, "held": held, "left": left, "failures": failed}


def launched(region: Region, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The region's kernel on the GPU, with its results on the CPU."""
    source = emit(region, Provenance("test"))
    kernel = load_kernel(source.text, source.name)
    outs = kernel.launcher(*map(on_gpu, tensors))
    return tuple(out.cpu() for out in ((outs,) if isinstance(outs, Tensor) else outs))


def on_gpu(tensor: Tensor) -> Tensor:
    """A copy that lies in memory as the tensor does."""
    storage = tensor.untyped_storage().cuda()
    copy = torch.empty(0, dtype=tensor.dtype, device="cuda")
    return copy.set_(storage, tensor.storage_offset(), tensor.shape, tensor.stride())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_neighbour_is_that_of_the_rounded_operand(dtype: torch.dtype, kernel_run: Any) -> None:
    """A kernel keeps its intermediates in float32, whose neighbours are others."""
    x, y, toward = (torch.randn(5, 257).to(dtype) for _ in range(3))
    sample = Sample(lambda *t: torch.nextafter(t[0] + t[1], t[2]), (x, y, toward), "of a sum")
    case = case_of(sample)
    wanted = torch.nextafter((x.double() + y.double()).to(dtype), toward)
    for run in (evaluate, kernel_run):
        (out,) = case.run(run)
        assert torch.equal(out, wanted)


@pytest.mark.parametrize("name", EXCLUDED)
def test_an_excluded_entry_is_refused_with_a_reason(name: str) -> None:
    entry = ENTRIES[name]
    for dtype in set(DTYPES) & set(entry.dtypes):
        for sample in samples(entry, dtype):
            with pytest.raises(NotLowered, match=r"\w"):
                case_of(sample)


def test_at_most_one_entry_in_twenty_is_excluded(record_property: Callable[..., None]) -> None:
    share = len(EXCLUDED) / len(ENTRIES)
    record_property("excluded_share", round(share, 4))
    assert set(EXCLUDED) <= set(ENTRIES)
    assert share <= MOST_EXCLUDED, f"{share:.1%} of {len(ENTRIES)} entries"
