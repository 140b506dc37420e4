"""Situations that broke other optimisers: a batch of one, shared blocks, extreme rows."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import gelu

import planner


class Flattening(nn.Module):
    """Folds batch and time for the linear and unfolds them for the norm."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.norm = nn.Linear(12, 12), nn.LayerNorm(12)

    def forward(self, x: Tensor) -> Tensor:
        batch, time, width = x.shape
        y = gelu(self.fc(x.reshape(batch * time, width))).reshape(batch, time, width)
        out: Tensor = self.norm(x + y)
        return out


@pytest.mark.parametrize("shape", [(3, 7, 12), (0, 7, 12), (1, 1, 12), (1, 7, 12)])
def test_captured_with_one_row_and_served_with_others(
    fuse_all: Any, shape: tuple[int, ...]
) -> None:
    model = Flattening().eval()
    found = fuse_all(model, (torch.randn(1, 7, 12),))
    assert [ways[0].plan.rule for ways in found.places] == ["gelu_residual+add_layer_norm"]
    x = torch.randn(shape)
    if shape == (1, 7, 12):
        out = found.module(x)
    else:
        with pytest.warns(UserWarning, match="captured was"):
            out = found.module(x)
    torch.testing.assert_close(out, model(x))
    assert found.module.fallbacks == (shape != (1, 7, 12))


def _mix(a: Tensor, b: Tensor) -> Tensor:
    return gelu(a - b) + b


class Sharing(nn.Module):
    """One block run three times, two of a list of three, and work in a bare function."""

    def __init__(self) -> None:
        super().__init__()
        self.shared = nn.Sequential(nn.Linear(16, 16), nn.GELU())
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(16, 16), nn.GELU()) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        y = self.shared(self.shared(x))
        for layer in self.layers[1:]:
            y = layer(y)
        return _mix(self.shared(y), x)


@pytest.mark.parametrize("way", [0, 1])
def test_every_use_of_a_shared_block_is_a_place(fuse_all: Any, way: int) -> None:
    """The last one goes on into the function's work, in one kernel with it."""
    model, x = Sharing().eval(), torch.randn(8, 16)
    found = fuse_all(model, (x,), way=way)
    modules = [ways[0].module for ways in found.places]
    assert len(found.places) == 5
    assert [m for m in modules if m.startswith("layers")] == ["layers.1.1", "layers.2.1"]
    assert len({ways[way].source.file_name for ways in found.places[:4]}) == 1
    torch.testing.assert_close(found.module(x), model(x))
    assert found.module.fallbacks == 0


class Widths(nn.Module):
    """Norms over rows of 1, 3, 46,336 and 131,073."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(n) for n in (1, 3, 46336))
        self.last = nn.RMSNorm(131073, eps=1e-6)

    def forward(self, a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Any:
        sums = [norm(t + t) for norm, t in zip(self.norms, (a, b, c), strict=True)]
        return (*sums, self.last(d + d), (c * 0.125).softmax(-1))


def test_rows_of_any_length_are_fused(fuse_all: Any) -> None:
    model = Widths().eval()
    sizes = ((4, 1), (4, 3), (2, 46336), (2, 131073))
    inputs = tuple(torch.randn(size) for size in sizes)
    found = fuse_all(model, inputs)
    widths = [ways[0].lowered.region.row_length for ways in found.places]
    assert set(widths) == {1, 3, 46336, 131073}
    for out, expected in zip(found.module(*inputs), model(*inputs), strict=True):
        torch.testing.assert_close(out, expected)


class Flavours(nn.Module):
    """Five activations that all get called GELU, each with a residual."""

    def forward(self, x: Tensor, r: Tensor) -> tuple[Tensor, ...]:
        k = (2 / torch.pi) ** 0.5
        return (
            gelu(x) + r,
            gelu(x, approximate="tanh") + r,
            x * torch.sigmoid(1.702 * x) + r,
            0.5 * x * (1 + torch.erf(x * 0.5**0.5)) + r,
            0.5 * x * (1 + torch.tanh(k * (x + 0.044 * x**3))) + r,
        )


def test_activations_side_by_side_keep_their_own_values(fuse_all: Any) -> None:
    x, r = 3 * torch.randn(6, 48), torch.randn(6, 48)
    found = fuse_all(Flavours().eval(), (x, r))
    rules = [ways[0].plan.rule for ways in found.places]
    assert sorted(rules) == ["gelu_residual"] * 4 + ["pointwise_chain"]
    for out, expected in zip(found.module(x, r), Flavours()(x, r), strict=True):
        torch.testing.assert_close(out, expected, rtol=1e-5, atol=5e-6)


class Scaled(nn.Module):
    """Factors in operators' attributes, and a bias of NaN that beta = 0 hides."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = (
            nn.Parameter(torch.randn(20, 20) / 4),
            nn.Parameter(torch.randn(20)),
        )
        self.register_buffer("missing", torch.full((20,), float("nan")))

    def forward(self, x: Tensor, r: Tensor) -> tuple[Tensor, ...]:
        return (
            gelu(torch.add(x @ self.weight, self.bias, alpha=0.5)),
            torch.relu(torch.addmm(self.bias, x, self.weight, beta=0.25, alpha=2.0)),
            gelu(torch.addmm(self.missing, x, self.weight, beta=0)),
            gelu(torch.addmm(r, x, self.weight, alpha=3)) + r,
        )


def test_factors_of_products_are_honoured_in_a_whole_model(fuse_all: Any) -> None:
    model, x, r = Scaled().eval(), torch.randn(5, 20), torch.randn(5, 20)
    found = fuse_all(model, (x, r))
    assert found.places
    for out, expected in zip(found.module(x, r), model(x, r), strict=True):
        torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)


class Names(nn.Module):
    """Operators that tables list under another overload, with pointwise work between them."""

    def forward(self, ids: Tensor, x: Tensor) -> tuple[Tensor, ...]:
        hit = torch.isin(ids, torch.tensor([2, 5, 7]))
        best, index = torch.max(x, dim=-1)
        gated = torch.nn.functional.hardsigmoid(x) * (~hit).unsqueeze(-1)
        return gated, hit.all(dim=-1), best, torch.div(index, 2, rounding_mode="floor") + 1


def test_operators_keep_their_overloads_and_values(fuse_all: Any) -> None:
    model, ids, x = Names().eval(), torch.randint(0, 9, (3, 4)), torch.randn(3, 4, 6)
    graph = planner.capture(model, (ids, x)).graph
    named = {"aten.isin.Tensor_Tensor", "aten.hardsigmoid.default", "aten.all.dim", "aten.max.dim"}
    assert named | {"aten.div.Tensor_mode"} <= {node.op for node in graph.nodes}
    found = fuse_all(model, (ids, x))
    for out, expected in zip(found.module(ids, x), model(ids, x), strict=True):
        torch.testing.assert_close(out, expected)
