"""The backend of ``torch.compile``: ``torch.compile(model, backend="minidnn")``.

PyTorch hands over one piece of the model between any two graph breaks, with the weights among the
arguments.  A piece is compiled at its first call for each size, which is all that has to be done
where PyTorch has made a size dynamic, and for each module that shares it: several of one class have
the same pieces.  What cannot be taken runs in PyTorch, with a warning.
"""

from __future__ import annotations

import re
import warnings
import weakref
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from operator import is_
from typing import Any

import torch
from torch import fx, nn

from minidnn._torch_internals import is_wrapper
from minidnn.acceleration.engine import Engine, engine_for, memory_of
from minidnn.acceleration.explain import explain_program
from minidnn.acceleration.named import (
    NamedBatch,
    NamedProgram,
    NamedPrograms,
    another,
    symbols_of,
    with_rows,
)
from minidnn.acceleration.program import SizedProgram
from minidnn.acceleration.programs import Programs, describe
from minidnn.acceleration.recorded import is_recorded
from minidnn.acceleration.trained import TrainedProgram
from minidnn.dynamic.dim import Dim
from minidnn.errors import GraphError, MiniDNNWarning, UnsupportedError
from minidnn.frontends.torch.capture import Captured, Held, capture
from minidnn.frontends.torch.library import require_torch
from minidnn.frontends.torch.narrow import HALVES, autocast_to, uncached

_OPTIONS = ("device", "precision", "strict", "sizes")


