"""The fused module: called like the user's, with its outputs, weights and state, falling back
where the capture does not hold.
"""

from __future__ import annotations

import copy
import io
import pickle
import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn.functional import gelu

from planner.fusion.module import FusedModule, NotPicklable


class Block(nn.Module):
    """A linear, GELU, a residual and a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.norm = nn.Linear(8, 8), nn.LayerNorm(8)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.norm(gelu(self.fc(x)) + x)
        return out


class Applied(nn.Module):
    """A function of itself and its inputs, with a weight and two buffers."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        self.bias = nn.Parameter(torch.linspace(-1, 1, 8))
        self.register_buffer("count", torch.zeros(8))
        self.register_buffer("other", torch.ones(8))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(self, *args, **kwargs)


@pytest.fixture
def x() -> Tensor:
    return torch.randn(3, 8, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def model() -> Block:
    torch.manual_seed(1)
    return Block().eval()


@pytest.fixture
def fused(fuse_all: Any, model: Block, x: Tensor) -> FusedModule:
    module: FusedModule = fuse_all(model, (x,)).module
    assert "fuseplan" in module.code
    return module


@pytest.fixture(autouse=True)
def no_unexpected_warning() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        yield


def _falls_back(fused: FusedModule, reason: str, *args: Any, **kwargs: Any) -> Any:
    before = fused.fallbacks
    fused._warned = False
    with pytest.warns(UserWarning, match="runs the original program") as caught:
        result = fused(*args, **kwargs)
    assert reason in str(caught[0].message)
    assert fused.fallbacks == before + 1
    return result


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
    out = _falls_back(fused, "other arguments", **{**call, "aux": True})
    torch.testing.assert_close(out.aux, head(**{**call, "aux": True}).aux)
    _falls_back(fused, "other arguments", **{**call, "extras": [x]})
    mask = torch.zeros(3, 8, dtype=torch.bool)
    _falls_back(fused, "captured was None", **{**call, "mask": mask})


def test_a_positional_none_is_part_of_the_call(fuse_all: Any, x: Tensor) -> None:
    fused = fuse_all(Applied(lambda m, x, _mask: gelu(x + m.bias) * 2).eval(), (x, None)).module
    fused(x, None)
    assert fused.fallbacks == 0


def test_a_number_of_another_type_is_another_call(fuse_all: Any) -> None:
    n = torch.arange(24).view(3, 8)
    model = Applied(lambda _m, n, s: (n * s + 1) * 2).eval()
    fused = fuse_all(model, (n, 3)).module
    assert fused(n, 3).dtype is torch.int64
    assert _falls_back(fused, "an argument is 3.0, captured was 3", n, 3.0).dtype is torch.float32


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


# --- falling back ----------------------------------------------------------------------------

OTHER_INPUTS = {
    "other batch": (lambda x: torch.cat([x, x]), "float32[6, 8]"),
    "no rows": (lambda x: x[:0], "float32[0, 8]"),
    "one row": (lambda x: x[:1], "float32[1, 8]"),
    "strides": (lambda x: x.t().contiguous().t(), "strides (1, 3)"),
    "expanded": (lambda x: x[:1].expand(3, 8), "strides (0, 1)"),
    "rank": (lambda x: x[None], "float32[1, 3, 8]"),
}


@pytest.mark.parametrize("name", OTHER_INPUTS)
def test_other_inputs_fall_back_and_are_right(
    fused: Any, model: Block, x: Tensor, name: str
) -> None:
    change, said = OTHER_INPUTS[name]
    given = change(x)
    torch.testing.assert_close(_falls_back(fused, said, given), model(given))


def test_another_dtype_falls_back(fused: Any, x: Tensor) -> None:
    with pytest.warns(UserWarning, match=r"float64\[3, 8\]"), pytest.raises(RuntimeError):
        fused(x.double())  # as the original: its weights are float32


def test_a_tensor_subclass_falls_back(fused: Any, model: Block, x: Tensor) -> None:
    class Tagged(Tensor):
        pass

    out = _falls_back(fused, "Tagged", x.as_subclass(Tagged))
    torch.testing.assert_close(out.as_subclass(Tensor), model(x))


def test_it_warns_once_and_counts_every_call(fused: Any, x: Tensor) -> None:
    with pytest.warns(UserWarning, match="runs the original") as caught:
        fused(x[:1])
    fused(x[:2])  # a second warning would be an error here
    fused(x[:1])
    assert caught[0].filename == __file__
    assert fused.fallbacks == 3


def test_training_mode_runs_the_original(fuse_all: Any, x: Tensor) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Dropout(0.9)).eval()
    fused = fuse_all(model, (x,)).module
    fused.train()
    out = _falls_back(fused, "training mode", x)
    assert (out == 0).sum() > 5
    fused.eval()
    torch.testing.assert_close(fused(x), model(x))
    assert fused.fallbacks == 1


