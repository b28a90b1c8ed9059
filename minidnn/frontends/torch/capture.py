"""Capturing a module: what it computes, as one program of ATen operations.

``torch.export`` runs the module's own Python on tensors without data.  What cannot be captured
is narrowed down to single modules, which become opaque operations (:mod:`.opaque`).
"""

from __future__ import annotations

import contextlib
import io
import operator
import sys
import threading
import warnings
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree

from minidnn.errors import UnsupportedError
from minidnn.frontends.torch.arguments import changed_in_calls
from minidnn.frontends.torch.aten.call import key_of
from minidnn.frontends.torch.constants import constants, made_of_nothing
from minidnn.frontends.torch.convert import label_of
from minidnn.frontends.torch.inplace import without_dropout, without_writes
from minidnn.frontends.torch.memory import VIEWED, share_results, unsaid_views
from minidnn.frontends.torch.nested import no_nested
from minidnn.frontends.torch.opaque import (
    NotOneOperation,
    OpaqueCall,
    OpaqueCalls,
    culprit,
    is_opaque,
)
from minidnn.frontends.torch.replica import replica
from minidnn.frontends.torch.scripted import check_scripted, scripted_within
from minidnn.frontends.torch.state import computed_weights, observed, unchanged

#: Held by the thread that captures: PyTorch keeps what it does meanwhile where all threads see it.
#: Whoever makes programs holds it all along, so that nobody waits for it who is waited for.
CAPTURING = threading.RLock()

#: Operations that check what a program's key says already.
_CHECKS = ("_assert_tensor_metadata.default",)


_MUTATIONS = {
    OutputKind[kind]
    for kind in ("USER_INPUT_MUTATION", "BUFFER_MUTATION", "PARAMETER_MUTATION")
    if kind in OutputKind.__members__
}


class NotCapturable(UnsupportedError):
    """A module whose own code cannot be captured; what is below it may be.

    Attributes:
        reason: why not.
    """

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(
            f"{name} cannot be captured: {reason}; "
            'torch.compile(model, backend="minidnn") splits a network at such places'
        )
        self.reason = reason


@dataclass(frozen=True)
class Held:
    """A tensor that a module holds under a name, as it is now: ``holder[key]``."""

    holder: Any
    key: Any
    name: str

    @property
    def tensor(self) -> Any:
        return self.holder[self.key]


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
) -> Captured:
    """Captures what a module computes for arguments of these sizes.

    held_leaves: leaves of the arguments, by place, that are weights.

    Several threads may ask at once, and others call the module meanwhile.

    UnsupportedError if that cannot be had, with what PyTorch says.
    """
    with CAPTURING:
        return _capture(root, args, kwargs, held_leaves)


def _capture(
    root: nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
    held_leaves: Mapping[int, Held] | None,
) -> Captured:
    check_scripted(root)
    export = _Export(root, tuple(args), dict(kwargs or {}))
    program = export.program()
    notes = []
    while (reason := without_writes(program.graph)) is not None:
        opaque = next((call for call in export.opaque.calls if call.views is not None), None)
        if opaque is None:
            notes.append(f"writes in place were removed by PyTorch: {reason}")
            program = export.functional()
            break
        # PyTorch, which can remove writes, does not know whose memory such a call gives.
        export.widen(opaque.path, f"it gives memory that it was given, and {reason}")
        program = export.program()
    captured = _captured(root, program, held_leaves or {})
    captured.opaque, captured.reasons = export.opaque.calls, export.opaque.reasons
    captured.notes = notes
    return captured


