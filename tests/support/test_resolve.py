"""How an operator is found in a table, however it is written there, and what the reason says."""

import pytest
import torch
from table_calls import MakeNode, MakeTensor, TableFrom, exports_to_onnx

from planner.report.model import COVERED_LEVELS
from planner.support.resolve import Resolution, resolve
from planner.support.tables import BackendTable

# As Ascend's list has it: structured operators stand under their out= names only.
DIALECT = {
    "aten.gelu.out": "native",
    "aten.isin.Tensor_Tensor_out": "native",
    "aten.hardsigmoid.out": "native",
    "aten.all.out": "native",
    "aten.max.dim_max": "native",
    "aten.div.out_mode": "native",
    "aten.arange.start_out": "native",
}


@pytest.mark.parametrize(
    ("op", "listed", "match"),
    [
        ("aten.gelu.default", "aten.gelu.out", "delegate"),
        ("aten.isin.Tensor_Tensor", "aten.isin.Tensor_Tensor_out", "delegate"),
        ("aten.hardsigmoid.default", "aten.hardsigmoid.out", "delegate"),
        ("aten.all.dim", "aten.all.out", "delegate"),
        ("aten.max.dim", "aten.max.dim_max", "delegate"),
        ("aten.div.Tensor_mode", "aten.div.out_mode", "delegate"),
        ("aten.arange.start_step", "aten.arange.start_out", "twin"),
    ],
)
def test_an_operator_listed_only_as_out_is_found(
    table_from: TableFrom, op: str, listed: str, match: str
) -> None:
    found = resolve(op, table_from(entries=DIALECT))
    assert (found.level, found.match, found.via) == ("native", match, (listed,))
    assert f"only as {listed}" in found.reason


def test_another_overload_does_not_stand_for_the_one_asked(table_from: TableFrom) -> None:
    found = resolve("aten.all.default", table_from(entries=DIALECT))
    assert (found.level, found.match) == ("unknown", "default")
    assert "aten.all.out" in found.reason
    assert "says nothing of this one" in found.reason


def test_a_packet_is_marked_as_weaker_evidence(table_from: TableFrom) -> None:
    found = resolve("aten.all.default", table_from(entries={"aten.all": "native"}))
    assert (found.level, found.match) == ("native", "packet")
    assert "weaker evidence" in found.reason


def test_the_exact_overload_goes_before_packet_and_twin(table_from: TableFrom) -> None:
    entries = {"aten.gelu.default": "stub", "aten.gelu.out": "native", "aten.gelu": "native"}
    found = resolve("aten.gelu.default", table_from(entries=entries))
    assert (found.level, found.match) == ("stub", "exact")


def test_a_twin_goes_before_the_packet(table_from: TableFrom) -> None:
    entries = {"aten.gelu.out": "cpu_fallback", "aten.gelu": "native"}
    assert resolve("aten.gelu.default", table_from(entries=entries)).level == "cpu_fallback"


def test_an_absent_operator_takes_the_default(table_from: TableFrom) -> None:
    default = {"level": "cpu_fallback", "reason": "What is not listed runs on the CPU."}
    found = resolve("aten.gelu.default", table_from(entries={"aten.mm": "native"}, default=default))
    assert (found.level, found.reason) == ("cpu_fallback", "What is not listed runs on the CPU.")


def test_an_implementation_for_every_device_needs_no_entry(table_from: TableFrom) -> None:
    found = resolve("aten.transpose.int", table_from())
    assert (found.level, found.match) == ("composite_explicit", "composite")


def test_the_generator_s_wrapper_of_a_structured_operator_proves_nothing(
    table_from: TableFrom,
) -> None:
    assert resolve("aten.softplus.default", table_from()).level == "unknown"


def test_a_name_that_torch_lacks_is_unknown_whatever_the_default(onnx_table: BackendTable) -> None:
    found = resolve("aten.no_such_thing.default", onnx_table)
    assert found.level == "unknown"
    assert "no operator aten.no_such_thing.default" in found.reason


def test_a_condition_is_told_and_not_taken_as_met(table_from: TableFrom) -> None:
    entry = {"level": "conditional", "condition": "approximate is 'none'"}
    found = resolve("aten.gelu.default", table_from(entries={"aten.gelu.default": entry}))
    assert found.level == "unknown"
    assert "approximate is 'none'" in found.reason


def test_sources_that_disagree_are_both_told(table_from: TableFrom) -> None:
    docs = {
        "kind": "documentation",
        "ref": "page",
        "checked": "2026-11-30",
        "packages": {"made-up-docs": "1.1"},
        "extractor": "by hand",
    }
    entry = {"level": "native", "disputed": {"docs": "unsupported"}}
    table = table_from(entries={"aten.mm.default": entry}, further_sources={"docs": docs})
    reason = resolve("aten.mm.default", table).reason
    assert "made-up-docs 1.1, page, says unsupported" in reason


