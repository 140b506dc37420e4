"""A convolution with the ReLU after it, and the sum between, as one call of the backend's library.

oneDNN on CPU and cuDNN on CUDA apply both as they write the result, so that neither costs a pass.
What they make of a NaN is theirs to choose, by kernel and version: oneDNN's ReLU makes it 0, which
would hide a fault that eager shows. So each call is tried beside the operators that it replaces.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch.export import ExportedProgram

from planner.counted import counted
from planner.passes.noops import same_meta
from planner.passes.special_values import MISPLACED, agree, drawn_like, holds

aten, mkldnn = torch.ops.aten, torch.ops.mkldnn

_LAYERS: dict[Any, int] = {aten.conv2d.default: 2, aten.conv3d.default: 3}
_RELUS = {aten.relu.default, aten.relu_.default}
_DTYPES = {"cpu": (torch.float32,), "cuda": (torch.float32, torch.float16, torch.bfloat16)}


@dataclass(frozen=True, slots=True)
class _Place:
    """`relu` of `layer`, or of `layer` + `other`."""

    layer: fx.Node
    relu: fx.Node
    other: fx.Node | None


def fused_convolution(program: ExportedProgram) -> tuple[str, ...]:
    """conv -> relu and conv -> add -> relu, where nothing else reads what stands between, in one
    call each, if NaN and infinities come out of it as they do in eager.
    """
    found = [_place(node) for node in program.graph.nodes if node.target in _RELUS]
    places = [place for place in found if place is not None]
    tried: dict[Hashable, bool] = {}
    right = [place for place in places if _is_right(place, tried)]
    for place in right:
        _fuse(program.graph, place)
    notes = []
    if right:
        sums = sum(place.other is not None for place in right)
        notes.append(
            f"{counted(len(right), 'convolution')} with the ReLU after it, {sums} with a sum"
        )
    if wrong := len(places) - len(right):
        notes.append(f"{counted(wrong, 'convolution')} apart from the ReLU: {MISPLACED}")
    return tuple(notes)


def _place(relu: fx.Node) -> _Place | None:
    source: Any = relu.args[0]
    other: Any = None
    if not isinstance(source, fx.Node) or list(source.users) != [relu]:
        return None
    if source.target is aten.add.Tensor and source.kwargs.get("alpha", 1) == 1:
        first, second = source.args[:2]
        layers = [n for n in (first, second) if isinstance(n, fx.Node) and _is_layer(n)]
        layers = [layer for layer in layers if list(layer.users) == [source]]
        if not layers or first is second:
            return None
        layer, other = layers[-1], first if layers[-1] is second else second
        if not isinstance(other, fx.Node) or not same_meta(other.meta["val"], layer.meta["val"]):
            return None
    else:
        layer = source
    same = _is_layer(layer) and same_meta(layer.meta["val"], relu.meta["val"])
    return _Place(layer, relu, other) if same else None


def _is_layer(node: fx.Node) -> bool:
    if node.target not in _LAYERS:
        return False
    values = [source.meta["val"] for source in node.all_input_nodes]
    own = node.meta["val"]
    one_dtype = {value.dtype for value in (own, *values)} == {own.dtype}
    known = own.dtype in _DTYPES.get(own.device.type, ()) and own.dim() == _LAYERS[node.target] + 2
    library = own.device.type != "cpu" or torch.backends.mkldnn.is_available()
    return bool(one_dtype and known and library and _sized(own))


def _is_right(place: _Place, tried: dict[Hashable, bool]) -> bool:
    """Whether NaN and infinities are where the operators have them, at these sizes and layouts."""
    form = _form(place)
    if form not in tried:
        tried[form] = holds(lambda: _agrees(place))
    return tried[form]


def _agrees(place: _Place) -> bool:
    sources = [n for n in (*place.layer.all_input_nodes, place.other) if n is not None]
    weights = place.layer.all_input_nodes[1:]
    drawn = {n: drawn_like(n.meta["val"], special=n not in weights) for n in sources}
    target, args = _call(place)
    with torch.no_grad():
        out = target(*fx.node.map_arg(args, drawn.__getitem__))
        return agree(out, _by_operators(place, drawn))


def _form(place: _Place) -> Hashable:
    sources = [*place.layer.all_input_nodes, *([place.other] if place.other else [])]
    values = [source.meta["val"] for source in sources]
    numbers = repr(fx.node.map_arg(_call(place), lambda _: None))
    return numbers, tuple((v.shape, v.stride(), v.dtype, v.device) for v in values)


def _by_operators(place: _Place, drawn: Mapping[fx.Node, Tensor]) -> Tensor:
    layer = place.layer
    made: Tensor = layer.target(*fx.node.map_arg(layer.args, drawn.__getitem__))  # type: ignore[operator]
    return (made if place.other is None else made + drawn[place.other]).relu()


def _sized(value: Tensor) -> bool:
    return all(isinstance(size, int) and size for size in value.shape)


def _fuse(graph: fx.Graph, place: _Place) -> None:
    target, args = _call(place)
    with graph.inserting_before(place.relu):
        call = graph.call_function(target, args)
    call.meta = dict(place.relu.meta)
    between = place.relu.args[0]
    place.relu.replace_all_uses_with(call)
    graph.erase_node(place.relu)
    if place.other is not None:
        assert isinstance(between, fx.Node)
        graph.erase_node(between)
    graph.erase_node(place.layer)


def _call(place: _Place) -> tuple[Any, tuple[Any, ...]]:
    layer, other = place.layer, place.other
    rank = _LAYERS[layer.target]
    given: Any = layer.args
    defaults: Any = (None, None, None, [1], [0], [1], 1)
    completed: list[Any] = [*given, *defaults[len(given) :]]
    x, weight, bias = completed[:3]
    stride, padding, dilation = (_each(value, rank) for value in completed[3:6])
    groups = completed[6]
    if layer.meta["val"].device.type == "cuda":
        sizes = (stride, padding, dilation, groups)
        if other is None:
            return aten.cudnn_convolution_relu.default, (x, weight, bias, *sizes)
        return aten.cudnn_convolution_add_relu.default, (x, weight, other, 1.0, bias, *sizes)
    sizes = (padding, stride, dilation, groups)
    if other is None:
        relu: tuple[Any, ...] = ("relu", [], "")
        return mkldnn._convolution_pointwise.default, (x, weight, bias, *sizes, *relu)
    sum_and_relu: tuple[Any, ...] = ("add", 1.0, "relu", [], "")
    args = (x, other, weight, bias, *sizes, *sum_and_relu)
    return mkldnn._convolution_pointwise.binary, args


def _each(value: Any, rank: int) -> list[int]:
    found = [int(n) for n in (value if isinstance(value, list | tuple) else [value])]
    return found * rank if len(found) == 1 else found
