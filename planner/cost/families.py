"""Which aten operators belong together: matrix products, normalizations, views, copies.

Names are operator packets without overload and without the in-place underscore ("aten.add" for
"aten.add_.Tensor"). Cost formulas, byte counts and tiers all read these sets.
"""

from __future__ import annotations

from planner.graph.op_graph import OpNode


def packet(op: str) -> str:
    """The operator's name without overload and in-place underscore: "aten.add_.Tensor" ->
    "aten.add".
    """
    name = op.rsplit(".", 1)[0] if op.count(".") >= 2 else op
    return name[:-1] if name.endswith("_") and not name.endswith("__") else name


def is_in_place(op: str) -> bool:
    """Whether the overload writes into its first argument ("aten.add_.Tensor")."""
    name = op.rsplit(".", 1)[0] if op.count(".") >= 2 else op
    return name.endswith("_") and not name.endswith("__")


def is_work(node: OpNode) -> bool:
    """Whether a node runs something. Picking one of several results, stating a fact about a shape
    and arithmetic on sizes run nothing.
    """
    if "." in node.op:
        return packet(node.op) not in ASSERTION
    return node.op != "getitem" and bool(node.outputs)


def _aten(names: str) -> frozenset[str]:
    return frozenset(f"aten.{name}" for name in names.split())


MATMUL = _aten(
    "mm bmm addmm baddbmm addbmm matmul linear mv addmv dot vdot einsum bilinear _scaled_mm "
    "_addmm_activation _int_mm _trilinear inner outer _grouped_mm _scaled_grouped_mm"
) | {"transformers.grouped_mm_fallback"}
CONVOLUTION = _aten(
    "conv1d conv2d conv3d convolution _convolution conv_transpose1d conv_transpose2d "
    "conv_transpose3d cudnn_convolution mkldnn_convolution cudnn_convolution_relu "
    "cudnn_convolution_add_relu convolution_overrideable miopen_convolution "
    "_slow_conv2d_forward conv_depthwise3d _conv_depthwise2d"
)
ATTENTION = _aten(
    "scaled_dot_product_attention _scaled_dot_product_flash_attention "
    "_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_efficient_attention "
    "_scaled_dot_product_cudnn_attention _scaled_dot_product_attention_math "
    "_scaled_dot_product_fused_attention_overrideable"
)
NORMALIZATION = _aten(
    "layer_norm native_layer_norm group_norm native_group_norm batch_norm native_batch_norm "
    "_native_batch_norm_legit _native_batch_norm_legit_no_training cudnn_batch_norm instance_norm "
    "rms_norm _fused_rms_norm local_response_norm"
)
SOFTMAX = _aten("softmax _softmax log_softmax _log_softmax _safe_softmax")
ACTIVATION = _aten(
    "relu relu6 gelu silu sigmoid tanh leaky_relu elu selu celu hardtanh hardswish hardsigmoid "
    "mish softplus prelu rrelu threshold glu log_sigmoid log_sigmoid_forward hardshrink softshrink "
    "tanhshrink softsign"
)

# The output shares the input's storage: nothing is read or written.
VIEW = _aten(
    "view _unsafe_view _reshape_alias expand expand_as broadcast_to permute transpose t numpy_T "
    "matrix_H mT mH adjoint swapaxes swapdims movedim moveaxis unsqueeze squeeze select slice "
    "narrow split split_with_sizes unsafe_split unsafe_split_with_sizes chunk unsafe_chunk unbind "
    "tensor_split alias detach as_strided diagonal unfold real imag view_as view_as_real "
    "view_as_complex unflatten lift lift_fresh _conj meshgrid"
) | {"getitem"}
# A view where the strides allow it, else a copy.
MAYBE_VIEW = _aten("reshape reshape_as flatten ravel contiguous to type_as dropout feature_dropout")
COPY = _aten(
    "clone copy _to_copy lift_fresh_copy cat concat concatenate stack hstack vstack dstack repeat "
    "repeat_interleave tile roll flip rot90 constant_pad_nd pad reflection_pad1d reflection_pad2d "
    "reflection_pad3d replication_pad1d replication_pad2d replication_pad3d slice_scatter "
    "select_scatter diagonal_scatter scatter index_put _unsafe_index_put index_copy masked_select "
    "masked_scatter pixel_shuffle pixel_unshuffle channel_shuffle im2col upsample_nearest1d "
    "upsample_nearest2d upsample_nearest3d resolve_conj one_hot slice_copy view_copy expand_copy "
    "permute_copy transpose_copy unsqueeze_copy squeeze_copy as_strided_copy select_copy"
)
# Only the rows asked for are read from the first tensor argument.
ROW_LOOKUP = _aten("embedding index _unsafe_index index_select gather take take_along_dim")
# Writes without reading a tensor.
FACTORY = _aten(
    "full full_like new_full zeros zeros_like new_zeros ones ones_like new_ones arange linspace "
    "eye scalar_tensor fill zero"
)
UNINITIALIZED = _aten("empty empty_like empty_strided empty_permuted new_empty new_empty_strided")
# Chooses or masks elements: traffic, but no arithmetic.
SELECTION = _aten("where masked_fill tril triu")
# A statement about the program that computes nothing.
ASSERTION = _aten(
    "_assert_tensor_metadata _assert_async _assert_scalar sym_size sym_stride sym_numel "
    "sym_constrain_range sym_constrain_range_for_size"
)

MATRIX = (MATMUL | CONVOLUTION | ATTENTION) - _aten("outer")
CORE = MATMUL | CONVOLUTION | ATTENTION | NORMALIZATION | SOFTMAX | ACTIVATION
MOVEMENT = VIEW | MAYBE_VIEW | COPY | ROW_LOOKUP
NO_ARITHMETIC = MOVEMENT | FACTORY | UNINITIALIZED | SELECTION | ASSERTION