def backend(
    module: Any,
    example: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Piece:
    """What ``torch.compile`` calls for each piece of a model.

    options: "device", "precision", "strict" and "sizes" as :func:`minidnn.optimize` takes them;
    all others are the device's.  ``mode`` has no meaning here.

    GraphError for what is not legal, DeviceError if PyTorch's version is not accepted.
    """
    require_torch()
    if mode is not None:
        raise GraphError(
            f"torch.compile: mode={mode!r} with backend 'minidnn'; valid is none, or options="
        )
    given = dict(options or {})
    known = {name: given.pop(name) for name in _OPTIONS if name in given}
    sizes = known.get("sizes", 8)
    if type(sizes) is not int or sizes < 1:
        raise GraphError(f"torch.compile: sizes={sizes!r}; valid is an int of at least 1")
    strict = known.get("strict", False)
    if type(strict) is not bool:
        raise GraphError(f"torch.compile: strict={strict!r}; valid are True and False")
    return Piece(
        module,
        _weights(module, example),
        _numbers(module),
        known.get("device"),
        known.get("precision"),
        strict,
        sizes,
        given,
    )


class Piece:
    """One piece of a model: takes its arguments, gives its results, compiled or not."""

    def __init__(
        self,
        module: Any,
        weights: Mapping[int, str],
        numbers: Sequence[int],
        device: str | None,
        precision: str | None,
        strict: bool,
        sizes: int,
        options: Mapping[str, Any],
    ) -> None:
        self.module = module
        self._inference = Programs("torch.compile", sizes, "sizes of arguments and modules")
        self._trained = Programs("torch.compile", sizes)
        self._named = NamedPrograms("torch.compile", sizes)
        #: Which arguments have the batch, where it may be any.
        self._batch = symbols_of(module)
        self._weights = dict(weights)
        #: Arguments that stand for numbers which modules hold, and the values that they had.
        self._numbers = list(numbers)
        self._values: set[tuple[float, ...]] = set()
        self._sizes = sizes
        self._device = device
        self._precision = precision
        self._strict = strict
        self._options = dict(options)
        self._engines: dict[str, Engine] = {}
        #: Why pieces were not taken, by the types of their arguments.
        self._refused: dict[Any, str] = {}
        _pieces.append(weakref.ref(self))

    @property
    def programs(self) -> list[SizedProgram]:
        """What was compiled, for gradients and without."""
        return [*self._trained, *self._inference, *self._named]

    def __call__(self, *args: Any) -> Any:
        reason = self._not_now(args)
        if reason is None:
            half = autocast_to(_memory(args))
            # Under autocast weights are given to every run, whether there are gradients or not.
            trained = half is not None or (torch.is_grad_enabled() and any(map(_is_trained, args)))
            with nullcontext() if trained else torch.no_grad():
                done, results = self._run(args, trained, half)
            if done:
                return results
        else:
            self._leave(reason, reason)
        return self.module(*args)

    def explain(self) -> str:
        """What was taken of the piece, and what was left and why."""
        left = [f"left to PyTorch: {reason}" for reason in self._refused.values()]
        left += [f"note: not for any batch: {reason}" for reason in self._named.refused.values()]
        return "\n\n".join([*map(explain_program, self.programs), *left])

    def _not_now(self, args: Sequence[Any]) -> str | None:
        """Why a call is PyTorch's, whatever the piece is."""
        if is_recorded():
            return "its operations are recorded, or computed in another way"
        if autocast_to(_memory(args)) is not None:
            reason = self._engine(args).why_not_mixed()
            return None if reason is None else f"autocast is on, which PyTorch honours, as {reason}"
        return None

    def _run(self, args: Sequence[Any], trained: bool, half: str | None) -> tuple[bool, Any]:
        """Whether the piece was taken, and what it then gives.

        half: to what autocast casts.
        """
        values = self._values_of(args)
        inputs = [
            arg
            for place, arg in enumerate(args)
            if (trained or place not in self._weights) and place not in values
        ]
        engine = self._engine(args)
        weights = None if trained else _Weights([args[place] for place in self._weights])
        if self._batch is not None and not trained:
            places = [p for p in range(len(args)) if p not in self._weights and p not in values]
            named = [self._batch[place] for place in places]
            rows = _rows(inputs, named)
            if rows is not None:
                done, result = self._named.try_run(
                    inputs,
                    named,
                    (len(args), weights, *values.values()),
                    lambda: self._made_named(args, inputs, values, engine, rows),
                    args,
                )
                if done:
                    return True, result
        key = trained, half, describe(inputs)
        if key in self._refused:
            return False, None
        try:
            made = (self._trained if trained else self._inference).run(
                inputs,
                (len(args), weights, half, *values.values()),
                lambda: self._made(args, inputs, values, engine, trained, half),
                args,
            )
            return True, made
        except UnsupportedError as error:
            if self._strict:
                raise
            self._leave(key, str(error))
            return False, None

    def _values_of(self, args: Sequence[Any]) -> dict[int, float]:
        """The numbers that modules hold, which are part of a program; ones that change again and
        again are tensors, as PyTorch gives them, lest each value be compiled."""
        found = {place: args[place].item() for place in self._numbers}
        values = tuple(found.values())
        if values not in self._values:
            if len(self._values) == self._sizes:
                self._numbers = []  # another thread may be walking through what it was
                return {}
            self._values.add(values)
        return found

    def _engine(self, args: Sequence[Any]) -> Engine:
        """The one for these arguments: errors for what is not legal are the caller's to see."""
        memory = _memory(args)
        if memory not in self._engines:
            engine = engine_for(memory, self._device, self._precision, self._options)
            engine.check()
            self._engines[memory] = engine
        return self._engines[memory]

    def _made(
        self,
        args: Sequence[Any],
        inputs: Sequence[Any],
        values: Mapping[int, float],
        engine: Engine,
        trained: bool,
        half: str | None,
    ) -> SizedProgram:
        for arg in filter(is_wrapper, args):
            raise UnsupportedError(
                f"a {type(arg).__name__} is given, which has no memory of its own"
            )
        captured = self._captured(args, args, values, engine, trained)
        said = "torch.compile", describe(inputs), self._strict
        if trained:
            half = half or (self._precision if self._precision in HALVES else None)
            program: SizedProgram = TrainedProgram(captured, engine, *said, half=half)
        else:
            program = SizedProgram(captured, engine, *said)
        if not program.parts:
            raise UnsupportedError(f"nothing of it is taken:\n{program.why_nothing()}")
        if isinstance(program, TrainedProgram):
            program.prepare(args)
        return program

    def _captured(
        self,
        args: Sequence[Any],
        given: Sequence[Any],
        values: Mapping[int, float],
        engine: Engine,
        trained: bool,
    ) -> Captured:
        """The piece on other arguments, with the weights that are among these."""
        module = _with_numbers(self.module, values) if values else self.module
        weights = {place: args[place] for place in self._weights}
        held = {place: Held(weights, place, name) for place, name in self._weights.items()}
        with uncached(engine.memory):
            return capture(module, given, held_leaves=None if trained else held, trained=trained)

    def _made_named(
        self,
        args: Sequence[Any],
        inputs: Sequence[Any],
        values: Mapping[int, float],
        engine: Engine,
        rows: int,
    ) -> NamedProgram:
        """A program for any batch, of which PyTorch has proved that the piece does the same."""
        assert self._batch is not None
        if any(map(is_wrapper, args)):
            raise UnsupportedError("an argument has no memory of its own")
        others = with_rows(args, self._batch, another(rows, _ANY))
        captured = self._captured(args, args, values, engine, False)
        other = self._captured(args, others, values, engine, False)
        batches = NamedBatch(_ANY, self._batch, other, self._sizes)
        given = f"any batch of {describe(inputs)}"
        return NamedProgram(captured, batches, engine, "torch.compile", given)

    def _leave(self, key: Any, reason: str) -> None:
        if self._strict:
            raise UnsupportedError(f"strict=True, and a piece is left to PyTorch: {reason}")
        if key not in self._refused:
            self._refused[key] = reason
            warnings.warn(
                f"torch.compile: a piece runs in PyTorch: {reason}", MiniDNNWarning, stacklevel=4
            )


#: NamedBatch for which PyTorch hands over one piece: for one row there is another.
_ANY = Dim("batch", 2, 1 << 20)


def _rows(inputs: Sequence[Any], named: Sequence[bool]) -> int | None:
    """How many rows arguments have; None if there is no program for so many."""
    rows = {
        each.shape[0] if isinstance(each, torch.Tensor) else each
        for each, has in zip(inputs, named, strict=True)
        if has
    }
    return rows.pop() if len(rows) == 1 and _ANY.takes(min(rows)) else None


class _Weights:
    """The weights that a piece is called with, which are equal if they are the same tensors."""

    def __init__(self, tensors: Sequence[Any]) -> None:
        self._tensors = tensors

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Weights) and all(map(is_, self._tensors, other._tensors))

    def __hash__(self) -> int:
        return hash(tuple(map(id, self._tensors)))


