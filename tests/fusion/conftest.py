"""Graphs traced from functions, and models fused without verification, with kernels run by torch:
matching, growing and rewriting do not need a compiler.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from fused_models import Block
from torch import Tensor, fx, nn
from torch.fx.experimental.proxy_tensor import make_fx

from fusion_kernels.library import define
from fusion_kernels.rule import Match, Mismatch
from fusion_kernels.rules import RULES
from planner.cost.devices import Device
from planner.fusion.candidate import Candidate
from planner.fusion.match import match_rules
from planner.fusion.module import FusedModule
from planner.fusion.open_graph import in_program
from planner.fusion.places import find_places
from planner.fusion.plan import write_kernel
from planner.fusion.regions import RegionPlan, find_regions
from planner.fusion.rewrite import replace_regions
from planner.graph.twin import twin_of
from planner.passes.linear_bias import merge_linear_bias, split_linear_bias
from planner.passes.reuse_buffers import reuse_buffers
from planner.passes.runner import run_passes
from planner.pipeline import capture

UNKNOWN_DEVICE = Device("cpu", "a processor", ("cpu",), {})


@pytest.fixture(autouse=True)
def eager_regions(uncompiled: Any) -> Iterator[None]:
    with uncompiled():
        yield


@dataclass(frozen=True)
class Grown:
    """A traced function with what was found in it."""

    module: fx.GraphModule
    plans: tuple[RegionPlan, ...]
    matches: tuple[Match, ...]
    mismatches: tuple[Mismatch, ...]
    rejected: tuple[Mismatch, ...]

    @property
    def regions(self) -> list[list[str]]:
        """For each region its operators, without namespace and overload."""
        return [
            [str(node.target).split(".")[1] for node in plan.lowered.nodes] for plan in self.plans
        ]


def _trace(function: Callable[..., Any], *tensors: torch.Tensor) -> fx.GraphModule:
    module = make_fx(function, tracing_mode="fake", pre_dispatch=True)(*tensors)
    module.graph.eliminate_dead_code()
    return module


def _grow(module: fx.GraphModule) -> Grown:
    matches, mismatches = match_rules(module.graph, RULES)
    plans, rejected = find_regions(module.graph, matches, lambda node: node.name)
    return Grown(module, plans, matches, mismatches, rejected)


@pytest.fixture
def trace() -> Callable[..., fx.GraphModule]:
    """A function of tensors as a graph of ATen operators, composites whole."""
    return _trace


@pytest.fixture
def grow() -> Callable[..., Grown]:
    """The regions of a function of tensors."""
    return lambda function, *tensors: _grow(_trace(function, *tensors))


@pytest.fixture
def grow_graph() -> Callable[[fx.GraphModule], Grown]:
    """The regions of a graph."""
    return _grow


@pytest.fixture
def rewritten(tmp_path: Path) -> Callable[[Grown], fx.GraphModule]:
    """The graph with every region replaced by its operator, in place."""

    def rewrite(grown: Grown) -> fx.GraphModule:
        from fusion_kernels.emit.source import Provenance, emit

        chosen = []
        for plan in grown.plans:
            source = emit(plan.lowered.region, Provenance(plan.rule))
            chosen.append((plan.lowered, define(source, write_kernel(source, tmp_path)).overload))
        replace_regions(grown.module.graph, chosen)
        grown.module.graph.lint()
        grown.module.recompile()
        return grown.module

    return rewrite


@dataclass(frozen=True)
class Fused:
    """A model whose every region was fused, whatever it costs."""

    module: FusedModule
    places: tuple[tuple[Candidate, ...], ...]
    rejected: tuple[Mismatch, ...]


@pytest.fixture
def fuse_all(tmp_path: Path) -> Callable[..., Fused]:
    """Fuse every place of a model in the given way, without verifying or timing it."""

    def fuse(
        model: nn.Module,
        args: tuple[Any, ...] = (),
        kwargs: Any = None,
        dynamic_shapes: Any = None,
        *,
        way: int = 0,
    ) -> Fused:
        program = capture(model, args, kwargs, dynamic_shapes).program
        run_passes(program, (("split_linear_bias", split_linear_bias),))
        places, rejected = find_places(program, UNKNOWN_DEVICE, "cpu")
        chosen = []
        for ways in places:
            one = ways[min(way, len(ways) - 1)]
            operator = define(one.source, write_kernel(one.source, tmp_path))
            chosen.append((in_program(program, one), operator.overload))

        def fuse_regions(program: torch.export.ExportedProgram) -> tuple[str, ...]:
            replace_regions(program.graph, chosen)
            return ()

        passes = (
            ("fuse", fuse_regions),
            ("merge_linear_bias", merge_linear_bias),
            ("reuse_buffers", reuse_buffers),
        )
        run_passes(program, passes)
        return Fused(FusedModule(twin_of(model), program), places, rejected)

    return fuse


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


@pytest.fixture
def no_unexpected_warning() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        yield
