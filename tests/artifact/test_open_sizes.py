"""Artifacts of programs with open sizes: saved with their ranges, and named dimensions outside of
them.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

import planner
from planner.artifact.errors import NotSaved, OutsideRange

ROWS = {"x": {0: Dim("rows", min=0, max=9)}}
SIZES = (5, 1, 0, 2, 9)


@pytest.fixture(scope="module")
def saved(fuse: Any, models: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A block with open rows: the model and the path of its artifact."""
    model = models.Block()
    fused = fuse(model, torch.randn(5, 24), dynamic_shapes=ROWS)
    assert fused.fused
    path = tmp_path_factory.mktemp("open") / "model.pt2"
    fused.save(path)
    return model, path


def test_a_loaded_module_runs_its_kernels_at_every_size(saved: Any) -> None:
    model, path = saved
    module = planner.load(path)
    assert module.fused
    for rows in SIZES:
        x = torch.randn(rows, 24)
        torch.testing.assert_close(module(x), model(x))
    assert module.fallbacks == 0


def test_another_layout_runs_the_packaged_program_at_every_size(saved: Any) -> None:
    model, path = saved
    module = planner.load(path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        for rows in (4, 1, 7):
            x = torch.randn(24, rows).t()
            torch.testing.assert_close(module(x), model(x))
    assert module.fallbacks == 3


def test_a_size_outside_the_range_is_an_error_that_names_the_dimension(saved: Any) -> None:
    module = planner.load(saved[1])
    with pytest.raises(OutsideRange, match=r"dimension 0 of 'x' is 10, .* captured for 0 to 9"):
        module(torch.randn(10, 24))
    with pytest.raises(OutsideRange, match="dimension 1 of 'x' is 25, captured was 24"):
        module(torch.randn(3, 25))


def test_another_process_gives_the_same(saved: Any, elsewhere: Any) -> None:
    model, path = saved
    given = [torch.randn(rows, 24) for rows in SIZES]
    program = """
        module = planner.load(path)
        with torch.no_grad():
            result = [module(x) for x in given]
        assert module.fallbacks == 0
    """
    for out, x in zip(elsewhere(path, program, given), given, strict=True):
        torch.testing.assert_close(out, model(x))


class Prefix(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        out: Tensor = (x[: y.shape[0]] + y).relu() * 3
        return out


def test_sizes_that_depend_on_one_another_are_not_saved(fuse: Any, tmp_path: Path) -> None:
    auto = {0: Dim.AUTO}
    given = (torch.randn(6, 4), torch.randn(3, 4))
    fused = fuse(Prefix(), *given, dynamic_shapes={"x": auto, "y": auto})
    with pytest.raises(NotSaved, match="dimension 0 of 'y' <= dimension 0 of 'x'"):
        fused.save(tmp_path / "model.pt2")
    assert not (tmp_path / "model.pt2").exists()
