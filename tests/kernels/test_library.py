"""An emitted kernel as a torch operator: schema, fake tensors, no backward, one definition."""

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.nn.functional import gelu

from fusion_kernels.emit.config import KernelConfig
from fusion_kernels.emit.source import Provenance, emit
from fusion_kernels.library import NoBackward, define, operator_of


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("kernels")


@pytest.fixture(scope="module")
def defined(traced, folder):
    """Trace, emit, write and define; returns the operator and the traced example."""

    def make(function, *tensors, name):
        example = traced(function, *tensors, name=name)
        source = emit(example.region, Provenance("test"))
        path = folder / f"{source.file_name}.py"
        path.write_text(source.text)
        return define(source, path), example

    return make


@pytest.fixture(scope="module")
def single(defined):
    return defined(lambda x, y: gelu(x) + y, randn(4, 17), randn(4, 17, seed=1), name="lib_single")


@pytest.fixture(scope="module")
def double(defined):
    def function(x, y):
        total = x + y
        return total, total > 0.5

    return defined(function, randn(4, 17), randn(17), name="lib_double")


def test_the_schema_names_the_inputs(single, double):
    operator, _ = single
    text = str(operator.overload._schema)
    assert text == f"fuseplan::{operator.name}(Tensor x, Tensor y) -> Tensor"
    assert str(double[0].overload._schema).endswith("(Tensor x, Tensor y) -> (Tensor, Tensor)")


@pytest.mark.parametrize("which", ["single", "double"])
def test_torch_s_own_checks_pass(which, request):
    operator, example = request.getfixturevalue(which)
    torch.library.opcheck(operator.overload, example.inputs)


def test_the_reusing_operator_passes_torch_s_own_checks(single):
    operator, example = single
    tensors = tuple(t.clone() for t in example.inputs)
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(operator.reusing(0), tensors, test_utils=checks)


def test_on_cpu_it_runs_the_compiled_region(single):
    operator, example = single
    assert operator.cpu_region().compiled, operator.cpu_region().reason
    out = operator.overload(*example.inputs)
    torch.testing.assert_close(out, gelu(example.inputs[0]) + example.inputs[1])


def test_several_results_come_as_a_tuple(double):
    operator, example = double
    total, above = operator.overload(*example.inputs)
    torch.testing.assert_close(total, example.inputs[0] + example.inputs[1])
    assert torch.equal(above, total > 0.5)


def test_training_is_refused_with_what_to_do(single):
    operator, example = single
    x = example.inputs[0].clone().requires_grad_()
    with pytest.raises(NoBackward, match=r"no backward: call the fused module.*torch\.no_grad"):
        operator.overload(x, example.inputs[1])
    with torch.no_grad():
        assert not operator.overload(x, example.inputs[1]).requires_grad
    with pytest.raises(NoBackward):
        operator.reusing(0)(x, example.inputs[1])


def test_the_reusing_operator_overwrites_its_input_and_returns_it(single):
    operator, example = single
    x, y = (t.clone() for t in example.inputs)
    out = operator.reusing(0)(x, y)
    assert out.data_ptr() == x.data_ptr()
    torch.testing.assert_close(x, gelu(example.inputs[0]) + y)
    assert operator.reusing(0) is operator.reusing(0)


def test_defined_twice_it_is_the_same_operator(defined, single):
    again, _ = defined(
        lambda x, y: gelu(x) + y, randn(4, 17), randn(4, 17, seed=1), name="lib_single"
    )
    assert again is single[0]


def test_another_computation_is_another_operator(defined, single):
    other, _ = defined(
        lambda x, y: gelu(x) - y, randn(4, 17), randn(4, 17, seed=1), name="lib_single"
    )
    assert other is not single[0]
    assert other.name != single[0].name


def test_an_overload_is_found_back(single):
    assert operator_of(single[0].overload) is single[0]
    assert operator_of(torch.ops.aten.add.Tensor) is None
    assert operator_of(torch.add) is None


def test_use_puts_another_text_in_its_place(single, folder):
    operator, example = single
    tuned = emit(example.region, Provenance("test", tuned_on="a device"), KernelConfig(512, 8))
    path = folder / "tuned.py"
    path.write_text(tuned.text)
    before = operator.overload
    operator.use(tuned, path)
    assert (operator.source, operator.path) == (tuned, path)
    assert operator.overload is before
    assert operator.name == tuned.file_name


SHAPES = {
    "dense": (randn(4, 3, 17), randn(17)),
    "both broadcast": (randn(2, 1, 17), randn(3, 1)),
    "transposed": (randn(4, 17, 3).transpose(1, 2), randn(17)),
    "channels last": (
        randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        randn(3, 1, 1),
    ),
    "one row": (randn(1, 17), randn(17)),
    "no dimensions": (torch.tensor(1.0), torch.tensor(2.0)),
    "nothing": (randn(0, 17), randn(17)),
}


@pytest.mark.parametrize("label", SHAPES)
def test_fake_tensors_lie_as_real_ones_do(label, defined):
    name = f"lib_{label.replace(' ', '_')}"
    operator, example = defined(lambda x, y: (x + y) * 0.5, *SHAPES[label], name=name)
    real = operator.overload(*example.inputs)
    with FakeTensorMode() as mode:
        fake = operator.overload(*(mode.from_tensor(t) for t in example.inputs))
    assert (fake.shape, fake.dtype, fake.device) == (real.shape, real.dtype, real.device)
    assert fake.stride() == real.stride()
    eager = (example.inputs[0] + example.inputs[1]) * 0.5
    assert not eager.numel() or real.stride() == eager.stride()


def test_an_operator_of_many_inputs_with_odd_names_can_be_defined(traced, folder):
    names = ("0", "out", "self.weight", "lambda", "None", "float")
    tensors = [randn(4, seed=s) for s in range(6)]
    example = traced(lambda a, b, c, d, e, f: a + b + c + d + e + f, *tensors, names=names)
    source = emit(example.region, Provenance("test"))
    operator = define(source, folder / "odd.py")
    torch.testing.assert_close(operator.overload(*example.inputs), sum(tensors))
