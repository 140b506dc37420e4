"""A captured program on a module's weights: where they live, and one run that writes what the
forward mutates.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import is_
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import ExportGraphSignature, InputKind, OutputKind
from torch.utils import _pytree as pytree

from fusion_kernels.library import is_kernel
from planner.fusion.call import CallForm, signature_of
from planner.fusion.derived import Kept
from planner.fusion.direct import with_direct_launches
from planner.fusion.expected import Expected, expected
from planner.graph.autocast import autocast_of
from planner.passes.derived import derived_of

if TYPE_CHECKING:
    from typing_extensions import Self

OTHER_CALL = "the call has other arguments than the captured one"


@dataclass(frozen=True, slots=True)
class Slot:
    """Where a weight lives: its owner's dictionary and its key there, so that a replaced weight is
    seen. `name` is its full name.
    """

    owner: dict[str, Any]
    key: str
    name: str

    def get(self) -> Any:
        return self.owner.get(self.key)


class RunnableProgram:
    """A program's graph with its weights' places and the structure of its inputs and outputs.

    It checks nothing: what a call must be is the business of the classes that derive from it.
    """

    def __init__(self, twin: nn.Module, program: ExportedProgram) -> None:
        self.has_kernels = any(is_kernel(node.target) for node in program.graph.nodes)
        self._module = with_direct_launches(program.graph_module)
        self._signature = program.graph_signature
        self._autocast = autocast_of(program)
        _require_order(self._signature)
        of_kind = InputKind.CONSTANT_TENSOR
        names = [str(s.target) for s in self._signature.input_specs if s.kind is of_kind]
        self._constants = [program.constants[name] for name in names]
        derived = derived_of(program)
        self._derived = {n: derived[name] for n, name in enumerate(names) if name in derived}
        args, kwargs = program.example_inputs or ((), {})
        self._form = CallForm(signature_of(twin), args, kwargs)
        leaves = pytree.tree_leaves((args, kwargs))
        self._expected = [expected(x) if isinstance(x, Tensor) else x for x in leaves]
        assert program.call_spec.out_spec is not None
        self._out_spec = program.call_spec.out_spec
        self._returned = _returned(self._module, self._signature)
        written = (spec.kind for spec in self._signature.output_specs)
        self._writes_inputs = OutputKind.USER_INPUT_MUTATION in written
        self._bind(twin)
        self._weight_metas = [expected(slot.get()) for slot in self._slots]

    @property
    def code(self) -> str:
        return str(self._module.code)

    def on(self, twin: nn.Module) -> Self:
        """The same program on the weights of another copy of the module."""
        other = copy.copy(self)
        other._constants = [value.clone() for value in self._constants]
        other._bind(twin)
        return other

    def run(self, leaves: Sequence[Any]) -> Any:
        """One forward; the leaves must have been checked. Writes to the buffers and inputs that
        the forward mutates.
        """
        return pytree.tree_unflatten(self._values(leaves), self._out_spec)

    def apply(self, fn: Callable[[Tensor], Tensor]) -> None:
        """Move the program's own constants to the device that `fn` moves the module to. Their
        dtypes and values stay: they are no weights, which alone `.half()` or `.to_empty()` change.
        """
        self._constants = [_moved(value, fn) for value in self._constants]

    @property
    def extra_weight_bytes(self) -> int:
        """What folded and packed weights take beside the module's own."""
        held = (self._constants[position] for position in self._derived)
        return sum(tensor.numel() * tensor.element_size() for tensor in held)

    def _values(self, leaves: Sequence[Any]) -> Sequence[Any]:
        weights = [slot.owner[slot.key] for slot in self._slots]
        for position, value in self._kept.renewed(weights).items():
            self._constants[position] = value
        values: Sequence[Any] = self._graph(leaves)(*weights, *self._constants, *leaves)
        if self._targets or self._constants:
            values = self._kept_apart(values, leaves)
        return values

    def _graph(self, leaves: Sequence[Any]) -> fx.GraphModule:  # noqa: ARG002
        return self._module

    def _bind(self, twin: nn.Module) -> None:
        kinds = (InputKind.PARAMETER, InputKind.BUFFER)
        names = [str(s.target) for s in self._signature.input_specs if s.kind in kinds]
        self._slots = [_slot(twin, name) for name in names]
        self._branches = [part._modules for part in twin.modules()]
        self._children = [child for branch in self._branches for child in branch.values()]
        self._ties = _ties(twin, self._slots)
        self._targets = _targets(twin, self._signature)
        self._kept = Kept(self._derived, names)

    def _refused_structure(self) -> str:
        """Why the module is not the tree that the program was captured from; "" when it is."""
        children = list(chain.from_iterable(map(dict.values, self._branches)))
        if len(children) != len(self._children) or not all(map(is_, children, self._children)):
            return "a submodule has been replaced, added or removed"
        if not all(one.get() is other.get() for one, other in self._ties):
            return "weights that were tied are tied no more"
        return ""

    def _refused_sharing(self, leaves: Sequence[Any]) -> str:
        if self._writes_inputs and _share_memory(leaves):
            return "inputs share memory, and the forward writes to one"
        return ""

    @property
    def _device(self) -> torch.device:
        """Where the program was captured."""
        metas = (*self._weight_metas[:1], *(m for m in self._expected if isinstance(m, Expected)))
        return metas[0].device if metas else torch.device("cpu")

    def _kept_apart(self, values: Sequence[Any], leaves: Sequence[Any]) -> list[Any]:
        """The user's outputs, once the mutations are written. No value may share memory with what
        is about to be written, and no output with the program's constants; strides, and what
        outputs share with one another, stay.
        """
        targets = [find(leaves) for find in self._targets]
        taken = {t.untyped_storage().data_ptr() for t in (*targets, *self._constants)}
        apart = _apart(values, taken)
        for target, written in zip(targets, apart, strict=False):
            target.copy_(written)
        results = apart[len(targets) :]
        for position, mutation in self._returned.items():
            results[position] = targets[mutation]
        return results


