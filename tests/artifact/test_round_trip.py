"""A saved module, loaded in this process and in a fresh one, is called like the original and
computes the same.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from torch.utils import _pytree as pytree

import planner
from planner.artifact.errors import OutsideRange

pytestmark = pytest.mark.usefixtures("no_unexpected_warning")


def _same(a: Any, b: Any) -> None:
    ours, theirs = pytree.tree_leaves(a), pytree.tree_leaves(b)
    assert pytree.tree_structure(a) == pytree.tree_structure(b)
    assert all(
        torch.equal(p, q) if isinstance(p, Tensor) else p == q
        for p, q in zip(ours, theirs, strict=True)
    )


@pytest.fixture
def saved(fuse: Any, x: Tensor, tmp_path: Path) -> Any:
    """A function: fuse this model, save it, and give the fused module, the path and a copy loaded
    here.
    """

    def save(model: Any, *args: Any, **kwargs: Any) -> tuple[Any, Path, Any]:
        fused = fuse(model, *(args or (x,)), **kwargs)
        path = tmp_path / "model.pt2"
        fused.save(path)
        return fused, path, planner.load(path)

    return save


_RUN = """
    module = planner.load(path)
    args, kwargs, calls = given
    result = [module(*args, **kwargs) for _ in range(calls)], module.fallbacks, module.code
