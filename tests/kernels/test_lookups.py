"""Lookups as text: positions outside of the table."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fusion_kernels.builder import Builder
from fusion_kernels.emit.config import KernelConfig
from fusion_kernels.ir import Output


@pytest.mark.parametrize("rows", [1, 4])
def test_a_position_outside_of_the_table_gives_nan_and_reads_nothing(
    rows: int, kernel_run: Any, memory_watch: Any
) -> None:
    made = Builder()
    table = made.input("table", "float32", (1, 8), (0, 1), 1, table=True)
    at = made.input("at", "int64", (4, 1), (1, 0), 2)
    made.at("embedding", "embedding", "float32")
    result = made.apply("mul", made.gather(table, at), 2.0)
    region = made.finish("found", (4, 8), [Output(result, "float32", (4, 8), (8, 1))])

    values, positions = torch.randn(4, 8), torch.tensor([[0], [3], [4], [-1]])
    (out,) = kernel_run(region, (values.t(), positions), KernelConfig(8, 4, rows))

    torch.testing.assert_close(out[:2], values[[0, 3]] * 2)
    assert out[2:].isnan().all()
    assert memory_watch.strays == 0
