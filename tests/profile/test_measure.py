"""Profiles of small modules on the CPU: what joins, what is counted, what is left untouched."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn

from planner.graph.op_graph import OpGraph
from planner.graph.view import op_graph
from planner.profile.measure import measure
from planner.profile.model import Profile
from planner.profile.untouched import CannotCopyInputs


def captured(module: nn.Module, *args: Any) -> OpGraph:
    with torch.no_grad():
        program = torch.export.export(module, args, strict=False)
    return op_graph(program.run_decompositions({}))


def profiled(module: nn.Module, *args: Any) -> tuple[Profile, OpGraph]:
    graph = captured(module.eval(), *args)
    return measure(module, args, {}, graph, "cpu", iterations=3, warmup=1), graph


def ops_of(profile: Profile) -> dict[str, int]:
    """Calls by operator packet."""
    counts: dict[str, int] = {}
    for row in profile.rows:
        name = row.key.op.split(".")[1]
        counts[name] = counts.get(name, 0) + row.calls
    return counts


class ImageAttention(nn.Module):
    """Convolutions, pooling and attention, all composite operators in eager."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.second = nn.Conv2d(8, 32, 3, padding=1)
        self.qkv = nn.Linear(32, 96)

    def forward(self, image: Tensor) -> Tensor:
        x = F.relu(self.second(F.relu(self.first(image))))
        x = F.adaptive_avg_pool2d(x, 4).flatten(2).transpose(1, 2)
        q, k, v = self.qkv(x).view(x.shape[0], 16, 3, 4, 8).permute(2, 0, 3, 1, 4)
        return F.softmax(F.scaled_dot_product_attention(q, k, v), dim=-1)


def test_composite_operators_are_counted_once_under_their_graph_node() -> None:
    profile, _ = profiled(ImageAttention(), torch.randn(2, 3, 32, 32))
    ops = ops_of(profile)
    assert (ops["conv2d"], ops["linear"], ops["scaled_dot_product_attention"]) == (2, 1, 1)
    assert not any("convolution" in row.name for row in profile.unlinked)
    assert profile.not_run == ()
    assert profile.unlinked == ()


def test_operator_time_lies_within_each_forward() -> None:
    profile, _ = profiled(ImageAttention(), torch.randn(2, 3, 32, 32))
    for index, forward_us in enumerate(profile.profiled_wall.samples_us):
        rows = [*profile.rows, *profile.unlinked]
        assert 0.0 < sum(row.timing.samples_us[index] for row in rows) <= forward_us


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(self.fc(x))


class SharedBlocks(nn.Module):
    """One block three times, twice of them back to back; a list of which one is never run."""

    def __init__(self) -> None:
        super().__init__()
        self.shared = Block()
        self.blocks = nn.ModuleList([Block(), Block()])

    def forward(self, x: Tensor) -> Tensor:
        y = self.shared(self.shared(x))
        y = self.shared(self.blocks[1](y))
        return F.gelu(y - x)


def test_shared_module_is_counted_at_every_call() -> None:
    profile, _ = profiled(SharedBlocks(), torch.randn(8, 16))
    calls = dict(profile.module_calls)
    assert calls == {"": 1, "shared": 3, "shared.fc": 3, "blocks.1": 1, "blocks.1.fc": 1}
    assert ops_of(profile) == {"linear": 4, "gelu": 5, "sub": 1}
    assert profile.unlinked == ()


