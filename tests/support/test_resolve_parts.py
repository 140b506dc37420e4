"""Operators that are covered by their parts, by a converter or by their owner."""

from collections.abc import Iterator

import pytest
import torch
from table_calls import MakeNode, MakeTensor, TableFrom, exports_to_onnx

from planner.support.resolve import resolve
from planner.support.tables import BackendTable


class TestComposites:
    def test_linear_is_covered_by_its_parts(
        self, cuda_table: BackendTable, node: MakeNode, tensor: MakeTensor
    ) -> None:
        call = node("aten.linear.default", tensor(2, 3, 4), tensor(5, 4), tensor(5))
        found = resolve(call.op, cuda_table, call)
        assert (found.level, found.match) == ("composite_implicit", "composite")
        assert found.via == ("aten.view.default", "aten.t.default", "aten.addmm.default")

    def test_one_missing_part_is_missing_support(
        self, table_from: TableFrom, node: MakeNode, tensor: MakeTensor
    ) -> None:
        entries = {"aten.addmm.out": "cpu_fallback", "aten.view.default": "native"}
        call = node("aten.linear.default", tensor(2, 3, 4), tensor(5, 4), tensor(5))
        found = resolve(call.op, table_from(entries=entries), call)
        assert found.level == "cpu_fallback"
        assert "does not cover aten.addmm.default" in found.reason
        assert "computes it on the CPU" in found.reason

    def test_an_unknown_part_makes_the_whole_unknown(
        self, table_from: TableFrom, node: MakeNode, tensor: MakeTensor
    ) -> None:
        call = node("aten.linear.default", tensor(3, 4), tensor(5, 4), tensor(5))
        found = resolve(call.op, table_from(entries={"aten.mm.default": "native"}), call)
        assert found.level == "unknown"
        assert "aten.addmm.default" in found.reason

    def test_a_dtype_limit_of_a_part_counts(
        self, table_from: TableFrom, node: MakeNode, tensor: MakeTensor
    ) -> None:
        entries = {"aten.native_layer_norm.default": {"level": "native", "dtypes": ["float32"]}}
        row = tensor(2, 4, dtype="float16")
        call = node("aten.layer_norm.default", row, (4,))
        found = resolve(call.op, table_from(entries=entries), call)
        assert found.level == "unsupported"
        assert "needs it in float16" in found.reason

    def test_an_own_kernel_goes_before_the_parts(
        self, table_from: TableFrom, node: MakeNode, tensor: MakeTensor
    ) -> None:
        call = node("aten.linear.default", tensor(3, 4), tensor(5, 4))
        found = resolve(call.op, table_from(entries={"aten.linear.default": "native"}), call)
        assert (found.level, found.via) == ("native", ())

    def test_attention_stays_whole_and_names_the_fused_kernels(
        self, cuda_table: BackendTable, node: MakeNode, tensor: MakeTensor
    ) -> None:
        query = tensor(1, 2, 16, 64, dtype="bfloat16")
        call = node("aten.scaled_dot_product_attention.default", query, query, query)
        found = resolve(call.op, cuda_table, call)
        assert found.level == "composite_implicit"
        # With a GPU torch chooses one of its fused kernels, without one the written-out form.
        flash = "aten._scaled_dot_product_flash_attention.default"
        fused = any("_scaled_dot_product_" in op for op in found.via)
        assert fused or "aten.bmm.default" in found.via
        assert flash in found.via or flash in found.reason

    def test_attention_on_cpu_takes_the_kernel_for_cpu(
        self, cpu_table: BackendTable, node: MakeNode, tensor: MakeTensor
    ) -> None:
        query = tensor(1, 2, 16, 64)
        call = node("aten.scaled_dot_product_attention.default", query, query, query)
        via = resolve(call.op, cpu_table, call).via
        assert via == ("aten._scaled_dot_product_flash_attention_for_cpu.default",)

    def test_the_parts_are_those_that_really_run(
        self, cpu_table: BackendTable, node: MakeNode, tensor: MakeTensor
    ) -> None:
        call = node("aten.linear.default", tensor(2, 3, 4), tensor(5, 4), tensor(5))
        with (
            torch.inference_mode(),
            torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile,
        ):
            torch.nn.functional.linear(torch.ones(2, 3, 4), torch.ones(5, 4), torch.ones(5))
        ran = {event.key for event in profile.key_averages()}
        via = resolve(call.op, cpu_table, call).via
        assert {part.removesuffix(".default").replace(".", "::") for part in via} <= ran

    def test_a_no_op_runs_nothing(
        self, cuda_table: BackendTable, node: MakeNode, tensor: MakeTensor
    ) -> None:
        call = node("aten.contiguous.default", tensor(2, 3))
        found = resolve(call.op, cuda_table, call)
        assert (found.level, found.via) == ("composite_implicit", ())

    def test_a_dtype_argument_is_understood(
        self, cuda_table: BackendTable, node: MakeNode, tensor: MakeTensor
    ) -> None:
        call = node("aten.to.dtype", tensor(2, 3), "float16")
        assert resolve(call.op, cuda_table, call).via == ("aten._to_copy.default",)

    def test_a_path_that_depends_on_values_is_unknown(
        self, cpu_table: BackendTable, node: MakeNode, tensor: MakeTensor
    ) -> None:
        call = node("aten.one_hot.default", tensor(3, dtype="int64"))
        found = resolve(call.op, cpu_table, call)
        assert found.level == "unknown"
        assert "depends on the values" in found.reason

    def test_without_inputs_the_reason_says_that_parts_were_not_looked_at(
        self, cuda_table: BackendTable
    ) -> None:
        found = resolve("aten.linear.default", cuda_table)
        assert found.level == "composite_implicit"
        assert "depends on the inputs" in found.reason