"""


# --- equal outputs ---------------------------------------------------------------------------


def test_here_and_in_a_fresh_process(block: Any, x: Tensor, elsewhere: Any) -> None:
    fused, path, loaded = block.fused, block.path, block.loaded
    assert "_into_" in fused.code
    (there,), fallbacks, code = elsewhere(path, _RUN, ((x,), {}, 1))
    assert torch.equal(there, fused(x))
    assert torch.equal(loaded(x), fused(x))
    assert code == loaded.code == fused.code
    assert (fallbacks, loaded.fallbacks) == (0, 0)


def test_compiled_regions_in_a_fresh_process(block: Any, x: Tensor, elsewhere: Any) -> None:
    program = """
        import importlib
        importlib.reload(cpu)
        from fusion_kernels import library
        library.compile_region = cpu.compile_region
        module = planner.load(path)
        result = module(given), [op.cpu_region(*op._cpu).reason for op in library._DEFINED.values()]
    """
    there, reasons = elsewhere(block.path, program, x)
    torch.testing.assert_close(there, block.fused(x), rtol=1e-5, atol=1e-5)
    assert reasons == ["", ""]


def test_kernel_files_are_there_for_triton(block: Any, x: Tensor, elsewhere: Any) -> None:
    program = """
        from fusion_kernels.library import _DEFINED
        from fusion_kernels.load import interpreted
        module = planner.load(path)
        (operator,) = [op for name, op in _DEFINED.items() if name.startswith("gelu_residual")]
        launcher = interpreted(operator.path, operator.source.name)
        result = launcher(*given), operator.path.parent.stat().st_mode & 0o777
    """
    y = torch.randn(5, 24)
    out, mode = elsewhere(block.path, program, (y, x))
    torch.testing.assert_close(out, torch.nn.functional.gelu(y) + x)
    assert mode == 0o700


def test_buffers_that_forward_writes_are_its_own(counting: Any, x: Tensor, elsewhere: Any) -> None:
    fused, path, loaded = copy.deepcopy(counting.fused), counting.path, counting.loaded
    expected = [fused(x) for _ in range(3)]
    there, _, _ = elsewhere(path, _RUN, ((x,), {}, 3))
    _same(there, expected)
    _same([loaded(x) for _ in range(3)], expected)
    assert torch.equal(loaded.count, torch.full((24,), 3.0))
    again = planner.load(path)
    assert torch.equal(again.count, torch.zeros(24))


def test_weights_are_saved_as_they_are_now(counting: Any, x: Tensor, tmp_path: Path) -> None:
    fused, path = copy.deepcopy(counting.fused), tmp_path / "now.pt2"
    fused(x)
    with torch.no_grad():
        fused.block.up.weight.mul_(2)
    fused.save(path)
    loaded = planner.load(path)
    assert torch.equal(loaded.count, torch.ones(24))
    assert torch.equal(loaded(x), fused(x))


def test_tied_weights_stay_tied(saved: Any, models: Any, x: Tensor, elsewhere: Any) -> None:
    fused, path, loaded = saved(models.Tied())
    assert loaded.first.weight is loaded.second.weight
    assert loaded.first.weight.stride() == (1, 24)
    (there,), _, _ = elsewhere(path, _RUN, ((x,), {}, 1))
    assert torch.equal(there, fused(x))
    assert torch.equal(loaded(x), fused(x))
    with torch.no_grad():
        loaded.first.weight.zero_()
    torch.testing.assert_close(
        loaded(x), (torch.nn.functional.gelu(loaded.first.bias) + x) * 0 + loaded.second.bias
    )


def test_a_call_in_any_form(saved: Any, models: Any, x: Tensor, elsewhere: Any) -> None:
    fused, path, loaded = saved(models.Keywords(), x, shift=x + 1)
    expected = fused(x, shift=x + 1)
    assert torch.equal(loaded(x=x, shift=x + 1), expected)
    assert torch.equal(loaded(x, scale=2.0, shift=x + 1), expected)
    (there,), _, _ = elsewhere(path, _RUN, ((), {"scale": 2.0, "shift": x + 1, "x": x}, 1))
    assert torch.equal(there, expected)
    with pytest.raises(OutsideRange, match="other arguments"):
        loaded(x, scale=3.0, shift=x)


def test_output_containers(
    fuse: Any, models: Any, x: Tensor, elsewhere: Any, tmp_path: Path
) -> None:
    kinds = ("dict", "ordered", "dataclass", "namedtuple")
    expected = []
    for kind in kinds:
        fused = fuse(models.Container(kind), x)
        fused.save(tmp_path / f"{kind}.pt2")
        expected.append(fused(x))
        _same(planner.load(tmp_path / f"{kind}.pt2")(x), expected[-1])
    program = """
        kinds, x = given
        loaded = [planner.load(f"{path}/{kind}.pt2") for kind in kinds]
        result = [module(x) for module in loaded], [module.fallbacks for module in loaded]
    """
    there, fallbacks = elsewhere(tmp_path, program, (kinds, x))
    assert [type(value) for value in there] == [type(value) for value in expected]
    _same(there, expected)
    assert fallbacks == [0, 0, 0, 0]


@pytest.mark.parametrize("kind", ["bert", "gpt2"])
def test_a_transformer_with_its_output_class(
    kind: str, fuse: Any, elsewhere: Any, tmp_path: Path
) -> None:
    """GPT-2's output holds a DynamicCache."""
    sizes = {"bert": ("hidden_size", 32), "gpt2": ("n_embd", 32)}[kind]
    names = {"bert": ("num_hidden_layers", "num_attention_heads"), "gpt2": ("n_layer", "n_head")}
    config = transformers.AutoConfig.for_model(
        kind, vocab_size=50, **dict([sizes]), **dict.fromkeys(names[kind], 2)
    )
    model = transformers.AutoModel.from_config(config)
    ids = torch.randint(50, (2, 7))
    fused = fuse(model, input_ids=ids)
    assert fused.fused
    fused.save(tmp_path / "m.pt2")
    program = """
        module = planner.load(path)
        assert module.fused
        out = module(input_ids=given)
        cache = out.get("past_key_values")
        layers = [] if cache is None else cache.layers
        parts = [t for layer in layers for t in (layer.keys, layer.values)]
        result = type(out).__qualname__, type(cache).__name__, out.last_hidden_state, parts
    """
    name, cache, hidden, parts = elsewhere(tmp_path / "m.pt2", program, ids)
    expected = fused(input_ids=ids)
    assert name == type(expected).__qualname__
    assert cache == type(expected.get("past_key_values")).__name__
    assert torch.equal(hidden, expected.last_hidden_state)
    if kind == "gpt2":
        layers = expected.past_key_values.layers
        _same(parts, [t for layer in layers for t in (layer.keys, layer.values)])


