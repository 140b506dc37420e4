"""Whole models through capture and normalization: equal to eager, each operator with its place, and
nothing of the user's changed.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import planner
from planner.pipeline import CapturedModel

Call = tuple[tuple[Any, ...], dict[str, Any]]

SMALL = {
    "vocab_size": 60,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
}


def token_ids() -> Tensor:
    return torch.randint(2, 60, (2, 7))


def bert() -> tuple[nn.Module, Call]:
    model = transformers.BertModel(transformers.BertConfig(**SMALL))
    return model, ((token_ids(),), {})


def bert_padded() -> tuple[nn.Module, Call]:
    model, (args, _) = bert()
    mask = torch.ones(2, 7, dtype=torch.long)
    mask[1, 4:] = 0
    return model, (args, {"attention_mask": mask})


def gpt2() -> tuple[nn.Module, Call]:
    config = transformers.GPT2Config(
        vocab_size=60,
        n_embd=16,
        n_layer=2,
        n_head=2,
        n_positions=16,
        bos_token_id=0,
        eos_token_id=1,
    )
    return transformers.GPT2LMHeadModel(config), ((token_ids(),), {})


def llama() -> tuple[nn.Module, Call]:
    config = transformers.LlamaConfig(**SMALL, num_key_value_heads=1)
    return transformers.LlamaForCausalLM(config), ((token_ids(),), {})


def t5() -> tuple[nn.Module, Call]:
    config = transformers.T5Config(
        vocab_size=60, d_model=16, d_kv=8, num_layers=1, num_heads=2, d_ff=32
    )
    ids = token_ids()
    model = transformers.T5ForConditionalGeneration(config)
    return model, ((), {"input_ids": ids, "decoder_input_ids": ids})


def vit() -> tuple[nn.Module, Call]:
    vision = {name: value for name, value in SMALL.items() if name != "vocab_size"}
    config = transformers.ViTConfig(**vision, image_size=8, patch_size=4)
    return transformers.ViTModel(config), ((torch.randn(2, 3, 8, 8),), {})


class Recurrent(nn.Module):
    """Makes states, positions and padding itself, and keeps a tensor that is no buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(8, 8, batch_first=True)
        self.norm = nn.LayerNorm(8)
        self.table = torch.linspace(-1, 1, 32)

    def forward(self, x: Tensor) -> Tensor:
        length = x.shape[1]
        positions = torch.arange(length, device=x.device)
        y, _ = self.rnn(x)
        shift = self.table.to(x.device)[positions % 32]
        pad = torch.zeros(x.shape[0], 1, x.shape[2], dtype=x.dtype, device=x.device)
        return self.norm(torch.cat((y, pad), 1)[:, :length] + shift[None, :, None] * x)


class InPlaceConvolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.second = nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.first(x)).relu_()
        z = F.relu(self.second(y), inplace=True)
        z.add_(y).mul_(2)
        return F.max_pool2d(z, 2)


class Counting(nn.Module):
    """Counts its calls and keeps a running mean, in buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))
        self.register_buffer("mean", torch.zeros(4), persistent=False)
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        self.calls.add_(1)
        self.mean.lerp_(x.mean(0), 0.5)
        return self.linear(x) - self.mean + self.calls


class Writing(nn.Module):
    """Writes into its input."""

    def forward(self, x: Tensor) -> Tensor:
        x.mul_(2)
        return x.exp()


@dataclass
class Result:
    score: Tensor
    aux: Tensor | None = None


class KeywordsOnly(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left_part, self.right_part = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(
        self,
        *,
        left: Tensor,
        right: Tensor,
        extras: list[Tensor],
        mask: Tensor | None = None,
        want_aux: bool = False,
    ) -> Result:
        z = self.left_part(left) - 2.0 * self.right_part(right)
        for extra in extras:
            z = z + extra
        if mask is not None:
            z = z.masked_fill(mask, 0.0)
        return Result(F.gelu(z), z if want_aux else None)


def keywords_only() -> tuple[nn.Module, Call]:
    """In another order than declared; left and right have one shape."""
    call = {
        "want_aux": False,
        "mask": None,
        "extras": [torch.randn(3, 8), torch.randn(8)],
        "right": torch.randn(3, 8),
        "left": torch.randn(3, 8),
    }
    return KeywordsOnly(), ((), call)


class Scaled(nn.Module):
    """Factors as attributes, numbers as operands, a bias of NaN that beta leaves out."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 8) / 3)
        self.bias = nn.Parameter(torch.randn(8))
        self.register_buffer("junk", torch.full((8,), float("nan")))
        self.register_buffer("steps", torch.arange(8))

    def forward(self, x: Tensor, r: Tensor) -> tuple[Tensor, ...]:
        return (
            F.gelu(torch.add(x @ self.weight, self.bias, alpha=0.5)),
            torch.addmm(self.bias, x, self.weight, beta=0.25, alpha=2.0).relu(),
            F.gelu(torch.addmm(self.junk, x, self.weight, beta=0)),
            torch.sub(F.gelu(x), r, alpha=3),
            torch.rsub(F.silu(x), r, alpha=0.5) * 2,
            F.gelu(x + self.steps) + 1.0,
        )


