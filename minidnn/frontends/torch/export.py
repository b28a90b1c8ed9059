"""Having PyTorch export a module, which is narrowed down to what PyTorch can capture.

Single modules in it become opaque operations (:mod:`.opaque`): those that cannot be captured, those
that keep state, and those whose code or hooks write to what the modules do not hold.  Whatever is
written meanwhile is put back.
"""

from __future__ import annotations

import contextlib
import io
import logging
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.export.graph_signature import InputKind

from minidnn._torch_internals import pytree, without_lines
from minidnn.errors import UnsupportedError
from minidnn.frontends.torch.arguments import changed_in_calls
from minidnn.frontends.torch.convert import path_of
from minidnn.frontends.torch.hooks import (
    beyond_computing,
    do_more,
    on_the_way_back,
    without_own_hooks,
)
from minidnn.frontends.torch.inplace import without_dropout, writing_to
from minidnn.frontends.torch.memory import VIEWED, unsaid_views
from minidnn.frontends.torch.nested import no_nested
from minidnn.frontends.torch.opaque import (
    NotOneOperation,
    OpaqueCalls,
    culprit,
    is_opaque,
)
from minidnn.frontends.torch.outside import (
    Outside,
    holds_fakes,
    is_within,
    nothing_kept,
    writers,
)
from minidnn.frontends.torch.reach import Place
from minidnn.frontends.torch.replica import holding, replica
from minidnn.frontends.torch.scripted import scripted_within
from minidnn.frontends.torch.state import computed_weights, observed
from minidnn.frontends.torch.taped import taped, unsaved
from minidnn.frontends.torch.unseen import Changing, unseen


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


