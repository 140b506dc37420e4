"""Audit a BERT with random weights on three backends: what each covers, and why a row is short.

No device is needed: coverage comes from the operator tables in coverage/backends. The same from
the command line, with a gate that fails under 100 % of the calls:

    fuseplan audit hf:bert --seq 32 --backend cpu --backend onnx --fail-under 100
"""

from __future__ import annotations

import argparse
import sys

import torch
from transformers import BertConfig, BertModel

import planner
from planner.report.model import COVERED_LEVELS

BACKENDS = ("cpu", "cuda", "onnx")


def main(arguments: list[str] | None = None) -> int:
    """Print one line a backend, then the operators that it does not cover or is not sure of."""
    argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0]).parse_args(arguments)
    torch.manual_seed(0)
    config = BertConfig(hidden_size=128, num_hidden_layers=2, num_attention_heads=4)
    tokens = torch.randint(config.vocab_size, (2, 32))
    report = planner.audit(BertModel(config).eval(), (tokens,), {}, backends=BACKENDS)

    print(f"{len(report.ops)} rows (an operator x shapes x dtypes)", end=", ")
    print(f"{sum(row.calls for row in report.ops)} calls")
    for backend in BACKENDS:
        coverage = report.coverage[backend]
        print(f"\n{backend}: operators {_share(coverage.by_op)}, calls {_share(coverage.by_calls)}")
        for row in coverage.rows:
            if row.level not in COVERED_LEVELS:
                print(f"  {row.level:12} {row.op}: {row.reason}")
    return 0


def _share(fraction: float | None) -> str:
    return "unknown" if fraction is None else f"{fraction:.0%}"


if __name__ == "__main__":
    sys.exit(main())
