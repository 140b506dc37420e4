"""The regions that docs/fusion.md shows are those that are found today."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaModel

from planner import capture
from planner.cost.devices import Device
from planner.fusion.places import find_places
from planner.rewriting import rewritten

_DOCUMENT = Path(__file__).parents[1] / "docs" / "fusion.md"


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(8, 32)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.silu(self.norm(x))


def test_a_layer_of_llama_has_the_regions_of_the_document() -> None:
    sizes = {"hidden_size": 64, "intermediate_size": 128, "vocab_size": 100}
    heads = {"num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2}
    model = LlamaModel(LlamaConfig(**sizes, **heads)).eval().bfloat16()
    ids = torch.randint(0, 100, (2, 16))
    found = _regions(model, (), {"input_ids": ids, "use_cache": False})
    assert _shown("add_rms_norm") in found
    assert _shown("rope") in found


def test_a_group_norm_has_the_region_of_the_document() -> None:
    assert _regions(Normed().eval(), (torch.randn(4, 32, 16, 16),), {}) == [
        _shown("group_norm_silu")
    ]


def _regions(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[list[str]]:
    program, _ = rewritten(capture(model, args, kwargs).program, lambda *_: None)
    places, _ = find_places(program, Device("none", "", (), {}), "cuda")
    return [str(ways[0].lowered.region).split() for ways in places]


def _shown(name: str) -> list[str]:
    """The words of a region in the document, whose first line is broken there."""
    _, _, rest = _DOCUMENT.read_text(encoding="utf-8").partition(f"    region {name}(")
    block, _, _ = rest.partition("\n\n")
    return f"region {name}({block}".split()