class Activations(nn.Module):
    """Two GELUs and three near ones."""

    def forward(self, x: Tensor, r: Tensor) -> tuple[Tensor, ...]:
        k = (2 / torch.pi) ** 0.5
        return (
            F.gelu(x) + r,
            F.gelu(x, approximate="tanh") + r,
            x * torch.sigmoid(1.702 * x) + r,
            0.5 * x * (1 + torch.erf(x * 2**-0.5)) + r,
            0.5 * x * (1 + torch.tanh(k * (x + 0.044 * x**3))) + r,
        )


class Rows(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.three, self.many = nn.LayerNorm(1), nn.LayerNorm(3), nn.RMSNorm(70001)

    def forward(self, a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, ...]:
        return self.one(a + a), self.three(b + b), self.many(c + c), (c * 0.125).softmax(-1)


class Noisy(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(x + torch.randn(3), 0.5, training=True)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, 6)
        self.head = nn.Linear(6, 10, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(F.gelu(self.embed(ids)))


class TwoResults(nn.Module):
    def forward(self, x: Tensor) -> tuple[Result, Result]:
        return Result(x + 1), Result(x + 2, x * 2)


CASES: dict[str, Callable[[], tuple[nn.Module, Call]]] = {
    "bert": bert,
    "bert_padded": bert_padded,
    "gpt2_with_cache": gpt2,
    "llama": llama,
    "t5_with_two_caches": t5,
    "vit": vit,
    "lstm": lambda: (Recurrent(), ((torch.randn(2, 5, 8),), {})),
    "in_place_convolutions": lambda: (
        InPlaceConvolutions(),
        ((torch.randn(2, 3, 6, 6).to(memory_format=torch.channels_last),), {}),
    ),
    "buffers_written": lambda: (Counting(), ((torch.randn(3, 4),), {})),
    "input_written": lambda: (Writing(), ((torch.randn(3, 4),), {})),
    "keywords_only": keywords_only,
    "scaled": lambda: (Scaled(), ((torch.randn(5, 8), torch.randn(5, 8)), {})),
    "activations": lambda: (Activations(), ((3 * torch.randn(6, 9), torch.randn(6, 9)), {})),
    "rows": lambda: (
        Rows(),
        ((torch.randn(4, 1), torch.randn(4, 3), 1 + torch.randn(2, 70001)), {}),
    ),
    "noisy": lambda: (Noisy(), ((torch.ones(3),), {})),
    "tied": lambda: (Tied(), ((torch.tensor([[1, 2, 9]]),), {})),
    "two_results": lambda: (TwoResults(), ((torch.randn(2),), {})),
}
# Attention without the mask, or causal by a flag, takes another kernel: it rounds elsewhere.
ROUNDS_ELSEWHERE = {"bert", "bert_padded", "gpt2_with_cache", "llama", "vit"}


@dataclass
class Taken:
    """One model captured, with the state of all that is the user's before and after."""

    name: str
    model: nn.Module
    call: Call
    before: dict[str, Any]
    after: dict[str, Any]
    captured: CapturedModel

    def run(self, what: nn.Module) -> tuple[Any, Call]:
        """The result of a call of a copy, and the arguments after it."""
        args, kwargs = copy.deepcopy(self.call)
        torch.manual_seed(11)
        with torch.no_grad():
            return copy.deepcopy(what)(*args, **kwargs), (args, kwargs)


def state_of(model: nn.Module, call: Call) -> dict[str, Any]:
    """Everything of the user's that a capture could change."""
    return {
        "modes": [part.training for part in model.modules()],
        "classes": [type(part) for part in model.modules()],
        "attributes": [sorted(vars(part)) for part in model.modules()],
        "hooks": [list(part._forward_hooks) for part in model.modules()],
        "objects": [id(t) for t in (*model.parameters(), *model.buffers())],
        "versions": [t._version for t in (*model.parameters(), *model.buffers())],
        "requires_grad": [p.requires_grad for p in model.parameters()],
        "grads": [None if p.grad is None else p.grad.tolist() for p in model.parameters()],
        "values": [str(t.tolist()) for t in (*model.parameters(), *model.buffers())],
        "inputs": [
            (t.tolist(), t._version) for t in pytree.tree_leaves(call) if isinstance(t, Tensor)
        ],
        "random": torch.get_rng_state().tolist(),
    }


@pytest.fixture(scope="module", params=CASES)
def taken(request: pytest.FixtureRequest) -> Taken:
    torch.manual_seed(3)
    model, call = CASES[request.param]()
    model.eval()
    first = next(model.parameters(), None)
    if first is not None:
        first.grad = torch.ones_like(first)
        first.requires_grad_(False)
    before = state_of(model, call)
    captured = planner.capture(model, *call)
    return Taken(request.param, model, call, before, state_of(model, call), captured)


def assert_same(actual: Any, expected: Any, limit: float) -> None:
    got, structure = pytree.tree_flatten(actual)
    wanted, expected_structure = pytree.tree_flatten(expected)
    assert structure == expected_structure
    for left, right in zip(got, wanted, strict=True):
        if not isinstance(right, Tensor):
            assert left == right
        elif limit:
            assert (left - right).norm() <= limit * right.norm()
        else:
            torch.testing.assert_close(left, right, rtol=0, atol=0, equal_nan=True)


def test_normalized_program_computes_what_eager_does(taken: Taken) -> None:
    limit = 1e-5 if taken.name in ROUNDS_ELSEWHERE else 0.0
    actual, used = taken.run(taken.captured.program.module())
    expected, wrote = taken.run(taken.model)
    assert_same(actual, expected, limit)
    assert_same(used, wrote, 0.0)


def test_result_has_the_class_that_eager_returns(taken: Taken) -> None:
    actual, _ = taken.run(taken.captured.program.module())
    expected, _ = taken.run(taken.model)
    assert type(actual) is type(expected)


def test_nothing_of_the_user_s_is_changed(taken: Taken) -> None:
    assert taken.after == taken.before


def test_twin_starts_where_the_user_s_module_stands(taken: Taken) -> None:
    twin = taken.captured.source.twin
    for name, buffer in taken.model.named_buffers():
        torch.testing.assert_close(twin.get_buffer(name), buffer, rtol=0, atol=0, equal_nan=True)


def test_program_passes_torch_s_own_verifier(taken: Taken) -> None:
    taken.captured.program.validate()


def test_second_capture_in_one_process_gives_the_same_graph(taken: Taken) -> None:
    again = planner.capture(taken.model, *taken.call)
    assert again.graph == taken.captured.graph


def test_every_operator_names_a_module_that_exists(taken: Taken) -> None:
    for node in taken.captured.graph:
        part = taken.model.get_submodule(node.module_path)
        assert type(part).__name__ == node.module_type, node.name


def test_every_operator_names_a_source_line_outside_of_torch(taken: Taken) -> None:
    for node in taken.captured.graph:
        assert node.source is not None, node.name
        assert not node.source.file.startswith(("torch/", "/")), node.source
        assert node.source.text, node.name


def test_view_holds_no_torch_object(taken: Taken) -> None:
    leaves = pytree.tree_leaves([(node.args, node.kwargs) for node in taken.captured.graph])
    assert not [leaf for leaf in leaves if type(leaf).__module__.split(".")[0] == "torch"]


def test_gpt2_loses_its_causal_masks() -> None:
    torch.manual_seed(0)
    model, call = gpt2()
    graph = planner.capture(model.eval(), *call).graph
    attention = [n for n in graph if n.op == "aten.scaled_dot_product_attention.default"]
    assert [node.args[3:] for node in attention] == [(None, 0.0, True)] * 2


def test_bert_loses_its_masks_only_when_nothing_is_padded() -> None:
    def masks(made: tuple[nn.Module, Call]) -> list[bool]:
        graph = planner.capture(made[0].eval(), *made[1]).graph
        attention = [n for n in graph if n.op == "aten.scaled_dot_product_attention.default"]
        return [node.arg(3, "attn_mask") is not None for node in attention]

    assert masks(bert()) == [False, False]
    assert masks(bert_padded()) == [True, True]


def test_padded_bert_follows_another_mask() -> None:
    torch.manual_seed(0)
    model, (args, kwargs) = bert_padded()
    program = planner.capture(model.eval(), args, kwargs).program.module()
    other = torch.ones(2, 7, dtype=torch.long)
    other[0, :3] = 0
    with torch.no_grad():
        actual, expected = program(*args, attention_mask=other), model(*args, attention_mask=other)
    torch.testing.assert_close(actual[0], expected[0], rtol=1e-4, atol=1e-5)


def test_tied_weights_stay_one_parameter() -> None:
    model, call = CASES["tied"]()
    twin = planner.capture(model.eval(), *call).source.twin
    assert twin.head.weight is twin.embed.weight
    assert twin.head.weight.data_ptr() == model.head.weight.data_ptr()
