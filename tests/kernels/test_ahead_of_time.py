"""Golden kernels compile for NVIDIA and AMD targets without a GPU, spill nothing, and keep within
a budget of registers.
"""

from dataclasses import replace

import pytest
import torch
import triton
from compiled_ahead import recorded
from torch.nn.functional import layer_norm

from fusion_kernels.compile import compile_ahead
from fusion_kernels.emit.config import candidates
from fusion_kernels.emit.layout import layout_of
from fusion_kernels.emit.source import Provenance, emit
from fusion_kernels.load import load_kernel

# What a configuration other than the default may spill, bytes a thread: it is used where it is
# measured to be faster.
SPILLED_BYTES = 128
AMPERE, HOPPER, BLACKWELL = ("cuda", 80), ("cuda", 90), ("cuda", 100)
CDNA3, CDNA4 = ("hip", "gfx942"), ("hip", "gfx950")
TARGETS = (AMPERE, HOPPER, BLACKWELL, CDNA3, CDNA4)
WIDTHS = (257, 1024, 4096, 8192, 16384)
# A thread of 96 registers or fewer leaves a third of an NVIDIA multiprocessor's threads a place,
# and five of the eight wavefronts of an AMD one. The default configurations use 10 to 90.
MOST_REGISTERS = 96


def compiled(region, config, target):
    source = emit(region, Provenance("test"), config)
    kernel = load_kernel(source.text, source.name).kernels[f"{source.name}_kernel"]
    arguments = {**source.parameters, **source.constexprs}
    return compile_ahead(kernel, arguments, target=target, num_warps=source.config.num_warps)


def as_float16(region):
    """The same region with 16-bit floats stored as float16."""
    swapped = {"bfloat16": "float16"}
    inputs = tuple(replace(i, dtype=swapped.get(i.dtype, i.dtype)) for i in region.inputs)
    outputs = tuple(replace(o, dtype=swapped.get(o.dtype, o.dtype)) for o in region.outputs)
    return replace(region, inputs=inputs, outputs=outputs)


@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_the_default_configuration_keeps_within_the_budget(golden, target, golden_kernels):
    used = compiled(golden_kernels[golden].traced.region, None, target)
    assert not used.spills
    assert used.usage.registers <= MOST_REGISTERS
    assert used.target == (f"sm_{target[1]}" if target[0] == "cuda" else target[1])


def test_float16_is_converted_in_the_kernel(golden_kernels):
    region = as_float16(golden_kernels["gelu_residual_bf16"].traced.region)
    used = compiled(region, None, HOPPER)
    assert not used.spills
    assert "cvt.rn.f16" in used.assembly
    assert "bf16" not in used.assembly


def test_a_user_s_cast_is_not_folded_away(golden_kernels):
    """The gate is rounded to bfloat16 before it is multiplied, and widened again."""
    ptx = compiled(golden_kernels["gated_bf16"].traced.region, None, HOPPER).assembly
    assert "cvt.rn.bf16" in ptx


def cases(golden_kernels):
    return len(TARGETS) * (len(golden_kernels) + len(WIDTHS))


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_every_configuration_compiles_with_few_spills(golden, target, golden_kernels, ledger):
    region = golden_kernels[golden].traced.region
    forms = [region, as_float16(region)] if golden.endswith("bf16") else [region]

    def compile_all():
        for form in forms:
            for config in candidates(form, layout_of(form)):
                usage = compiled(form, config, target).usage
                over = usage.local_bytes > SPILLED_BYTES
                name = f"{form.outputs[0].dtype}, {config}"
                yield name, usage, f"{usage.local_bytes} bytes of local memory" if over else ""

    kept = ledger("ahead_of_time", cases=cases(golden_kernels), triton=triton.__version__)
    record = recorded(kept, f"{golden}, {target[1]}", compile_all)
    assert not record["failures"]


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS, ids=str)
@pytest.mark.parametrize("cols", WIDTHS)
def test_every_row_length_has_a_default_without_spills_and_others_with_few(
    cols, target, traced, golden_kernels, ledger
):
    vector = torch.ones(cols, dtype=torch.bfloat16)
    example = traced(
        lambda x, y, z, u: layer_norm(x + y, (cols,), z, u),
        torch.ones(2, cols, dtype=torch.bfloat16),
        torch.ones(2, cols, dtype=torch.bfloat16),
        vector,
        vector.clone(),
    )

    def compile_all():
        for number, config in enumerate(candidates(example.region, layout_of(example.region))):
            usage = compiled(example.region, config, target).usage
            over = usage.local_bytes > (SPILLED_BYTES if number else 0)
            yield str(config), usage, f"{usage.local_bytes} bytes of local memory" if over else ""

    kept = ledger("ahead_of_time", cases=cases(golden_kernels), triton=triton.__version__)
    record = recorded(kept, f"add_layer_norm of {cols} columns, {target[1]}", compile_all)
    assert not record["failures"]
