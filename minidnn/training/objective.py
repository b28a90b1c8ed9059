"""The objective of training: the losses, their targets, and what is measured besides.

:class:`Objective` turns the ``loss``, ``metrics`` and ``targets`` of a trainer into terms and
measures, and adds them behind a network's graph.  The step, evaluation and the reading of batches
all ask it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import count, product, takewhile
from typing import Any

from minidnn.errors import GraphError, did_you_mean
from minidnn.graph.ir import Graph, Value
from minidnn.graph.trace import Trace, tracing
from minidnn.graph.types import TensorType
from minidnn.layers.arguments import Shapes
from minidnn.layers.build import to_graph
from minidnn.layers.layer import Layer
from minidnn.training.arguments import check_number
from minidnn.training.losses import Function, Loss
from minidnn.training.metrics.metric import Metric

#: Prefix of the names of results that are not for users: the counts that means are weighted by, and
#: the values of a batch that metrics of whole sets take in.
HIDDEN = "@"


@dataclass(frozen=True)
class Term:
    """One of the losses that are added up.

    Attributes:
        name: the name of the network's output, or its index as text; "" for an only loss.
        loss: a :class:`Loss`, or a function of output and target on symbols.
        factor: the weight of the loss in the sum.
    """

    name: str
    loss: Function
    factor: float = 1.0

    def named(self, word: str) -> str:
        """The name of a result or an input of this term, such as its loss or its target."""
        return f"{self.name}_{word}" if self.name else word


@dataclass(frozen=True)
class Measure:
    """A function or metric that is measured besides the loss.

    Attributes:
        name: the name of the result.
        function: takes an output and a target.
        term: the name of the term whose output and target these are; None for all of them.
    """

    name: str
    function: Function | Metric
    term: str | None

    def seen_name(self, index: int) -> str:
        """The name of the result that is a metric's value of this index of a batch."""
        return f"{HIDDEN}{self.name}.{index}"

    def seen_names(self, names: Collection[str]) -> list[str]:
        """The names of all the metric's values of a batch, where ``names`` are of all results."""
        if not isinstance(self.function, Metric):
            return []
        return list(takewhile(names.__contains__, map(self.seen_name, count())))


