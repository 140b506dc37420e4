"""A fused module runs the original where the capture does not hold, says so and counts it."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from fused_models import Applied, Block, falls_back
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn.functional import gelu

from planner.fusion.module import FusedModule

pytestmark = pytest.mark.usefixtures("no_unexpected_warning")

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
    torch.testing.assert_close(falls_back(fused, said, given), model(given))


def test_another_dtype_falls_back(fused: Any, x: Tensor) -> None:
    with pytest.warns(UserWarning, match=r"float64\[3, 8\]"), pytest.raises(RuntimeError):
        fused(x.double())  # as the original: its weights are float32


def test_a_tensor_subclass_falls_back(fused: Any, model: Block, x: Tensor) -> None:
    class Tagged(Tensor):
        pass

    out = falls_back(fused, "Tagged", x.as_subclass(Tagged))
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
    out = falls_back(fused, "training mode", x)
    assert (out == 0).sum() > 5
    fused.eval()
    torch.testing.assert_close(fused(x), model(x))
    assert fused.fallbacks == 1


def test_a_gradient_flows_to_an_input_and_is_right(fused: Any, model: Block, x: Tensor) -> None:
    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    falls_back(fused, "an input requires grad", ours).sum().backward()
    model(theirs).sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad)


def test_an_input_that_requires_grad_is_fused_where_grad_is_off(fused: Any, x: Tensor) -> None:
    with torch.no_grad():
        fused(x.clone().requires_grad_())
    assert fused.fallbacks == 0


def test_a_gradient_flows_to_a_weight_and_is_right(fused: Any, model: Block, x: Tensor) -> None:
    fused.requires_grad_(True)
    falls_back(fused, "a weight requires grad", x).sum().backward()
    model(x).sum().backward()
    torch.testing.assert_close(fused.fc.weight.grad, model.fc.weight.grad)
    before = fused.fallbacks
    with torch.no_grad():
        fused(x)
    assert fused.fallbacks == before


def test_forward_derivatives_are_those_of_the_original(fused: Any, model: Block, x: Tensor) -> None:
    tangent = torch.ones_like(x)
    with forward_ad.dual_level(), torch.no_grad():
        out = falls_back(fused, "forward-mode", forward_ad.make_dual(x, tangent))
        theirs = model(forward_ad.make_dual(x, tangent))
        ours, expected = (forward_ad.unpack_dual(y).tangent for y in (out, theirs))
        torch.testing.assert_close(ours, expected)
    fused(x)
    assert fused.fallbacks == 1


def test_transforms_of_torch_func_run_the_original(fused: Any, model: Block, x: Tensor) -> None:
    tangents = (torch.ones_like(x),)
    _, ours = torch.func.jvp(lambda x: falls_back(fused, "torch.func", x), (x,), tangents)
    torch.testing.assert_close(ours, torch.func.jvp(model, (x,), tangents)[1])
    out = torch.func.vmap(lambda x: falls_back(fused, "torch.func", x))(torch.stack([x, x + 1]))
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
    out = falls_back(fused, "float16", x.half())
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
    out = falls_back(fused, "a submodule has been replaced", x)
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
    out = falls_back(fused, "a submodule has been", x)
    expected = model[0](x).tanh() if name == "1" else before.tanh()
    torch.testing.assert_close(out, expected)


def test_autocast_runs_the_original(fused: Any, model: Block, x: Tensor) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        out = falls_back(fused, "autocast is on", x)
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
        out = falls_back(fused, "autocast is on", x)
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
    off = falls_back(fused, "autocast is off, the program was captured under autocast to", x)
    assert torch.equal(off, model(x))
    with torch.autocast("cpu", torch.float16):
        other = falls_back(fused, "autocast is to float16", x)
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