def _is_trained(arg: Any) -> bool:
    return isinstance(arg, torch.Tensor) and arg.requires_grad


def _memory(args: Sequence[Any]) -> str:
    return next((memory_of(a) for a in args if isinstance(a, torch.Tensor)), "cpu")


_pieces: list[weakref.ref[Piece]] = []


def pieces() -> list[Piece]:
    """The pieces that PyTorch still holds, in the order in which it handed them over."""
    found = [piece for reference in _pieces if (piece := reference()) is not None]
    _pieces[:] = map(weakref.ref, found)
    return found


def explain() -> str:
    """What was taken of all pieces that ``torch.compile`` handed over, in order."""
    return "\n\n".join(piece.explain() for piece in pieces())


def _weights(module: Any, example: Sequence[Any]) -> dict[int, str]:
    """The places of arguments that are parameters or buffers, and their names."""
    found = {}
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    for place, (node, value) in enumerate(zip(placeholders, example, strict=True)):
        described = node.meta.get("tensor_dict") or {}
        static = described.get("_dynamo_static_input_type") is not None
        static = static or getattr(value, "_dynamo_static_input_type", None) is not None
        if isinstance(value, nn.Parameter) or (static and isinstance(value, torch.Tensor)):
            found[place] = _name(node)
    return found


def _numbers(module: Any) -> list[int]:
    """The places of arguments that stand for numbers which modules hold.

    Where sizes are to be dynamic, PyTorch makes such numbers, like the epsilon of a norm, arguments
    too: tensors on the CPU that the piece takes the number of.
    """
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    return [
        place
        for place, node in enumerate(placeholders)
        if getattr(node.meta.get("grapharg"), "pass_arg_as_tensor", False)
        and "NN_MODULE" in str(_asked(getattr(node, "_dynamo_source", None), "guard_source"))
        and all(map(_takes_number, node.users))
    ]


def _takes_number(node: fx.Node) -> bool:
    return node.op == "call_method" and node.target == "item"


def _with_numbers(module: fx.GraphModule, values: Mapping[int, float]) -> fx.GraphModule:
    """The piece with these numbers, by the places of their arguments, as constants."""
    graph = fx.Graph()
    found: dict[fx.Node, Any] = {}
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    numbers = {placeholders[place]: value for place, value in values.items()}
    for node in module.graph.nodes:
        if _takes_number(node) and node.args[0] in numbers:
            found[node] = numbers[node.args[0]]
        else:
            found[node] = graph.node_copy(node, found.__getitem__)
    return fx.GraphModule(module, graph)


def _asked(source: Any, what: str) -> Any:
    """What PyTorch says of where an argument comes from: attributes, methods once."""
    said = getattr(source, what, None)
    return said() if callable(said) else said


def _name(node: Any) -> str:
    """The name in a state dict of what PyTorch finds at
    ``L['self']._modules['conv']._parameters['weight']``."""
    text = str(_asked(getattr(node, "_dynamo_source", None), "name") or node.name)
    keys = re.findall(r"\._(?:modules|parameters|buffers)\['([^']+)'\]", text)
    return ".".join(keys) or text