@dataclass(frozen=True)
class Objective:
    """What training minimizes, and what it measures besides."""

    #: A :class:`Loss`, or any function of output and target on symbols; or several of them, with
    #: their factors, by the names of outputs or in their order.
    loss: Any
    #: Functions and metrics by name; those of one of several outputs in a mapping under its name.
    metrics: Mapping[str, Any]
    #: Types of the targets, in order or by name; None to take them from the losses.
    targets: Sequence[TensorType] | Mapping[str, TensorType] | None = None

    @cached_property
    def terms(self) -> tuple[Term, ...]:
        """The losses that are added up, in order."""
        if callable(self.loss):
            return (Term("", self.loss),)
        if isinstance(self.loss, Mapping):
            items = list(self.loss.items())
        elif isinstance(self.loss, (list, tuple)):
            items = [(str(i), loss) for i, loss in enumerate(self.loss)]
        else:
            items = []
        if not items:
            raise GraphError(f"loss={self.loss!r:.80}; {_VALID}")
        return tuple(_term(str(name), given) for name, given in items)

    @cached_property
    def measures(self) -> tuple[Measure, ...]:
        """What is measured besides the loss, in order."""
        terms = {term.name for term in self.terms if term.name}
        single = None if terms else ""
        measures = []
        for name, function in self.metrics.items():
            if isinstance(function, Mapping):
                if name not in terms:
                    raise GraphError(
                        f"metrics[{name!r}] is a mapping; valid under a name of an output with a "
                        f"loss of its own, {', '.join(sorted(terms)) or 'of which there is none'}, "
                        "else a function"
                    )
                measures += [Measure(f"{name}_{each}", f, name) for each, f in function.items()]
            else:
                measures.append(Measure(name, function, single))
        for measure in measures:
            if not callable(measure.function) and not isinstance(measure.function, Metric):
                raise GraphError(
                    f"metrics[{measure.name!r}]={measure.function!r:.80}; valid is a metric of "
                    "minidnn.metrics, or a function of output and target"
                )
            if measure.name == "loss" or measure.name.startswith(HIDDEN):
                raise GraphError(
                    f"metrics has the name {measure.name!r}; valid is one that is not 'loss' and "
                    f"does not begin with {HIDDEN!r}"
                )
        return tuple(measures)

    @property
    def of_sets(self) -> list[str]:
        """The names of the metrics that are computed over whole sets."""
        return [measure.name for measure in self.measures if isinstance(measure.function, Metric)]

    @property
    def totals(self) -> dict[str, float]:
        """The factors of several losses, by the names of their results; empty for an only loss."""
        return {t.named("loss"): t.factor for t in self.terms if t.name}

    def applied(
        self,
        network: Layer,
        shapes: Shapes,
        mode: str,
        ranks: int = 1,
        *,
        forms: Sequence[TensorType] | None = None,
        counted: bool = False,
    ) -> Graph:
        """The graph of a network with targets as further inputs, whose outputs are the loss and the
        measures, by name.

        ``ranks`` is the number of ranks over whose batches normalizations take statistics.
        ``forms`` are the types of the targets, by default the first that the losses take.  With
        ``counted`` there are also outputs whose names begin with :data:`HIDDEN`.
        """
        graph = to_graph(network, shapes, mode=mode, states=True, ranks=ranks)
        error: Exception | None = None
        for types in self._defaults(graph) if forms is None else [forms]:
            try:
                return self._applied(graph, mode, types, counted)
            except (GraphError, TypeError, ValueError, IndexError, AttributeError) as caught:
                error = error or caught
        assert error is not None
        raise error

    def _applied(
        self, graph: Graph, mode: str, types: Sequence[TensorType], counted: bool
    ) -> Graph:
        with behind(graph, mode == "train", described=True) as trace:
            values = [
                trace.input(type, name)
                for type, name in zip(types, self.target_names(len(types)), strict=True)
            ]
            results = self._results(trace, graph, values, counted)
        return trace.graph(list(results.values()), list(results))

    def _results(
        self, trace: Trace, graph: Graph, targets: Sequence[Value], counted: bool
    ) -> dict[str, Value]:
        """The losses and the measures of outputs and targets, by name, as values of the trace."""
        indices = {t.name: self.place(t, graph.outputs, graph.output_names) for t in self.terms}
        everything = packed(graph.outputs, graph.output_names), self._packed_targets(targets)
        pairs: dict[str | None, tuple[Any, Any]] = {None: everything}
        for term, target in zip(self.terms, targets, strict=False):
            index = indices[term.name]
            pairs[term.name] = everything if index is None else (graph.outputs[index], target)
        results: dict[str, Value] = {}
        losses: list[Any] = []
        for term in self.terms:
            output, target = pairs[term.name]
            loss = self._formed(term.loss, output, target)
            results |= _measured(trace, term.named("loss"), loss, output, target, counted)
            losses.append((term.factor, results[term.named("loss")]))
        if self.totals:
            with trace.scope("loss", leaf=False):
                parts = [v if factor == 1.0 else factor * v for factor, v in losses]
                results = {"loss": sum(parts[1:], start=parts[0]), **results}
        for measure in self.measures:
            if not isinstance(measure.function, Metric):
                pair = pairs[measure.term]
                results |= _measured(trace, measure.name, measure.function, *pair, counted)
            elif counted:
                with trace.scope(measure.name, leaf=False):
                    seen = measure.function.seen(*pairs[measure.term])
                results |= {measure.seen_name(i): value for i, value in enumerate(seen)}
        return results

    def _formed(self, loss: Function, output: Any, target: Any) -> Function:
        """The loss in the form for the target's dtype and shape."""
        if not isinstance(loss, Loss) or self.targets is not None:
            return loss
        return loss.form("float" in target.dtype, target.shape, output.type)

    def place(self, term: Term, outputs: Sequence[Any], names: Sequence[str] | None) -> int | None:
        """The index of the output that a term is computed from; None for all of them."""
        if not term.name:
            if self.targets is None and len(outputs) != 1:
                raise GraphError(
                    f"the network has {len(outputs)} outputs; valid are one, losses of several by "
                    "their names or in their order, or a loss of one's own that takes a tuple or "
                    "dict of them, and targets= with the shape and dtype of each target"
                )
            return None if self.targets is not None or len(outputs) != 1 else 0
        known = [str(i) for i in range(len(outputs))] if names is None else list(names)
        if term.name not in known:
            raise GraphError(
                f"loss[{term.name!r}]: the network has no such output; valid are "
                f"{', '.join(map(repr, known))}{did_you_mean(term.name, known)}"
            )
        return known.index(term.name)

    def target_names(self, many: int) -> list[str]:
        """The names of the targets as inputs of graphs."""
        if isinstance(self.targets, Mapping):
            return [str(name) for name in self.targets]
        if self.targets is None:
            return [term.named("target") for term in self.terms]
        return ["target"] if many == 1 else [f"target{i}" for i in range(many)]

    def _packed_targets(self, targets: Sequence[Value]) -> Any:
        """The targets as a loss of all outputs takes them: one value, a tuple or a dict."""
        if isinstance(self.targets, Mapping):
            return dict(zip(map(str, self.targets), targets, strict=True))
        if self.targets is None and self.totals:
            if isinstance(self.loss, Mapping):
                return {t.name: value for t, value in zip(self.terms, targets, strict=True)}
            return tuple(targets)
        return packed(targets)

    def explicit(self, batch: int, declared: int) -> list[TensorType] | None:
        """The types of the targets that a user gave, for a batch.

        A first axis as long as the declared batch becomes as long as this batch.
        """
        if self.targets is None:
            return None
        types = self.targets.values() if isinstance(self.targets, Mapping) else self.targets
        return [
            TensorType((batch, *t.shape[1:]), t.dtype) if t.shape[:1] == (declared,) else t
            for t in types
        ]

    def _defaults(self, graph: Graph) -> Iterator[Sequence[TensorType]]:
        """Yields types of the targets, in the order in which they are tried."""
        if self.targets is not None:
            declared = self.targets
            yield list(declared.values()) if isinstance(declared, Mapping) else list(declared)
            return
        for term in self.terms:
            self.place(term, graph.outputs, graph.output_names)
        choices = [
            takes(t.loss, graph.outputs[self.place(t, graph.outputs, graph.output_names) or 0].type)
            for t in self.terms
        ]
        yield from product(*choices)


