"""A report made by hand, with every section filled and figures of every kind."""

from __future__ import annotations

import pytest

from planner.report.model import (
    BackendCoverage,
    Benchmark,
    BenchmarkRow,
    Break,
    CaptureInfo,
    CoverageRow,
    Environment,
    FusableTime,
    FusionRow,
    LeftRow,
    ModelInfo,
    NumericsRow,
    OpRow,
    Outcome,
    PassRecord,
    ProfileInfo,
    RejectionRow,
    Report,
    StageRow,
    Trial,
)

BERT = "transformers/models/bert/modeling_bert.py"


@pytest.fixture
def report() -> Report:
    return Report(
        environment=_environment(),
        model=_model_info(),
        capture=_capture(),
        profile=_profile(),
        ops=_ops(),
        unlinked_share=0.015,
        coverage=_coverage(),
        fusions=_fusions(),
        rejections=_rejections(),
        numerics=_numerics(),
        benchmark=_benchmark(),
        outcome=Outcome("fused", "1.29x faster than eager, 13 kernels verified against float64"),
        fusable=_fusable_time(),
        stages=(StageRow("capture", 0, 2.5), StageRow("plan the fusions", 0, 41.0)),
    )


def _environment() -> Environment:
    return Environment(
        fuseplan="0.1.0",
        python="3.11.9",
        torch="2.13.0+cpu",
        triton="3.7.1",
        device="cuda:0",
        device_name="NVIDIA H200",
        threads=2,
        platform="linux x86_64",
        settings={"float32_matmul_precision": "highest"},
    )


def _model_info() -> ModelInfo:
    return ModelInfo(
        name="hf:bert",
        cls="BertModel",
        parameters=109_482_240,
        parameter_bytes=218_964_480,
        dtype="bfloat16",
        inputs={"input_ids": "int64[32,512]"},
    )


def _capture() -> CaptureInfo:
    return CaptureInfo(
        method="export",
        graphs=1,
        breaks=(Break("data-dependent split sizes", f"{BERT}:912"),),
        nodes=377,
        passes=(
            PassRecord("normalize", 412, 377, 8_100.0, ("in-place add_ made functional",)),
            PassRecord("drop_mask", 377, 361, 950.4, ("all-true mask dropped x12",)),
            PassRecord("merge_linears", 361, 361, 12.0),
        ),
    )


def _profile() -> ProfileInfo:
    return ProfileInfo(
        kind="measured",
        iterations=20,
        wall_us=8_290.0,
        operators_us=8_010.0,
        linked_us=7_890.0,
        unlinked=(("aten::copy_", 80.0), ("aten::fill_", 40.0)),
    )


def _rejections() -> tuple[RejectionRow, ...]:
    return (
        *(
            RejectionRow("bias_gelu", "users", f"linear_{i} has 2 users outside", f"linear_{i}")
            for i in range(3)
        ),
        RejectionRow("add_rms_norm", "check", "residual does not broadcast to x", "add_7"),
    )


def _benchmark() -> Benchmark:
    return Benchmark(
        rows=(
            BenchmarkRow("eager", 8_290.0, 8_250.0, 8_360.0, 1.0, None, 1_620_000_000),
            BenchmarkRow("cuda_graph", 35_270.0, 35_100.0, 35_400.0, 0.235, 0.41, None),
            BenchmarkRow("compile_default", 18_490.0, 18_300.0, 18_620.0, 0.448, 16.2, None),
            BenchmarkRow(
                "compile_max_autotune", None, None, None, None, None, None, "no C++ compiler"
            ),
            BenchmarkRow("fused", 6_430.0, 6_400.0, 6_480.0, 1.289, 2.6, 1_410_000_000),
        ),
        rounds=50,
        ratio_low=1.27,
        ratio_high=1.31,
    )


def _fusable_time() -> FusableTime:
    return FusableTime(
        products_us=4_870.0,
        total_us=3_140.0,
        in_kernels_us=2_610.0,
        rewritten_us=340.0,
        withdrawn_us=0.0,
        unlinked_us=120.0,
        left=(
            LeftRow("aten.embedding", 2, 52.0, "single operator", "embedding_1"),
            LeftRow("aten.cumsum", 1, 18.0, "no region holds aten.cumsum.default", "cumsum"),
            LeftRow("aten.where", 1, None, "a rewrite put it in", "where_3"),
        ),
    )