def test_a_gradient_flows_to_an_input_and_is_right(fused: Any, model: Block, x: Tensor) -> None:
    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    _falls_back(fused, "an input requires grad", ours).sum().backward()
    model(theirs).sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad)


def test_an_input_that_requires_grad_is_fused_where_grad_is_off(fused: Any, x: Tensor) -> None:
    with torch.no_grad():
        fused(x.clone().requires_grad_())
    assert fused.fallbacks == 0


def test_a_gradient_flows_to_a_weight_and_is_right(fused: Any, model: Block, x: Tensor) -> None:
    fused.requires_grad_(True)
    _falls_back(fused, "a weight requires grad", x).sum().backward()
    model(x).sum().backward()
    torch.testing.assert_close(fused.fc.weight.grad, model.fc.weight.grad)
    before = fused.fallbacks
    with torch.no_grad():
        fused(x)
    assert fused.fallbacks == before


def test_forward_derivatives_are_those_of_the_original(fused: Any, model: Block, x: Tensor) -> None:
    tangent = torch.ones_like(x)
    with forward_ad.dual_level(), torch.no_grad():
        out = _falls_back(fused, "forward-mode", forward_ad.make_dual(x, tangent))
        theirs = model(forward_ad.make_dual(x, tangent))
        ours, expected = (forward_ad.unpack_dual(y).tangent for y in (out, theirs))
        torch.testing.assert_close(ours, expected)
    fused(x)
    assert fused.fallbacks == 1


def test_transforms_of_torch_func_run_the_original(fused: Any, model: Block, x: Tensor) -> None:
    tangents = (torch.ones_like(x),)
    _, ours = torch.func.jvp(lambda x: _falls_back(fused, "torch.func", x), (x,), tangents)
    torch.testing.assert_close(ours, torch.func.jvp(model, (x,), tangents)[1])
    out = torch.func.vmap(lambda x: _falls_back(fused, "torch.func", x))(torch.stack([x, x + 1]))
    torch.testing.assert_close(out[1], model(x + 1))
    weights = {name: weight.detach() for name, weight in model.named_parameters()}

    def loss(module: nn.Module) -> Any:
        return torch.func.grad(lambda w: torch.func.functional_call(module, w, (x,)).sum())

    ours = loss(fused)(weights)
    torch.testing.assert_close(ours, loss(model)(weights))
    assert ours["fc.weight"].abs().sum() > 0


def test_half_falls_back_and_float_comes_back(fused: Any, model: Block, x: Tensor) -> None:
    fused(x)
    fused.half()
    out = _falls_back(fused, "float16", x.half())
    torch.testing.assert_close(out, copy.deepcopy(model).half()(x.half()))
    fused.float()
    torch.testing.assert_close(fused(x), model(x), rtol=1e-2, atol=1e-2)
    assert fused.fallbacks == 1
    assert model.fc.weight.dtype is torch.float32


def test_a_part_cast_on_its_own_is_seen(fused: Any, x: Tensor) -> None:
    """Reading its float16 as float32 would give numbers, and no error."""
    fused(x)
    fused.norm.half()
    said = r"'norm\.weight' is float16"
    with pytest.warns(UserWarning, match=said), pytest.raises(RuntimeError):
        fused(x)


def test_a_replaced_submodule_is_run(fused: Any, x: Tensor) -> None:
    fused.fc = nn.Linear(8, 8)
    out = _falls_back(fused, "a submodule has been replaced", x)
    torch.testing.assert_close(out, fused.norm(gelu(fused.fc(x)) + x))