def takes(loss: Function, output: TensorType) -> list[TensorType]:
    """The types of targets that a loss takes for an output.

    For a function these are the output's own type, and indices of its classes.
    """
    if isinstance(loss, Loss):
        return [loss.target(output)]
    if output.rank < 2 or output.shape[1] < 2:
        return [output]
    return [output, TensorType((output.shape[0], *output.shape[2:]), "int64")]


#: Shapes and dtypes of targets.
Targets = Sequence[tuple[Sequence[int], str]] | Mapping[str, tuple[Sequence[int], str]]


def objective_of(loss: Any, metrics: Any, targets: Targets | None) -> Objective:
    """The objective of a trainer's arguments, with the measures that its losses suggest."""
    types: Any = None
    if isinstance(targets, Mapping):
        types = {str(name): TensorType(tuple(s), d) for name, (s, d) in targets.items()}
    elif targets is not None:
        types = [TensorType(tuple(s), d) for s, d in targets]
    chosen: dict[str, Any] = {}
    for term in Objective(loss, {}).terms:
        if isinstance(term.loss, Loss) and targets is None:
            own = dict(term.loss.metrics)
            chosen |= {term.name: own} if term.name and own else own if not term.name else {}
    if isinstance(metrics, (list, tuple)):
        for metric in metrics:
            if not isinstance(metric, Metric):
                raise GraphError(
                    f"metrics has {metric!r:.80}; valid in a sequence are metrics of "
                    "minidnn.metrics, and in a mapping also functions, by their names"
                )
        metrics = {metric.name: metric for metric in metrics}
    for name, given in (metrics or {}).items():
        _check_left_out(f"metrics[{name!r}]", given, chosen, name)
        if isinstance(given, Mapping):
            suggested = chosen.get(name)
            known: Mapping[str, Any] = suggested if isinstance(suggested, Mapping) else {}
            for inner, metric in given.items():
                _check_left_out(f"metrics[{name!r}][{inner!r}]", metric, known, inner)
            given = dict(known) | dict(given)
        chosen[str(name)] = given
    return Objective(loss, _without_none(chosen), types)


