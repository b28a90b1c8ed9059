"""Builds the graph of a training step: a network, a loss, gradients, and an optimizer's updates.

Its inputs are those of the network, the targets, and the optimizer's numbers, such as the learning
rate; its outputs are the loss and the measures.  All that training changes is a state of the graph:
parameters are states under their names in the network's state dict.

:class:`TrainedParameters` follows layers that are frozen and unfrozen between steps: which
parameters are trained, and since which step.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial
from itertools import compress
from typing import Any

import numpy as np

from minidnn.errors import GraphError
from minidnn.gradients.reverse import gradient
from minidnn.graph.expression import Expression, constant
from minidnn.graph.ir import Graph, Rewriter, State, Value
from minidnn.graph.operators import SumOverRanks
from minidnn.graph.symbolic import pointwise
from minidnn.graph.trace import Trace
from minidnn.graph.types import TensorType, numpy_dtype
from minidnn.layers.arguments import Shapes
from minidnn.layers.layer import Layer
from minidnn.layers.parameter import changes
from minidnn.training.objective import Objective, behind
from minidnn.training.optim.optimizer import (
    LossScale,
    Optimizer,
    Update,
    if_all_finite,
    if_finite,
    unscaled,
)
from minidnn.weights.trained import check_names, state_name


class TrainedParameters:
    """The parameters of a network that are trained, and the steps at which that began.

    What an optimizer keeps for a parameter begins as 0 when the parameter is first trained, and
    bias corrections count from that step, as PyTorch's do.

    Args:
        network: whose parameters these are.
        optimizer: updates them.
    """

    def __init__(self, network: Layer, optimizer: Optimizer) -> None:
        self._network, self._optimizer = network, optimizer
        #: By the names of all parameters that were ever trained: the first step that trained them.
        self.begun: dict[str, int] = {}
        #: Arrays of a checkpoint for parameters that are frozen now, until these are trained.
        self.waiting: dict[str, Any] = {}
        self._seen = -1
        self._known: Any = ()
        self._names: list[str] = []
        self.has_changed(0)

    def has_changed(self, step: int) -> bool:
        """Whether other parameters are trained, or other layers frozen, than at the last call, so
        that programs must be compiled again.  ``step`` is the next step.
        """
        if self._seen == changes.count:
            return False
        self._seen = changes.count
        names = [name for name, _ in self._network.trainable_parameters()]
        for name in names:
            self.begun.setdefault(name, step)
        frozen = (path for path, layer in self._network.named_layers() if layer.frozen)
        known = (tuple(frozen), *((name, self.begun[name]) for name in names))
        is_different = known != self._known
        self._known, self._names = known, names
        return is_different

    def restore(self, begun: Mapping[str, int] | None, waiting: Mapping[str, Any]) -> None:
        """Takes over the beginnings and the waiting arrays of a checkpoint.  Without beginnings, as
        in format 2, all parameters began with step 0.
        """
        self.begun = dict.fromkeys(self._names, 0) if begun is None else dict(begun)
        self.waiting = dict(waiting)
        self._seen = -1

    @property
    def starts(self) -> list[int]:
        """The steps at which the parameters that are trained now began, each once, in order."""
        return sorted({self.begun[name] for name in self._names}) or [0]

    def numbers(self, step: int) -> list[tuple[str, float]]:
        """The optimizer's numbers for a step, by the names of the inputs of its graph."""
        return [
            (input_name(name, start), number)
            for start in self.starts
            for name, number in _since(self._optimizer, start).numbers(step - start).items()
        ]


def input_name(name: str, start: int) -> str:
    """The name of an optimizer's number for parameters that are trained since a step."""
    return f"{name}.since{start}" if start else name


def _since(optimizer: Optimizer, start: int) -> Optimizer:
    """The optimizer for parameters that are trained since a step: it counts from there, but has the
    learning rates of all.
    """
    if not start:
        return optimizer
    shifted = copy(optimizer)
    object.__setattr__(shifted, "lr", lambda step: optimizer.rate(step + start))
    return shifted


def of_parameters(names: Iterable[str], parameters: Iterable[str]) -> dict[str, str]:
    """The names of states that are kept for one of ``parameters``, with that parameter."""
    mark = state_name("")
    known = set(parameters)
    return {
        name: parameter
        for name in names
        if (parameter := name.partition(mark)[2]) and parameter in known
    }