class TestDtypes:
    ENTRIES = {  # noqa: RUF012 - a constant of the class
        name: {"level": "native", "dtypes": ["bfloat16", "float32"]}
        for name in ("aten.mul.Tensor", "aten.embedding.default", "aten.where.self", "aten.gelu")
    }

    def test_a_limit_that_is_met_makes_it_unsupported(
        self, table_from: TableFrom, node: MakeNode, tensor: MakeTensor
    ) -> None:
        call = node("aten.gelu.default", tensor(4, dtype="float64"))
        found = resolve(call.op, table_from(entries=self.ENTRIES), call)
        assert found.level == "unsupported"
        assert found.reason == (
            "Made-Up has aten.gelu for bfloat16, float32; this model needs it in float64."
        )

    def test_within_the_limit_it_stays_supported(
        self, table_from: TableFrom, node: MakeNode, tensor: MakeTensor
    ) -> None:
        call = node("aten.gelu.default", tensor(4, dtype="bfloat16"))
        found = resolve(call.op, table_from(entries=self.ENTRIES), call)
        assert (found.level, found.dtypes) == ("native", ("bfloat16", "float32"))

    def test_index_and_mask_tensors_do_not_count(
        self, table_from: TableFrom, node: MakeNode, tensor: MakeTensor
    ) -> None:
        table = table_from(entries=self.ENTRIES)
        lookup = node("aten.embedding.default", tensor(9, 4), tensor(3, dtype="int64"))
        choice = node("aten.where.self", tensor(4, dtype="bool"), tensor(4), tensor(4))
        assert resolve(lookup.op, table, lookup).level == "native"
        assert resolve(choice.op, table, choice).level == "native"

    @pytest.mark.parametrize(
        ("left", "right", "out", "level"),
        [
            ("bool", "float32", "float32", "native"),
            ("float32", "float64", "float64", "unsupported"),
            ("int64", "int64", "float32", "native"),
            ("int64", "int64", "int64", "unsupported"),
        ],
    )
    def test_a_pointwise_operator_counts_in_its_promoted_dtype(
        self,
        table_from: TableFrom,
        node: MakeNode,
        tensor: MakeTensor,
        left: str,
        right: str,
        out: str,
        level: str,
    ) -> None:
        inputs = tensor(4, dtype=left), tensor(4, dtype=right)
        call = node("aten.mul.Tensor", *inputs, out=(tensor(4, dtype=out),))
        assert resolve(call.op, table_from(entries=self.ENTRIES), call).level == level

    def test_a_sum_of_booleans_counts_as_the_integers_torch_adds(
        self, onnx_table: BackendTable, node: MakeNode, tensor: MakeTensor
    ) -> None:
        result = tensor(4, dtype="int64")
        call = node("aten.cumsum.default", tensor(4, dtype="bool"), 0, out=(result,))
        assert resolve(call.op, onnx_table, call).level == "converter"
        assert exports_to_onnx(lambda x: torch.cumsum(x, 0), torch.ones(4, dtype=torch.bool))

    def test_a_cast_must_read_its_source(
        self, table_from: TableFrom, node: MakeNode, tensor: MakeTensor
    ) -> None:
        entry = {"level": "native", "dtypes": ["float32"]}
        table = table_from(entries={"aten._to_copy.default": entry})
        result = tensor(4)
        call = node("aten._to_copy.default", tensor(4, dtype="uint16"), out=(result,))
        assert resolve(call.op, table, call).level == "unsupported"

    def test_unknown_dtypes_limit_nothing_and_promise_nothing(
        self, table_from: TableFrom, node: MakeNode, tensor: MakeTensor
    ) -> None:
        call = node("aten.gelu.default", tensor(4, dtype="float64"))
        found = resolve(call.op, table_from(), call)
        assert (found.level, found.dtypes) == ("native", None)

    def test_a_limit_does_not_lift_what_is_not_covered(
        self, table_from: TableFrom, node: MakeNode, tensor: MakeTensor
    ) -> None:
        entry = {"level": "cpu_fallback", "dtypes": ["float32"]}
        call = node("aten.gelu.default", tensor(4, dtype="float64"))
        table = table_from(entries={"aten.gelu.default": entry})
        assert resolve(call.op, table, call).level == "cpu_fallback"


def test_every_answer_has_a_reason_and_a_source(cuda_table: BackendTable) -> None:
    for op in (*list(cuda_table.entries)[::50], "aten.nothing.default", "fuseplan.mine.default"):
        found: Resolution = resolve(op, cuda_table)
        assert found.reason.endswith(".")
        assert found.evidence
        assert found.covered == (found.level in COVERED_LEVELS)