def _check_left_out(what: str, given: Any, suggested: Mapping[str, Any], name: str) -> None:
    """GraphError if a metric is left out, by None, that no loss suggests."""
    if given is None and name not in suggested:
        known = ", ".join(map(repr, suggested)) or "none, as no loss suggests any"
        raise GraphError(f"{what}=None; metrics that can be left out are {known}")


def _without_none(found: Mapping[str, Any]) -> dict[str, Any]:
    """The metrics without those that a user set to None."""
    return {
        name: _without_none(given) if isinstance(given, Mapping) else given
        for name, given in found.items()
        if given is not None
    }


_VALID = (
    "valid is a loss of minidnn.losses, or a function; of several outputs a mapping from their "
    "names, or a sequence, of such, or of pairs of such and a number"
)


def _term(name: str, given: Any) -> Term:
    """The term of an output, from a loss or a pair of a loss and its factor."""
    loss, factor = given if isinstance(given, (tuple, list)) and len(given) == 2 else (given, 1.0)
    if not callable(loss):
        raise GraphError(f"loss[{name!r}]={given!r:.80}; {_VALID}")
    check_number(None, f"the factor of loss[{name!r}]", factor, 0)
    return Term(name, loss, float(factor))


def _measured(
    trace: Trace, name: str, function: Callable[..., Any], output: Any, target: Any, counted: bool
) -> dict[str, Value]:
    """The number that a function gives and, if ``counted``, the count that weights its mean."""
    with trace.scope(name, leaf=False):
        results = {name: _one_number(name, function(output, target))}
        count = getattr(function, "counted", None) if counted else None
        if count is not None and (number := count(output, target)) is not None:
            results[HIDDEN + name] = _one_number(name, number)
    return results


def packed(outputs: Sequence[Any], names: Sequence[str] | None = None) -> Any:
    """Values as a network returns them: one value, a tuple, or a dict by their names."""
    if names is not None:
        return dict(zip(names, outputs, strict=True))
    return outputs[0] if len(outputs) == 1 else tuple(outputs)


def _one_number(name: str, value: Any) -> Value:
    """The value as one without axes; GraphError unless it is a value of one element."""
    if not isinstance(value, Value):
        raise GraphError(
            f"{name} is {value!r:.80} ({type(value).__name__}); valid is a symbolic value of one "
            "element, computed from the output and the target"
        )
    if value.type.size != 1:
        raise GraphError(
            f"{name} has shape {value.shape}; valid is one element, such as the mean: x.mean()"
        )
    scalar: Value = value if value.type.rank == 0 else value.reshape(())
    return scalar


@contextmanager
def behind(graph: Graph, training: bool = True, described: bool = False) -> Iterator[Trace]:
    """Records what is added to the end of a graph; ``described`` if a user's code writes it."""
    with tracing(graph.name, states=True, training=training) as trace:
        trace.adopt(graph)
        trace.describing = described
        yield trace