@dataclass(frozen=True)
class Ranks:
    """The processes that take each step together, in data parallelism.

    Attributes:
        count: the number of processes.
        synchronized: whether normalizations take their statistics over the batches of all.
    """

    count: int = 1
    synchronized: bool = False

    @property
    def of_statistics(self) -> int:
        """The number of ranks over whose batches normalizations take their statistics."""
        return self.count if self.synchronized else 1


ALONE = Ranks()


def step_graph(
    network: Layer,
    shapes: Shapes,
    objective: Objective,
    optimizer: Optimizer,
    *,
    share: int = 1,
    last: bool = True,
    average: float | None = None,
    scaling: LossScale | None = None,
    ranks: Ranks = ALONE,
    forms: Sequence[TensorType] | None = None,
    begun: Mapping[str, int] | None = None,
) -> Graph:
    """The graph of a training step.

    Args:
        network: any layer.
        shapes: of its inputs, the batch included.
        objective: the loss and the measures.
        optimizer: updates the parameters.
        share: the number of batches whose gradients are accumulated for one update.
        last: whether this is the last batch of them, after which parameters change.
        average: the decay of each parameter's moving average; None for no average.
        scaling: how the loss is scaled before it is differentiated; None for not at all.
        ranks: the processes that take the step.  After the last batch, gradients, loss, measures
            and the new states of layers are means over all ranks.  Until then the new states of
            layers are pending, under names with :data:`PENDING`, since every rank must know whether
            the losses of all are finite.
        forms: the types of the targets, as :meth:`Objective.applied` takes them.
        begun: the step at which each parameter began to be trained, by default the first: the
            optimizer's numbers are inputs for each of these steps, in their order.

    Raises:
        GraphError: the loss is no single number; there is nothing to train, or the loss does not
            depend on a parameter, which is named; the optimizer's groups fit nothing.
    """
    graph = objective.applied(
        network, shapes, "train", ranks.of_statistics, forms=forms, counted=True
    )
    if ranks.count > 1 and share > 1:
        graph = _pending(graph)
    names = _trained(network, graph)
    optimizer.check_groups(names)
    outputs = len(graph.outputs)
    target = graph.outputs[0]  # the loss
    if scaling is not None:
        graph, target = _scaled(graph, scaling)
    differentiated = gradient(graph, target, of=names)
    gradients: Sequence[Value] = differentiated.outputs[outputs:]
    measures: Sequence[Value] = differentiated.outputs[:outputs]
    states = {state.name: state for state in differentiated.states}
    with behind(differentiated) as trace:
        since = {name: (begun or {}).get(name, 0) for name in names}
        numbers = {
            start: {
                name: trace.input(TensorType(()), input_name(name, start))
                for name in (optimizer.numbers(0) if last else ())
            }
            for start in sorted(set(since.values()))
        }
        parameters = [states[name] for name in names]
        raw = gradients
        if scaling is not None:
            gradients = unscaled(trace, gradients, scaling.state(trace))
        if ranks.count > 1 and last:
            if share > 1:
                gradients = _summed(trace, parameters, gradients, share)
            measures = _means_over_ranks(trace, graph, objective, measures, ranks.count)
            gradients = raw = _mean_gradients(trace, parameters, gradients, ranks.count)
            if share > 1:
                _begin_anew(trace, parameters, measures[0])
        else:
            _guard(trace, graph, measures[0])
            if share > 1:
                raw = gradients = _shared(trace, parameters, gradients, measures[0], share, last)
        if last:
            guard = loss = measures[0]
            if scaling is not None:
                guard = if_all_finite(trace, loss, raw)
                scaling.settle(trace, guard)
            by_name = {name: numbers[start] for name, start in since.items()}
            _optimized(trace, parameters, optimizer.clipped(gradients), optimizer, by_name, guard)
            if average is not None:
                _averaged(trace, parameters, guard, average)
    return trace.graph(measures, graph.output_names)


#: Prefix of the states that hold new states of layers, such as running statistics, until it is
#: known that the losses of all ranks are finite.
PENDING = state_name("pending")

#: The most bytes of gradients that one sum over ranks takes together.
_BUCKET = 25 << 20


