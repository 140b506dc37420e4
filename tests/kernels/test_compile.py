"""Ahead-of-time compilation needs no GPU and reports what a kernel uses."""

from pathlib import Path

import pytest
import torch
from triton import knobs

from fusion_kernels.compile import CannotCompile, compile_ahead, signature_of
from fusion_kernels.load import interpreted, load_kernel
from fusion_kernels.resources import UnknownUsage, usage_of_amdgcn, usage_of_cubin

SAMPLE = Path(__file__).with_name("sample_kernel.py")
TARGETS = (("cuda", 80), ("cuda", 90))


@pytest.fixture(scope="module")
def kernel():
    return load_kernel(SAMPLE, "add_layer_norm").kernels["add_layer_norm_kernel"]


def arguments(dtype=torch.float32, cols=768, block=1024, **changed):
    pointers = ("x_ptr", "residual_ptr", "weight_ptr", "bias_ptr", "out_ptr")
    tensor = torch.empty(4, cols, dtype=dtype, device="meta")
    numbers = {"row_stride": cols, "n_cols": cols, "eps": 1e-5, "BLOCK_SIZE": block}
    return {**dict.fromkeys(pointers, tensor), **numbers, **changed}


@pytest.mark.parametrize("target", TARGETS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_the_sample_kernel_compiles_without_spills(kernel, dtype, target):
    used = compile_ahead(kernel, arguments(dtype), target=target)
    assert used.target == f"sm_{target[1]}"
    assert used.usage.local_bytes == 0
    assert 16 <= used.usage.registers <= 128
    assert used.binary.startswith(b"\x7fELF")
    assert f".target sm_{target[1]}" in used.assembly


@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_a_row_too_wide_for_one_warp_spills(kernel, target):
    used = compile_ahead(kernel, arguments(cols=16384, block=16384), target=target, num_warps=1)
    assert used.usage.local_bytes > 1000


def test_warps_share_the_row_through_shared_memory(kernel):
    one = compile_ahead(kernel, arguments(), num_warps=1)
    four = compile_ahead(kernel, arguments(), num_warps=4)
    assert one.shared_bytes == 0
    assert four.shared_bytes >= 4 * 4
    assert four.usage.registers < one.usage.registers


def test_it_compiles_after_the_same_file_was_interpreted(kernel):
    row = torch.ones(1, 48)
    interpreted(SAMPLE, "add_layer_norm")(row, row, row[0], row[0], 1e-5)
    assert compile_ahead(kernel, arguments(cols=48, block=64), num_warps=2).usage.local_bytes == 0


def test_the_pointer_dtype_reaches_the_code(kernel):
    bf16 = compile_ahead(kernel, arguments(torch.bfloat16)).assembly
    fp32 = compile_ahead(kernel, arguments(torch.float32)).assembly
    assert "cvt.rn.bf16" in bf16
    assert "cvt.rn.bf16" not in fp32


def test_a_signature_has_triton_types_and_what_16_divides(kernel):
    signature = signature_of(kernel, arguments(torch.bfloat16, n_cols=257, row_stride=2**40))
    assert signature.types["x_ptr"] == "*bf16"
    assert signature.types["n_cols"] == "i32"
    assert signature.types["row_stride"] == "i64"
    assert signature.types["eps"] == "fp32"
    assert signature.types["BLOCK_SIZE"] == "constexpr"
    assert signature.constexprs == {"BLOCK_SIZE": 1024}
    assert signature.divisible == (0, 1, 2, 3, 4, 5)


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        (torch.bool, "*i1"),
        (torch.int64, "*i64"),
        (torch.int32, "*i32"),
        (torch.float16, "*fp16"),
        (torch.float64, "*fp64"),
        (torch.float8_e4m3fn, "*fp8e4nv"),
    ],
)
def test_every_dtype_has_its_pointer(kernel, dtype, expected):
    assert signature_of(kernel, arguments(dtype)).types["x_ptr"] == expected


def test_a_misaligned_view_is_not_called_divisible(kernel):
    view = torch.empty(4, 769)[:, 1:]
    assert 0 not in signature_of(kernel, arguments(x_ptr=view)).divisible


def test_one_and_none_become_constants_as_at_launch(kernel):
    signature = signature_of(kernel, arguments(n_cols=1, residual_ptr=None))
    assert signature.constexprs == {"n_cols": 1, "residual_ptr": None, "BLOCK_SIZE": 1024}


def test_the_signature_is_the_one_triton_itself_derives_at_launch(kernel):
    from triton.backends.compiler import BaseBackend
    from triton.runtime.jit import create_function_from_signature

    real = arguments(torch.bfloat16, cols=257, row_stride=1)
    real = {
        k: torch.empty(4, 257, dtype=torch.bfloat16) if "ptr" in k else v for k, v in real.items()
    }
    binder = create_function_from_signature(kernel.signature, kernel.params, BaseBackend)
    _, specialization, _ = binder(**real)
    signature = signature_of(kernel, real)
    assert [kind for kind, _ in specialization] == list(signature.types.values())
    aligned = tuple(i for i, (kind, key) in enumerate(specialization) if key == "D")
    assert aligned == signature.divisible


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"extra": 1}, "missing or unknown: extra"),
        ({"x_ptr": torch.empty(4, dtype=torch.complex64)}, "no type for torch.complex64"),
        ({"eps": object()}, "no type for object"),
    ],
)
def test_bad_arguments_are_named(kernel, changed, reason):
    with pytest.raises(CannotCompile, match=reason):
        signature_of(kernel, arguments(**changed))


def test_a_missing_argument_is_named(kernel):
    given = arguments()
    del given["eps"]
    with pytest.raises(CannotCompile, match="missing or unknown: eps"):
        signature_of(kernel, given)


def test_the_compiler_s_words_are_passed_on(kernel):
    with pytest.raises(CannotCompile, match="power of 2"):
        compile_ahead(kernel, arguments(block=1000))


def test_another_backend_is_refused(kernel):
    with pytest.raises(CannotCompile, match="no target 'xpu'; there are cuda, hip"):
        compile_ahead(kernel, arguments(), target=("xpu", 1))


AMD = (("hip", "gfx942"), ("hip", "gfx950"))


@pytest.mark.parametrize("target", AMD, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_the_sample_kernel_compiles_for_amd_without_spills(kernel, dtype, target):
    used = compile_ahead(kernel, arguments(dtype), target=target)
    assert used.target == target[1]
    assert not used.spills
    assert 8 <= used.usage.registers <= 64
    assert used.binary.startswith(b"\x7fELF")
    assert f"amdhsa--{target[1]}" in used.assembly


@pytest.mark.parametrize("target", AMD, ids=str)
def test_a_row_too_wide_for_one_wavefront_spills_on_amd(kernel, target):
    wide = arguments(cols=16384, block=16384)
    used = compile_ahead(kernel, wide, target=target, num_warps=1)
    assert used.spills
    assert used.usage.spilled_registers
    assert used.usage.local_bytes > 1000


def test_a_binary_that_is_none_is_named():
    with pytest.raises(UnknownUsage, match="cuobjdump"):
        usage_of_cubin(b"no binary", knobs.nvidia.cuobjdump.path)
    with pytest.raises(UnknownUsage, match="metadata lacks vgpr_count"):
        usage_of_amdgcn("s_endpgm")
