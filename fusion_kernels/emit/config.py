"""Block sizes and warps: what a kernel's text leaves open, and a default that is right without
tuning.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from fusion_kernels.emit.layout import Layout
from fusion_kernels.ir import Region

# One block holds a whole row in registers; past this a kernel would spill, and loops instead.
LONGEST_ROW = 16384


@dataclass(frozen=True, slots=True)
class KernelConfig:
    """`block_size` elements along the inner axis, `rows` rows a program (None where the axis is
    flat); with `looped` a program passes over its row in blocks. `bucketed` leaves the block to the
    launcher: the power of two that holds the row, `block_size` at most.
    """

    block_size: int
    num_warps: int
    rows: int | None = None
    looped: bool = False
    bucketed: bool = False

    def constexprs(self) -> dict[str, int]:
        """The kernel's compile-time constants by name."""
        values = {"BLOCK_SIZE": self.block_size}
        return values if self.rows in (None, 1) else {"ROWS": self.rows or 1, **values}

    def __str__(self) -> str:
        rows = "" if self.rows is None else f", {self.rows} rows"
        blocks = "blocks of" if self.looped else "block"
        blocks = "blocks of up to" if self.bucketed else blocks
        return f"{blocks} {self.block_size}{rows}, {self.num_warps} warps"


def config_for(region: Region, layout: Layout) -> KernelConfig:
    """The default configuration."""
    return candidates(region, layout)[0]


def candidates(region: Region, layout: Layout) -> tuple[KernelConfig, ...]:
    """Configurations worth timing, the default first."""
    if len(layout.axes) == 1 and not region.row_rank:
        return _flat(region.numel)
    inner = layout.inner_size
    if not region.row_rank:
        return _tiles(inner)
    if region.open_row:
        return tuple(replace(config, bucketed=True) for config in _LOOPED)
    return _whole_rows(inner) if inner <= LONGEST_ROW else _LOOPED


def _flat(numel: int) -> tuple[KernelConfig, ...]:
    if numel < 1 << 20:
        return (KernelConfig(1024, 4), KernelConfig(512, 4), KernelConfig(2048, 8))
    return (
        KernelConfig(2048, 4),
        KernelConfig(2048, 8),
        KernelConfig(4096, 8),
        KernelConfig(1024, 4),
        KernelConfig(8192, 8),
    )


def _tiles(inner: int) -> tuple[KernelConfig, ...]:
    """Pointwise: pieces of rows, several rows a program where rows are short."""
    block = min(_power_of_two(inner), 1024)
    rows = max(1, 1024 // block)
    found = [KernelConfig(block, 4, rows), KernelConfig(block, 4, 2 * rows)]
    found += [KernelConfig(block, 2, rows), KernelConfig(block, 8, 4 * rows)]
    if inner > 1024:
        found += [KernelConfig(2048, 4, 1), KernelConfig(2048, 8, 2)]
    return tuple(found)


def _whole_rows(inner: int) -> tuple[KernelConfig, ...]:
    """Reductions: a row in one block. A block of 1,024 is best read by four warps on an H200;
    rows of a few hundred elements share a program.
    """
    block = _power_of_two(inner)
    if block < 512:
        rows = max(1, 1024 // block)
        return (
            KernelConfig(block, 4, rows),
            KernelConfig(block, 4, max(1, rows // 2)),
            KernelConfig(block, 1, 1),
            KernelConfig(block, 8, 2 * rows),
        )
    if block < 4096:
        return (
            KernelConfig(block, 4, 1),
            KernelConfig(block, 2, 1),
            KernelConfig(block, 1, 1),
            KernelConfig(block, 8, 1),
            KernelConfig(block, 4, 2),
            KernelConfig(block, 8, 4),
        )
    warps = max(8, min(32, block // 1024))
    return (
        KernelConfig(block, warps, 1),
        KernelConfig(block, min(32, 2 * warps), 1),
        KernelConfig(block, min(32, 2 * warps), 2),
    )


_LOOPED = (
    KernelConfig(4096, 8, 1, looped=True),
    KernelConfig(8192, 16, 1, looped=True),
    KernelConfig(2048, 8, 1, looped=True),
    KernelConfig(4096, 16, 1, looped=True),
)


def _power_of_two(n: int) -> int:
    return 1 << max(n - 1, 0).bit_length()
