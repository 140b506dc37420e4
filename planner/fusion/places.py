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
from planner.fusion.regions import plans_of, recomputed, refusals, survey_of
from planner.fusion.survey import Survey
from planner.fusion.weights import Rates, rates_of


@dataclass(frozen=True, slots=True)
class Places:
    """A program's regions with what names them, for one device. Regions are sets of bits."""

    survey: Survey
    hint: Hint
    mismatches: tuple[Mismatch, ...]
    device: Device
    torch_device: str

    def ways(self, chosen: Sequence[int]) -> tuple[tuple[Candidate, ...], ...]:
        """The ways to fuse each region, in graph order."""
        plans = plans_of(self.survey, chosen, self.hint)
        return tuple(
            alternatives(plan, self.hint, self.device, self.torch_device) for plan in plans
        )

    def refusals(self, chosen: Sequence[int], tried: Collection[int] = ()) -> tuple[Mismatch, ...]:
        """Why rules did not fit and operators are left alone, but for those in a region that was
        tried, which has a reason of its own.
        """
        return (*self.mismatches, *refusals(self.survey, chosen, tried))


def survey_places(program: ExportedProgram, device: Device, torch_device: str) -> Places:
    """Every region of the program worth considering.

    The program holds copies of cheap producers afterwards, where regions should compute them
    again (see `planner.fusion.recompute`); it is then surveyed with them.
    """
    rates = rates_of(device, torch_device)
    hint = input_hint(program.graph_signature.inputs_to_parameters)
    survey, mismatches = _surveyed(program.graph, hint, rates)
    chosen = [survey.reach.members(bits) for bits in survey.choose()]
    if recomputed(program.graph, chosen, rates):
        survey, mismatches = _surveyed(program.graph, hint, rates)
    return Places(survey, hint, mismatches, device, torch_device)


def _surveyed(graph: fx.Graph, hint: Hint, rates: Rates) -> tuple[Survey, tuple[Mismatch, ...]]:
    matches, mismatches = match_rules(graph, RULES)
    return survey_of(graph, matches, hint, rates), mismatches