@pytest.mark.parametrize("name", ["1", "2", "1.inner"])
def test_a_part_without_weights_that_is_replaced_or_added_is_run(
    fuse_all: Any, x: Tensor, name: str
) -> None:
    class Shifted(nn.GELU):
        def forward(self, x: Tensor) -> Tensor:
            out = super().forward(x)
            for part in self.children():
                out = part(out)
            return out

    model = nn.Sequential(nn.Linear(8, 8), Shifted()).eval()
    fused = fuse_all(model, (x,)).module
    before = fused(x)
    owner, _, key = name.rpartition(".")
    fused.get_submodule(owner).add_module(key, nn.Tanh())
    out = _falls_back(fused, "a submodule has been", x)
    expected = model[0](x).tanh() if name == "1" else before.tanh()
    torch.testing.assert_close(out, expected)


def test_autocast_runs_the_original(fused: Any, model: Block, x: Tensor) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        out = _falls_back(fused, "autocast is on", x)
        expected = model(x)
    assert out.dtype is expected.dtype
    torch.testing.assert_close(out, expected)


class Mixed(nn.Module):
    """Enters autocast for a linear, GELU and residual, and leaves it for a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.norm = nn.Linear(8, 8), nn.LayerNorm(8)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            h = gelu(self.fc(x)) + x
            with torch.autocast("cpu", enabled=False):
                h = self.norm(self.fc(h) + x)
            return torch.sigmoid(self.fc(h)) * h


def test_chains_of_autocast_regions_are_fused_with_their_casts(fuse_all: Any, x: Tensor) -> None:
    model = Mixed().eval()
    found = fuse_all(model, (x,))
    fused_ops = [str(n.target) for ways in found.places for n in ways[0].lowered.nodes]
    assert {"aten._to_copy.default", "aten.gelu.default", "aten.layer_norm.default"} <= set(
        fused_ops
    )
    out, expected = found.module(x), model(x)
    assert out.dtype is expected.dtype
    torch.testing.assert_close(out, expected, rtol=2**-7, atol=2**-7)
    assert found.module.fallbacks == 0


def test_a_model_with_autocast_regions_falls_back_under_another(fuse_all: Any, x: Tensor) -> None:
    model = Mixed().eval()
    fused = fuse_all(model, (x,)).module
    with torch.autocast("cpu", torch.float16):
        out = _falls_back(fused, "autocast is on", x)
        assert torch.equal(out, model(x))


def test_a_model_captured_under_autocast_runs_under_that_one_alone(
    fuse_all: Any, model: Block, x: Tensor
) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        fused = fuse_all(model, (x,)).module
        assert "fuseplan" in fused.code
        out, expected = fused(x), model(x)
        assert fused.fallbacks == 0
    assert out.dtype is expected.dtype
    torch.testing.assert_close(out, expected, rtol=2**-7, atol=2**-7)
    off = _falls_back(fused, "autocast is off, the program was captured under autocast to", x)
    assert torch.equal(off, model(x))
    with torch.autocast("cpu", torch.float16):
        other = _falls_back(fused, "autocast is to float16", x)
        assert torch.equal(other, model(x))


def test_autocast_casts_nothing_within_a_program_captured_under_it(fuse_all: Any) -> None:
    """A linear that the forward keeps in float32 stays so."""

    def forward(m: Any, x: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            return torch.nn.functional.linear(x, x) * m.bias[:3] + 1

    model, x = Applied(forward).eval(), torch.randn(3, 8)
    with torch.autocast("cpu", torch.bfloat16):
        fused = fuse_all(model, (x,)).module
        assert torch.equal(fused(x), model(x))
        assert fused.fallbacks == 0


def test_torch_compile_compiles_the_original(fuse_all: Any, x: Tensor) -> None:
    """Its kernel writes over an input, which torch.compile refuses to trace."""
    model = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8)).eval()
    fused = fuse_all(model, (x,)).module
    assert "_into_" in fused.code
    compiled = torch.compile(fused, backend="aot_eager", fullgraph=True)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x))
    assert fused.fallbacks == 0
    fused(x)
    assert fused.fallbacks == 0


def test_a_module_without_a_program_runs_the_original(model: Block, x: Tensor) -> None:
    from planner.graph.twin import twin_of

    plain = FusedModule(twin_of(model), None)
    assert not plain.fused
    assert plain.code == ""
    assert torch.equal(plain(x), model(x))
    assert torch.equal(plain(x[:1]), model(x[:1]))
    assert plain.fallbacks == 0


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
    _falls_back(fused, "float32[1, 8]", x[:1])
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
    out = _falls_back(fused, "share memory", ours, ours)
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
    out = _falls_back(fused, "tied no more", x)
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
