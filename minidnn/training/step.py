"""The graph of a training step: a network, a loss, gradients, and what an optimizer makes of them.

Its inputs are those of the network, the targets, and the optimizer's numbers, such as the learning
rate; its outputs are the loss and what is measured besides; all that training changes are states,
the parameters under their names in the network's state dict.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from minidnn.errors import GraphError
from minidnn.gradients.reverse import gradient
from minidnn.graph.expression import Expression, constant
from minidnn.graph.ir import Graph, Rewriter, State, Value
from minidnn.graph.symbolic import pointwise
from minidnn.graph.trace import Trace, tracing
from minidnn.graph.types import TensorType, numpy_dtype
from minidnn.layers.build import to_graph
from minidnn.layers.inputs import Shapes
from minidnn.layers.layer import Layer
from minidnn.training.losses import Function, Loss
from minidnn.training.optim.optimizer import Optimizer, Update, if_finite
from minidnn.training.optim.scaling import LossScale, if_all_finite, unscaled


@dataclass(frozen=True)
class Objective:
    """What is made small, and what is measured besides."""

    #: A :class:`Loss`, or any function of output and target on symbols.
    loss: Function
    metrics: Mapping[str, Function]
    #: Types of the targets; None for what the loss says, or for that of the output.
    targets: Sequence[TensorType] | None = None

    def applied(self, network: Layer, shapes: Shapes, mode: str) -> Graph:
        """The graph of a network with targets as further inputs, whose outputs are the loss and
        the measures, by name."""
        graph = to_graph(network, shapes, mode=mode, states=True)
        types = self.target_types(graph)
        with _behind(graph, mode == "train", described=True) as trace:
            many = len(types) > 1
            targets = [
                trace.input(type, f"target{i}" if many else "target")
                for i, type in enumerate(types)
            ]
            output = _packed(graph.outputs, graph.output_names)
            target = tuple(targets) if many else targets[0]
            found = {}
            for name, function in {"loss": self.loss, **self.metrics}.items():
                with trace.scope(name, leaf=False):
                    found[name] = _one_number(name, function(output, target))
        return trace.graph(list(found.values()), list(found))

    def target_types(self, graph: Graph) -> Sequence[TensorType]:
        """The types of the targets for a network."""
        if self.targets is not None:
            return self.targets
        if len(graph.outputs) != 1:
            raise GraphError(
                f"network {graph.name} has {len(graph.outputs)} outputs; valid are one, or a loss "
                "of one's own that takes a tuple or dict of them, and targets= with the shape and "
                "dtype of each target"
            )
        (output,) = graph.outputs
        return [self.loss.target(output.type) if isinstance(self.loss, Loss) else output.type]


def _packed(outputs: Sequence[Value], names: Sequence[str] | None) -> Any:
    if names is not None:
        return dict(zip(names, outputs, strict=True))
    return outputs[0] if len(outputs) == 1 else tuple(outputs)


def _one_number(name: str, value: Any) -> Value:
    if not isinstance(value, Value):
        raise GraphError(
            f"{name} is {value!r:.80} ({type(value).__name__}); valid is a symbolic value of one "
            "element, computed from the output and the target"
        )
    if value.type.size != 1:
        raise GraphError(
            f"{name} has shape {value.shape}; valid is one element, such as the mean: x.mean()"
        )
    found: Value = value if value.type.rank == 0 else value.reshape(())
    return found


@contextmanager
def _behind(graph: Graph, training: bool = True, described: bool = False) -> Iterator[Trace]:
    """Records what follows a graph; ``described`` is what a user writes."""
    with tracing(graph.name, states=True, training=training) as trace:
        trace.adopt(graph)
        trace.describing = described
        yield trace


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
) -> Graph:
    """The graph of a step.

    Args:
        network: any layer.
        shapes: of its inputs, the batch included.
        objective: the loss and the measures.
        optimizer: what parameters become.
        share: of how many batches gradients are added up for one update of the parameters.
        last: whether this is the last one of them, after which parameters change.
        average: by what the moving average of each parameter decays; None for no average.
        scaling: how the loss is scaled before it is differentiated; None for not at all.

    Raises:
        GraphError: the loss is no single number; there is nothing to train, or a parameter that
            the loss does not reach, which is named; the optimizer's groups fit nothing.
    """
    graph = objective.applied(network, shapes, "train")
    names = _trained(network, graph)
    optimizer.check_groups(names)
    outputs = len(graph.outputs)
    target = graph.outputs[0]
    if scaling is not None:
        graph, target = _scaled(graph, scaling)
    whole = gradient(graph, target, of=names)
    gradients: Sequence[Value] = whole.outputs[outputs:]
    states = {state.name: state for state in whole.states}
    with _behind(whole) as trace:
        loss = whole.outputs[0]
        numbers = {
            name: trace.input(TensorType(()), name)
            for name in (optimizer.numbers(0) if last else ())
        }
        _guard(trace, graph, loss)
        parameters = [states[name] for name in names]
        made = gradients
        if scaling is not None:
            gradients = unscaled(trace, gradients, scaling.state(trace))
        if share > 1:
            made = gradients = _shared(trace, parameters, gradients, loss, share, last)
        if last:
            good = loss
            if scaling is not None:
                good = if_all_finite(trace, loss, made)
                scaling.settle(trace, good)
            _optimized(trace, parameters, optimizer.clipped(gradients), optimizer, numbers, good)
            if average is not None:
                _averaged(trace, parameters, good, average)
    return trace.graph(whole.outputs[:outputs], graph.output_names)


#: What ranks add up, and what layers' states become once that is known to be finite.
SHARED, PENDING = "shared.", "pending."


def gradient_graph(
    network: Layer,
    shapes: Shapes,
    objective: Objective,
    *,
    share: int = 1,
    last: bool = True,
    scaling: LossScale | None = None,
) -> Graph:
    """The first part of a step that ranks take together: after it, states named :data:`SHARED` have
    this rank's gradients, loss and measures, which all ranks add up.

    What layers' own states become, such as the statistics of normalizations, waits under
    :data:`PENDING` for :func:`update_graph`: only there is it known whether the loss of all ranks
    is finite.  Arguments and errors are those of :func:`step_graph`.
    """
    graph = _pending(objective.applied(network, shapes, "train"))
    names = _trained(network, graph)
    outputs = len(graph.outputs)
    target = graph.outputs[0]
    if scaling is not None:
        graph, target = _scaled(graph, scaling)
    whole = gradient(graph, target, of=names)
    gradients: Sequence[Value] = whole.outputs[outputs:]
    states = {state.name: state for state in whole.states}
    parameters = [states[name] for name in names]
    with _behind(whole) as trace:
        if scaling is not None:
            gradients = unscaled(trace, gradients, scaling.state(trace))
        if not last:
            _guard(trace, graph, whole.outputs[0])
            _shared(trace, parameters, gradients, whole.outputs[0], share, last)
        else:
            if share > 1:
                gradients = _summed(trace, parameters, gradients, share)
            for parameter, each in zip(parameters, gradients, strict=True):
                trace.update(_slot(trace, SHARED[:-1], parameter), each)
            for name, each in zip(graph.output_names or (), whole.outputs, strict=False):
                trace.update(_measure(trace, name), each)
    return trace.graph(whole.outputs[:outputs], graph.output_names)


def update_graph(
    network: Layer,
    first: Graph,
    optimizer: Optimizer,
    ranks: int,
    *,
    share: int = 1,
    average: float | None = None,
    scaling: LossScale | None = None,
) -> Graph:
    """The second part of a step that ranks take together, once the states named :data:`SHARED` are
    the sums of all ranks': parameters become what the means of the gradients make of them.

    Args:
        network: that of the first part.
        first: the first part, for any shape.
        ranks: how many there are.
        optimizer, share, average, scaling: as for :func:`step_graph`.

    Its first input is the loss of this rank, which is not used: results are given where it lies.
    Its outputs are the means of loss and measures over all ranks.  GraphError if the optimizer's
    groups fit nothing.
    """
    names = _trained(network, first)
    optimizer.check_groups(names)
    known = {state.name: state for state in first.states}
    part = 1.0 / ranks

    def mean(total: Any) -> Any:
        return pointwise("Mean", lambda x: part * x, total)

    with tracing(first.name, states=True, training=True) as trace:
        trace.input(TensorType(()), "own_loss")
        numbers = {name: trace.input(TensorType(()), name) for name in optimizer.numbers(0)}
        measured = {name: mean(_measure(trace, name)) for name in first.output_names or ()}
        loss = measured["loss"]
        parameters = [_same(trace, known[name]) for name in names]
        gradients = [mean(_slot(trace, SHARED[:-1], each)) for each in parameters]
        for pending in first.updates:
            if pending.name.startswith(PENDING):
                _settle(trace, pending, loss, mean)
        good = loss
        if scaling is not None:
            good = if_all_finite(trace, loss, gradients)
            scaling.settle(trace, good)
        if share > 1:
            for parameter in parameters:
                total = _slot(trace, "sum", parameter)
                trace.update(total, if_finite(loss, total, lambda: constant(0.0)))
        _optimized(trace, parameters, optimizer.clipped(gradients), optimizer, numbers, good)
        if average is not None:
            _averaged(trace, parameters, good, average)
    return trace.graph(list(measured.values()), list(measured))


def summed_states(graph: Graph) -> list[str]:
    """Which states all ranks add up after the first part of a step: gradients, measures, and the
    statistics that its layers made, whose means are taken."""
    return [
        state.name
        for state in graph.updates
        if state.name.startswith(SHARED)
        or (state.name.startswith(PENDING) and "float" in state.dtype)
    ]


def _same(trace: Trace, state: State) -> State:
    """A state of another graph, under its name."""
    return trace.state(state.name, state.name, state.type, partial(getattr, state, "data"))


def _measure(trace: Trace, name: str) -> State:
    full = f"{SHARED}measures.{name}"
    return trace.state(full, full, TensorType(()), partial(np.zeros, (), np.float32))


def _pending(graph: Graph) -> Graph:
    """The graph with what layers update under another name."""
    rewriter = Rewriter(graph)
    pending = {
        state: State(state.type, f"{PENDING}{state.name}", partial(getattr, state, "data"))
        for state in graph.updates
    }
    for state, other in pending.items():
        rewriter.replace(state, other)
    for node in graph.nodes:
        rewriter.keep(node)
    found = rewriter.finish()
    updates = {pending[state]: value for state, value in found.updates.items()}
    return Graph(
        found.inputs, found.outputs, found.nodes, found.name, found.output_names, updates=updates
    )


def _settle(trace: Trace, pending: State, loss: Value, mean: Callable[[Any], Any]) -> None:
    """A layer's state becomes what waits for it, the mean of all ranks, if the loss is finite; what
    waits becomes the same."""
    waiting = _same(trace, pending)
    name = pending.name.removeprefix(PENDING)
    state = trace.state(name, name, pending.type, partial(getattr, pending, "data"))
    with trace.scope(f"{name}.update", leaf=True):
        finite: Any = np.isfinite(loss)
        new = mean(waiting) if "float" in pending.dtype else waiting
        chosen: Any = np.where(finite, new, state)
        trace.update(state, chosen)
        trace.update(waiting, chosen)


def _summed(
    trace: Trace, parameters: Sequence[State], gradients: Sequence[Value], share: int
) -> list[Value]:
    """The gradients of the last batch of several, added to the sums of those before it."""
    part = 1.0 / share
    found = []
    for parameter, each in zip(parameters, gradients, strict=True):
        total = _slot(trace, "sum", parameter)
        with trace.scope(total.name, leaf=True):
            found.append(pointwise("Sum", lambda total, g: total + part * g, total, each))
    return found


def _scaled(graph: Graph, scaling: LossScale) -> tuple[Graph, Value]:
    """The graph with the scaled loss, which is no output of it."""
    with _behind(graph) as trace, trace.scope("loss_scale", leaf=True):
        loss: Any = graph.outputs[0]
        scaled: Value = loss * scaling.state(trace)
    return trace.graph(graph.outputs, graph.output_names), scaled


def _trained(network: Layer, graph: Graph) -> list[str]:
    """The names of the parameters that are trained."""
    names = [name for name, _ in network.trainable_parameters()]
    if not names:
        raise GraphError(
            f"{graph.name} has no trainable parameter; valid is a network with at least one that "
            "is neither frozen (layer.freeze(False) undoes that) nor trainable=False"
        )
    held = {state.name for state in graph.states}
    missed = [name for name in names if name not in held]
    if missed:
        raise GraphError(
            f"{graph.name}: the loss does not depend on {', '.join(map(repr, missed))}, which no "
            "layer uses in forward(); valid is a network without them, or freeze() of their layer"
        )
    return names


def _guard(trace: Trace, graph: Graph, loss: Value) -> None:
    """Lets updates of the layers themselves happen only if the loss is finite."""
    finite: Any = np.isfinite(loss)
    for state in graph.updates:
        with trace.scope(f"{state.name}.update", leaf=True):
            chosen: Any = np.where(finite, trace.latest(state), state)
            trace.update_again(state, chosen)


def _slot(trace: Trace, kind: str, parameter: State) -> State:
    name = f"{kind}.{parameter.name}"
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
    """The gradients added to those of the batches before; after the last, sums begin anew."""
    part = 1.0 / share

    def body(total: Expression, g: Expression) -> Expression:
        return total + part * g

    found = []
    for parameter, each in zip(parameters, gradients, strict=True):
        total = _slot(trace, "sum", parameter)
        with trace.scope(total.name, leaf=True):
            if last:
                found.append(pointwise("Sum", body, total, each))
                trace.update(total, if_finite(loss, total, lambda: constant(0.0)))
            else:
                trace.update(total, if_finite(loss, total, body, total, each))
    return found


def _optimized(
    trace: Trace,
    parameters: Sequence[State],
    gradients: Sequence[Value],
    optimizer: Optimizer,
    numbers: Mapping[str, Value],
    loss: Value,
) -> None:
    for parameter, each in zip(parameters, gradients, strict=True):
        slots = {kind: _slot(trace, kind, parameter) for kind in optimizer.kept}
        update = Update(trace, parameter, each, slots, numbers, loss)
        optimizer.settle(update)
        with trace.scope(f"optimizer.{parameter.name}", leaf=True):
            optimizer.apply(update)


def _averaged(trace: Trace, parameters: Sequence[State], loss: Value, decay: float) -> None:
    def body(old: Expression, new: Expression) -> Expression:
        return decay * old + (1.0 - decay) * new

    for parameter in parameters:
        name = f"average.{parameter.name}"
        begin = partial(getattr, parameter, "data")
        old = trace.state(name, name, parameter.type, begin)
        new = trace.latest(parameter)
        with trace.scope(f"average.{parameter.name}", leaf=True):
            trace.update(old, if_finite(loss, old, body, old, new))


def with_averages(graph: Graph, store: Collection[str]) -> Graph:
    """The graph with averages in the place of the parameters that have one."""
    rewriter = Rewriter(graph)
    for state in graph.states:
        name = f"average.{state.name}"
        if name in store:
            rewriter.replace(state, State(state.type, name, lambda s=state: s.data))  # type: ignore[misc]
    for node in graph.nodes:
        rewriter.keep(node)
    return rewriter.finish()