def _op(
    id_: str,
    op: str,
    shapes: tuple[tuple[int, ...], ...],
    calls: int,
    total_us: float | None,
    **more: object,
) -> OpRow:
    fields: dict[str, object] = {
        "dtypes": ("bfloat16",) * len(shapes),
        "modules": ("encoder.layer.0.output",),
        "sources": (f"{BERT}:378",),
        "p20_us": total_us,
        "p80_us": total_us,
        "share": None if total_us is None else total_us / 8_010.0,
        "kind": "measured" if total_us is not None else "unknown",
        "tier": "core",
        "flops": 77_309_411_328,
        "bytes": 129_499_136,
        "intensity": 597.0,
        "bound": "compute",
        "attainable_us": None if total_us is None else total_us * 0.75,
        "headroom_us": None if total_us is None else total_us * 0.25,
        "model_gain": None if total_us is None else total_us * 0.25 / 8_290.0,
    }
    return OpRow(id_, op, shapes, calls=calls, total_us=total_us, **{**fields, **more})  # type: ignore[arg-type]


def _ops() -> tuple[OpRow, ...]:
    memory = {"bound": "memory", "intensity": 4.5}
    wide = (32, 512, 768)
    return (
        _op("op0", "aten.linear.default", ((32, 512, 3072), (768, 3072), (768,)), 12, 1_420.0),
        _op("op1", "aten.linear.default", (wide, (3072, 768), (3072,)), 12, 1_402.0),
        _op("op2", "aten.layer_norm.default", (wide, (768,), (768,)), 24, 910.0, **memory),
        _op("op3", "aten.gelu.default", ((32, 512, 3072),), 12, 828.5, **memory),
        _op(
            "op4",
            "aten.scaled_dot_product_attention.default",
            ((32, 12, 512, 64), (32, 12, 512, 64), (32, 12, 512, 64), (32, 1, 512, 512)),
            12,
            820.0,
            flops=None,
            bytes=None,
            intensity=None,
            bound=None,
            attainable_us=None,
            headroom_us=None,
            model_gain=None,
        ),
        _op("op5", "aten.add.Tensor", (wide, wide), 25, 611.0, kind="predicted", **memory),
        _op(
            "op6",
            "aten.embedding.default",
            ((30522, 768), (32, 512)),
            3,
            41.0,
            dtypes=("bfloat16", "int64"),
            tier="long_tail",
            bound="memory",
        ),
        _op("op7", "aten.transpose.int", ((32, 512, 12, 64),), 48, None, tier="movement"),
    )


def _coverage() -> dict[str, BackendCoverage]:
    def row(op: OpRow, level: str, reason: str) -> CoverageRow:
        return CoverageRow(op.id, op.op, level, reason, ("bfloat16",), "exact", (), None)

    native = tuple(row(op, "native", "a CUDA kernel is registered") for op in _ops())
    onnx = (
        *(row(op, "converter", "torch.onnx has a converter") for op in _ops()[:4]),
        row(_ops()[4], "unsupported", "no converter for is_causal with a mask"),
        row(_ops()[5], "unknown", "the table does not name this overload"),
        *(row(op, "native", "") for op in _ops()[6:]),
    )
    return {
        "cuda": BackendCoverage(
            {"version": "2.13.0", "source": "dispatcher"}, 1.0, 1.0, 1.0, 0, 1, native
        ),
        "onnx": BackendCoverage(
            {"version": "0.5.6", "source": "registry"}, 0.714, 0.75, None, 1, None, onnx
        ),
    }


def _fusions() -> tuple[FusionRow, ...]:
    kept = tuple(
        FusionRow(
            name=f"add_layer_norm_{i}",
            rule="add_layer_norm",
            nodes=(f"add_{i}", f"layer_norm_{i}"),
            kernel="add_layer_norm_bf16_768",
            module=f"encoder.layer.{i}.output",
            source=f"{BERT}:378",
            predicted_us=24.0,
            before_us=62.0 + i,
            measured_us=26.0,
            kept=True,
            reason=f"2.{i}x faster, 95 % interval above 1",
            trials=(Trial("BLOCK=1024 warps=4", 26.0, 25.5, 26.4),),
        )
        for i in range(12)
    )
    dropped = FusionRow(
        "gelu_0",
        "bias_gelu",
        ("add_0", "gelu_0"),
        "bias_gelu_bf16_3072",
        "encoder.layer.0.intermediate",
        f"{BERT}:341",
        60.0,
        69.0,
        None,
        False,
        "numerics: 3.0e-2 past 1.0e-3 in bfloat16",
    )
    return (dropped, *kept)


def _numerics() -> tuple[NumericsRow, ...]:
    return (
        NumericsRow("add_layer_norm_bf16_768", "bfloat16", 1.2e-7, 2.1e-3, 1e-3, True, "norm-wise"),
        NumericsRow("bias_gelu_bf16_3072", "bfloat16", 3.0e-2, 1.9e-3, 1e-3, False, "norm-wise"),
        NumericsRow("add_layer_norm_bf16_768", "float32", 4.4e-7, None, 1e-5, True, "element"),
        NumericsRow("whole model", "bfloat16", 7.1e-3, 8.2e-3, 9.0e-3, True, "over 16 draws"),
    )
