"""What a fused module writes to and shares: buffers, inputs, tied weights, copies of itself."""

from __future__ import annotations

import copy
import io
import pickle
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from fused_models import Applied, Block, falls_back
from torch import Tensor, nn
from torch.nn.functional import gelu

from planner.fusion.module import NotPicklable

pytestmark = pytest.mark.usefixtures("no_unexpected_warning")

# --- buffers and inputs that the forward writes to -------------------------------------------


def _counting(m: Any, x: Tensor) -> Tensor:
    m.count.add_(1)
    return gelu(x + m.bias) + m.count


def test_a_counting_buffer_goes_on_as_in_eager(fuse_all: Any, x: Tensor) -> None:
    model = Applied(_counting).eval()
    fused, eager = fuse_all(model, (x,)).module, copy.deepcopy(model)
    for _ in range(3):
        torch.testing.assert_close(fused(x), eager(x))
    assert torch.equal(fused.count, torch.full((8,), 3.0))
    assert torch.equal(model.count, torch.zeros(8))
    assert fused.fallbacks == 0


def test_falling_back_counts_in_the_same_buffer(fuse_all: Any, x: Tensor) -> None:
    fused = fuse_all(Applied(_counting).eval(), (x,)).module
    fused(x)
    falls_back(fused, "float32[1, 8]", x[:1])
    fused(x)
    assert torch.equal(fused.count, torch.full((8,), 3.0))


def test_buffers_may_change_places(fuse_all: Any, x: Tensor) -> None:
    def form(m: Any, x: Tensor) -> Tensor:
        kept = m.count.clone()
        m.count.copy_(m.other)
        m.other.copy_(kept)
        return gelu(x + m.bias)

    fused = fuse_all(Applied(form).eval(), (x,)).module
    fused(x)
    assert torch.equal(fused.count, torch.ones(8))
    assert torch.equal(fused.other, torch.zeros(8))


def test_a_returned_buffer_is_the_buffer(fuse_all: Any, x: Tensor) -> None:
    def form(m: Any, x: Tensor) -> Any:
        return m.count.add_(1), gelu(x + m.bias)

    fused = fuse_all(Applied(form).eval(), (x,)).module
    out, _ = fused(x)
    assert out is fused.count
    assert torch.equal(out, torch.ones(8))


def test_an_input_is_written_as_in_eager(fuse_all: Any, x: Tensor) -> None:
    def form(m: Any, x: Tensor) -> Any:
        x.mul_(2)
        return gelu(x + m.bias), x

    model = Applied(form).eval()
    fused = fuse_all(model, (x.clone(),)).module
    ours, theirs = x.clone(), x.clone()
    out, returned = fused(ours)
    torch.testing.assert_close(out, model(theirs)[0])
    assert torch.equal(ours, theirs)
    assert returned is ours


def test_inputs_that_share_memory_with_a_written_one_fall_back(fuse_all: Any, x: Tensor) -> None:
    def form(m: Any, x: Tensor, y: Tensor) -> Any:
        x.mul_(2)
        return gelu(y + m.bias) + x

    model = Applied(form).eval()
    fused = fuse_all(model, (x.clone(), x.clone())).module
    ours, theirs = x.clone(), x.clone()
    out = falls_back(fused, "share memory", ours, ours)
    torch.testing.assert_close(out, model(theirs, theirs))


def test_outputs_may_be_the_input_a_view_of_it_or_a_parameter(fuse_all: Any, x: Tensor) -> None:
    model = Applied(lambda m, x: (x, x.view(-1), m.bias, gelu(x + m.bias))).eval()
    fused = fuse_all(model, (x,)).module
    same, view, parameter, _ = fused(x)
    assert same is x
    assert view.data_ptr() == x.data_ptr()
    assert parameter is fused.bias


def test_a_constant_that_is_returned_is_the_callers_own(fuse_all: Any, x: Tensor) -> None:
    fused = fuse_all(Applied(lambda m, x: (torch.arange(8), gelu(x + m.bias))).eval(), (x,)).module
    fused(x)[0].add_(100)
    assert torch.equal(fused(x)[0], torch.arange(8))


def _views_of_a_constant(m: Any, x: Tensor) -> Any:
    table = m.table
    views = (table.expand(3, 8), table[1::2], table.view(2, 4), table[:0], table)
    return *views, m.numbers.conj(), m.numbers.real, gelu(x + m.bias)


def test_returned_views_keep_their_strides_and_what_they_share(fuse_all: Any, x: Tensor) -> None:
    model = Applied(_views_of_a_constant).eval()
    model.table, model.numbers = torch.linspace(0, 1, 8), torch.randn(3, 4, dtype=torch.complex64)
    fused = fuse_all(model, (x,)).module
    ours, theirs = fused(x), copy.deepcopy(model)(x)
    for out, expected in zip(ours, theirs, strict=True):
        torch.testing.assert_close(out, expected)
        assert out.stride() == expected.stride()
    for written in (ours[1], theirs[1]):
        written.fill_(7.0)
    for out, expected in zip(ours, theirs, strict=True):
        torch.testing.assert_close(out, expected)
    torch.testing.assert_close(fused(x)[4], torch.linspace(0, 1, 8))
    assert fused.fallbacks == 0


