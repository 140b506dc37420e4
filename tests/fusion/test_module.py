"""The fused module is called like the user's and has its outputs, weights and state."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from fused_models import Applied, Block, falls_back
from torch import Tensor, nn
from torch.nn.functional import gelu

pytestmark = pytest.mark.usefixtures("no_unexpected_warning")

# --- what stays the same ---------------------------------------------------------------------


def test_the_same_values_without_falling_back(fused: Any, model: Block, x: Tensor) -> None:
    torch.testing.assert_close(fused(x), model(x))
    torch.testing.assert_close(fused(x=x), model(x))
    assert fused.fallbacks == 0


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_every_grad_mode(fused: Any, model: Block, x: Tensor, mode: Any) -> None:
    with mode():
        out = fused(x)
    torch.testing.assert_close(out, model(x).detach())
    assert not out.requires_grad
    assert fused.fallbacks == 0


def test_inference_tensors_may_come_in(fused: Any, model: Block, x: Tensor) -> None:
    with torch.inference_mode():
        given = x.clone()
    torch.testing.assert_close(fused(given), model(x).detach())


def test_state_dict_has_the_users_keys_and_values(fused: Any, model: Block) -> None:
    ours, theirs = fused.state_dict(), model.state_dict()
    assert list(ours) == list(theirs)
    assert all(torch.equal(ours[key], theirs[key]) for key in theirs)


def test_parameters_and_children_have_the_users_names(fused: Any, model: Block) -> None:
    assert [n for n, _ in fused.named_parameters()] == [n for n, _ in model.named_parameters()]
    assert [n for n, _ in fused.named_modules()] == [n for n, _ in model.named_modules()]
    assert not any(p.requires_grad for p in fused.parameters())
    assert all(p.requires_grad for p in model.parameters())


def test_a_loaded_state_dict_takes_effect(fused: Any, x: Tensor) -> None:
    other = Block().eval()
    fused.load_state_dict(other.state_dict())
    torch.testing.assert_close(fused(x), other(x))
    assert fused.fallbacks == 0


def test_a_state_dict_loaded_by_assignment_takes_effect(fused: Any, x: Tensor) -> None:
    other = Block().eval()
    fused.load_state_dict(other.state_dict(), assign=True)
    torch.testing.assert_close(fused(x), other(x))
    assert fused.fallbacks == 0


def test_a_parameter_replaced_by_assignment_is_used(fused: Any, model: Block, x: Tensor) -> None:
    before = fused(x)
    fused.fc.bias = nn.Parameter(torch.ones(8), requires_grad=False)
    changed = copy.deepcopy(model)
    with torch.no_grad():
        changed.fc.bias.fill_(1.0)
    torch.testing.assert_close(fused(x), changed(x))
    assert not torch.allclose(fused(x), before)
    assert fused.fallbacks == 0


def test_outputs_of_two_calls_do_not_share_memory(fused: Any, x: Tensor) -> None:
    first = fused(x)
    kept = first.clone()
    fused(x + 1)
    assert torch.equal(first, kept)


# --- the call --------------------------------------------------------------------------------


class Head(nn.Module):
    """Keywords only, a None, a list, and a dataclass out."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(
        self, *, left: Tensor, right: Tensor, extras: Any, mask: Any = None, aux: bool = False
    ) -> Any:
        z = self.a(left) - 2.0 * self.b(right)
        for extra in extras:
            z = z + extra
        if mask is not None:
            z = z.masked_fill(mask, 0.0)
        return Scored(gelu(z), z if aux else None)


@dataclass
class Scored:
    """A plain result class."""

    score: Tensor
    aux: Tensor | None = None


def _head_call(x: Tensor) -> dict[str, Any]:
    return {"mask": None, "extras": [x, x[0]], "right": x + 1, "left": x * 2}


