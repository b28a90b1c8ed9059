"""One ATen operation, called in PyTorch and as minidnn translates it, with its gradients.

The operation is translated by itself, so that what is compared is the translation and its gradient
alone, whatever captures networks.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.fx import Graph as FxGraph
from torch.fx import Node

import minidnn as md
from minidnn.frontends.torch import aten
from minidnn.frontends.torch.aten.call import AtenCall, known, type_of
from minidnn.gradients.reverse import pullback, reached_values
from minidnn.graph.checker import check
from minidnn.graph.evaluate import evaluate
from minidnn.graph.ir import Constant, Graph, Value
from minidnn.graph.trace import tracing
from minidnn.graph.types import FLOATS, numpy_dtype

assert aten.__all__  # translations are registered by importing their families

Arrays = list[np.ndarray | None]


def overload(name: str) -> Any:
    """The ATen operation of a name such as "conv2d.default"."""
    packet, which = name.split(".")
    return getattr(getattr(torch.ops.aten, packet), which)


@dataclass
class OneCall:
    """An operation with arguments.

    ``arguments`` are by the names of the operation's schema; tensors of floating-point numbers are
    differentiated by, other tensors are constants, but bools, which are inputs.
    """

    name: str
    arguments: Mapping[str, Any]

    def __post_init__(self) -> None:
        self.target = overload(self.name)
        self.tensors: list[torch.Tensor] = []
        for given in self.arguments.values():
            for each in given if isinstance(given, (list, tuple)) else (given,):
                if isinstance(each, torch.Tensor) and not any(each is t for t in self.tensors):
                    self.tensors.append(each)

    def _called(self, stands: Mapping[int, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Positional and other arguments, with something else in the places of tensors."""

        def placed(given: Any) -> Any:
            if isinstance(given, (list, tuple)):
                return [placed(each) for each in given]
            return stands.get(id(given), given)

        args, kwargs = [], {}
        for argument in self.target._schema.arguments:
            if argument.name not in self.arguments:
                given = argument.default_value
            else:
                given = placed(self.arguments[argument.name])
            if argument.kwarg_only:
                kwargs[argument.name] = given
            else:
                args.append(given)
        return tuple(args), kwargs

    # PyTorch

    def by_torch(
        self, seeds: Sequence[np.ndarray] | None = None, apart: bool = False
    ) -> tuple[Arrays, Arrays]:
        """PyTorch's results, and its gradients by the tensors of floating-point numbers, where the
        results have the gradients ``seeds``; ones without them.

        ``apart`` says that elements do not lie side by side: PyTorch then takes them one by one,
        where it otherwise takes vectors of them.
        """
        fixed = [each for name, each in self.arguments.items() if name.startswith("running_")]
        leaves = {
            id(t): (_apart(t) if apart else t.clone()).requires_grad_(
                t.is_floating_point() and not any(t is each for each in fixed)
            )
            for t in self.tensors
        }
        args, kwargs = self._called(leaves)
        found = self.target(*args, **kwargs)
        results = list(found) if isinstance(found, (list, tuple)) else [found]
        smooth = [r for r in results if r.requires_grad]
        by = [leaves[id(t)] for t in self.tensors if t.is_floating_point()]
        grads: Arrays = [None for _ in by]
        if smooth:
            given = [
                torch.ones_like(r) if seeds is None else torch.from_numpy(seeds[i]).to(r)
                for i, r in enumerate(smooth)
            ]
            given = [_apart(each) if apart else each for each in given]
            wanted = [i for i, each in enumerate(by) if each.requires_grad]
            gradients = torch.autograd.grad(
                smooth, [by[i] for i in wanted], given, allow_unused=True
            )
            for i, gradient in zip(wanted, gradients, strict=True):
                grads[i] = None if gradient is None else _numpy(gradient)
        return [_numpy(r) for r in results], grads

    # minidnn

    def graph(self) -> tuple[Graph, list[Value], list[int]]:
        """The graph of the operation, its operands, and the places of results that it has."""
        plain = FxGraph()
        nodes: dict[int, Node] = {}
        for i, tensor in enumerate(self.tensors):
            node = plain.placeholder(f"operand{i}")
            node.meta["val"] = tensor
            nodes[id(tensor)] = node
        args, kwargs = self._called(nodes)
        node = plain.call_function(self.target, args, kwargs)
        eager, eager_kwargs = self._called({})
        with torch.no_grad():
            node.meta["val"] = found = self.target(*eager, **eager_kwargs)
        if isinstance(found, (list, tuple)):
            plain.output(
                tuple(plain.call_function(operator.getitem, (node, i)) for i in range(len(found)))
            )
        else:
            plain.output(node)
        with tracing("one", training=True) as trace:
            values = _Values()
            for tensor in self.tensors:
                operand = nodes[id(tensor)]
                if tensor.is_floating_point() or tensor.dtype == torch.bool:
                    values.found[operand] = trace.input(type_of(tensor), operand.name)
                else:
                    values.found[operand] = _constant(trace, operand, tensor)
            found = known()[self.name].converter(AtenCall(node, values))
            results = list(found) if isinstance(found, (list, tuple)) else [found]
            there = [i for i, value in enumerate(results) if value is not None]
            graph = trace.graph([results[i] for i in there])
        check(graph)
        return graph, [v for v in graph.inputs if v.dtype in FLOATS], there

    def by_minidnn(
        self, device: str, dtype: str, seeds: Sequence[np.ndarray] | None = None
    ) -> tuple[Arrays, Arrays]:
        """As :meth:`by_torch`, on a device; results that are not computed are None."""
        graph, operands, there = self.graph()
        inputs = [t.numpy() for t in self.tensors if t.is_floating_point() or t.dtype == torch.bool]
        found = _run(graph, inputs, device, dtype)
        results: Arrays = [None] * (max(there) + 1)
        for place, each in zip(there, found, strict=True):
            results[place] = each
        reached = reached_values(graph)
        of = [value for value in operands if value in reached]
        grads: Arrays = [None for _ in operands]
        if of:
            back = pullback(graph, of)
            given = [v for v in graph.outputs if v.dtype in FLOATS]
            seeded = [
                np.ones(v.shape, dtype) if seeds is None else seeds[i].astype(dtype)
                for i, v in enumerate(given)
            ]
            for value, each in zip(of, _run(back, [*inputs, *seeded], device, dtype), strict=True):
                grads[operands.index(value)] = each
        return results, grads


def _run(graph: Graph, inputs: Sequence[np.ndarray], device: str, dtype: str) -> list[np.ndarray]:
    if not graph.nodes:
        return list(inputs)
    if device == "reference":
        return list(evaluate(graph, inputs, dtype))
    found = md.compile(graph, device=device)(*inputs)
    return list(found) if isinstance(found, (tuple, list)) else [found]


def _apart(tensor: torch.Tensor) -> torch.Tensor:
    if not tensor.dim() or not tensor.is_floating_point():
        return tensor.clone()
    return tensor.repeat_interleave(2, -1).detach()[..., ::2]


def _numpy(tensor: torch.Tensor) -> np.ndarray:
    return tensor.detach().numpy()


def _constant(trace: Any, node: Node, tensor: torch.Tensor) -> Constant:
    type = type_of(tensor)
    array = tensor.numpy().astype(numpy_dtype(type.dtype))
    found: Constant = trace.constant(node, node.name, type, lambda: array)
    return found


class _Values:
    """The values of operands; what is written to them is not looked at."""

    def __init__(self) -> None:
        self.found: dict[Node, Value] = {}

    def __getitem__(self, node: Node) -> Value:
        return self.found[node]

    def write(self, node: Node, value: Value) -> None:
        self.found[node] = value
