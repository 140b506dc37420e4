"""The places of a program where kernels may stand: all regions surveyed, with the ways to fuse
each.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from torch import fx
from torch.export import ExportedProgram

from fusion_kernels.rule import Mismatch
from fusion_kernels.rules import RULES
from planner.cost.devices import Device
from planner.fusion.candidate import Candidate, alternatives
from planner.fusion.lower import Hint, input_hint
from planner.fusion.match import match_rules
from planner.fusion.open_places import Opening, opened, opening_of
from planner.fusion.regions import plans_of, recomputed, refusals, survey_of
from planner.fusion.survey import Survey
from planner.fusion.weights import Rates, rates_of
from planner.graph.open_sizes import open_sizes


@dataclass(frozen=True, slots=True)
class Places:
    """A program's regions with what names them, for one device. Regions are sets of bits.
    `opening` is there where the program leaves sizes open.
    """

    survey: Survey
    hint: Hint
    mismatches: tuple[Mismatch, ...]
    device: Device
    torch_device: str
    opening: Opening | None = None

    def ways(self, chosen: Sequence[int]) -> tuple[tuple[Candidate, ...], ...]:
        """The ways to fuse each region, in graph order."""
        plans = plans_of(self.survey, chosen, self.hint)
        found = (alternatives(plan, self.hint, self.device, self.torch_device) for plan in plans)
        if self.opening is None:
            return tuple(found)
        return tuple(tuple(opened(way, self.opening) for way in ways) for ways in found)

    def refusals(self, chosen: Sequence[int], tried: Collection[int] = ()) -> tuple[Mismatch, ...]:
        """Why rules did not fit and operators are left alone, but for those in a region that was
        tried, which has a reason of its own.
        """
        return (*self.mismatches, *refusals(self.survey, chosen, tried))


def survey_places(program: ExportedProgram, device: Device, torch_device: str) -> Places:
    """Every region of the program worth considering.

    The program holds copies of cheap producers afterwards, where regions should compute them
    again (see `planner.fusion.recompute`); it is then surveyed with them. Where sizes are open a
    copy at the example's sizes is surveyed, without such copies.
    """
    rates = rates_of(device, torch_device)
    hint = input_hint(program.graph_signature.inputs_to_parameters)
    sizes = open_sizes(program)
    if sizes is not None:
        fixed, opening = opening_of(program, sizes)
        survey, mismatches = _surveyed(fixed.graph, hint, rates)
        return Places(survey, hint, mismatches, device, torch_device, opening)
    survey, mismatches = _surveyed(program.graph, hint, rates)
    chosen = [survey.reach.members(bits) for bits in survey.choose()]
    if recomputed(program.graph, chosen, rates):
        survey, mismatches = _surveyed(program.graph, hint, rates)
    return Places(survey, hint, mismatches, device, torch_device)


def find_places(
    program: ExportedProgram, device: Device, torch_device: str
) -> tuple[tuple[tuple[Candidate, ...], ...], tuple[Mismatch, ...]]:
    """Every place of the program where a rule or a pointwise chain can be fused, in graph order,
    each with the ways to do it; and the places where a rule nearly fits, with the reason.

    The program holds copies of cheap producers afterwards, where regions should compute them
    again (see `planner.fusion.recompute`). Where sizes are open, nodes are those of a copy at the
    example's sizes (see `planner.fusion.open_places`).
    """
    places = survey_places(program, device, torch_device)
    chosen = places.survey.choose()
    found = places.ways(chosen)
    kept = tuple(fitting(ways) for ways in found)
    unfit = [
        Mismatch(ways[0].plan.rule, "check", ways[0].refusal, ways[0].nodes[-1])
        for ways, rest in zip(found, kept, strict=True)
        if not rest
    ]
    return tuple(ways for ways in kept if ways), (*places.refusals(chosen), *unfit)


def fitting(ways: Sequence[Candidate]) -> tuple[Candidate, ...]:
    """Those that serve every size that the program leaves open."""
    return tuple(way for way in ways if not way.refusal)


def _surveyed(graph: fx.Graph, hint: Hint, rates: Rates) -> tuple[Survey, tuple[Mismatch, ...]]:
    matches, mismatches = match_rules(graph, RULES)
    return survey_of(graph, matches, hint, rates), mismatches
