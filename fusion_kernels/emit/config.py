"""Block sizes and warps: what a kernel's text leaves open, and a default that is right without
tuning.
"""

from __future__ import annotations

from dataclasses import dataclass

from fusion_kernels.emit.layout import Layout, NotEmitted
from fusion_kernels.ir import Region

# One block holds a whole row in registers; past this a kernel would spill.
LONGEST_ROW = 16384


@dataclass(frozen=True, slots=True)
class KernelConfig:
    """`block_size` elements along the inner axis, `rows` rows a program (None where the axis is
    flat).
    """

    block_size: int
    num_warps: int
    rows: int | None = None

    def constexprs(self) -> dict[str, int]:
        """The kernel's compile-time constants by name."""
        values = {"BLOCK_SIZE": self.block_size}
        return values if self.rows in (None, 1) else {"ROWS": self.rows or 1, **values}

    def __str__(self) -> str:
        rows = "" if self.rows is None else f", {self.rows} rows"
        return f"block {self.block_size}{rows}, {self.num_warps} warps"


def config_for(region: Region, layout: Layout) -> KernelConfig:
    """The default configuration."""
    return candidates(region, layout)[0]


def candidates(region: Region, layout: Layout) -> tuple[KernelConfig, ...]:
    """Configurations worth timing, the default first.

    Raises `NotEmitted` when a row does not fit one block.
    """
    if len(layout.axes) == 1 and not region.row_rank:
        return _flat(region.numel)
    inner = layout.axes[-1].size
    if region.row_rank:
        if inner > LONGEST_ROW:
            raise NotEmitted(
                f"a row of {inner} elements does not fit one block of {LONGEST_ROW}; "
                "there is no looped template yet"
            )
        return _rows(inner)
    return _rows(min(inner, 2048))


def _flat(numel: int) -> tuple[KernelConfig, ...]:
    if numel < 1 << 20:
        return (KernelConfig(1024, 4), KernelConfig(512, 4), KernelConfig(2048, 8))
    return (
        KernelConfig(4096, 8),
        KernelConfig(2048, 4),
        KernelConfig(2048, 8),
        KernelConfig(1024, 4),
        KernelConfig(8192, 8),
    )


def _rows(inner: int) -> tuple[KernelConfig, ...]:
    block = 1 << max(inner - 1, 0).bit_length()
    if block >= 4096:
        middle = max(8, min(32, block // 1024))
        warps = dict.fromkeys((middle, max(4, middle // 2), min(32, middle * 2)))
        return tuple(KernelConfig(block, count, 1) for count in warps)
    most = max(1, 4096 // block)
    rows = dict.fromkeys((max(1, most // 2), most, max(1, most // 4), 1))
    found = [KernelConfig(block, 4, count) for count in rows]
    found += [KernelConfig(block, 8, most), KernelConfig(block, 2, 1), KernelConfig(block, 8, 1)]
    return tuple(dict.fromkeys(found))
