"""Holds the fused whole against float64 and eager, on fresh inputs like the example's."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import OutputKind
from torch.utils import _pytree as pytree

from fusion_kernels.model_tolerances import ModelDraw, judge_draws, measure_draw
from fusion_kernels.tolerances import MIN_DRAWS
from planner.draws import draw_like
from planner.fusion.precision import without_casts
from planner.fusion.subgraph import run_in_float64, widened
from planner.graph.open_ends import lifted
from planner.graph.open_sizes import open_sizes
from planner.graph.trial_sizes import trial_calls
from planner.profile.untouched import fresh_inputs, restored
from planner.report.model import NumericsRow
from planner.verify import numerics_row

Run = Callable[[Any], Sequence[Tensor]]


def verify_whole(
    fused: nn.Module,
    eager: nn.Module,
    program: ExportedProgram,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    subject: str,
    device: str,
    seed: int,
    unrounded: Collection[str] = (),
) -> tuple[NumericsRow, ...]:
    """The fused module, the eager one and in float64 `program`, the captured one before any
    fusion and less the casts named in `unrounded`, on 16 draws; with open sizes on 16 more at other
    sizes, of which the rows tell.

    Every draw starts from the buffers and the random state that `eager` has now; both modules are
    left with them. Outputs that are no tensors are not compared.
    """
    # Once for all draws: a functional program writes to none of them.
    weights = [widened(tensor) for tensor in lifted(program, eager)]
    captured = program.graph_module
    truth = without_casts(captured, unrounded) if unrounded else captured
    kinds = [spec.kind for spec in program.graph_signature.output_specs]

    def exact(draw: Any) -> list[Tensor]:
        # Random operators must draw what they drew in the two modules, which start from here.
        with restored(eager, device):
            values = run_in_float64(truth, [*weights, *pytree.tree_leaves(draw)])
        pairs = zip(values, kinds, strict=True)
        return _tensors([value for value, kind in pairs if kind is OutputKind.USER_OUTPUT])

    def run(module: nn.Module) -> Run:
        def call(draw: Any) -> list[Tensor]:
            own_args, own_kwargs = fresh_inputs(*draw)
            with restored(module, device):
                # Before the buffers are put back: an output may be one.
                return [tensor.clone() for tensor in _tensors(module(*own_args, **own_kwargs))]

        return call

    runs = (run(fused), run(eager), exact)
    draws = [draw_like(args, kwargs, seed + 1000 + n) for n in range(MIN_DRAWS)]
    rows = verify_model(*runs, draws, subject)
    found = open_sizes(program)
    if found is None:
        return rows
    others = trial_calls(eager, args, kwargs, found)
    if not others:
        return rows
    draws = [draw_like(*others[n % len(others)][1], seed + 2000 + n) for n in range(_draws(others))]
    sizes = ", ".join(words for words, _ in others)
    try:
        return (*rows, *verify_model(*runs, draws, subject, f" at sizes {sizes}"))
    except Exception as error:
        lines = str(error).strip().splitlines()
        said = f"{type(error).__name__}: {lines[0] if lines else ''} at sizes {sizes}"
        return (*rows, NumericsRow(subject, "", None, None, 0.0, False, "runs", said))


def verify_model(
    fused: Run, eager: Run, reference: Run, draws: Sequence[Any], subject: str, at: str = ""
) -> tuple[NumericsRow, ...]:
    """The whole model on 16 draws or more: one row an output and measure. `at` ends their cases.

    The three callables take one draw and return tensors in the same order. Raises ValueError for
    fewer draws.
    """
    if len(draws) < MIN_DRAWS:
        raise ValueError(f"the contract asks for {MIN_DRAWS} draws, not {len(draws)}")
    measured: list[list[ModelDraw]] = []
    with torch.no_grad():
        for draw in draws:  # measured at once: the logits of 16 draws would fill a device
            outputs = zip(fused(draw), eager(draw), reference(draw), strict=True)
            measured.append([measure_draw(*output) for output in outputs])
    rows: list[NumericsRow] = []
    for index, of_output in enumerate(zip(*measured, strict=True)):
        dtype = str(of_output[0].dtype).removeprefix("torch.")
        where = f"output {index}, {len(draws)} draws{at}"
        results = judge_draws(of_output)
        rows += [numerics_row(subject, dtype, result, where) for result in results]
    return tuple(rows)


def _draws(calls: Sequence[object]) -> int:
    """As many as the contract asks for, and each call at least once."""
    return max(MIN_DRAWS, len(calls))


def _tensors(result: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, Tensor)]
