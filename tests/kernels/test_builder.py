"""The builder names values, promotes dtypes as eager does, and leaves out what nothing reads."""

import keyword

import pytest

from fusion_kernels.builder import Builder, NotLowered
from fusion_kernels.ir import Output, Statement


def builder(**dtypes: str) -> Builder:
    """Inputs x, y, ... of the given dtypes, all `[4, 8]`."""
    made = Builder()
    for name, dtype in dtypes.items():
        made.input(name, dtype, (4, 8), (8, 1), 2)
    made.at("node_1", "node", "float32")
    return made


def body(made: Builder, value: str) -> tuple[Statement, ...]:
    return made.finish("r", (4, 8), [Output(value, "float32", (4, 8), (8, 1))]).body


@pytest.mark.parametrize(
    ("dtypes", "args", "expected"),
    [
        ({"x": "bfloat16", "y": "float16"}, ("x", "y"), "float32"),
        ({"x": "int64", "y": "float16"}, ("x", "y"), "float32"),
        ({"x": "int32", "y": "int64"}, ("x", "y"), "int64"),
        ({"x": "int32", "y": "bool"}, ("x", "y"), "int32"),
        ({"x": "int32"}, ("x", 3), "int32"),
        ({"x": "int64"}, ("x", 0.5), "float32"),
        ({"x": "bool"}, ("x", 3), "int64"),
        ({"x": "bool"}, ("x", 0.5), "float32"),
        ({"x": "float32"}, ("x", True), "float32"),
    ],
)
def test_operands_are_promoted_to_the_widest_kind(dtypes, args, expected):
    made = builder(**dtypes)
    value = made.apply("add", *args)
    assert made.dtype_of(value) == expected
    last = body(made, value)[-1]
    assert {made.dtype_of(arg) for arg in last.args if isinstance(arg, str)} == {expected}


@pytest.mark.parametrize("op", ["exp", "div", "sigmoid", "row_mean"])
def test_some_operations_are_floating_whatever_they_read(op):
    made = builder(x="int64")
    value = made.apply(op, *(("x", "x") if op == "div" else ("x",)))
    assert made.dtype_of(value) == "float32"
    assert body(made, value)[0].op == "cast"


def test_a_comparison_is_boolean_and_its_operands_are_promoted():
    made = builder(x="int64")
    value = made.apply("lt", "x", 0.5)
    assert made.dtype_of(value) == "bool"
    assert [item.op for item in body(made, value)] == ["cast", "lt"]


def test_where_promotes_its_branches_and_leaves_the_condition():
    made = builder(c="bool", x="int64")
    value = made.apply("where", "c", "x", 0.5)
    cast, chosen = body(made, value)
    assert chosen.args == ("c", cast.name, 0.5)
    assert made.dtype_of(value) == "float32"


def test_literals_become_numbers_of_the_promoted_kind():
    made = builder(x="float32", y="int64")
    assert body(made, made.apply("add", "x", 2))[-1].args == ("x", 2.0)
    whole = made.apply("add", "y", True)
    assert body(made, whole)[-1].args == ("y", 1)
    assert type(body(made, whole)[-1].args[1]) is int


@pytest.mark.parametrize("op", ["add", "sub", "mul", "neg", "abs"])
def test_arithmetic_of_booleans_is_refused(op):
    made = builder(x="bool")
    with pytest.raises(NotLowered, match=f"{op} of booleans"):
        made.apply(op, *(("x",) if op in ("neg", "abs") else ("x", "x")))


def test_numbers_alone_are_refused():
    with pytest.raises(NotLowered, match="mul of numbers alone"):
        builder().apply("mul", 2.0, 3.0)


@pytest.mark.parametrize("number", [1e39, -1e39, 2**128])
def test_numbers_beyond_float32_are_refused(number):
    with pytest.raises(NotLowered, match="beyond float32"):
        builder(x="float32").apply("mul", "x", number)