class TestConverter:
    def test_the_direct_entry_is_preferred(
        self, onnx_table: BackendTable, node: MakeNode, tensor: MakeTensor
    ) -> None:
        call = node("aten.layer_norm.default", tensor(2, 4), (4,))
        found = resolve(call.op, onnx_table, call)
        assert (found.level, found.match, found.via) == ("converter", "exact", ())

    def test_case_of_overloads_agrees_with_the_exporter(
        self, onnx_table: BackendTable, node: MakeNode, tensor: MakeTensor
    ) -> None:
        ids, stop = tensor(3, 4, dtype="int64"), tensor(3, dtype="int64")
        call = node("aten.isin.Tensor_Tensor", ids, stop, out=(tensor(3, 4, dtype="bool"),))
        found = resolve(call.op, onnx_table, call)
        assert (found.level, found.match) == ("decomposed", "decomposition")
        assert "aten.eq.Tensor" in found.via
        assert exports_to_onnx(torch.isin, torch.ones(3, 4, dtype=torch.int64), torch.arange(3))

    def test_a_decomposition_that_ends_outside_agrees_with_the_exporter(
        self, onnx_table: BackendTable, node: MakeNode, tensor: MakeTensor
    ) -> None:
        call = node("aten.cumprod.default", tensor(3, 3), 0)
        found = resolve(call.op, onnx_table, call)
        assert found.level == "unsupported"
        assert "does not cover prims.prod.default" in found.reason
        assert not exports_to_onnx(lambda x: torch.cumprod(x, 0), torch.ones(3, 3))

    def test_an_in_place_operator_is_its_functional_twin(self, onnx_table: BackendTable) -> None:
        found = resolve("aten.relu_.default", onnx_table)
        assert (found.level, found.match, found.via) == (
            "converter",
            "twin",
            ("aten.relu.default",),
        )


class TestCustomOperators:
    @pytest.fixture
    def library(self) -> Iterator[torch.library.Library]:
        with torch.library._scoped_library("support_tests", "DEF") as library:
            library.define("on_cpu(Tensor x) -> Tensor")
            library.impl("on_cpu", torch.clone, "CPU")
            library.define("both(Tensor x) -> Tensor")
            library.impl("both", torch.clone, "CPU")
            library.impl("both", torch.nn.functional.gelu, "CompositeImplicitAutograd")
            library.define("as_gelu(Tensor x) -> Tensor")
            library.impl("as_gelu", torch.nn.functional.gelu, "CompositeImplicitAutograd")
            yield library

    @pytest.mark.usefixtures("library")
    def test_a_registered_kernel_counts_for_its_device_only(
        self, cpu_table: BackendTable, cuda_table: BackendTable, onnx_table: BackendTable
    ) -> None:
        op = "support_tests.on_cpu.default"
        on_cpu = resolve(op, cpu_table)
        assert (on_cpu.level, on_cpu.match) == ("native", "registered")
        assert resolve(op, cuda_table).level == "unknown"
        assert resolve(op, onnx_table).level == "unknown"

    @pytest.mark.usefixtures("library")
    def test_a_custom_composite_is_followed(
        self, cuda_table: BackendTable, node: MakeNode, tensor: MakeTensor
    ) -> None:
        call = node("support_tests.as_gelu.default", tensor(4))
        found = resolve(call.op, cuda_table, call)
        assert (found.level, found.via) == ("composite_implicit", ("aten.gelu.default",))

    @pytest.mark.usefixtures("library")
    def test_a_custom_kernel_goes_before_the_composite(
        self, cpu_table: BackendTable, node: MakeNode, tensor: MakeTensor
    ) -> None:
        call = node("support_tests.both.default", tensor(4))
        assert resolve(call.op, cpu_table, call).level == "native"

    def test_an_operator_nobody_registered_is_unknown(self, onnx_table: BackendTable) -> None:
        found = resolve("transformers.no_such_kernel.default", onnx_table)
        assert found.level == "unknown"
        assert "custom operator" in found.reason
