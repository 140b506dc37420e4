"""A kernel's source as JSON comes back as it was."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest

from fusion_kernels.emit.source import Provenance, emit
from fusion_kernels.ir import Input, Output, Region, Statement
from fusion_kernels.kernel_json import UnreadableKernel, from_json, to_json


def _region(*literals: object) -> Region:
    body = tuple(
        Statement(f"v{n}", "add", ("x" if n == 0 else f"v{n - 1}", literal), "float32", "add")
        for n, literal in enumerate(literals)
    )
    shape, stride = (3, 257), (257, 1)
    inputs = (Input("x", "bfloat16", shape, stride, 2), Input("y", "bfloat16", (1, 257), (0, 1), 1))
    return Region(
        "chain", shape, 0, inputs, body, (Output(body[-1].name, "float32", shape, stride),)
    )


def test_every_field_comes_back() -> None:
    literals = (1, 1.0, True, None, -0.0, 0.1, 1e-300, math.inf, -math.inf, "y")
    source = emit(_region(1.0), Provenance("chain"))
    source = dataclasses.replace(source, region=_region(*literals))
    back = from_json(to_json(source), source.text)
    assert back == source
    assert repr(back) == repr(source)  # 1, 1.0 and True are equal


def test_nan_comes_back() -> None:
    source = emit(_region(1.0), Provenance("chain"))
    source = dataclasses.replace(source, region=_region(math.nan))
    literal = from_json(to_json(source), "").region.body[0].args[1]
    assert isinstance(literal, float)
    assert math.isnan(literal)


def test_a_value_that_no_region_holds() -> None:
    source = emit(_region(1.0), Provenance("chain"))
    with pytest.raises(TypeError, match="cannot hold"):
        to_json(dataclasses.replace(source, region=_region(1j)))


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[]",
        '{"class": "Axis", "fields": {"dims": [0], "size": 3}}',
        '{"class": "os.system", "fields": {}}',
        '{"class": "KernelSource", "fields": {"name": "n"}}',
        '{"class": 3}',
    ],
)
def test_what_is_no_kernel(content: str) -> None:
    with pytest.raises(UnreadableKernel):
        from_json(content, "")


def test_an_unknown_field() -> None:
    content = json.loads(to_json(emit(_region(1.0), Provenance("chain"))))
    content["fields"]["more"] = 1
    with pytest.raises(UnreadableKernel, match="more"):
        from_json(json.dumps(content), "")
