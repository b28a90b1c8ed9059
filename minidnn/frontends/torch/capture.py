"""Capturing a module: what it computes, as one program of ATen operations.

``torch.export`` runs the module's own Python on tensors without data.  What cannot be captured
is narrowed down to single modules, which become opaque operations (:mod:`.opaque`).
"""

from __future__ import annotations

import contextvars
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx import GraphModule, Node

from minidnn._forks import ForkLock
from minidnn.errors import UnsupportedError
from minidnn.frontends.torch.aten.call import key_of
from minidnn.frontends.torch.constants import constants, made_of_nothing
from minidnn.frontends.torch.convert import label_of
from minidnn.frontends.torch.export import Export, NotCapturable
from minidnn.frontends.torch.inplace import without_writes
from minidnn.frontends.torch.memory import share_results
from minidnn.frontends.torch.opaque import OpaqueCall, is_opaque
from minidnn.frontends.torch.scripted import check_scripted
from minidnn.frontends.torch.unseen import NOTHING, Changing

__all__ = ["CAPTURING", "Captured", "Held", "NotCapturable", "capture", "reader_of"]

#: Held by the thread that captures: PyTorch keeps what it does meanwhile where all threads see it.
#: Whoever makes programs holds it all along, so that nobody waits for it who is waited for.
CAPTURING = ForkLock(reentrant=True)

#: Operations that check what a program's key says already.
_CHECKS = ("_assert_tensor_metadata.default",)


_MUTATIONS = {
    OutputKind[kind]
    for kind in ("USER_INPUT_MUTATION", "BUFFER_MUTATION", "PARAMETER_MUTATION")
    if kind in OutputKind.__members__
}


@dataclass(frozen=True)
class Held:
    """A tensor that a module holds under a name, as it is now: ``holder[key]``."""

    holder: Any
    key: Any
    name: str

    @property
    def tensor(self) -> Any:
        return self.holder[self.key]


def reader_of(held: Iterable[Held]) -> Callable[[], Iterator[Any]]:
    """What gives these tensors as they are whenever it is called."""
    every = list(held)
    return partial(
        map, operator.getitem, [each.holder for each in every], [each.key for each in every]
    )


@dataclass
class Captured:
    """A captured program.

    Attributes:
        module: the operations, reading placeholders.
        held: placeholders that stand for tensors which the module holds.
        given: placeholders that stand for leaves of the arguments, with their places among them.
        constants: all nodes that are held, or computed of what is held alone or of nothing.
        writes: results (by place) that are written back to a placeholder's tensor after a run.
        arranged: how the results are arranged, for ``torch.utils._pytree``.
        opaque: the calls of modules that could not be captured, and why, by path.
        notes: what was done beyond a plain capture.
        untaped: placeholders that are written to where gradients are off.
    """

    module: GraphModule
    held: dict[Node, Held]
    given: dict[Node, int]
    constants: dict[Node, None]
    writes: list[tuple[int, Node]]
    arranged: Any
    opaque: list[OpaqueCall] = field(default_factory=list)
    reasons: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    untaped: frozenset[Node] = frozenset()

    @property
    def operations(self) -> list[Node]:
        """What is computed at run time, in order."""
        return [
            node
            for node in self.module.graph.nodes
            if node.op not in ("placeholder", "get_attr", "output") and node not in self.constants
        ]

    def opaque_call(self, node: Node) -> OpaqueCall:
        """What an opaque operation calls."""
        index: Any = node.args[1]
        return self.opaque[int(index)]

    def label(self, node: Node) -> str:
        """An operation's name, for messages: the path of its module, if that has one."""
        return self.opaque_call(node).path if is_opaque(node) else label_of(node)

    def why_opaque(self, node: Node) -> str | None:
        """Why an operation is opaque, or None if it is not."""
        return self.reasons[self.opaque_call(node).path] if is_opaque(node) else None

    def unknown(self, node: Node, reason: str) -> str:
        """What is said of an operation that is not known for this reason."""
        why = self.why_opaque(node)
        said = f"{key_of(node)}: {reason}" if why is None else f"it cannot be captured: {why}"
        return f"{self.label(node)}: {said}"

    def tensor(self, node: Node) -> Any:
        """A constant's tensor as it is now."""
        if node in self.held:
            return self.held[node].tensor
        if node.op == "get_attr":
            return operator.attrgetter(str(node.target))(self.module)
        with torch.no_grad():
            arguments = torch.fx.map_arg((node.args, node.kwargs), self.tensor)
            function: Any = node.target
            return function(*arguments[0], **arguments[1])