def test_keyword_order_none_lists_and_a_dataclass(fuse_all: Any, x: Tensor) -> None:
    head, call = Head().eval(), _head_call(x)
    fused = fuse_all(head, (), call).module
    turned = {"left": call["left"], "right": call["right"], "extras": call["extras"]}
    expected = head(**call)
    for kwargs in (call, turned, {**turned, "aux": False}):
        out = fused(**kwargs)
        assert type(out) is Scored
        assert out.aux is None
        torch.testing.assert_close(out.score, expected.score)
    swapped = fused(left=call["right"], right=call["left"], extras=call["extras"])
    assert not torch.allclose(swapped.score, expected.score)
    assert fused.fallbacks == 0


def test_other_constants_and_structures_fall_back(fuse_all: Any, x: Tensor) -> None:
    head, call = Head().eval(), _head_call(x)
    fused = fuse_all(head, (), call).module
    out = falls_back(fused, "other arguments", **{**call, "aux": True})
    torch.testing.assert_close(out.aux, head(**{**call, "aux": True}).aux)
    falls_back(fused, "other arguments", **{**call, "extras": [x]})
    mask = torch.zeros(3, 8, dtype=torch.bool)
    falls_back(fused, "captured was None", **{**call, "mask": mask})


def test_a_positional_none_is_part_of_the_call(fuse_all: Any, x: Tensor) -> None:
    fused = fuse_all(Applied(lambda m, x, _mask: gelu(x + m.bias) * 2).eval(), (x, None)).module
    fused(x, None)
    assert fused.fallbacks == 0


def test_a_number_of_another_type_is_another_call(fuse_all: Any) -> None:
    n = torch.arange(24).view(3, 8)
    model = Applied(lambda _m, n, s: (n * s + 1) * 2).eval()
    fused = fuse_all(model, (n, 3)).module
    assert fused(n, 3).dtype is torch.int64
    assert falls_back(fused, "an argument is 3.0, captured was 3", n, 3.0).dtype is torch.float32


class Pair(NamedTuple):
    """A result with names."""

    first: Tensor
    second: tuple[Tensor, int]


def test_output_containers_and_plain_values_are_kept(fuse_all: Any, x: Tensor) -> None:
    def form(m: Any, x: Tensor) -> Any:
        h = gelu(x + m.bias)
        return {"pair": Pair(h, (h * 2, 3)), "list": [h + 1, None]}

    model = Applied(form).eval()
    out, expected = fuse_all(model, (x,)).module(x), model(x)
    assert type(out["pair"]) is Pair
    assert out["pair"].second[1] == 3
    assert out["list"][1] is None
    torch.testing.assert_close(out["pair"].first, expected["pair"].first)


def test_a_model_output_of_transformers_keeps_its_class(fuse_all: Any) -> None:
    from transformers import BertConfig, BertModel

    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = BertConfig(vocab_size=32, intermediate_size=24, **sizes)
    model = BertModel(config).eval()
    ids = torch.arange(10).view(2, 5)
    fused = fuse_all(model, (), {"input_ids": ids}).module
    out, expected = fused(input_ids=ids), model(input_ids=ids)
    assert type(out) is type(expected)
    assert out.keys() == expected.keys()
    torch.testing.assert_close(out.last_hidden_state, expected.last_hidden_state)
    assert fused.fallbacks == 0


class Scaled(nn.Parameter):
    """A class of parameters that does nothing of its own."""


def test_a_class_of_parameters_is_kept_and_no_reason_to_fall_back(fuse_all: Any, x: Tensor) -> None:
    model = Applied(lambda m, x: gelu(x + m.bias) * 2).eval()
    model.bias = Scaled(torch.linspace(-1, 1, 8))
    fused = fuse_all(model, (x,)).module
    torch.testing.assert_close(fused(x), model(x))
    assert type(fused.bias) is Scaled
    assert fused.fallbacks == 0


def test_a_parameter_whose_class_takes_over_operators_falls_back(fused: Any, x: Tensor) -> None:
    class Tracing(nn.Parameter):
        @classmethod
        def __torch_function__(cls, function: Any, *rest: Any) -> Any:
            return super().__torch_function__(function, *rest)

    fused.fc.bias = Tracing(torch.ones(8), requires_grad=False)
    assert "Tracing" in fused.refusal((x,), {})