def _means_over_ranks(
    trace: Trace, graph: Graph, objective: Objective, measures: Sequence[Value], ranks: int
) -> list[Value]:
    """The means of loss and measures over all ranks.  Floating-point states of layers are set to
    such means, too.
    """
    moved = [state for state in graph.updates if "float" in state.dtype]
    # Values of a batch for metrics of whole sets are combined over ranks when the set is over.
    names = graph.output_names or ()
    of_sets = {name for measure in objective.measures for name in measure.seen_names(names)}
    are_means = [name not in of_sets for name in names]
    operands = [*compress(measures, are_means), *map(trace.latest, moved)]
    means = iter(_means(trace, "measures", operands, ranks))
    results = [
        next(means) if is_mean else measure
        for measure, is_mean in zip(measures, are_means, strict=True)
    ]
    new_states = means
    finite: Any = np.isfinite(results[0])
    for state in graph.updates:
        new = next(new_states) if "float" in state.dtype else trace.latest(state)
        name = state.name.removeprefix(PENDING)
        with trace.scope(f"{name}.update", leaf=True):
            chosen: Any = np.where(finite, new, trace.state(name, name, state.type, _data(state)))
            trace.update_again(state, chosen)
            if name != state.name:
                trace.update(trace.state(name, name, state.type, _data(state)), chosen)
    return results


def _mean_gradients(
    trace: Trace, parameters: Sequence[State], gradients: Sequence[Value], ranks: int
) -> list[Value]:
    """The means of gradients over all ranks, summed in buckets, in the order in which they are
    computed, so that communication of a bucket overlaps with the backward pass.
    """
    position = {node: i for i, node in enumerate(trace.nodes)}
    ready = [position[g.producer] if g.producer is not None else -1 for g in gradients]
    reduced: list[Value] = list(gradients)
    bucket: list[int] = []
    size = count = 0

    def add_up() -> None:
        means = _means(trace, f"bucket{count}", [gradients[i] for i in bucket], ranks)
        for i, mean in zip(bucket, means, strict=True):
            reduced[i] = mean

    for i in sorted(range(len(gradients)), key=ready.__getitem__):
        if bucket and size + gradients[i].type.bytes > _BUCKET:
            add_up()
            bucket, size, count = [], 0, count + 1
        bucket.append(i)
        size += gradients[i].type.bytes
    add_up()
    return reduced


def _means(trace: Trace, name: str, values: Sequence[Value], ranks: int) -> list[Value]:
    """The means of values over all ranks, by one node that other nodes may overlap with."""
    factor = 1.0 / ranks
    with trace.scope(f"ranks.{name}", leaf=True):
        sums = trace.apply(SumOverRanks(ranks, beside=True), *values)
        return [pointwise("Mean", lambda x: factor * x, total) for total in sums]


def _begin_anew(trace: Trace, parameters: Sequence[State], loss: Value) -> None:
    """Sets the sums of gradients over batches to zero, if the loss is finite."""
    for parameter in parameters:
        total = _slot(trace, "sum", parameter)
        trace.update(total, if_finite(loss, total, lambda: constant(0.0)))


def _data(state: State) -> Callable[[], np.ndarray]:
    """A function that returns the data that a state begins with."""
    return partial(getattr, state, "data")


def _pending(graph: Graph) -> Graph:
    """The graph in which layers update states named with :data:`PENDING` instead of their own."""
    rewriter = Rewriter(graph)
    pending = {
        state: State(state.type, f"{PENDING}{state.name}", _data(state)) for state in graph.updates
    }
    for state, other in pending.items():
        rewriter.replace(state, other)
    for node in graph.nodes:
        rewriter.keep(node)
    new = rewriter.finish()
    updates = {pending[state]: value for state, value in new.updates.items()}
    return Graph(
        new.inputs,
        new.outputs,
        new.nodes,
        new.name,
        new.output_names,
        updates=updates,
    )


def _summed(
    trace: Trace, parameters: Sequence[State], gradients: Sequence[Value], share: int
) -> list[Value]:
    """The gradients of the last of several batches, added to the sums of those before it."""
    factor = 1.0 / share
    sums = []
    for parameter, grad in zip(parameters, gradients, strict=True):
        total = _slot(trace, "sum", parameter)
        with trace.scope(total.name, leaf=True):
            sums.append(pointwise("Sum", lambda total, g: total + factor * g, total, grad))
    return sums