class InPlace(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.act = nn.ReLU(inplace=True)
        self.norm = nn.BatchNorm2d(4)
        self.register_buffer("kept", torch.tensor([0, 2]))

    def forward(self, x: Tensor) -> Tensor:
        y = self.act(self.norm(x)).mul_(2.0)
        y += x
        return torch.cat([y, y.masked_fill_(y > 3, 0.0)], dim=1)[:, self.kept]


def test_in_place_operators_join_their_functional_nodes() -> None:
    profile, graph = profiled(InPlace(), torch.randn(2, 4, 8, 8))
    expected = {"relu", "mul", "add", "masked_fill", "cat", "index"}
    expected.add("_native_batch_norm_legit_no_training")
    assert expected <= set(ops_of(profile))
    assert profile.not_run == ()
    assert {name for row in profile.rows for name in row.node_names} <= {n.name for n in graph}


class Reshaped(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.transpose(1, 2).reshape(2, -1) + x.reshape(2, -1)


def test_reshape_joins_the_copy_and_the_view_it_became() -> None:
    profile, _ = profiled(Reshaped(), torch.randn(2, 3, 4))
    assert profile.not_run == ()
    assert ops_of(profile)["clone"] == 1
    assert profile.unlinked == ()


class Autocast(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return F.softmax(self.fc(x), dim=-1)


def test_casts_of_autocast_join_their_own_nodes() -> None:
    module = Autocast().eval()
    x = torch.randn(4, 16)
    program = torch.export.export(module, (x,), strict=False).run_decompositions({})
    profile = measure(module, (x,), {}, op_graph(program), "cpu", iterations=2, warmup=1)
    linear = next(row for row in profile.rows if "linear" in row.key.op)
    assert linear.key.dtypes[0] == "bfloat16"
    assert ops_of(profile)["_to_copy"] >= 2


class RepeatsInExport(nn.Module):
    """Grouped attention whose capture repeats keys that eager does not."""

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        if torch.compiler.is_exporting():
            k = k.repeat_interleave(2, dim=1)
            return F.scaled_dot_product_attention(q, k, k)
        return F.scaled_dot_product_attention(q, k, k, enable_gqa=True)


def test_same_operator_of_a_module_joins_in_spite_of_other_inputs() -> None:
    profile, _ = profiled(RepeatsInExport(), torch.randn(1, 4, 8, 8), torch.randn(1, 2, 8, 8))
    assert ops_of(profile)["scaled_dot_product_attention"] == 1
    assert profile.not_run
    assert profile.row(profile.rows[0].key) is profile.rows[0]


class OnlyEager(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = x.relu()
        return y if torch.compiler.is_exporting() else torch.cos(torch.sin(y))


def test_work_without_a_node_is_named_and_counted() -> None:
    profile, _ = profiled(OnlyEager(), torch.randn(64, 64))
    assert {row.name for row in profile.unlinked} == {"aten::sin", "aten::cos"}
    total = profile.linked_us + profile.unlinked_us
    assert profile.unlinked_share == pytest.approx(profile.unlinked_us / total)
    assert profile.unlinked_share > 0.0


class OnlyCaptured(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.relu().tanh() if torch.compiler.is_exporting() else x.relu()


def test_node_that_eager_never_runs_gets_no_time() -> None:
    profile, graph = profiled(OnlyCaptured(), torch.randn(4))
    assert profile.not_run == ("tanh",)
    assert all("tanh" not in row.key.op for row in profile.rows)
    assert len(graph) == 2


class Fails(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        if self.count > 3:
            raise RuntimeError("no more")
        return self.fc(x)


def global_hooks() -> tuple[int, int]:
    from torch.nn.modules import module

    return len(module._global_forward_pre_hooks), len(module._global_forward_hooks)


# The wall time takes four forwards, the profiler the following ones.
@pytest.mark.parametrize("allowed", [0, 4, 6])
def test_forward_that_raises_leaves_no_hook_and_no_change(allowed: int) -> None:
    module = Fails().eval()
    module.count.fill_(3 - allowed)
    before = global_hooks()
    with pytest.raises(RuntimeError, match="no more"):
        measure(module, (torch.randn(1, 4),), {}, OpGraph(()), "cpu", iterations=3, warmup=1)
    assert global_hooks() == before
    assert module.count.item() == 3 - allowed
    # A session that is still open would refuse the next one.
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        pass


class Stateful(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("steps", torch.zeros(1))
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: Tensor, cache: list[Tensor]) -> Tensor:
        self.steps += 1
        self.mean = self.mean * 0.9 + x.mean(0) * 0.1
        x.mul_(2.0)
        cache.append(x)
        return x + torch.rand(4)


def test_module_inputs_and_random_state_are_as_before() -> None:
    module = Stateful().train()
    mean, x, cache = module.mean, torch.randn(2, 4), [torch.ones(1)]
    before, state = x.clone(), torch.get_rng_state()
    measure(module, (x,), {"cache": cache}, OpGraph(()), "cpu", iterations=2, warmup=1)
    assert module.mean is mean
    assert (module.steps.item(), mean.abs().sum().item(), len(cache)) == (0.0, 0.0, 1)
    assert torch.equal(x, before)
    assert torch.equal(torch.get_rng_state(), state)
    assert module.training
    assert not module._forward_hooks


def test_input_with_autograd_history_is_accepted() -> None:
    x = torch.randn(2, 4, requires_grad=True) * 2
    profile = measure(nn.ReLU(), (x,), {}, captured(nn.ReLU(), x.detach()), "cpu", iterations=1)
    assert ops_of(profile) == {"relu": 1}


def test_input_that_cannot_be_copied_is_refused_with_advice() -> None:
    with pytest.raises(CannotCopyInputs, match="Pass tensors"):
        measure(nn.ReLU(), ((i for i in range(2)),), {}, OpGraph(()), "cpu")


def test_bert_joins_all_but_idle_dropout() -> None:

    config = transformers.BertConfig(
        hidden_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=512,
        vocab_size=100,
    )
    profile, graph = profiled(transformers.BertModel(config), torch.randint(0, 100, (2, 32)))
    ops = ops_of(profile)
    assert (ops["linear"], ops["layer_norm"], ops["gelu"]) == (13, 5, 2)
    assert ops["scaled_dot_product_attention"] == 2
    assert {row.name for row in profile.unlinked} == {"aten::dropout"}
    assert dict(profile.module_calls)["encoder.layer.1.attention.self"] == 1
    assert len(graph) > len(profile.rows)