@pytest.mark.parametrize("number", [float("inf"), float("nan"), 3.4028234663852886e38])
def test_infinities_and_the_largest_number_are_not(number):
    made = builder(x="float32")
    assert body(made, made.apply("add", "x", number))[-1].op == "add"


@pytest.mark.parametrize(
    "dtype", ["float64", "complex64", "uint16", "float8_e4m3fnuz", "float8_e8m0fnu"]
)
def test_dtypes_without_an_expression_are_refused_wherever_they_stand(dtype):
    made = builder(x="float32")
    with pytest.raises(NotLowered, match=dtype):
        made.input("z", dtype, (4, 8), (8, 1), 2)
    with pytest.raises(NotLowered, match=dtype):
        made.at("node", "node", dtype)
    with pytest.raises(NotLowered, match=dtype):
        made.cast("x", dtype)


def test_a_cast_that_changes_nothing_leaves_no_statement():
    made = builder(x="bfloat16")
    assert made.cast("x", "float32") == "x"


def test_a_cast_of_an_integer_to_a_short_float_goes_through_float32():
    made = builder(x="int64")
    value = made.cast("x", "bfloat16")
    assert [item.args[1] for item in body(made, value)] == ["float32", "bfloat16"]
    assert made.dtype_of(value) == "float32"


def test_the_result_is_brought_to_the_node_s_dtype():
    made = builder(x="int32", y="int64")
    made.at("add_1", "add", "int32")
    value = made.name_result(made.apply("add", "x", "y"))
    assert made.dtype_of(value) == "int32"
    assert body(made, value)[-1].op == "cast"


def test_a_result_takes_its_node_s_name_without_the_number():
    made = builder(x="float32")
    made.at("relu_17", "relu", "float32")
    assert made.name_result(made.apply("neg", "x")) == "relu"


def test_an_operator_that_returns_its_input_names_nothing():
    made = builder(x="float32")
    made.at("clone_1", "clone", "float32")
    assert made.name_result(made.copy("x")) == "x"


def test_equal_names_are_numbered_and_equal_captures_give_equal_regions():
    made = Builder()
    names = [made.input(hint, "float32", (4,), (1,), 1) for hint in ("add_3", "add_12", "add")]
    assert names == ["add", "add_2", "add_3"]


@pytest.mark.parametrize(
    "hint",
    [
        *(
            "0",
            "a.b",
            "",
            "_",
            "lambda",
            "None",
            "class",
            "out",
            "mask",
            "max",
            "float",
            "tl",
            "erf",
        ),
        *("x_ptr", "x_stride_0", "x_offsets", "n_1", "i0", "out_add", "gelu_kernel", "n_cols"),
        *("mean", "layer_norm_2_mean", "BLOCK_SIZE", "a" * 80, "scaled_dot_product_attention_3"),
    ],
)
def test_names_are_identifiers_that_the_kernel_s_text_does_not_use(hint):
    name = Builder().input(hint, "float32", (4,), (1,), 1)
    assert name.isidentifier()
    assert not keyword.iskeyword(name)
    assert len(name) <= 32
    taken = {
        "out",
        "mask",
        "max",
        "float",
        "tl",
        "erf",
        "n_cols",
        "mean",
        "BLOCK_SIZE",
        "n_1",
        "i0",
    }
    assert name not in taken
    assert not name.endswith(("_ptr", "_stride", "_offsets", "_kernel", "_mean"))


def test_long_names_end_at_a_word():
    assert Builder().input("scaled_dot_product_attention", "float32", (4,), (1,), 1) == (
        "scaled_dot_product"
    )


def test_statements_that_nothing_reads_are_left_out_and_inputs_stay():
    made = builder(x="float32", y="float32")
    made.apply("exp", "y")
    kept = made.apply("neg", "x")
    region = made.finish("r", (4, 8), [Output(kept, "float32", (4, 8), (8, 1))])
    assert [item.name for item in region.inputs] == ["x", "y"]
    assert [item.op for item in region.body] == ["neg"]
