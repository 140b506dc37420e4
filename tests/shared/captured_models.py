"""Models that captures are tested with, each with an example call: architectures of transformers,
and small ones that each do what makes a capture hard.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn

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
