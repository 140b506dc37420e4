"""A machine on which kernels run operation by operation and win, and a way to load an artifact in
another process.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import planner
from planner import pipeline
from planner.bench import Race
from planner.fusion import contest
from planner.fusion.module import FusedModule
from planner.report.model import Benchmark
from planner.timing import Comparison, Timing

ROOT = Path(__file__).parents[2]

MODELS = '''
"""The models of these tests, in a module that another process can import."""

from collections import OrderedDict, namedtuple
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu


class Block(nn.Module):
    """GELU with a residual, then a residual with a norm."""

    def __init__(self, width=24):
        super().__init__()
        self.up, self.down = nn.Linear(width, width), nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, x):
        h = gelu(self.up(x)) + x
        return self.norm(self.down(h) + h)


class Counting(nn.Module):
    """Counts in a buffer, reads one that is in no state_dict, and a tensor that is none."""

    def __init__(self):
        super().__init__()
        self.block = Block()
        self.register_buffer("count", torch.zeros(24))
        self.register_buffer("offset", torch.randn(24), persistent=False)
        self.scale = torch.randn(24)

    def forward(self, x):
        self.count.add_(1)
        return self.block(x) * self.scale + self.offset + self.count


class Tied(nn.Module):
    """Two linears with one weight, which lies transposed."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(24, 24), nn.Linear(24, 24)
        self.first.weight = nn.Parameter(torch.randn(24, 24).t())
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.second(gelu(self.first(x)) + x)


class Keywords(nn.Module):
    """Arguments by name, with defaults, one of them no plain value."""

    def __init__(self):
        super().__init__()
        self.block = Block()

    def forward(self, x, *, shift=None, scale=2.0, dtype=torch.float32):
        y = self.block(x) * scale
        return y if shift is None else y + shift


@dataclass
class Output:
    """A plain dataclass."""

    first: Tensor
    second: Tensor | None = None


Pair = namedtuple("Pair", "left right")


class Container(nn.Module):
    """Gives its outputs in the container of this name."""

    def __init__(self, kind):
        super().__init__()
        self.block, self.kind = Block(), kind

    def forward(self, x):
        y = self.block(x)
        z = y + x
        if self.kind == "dict":
            return {"y": y, "list": [z, (y, None)]}
        if self.kind == "ordered":
            return OrderedDict(z=z, y=y)
        if self.kind == "dataclass":
            return Output(y)
        return Pair(y, z)
'''


def _made_up(calls: Mapping[str, Callable[[], object]], *_: Any, **__: Any) -> dict[str, Timing]:
    return {name: Timing((10.0 if name == "before" else 5.0,) * 9) for name in calls}


def _about(ratio: float) -> Comparison:
    return Comparison(ratio, ratio - 0.1, ratio + 0.1)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The module `artifact_models`, importable here and by path."""
    folder = tmp_path_factory.mktemp("models")
    (folder / "artifact_models.py").write_text(MODELS)
    sys.path.insert(0, str(folder))
    import artifact_models

    yield artifact_models
    sys.path.remove(str(folder))


@pytest.fixture(scope="module")
def machine(uncompiled: Any) -> Iterator[Callable[[float, float], None]]:
    """Kernels run operation by operation and each wins its race; call it to say how many times as
    fast as eager the fused program is, and the one without kernels.
    """
    ratios = {"fused": 2.0, "normalized": 1.0}

    def race(*args: Any, **_: Any) -> Race:
        against = {name: _about(ratios[name]) for name in args[1]}
        kernels = _about(ratios["fused"] / ratios["normalized"]) if len(against) == 2 else None
        return Race(Benchmark((), 9), against, kernels)

    def won_by(fused: float, normalized: float) -> None:
        ratios.update(fused=fused, normalized=normalized)

    with pytest.MonkeyPatch.context() as patch, uncompiled():
        patch.setattr(contest, "interleaved", _made_up)
        patch.setattr(pipeline, "race", race)
        yield won_by


@pytest.fixture(scope="module")
def fuse(machine: Callable[[float, float], None]) -> Callable[..., FusedModule]:
    """Fuse a model; the fused program wins unless `ratios` say otherwise."""

    def fuse_it(
        model: nn.Module,
        *args: Any,
        ratios: tuple[float, float] = (2.0, 1.0),
        dynamic_shapes: Any = None,
        **kwargs: Any,
    ) -> FusedModule:
        machine(*ratios)
        options: Any = {"compile_peer": False, "measure": False, "backends": ()}
        return planner.fuse(model.eval(), args, kwargs, dynamic_shapes, **options)

    return fuse_it


@dataclass(frozen=True)
class Saved:
    """A model, fused and saved once for all tests: they work on copies."""

    model: nn.Module
    fused: FusedModule
    path: Path

    @property
    def loaded(self) -> Any:
        return planner.load(self.path)


@pytest.fixture(scope="module")
def block(fuse: Any, models: Any, tmp_path_factory: pytest.TempPathFactory) -> Saved:
    """Two kernels, one of which writes over an input. Input: [5, 24]."""
    return _saved(models.Block(), fuse, tmp_path_factory)


@pytest.fixture(scope="module")
def counting(fuse: Any, models: Any, tmp_path_factory: pytest.TempPathFactory) -> Saved:
    """A model that counts in a buffer."""
    return _saved(models.Counting(), fuse, tmp_path_factory)


def _saved(model: nn.Module, fuse: Any, folders: pytest.TempPathFactory) -> Saved:
    path = folders.mktemp("saved") / "model.pt2"
    fused = fuse(model, torch.randn(5, 24))
    assert fused.fused
    fused.save(path)
    return Saved(model, fused, path)


@pytest.fixture
def elsewhere(models: Any, tmp_path: Path) -> Callable[..., Any]:
    """What `program`, run in a fresh process, leaves in `result`. It finds the artifact's path in
    `path`, and `given`; kernels run operation by operation there.
    """
    preamble = """
        import sys, torch
        from fusion_kernels import cpu
        def refuse(*_): raise RuntimeError("not compiled in this test")
        cpu._compile = cpu._compile_open = refuse
        path, given_path, result_path = sys.argv[1:]
        given = torch.load(given_path, weights_only=False)
        import planner
    """

    def run(path: Path, program: str, given: Any = None) -> Any:
        torch.save(given, tmp_path / "given.pt")
        script = textwrap.dedent(preamble) + textwrap.dedent(program)
        script += "\ntorch.save(result, result_path)\n"
        places = [str(ROOT), str(Path(models.__file__).parent)]
        done = subprocess.run(
            [sys.executable, "-c", script, path, tmp_path / "given.pt", tmp_path / "result.pt"],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(places), "OMP_NUM_THREADS": "1"},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return torch.load(tmp_path / "result.pt", weights_only=False)

    return run


@pytest.fixture
def x() -> Tensor:
    return torch.randn(5, 24)


@pytest.fixture
def no_unexpected_warning() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        yield
