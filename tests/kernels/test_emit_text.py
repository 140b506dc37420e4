"""What emitted text promises: a formatter's layout, names that never collide, a telling header."""

import ast
import subprocess
import sys

import pytest
import torch
from torch.nn.functional import gelu, layer_norm

from fusion_kernels.emit.config import KernelConfig, candidates
from fusion_kernels.emit.expressions import literal, triton_text
from fusion_kernels.emit.layout import layout_of
from fusion_kernels.emit.source import Provenance, emit, kernel_file_name
from fusion_kernels.ir import Statement
from fusion_kernels.load import interpreted

LONG = tuple(f"the_{part}_of_attention_output" for part in ("keys", "values", "queries", "mask"))


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def strided(values: torch.Tensor) -> torch.Tensor:
    return values.repeat_interleave(2, dim=-1)[..., ::2]


def chain(x, y, z, u):
    total = x.clamp(-1.0, 1.0) + y * z
    return total, torch.maximum(gelu(total), u), torch.where(total > 0.5, z, u) * total


def norms(x, y, z, u):
    first = layer_norm(x + y, (17,), z, u)
    return layer_norm(first * y, (17,), u, z, 1e-3)


TRICKY = {
    "long names": (chain, [randn(2, 3, 17) for _ in range(4)], LONG),
    "long names, strides": (chain, [strided(randn(2, 3, 4, 17)) for _ in range(4)], LONG),
    "long names, permuted": (
        chain,
        [randn(2, 3, 4, 5).to(memory_format=torch.channels_last) for _ in range(3)]
        + [randn(3, 1, 1)],
        LONG,
    ),
    "long names, norms": (norms, [randn(3, 17), randn(3, 17), randn(17), randn(17)], LONG),
    "long names, tall norms": (norms, [randn(300, 17), randn(300, 17), randn(17), randn(17)], LONG),
    "four axes": (
        chain,
        [randn(2, 3, 4, 5), randn(2, 1, 4, 1), randn(3, 1, 5), randn(2, 3, 1, 1)],
        LONG,
    ),
    "numbers": (
        lambda x: torch.where(x > 1e-30, x * 1e30, float("-inf")).masked_fill(x == 0, float("nan")),
        [randn(3, 17)],
        "x",
    ),
    "taken names": (chain, [randn(2, 3, 17) for _ in range(4)], ("out", "max", "row", "x_ptr")),
}


@pytest.fixture(scope="module")
def texts(traced) -> dict[str, str]:
    """Every tricky region in every configuration."""
    found = {}
    for label, (function, tensors, names) in TRICKY.items():
        region = traced(function, *tensors, names=names).region
        for config in candidates(region, layout_of(region)):
            found[f"{label}, {config}"] = emit(region, Provenance("test"), config).text
    return found