def test_a_layout_is_kept(fuse_all: Any) -> None:
    x = torch.randn(2, 8, 3, 3).to(memory_format=torch.channels_last)
    model = Applied(lambda _m, x: gelu(x * 2) + x).eval()
    fused = fuse_all(model, (x,)).module
    out, expected = fused(x), model(x)
    torch.testing.assert_close(out, expected)
    assert out.stride() == expected.stride()
    assert fused.fallbacks == 0


class Constants(nn.Module):
    """A weight, a plain tensor, and one that the forward makes."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.linspace(-1, 1, 8))
        self.table = torch.linspace(0, 1, 8) * 1.2345

    def forward(self, x: Tensor) -> Tensor:
        return gelu(x + self.table) * self.bias + torch.arange(8) / 7


MOVES: dict[str, Callable[[nn.Module], Any]] = {
    "half and back": lambda m: m.half().float(),
    "double and back": lambda m: m.double().float(),
    "emptied": lambda m: m.to_empty(device="cpu"),
    "meta and back": lambda m: m.to("meta").to_empty(device="cpu"),
    "in shared memory": lambda m: m.share_memory(),
}


@pytest.mark.parametrize("name", MOVES)
def test_constants_keep_their_values_whatever_becomes_of_the_weights(
    fuse_all: Any, x: Tensor, name: str
) -> None:
    model = Constants().eval()
    fused, weights = fuse_all(model, (x,)).module, copy.deepcopy(model.state_dict())
    before = fused(x)
    MOVES[name](fused)
    fused.load_state_dict(weights)
    assert torch.equal(fused(x), before)
    assert fused.fallbacks == 0


def test_constants_alone_keep_their_dtype(fuse_all: Any, x: Tensor) -> None:
    class Shift(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.linspace(0, 1, 8)

        def forward(self, x: Tensor) -> Tensor:
            return (x + self.table).cumsum(-1)

    fused = fuse_all(Shift().eval(), (x,)).module
    fused.double()
    assert fused(x).dtype is torch.float32
    assert fused.fallbacks == 0


# --- tied weights, copies, threads -----------------------------------------------------------


class Tied(nn.Module):
    """Two linears with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.second(gelu(self.first(x)))
        return out


def test_tied_weights_stay_tied(fuse_all: Any, x: Tensor) -> None:
    model = Tied().eval()
    fused = fuse_all(model, (x,)).module
    assert fused.first.weight is fused.second.weight
    assert list(fused.state_dict()) == list(model.state_dict())
    torch.testing.assert_close(fused(x), model(x))


def test_weights_that_are_tied_no_more_are_seen(fuse_all: Any, x: Tensor) -> None:
    fused = fuse_all(Tied().eval(), (x,)).module
    fused.second.weight = nn.Parameter(torch.eye(8), requires_grad=False)
    out = falls_back(fused, "tied no more", x)
    torch.testing.assert_close(out, gelu(fused.first(x)) + fused.second.bias)


def test_a_deep_copy_has_weights_and_buffers_of_its_own(fuse_all: Any, x: Tensor) -> None:
    fused = fuse_all(Applied(_counting).eval(), (x,)).module
    fused(x)
    twin = copy.deepcopy(fused)
    twin(x)
    with torch.no_grad():
        twin.bias.zero_()
    assert torch.equal(fused.count, torch.full((8,), 1.0))
    assert torch.equal(twin.count, torch.full((8,), 2.0))
    torch.testing.assert_close(twin(x), gelu(x) + 3)
    assert fused.bias.abs().sum() > 0
    assert twin.fallbacks == 0


def test_a_deep_copy_inside_another_module_keeps_ties(fuse_all: Any, x: Tensor) -> None:
    holder = nn.ModuleList([fuse_all(Tied().eval(), (x,)).module])
    twin = copy.deepcopy(holder)[0]
    assert twin.first.weight is twin.second.weight
    torch.testing.assert_close(twin(x), holder[0](x))
    assert twin.fallbacks == 0


@pytest.mark.parametrize("write", [pickle.dumps, lambda m: torch.save(m, io.BytesIO())])
def test_pickling_is_refused_with_advice(fused: Any, write: Any) -> None:
    with pytest.raises(NotPicklable, match="state_dict"):
        write(fused)


def test_two_threads(fused: Any, model: Block) -> None:
    inputs = [torch.randn(3, 8) for _ in range(16)]
    results: dict[int, Tensor] = {}

    def work(part: int) -> None:
        for index in range(part, len(inputs), 2):
            results[index] = fused(inputs[index])

    threads = [threading.Thread(target=work, args=(part,)) for part in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for index, given in enumerate(inputs):
        torch.testing.assert_close(results[index], model(given))
    assert fused.fallbacks == 0
