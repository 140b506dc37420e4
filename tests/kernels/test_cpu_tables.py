"""Tables looked up by a region compiled for CPU: read where they lie, never beside themselves."""

import pytest
import torch
from torch.nn.functional import embedding, layer_norm

from fusion_kernels.cpu import CpuRegion, compile_region
from fusion_kernels.ir import Input, Output, Region, Statement


def _randn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def _positions(bound: int, *shape: int) -> torch.Tensor:
    return torch.randint(0, bound, shape, generator=torch.Generator().manual_seed(bound))


def _compiled(region: Region) -> CpuRegion:
    compiled = compile_region(region)
    assert compiled.compiled, compiled.reason
    return compiled


def _embeddings(open_dims: tuple[int, ...] = ()) -> Region:
    """LayerNorm of two embeddings over 24 columns, tables transposed: positions come last."""
    at = ((4, 7, 1), (7, 1, 0), 3)
    column = ((1, 1, 24), (0, 0, 1), 1)
    return Region(
        "two_embeddings",
        (4, 7, 24),
        1,
        (
            Input("ids", "int64", *at),
            Input("words", "float32", *column, None, True),
            Input("kinds", "int32", *at),
            Input("types", "bfloat16", *column, None, True),
            Input("weight", "float32", *column),
        ),
        (
            Statement("word", "gather", ("words", "ids"), "float32", ""),
            Statement("kind", "gather", ("types", "kinds"), "float32", ""),
            Statement("total", "add", ("word", "kind"), "float32", ""),
            Statement("out", "layer_norm", ("total", "weight", None, 1e-5), "float32", ""),
        ),
        (Output("out", "float32", (4, 7, 24), (168, 24, 1)),),
        open_dims,
    )


def _picked() -> Region:
    """The element of each row of a matrix that an index names, times y."""
    column = ((6, 1), (1, 0), 2)
    return Region(
        "picked",
        (6, 1),
        0,
        (
            Input("rows", "float32", (6, 1), (50, 0), 2, None, True),
            Input("at", "int64", *column),
            Input("y", "float32", *column),
        ),
        (
            Statement("found", "gather", ("rows", "at"), "float32", ""),
            Statement("out", "mul", ("found", "y"), "float32", ""),
        ),
        (Output("out", "float32", (6, 1), (1, 1)),),
    )


@pytest.fixture(scope="module")
def embeddings() -> CpuRegion:
    return _compiled(_embeddings())


@pytest.fixture(scope="module")
def open_embeddings() -> CpuRegion:
    return _compiled(_embeddings(open_dims=(0, 1)))


@pytest.fixture(scope="module")
def picked() -> CpuRegion:
    return _compiled(_picked())


def _run(
    compiled: CpuRegion, ids: torch.Tensor, words: torch.Tensor, kinds: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """What it gives, and LayerNorm of the same in float64."""
    types, weight = _randn(3, 24).bfloat16(), _randn(24)
    (out,) = compiled.run(ids[..., None], words.T, kinds[..., None].int(), types.T, weight)
    total = embedding(ids, words.double()) + embedding(kinds, types.double())
    return out, layer_norm(total, (24,), weight.double(), None, 1e-5)


@pytest.mark.parametrize("batch", [4, 9, 1, 0])
@pytest.mark.parametrize("length", [257, 3, 1])
def test_a_table_may_have_any_length(batch: int, length: int, embeddings: CpuRegion) -> None:
    ids, kinds = _positions(length, batch, 7), _positions(3, batch, 7)
    out, exact = _run(embeddings, ids, _randn(length, 24), kinds)
    torch.testing.assert_close(out.double(), exact, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("batch", "length"), [(4, 7), (1, 1), (11, 3), (5, 0)])
def test_so_may_one_of_a_region_with_open_sizes(
    batch: int, length: int, open_embeddings: CpuRegion
) -> None:
    ids, kinds = _positions(31, batch, length), _positions(3, batch, length)
    out, exact = _run(open_embeddings, ids, _randn(31, 24), kinds)
    torch.testing.assert_close(out.double(), exact, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "words",
    [
        _randn(31, 40)[:, :24],
        _randn(62, 24)[::2],
        _randn(24, 31).T,
        _randn(31, 48)[:, ::2],
        _randn(1, 24).expand(31, 24),
    ],
    ids=["of wider rows", "every second row", "transposed", "every second column", "expanded"],
)
def test_a_table_is_read_as_it_lies(words: torch.Tensor, embeddings: CpuRegion) -> None:
    out, exact = _run(embeddings, _positions(31, 4, 7), words, _positions(3, 4, 7))
    torch.testing.assert_close(out.double(), exact, rtol=1e-5, atol=1e-5)


def test_no_table_is_copied(embeddings: CpuRegion) -> None:
    ids, kinds = _positions(31, 4, 7), _positions(3, 4, 7)
    types, weight = _randn(3, 24).bfloat16(), _randn(24)
    given = (ids[..., None], _randn(31, 40)[:, :24].T, kinds[..., None].int(), types.T, weight)
    with torch.profiler.profile() as profile:
        embeddings.run(*given)
    copies = ("aten::clone", "aten::contiguous", "aten::copy_")
    assert not [event.key for event in profile.key_averages() if event.key in copies]


@pytest.mark.parametrize("outside", [-1, 31, -(2**62), 2**62])
def test_a_position_outside_of_a_table_gives_nan(outside: int, embeddings: CpuRegion) -> None:
    ids, kinds = _positions(31, 4, 7), _positions(3, 4, 7)
    wrong = ids.clone()
    wrong[2, 3] = outside
    right, _ = _run(embeddings, ids, _randn(31, 24), kinds)
    types, weight = _randn(3, 24).bfloat16(), _randn(24)
    given = (wrong[..., None], _randn(31, 24).T, kinds[..., None].int(), types.T, weight)
    (out,) = embeddings.run(*given)
    assert out[2, 3].isnan().all()
    right[2, 3] = torch.nan
    torch.testing.assert_close(out, right, equal_nan=True, rtol=0, atol=0)


def test_a_table_without_positions_raises_as_in_eager(embeddings: CpuRegion) -> None:
    given = (torch.zeros(4, 7, 1, dtype=torch.int64), torch.empty(24, 0))
    rest = (torch.zeros(4, 7, 1, dtype=torch.int32), torch.ones(24, 3).bfloat16(), torch.ones(24))
    with pytest.raises((IndexError, RuntimeError)):
        embeddings.run(*given, *rest)


@pytest.mark.parametrize("rows", [6, 1, 257])
@pytest.mark.parametrize("cut", [0, 3])
def test_each_row_may_be_a_table_of_its_own(rows: int, cut: int, picked: CpuRegion) -> None:
    table = _randn(rows, 53)[:, : 53 - cut]
    at, y = _positions(53 - cut, rows, 1), _randn(rows, 1)
    (out,) = picked.run(table[:, None], at, y)
    torch.testing.assert_close(out, table.gather(1, at) * y, rtol=0, atol=0)


def test_other_inner_sizes_run_uncompiled(embeddings: CpuRegion) -> None:
    out, exact = _run(embeddings, _positions(31, 4, 5), _randn(31, 24), _positions(3, 4, 5))
    torch.testing.assert_close(out.double(), exact, rtol=1e-5, atol=1e-5)