def test_a_formatter_finds_nothing_to_change(texts, tmp_path):
    for number, text in enumerate(texts.values()):
        (tmp_path / f"kernel_{number}.py").write_text(text)
    command = [sys.executable, "-m", "ruff", "format", "--isolated", "--diff"]
    done = subprocess.run(
        [*command, "--line-length", "100", str(tmp_path)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout


def test_no_line_is_longer_than_a_hundred(texts):
    assert max(len(line) for text in texts.values() for line in text.splitlines()) <= 100


def test_no_index_is_computed_for_nothing(texts):
    for label, text in texts.items():
        kernel = ast.parse(text).body[-2]
        assert isinstance(kernel, ast.FunctionDef)
        names = [node for node in ast.walk(kernel) if isinstance(node, ast.Name)]
        stored = {node.id for node in names if isinstance(node.ctx, ast.Store)}
        read = {node.id for node in names if isinstance(node.ctx, ast.Load)}
        assert stored - read - {"row_mask"} == set(), label


@pytest.mark.parametrize("label", TRICKY)
def test_tricky_text_computes_what_it_says(label, traced, assert_right):
    function, tensors, names = TRICKY[label]
    inputs = [t + s for t, s in zip(tensors, (0.0, 0.25, 0.5, 1.0), strict=False)]
    assert_right(traced(function, *inputs, names=names))


@pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")  # garbage was read
def test_reading_past_a_tensor_would_be_seen(traced, memory_watch):
    """The watch that the layout tests rely on, against a kernel without its row mask."""
    example = traced(lambda x: layer_norm(x * 2.0, (17,)), randn(1, 17))
    source = emit(example.region, Provenance("test"), KernelConfig(32, 4, 4))
    interpreted(source.text, source.name)(*example.inputs)
    assert (memory_watch.strays, memory_watch.repeats) == (0, 0)
    broken = source.text.replace("cols, mask=mask, other=0.0)", "cols, mask=col_mask, other=0.0)")
    assert broken != source.text
    interpreted(broken, source.name)(*example.inputs)
    assert memory_watch.strays == 3 * 17


def test_storing_twice_would_be_seen(traced, memory_watch):
    example = traced(lambda x: x * 2.0, randn(2000))
    source = emit(example.region, Provenance("test"))
    broken = source.text.replace("tl.program_id(0).to(tl.int64)", "0 * tl.program_id(0)")
    assert broken != source.text
    interpreted(broken, source.name)(*example.inputs)
    assert memory_watch.repeats == 1024


HEADER = Provenance(
    rule="add_layer_norm",
    replaces=("add_3", "layer_norm_1"),
    modules=("encoder.0", "encoder.1", "encoder.2"),
    source='model.py:7  return norm(x + y)  # \'"""\' and a \\ ' + "word " * 40,
    passes_before=5,
    passes_after=3,
    tuned_on="a device",
)


def test_the_header_tells_where_the_kernel_is_from(traced):
    region = traced(lambda x: layer_norm(x * 2.0, (17,)), randn(3, 17), name="norm").region
    doc = ast.get_docstring(ast.parse(emit(region, HEADER).text))
    assert doc is not None
    lines = doc.splitlines()
    assert lines[0] == "norm: one kernel instead of 2 operators."
    rows = dict(line.split(None, 1) for line in lines[2:] if line[:1].strip())
    assert rows["rule"] == "add_layer_norm"
    assert rows["replaces"] == "add_3, layer_norm_1"
    assert rows["module"] == "encoder.0 and 2 more like it"
    assert rows["traffic"] == "5 -> 3 passes over the tensor"
    assert rows["captured"] == "[3, 17]"
    assert max(map(len, lines)) <= 100
    assert "and a \\ word" in doc


def test_a_file_name_tells_name_dtype_and_row_and_is_unique_to_what_is_computed(traced):
    first = traced(lambda x: x * 2.0, randn(3, 17).bfloat16(), name="twice").region
    same = traced(lambda x: x * 2.0, randn(3, 17, seed=1).bfloat16(), name="twice").region
    other = traced(lambda x: x * 3.0, randn(3, 17).bfloat16(), name="twice").region
    assert kernel_file_name(first).startswith("twice_bf16_17_")
    assert kernel_file_name(first) == kernel_file_name(same) != kernel_file_name(other)


def test_a_configuration_changes_the_text_and_not_the_name(traced):
    region = traced(lambda x: x * 2.0, randn(3, 17)).region
    one, two = (emit(region, Provenance("test"), KernelConfig(n, 4)) for n in (512, 1024))
    assert one.text != two.text
    assert one.file_name == two.file_name


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1e30, "1e30"),
        (1e-30, "1e-30"),
        (float("inf"), 'float("inf")'),
        (float("-inf"), 'float("-inf")'),
        (float("nan"), 'float("nan")'),
        (-1.5, "-1.5"),
        (3, "3"),
        (True, "True"),
        ("x", "x"),
    ],
)
def test_literals_are_python_s(value, text):
    assert literal(value) == text


def nested(*statements: tuple[str, str, tuple[object, ...]], dtype: str = "float32") -> str:
    """The text of the last statement with all others written into it."""
    inlined: dict[str, object] = {}
    for name, op, args in statements:
        inlined[name] = triton_text(Statement(name, op, args, dtype, "node"), inlined)
    return list(inlined.values())[-1].text


@pytest.mark.parametrize(
    ("inner", "outer", "text"),
    [
        (("add", ("a", "b")), ("mul", ("t", "c")), "(a + b) * c"),
        (("mul", ("a", "b")), ("add", ("t", "c")), "a * b + c"),
        (("add", ("a", "b")), ("add", ("c", "t")), "c + (a + b)"),
        (("sub", ("a", "b")), ("sub", ("c", "t")), "c - (a - b)"),
        (("sub", ("a", "b")), ("sub", ("t", "c")), "a - b - c"),
        (("mul", ("a", "b")), ("div", ("c", "t")), "tl.div_rn(c, a * b)"),
        (("lt", ("a", "b")), ("and", ("t", "c")), "(a < b) & c"),
        (("lt", ("a", "b")), ("eq", ("t", "c")), "(a < b) == c"),
        (("lt", ("a", "b")), ("eq", ("c", "t")), "c == (a < b)"),
        (("and", ("a", "b")), ("or", ("t", "c")), "a & b | c"),
        (("or", ("a", "b")), ("and", ("t", "c")), "(a | b) & c"),
        (("and", ("a", "b")), ("not", ("t",)), "~(a & b)"),
        (("neg", ("a",)), ("sub", ("c", "t")), "c - -1.0 * a"),
        (("neg", ("a",)), ("div", ("c", "t")), "tl.div_rn(c, -1.0 * a)"),
        (("add", ("a", "b")), ("neg", ("t",)), "-1.0 * (a + b)"),
        (("add", ("a", "b")), ("exp", ("t",)), "tl.exp(a + b)"),
        (("add", ("a", "b")), ("cast", ("t", "int64")), "(a + b).to(tl.float32)"),
    ],
)
def test_parentheses_stand_where_they_are_needed_and_nowhere_else(inner, outer, text):
    assert nested(("t", *inner), ("r", *outer)) == text