class _Export:
    """What PyTorch exports of a module, once those modules in it are opaque that must be.

    Attributes:
        opaque: the calls of those.
    """

    def __init__(self, root: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.opaque = OpaqueCalls(scripted_within(root))
        self._root = root
        #: What PyTorch is given: others may call the module itself meanwhile.
        self._subject = replica(root)
        self._args = args
        self._kwargs = kwargs
        #: Why modules that cannot be captured cannot be called as one operation either.
        self._unfit: dict[str, str] = {}
        #: Which modules write to attributes, by their paths, and to which: in the last capture,
        #: and in all.
        self._changed: dict[str, dict[str, None]] = {}
        self._kept: dict[str, dict[str, None]] = {}
        self._changes_arguments = False

    def program(self) -> Any:
        while True:
            try:
                if self.opaque.reasons:  # a mistake of the caller's comes to light here
                    self._record()
            except NotOneOperation as error:
                self.widen(error.path, error.reason)
                continue
            try:
                program = self._exported()
            except Exception as error:  # whatever a module's own Python does
                path = culprit(error, self._subject)
                if self._changed and (path is None or path in self.opaque.reasons):
                    self._keep_state()
                    continue
                if path is not None and (name := self._read(error, path)) is not None:
                    self._is_stateful(path, name, "read")
                    continue
                said = _said(error)
                if path in self._unfit:
                    raise self._refusal(self._unfit[path]) from error
                is_ours = isinstance(error, UnsupportedError)
                if path is None and self._subject is not self._root and not is_ours:
                    self._subject = self._root  # it may refer to itself where a replica cannot
                    continue
                if path is None or path in self.opaque.reasons:
                    self._run()  # such a mistake does here, too
                    raise self._refusal(said) from error
                self.opaque = OpaqueCalls({**self.opaque.reasons, path: said})
            else:
                if self._subject is not self._root and _is_entangled(self._root, program):
                    self._subject = self._root
                elif self._changed:
                    self._keep_state()
                elif self._changes_arguments:
                    raise self._refusal("it changes a list or dict that it is given")
                else:
                    return program

    def _run(self) -> None:
        """Runs the module, on copies: that it ran must not be seen."""
        args, kwargs = self._copies()
        subject = replica(self._root, with_buffers=True)
        with unchanged(subject), torch.no_grad():
            subject(*args, **kwargs)

    def _record(self) -> None:
        """Has the opaque calls recorded, on copies: that it ran must not be seen."""
        args, kwargs = self._copies()
        subject = self._subject
        if subject is not self._root:
            subject = replica(self._root, with_buffers=True)
        with unchanged(subject):
            self.opaque.record(subject, args, kwargs, self._root)

    def _copies(self) -> Any:
        """The arguments, each in memory of its own."""
        with torch.no_grad():
            return pytree.tree_map_only(torch.Tensor, torch.clone, (self._args, self._kwargs))

    def functional(self) -> Any:
        """A program without writes in place, which PyTorch removes."""
        # It knows no arguments that share memory; who runs the program looks for such.
        self._args, self._kwargs = self._copies()
        program = self.program()
        without_dropout(program.graph)  # it gives its operand, which PyTorch does not see here
        program.graph_module.recompile()
        try:
            with self.opaque.standing_in(self._subject), warnings.catch_warnings():
                warnings.simplefilter("ignore", FutureWarning)  # PyTorch's own, of its pytrees
                return program.run_decompositions(_decompositions(program.graph))
        except Exception as error:  # assertions, among others
            raise self._refusal(f"its writes in place are not removed: {_said(error)}") from error

    def widen(self, path: str, reason: str) -> None:
        """The module around an opaque one is opaque in its place."""
        reasons = dict(self.opaque.reasons)
        said = (
            f"its module {path!r} cannot be captured ({reasons.pop(path)}), nor be called as one "
            f"operation: {reason}"
        )
        self._unfit[path] = said
        around = path.rpartition(".")[0]
        while around and type(self._root.get_submodule(around)).forward is nn.Module.forward:
            around = around.rpartition(".")[0]  # a list of modules, which is not called
        if not around or around in self._unfit:
            raise self._refusal(said)
        kept = {each: why for each, why in reasons.items() if not each.startswith(f"{around}.")}
        self.opaque = OpaqueCalls({**kept, around: said})

    def _keep_state(self) -> None:
        """Those modules are opaque whose attributes change when they are called; but not yet for
        computed weights: whether these are read before they are computed is still to be seen."""
        for path, names in self._changed.items():
            self._kept.setdefault(path, {}).update(names)
            computed = computed_weights(self._root.get_submodule(path))
            if (name := next((name for name in names if name not in computed), None)) is not None:
                self._is_stateful(path, name, "written to")

    def _is_stateful(self, path: str, name: str, used: str) -> None:
        """A module is opaque that keeps state in an attribute; if it is, that is used outside."""
        said = f"it keeps state: its attribute {name!r} changes when it is called"
        while path in self._unfit:
            path = path.rpartition(".")[0]
        if not path:
            raise self._refusal(said)
        if path in self.opaque.reasons:
            self.widen(path, f"attribute {name!r} is {used} from outside")
        else:
            self.opaque = OpaqueCalls({**self.opaque.reasons, path: said})

    def _read(self, error: Exception, path: str) -> str | None:
        """The attribute that a module keeps state in, and that is not there to be read."""
        name = error.name if isinstance(error, AttributeError) else None
        return name if name in self._kept.get(path, {}) else None

    def _exported(self) -> Any:
        printed = io.StringIO()  # where it fails, PyTorch prints what it had of the program
        with (
            torch.no_grad(),
            changed_in_calls(self._subject) as has_changed,
            observed(self._subject, self._kept) as self._changed,
            no_nested(self._subject),
            self.opaque.standing_in(self._subject),
            contextlib.redirect_stderr(printed),
        ):
            program = torch.export.export(self._subject, self._args, self._kwargs, strict=False)
        sys.stderr.write(printed.getvalue())
        self._changes_arguments = has_changed()
        for node in filter(is_opaque, program.graph.nodes):
            operands, index = node.args
            if (views := self.opaque.calls[index].views) is not None:
                node.meta[VIEWED] = operands[views]
        return program

    def _refusal(self, reason: str) -> UnsupportedError:
        return NotCapturable(type(self._root).__name__, reason)


def _decompositions(graph: torch.fx.Graph) -> dict[Any, Any]:
    """Of operations which PyTorch would else take for such that give memory of their own."""
    if not (unsaid := unsaid_views(graph)):
        return {}
    known = torch.export.default_decompositions()
    return {operation: known[operation] for operation in unsaid if operation in known}


def _said(error: Exception) -> str:
    """The kind of an error and the first line of its message, if it has one; of one that is
    raised to say why something is not captured, the message."""
    first, *_ = str(error).strip().splitlines() or [""]
    kind = type(error).__name__
    if isinstance(error, UnsupportedError):
        return first
    return f"{kind}: {first:.200}" if first else kind


def _is_entangled(root: nn.Module, program: Any) -> bool:
    """Whether a program of a replica has weights of the module itself among its constants, where
    they are no weights: some function in the module keeps the module."""
    own = set(map(_memory, (*root.parameters(), *root.buffers())))
    specs = program.graph_signature.input_specs
    found = [s.target for s in specs if s.kind is InputKind.CONSTANT_TENSOR]
    return not own.isdisjoint({*map(_memory, map(program.constants.get, found))} - {None})


def _memory(tensor: Any) -> int | None:
    """Where a tensor's storage begins, if it is a plain one that has any."""
    if type(tensor) not in (torch.Tensor, nn.Parameter) or tensor.layout is not torch.strided:
        return None
    return tensor.untyped_storage().data_ptr() or None


def _captured(root: nn.Module, program: Any, held_leaves: Mapping[int, Held]) -> Captured:
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
        constants(graph, held),
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
