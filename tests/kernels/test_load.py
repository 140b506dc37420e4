"""Kernel files load as compiled and as interpreted modules, side by side in one process."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

from fusion_kernels.load import BadKernelFile, interpreted, load_kernel
from fusion_kernels.tolerances import check

SAMPLE = Path(__file__).with_name("sample_kernel.py")
ROOT = Path(__file__).parents[2]

POINTWISE = '''"""pointwise: one expression over a flat tensor."""

import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def inner(x, FACTOR: tl.constexpr):
    return x * FACTOR


@triton.jit
def outer(x):
    return inner(x, 3.0) + inner(x, 0.5)


@triton.jit
def pointwise_kernel(x_ptr, out_ptr, n, BLOCK_SIZE: tl.constexpr):
    offsets = tl.program_id(0).to(tl.int64) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    out = EXPRESSION
    tl.store(out_ptr + offsets, out, mask=mask)


def pointwise(x):
    out = torch.empty_like(x)
    grid = (triton.cdiv(x.numel(), 64),)
    pointwise_kernel[grid](x, out, x.numel(), BLOCK_SIZE=64, num_warps=1)
    return out
'''


def source(expression):
    return POINTWISE.replace("EXPRESSION", expression)


def layer_norm_inputs(rows, cols, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    shapes = ((rows, cols), (rows, cols), (cols,), (cols,))
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


def layer_norm_reference(x, residual, weight, bias, eps):
    x, residual, weight, bias = (tensor.double() for tensor in (x, residual, weight, bias))
    return torch.nn.functional.layer_norm(x + residual, weight.shape, weight, bias, eps)


def assert_passes(out, reference):
    results = check(out, reference)
    assert all(result.passed for result in results), results


@pytest.mark.parametrize(("rows", "cols"), [(4, 768), (1, 257), (3, 1024), (0, 64)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_the_interpreted_launcher_keeps_the_contract(dtype, rows, cols):
    tensors = layer_norm_inputs(rows, cols, dtype)
    run = interpreted(SAMPLE, "add_layer_norm")
    assert_passes(run(*tensors, 1e-5), layer_norm_reference(*tensors, 1e-5))


def test_a_planted_bug_in_the_file_shows_in_the_interpreter():
    broken = SAMPLE.read_text().replace("tl.where(mask, h - row_mean(h, n_cols), 0.0)", "h")
    tensors = layer_norm_inputs(4, 257)
    results = check(
        interpreted(broken, "add_layer_norm")(*tensors, 1e-5), layer_norm_reference(*tensors, 1e-5)
    )
    assert not all(result.passed for result in results)


@pytest.mark.parametrize(
    ("expression", "function"),
    [
        ("outer(x)", lambda x: 3.5 * x),
        ("x * tl.sigmoid(x)", torch.nn.functional.silu),
        ("0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))", torch.nn.functional.gelu),
        ("libdevice.tanh(x)", torch.tanh),
        ("libdevice.pow(tl.abs(x) + 1.0, x)", lambda x: (x.abs() + 1.0) ** x),
        ("tl.where(x > 0, x, libdevice.expm1(x))", torch.nn.functional.elu),
        ("tl.maximum(x, 0.0) + tl.zeros([64], tl.float32)", torch.relu),
        ("x * tl.cdiv(n, 64)", lambda x: x * 4),
    ],
)
def test_device_functions_and_the_standard_library_work(expression, function):
    x = torch.randn(200, generator=torch.Generator().manual_seed(1))
    run = interpreted(source(expression), "pointwise")
    assert_passes(run(x), function(x.double()))


def test_bfloat16_is_rounded_to_nearest_and_not_truncated():
    x = torch.randn(4096, generator=torch.Generator().manual_seed(1)).bfloat16()
    out = interpreted(source("outer(x)"), "pointwise")(x)
    assert torch.equal(out, (x.double() * 3.5).to(torch.bfloat16))


def test_a_loop_over_blocks_runs_in_the_interpreter():
    text = source("x").replace(
        "    tl.store", "    for _ in range(0, n, 64):\n        out += 1.0\n    tl.store"
    )
    x = torch.zeros(130)
    assert torch.equal(interpreted(text, "pointwise")(x), torch.full((130,), 3.0))


def test_strided_storage_is_read_and_written_through():
    x = torch.arange(200.0)[::2].clone()
    before = x.clone()
    out = interpreted(source("x + 1.0"), "pointwise")(x)
    assert torch.equal(out, before + 1.0)
    assert torch.equal(x, before)


def test_interpreting_leaves_triton_as_it_was():
    import triton.language as tl
    from triton.language.extra import libdevice
    from triton.runtime import interpreter

    spaces = (tl, tl.core, tl.math, tl.core.tensor, libdevice)
    interpreted(source("tl.sigmoid(x)"), "pointwise")(torch.ones(8))
    before = [dict(vars(space)) for space in spaces]
    convert = interpreter._convert_float
    interpreted(source("libdevice.tanh(outer(x)) + tl.sum(x, 0)"), "pointwise")(torch.ones(8))
    assert [dict(vars(space)) for space in spaces] == before
    assert interpreter._convert_float is convert


def test_a_failing_kernel_leaves_triton_as_it_was_too():
    import triton.language as tl
    from triton.runtime.errors import InterpreterError

    before = dict(vars(tl))
    run = interpreted(source("x + undefined_name"), "pointwise")
    with pytest.raises(InterpreterError, match="undefined_name"):
        run(torch.ones(8))
    assert dict(vars(tl)) == before


def test_the_compiled_module_still_holds_jit_functions_after_interpreting():
    from triton.runtime.jit import JITFunction

    loaded = load_kernel(SAMPLE, "add_layer_norm")
    interpreted(SAMPLE, "add_layer_norm")(*layer_norm_inputs(1, 16), 1e-5)
    assert set(loaded.kernels) == {"row_mean", "add_layer_norm_kernel"}
    assert all(isinstance(kernel, JITFunction) for kernel in loaded.kernels.values())
    assert loaded.module.add_layer_norm_kernel is loaded.kernels["add_layer_norm_kernel"]


def test_source_text_is_written_to_the_folder_asked_for(tmp_path):
    loaded = load_kernel(source("x"), "pointwise", folder=tmp_path / "kernels")
    assert loaded.path.parent == (tmp_path / "kernels").resolve()
    assert loaded.path.read_text() == source("x")
    assert loaded.launcher.__code__.co_filename == str(loaded.path)


def test_a_rewritten_file_of_equal_size_is_never_taken_from_a_cache(tmp_path):
    path = tmp_path / "kernel.py"
    stamp = (1_700_000_000, 1_700_000_000)
    for value in ("1.0", "2.0"):
        path.write_text(source(f"x + {value}"))
        os.utime(path, stamp)
        out = interpreted(path, "pointwise")(torch.zeros(4))
        assert out.tolist() == [float(value)] * 4
    assert not (tmp_path / "__pycache__").exists()


def test_two_files_of_one_name_keep_apart(tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "kernel.py").write_text(source("x"))
    first, second = (load_kernel(tmp_path / f / "kernel.py", "pointwise") for f in ("a", "b"))
    assert first.module.__name__ != second.module.__name__
    assert first.kernels["pointwise_kernel"] is not second.kernels["pointwise_kernel"]


@pytest.mark.parametrize("load", [load_kernel, interpreted])
def test_bad_files_are_named_with_the_reason(load, tmp_path):
    with pytest.raises(BadKernelFile, match=r"nowhere\.py: cannot be read"):
        load(tmp_path / "nowhere.py", "pointwise")
    with pytest.raises(BadKernelFile, match="has no function 'other'"):
        load(source("x"), "other")
    with pytest.raises(BadKernelFile, match="SyntaxError"):
        load("def pointwise(:\n", "pointwise")


def test_importing_the_loader_and_the_contract_needs_no_triton():
    code = """
        import sys
        import fusion_kernels.compile, fusion_kernels.inputs
        import fusion_kernels.load, fusion_kernels.tolerances
        sys.exit("triton" in sys.modules)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], cwd=ROOT, check=False)
    assert done.returncode == 0