def _scaled(graph: Graph, scaling: LossScale) -> tuple[Graph, Value]:
    """The graph and the scaled loss, which is computed in it but is no output of it."""
    with behind(graph) as trace, trace.scope("loss_scale", leaf=True):
        loss: Any = graph.outputs[0]
        scaled: Value = loss * scaling.state(trace)
    return trace.graph(graph.outputs, graph.output_names), scaled


def _trained(network: Layer, graph: Graph) -> list[str]:
    """The names of the parameters that are trained."""
    check_names(graph.name, (name for name, _ in network.named_parameters()))
    names = [name for name, _ in network.trainable_parameters()]
    if not names:
        raise GraphError(
            f"{graph.name} has no trainable parameter; valid is a network with at least one that "
            "is neither frozen (layer.freeze(False) undoes that) nor trainable=False"
        )
    used = {state.name for state in graph.states}
    unused = [name for name in names if name not in used]
    if unused:
        raise GraphError(
            f"{graph.name}: the loss does not depend on {', '.join(map(repr, unused))}, which no "
            "layer uses in forward(); valid is a network without them, or freeze() of their layer"
        )
    return names


def _guard(trace: Trace, graph: Graph, loss: Value) -> None:
    """Makes the updates of layers' own states happen only if the loss is finite."""
    finite: Any = np.isfinite(loss)
    for state in graph.updates:
        with trace.scope(f"{state.name}.update", leaf=True):
            chosen: Any = np.where(finite, trace.latest(state), state)
            trace.update_again(state, chosen)


def _slot(trace: Trace, kind: str, parameter: State) -> State:
    """The state of a kind that is kept for a parameter; it begins as zeros."""
    name = state_name(kind, parameter.name)
    zeros = partial(np.zeros, parameter.shape, numpy_dtype(parameter.dtype))
    return trace.state(name, name, parameter.type, zeros)


def _shared(
    trace: Trace,
    parameters: Sequence[State],
    gradients: Sequence[Value],
    loss: Value,
    share: int,
    last: bool,
) -> list[Value]:
    """The gradients, accumulated over batches; after the last batch, sums begin at zero again.

    Before the last batch the sums are updated, and there is no gradient to return.
    """
    factor = 1.0 / share

    def body(total: Expression, g: Expression) -> Expression:
        return total + factor * g

    sums = []
    for parameter, grad in zip(parameters, gradients, strict=True):
        total = _slot(trace, "sum", parameter)
        with trace.scope(total.name, leaf=True):
            if last:
                sums.append(pointwise("Sum", body, total, grad))
                trace.update(total, if_finite(loss, total, lambda: constant(0.0)))
            else:
                trace.update(total, if_finite(loss, total, body, total, grad))
    return sums


def _optimized(
    trace: Trace,
    parameters: Sequence[State],
    gradients: Sequence[Value],
    optimizer: Optimizer,
    numbers: Mapping[str, Mapping[str, Value]],
    loss: Value,
) -> None:
    """Adds the optimizer's updates of all parameters and of their slots."""
    for parameter, grad in zip(parameters, gradients, strict=True):
        slots = {kind: _slot(trace, kind, parameter) for kind in optimizer.kept}
        update = Update(trace, parameter, grad, slots, numbers[parameter.name], loss)
        optimizer.settle(update)
        with trace.scope(f"optimizer.{parameter.name}", leaf=True):
            optimizer.apply(update)


def _averaged(trace: Trace, parameters: Sequence[State], loss: Value, decay: float) -> None:
    """Adds the updates of the parameters' moving averages."""

    def body(old: Expression, new: Expression) -> Expression:
        return decay * old + (1.0 - decay) * new

    for parameter in parameters:
        name = state_name("average", parameter.name)
        old = trace.state(name, name, parameter.type, _data(parameter))
        new = trace.latest(parameter)
        with trace.scope(f"average.{parameter.name}", leaf=True):
            trace.update(old, if_finite(loss, old, body, old, new))


def with_averages(graph: Graph, store: Collection[str]) -> Graph:
    """The graph with moving averages in place of the parameters that have one."""
    rewriter = Rewriter(graph)
    for state in graph.states:
        name = state_name("average", state.name)
        if name in store:
            rewriter.replace(state, State(state.type, name, _data(state)))
    for node in graph.nodes:
        rewriter.keep(node)
    return rewriter.finish()
