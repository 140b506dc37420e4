"""Capture and fuse a small module of your own, and read the kernels that were generated for it.

Two chains stand in the model below: GELU followed by an addition, and an addition followed by
LayerNorm. Each becomes one kernel if it checks out against float64 and wins on this machine.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import torch
from torch import nn

import planner
from planner.report.model import FusionRow


class Block(nn.Module):
    """An MLP with a residual around its activation and a post-norm residual around it all."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Linear(width, width)
        self.outer = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = nn.functional.gelu(self.inner(x)) + x
        return self.norm(self.outer(hidden) + x)


def main(arguments: list[str] | None = None) -> int:
    """Print the captured operators, what became of each chain, and the text of the kernels."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, help="where the run is written (default: temporary)")
    options = parser.parse_args(arguments)
    torch.manual_seed(0)
    model = nn.Sequential(Block(512), Block(512)).eval()
    inputs = (torch.randn(8, 128, 512),)

    captured = planner.capture(model, inputs)
    print("Captured operators")
    for node in captured.graph:
        print(f"  {node.op:28} {node.module_path:10} {node.source or ''}")

    with tempfile.TemporaryDirectory() as scratch:
        out = options.out or Path(scratch) / "run"
        fused = planner.fuse(model, inputs, name="two blocks", out=out)
        _print_fusions(fused.report.fusions)
        for kernel in sorted((out / "kernels").glob("*.py")):
            print(f"\n--- {kernel.name}\n{kernel.read_text()}")

    difference = (fused(*inputs) - model(*inputs)).abs().max()
    print(f"Largest difference from the original module: {difference:.1e}")
    return 0


def _print_fusions(fusions: tuple[FusionRow, ...]) -> None:
    print("\nFusions")
    for row in fusions:
        print(f"  {row.rule:16} {row.module:10} {'kept' if row.kept else 'dropped'}: {row.reason}")


if __name__ == "__main__":
    sys.exit(main())
