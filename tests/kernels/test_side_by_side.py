"""Kernels compiled side by side for a GPU that is not here: the driver is a stand-in, the compiler
is Triton's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fusion_kernels.load import KernelModule, load_kernel
from fusion_kernels.side_by_side import compile_side_by_side

TEXT = '''"""scaled: x times a number."""

import torch
import triton
import triton.language as tl


@triton.jit
def scaled_kernel(x_ptr, out_ptr, n, stride, BLOCK_SIZE: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    x = tl.load(x_ptr + offsets * stride, mask=offsets < n)
    tl.store(out_ptr + offsets, x * FACTOR, mask=offsets < n)


def scaled(x):
    if x.dim() != 1:
        raise ValueError("one dimension")
    out = torch.empty_like(x)
    scaled_kernel[(1,)](x, out, x.numel(), x.stride(0), BLOCK_SIZE=64, num_warps=1)
    return out
'''


class Driver:
    """What Triton asks of a GPU before it compiles; nothing can be launched on this one."""

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, _: int) -> int:
        return 0

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", 90, 32)

    def launcher_cls(self, *_: Any) -> Any:
        raise AssertionError("a kernel was launched")


@pytest.fixture(autouse=True)
def no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    from triton import knobs
    from triton.runtime import driver

    monkeypatch.setattr(driver, "_active", Driver())
    with knobs.cache.scope():
        knobs.cache.dir = str(tmp_path / "cache")
        yield


def _kernel(factor: str) -> KernelModule:
    return load_kernel(TEXT.replace("FACTOR", factor), "scaled")


def _compiled(loaded: KernelModule) -> dict[Any, Any]:
    found: dict[Any, Any] = loaded.kernels["scaled_kernel"].device_caches[0][0]
    return found


def _row(elements: int, stride: int = 1, dtype: torch.dtype = torch.float32) -> tuple[Tensor]:
    return (torch.empty(elements * stride, dtype=dtype)[::stride],)


def test_each_kernel_is_compiled_and_none_is_launched() -> None:
    kernels = [_kernel("2.0"), _kernel("3.0")]
    compile_side_by_side((kernel, _row(64)) for kernel in kernels)
    for kernel in kernels:
        (compiled,) = _compiled(kernel).values()
        assert compiled.asm["cubin"]
        assert vars(kernel.module)["scaled_kernel"] is kernel.kernels["scaled_kernel"]


def test_each_kind_of_call_is_compiled_once() -> None:
    kernel = _kernel("4.0")
    rows = (_row(64), _row(128), _row(64, stride=2), _row(63), _row(64, dtype=torch.bfloat16))
    compile_side_by_side((kernel, row) for row in rows)
    assert len(_compiled(kernel)) == 4


def test_the_binary_is_that_of_a_kernel_compiled_alone(tmp_path: Path) -> None:
    from triton import knobs

    together = [_kernel(f"{n}.5") for n in range(4)]
    compile_side_by_side((kernel, _row(64)) for kernel in together)
    knobs.cache.dir = str(tmp_path / "alone")
    alone = [_kernel(f"{n}.5") for n in range(4)]
    for first, second in zip(together, alone, strict=True):
        compile_side_by_side([(second, _row(64))])
        (one,), (other,) = _compiled(first).values(), _compiled(second).values()
        assert one.asm["cubin"] == other.asm["cubin"]


@pytest.mark.parametrize(
    ("factor", "tensors"),
    [("tl.no_such_function(x)", _row(64)), ("2.0", (torch.empty(2, 2),))],
    ids=["does not compile", "the launcher refuses"],
)
def test_what_fails_leaves_the_others_alone(factor: str, tensors: tuple[Tensor]) -> None:
    failing, right = _kernel(factor), _kernel("7.0")
    compile_side_by_side([(failing, tensors), (right, _row(64))])
    assert len(_compiled(right)) == 1
    with pytest.raises(Exception, match=r"no_such_function|one dimension"):
        failing.launcher(*tensors)


def test_a_triton_without_the_mode_compiles_at_the_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    import triton

    monkeypatch.delattr(triton, "AsyncCompileMode")
    kernel = _kernel("8.0")
    compile_side_by_side([(kernel, _row(64))])
    assert not _compiled(kernel)