def capture(
    root: nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    held_leaves: Mapping[int, Held] | None = None,
    runs_hooks: bool = False,
    changing: Changing = NOTHING,
    trained: bool = False,
) -> Captured:
    """Captures what a module computes for arguments of these sizes.

    held_leaves: leaves of the arguments, by place, that are weights.
    runs_hooks: whether the caller runs the module's own hooks around the program.
    changing: what a network changes that the module is in.
    trained: whether the module is trained: weights are given to every run, and writes to what the
        module holds or is given stay in their place.

    Several threads may ask at once, and others call the module meanwhile.

    UnsupportedError if that cannot be had, with what PyTorch says.
    """
    with CAPTURING:
        own = contextvars.copy_context()  # so that nothing is set in the caller's
        return own.run(_capture, root, args, kwargs, held_leaves, runs_hooks, changing, trained)


def _capture(
    root: nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
    held_leaves: Mapping[int, Held] | None,
    runs_hooks: bool,
    changing: Changing,
    trained: bool,
) -> Captured:
    check_scripted(root)
    export = Export(root, tuple(args), dict(kwargs or {}), runs_hooks, changing, trained)
    program = export.program()
    notes = []
    while (reason := without_writes(program.graph, _written_to(program, trained))) is not None:
        opaque = next((call for call in export.opaque.calls if call.views is not None), None)
        if opaque is None and trained:
            raise NotCapturable(type(root).__name__, reason)
        if opaque is None:
            notes.append(f"writes in place were removed by PyTorch: {reason}")
            program = export.functional()
            break
        # PyTorch, which can remove writes, does not know whose memory such a call gives.
        export.widen(opaque.path, f"it gives memory that it was given, and {reason}")
        program = export.program()
    captured = _captured(root, program, held_leaves or {}, trained)
    captured.opaque, captured.reasons = export.opaque.calls, export.opaque.reasons
    captured.notes = notes
    return captured


def _written_to(program: Any, trained: bool) -> set[Node]:
    """The placeholders of tensors that are written to in their place: by a module that is trained,
    what it holds or is given."""
    if not trained:
        return set()
    specs = program.graph_signature.input_specs
    kinds = (InputKind.BUFFER, InputKind.PARAMETER, InputKind.USER_INPUT)
    names = {spec.arg.name for spec in specs if spec.kind in kinds}
    return {node for node in program.graph.nodes if node.op == "placeholder" and node.name in names}


def _captured(
    root: nn.Module, program: Any, held_leaves: Mapping[int, Held], trained: bool
) -> Captured:
    graph, signature = program.graph, program.graph_signature
    held: dict[Node, Held] = {}
    given: dict[Node, int] = {}
    by_name = {node.name: node for node in graph.nodes if node.op == "placeholder"}
    for spec in signature.input_specs:
        node = by_name[spec.arg.name]
        if spec.kind is InputKind.USER_INPUT:
            place = len(given)
            given[node] = place
            if place in held_leaves:
                held[node] = held_leaves[place]
        elif spec.kind in (InputKind.PARAMETER, InputKind.BUFFER):
            held[node] = _held(root, spec.target)
        elif spec.kind is InputKind.CONSTANT_TENSOR:
            held[node] = Held(program.constants, spec.target, spec.target)
        else:
            raise UnsupportedError(f"the program is given {spec.target!r} of kind {spec.kind}")
    writes = []
    for place, spec in enumerate(signature.output_specs):
        if spec.kind in _MUTATIONS:
            writes.append((place, _mutated(spec, signature, by_name)))
    share_results(graph, writes)
    _remove_checks(graph)
    made_of_nothing(graph)
    graph.eliminate_dead_code()
    for node, where in held.items():
        node.meta["minidnn_name"] = where.name
    _mark_leaves(root, graph)
    return Captured(
        program.graph_module,
        held,
        {node: place for node, place in given.items() if node not in held},
        constants(graph, () if trained else held),
        writes,
        program.call_spec.out_spec,
    )


def _held(root: nn.Module, name: str) -> Held:
    path, _, key = name.rpartition(".")
    owner = root.get_submodule(path)
    holder: MutableMapping[str, Any] = (
        owner._parameters if key in owner._parameters else owner._buffers
    )
    return Held(holder, key, name)


def _mutated(spec: Any, signature: Any, by_name: Mapping[str, Node]) -> Node:
    if spec.kind is OutputKind.USER_INPUT_MUTATION:
        return by_name[spec.target]
    return next(
        by_name[each.arg.name] for each in signature.input_specs if each.target == spec.target
    )


def _remove_checks(graph: torch.fx.Graph) -> None:
    for node in list(graph.nodes):
        if node.op == "call_function" and str(node.target).removeprefix("aten.") in _CHECKS:
            graph.erase_node(node)


def _mark_leaves(root: nn.Module, graph: torch.fx.Graph) -> None:
    """Notes at every node whether its module has no children."""
    leaves = {path for path, module in root.named_modules() if not any(module.children())}
    for node in graph.nodes:
        for entry in (node.meta.get("nn_module_stack") or {}).values():
            node.meta["minidnn_leaf"] = entry[0] in leaves
