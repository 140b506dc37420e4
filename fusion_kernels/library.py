"""An emitted kernel as a torch operator: schema, CUDA launch, CPU region, fake kernel, autograd
behaviour.

`Library.define`/`impl` costs 2 us a call where torch.library.custom_op costs 13. Operators live
in the namespace `fuseplan`; their names hold a digest of what they compute, so one name never
means two things. Autograd is refused: a fused operator raises when grad mode is on and an input
requires grad.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from fusion_kernels.cpu import CpuRegion, compile_region
from fusion_kernels.emit.source import KernelSource, computed
from fusion_kernels.evaluate import output_shape, region_shape
from fusion_kernels.ir import Output, Region, memory_order
from fusion_kernels.launch import Recorded, RepeatedLaunch
from fusion_kernels.load import KernelModule, load_kernel
from fusion_kernels.side_by_side import compile_side_by_side

NAMESPACE = "fuseplan"

_LIBRARY = torch.library.Library(NAMESPACE, "FRAGMENT")
_DEFINED: dict[str, FusedOperator] = {}
_REUSING: dict[Any, tuple[FusedOperator, int]] = {}


class NoBackward(RuntimeError):
    """A fused operator was called for training."""


@dataclass(slots=True)
class FusedOperator:
    """One generated kernel as an operator. `overload` is what a graph calls.

    The launcher is loaded at the first CUDA call and may be replaced by `use`, so that a tuned
    text takes the place of the default one; the CPU region is compiled at the first CPU call.
    """

    source: KernelSource
    path: Path
    overload: Any
    _loaded: KernelModule | None = None
    _launcher: Callable[..., Any] | None = None
    _cpu: dict[int | None, CpuRegion] = field(default_factory=dict)
    _reusing: dict[int, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.source.file_name

    def use(self, source: KernelSource, path: Path) -> None:
        """Run this text from now on; it must compute the same."""
        self.source, self.path = source, path
        self._loaded = self._launcher = None

    def cpu_region(self, reuse: int | None = None) -> CpuRegion:
        """The region as it runs on CPU, compiled at the first call; see `compile_region`."""
        if reuse not in self._cpu:
            self._cpu[reuse] = compile_region(self.source.region, reuse)
        return self._cpu[reuse]

    def reusing(self, index: int) -> Any:
        """The operator that may overwrite its input number `index` and then returns it.

        That input must have the shape, dtype and layout of the only output, and no other reader.
        """
        if index not in self._reusing:
            self._reusing[index] = _define_reusing(self, index)
            _REUSING[self._reusing[index]] = (self, index)
        return self._reusing[index]

    def on_cpu(self, *tensors: torch.Tensor) -> Any:
        results = self.cpu_region().run(*tensors)
        return results[0] if len(results) == 1 else results

    def recorded(self, *tensors: torch.Tensor) -> Recorded | None:
        """The launch kept of the last CUDA call with inputs like these, if it can be repeated."""
        launcher = self._launcher
        return launcher.recorded(*tensors) if isinstance(launcher, RepeatedLaunch) else None

    def on_cuda(self, *tensors: torch.Tensor) -> Any:
        if self._launcher is None:
            loaded = self._kernel()
            name = f"{self.source.name}_kernel"
            self._launcher = RepeatedLaunch(loaded.launcher, loaded.module, name)
        return self._launcher(*tensors)

    def compile_for(self, calls: Iterable[Sequence[torch.Tensor]]) -> None:
        """Compile side by side what CUDA calls with tensors that lie like these will launch."""
        loaded = self._kernel()
        compile_side_by_side((loaded, tensors) for tensors in calls)

    def _kernel(self) -> KernelModule:
        if self._loaded is None:
            self._loaded = load_kernel(self.path, self.source.name)
        return self._loaded


def define(source: KernelSource, path: Path) -> FusedOperator:
    """The operator of an emitted kernel; defined once a process, whatever asks for it again."""
    known = _DEFINED.get(source.file_name)
    if known is not None:
        if computed(known.source.region) != computed(source.region):
            raise RuntimeError(f"two kernels share the name {source.file_name}; please report it")
        known.use(source, path)
        return known
    name = source.file_name
    inputs = ", ".join(f"Tensor {item.name}" for item in source.region.inputs)
    results = ", ".join(["Tensor"] * len(source.region.outputs))
    returns = results if len(source.region.outputs) == 1 else f"({results})"
    _LIBRARY.define(f"{name}({inputs}) -> {returns}")
    operator = FusedOperator(source, path, getattr(torch.ops.fuseplan, name).default)
    _LIBRARY.impl(name, operator.on_cpu, "CPU")
    _LIBRARY.impl(name, operator.on_cuda, "CUDA")
    _LIBRARY.impl(name, _refuse_backward(operator.overload), "Autograd")
    torch.library.register_fake(f"{NAMESPACE}::{name}", _fake(source.region))
    _DEFINED[name] = operator
    return operator


def operator_of(overload: Any) -> FusedOperator | None:
    """The fused operator that `overload` calls, None for any other."""
    name = getattr(overload, "_schema", None)
    return _DEFINED.get(name.name.removeprefix(f"{NAMESPACE}::")) if name is not None else None


def reuse_of(overload: Any) -> tuple[FusedOperator, int] | None:
    """The fused operator behind one that overwrites an input, and that input's position; None for
    any other overload.
    """
    return _REUSING.get(overload)


def is_kernel(target: Any) -> bool:
    """Whether a graph's target is a fused operator, one that overwrites an input included."""
    return isinstance(target, torch._ops.OpOverload) and target.namespace == NAMESPACE


def _define_reusing(operator: FusedOperator, index: int) -> Any:
    region = operator.source.region
    name = f"{operator.name}_into_{region.inputs[index].name}"
    inputs = ", ".join(
        f"Tensor{'(a!)' if position == index else ''} {item.name}"
        for position, item in enumerate(region.inputs)
    )
    _LIBRARY.define(f"{name}({inputs}) -> Tensor(a!)")
    overload = getattr(torch.ops.fuseplan, name).default

    def on_cpu(*tensors: torch.Tensor) -> torch.Tensor:
        return operator.cpu_region(index).run(*tensors)[0]

    _LIBRARY.impl(name, on_cpu, "CPU")
    _LIBRARY.impl(name, _refuse_backward(overload), "Autograd")
    torch.library.register_fake(f"{NAMESPACE}::{name}", lambda *tensors: tensors[index])
    return overload


def _refuse_backward(overload: Any) -> Callable[..., Any]:
    def call(*tensors: torch.Tensor) -> Any:
        if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
            raise NoBackward(
                f"{overload} has no backward: call the fused module, which falls back to the "
                "original program when gradients are needed, or use torch.no_grad()."
            )
        with torch._C._AutoDispatchBelowAutograd():
            return overload(*tensors)

    return call


def _fake(region: Region) -> Callable[..., Any]:
    def fake(*tensors: torch.Tensor) -> Any:
        shape = region_shape(region, tensors)
        results = tuple(_empty(item, region, shape, tensors[0]) for item in region.outputs)
        return results[0] if len(results) == 1 else results

    return fake


def _empty(
    output: Output, region: Region, shape: Sequence[int], like: torch.Tensor
) -> torch.Tensor:
    """A tensor without values in the output's memory order."""
    order = memory_order(output.shape, output.stride)
    sizes = output_shape(output, region, shape)
    dtype = getattr(torch, output.dtype)
    made = torch.empty([sizes[d] for d in order], dtype=dtype, device=like.device)
    return made.permute([order.index(d) for d in range(len(order))])