# --- what came back --------------------------------------------------------------------------


@pytest.mark.parametrize("ratios", [(1.5, 2.0), (1.0, 1.0)], ids=["normalized", "original"])
def test_without_kernels_the_captured_program_is_saved(
    ratios: tuple[float, float], saved: Any, models: Any, x: Tensor, elsewhere: Any
) -> None:
    fused, path, loaded = saved(models.Counting(), ratios=ratios)
    assert fused.report.outcome.result == ("normalized" if ratios[1] > 1 else "original")
    assert not loaded.fused
    assert "fuseplan" not in loaded.code
    there, fallbacks, _ = elsewhere(path, _RUN, ((x,), {}, 2))
    expected = [fused(x) for _ in range(2)]
    torch.testing.assert_close(there, expected)
    torch.testing.assert_close([loaded(x) for _ in range(2)], expected)
    assert (fallbacks, loaded.fallbacks) == (0, 0)


def test_report_comes_along(block: Any) -> None:
    fused, loaded = block.fused, block.loaded
    assert loaded.report.outcome == fused.report.outcome
    assert len(loaded.report.fusions) == len(fused.report.fusions)


def test_a_loaded_module_can_be_saved_again(counting: Any, x: Tensor, tmp_path: Path) -> None:
    loaded = counting.loaded
    loaded.save(tmp_path / "again.pt2")
    again = planner.load(tmp_path / "again.pt2")
    assert again.code == loaded.code
    assert torch.equal(again(x), loaded(x))
    assert again.fused


# --- a module like any other -----------------------------------------------------------------


def test_state_dict(counting: Any, models: Any, x: Tensor) -> None:
    fused, loaded = counting.fused, counting.loaded
    assert list(loaded.state_dict()) == list(fused.state_dict())
    assert [n for n, _ in loaded.named_buffers()] == [n for n, _ in fused.named_buffers()]
    assert not any(p.requires_grad for p in loaded.parameters())
    other = models.Counting().eval()
    with torch.no_grad():
        loaded.load_state_dict(other.state_dict())
        other.offset.copy_(loaded.offset)
    other.scale = fused._twin.scale
    torch.testing.assert_close(loaded(x), other(x))
    assert loaded.fallbacks == 0


def test_a_deep_copy_has_weights_of_its_own(counting: Any, x: Tensor) -> None:
    fused, loaded = copy.deepcopy(counting.fused), counting.loaded
    twin = copy.deepcopy(loaded)
    expected = fused(x)
    assert torch.equal(twin(x), expected)
    with torch.no_grad():
        twin.block.up.weight.zero_()
    assert torch.equal(loaded(x), expected)
    with pytest.warns(UserWarning, match="requires grad"):
        twin(x.clone().requires_grad_())
    assert torch.equal(twin.count, torch.full((24,), 2.0))
    assert torch.equal(loaded.count, torch.ones(24))


def test_weights_are_stored_once(fuse: Any, models: Any, tmp_path: Path) -> None:
    model, x = models.Block(257), torch.randn(3, 257)
    fused = fuse(model, x)
    fused.save(tmp_path / "big.pt2")
    weights_bytes = sum(p.numel() * p.element_size() for p in model.parameters())
    assert (tmp_path / "big.pt2").stat().st_size < weights_bytes + 120_000 < 2 * weights_bytes


def test_the_users_example_and_paths_are_not_in_the_file(
    fuse: Any, models: Any, x: Tensor, tmp_path: Path
) -> None:
    fuse(models.Block(), x).save(tmp_path / "m.pt2")
    content = (tmp_path / "m.pt2").read_bytes()
    assert x.numpy().tobytes()[:64] not in content
    assert str(Path(models.__file__).parent).encode() not in content
    assert str(tmp_path).encode() not in content
