"""Folded and packed weights follow the weights that they are made from."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from planner.fusion.module import FusedModule
from planner.graph.export import capture
from planner.graph.twin import twin_of
from planner.passes.fold_batch_norm import fold_batch_norm
from planner.passes.merge_linears import merge_linears
from planner.passes.runner import run_passes

X = torch.randn(2, 3, 7, 9)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.norm(self.conv(x)).relu()
        return out


@pytest.fixture
def model() -> Net:
    net = Net().eval()
    net.norm.running_mean.normal_()
    net.norm.running_var.uniform_(0.5, 2)
    return net


@pytest.fixture
def fused(model: Net) -> FusedModule:
    program = capture(model, (X,)).program
    (record,) = run_passes(program, [("fold", fold_batch_norm)])
    assert record.notes
    module = FusedModule(twin_of(model), program)
    require_equal(module, model)
    return module


def require_equal(fused: nn.Module, model: nn.Module) -> None:
    x = torch.randn(X.shape)
    with torch.no_grad():
        torch.testing.assert_close(fused(x), model(x), rtol=1e-5, atol=1e-5)
    assert getattr(fused, "fallbacks", 0) == 0


def test_the_copies_are_counted(fused: FusedModule, model: Net) -> None:
    assert fused.extra_weight_bytes == 4 * (5 * 3 * 3 * 3 + 5)
    assert FusedModule(twin_of(model), None).extra_weight_bytes == 0


def test_the_original_s_weights_and_keys_are_untouched(fused: FusedModule, model: Net) -> None:
    assert fused.state_dict().keys() == model.state_dict().keys()
    for name, value in fused.state_dict().items():
        assert torch.equal(value, model.state_dict()[name])


def test_loading_writes_through(fused: FusedModule) -> None:
    other = Net().eval()
    nn.init.normal_(other.norm.weight)
    fused.load_state_dict(other.state_dict())
    require_equal(fused, other)


def test_assigning_writes_through(fused: FusedModule) -> None:
    other = Net().eval()
    nn.init.normal_(other.norm.bias)
    fused.load_state_dict(other.state_dict(), assign=True)
    require_equal(fused, other)


CHANGES: dict[str, Callable[[Net], object]] = {
    "weight": lambda net: net.conv.weight.mul_(2),
    "bias": lambda net: net.conv.bias.add_(1),
    "gamma": lambda net: net.norm.weight.copy_(torch.randn(5)),
    "element": lambda net: net.norm.bias.__setitem__(2, 9.0),
    "through_a_view": lambda net: net.conv.weight[1].zero_(),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_of_the_user_s_weights_is_seen(fused: FusedModule, model: Net, name: str) -> None:
    with torch.no_grad():
        CHANGES[name](model)
    require_equal(fused, model)


def test_a_change_of_its_own_statistics_is_seen(fused: FusedModule, model: Net) -> None:
    for net in (fused, model):
        net.norm.running_var.fill_(3.0)
        net.norm.running_mean.fill_(0.5)
    require_equal(fused, model)


def test_rounding_and_back_is_seen(fused: FusedModule, model: Net) -> None:
    fused.half().float()
    require_equal(fused, copy.deepcopy(model).half().float())


def test_a_part_rounded_and_back_is_seen(fused: FusedModule, model: Net) -> None:
    fused.conv.half()
    fused.conv.float()
    other = copy.deepcopy(model)
    other.conv.half().float()
    require_equal(fused, other)


def test_a_deep_copy_follows_its_own_weights(fused: FusedModule, model: Net) -> None:
    other = copy.deepcopy(fused)
    with torch.no_grad():
        other.conv.weight.mul_(2)
    require_equal(fused, model)
    with torch.no_grad():
        model.conv.weight.mul_(2)
    require_equal(other, model)
    require_equal(fused, model)


def test_other_shapes_run_the_original(fused: FusedModule, model: Net) -> None:
    x = torch.randn(1, 3, 7, 9)
    with pytest.warns(UserWarning, match="captured was"):
        torch.testing.assert_close(fused(x), model(x))


def test_weights_made_in_inference_mode_are_followed(model: Net) -> None:
    with torch.inference_mode():
        net = copy.deepcopy(model)
    program = capture(net, (X,)).program
    run_passes(program, [("fold", fold_batch_norm)])
    fused = FusedModule(twin_of(net), program)
    require_equal(fused, net)
    with torch.inference_mode():
        net.conv.weight.mul_(2)
    require_equal(fused, net)


def test_a_first_call_in_inference_mode_is_no_trap(fused: FusedModule, model: Net) -> None:
    other = copy.deepcopy(fused)
    with torch.inference_mode():
        other(X)
    require_equal(other, model)


class Tied(nn.Module):
    """An embedding whose weight is also a linear's, beside another on the same input."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(6, 4)
        self.a, self.b = nn.Linear(4, 6), nn.Linear(4, 6)
        self.a.weight = self.embedding.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids)
        out: Tensor = self.a(x).sin() * self.b(x)
        return out


@pytest.mark.parametrize("changed", ["embedding", "b"])
def test_packed_weights_follow_tied_ones(changed: str) -> None:
    net, ids = Tied().eval(), torch.arange(6)
    program = capture(net, (ids,)).program
    (record,) = run_passes(program, [("merge", merge_linears)])
    assert record.notes == ("1 x linears of 6+6 columns merged",)
    fused = FusedModule(twin_of(net), program)
    torch.testing.assert_close(fused(ids), net(ids))
    with torch.no_grad():
        getattr(net, changed).weight.mul_(2)
    torch.testing.assert_close(fused(ids), net(ids))
    other = Tied().eval()
    fused.load_state_dict(other.state_dict())
    torch.testing.assert_close(fused(ids), other(ids))
    torch.testing.assert_close(copy.deepcopy(fused)(ids), other(ids))
    assert fused.extra_weight_bytes == 4 * (12 * 4 + 12)
    assert fused.fallbacks == 0
