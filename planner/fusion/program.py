"""A fused program bound to a module's weights: its guards, and one run of it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import ExportGraphSignature, InputKind, OutputKind
from torch.utils import _pytree as pytree

from fusion_kernels.library import is_kernel
from planner.fusion.call import CallForm, same_constant
from planner.fusion.derived import Kept
from planner.fusion.direct import with_direct_launches
from planner.passes.derived import derived_of

_PLAIN = (Tensor, nn.Parameter)
_OTHER_CALL = "the call has other arguments than the captured one"


@dataclass(frozen=True, slots=True)
class _Meta:
    """What a tensor must be for the captured program to apply to it."""

    shape: torch.Size
    dtype: torch.dtype
    device: torch.device
    stride: tuple[int, ...]

    def fits(self, tensor: Tensor) -> bool:
        return (
            tensor.shape == self.shape
            and tensor.dtype is self.dtype
            and tensor.device == self.device
            and tensor.layout is torch.strided
            and tensor.stride() == self.stride
        )


@dataclass(frozen=True, slots=True)
class _Slot:
    """Where a weight lives: its owner's dictionary and its key there, so that a replaced weight is
    seen. `name` is its full name.
    """

    owner: dict[str, Any]
    key: str
    name: str

    def get(self) -> Any:
        return self.owner.get(self.key)


class BoundProgram:
    """The fused graph with its weights' places, its guards, and the structure of its outputs."""

    def __init__(self, twin: nn.Module, program: ExportedProgram) -> None:
        self.has_kernels = any(is_kernel(node.target) for node in program.graph.nodes)
        self._module = with_direct_launches(program.graph_module)
        self._signature = program.graph_signature
        _require_order(self._signature)
        of_kind = InputKind.CONSTANT_TENSOR
        names = [str(s.target) for s in self._signature.input_specs if s.kind is of_kind]
        self._constants = [program.constants[name] for name in names]
        derived = derived_of(program)
        self._derived = {n: derived[name] for n, name in enumerate(names) if name in derived}
        args, kwargs = program.example_inputs or ((), {})
        self._form = CallForm(twin.forward, args, kwargs)
        self._expected = [_expected(leaf) for leaf in pytree.tree_leaves((args, kwargs))]
        assert program.call_spec.out_spec is not None
        self._out_spec = program.call_spec.out_spec
        self._returned = _returned(self._module, self._signature)
        written = (spec.kind for spec in self._signature.output_specs)
        self._writes_inputs = OutputKind.USER_INPUT_MUTATION in written
        self._bind(twin)
        self._weight_metas = [_meta(slot.get()) for slot in self._slots]
        self._dtypes = [meta.dtype for meta in self._weight_metas]

    @property
    def code(self) -> str:
        return str(self._module.code)

    def on(self, twin: nn.Module) -> BoundProgram:
        """The same program on the weights of another copy of the module."""
        other = copy.copy(self)
        other._constants = [value.clone() for value in self._constants]
        other._bind(twin)
        return other

    def leaves(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any] | None:
        """The call's leaves in the program's order, or None when a guard does not hold."""
        leaves = self._form.leaves(args, kwargs)
        if leaves is None or self._refused_leaf(leaves) or self._refused_state():
            return None
        return leaves

    def refusal(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """The guard that does not hold, in words."""
        leaves = self._form.leaves(args, kwargs)
        if leaves is None:
            return _OTHER_CALL
        return self._refused_leaf(leaves) or self._refused_state()

    def run(self, leaves: Sequence[Any]) -> Any:
        """One forward; the guards must have been asked. Writes to the buffers and inputs that the
        forward mutates.
        """
        weights = [slot.owner[slot.key] for slot in self._slots]
        for position, value in self._kept.renewed(weights).items():
            self._constants[position] = value
        with torch._C._AutoDispatchBelowAutograd():
            values = self._module(*weights, *self._constants, *leaves)
            if self._targets or self._constants:
                values = self._kept_apart(values, leaves)
        return pytree.tree_unflatten(values, self._out_spec)

    def apply(self, fn: Callable[[Tensor], Tensor]) -> None:
        """Move the program's own constants along with the module."""
        self._constants = [fn(value) for value in self._constants]

    @property
    def extra_weight_bytes(self) -> int:
        """What folded and packed weights take beside the module's own."""
        held = (self._constants[position] for position in self._derived)
        return sum(tensor.numel() * tensor.element_size() for tensor in held)

    def _bind(self, twin: nn.Module) -> None:
        kinds = (InputKind.PARAMETER, InputKind.BUFFER)
        names = [str(s.target) for s in self._signature.input_specs if s.kind in kinds]
        self._slots = [_slot(twin, name) for name in names]
        self._tree = _tree(twin, names)
        self._ties = _ties(twin, self._slots)
        self._targets = _targets(twin, self._signature)
        self._kept = Kept(self._derived, names)
        self._seen: list[Tensor] = []

    def _refused_leaf(self, leaves: Sequence[Any]) -> str:
        if len(leaves) != len(self._expected):
            return _OTHER_CALL
        grad = torch.is_grad_enabled()
        for leaf, expected in zip(leaves, self._expected, strict=True):
            if not isinstance(expected, _Meta):
                if not same_constant(leaf, expected):
                    return f"an argument is {_describe(leaf)}, captured was {expected!r}"
            elif type(leaf) not in _PLAIN or not expected.fits(leaf):
                return f"an input is {_describe(leaf)}, captured was {_describe(expected)}"
            elif grad and leaf.requires_grad:
                return "an input requires grad"
        if self._writes_inputs and _share_memory(leaves):
            return "inputs share memory, and the forward writes to one"
        return ""

    def _refused_state(self) -> str:
        """What has changed around the call since the capture. Runs at every call: about 10 us for
        a hundred weights."""
        device = self._device
        if torch.is_autocast_enabled(device.type):
            return "autocast is on, the program was captured without"
        if device.type == "cuda" and torch.cuda.current_device() != device.index:
            return f"the current CUDA device is not {device}, where the model lies"
        if not all(modules.get(key) is child for modules, key, child in self._tree):
            return "a submodule has been replaced"
        if not all(one.get() is other.get() for one, other in self._ties):
            return "weights that were tied are tied no more"
        weights = [slot.get() for slot in self._slots]
        if self._as_seen(weights):
            return ""
        for slot, weight, meta in zip(self._slots, weights, self._weight_metas, strict=True):
            if type(weight) not in _PLAIN or not meta.fits(weight):
                return f"'{slot.name}' is {_describe(weight)}, captured was {_describe(meta)}"
        self._seen = weights
        return ""

    def _as_seen(self, weights: list[Any]) -> bool:
        """The same objects, of the captured dtype: `.half()` changes a parameter in place, and
        may be called on a part of the module. `.to` of a device: the first one tells."""
        if len(weights) != len(self._seen) or not all(map(_is, weights, self._seen)):
            return False
        if [weight.dtype for weight in weights] != self._dtypes:
            return False
        return not weights or weights[0].device == self._weight_metas[0].device

    @property
    def _device(self) -> torch.device:
        metas = (*self._weight_metas[:1], *(m for m in self._expected if isinstance(m, _Meta)))
        return metas[0].device if metas else torch.device("cpu")

    def _kept_apart(self, values: Sequence[Any], leaves: Sequence[Any]) -> list[Any]:
        """The user's outputs, once the mutations are written. No value may share memory with what
        is about to be written, and no output with the program's constants.
        """
        targets = [find(leaves) for find in self._targets]
        taken = {t.untyped_storage().data_ptr() for t in (*targets, *self._constants)}
        apart = [_apart(value, taken) for value in values]
        for target, written in zip(targets, apart, strict=False):
            target.copy_(written)
        results = apart[len(targets) :]
        for position, mutation in self._returned.items():
            results[position] = targets[mutation]
        return results


def _apart(value: Any, taken: set[int]) -> Any:
    if isinstance(value, Tensor) and value.untyped_storage().data_ptr() in taken:
        return value.clone()
    return value


def _share_memory(leaves: Sequence[Any]) -> bool:
    storages = [x.untyped_storage().data_ptr() for x in leaves if isinstance(x, Tensor)]
    return len(set(storages)) < len(storages)


def _is(a: object, b: object) -> bool:
    return a is b


def _meta(tensor: Tensor) -> _Meta:
    return _Meta(tensor.shape, tensor.dtype, tensor.device, tensor.stride())


def _expected(leaf: Any) -> Any:
    return _meta(leaf) if isinstance(leaf, Tensor) else leaf


def _describe(value: Any) -> str:
    if isinstance(value, Tensor):
        if type(value) not in _PLAIN or value.layout is not torch.strided:
            return f"a {type(value).__name__} of layout {str(value.layout).removeprefix('torch.')}"
        value = _meta(value)
    if not isinstance(value, _Meta):
        return repr(value)
    dtype = str(value.dtype).removeprefix("torch.")
    return f"{dtype}{list(value.shape)} on {value.device} with strides {value.stride}"


def _require_order(signature: ExportGraphSignature) -> None:
    """Weights, then constants, then inputs, and mutations before the user's outputs: the order
    that `run` relies on.
    """
    order = {InputKind.PARAMETER: 0, InputKind.BUFFER: 0, InputKind.CONSTANT_TENSOR: 1}
    ranks = [order.get(spec.kind, 2) for spec in signature.input_specs]
    assert ranks == sorted(ranks), "weights, constants and inputs must come in this order"
    users = [spec.kind is OutputKind.USER_OUTPUT for spec in signature.output_specs]
    assert users == sorted(users), "mutations must come before the user's outputs"


def _slot(twin: nn.Module, name: str) -> _Slot:
    path, _, key = name.rpartition(".")
    owner = twin.get_submodule(path)
    return _Slot(owner._parameters if key in owner._parameters else owner._buffers, key, name)


def _tree(twin: nn.Module, weights: Sequence[str]) -> list[tuple[dict[str, Any], str, nn.Module]]:
    """The steps from the root to every owner of a weight: (children, key, child)."""
    steps: dict[str, tuple[dict[str, Any], str, nn.Module]] = {}
    for name in weights:
        path, module = "", twin
        for key in name.split(".")[:-1]:
            path = f"{path}.{key}"
            child = module.get_submodule(key)
            steps[path] = (module._modules, key, child)
            module = child
    return list(steps.values())


def _ties(twin: nn.Module, slots: Sequence[_Slot]) -> list[tuple[_Slot, _Slot]]:
    """Weights known under a second name: the program reads one of the two."""
    read = {id(slot.get()): slot for slot in slots}
    names = [
        *(name for name, _ in twin.named_parameters(remove_duplicate=False)),
        *(name for name, _ in twin.named_buffers(remove_duplicate=False)),
    ]
    others = (_slot(twin, name) for name in names)
    pairs = ((read.get(id(slot.get())), slot) for slot in others)
    return [
        (one, other)
        for one, other in pairs
        if one is not None and (one.owner is not other.owner or one.key != other.key)
    ]


def _targets(
    twin: nn.Module, signature: ExportGraphSignature
) -> list[Callable[[Sequence[Any]], Tensor]]:
    """For each mutation in order, how to find the tensor that it writes to."""
    inputs = [s for s in signature.input_specs if s.kind is InputKind.USER_INPUT]
    names = [getattr(spec.arg, "name", None) for spec in inputs]
    targets: list[Callable[[Sequence[Any]], Tensor]] = []
    for spec in signature.output_specs:
        if spec.kind is OutputKind.USER_INPUT_MUTATION:
            targets.append(_input(names.index(str(spec.target))))
        elif spec.kind is not OutputKind.USER_OUTPUT:
            targets.append(_weight(_slot(twin, str(spec.target))))
    return targets


def _input(position: int) -> Callable[[Sequence[Any]], Tensor]:
    def find(leaves: Sequence[Any]) -> Tensor:
        leaf: Tensor = leaves[position]
        return leaf

    return find


def _weight(slot: _Slot) -> Callable[[Sequence[Any]], Tensor]:
    def find(_: Sequence[Any]) -> Tensor:
        weight: Tensor = slot.get()
        return weight

    return find


def _returned(module: torch.fx.GraphModule, signature: ExportGraphSignature) -> dict[int, int]:
    """Which of the user's outputs is a mutated tensor itself, as in `return x.add_(1)`: the
    positions of output and mutation.
    """
    (values,) = next(n for n in reversed(module.graph.nodes) if n.op == "output").args
    kinds = [spec.kind for spec in signature.output_specs]
    count = sum(kind is not OutputKind.USER_OUTPUT for kind in kinds)
    written = {value: position for position, value in enumerate(values[:count])}
    outputs = enumerate(values[count:])
    return {
        position: written[value]
        for position, value in outputs
        if isinstance(value, torch.fx.Node) and value in written
    }
