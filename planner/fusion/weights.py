"""Predicted time of a region as one kernel and as the operators it replaces.

    time = launch + max(traffic / copy rate, rounds * latency)

The first of the two is the roofline's bound for work that is all memory (S. Williams, A. Waterman,
D. Patterson, "Roofline", Communications of the ACM 52(4), 2009). The second is Little's law (J.
Little, Operations Research 9(3), 1961; for GPUs V. Volkov, "Understanding Latency Hiding on GPUs",
Berkeley, 2016, chapter 4): a program waits for one latency in each round of loads that it makes
one after another, and with few programs nothing hides that.

The traffic of a kernel is each input read once and each output written once. Two things add to it
on a GPU. A row longer than a block is passed over once for every reduction that needs an earlier
one, and once more to write, and its inputs are read each time. Values that do not fit into a
program's registers are written out and read again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil, prod

from torch import fx

from fusion_kernels.emit.config import KernelConfig, config_for
from fusion_kernels.emit.layout import layout_of
from fusion_kernels.ir import REDUCTIONS, ROW_OPS, Region
from planner.cost.devices import Device
from planner.cost.families import NORMALIZATION, SOFTMAX, packet
from planner.cost.formulas import cost_of
from planner.fusion.lowered import LoweredRegion
from planner.graph.view import op_name, op_node, tensor_meta
from planner.passes.linear_bias import SPLIT

_ASSUMED_RATE, _ASSUMED_LAUNCH_US = 1e6, 5.0
"""For a device without figures: 1,000 GB/s. Which of two regions saves more seldom hangs on it."""
_GPU_LATENCY_US, _CPU_LATENCY_US = 1.0, 0.1
"""One round of loads from memory, assumed: an H200 answers in 0.6 to 0.8 us, and loops."""
_REGISTERS, _MOST_REGISTERS = 65536, 255
"""32-bit registers of a multiprocessor, and most of one thread, NVIDIA compute capability 5 to
10 (CUDA C++ Programming Guide, "Technical Specifications per Compute Capability")."""
_FOR_INDICES = 24
"""Registers of a thread that addresses and masks take, assumed."""
_EAGER_PASSES = 2
"""Eager's norms and softmaxes reached 0.17 to 0.58 of the copy rate on an H200, 768 to 32,000
columns in bfloat16: as if they moved everything twice."""
_EAGER_COPY_PASSES = {"aten.clone": 2, "aten.contiguous": 2, "aten.cat": 4}
"""So do its copies of what lies otherwise: on an H200 a clone of transposed heads in bfloat16 ran
at
0.4 of the copy rate, a concatenation of one with an empty cache at 0.08."""
_EAGER_BLOCK, _EAGER_ROUNDS = 8192, 3
"""They give a row to one block of 1,024 threads, which load 16 bytes at once, and pass over it up
to three times (ATen, PersistentSoftmax.cuh and SoftMax.cu)."""
_BOTH_WAYS_US = 0.01
"""What it is worth to take a linear's bias over: such a region is raced with the bias in the GEMM
as well, one that leaves it there is not."""
LEAST_US = 0.01
"""What a region is worth that is to be tried although nothing is predicted for it."""


@dataclass(frozen=True, slots=True)
class Rates:
    """What the prediction needs to know of a device. `latency_us` is one round of loads."""

    bytes_per_us: float
    launch_us: float
    latency_us: float
    on_gpu: bool


def rates_of(device: Device, torch_device: str) -> Rates:
    """The device's copy rate and launch overhead, assumed ones where they are not known."""
    on_gpu = not torch_device.startswith("cpu")
    return Rates(
        device.bandwidth_gbs * 1e3 if device.bandwidth_gbs else _ASSUMED_RATE,
        device.launch_overhead_us or _ASSUMED_LAUNCH_US,
        _GPU_LATENCY_US if on_gpu else _CPU_LATENCY_US,
        on_gpu,
    )


def saving_us(lowered: LoweredRegion, rates: Rates) -> float:
    """Operators less kernel. The prediction is not trusted to turn down what moves fewer bytes:
    that is worth a little, so that it is tried where nothing better overlaps it.
    """
    moved = [(node, _moved(node, rates)) for node in lowered.nodes]
    before = sum(_operator_us(node, traffic, rates) for node, traffic in moved)
    saving = before - kernel_us(lowered, rates)
    total = sum(traffic for _, traffic in moved)
    saves = _bytes((*lowered.inputs, *lowered.outputs)) < total
    return max(saving, LEAST_US) if saves else saving


def operators_us(nodes: Iterable[fx.Node], rates: Rates) -> float:
    """Time of the operators one by one, as eager runs them.

    A view takes none. A bias that was split from its linear takes what reading it takes on a GPU,
    where the GEMM adds it.
    """
    return sum(_operator_us(node, _moved(node, rates), rates) for node in nodes)