class Export:
    """What PyTorch exports of a module, once those modules in it are opaque that must be.

    Attributes:
        opaque: the calls of those.
    """

    def __init__(
        self,
        root: nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        runs_hooks: bool,
        changing: Changing,
        trained: bool = False,
    ) -> None:
        """trained: whether gradients are to flow through what is exported."""
        backwards = on_the_way_back(root) if trained else {}
        self.opaque = OpaqueCalls({**beyond_computing(root), **backwards, **scripted_within(root)})
        self._root = root
        self._runs_hooks = runs_hooks
        if not runs_hooks and (said := do_more(root)) is not None:
            raise self._refusal(said)
        #: What PyTorch is given: others may call the module itself meanwhile.
        self._subject = replica(root)
        leaves = _as_leaves((args, kwargs)) if trained else (args, kwargs)
        self._args: tuple[Any, ...] = leaves[0]
        self._kwargs: dict[str, Any] = leaves[1]
        self._trained = trained
        #: Why modules that cannot be captured cannot be called as one operation either.
        self._unfit: dict[str, str] = {}
        #: Which modules write to attributes, by their paths, and to which: in the last capture,
        #: and in all.
        self._changed: dict[str, dict[str, None]] = {}
        self._kept: dict[str, dict[str, None]] = {}
        #: What the last capture wrote to beyond the modules.
        self._beyond: dict[Any, Place] = {}
        self._beyond_is_fake = False
        self._changes_arguments = False

        self._leave_readers(changing)

    def _leave_readers(self, changing: Changing) -> None:
        """Those modules are opaque whose code uses what the network around this one changes."""
        if not changing.places and not changing.attributes:
            return
        outside = Outside(self._root)
        for path, module in self._root.named_modules():
            if (names := changing.attributes.get(id(module))) is not None:
                self._kept.setdefault(path, {}).update(names)
        for path, name in outside.holders(changing.places):
            self._kept.setdefault(path, {})[name] = None
        for path, label in outside.readers(changing.places):
            if not is_within(path, self.opaque.reasons):
                self._leave(path, f"it uses {label}, which changes when the network is called")

    def program(self) -> Any:
        while True:
            try:
                if self.opaque.reasons:  # a mistake of the caller's comes to light here
                    while self._record():
                        pass
            except NotOneOperation as error:
                self.widen(error.path, error.reason)
                continue
            try:
                program = self._exported()
            except Exception as error:  # whatever a module's own Python does
                path = culprit(error, self._subject)
                if self._beyond and self._leave_writers():
                    continue
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
                    self._try()  # such a mistake does here, too
                    raise self._refusal(said) from error
                self.opaque = OpaqueCalls({**self.opaque.reasons, path: said})
            else:
                if self._subject is not self._root and _is_entangled(self._root, program):
                    self._subject = self._root
                elif self._beyond and self._leave_writers():
                    pass
                elif self._changed:
                    self._keep_state()
                elif self._changes_arguments:
                    raise self._refusal("it changes a list or dict that it is given")
                elif not self._leave_writers_in_place(program):
                    return program

    def _record(self) -> bool:
        """Has the opaque calls recorded.  Whether there are more of them now, as modules use what
        those write to."""

        def work(subject: nn.Module, outside: Outside) -> Any:
            args, kwargs = self._copies()
            with torch.set_grad_enabled(self._trained), unsaved():
                self.opaque.record(subject, args, kwargs, self._root)
            written = outside.changed()
            return list(outside.holders(written)), list(outside.readers(written))

        holders, readers = self._run(work)
        for path, name in holders:
            if not is_within(path, self.opaque.reasons):
                self._kept.setdefault(path, {})[name] = None
        found = [each for each in readers if not is_within(each[0], self.opaque.reasons)]
        for path, label in found:
            self._leave(path, f"it uses {label}, which changes when the network is called")
        return bool(found)

    def _leave_writers(self) -> bool:
        """Those modules are opaque that write to what they do not hold; whether there are any."""

        def work(subject: nn.Module, outside: Outside) -> dict[str, str]:
            args, kwargs = self._copies()
            places = [each for key, each in outside.places.items() if key in self._beyond]
            without = self.opaque.reasons
            with torch.set_grad_enabled(self._trained), unsaved():
                return writers(subject, places, without, lambda: subject(*args, **kwargs))

        found = self._run(work)
        for path, label in found.items():
            self._leave(path, f"it changes {label} when it is called")
        if not found and self._beyond_is_fake:
            label = next(iter(self._beyond.values())).label
            raise self._refusal(f"it changes {label}")
        return bool(found)

    def _leave_writers_in_place(self, program: Any) -> bool:
        """Those modules are opaque that write to tensors which the network does not hold; whether
        there are any."""
        specs = program.graph_signature.input_specs
        names = {each.arg.name for each in specs if each.kind is InputKind.CONSTANT_TENSOR}
        found = [path_of(node)[0] for node in writing_to(program.graph, names)]
        for path in dict.fromkeys(path.partition("@")[0] for path in found):
            said = "it changes a tensor that is no parameter or buffer when it is called"
            self._leave(path, said)
        return bool(found)

    def _try(self) -> None:
        """Runs the network, for the error that comes up."""

        def work(subject: nn.Module, _: Outside) -> None:
            args, kwargs = self._copies()
            with torch.set_grad_enabled(self._trained), unsaved():
                subject(*args, **kwargs)

        self._run(work)

    def _run(self, work: Callable[[nn.Module, Outside], Any]) -> Any:
        """What ``work`` gives, which runs the network, and what it may write to beyond its modules;
        that it ran must not be seen."""

        def bare(subject: nn.Module, outside: Outside) -> Any:
            with self._own_hooks(subject):
                return work(subject, outside)

        return unseen(self._root, bare, self._subject is not self._root)

    def _own_hooks(self, subject: nn.Module) -> Any:
        """Within, a network has none of the hooks that the caller runs."""
        own = without_own_hooks(subject) if self._runs_hooks else {}
        return holding(subject, **own)

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
        self._leave(path, said, f"attribute {name!r} is {used} from outside")

    def _leave(self, path: str, said: str, outside: str | None = None) -> None:
        """A module is opaque; if it is, the one around it, for what takes place ``outside``."""
        while path in self._unfit:
            path = path.rpartition(".")[0]
        if not path:
            raise self._refusal(said)
        if path in self.opaque.reasons:
            self.widen(path, outside or said)
        else:
            self.opaque = OpaqueCalls({**self.opaque.reasons, path: said})

    def _read(self, error: Exception, path: str) -> str | None:
        """The attribute that a module keeps state in, and that is not there to be read."""
        name = error.name if isinstance(error, AttributeError) else None
        return name if name in self._kept.get(path, {}) else None

    def _exported(self) -> Any:
        printed = io.StringIO()  # where it fails, PyTorch prints what it had of the program
        own = self._subject is not self._root  # else PyTorch writes to what modules hold
        outside = Outside(self._root, self.opaque.reasons, own)
        # A function of the network's may call the opaque modules themselves, not the replica's.
        every = Outside(self._root) if own and self.opaque.reasons else outside
        with (
            taped(self._trained),
            nothing_kept(outside, self._subject),
            outside.printed.counted(),
            self._own_hooks(self._subject),
            changed_in_calls(self._subject) as has_changed,
            observed(self._subject, self._kept) as self._changed,
            no_nested(self._subject),
            self.opaque.standing_in(self._subject),
            contextlib.redirect_stderr(printed),
            _unheard(),
            without_lines(),
        ):
            try:
                program = torch.export.export(self._subject, self._args, self._kwargs, strict=False)
            finally:
                self._beyond = outside.changed()
                kept = (v for place in self._beyond.values() for v in place.now().values())
                self._beyond_is_fake = holds_fakes(kept)
                outside.restore()
                every.restore_fakes()
        sys.stderr.write(printed.getvalue())
        self._changes_arguments = has_changed()
        for node in filter(is_opaque, program.graph.nodes):
            operands, index = node.args
            if (views := self.opaque.calls[index].views) is not None:
                node.meta[VIEWED] = operands[views]
        return program

    def _refusal(self, reason: str) -> UnsupportedError:
        return NotCapturable(type(self._root).__name__, reason)


@contextlib.contextmanager
def _unheard() -> Iterator[None]:
    """PyTorch logs what fails while it captures, with its traceback; here an exception tells it,
    to the caller or as a reason for a part that stays in PyTorch."""
    logger, thread = logging.getLogger("torch._subclasses.fake_tensor"), threading.get_ident()

    def others(record: logging.LogRecord) -> bool:
        return record.thread != thread

    logger.addFilter(others)
    try:
        yield
    finally:
        logger.removeFilter(others)


def _decompositions(graph: torch.fx.Graph) -> dict[Any, Any]:
    """Of operations which PyTorch would else take for such that give memory of their own."""
    if not (unsaid := unsaid_views(graph)):
        return {}
    known = torch.export.default_decompositions()
    return {operation: known[operation] for operation in unsaid if operation in known}


def _as_leaves(arguments: Any) -> Any:
    """Arguments of which none is the result of an operation that PyTorch has on its tape."""

    def leaf(tensor: torch.Tensor) -> torch.Tensor:
        return tensor if tensor.is_leaf else tensor.detach().requires_grad_()

    return pytree.tree_map_only(torch.Tensor, leaf, arguments)


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
