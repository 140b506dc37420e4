"""Where a loaded artifact runs its packaged program or refuses, and what cannot be saved."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import planner
from planner.artifact.errors import InferenceOnly, NotSaved, OutsideRange

pytestmark = pytest.mark.usefixtures("no_unexpected_warning")

# --- outside of the capture ------------------------------------------------------------------


def _falls_back(loaded: Any, reason: str, *args: Any) -> Any:
    loaded._warned = False
    before = loaded.fallbacks
    with pytest.warns(UserWarning, match="packaged program without kernels: .*" + reason):
        result = loaded(*args)
    assert loaded.fallbacks == before + 1
    return result


def test_the_packaged_program_takes_another_layout(block: Any) -> None:
    model, loaded = block.model, block.loaded
    other = torch.randn(24, 5).t()
    torch.testing.assert_close(_falls_back(loaded, "strides", other), model(other))


def test_the_packaged_program_has_gradients(counting: Any, x: Tensor) -> None:
    model, loaded = copy.deepcopy(counting.model), counting.loaded
    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    _falls_back(loaded, "requires grad", ours).sum().backward()
    model(theirs).sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad)


def test_the_packaged_program_runs_under_autocast(block: Any, x: Tensor) -> None:
    model, loaded = block.model, block.loaded
    with torch.autocast("cpu", torch.bfloat16):
        out, expected = _falls_back(loaded, "autocast", x), model(x)
    assert out.dtype is expected.dtype
    torch.testing.assert_close(out, expected)


def test_an_artifact_captured_under_autocast_runs_under_that_one_alone(
    fuse: Any, models: Any, x: Tensor, tmp_path: Path
) -> None:
    model = models.Block().eval()
    with torch.autocast("cpu", torch.bfloat16):
        fused = fuse(model, x)
        fused.save(tmp_path / "m.pt2")
        loaded = planner.load(tmp_path / "m.pt2")
        assert torch.equal(loaded(x), fused(x))
        assert loaded.fallbacks == fused.fallbacks == 0
        other = torch.randn(24, 5).t()
        near = {"rtol": 2**-6, "atol": 2**-6}
        torch.testing.assert_close(_falls_back(loaded, "strides", other), model(other), **near)
    with pytest.raises(OutsideRange, match="autocast is off, the program was captured under"):
        loaded(x)


def test_an_artifact_of_autocast_regions_runs_without_another_around(
    fuse: Any, models: Any, x: Tensor, tmp_path: Path
) -> None:
    class Regions(models.Block):  # type: ignore[misc, name-defined]
        def forward(self, x: Tensor) -> Any:
            with torch.autocast("cpu", torch.bfloat16):
                return super().forward(x)

    fuse(Regions().eval(), x).save(tmp_path / "m.pt2")
    loaded = planner.load(tmp_path / "m.pt2")
    with torch.autocast("cpu", torch.float16), pytest.raises(OutsideRange, match="autocast is on"):
        loaded(x)


def test_the_packaged_program_moves_to_another_device(
    fuse: Any, models: Any, tmp_path: Path
) -> None:
    class Positions(models.Block):  # type: ignore[misc, name-defined]
        """Makes a tensor on the input's device."""

        def forward(self, x: Tensor) -> Any:
            return super().forward(x) + torch.rand(24, device=x.device)

    x = torch.randn(5, 24)
    fuse(Positions(), x).save(tmp_path / "m.pt2")
    loaded = planner.load(tmp_path / "m.pt2").to("meta")
    out = _falls_back(loaded, "on meta", x.to("meta"))
    assert (out.device.type, out.shape) == ("meta", x.shape)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ((torch.randn(6, 24),), "dimension 0 of input 'x' is 6, the artifact is exported for 5"),
        ((torch.randn(5, 25),), "dimension 1 of input 'x' is 25"),
        ((torch.randn(5, 24, 1),), "input 'x' has 3 dimensions, captured were 2"),
        ((torch.randn(5, 24).double(),), "input 'x' is float64, captured was float32"),
        ((torch.randn(5, 24).to_sparse(),), "layout sparse_coo"),
        ((3,), "input 'x' is 3"),
        ((), "other arguments"),
    ],
)
def test_outside_of_the_exported_range_is_an_error(args: Any, said: str, block: Any) -> None:
    loaded = block.loaded
    with pytest.raises(OutsideRange) as caught:
        loaded(*args)
    assert said in str(caught.value)
    assert loaded.fallbacks == 0