def _moved(value: Tensor, fn: Callable[[Tensor], Tensor]) -> Tensor:
    device = fn(value.new_empty(0)).device
    # On the meta device there are no values to come back with.
    return value if device.type == "meta" else value.to(device)


def _apart(values: Sequence[Any], taken: set[int]) -> list[Any]:
    """The values; those in a taken storage as views of one copy of what they cover of it."""
    apart = list(values)
    shared: dict[Any, list[int]] = {}
    for position, value in enumerate(values):
        if isinstance(value, Tensor) and value.untyped_storage().data_ptr() in taken:
            place = value.untyped_storage().data_ptr()
            kind = (place, value.dtype, value.is_conj(), value.is_neg())
            shared.setdefault(kind, []).append(position)
    for positions in shared.values():
        views = [values[position] for position in positions]
        for position, own in zip(positions, _copied(views), strict=True):
            apart[position] = own
    return apart


def _copied(views: Sequence[Tensor]) -> list[Tensor]:
    """Views of one storage on a copy of the part that they cover together. A tensor that is there
    twice is one in the result too.
    """
    start = min(view.storage_offset() for view in views)
    end = max(view.storage_offset() + _span(view) for view in views)
    copied = views[0].as_strided((end - start,), (1,), start).clone()
    own: dict[int, Tensor] = {}
    for view in views:
        if id(view) not in own:
            offset = view.storage_offset() - start
            own[id(view)] = copied.as_strided(view.shape, view.stride(), offset)
    return [own[id(view)] for view in views]


def _span(view: Tensor) -> int:
    """Elements from the first to the last that the view reads."""
    if not view.numel():
        return 0
    return 1 + sum((n - 1) * step for n, step in zip(view.shape, view.stride(), strict=True))


def _share_memory(leaves: Sequence[Any]) -> bool:
    storages = [x.untyped_storage().data_ptr() for x in leaves if isinstance(x, Tensor)]
    return len(set(storages)) < len(storages)


def _require_order(signature: ExportGraphSignature) -> None:
    """Weights, then constants, then inputs, and mutations before the user's outputs: the order
    that `run` relies on.
    """
    order = {InputKind.PARAMETER: 0, InputKind.BUFFER: 0, InputKind.CONSTANT_TENSOR: 1}
    ranks = [order.get(spec.kind, 2) for spec in signature.input_specs]
    assert ranks == sorted(ranks), "weights, constants and inputs must come in this order"
    users = [spec.kind is OutputKind.USER_OUTPUT for spec in signature.output_specs]
    assert users == sorted(users), "mutations must come before the user's outputs"


def _slot(twin: nn.Module, name: str) -> Slot:
    path, _, key = name.rpartition(".")
    owner = twin.get_submodule(path)
    return Slot(owner._parameters if key in owner._parameters else owner._buffers, key, name)


def _ties(twin: nn.Module, slots: Sequence[Slot]) -> list[tuple[Slot, Slot]]:
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


def _weight(slot: Slot) -> Callable[[Sequence[Any]], Tensor]:
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
