"""A repeated launch is the recorded one on new operands, and only where it would be the same."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fusion_kernels.launch import RepeatedLaunch


class Compiled:
    """What Triton compiled: adds, and counts how often it is started directly."""

    def __init__(self) -> None:
        self.grids: list[tuple[int, ...]] = []
        self.plain: list[tuple[Any, ...]] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def start(x: torch.Tensor, y: torch.Tensor, out: torch.Tensor, *rest: Any) -> None:
            self.grids.append(grid)
            self.plain.append(rest)
            out.copy_(x + y)

        return start


class Kernel:
    """A jitted kernel: counts the slow launches."""

    def __init__(self) -> None:
        self.slow = 0
        self.compiled = Compiled()

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., Compiled]:
        def start(
            x: torch.Tensor, y: torch.Tensor, out: torch.Tensor, *_: Any, **__: Any
        ) -> Compiled:
            self.slow += 1
            out.copy_(x + y)
            return self.compiled

        return start


@pytest.fixture
def module() -> SimpleNamespace:
    kernel = Kernel()
    space = SimpleNamespace(add_kernel=kernel, kernel=kernel)

    def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x, y = x.contiguous(), y.contiguous()
        out = torch.empty(x.shape)
        if out.numel():
            space.add_kernel[(3,)](x, y, out, x.numel(), BLOCK_SIZE=64, GROUP=16, num_warps=4)
        return out

    space.add = add
    return space


def repeated(module: SimpleNamespace) -> RepeatedLaunch:
    return RepeatedLaunch(module.add, module, "add_kernel")


def test_equal_inputs_start_the_compiled_kernel_on_new_outputs(module: SimpleNamespace) -> None:
    run = repeated(module)
    results = []
    for seed in range(3):
        torch.manual_seed(seed)
        x, y = torch.randn(2, 4, 8)
        results.append(run(x, y))
        assert torch.equal(results[-1], x + y)
    assert module.kernel.slow == 1
    assert module.kernel.compiled.grids == [(3, 1, 1)] * 2
    assert module.kernel.compiled.plain == [(32, 64, 16)] * 2  # sizes, then constexprs
    assert results[1].data_ptr() != results[2].data_ptr()


def test_another_shape_or_stride_is_launched_anew(module: SimpleNamespace) -> None:
    run = repeated(module)
    run(torch.ones(4, 8), torch.ones(4, 8))
    run(torch.ones(2, 8), torch.ones(2, 8))
    assert torch.equal(run(torch.ones(8, 4).t(), torch.ones(4, 8)), torch.full((4, 8), 2.0))
    assert module.kernel.slow == 3


def test_operands_that_had_to_be_copied_are_never_repeated(module: SimpleNamespace) -> None:
    run = repeated(module)
    for value in (1.0, 2.0):
        x = torch.full((8, 4), value).t()
        assert torch.equal(run(x, torch.ones(4, 8)), torch.full((4, 8), value + 1))
    assert module.kernel.slow == 2


def test_what_lies_permuted_is_repeated_where_it_lies(module: SimpleNamespace) -> None:
    def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x, y = x.t(), y.t()
        out = torch.empty(x.shape)
        module.add_kernel[(3,)](x, y, out, x.numel(), BLOCK_SIZE=64, GROUP=16, num_warps=4)
        return out.t()

    module.add = add
    run = repeated(module)
    run(torch.zeros(8, 4).t(), torch.zeros(8, 4).t())
    x, y = torch.randn(8, 4).t(), torch.randn(8, 4).t()
    out = run(x, y)
    assert module.kernel.slow == 1
    assert torch.equal(out, x + y)
    assert out.stride() == (1, 4)


def test_an_unaligned_pointer_goes_through_the_launcher(module: SimpleNamespace) -> None:
    run = repeated(module)
    storage = torch.arange(33.0)
    run(storage[:32].view(4, 8), torch.ones(4, 8))
    shifted = storage[1:].view(4, 8)
    assert torch.equal(run(shifted, torch.ones(4, 8)), shifted + 1)
    assert module.kernel.slow == 2


def test_an_empty_output_launches_nothing(module: SimpleNamespace) -> None:
    run = repeated(module)
    for _ in range(2):
        assert run(torch.ones(0, 8), torch.ones(0, 8)).shape == (0, 8)
    assert module.kernel.slow == 0


def test_one_tensor_in_two_places_is_not_taken_for_two(module: SimpleNamespace) -> None:
    run = repeated(module)
    x, y = torch.ones(4, 8), torch.full((4, 8), 3.0)
    assert torch.equal(run(x, x), x + x)
    assert torch.equal(run(x, y), x + y)
    assert torch.equal(run(y, x), x + y)


class OnDevice(Compiled):
    """What Triton compiled for CUDA: `run` takes addresses, which this one only writes down."""

    function, packed_metadata = "function", "packed"

    def __init__(self) -> None:
        super().__init__()
        self.started: list[tuple[Any, ...]] = []

    def run(self, *arguments: Any) -> None:
        self.started.append(arguments)


def test_on_cuda_a_kernel_is_started_by_addresses_on_the_current_stream(
    module: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: 1, raising=False)
    streams = iter((70, 71))
    monkeypatch.setattr(
        torch._C, "_cuda_getCurrentRawStream", lambda device: device * 1000 + next(streams), False
    )
    module.kernel.compiled = OnDevice()
    run = repeated(module)
    run(torch.ones(4, 8), torch.ones(4, 8))
    x, y = torch.randn(2, 4, 8)
    outs = [run(x, y), run(y, x)]
    start = (3, 1, 1), ("function", "packed", None, None, None), (32, 64, 16)
    assert module.kernel.compiled.started == [
        (*start[0], 1070, *start[1], x.data_ptr(), y.data_ptr(), outs[0].data_ptr(), *start[2]),
        (*start[0], 1071, *start[1], y.data_ptr(), x.data_ptr(), outs[1].data_ptr(), *start[2]),
    ]
    assert module.kernel.slow == 1


def test_nothing_of_a_call_is_kept_alive(module: SimpleNamespace) -> None:
    run = repeated(module)
    for _ in range(2):
        x = torch.ones(8, 4).t()
        gone = weakref.ref(run(x, torch.ones(4, 8)))
        assert gone() is None


def _of_codes(space: SimpleNamespace) -> RepeatedLaunch:
    """A launcher that hands the kernel the codes of its 8-bit operands."""

    def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        out = torch.empty(x.shape, dtype=x.dtype)
        codes = (tensor.view(torch.uint8) for tensor in (x, y, out))
        space.add_kernel[(3,)](*codes, x.numel(), BLOCK_SIZE=64, GROUP=16, num_warps=4)
        return out

    return RepeatedLaunch(add, space, "add_kernel")


def _eight_bits(value: int) -> torch.Tensor:
    return torch.full((4, 8), value, dtype=torch.uint8).view(torch.float8_e4m3fn)


def test_operands_in_8_bits_are_known_by_their_codes(module: SimpleNamespace) -> None:
    run = _of_codes(module)
    module.kernel.compiled.__class__ = type("AddsCodes", (Compiled,), {"__getitem__": _adds_codes})
    for value in (1, 2, 3):
        out = run(_eight_bits(value), _eight_bits(10 * value))
        assert out.dtype is torch.float8_e4m3fn
        assert torch.equal(out.view(torch.uint8), torch.full((4, 8), 11 * value, dtype=torch.uint8))
    assert module.kernel.slow == 1


def _adds_codes(_: Compiled, grid: tuple[int, ...]) -> Callable[..., None]:
    assert grid == (3, 1, 1)

    def start(x: torch.Tensor, y: torch.Tensor, out: torch.Tensor, *_: Any) -> None:
        bits = out.view(torch.uint8)
        bits.copy_(x.view(torch.uint8) + y.view(torch.uint8))

    return start


def test_two_8_bit_operands_at_one_address_are_launched_anew(module: SimpleNamespace) -> None:
    run = _of_codes(module)
    x, y = _eight_bits(1), _eight_bits(3)
    for first, second, total in ((x, x.view(4, 8), 2), (x, y, 4), (y, x, 4)):
        assert (run(first, second).view(torch.uint8) == total).all()
    assert module.kernel.slow == 3