def test_a_weight_of_another_dtype_is_an_error(block: Any, x: Tensor) -> None:
    loaded = block.loaded
    loaded.up.half()
    with pytest.raises(OutsideRange, match=r"weight 'up\.weight' is float16"):
        loaded(x)


def test_a_replaced_submodule_is_an_error(block: Any, x: Tensor) -> None:
    loaded = block.loaded
    loaded.norm = torch.nn.Identity()
    with pytest.raises(OutsideRange, match="submodule has been replaced"):
        loaded(x)


def test_training_is_refused(block: Any) -> None:
    loaded = block.loaded
    assert loaded.eval() is loaded
    with pytest.raises(InferenceOnly):
        loaded.train()


# --- what cannot be saved --------------------------------------------------------------------


def test_an_existing_file_is_kept(block: Any) -> None:
    fused, path = block.fused, block.path
    before = path.read_bytes()
    with pytest.raises(NotSaved, match="force"):
        fused.save(path)
    assert path.read_bytes() == before
    assert [p.name for p in path.parent.iterdir() if p.suffix == ".pt2"] == [path.name]


@pytest.mark.parametrize(
    ("name", "said"), [("m.pt", "ends in .pt2"), ("no/m.pt2", "there is no folder")]
)
def test_a_path_that_cannot_be(name: str, said: str, block: Any, tmp_path: Path) -> None:
    with pytest.raises(NotSaved, match=said):
        block.fused.save(tmp_path / name)


def test_a_class_that_no_other_process_can_import(
    fuse: Any, models: Any, x: Tensor, tmp_path: Path
) -> None:
    from dataclasses import dataclass

    @dataclass
    class Local:
        value: Tensor

    class Wrapped(models.Block):  # type: ignore[misc, name-defined]
        """Returns the local class."""

        def forward(self, x: Tensor) -> Local:
            return Local(super().forward(x))

    with pytest.raises(NotSaved, match=r"Local of .*cannot import"):
        fuse(Wrapped(), x).save(tmp_path / "m.pt2")
    assert list(tmp_path.glob("*.pt2")) == []


def test_a_changed_weight_is_not_saved(fuse: Any, models: Any, x: Tensor, tmp_path: Path) -> None:
    for ratios in ((2.0, 1.0), (1.0, 1.0)):
        fused = fuse(models.Block(), x, ratios=ratios)
        fused.half()
        with pytest.raises(NotSaved, match=r"'up\.weight' is float16"):
            fused.save(tmp_path / "m.pt2")


def test_a_tensor_that_would_be_pickled_is_not_saved(
    fuse: Any, models: Any, x: Tensor, tmp_path: Path
) -> None:
    class Special(Tensor):
        """A subclass."""

    fused = fuse(models.Block(), x)
    fused._twin.up._parameters["weight"] = fused.up.weight.detach().as_subclass(Special)
    with pytest.raises(NotSaved, match=r"up\.weight' is a Special"):
        fused.save(tmp_path / "m.pt2")


def test_a_program_that_was_found_wrong_is_not_saved(
    fuse: Any, models: Any, x: Tensor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from planner import pipeline
    from planner.report.model import NumericsRow

    def wrong(*args: Any) -> tuple[NumericsRow, ...]:
        right = "without kernels" not in args[5]
        return (NumericsRow(args[5], "float32", 1.0, 0.0, 1e-5, right, "norm"),)

    monkeypatch.setattr(pipeline, "verify_whole", wrong)
    fused = fuse(models.Block(), x, ratios=(1.5, 2.0))
    with pytest.raises(NotSaved, match="not sound"):
        fused.save(tmp_path / "m.pt2")
