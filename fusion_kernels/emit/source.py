"""A region becomes the text of a kernel file: header, device functions, kernel, launcher."""

from __future__ import annotations

import hashlib
import textwrap
from dataclasses import dataclass, field
from math import gcd

from fusion_kernels.emit.config import KernelConfig, config_for
from fusion_kernels.emit.expressions import device_functions
from fusion_kernels.emit.kernel import KernelText, kernel_text
from fusion_kernels.emit.launcher import launcher_text
from fusion_kernels.emit.layout import Layout, layout_of
from fusion_kernels.emit.wrap import WIDTH
from fusion_kernels.ir import FLOAT8, SHORT_DTYPE, Region

_COLUMN = 11
_IMPORTS = "import math\n\nimport torch\nimport triton\nimport triton.language as tl\n"


@dataclass(frozen=True, slots=True)
class Provenance:
    """What the header of a kernel file tells: where the kernel comes from and what it replaces."""

    rule: str
    replaces: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    source: str = ""
    passes_before: int | None = None
    passes_after: int | None = None
    tuned_on: str = "not tuned: default configuration"


@dataclass(frozen=True, slots=True)
class KernelSource:
    """An emitted kernel file. `name` is the launcher's name, `file_name` is unique to the text.

    `parameters` maps the kernel's parameters to Triton types ("*bf16", "i64", "i32"), as
    ahead-of-time compilation needs them; `constexprs` holds the rest.
    """

    name: str
    file_name: str
    text: str
    region: Region
    layout: Layout
    config: KernelConfig
    parameters: dict[str, str] = field(default_factory=dict)
    constexprs: dict[str, int] = field(default_factory=dict)


def emit(
    region: Region, provenance: Provenance, config: KernelConfig | None = None
) -> KernelSource:
    """The kernel file of `region`.

    Raises `NotEmitted` with the reason when no template covers the region (an output with gaps).
    """
    layout = layout_of(region)
    chosen = config or config_for(region, layout)
    kernel = kernel_text(region, layout, chosen)
    parts = [
        _header(region, provenance),
        _IMPORTS,
        _constants(chosen),
        *device_functions({item.op for item in region.body}),
        kernel.text,
        launcher_text(region, layout, chosen, kernel),
    ]
    text = "\n\n".join(part.strip("\n") for part in parts) + "\n"
    return KernelSource(
        name=region.name,
        file_name=kernel_file_name(region),
        text=text.replace("\n\n@triton.jit", "\n\n\n@triton.jit").replace("\n\ndef ", "\n\n\ndef "),
        region=region,
        layout=layout,
        config=chosen,
        parameters=_parameters(region, kernel),
        constexprs={**chosen.constexprs(), "GROUP": gcd(_inner(region, layout), 16)},
    )


def kernel_file_name(region: Region) -> str:
    """Name, first input's dtype, inner size and a digest of what is computed:
    add_layer_norm_bf16_768_1a2b3c.
    """
    digest = hashlib.sha256(computed(region).encode()).hexdigest()[:6]
    dtype = SHORT_DTYPE[region.inputs[0].dtype]
    inner = region.row_length if region.row_rank else (region.shape[-1] if region.shape else 1)
    return f"{region.name}_{dtype}_{inner}_{digest}"


def computed(region: Region) -> str:
    """What decides a kernel, as text: everything but the graph nodes the statements come from."""
    body = [(item.name, item.op, item.args, item.dtype) for item in region.body]
    return repr((region.name, region.shape, region.row_rank, region.inputs, body, region.outputs))


def _inner(region: Region, layout: Layout) -> int:
    """The size the kernel walks along: all elements where it is flat, else those of a row."""
    flat = len(layout.axes) == 1 and not region.row_rank
    return region.numel if flat else layout.inner_size


def _header(region: Region, provenance: Provenance) -> str:
    rows = [
        ("rule", provenance.rule),
        ("replaces", ", ".join(provenance.replaces)),
        ("module", _several(provenance.modules)),
        ("source", provenance.source),
        ("traffic", _traffic(provenance)),
        ("captured", f"[{', '.join(map(str, region.shape))}]"),
        ("tuned on", provenance.tuned_on),
    ]
    lines = "\n".join(_row(name, text) for name, text in rows if text)
    lines = lines.replace("\\", "\\\\").replace('"""', "'''")
    return f'"""{region.name}: one kernel instead of {_count(provenance)}.\n\n{lines}\n"""\n'


def _row(name: str, text: str) -> str:
    """`name` and its text, continued below itself where it is long."""
    lines = textwrap.wrap(text, WIDTH - _COLUMN, break_on_hyphens=False)
    return f"{name:<{_COLUMN}}" + f"\n{'':<{_COLUMN}}".join(lines)


def _count(provenance: Provenance) -> str:
    number = len(provenance.replaces)
    return f"{number} operators" if number > 1 else "one operator"


def _several(modules: tuple[str, ...]) -> str:
    if len(modules) < 3:
        return ", ".join(modules)
    return f"{modules[0]} and {len(modules) - 1} more like it"


def _traffic(provenance: Provenance) -> str:
    if provenance.passes_before is None or provenance.passes_after is None:
        return ""
    return f"{provenance.passes_before} -> {provenance.passes_after} passes over the tensor"


def _constants(config: KernelConfig) -> str:
    names = [*config.constexprs(), "NUM_WARPS"]
    values = [*config.constexprs().values(), config.num_warps]
    return f"{', '.join(names)} = {', '.join(map(str, values))}\n"


def _parameters(region: Region, kernel: KernelText) -> dict[str, str]:
    pointer = {"float16": "*fp16", "bfloat16": "*bf16", "float32": "*fp32"}
    pointer |= {"int32": "*i32", "int64": "*i64", "bool": "*i1"}
    pointer |= {"uint8": "*u8", "int8": "*i8", "int16": "*i16"} | dict.fromkeys(FLOAT8, "*u8")
    types = {f"{item.name}_ptr": pointer[item.dtype] for item in region.inputs}
    for name, output in zip(kernel.output_names, region.outputs, strict=True):
        types[f"{name}_ptr"] = pointer[output.dtype]
    return types | dict.fromkeys(kernel.sizes, "i32") | dict.fromkeys(kernel.strides, "i64")
