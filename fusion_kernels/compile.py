"""Compiles a kernel for an NVIDIA or AMD target ahead of time, on a machine that needs no GPU, and
says what it uses: registers, local memory, shared memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from fusion_kernels.resources import UnknownUsage, Usage, usage_of_amdgcn, usage_of_cubin

Target = tuple[str, int | str]
"""("cuda", compute capability x 10) or ("hip", architecture): ("cuda", 90), ("hip", "gfx942")."""

_ALIGNMENT_BYTES = 16
_POINTERS = {
    torch.bool: "*i1",
    torch.uint8: "*u8",
    torch.int8: "*i8",
    torch.int16: "*i16",
    torch.int32: "*i32",
    torch.int64: "*i64",
    torch.float8_e4m3fn: "*fp8e4nv",
    torch.float8_e5m2: "*fp8e5",
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.float32: "*fp32",
    torch.float64: "*fp64",
}
_WARP_THREADS = {"cuda": 32, "hip": 64}
_PARTS = {"cuda": ("ptx", "cubin"), "hip": ("amdgcn", "hsaco")}


class CannotCompile(RuntimeError):
    """A kernel that the target or the installed tools refuse; the message holds their words."""


@dataclass(frozen=True, slots=True)
class KernelSignature:
    """The types a kernel is compiled for, as Triton spells them ("*bf16", "i32", "fp32",
    "constexpr"), the values of constexprs, and the positions of arguments divisible by 16.
    """

    types: dict[str, str]
    constexprs: dict[str, Any]
    divisible: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CompiledResources:
    """What one compiled kernel uses. `usage` is per thread; local memory is where spilled
    registers go. `shared_bytes` is per program. `target` is like "sm_90" or "gfx942". `assembly`
    is PTX or AMD's, `binary` a cubin or an hsaco.
    """

    target: str
    usage: Usage
    shared_bytes: int
    num_warps: int
    assembly: str
    binary: bytes

    @property
    def spills(self) -> bool:
        return bool(self.usage.local_bytes or self.usage.spilled_registers)


def signature_of(kernel: Any, arguments: Mapping[str, Any]) -> KernelSignature:
    """The signature that a launch of `kernel` (a `@triton.jit` function) with `arguments` has.

    `arguments` maps every parameter to an example: a tensor (of any device, meta and fake too), a
    bool, int or float, the value of a constexpr, or a type spelled out ("*bf16", taken as aligned;
    "i64"). As at launch, an int equal to 1 becomes a constant and a None does too; tensors are
    taken to start where the allocator aligns them. Raises `CannotCompile` for a missing or
    unknown argument and for a dtype that Triton has no pointer to.
    """
    names = [param.name for param in kernel.params]
    wrong = sorted(set(names) ^ set(arguments))
    if wrong:
        raise CannotCompile(f"{kernel.__name__}: arguments missing or unknown: {', '.join(wrong)}")
    types: dict[str, str] = {}
    constexprs: dict[str, Any] = {}
    divisible: list[int] = []
    for position, param in enumerate(kernel.params):
        value = arguments[param.name]
        specialized = not getattr(param, "do_not_specialize", False)
        one = specialized and type(value) is int and value == 1
        if param.is_constexpr or value is None or one:
            types[param.name], constexprs[param.name] = "constexpr", value
            continue
        types[param.name] = _type_of(param.name, value)
        if specialized and _is_divisible(value):
            divisible.append(position)
    return KernelSignature(types, constexprs, tuple(divisible))


def compile_ahead(
    kernel: Any,
    arguments: Mapping[str, Any],
    *,
    target: Target = ("cuda", 90),
    num_warps: int = 4,
    num_stages: int | None = None,
) -> CompiledResources:
    """Compile `kernel` as a launch with `arguments` would (see `signature_of`).

    A warp is 32 threads on "cuda" and 64 on "hip", whose architectures are CDNA (gfx9). Without
    `num_stages` it is the backend's own default. Results are kept in Triton's own cache. Takes
    0.1-1.4 s. Raises `CannotCompile` with the compiler's words.
    """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    backend, architecture = target
    if backend not in _WARP_THREADS:
        raise CannotCompile(f"no target '{backend}'; there are {', '.join(_WARP_THREADS)}")
    name = f"sm_{architecture}" if backend == "cuda" else str(architecture)
    signature = signature_of(kernel, arguments)
    attributes = {
        (position,): [["tt.divisibility", _ALIGNMENT_BYTES]] for position in signature.divisible
    }
    source = ASTSource(kernel, signature.types, signature.constexprs, attributes)
    options = {"num_warps": num_warps}
    if num_stages is not None:
        options["num_stages"] = num_stages
    try:
        compiled = triton.compile(
            source,
            target=GPUTarget(backend, architecture, _WARP_THREADS[backend]),
            options=options,
        )
        usage = _usage(backend, compiled.asm)
    except UnknownUsage as error:
        raise CannotCompile(str(error)) from error
    except Exception as error:
        raise CannotCompile(f"{kernel.__name__} for {name}: {error}") from error
    text, binary = _PARTS[backend]
    return CompiledResources(
        target=name,
        usage=usage,
        shared_bytes=int(compiled.metadata.shared),
        num_warps=num_warps,
        assembly=str(compiled.asm[text]),
        binary=bytes(compiled.asm[binary]),
    )


def _type_of(name: str, value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, torch.Tensor) and value.dtype in _POINTERS:
        return _POINTERS[value.dtype]
    if isinstance(value, bool):
        return "i1"
    if isinstance(value, int):
        return "i32" if -(2**31) <= value < 2**31 else "i64"
    if isinstance(value, float):
        return "fp32"
    described = value.dtype if isinstance(value, torch.Tensor) else type(value).__name__
    raise CannotCompile(f"argument '{name}': Triton has no type for {described}")


def _is_divisible(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return int(value.storage_offset()) * value.element_size() % _ALIGNMENT_BYTES == 0
    if isinstance(value, str):
        return value.startswith("*")
    return type(value) is int and value % _ALIGNMENT_BYTES == 0


def _usage(backend: str, asm: Mapping[str, Any]) -> Usage:
    from triton import knobs

    if backend == "hip":
        return usage_of_amdgcn(str(asm["amdgcn"]))
    return usage_of_cubin(bytes(asm["cubin"]), knobs.nvidia.cuobjdump.path)
