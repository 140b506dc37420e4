"""The twin: parameters shared, everything else its own, ties and sharing kept."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor, nn

import planner
from planner.graph.errors import CaptureDiffers
from planner.graph.twin import twin_of


class Holder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3))
        self.register_buffer("table", torch.arange(6.0))
        self.register_buffer("same_table", self.table)
        self.register_buffer("wide", torch.ones(1, 3).expand(4, 3))
        self.head = self.table[:2]
        self.plain = torch.ones(3)
        self.computed = self.weight * 2

    def forward(self, x: Tensor) -> Tensor:
        return x * self.computed + self.plain


def test_parameters_share_storage_and_need_no_grad() -> None:
    model = Holder()
    twin = twin_of(model)
    assert twin.weight.data_ptr() == model.weight.data_ptr()
    assert not twin.weight.requires_grad
    assert model.weight.requires_grad


def test_parameters_keep_their_class_and_attributes() -> None:
    class Scaled(nn.Parameter):
        pass

    model = nn.Linear(3, 3)
    model.weight = Scaled(torch.randn(3, 3))
    model.weight.scale = model.bias.scale = 2.0
    twin = twin_of(model)
    assert type(twin.weight) is Scaled
    assert type(twin.bias) is nn.Parameter
    assert twin.weight.scale == twin.bias.scale == 2.0
    assert twin.weight.data_ptr() == model.weight.data_ptr()
    assert not twin.weight.requires_grad
    twin.weight.scale = 3.0
    assert model.weight.scale == 2.0


def test_a_forward_that_asks_for_a_parameter_s_class_is_not_taken_for_another() -> None:
    """torch.export traces it with plain parameters; eager, on the twin, shows the difference."""

    class Scaled(nn.Parameter):
        pass

    class Asks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = Scaled(torch.randn(3))

        def forward(self, x: Tensor) -> Tensor:
            return x * self.weight * (2 if isinstance(self.weight, Scaled) else 3)

    with pytest.raises(CaptureDiffers):
        planner.capture(Asks().eval(), (torch.randn(3),))


def test_a_tensor_subclass_that_is_a_parameter_keeps_its_class() -> None:
    class Tagged(Tensor):
        pass

    model = nn.Linear(3, 3)
    model.weight = nn.Parameter(torch.randn(3, 3).as_subclass(Tagged))
    twin = twin_of(model)
    assert type(twin.weight) is Tagged
    assert isinstance(twin.weight, nn.Parameter)
    assert twin.weight.data_ptr() == model.weight.data_ptr()


def test_buffers_and_plain_tensors_are_copies_with_equal_values() -> None:
    model = Holder()
    twin = twin_of(model)
    for name in ("table", "wide", "plain", "computed"):
        own, theirs = getattr(twin, name), getattr(model, name)
        assert own.data_ptr() != theirs.data_ptr(), name
        assert torch.equal(own, theirs), name


def test_what_buffers_share_with_one_another_and_with_plain_tensors_is_kept() -> None:
    twin = twin_of(Holder())
    assert twin.table is twin.same_table
    twin.table.fill_(7)
    assert twin.head.tolist() == [7.0, 7.0]


def test_strides_of_a_buffer_are_kept() -> None:
    assert twin_of(Holder()).wide.stride() == (0, 1)


def test_a_tensor_that_autograd_computed_is_no_obstacle() -> None:
    model = Holder().eval()
    x = torch.randn(3)
    program = planner.capture(model, (x,)).program.module()
    with torch.no_grad():
        assert torch.equal(program(x), model(x))
    assert model.computed.grad_fn is not None


def test_weight_norm_by_hooks_is_captured() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        model = nn.Sequential(nn.utils.weight_norm(nn.Linear(3, 3)), nn.GELU())
    x = torch.randn(2, 3)
    model(x)
    program = planner.capture(model.eval(), (x,)).program.module()
    with torch.no_grad():
        assert torch.equal(program(x), model(x))


def test_parameter_replaced_later_is_not_the_twin_s() -> None:
    model = Holder()
    twin = twin_of(model)
    model.weight = nn.Parameter(torch.zeros(3))
    assert not torch.equal(twin.weight, model.weight)


def test_attributes_that_forward_sets_stay_with_the_copy() -> None:
    class Remembers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last: Tensor | None = None
            self.seen: list[Tensor] = []

        def forward(self, x: Tensor) -> Tensor:
            self.last = x * 2
            self.seen.append(self.last)
            return self.last + 1

    model = Remembers().eval()
    planner.capture(model, (torch.ones(2),))
    assert model.last is None
    assert model.seen == []


def test_hooks_of_the_user_are_part_of_the_program() -> None:
    model = nn.Sequential(nn.Linear(3, 3)).eval()
    handle = model[0].register_forward_hook(lambda _module, _args, result: result + 1)
    x = torch.randn(2, 3)
    program = planner.capture(model, (x,)).program.module()
    with torch.no_grad():
        assert torch.equal(program(x), model(x))
    handle.remove()
    assert not model[0]._forward_hooks