def kernel_us(lowered: LoweredRegion, rates: Rates) -> float:
    """Time of the region as one kernel in its default configuration."""
    region = lowered.region
    read, written = _bytes(lowered.inputs), _bytes(lowered.outputs)
    if not rates.on_gpu:
        return _time_us(read + written, 1, rates)
    config = config_for(region, layout_of(region))
    passes = passes_over_row(region) if config.looped else 1
    rounds = passes * (ceil(region.row_length / config.block_size) if config.looped else 1)
    traffic = passes * read + written + _spilled_bytes(region, config)
    return _time_us(traffic, rounds, rates)


def turns_layout(node: fx.Node) -> bool:
    """Whether the operator copies tensors from one layout into another, and does nothing else."""
    if packet(op_name(node)) not in _EAGER_COPY_PASSES:
        return False
    own = node.meta["val"]
    sources = [source.meta["val"] for source in node.all_input_nodes]
    moved = [source for source in sources if source.dim() == own.dim() > 1 and source.numel()]
    return any(not source.is_contiguous() for source in moved) and own.is_contiguous()


def passes_over_row(region: Region) -> int:
    """How often a looping kernel reads its row: once for each reduction that needs an earlier
    one, and once to write what is as large as the row.
    """
    depth: dict[str, int] = {item.name: 0 for item in region.inputs}
    for item in region.body:
        needed = max((depth[arg] for arg in item.args if isinstance(arg, str)), default=0)
        # A LayerNorm takes the mean, then the variance about it.
        depth[item.name] = needed + (2 if item.op == "layer_norm" else item.op in REDUCTIONS)
    writes = any(output.shape == region.shape for output in region.outputs)
    return max(depth.values(), default=0) + writes


def most_live(region: Region) -> int:
    """The most values of the whole row that a program holds at once, inputs from their first use
    to their last. What holds one value a row is not counted.
    """
    last = {arg: n for n, item in enumerate(region.body) for arg in item.args}
    last |= {output.value: len(region.body) for output in region.outputs}
    of_row = _of_row(region)
    live: set[str] = set()
    most = 0
    for n, item in enumerate(region.body):
        live.update(arg for arg in item.args if isinstance(arg, str) and last[arg] >= n)
        most = max(most, len(live - of_row))
        live = {name for name in live if last[name] > n}
        if last.get(item.name, 0) > n:
            live.add(item.name)
    return max(most, len(live - of_row))


def _of_row(region: Region) -> set[str]:
    """Reductions, and what is made of one value a row alone."""
    found = {item.name for item in region.inputs if _narrow(item.shape, region)}
    for item in region.body:
        named = [arg for arg in item.args if isinstance(arg, str)]
        if item.op in REDUCTIONS or (named and item.op not in ROW_OPS and found.issuperset(named)):
            found.add(item.name)
    return found


def _narrow(shape: tuple[int, ...], region: Region) -> bool:
    return all(n == 1 for n in shape[len(shape) - max(region.row_rank, 1) :])


def _spilled_bytes(region: Region, config: KernelConfig) -> float:
    """Traffic of the values that a thread has no registers for."""
    if config.looped or not region.row_rank:
        return 0.0
    threads = 32 * config.num_warps
    each = config.block_size * (config.rows or 1) / threads
    fitting = (min(_MOST_REGISTERS, _REGISTERS // threads) - _FOR_INDICES) / each
    spilled = max(0.0, most_live(region) - fitting)
    return 2 * 4 * region.numel * spilled


def _operator_us(node: fx.Node, traffic: int, rates: Rates) -> float:
    if SPLIT in node.meta and rates.on_gpu:
        return _bytes(node.all_input_nodes[1:]) / rates.bytes_per_us + _BOTH_WAYS_US
    if not traffic:
        return 0.0
    length = _row_length(node)
    rounds = _EAGER_ROUNDS * ceil(length / _EAGER_BLOCK) if length and rates.on_gpu else 1
    return _time_us(traffic, rounds, rates)


def _moved(node: fx.Node, rates: Rates) -> int:
    """Bytes of one operator, as eager moves them."""
    if SPLIT in node.meta and rates.on_gpu:
        return 0
    passes = _EAGER_PASSES if _row_length(node) else 1
    if rates.on_gpu and turns_layout(node):
        passes = _EAGER_COPY_PASSES[packet(op_name(node))]
    return passes * (cost_of(op_node(node)).bytes or 0)


def _row_length(node: fx.Node) -> int:
    """Elements of one row of a norm or softmax; 0 for any other operator."""
    name = packet(op_name(node))
    shape = node.meta["val"].shape if name in NORMALIZATION | SOFTMAX else ()
    over = node.args[1] if len(node.args) > 1 else None
    if name in SOFTMAX and isinstance(over, int):
        return int(shape[over])
    if name in ("aten.layer_norm", "aten.rms_norm") and isinstance(over, list | tuple):
        return int(prod(shape[len(shape) - len(over) :]))
    return 1 if shape else 0


def _time_us(traffic: float, rounds: int, rates: Rates) -> float:
    return rates.launch_us + max(traffic / rates.bytes_per_us, rounds * rates.latency_us)


def _bytes(nodes: Iterable[fx.Node]) -> int:
    return sum(tensor_meta(node.meta["val"]).nbytes for node in nodes)
