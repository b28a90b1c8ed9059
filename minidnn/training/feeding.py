"""Reads the batches of a user's loader: inputs and targets in the order of a program's inputs.

A batch may be a pair, a tuple or a mapping, of NumPy arrays or of arrays in a GPU's memory.
:class:`Feeding` finds its arrays by position or by name, and checks their shapes and dtypes.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from minidnn.errors import GraphError
from minidnn.graph.types import TensorType, numpy_dtype
from minidnn.layers.arguments import Shapes, named_types
from minidnn.layers.layer import Layer
from minidnn.training.losses import Loss
from minidnn.training.objective import Objective, packed, takes

#: Keys that common loaders use for the input and the target, where there is one of each.
_INPUTS = ("x", "input", "inputs", "image", "images", "img", "data", "pixel_values", "features")
_TARGETS = ("y", "target", "targets", "label", "labels", "class", "t")

_PAIRS = "valid is an iterable of pairs: the inputs of a batch, and its targets"


class Feeding:
    """Finds the inputs and the targets of batches, for a network and an objective.

    A trainer makes one, and asks it at every step.

    Args:
        network: any layer.
        shape: of its inputs, as :class:`~minidnn.Trainer` is given it.
        objective: says which targets a batch has, and of which types.
    """

    def __init__(self, network: Layer, shape: Shapes, objective: Objective) -> None:
        declared = network._declared_inputs()
        types = named_types(type(network).__name__, declared, shape, "float32")
        self.shapes = tuple(type.shape for _, type in types)
        self._network, self._objective = network, objective
        self._names = [name for name, _ in types]
        if declared is None or any(name is None for name, _, _ in declared):
            parameters = list(inspect.signature(network.forward).parameters)
            self._names = parameters if len(parameters) == len(types) else self._names
        self._outputs: dict[Any, tuple[Sequence[TensorType], Sequence[str] | None]] = {}

    def pairs(self, caller: str, batches: Any) -> Iterator[tuple[Any, Any]]:
        """Yields the inputs and the targets of each batch; GraphError if ``batches`` is not
        iterable, or at an element that is no batch.

        A batch is a pair, a tuple of all inputs and targets, or a mapping from their names.
        """
        if not isinstance(batches, Iterable):
            kind = type(batches).__name__
            raise GraphError(f"{caller}: batches={batches!r:.80} is a {kind}; {_PAIRS}")
        for i, batch in enumerate(batches):
            yield self._pair(f"{caller}: batch {i + 1}", batch)

    def _pair(self, where: str, batch: Any) -> tuple[Any, Any]:
        if isinstance(batch, Mapping):
            return self._named(where, batch)
        if isinstance(batch, (tuple, list)):
            inputs, targets = len(self.shapes), len(self.target_names)
            if len(batch) == 2:
                return batch[0], batch[1]
            if len(batch) == inputs + targets or (targets > 1 and len(batch) == inputs + 1):
                return packed(batch[:inputs]), packed(batch[inputs:])
        many = f" of {len(batch)}" if isinstance(batch, (tuple, list)) else ""
        more = ""
        if len(self.shapes) + len(self.target_names) > 2:
            more = f", or a tuple of {len(self.shapes)} inputs and {len(self.target_names)} targets"
        raise GraphError(f"{where} is a {type(batch).__name__}{many}; {_PAIRS}{more}")

    def _named(self, where: str, batch: Mapping[str, Any]) -> tuple[Any, Any]:
        inputs = self._found(batch, self._names, _INPUTS)
        target_keys = self._target_keys(batch)
        if inputs is not None and target_keys is None:
            others = [name for name in batch if name not in inputs]
            target_keys = others if len(others) == 1 else self._found(batch, ["target"], _TARGETS)
        if inputs is None or target_keys is None:
            raise GraphError(
                f"{where} has {', '.join(map(repr, batch))}; valid is a mapping with the network's "
                f"inputs, {', '.join(map(repr, self._names))}, and the targets, "
                f"{', '.join(map(repr, self.target_names))}, or minidnn.data.Batches(loader, "
                "function) with a function that makes pairs of its batches"
            )
        x, t = [batch[name] for name in inputs], [batch[name] for name in target_keys]
        return packed(x), packed(t)

    def _found(
        self, batch: Mapping[str, Any], names: Sequence[str], usual: Sequence[str]
    ) -> list[str] | None:
        """The keys of a batch that hold these names; None if it has not all of them.

        Where there is one name, a single key among the usual ones stands for it.
        """
        if all(name in batch for name in names):
            return list(names)
        present = [name for name in usual if name in batch]
        return present if len(names) == len(present) == 1 else None

    def _target_keys(self, batch: Mapping[str, Any]) -> list[str] | None:
        """The keys of the targets in a batch: their own names, or the names of the outputs."""
        terms = [term.name for term in self._objective.terms if term.name]
        for names in (self.target_names, terms if self._objective.targets is None else []):
            if names and all(name in batch for name in names):
                return list(names)
        return None

    @property
    def target_names(self) -> list[str]:
        """The names of the targets, in order."""
        types = self._objective.targets
        return self._objective.target_names(1 if types is None else len(types))

    def inputs(self, x: Any) -> tuple[list[Any], tuple[tuple[int, ...], ...]]:
        """The arrays of all inputs, in order, and their shapes; GraphError if they do not fit."""
        if isinstance(x, Mapping):
            missing = [name for name in self._names if name not in x]
            if missing or len(x) != len(self._names):
                raise GraphError(
                    f"x has {', '.join(map(repr, x))}; valid are the network's inputs "
                    f"{', '.join(map(repr, self._names))}"
                )
            inputs = [x[name] for name in self._names]
        else:
            inputs = list(x) if isinstance(x, (tuple, list)) else [x]
        shapes = tuple(tuple(np.shape(array)) for array in inputs)
        if [shape[1:] for shape in shapes] != [shape[1:] for shape in self.shapes] or () in shapes:
            raise GraphError(
                f"x has shapes {', '.join(map(str, shapes))}; valid are "
                f"{', '.join(map(str, self.shapes))}, or another batch"
            )
        return inputs, shapes

    def inputs_of(self, batches: Any) -> Iterator[Any]:
        """Yields the inputs of each batch, whether it has targets or not; arrays are cut into
        batches.
        """
        if self._is_input(batches):
            arrays, shapes = self.inputs(batches)
            size = self.shapes[0][0]
            for begin in range(0, max(shapes[0][0], 1), size):
                yield packed([array[begin : begin + size] for array in arrays])
            return
        if not isinstance(batches, Iterable):
            raise GraphError(
                f"predict: batches={batches!r:.80} is a {type(batches).__name__}; valid are an "
                "array of inputs, and an iterable of batches"
            )
        for i, batch in enumerate(batches):
            if self._is_input(batch):
                yield batch
            elif isinstance(batch, (tuple, list)) and batch and self._is_input(batch[0]):
                yield batch[0]
            elif isinstance(batch, (tuple, list)) and self._is_input(batch[: len(self.shapes)]):
                yield batch[: len(self.shapes)]
            elif isinstance(batch, Mapping) and (names := self._found(batch, self._names, _INPUTS)):
                yield tuple(batch[name] for name in names)
            else:
                raise GraphError(
                    f"predict: batch {i + 1} is {batch!r:.80} ({type(batch).__name__}); valid are "
                    f"inputs of shape {', '.join(map(str, self.shapes))} or another batch, with "
                    "targets behind them or without"
                )

    def _is_input(self, x: Any) -> bool:
        """Whether ``x`` holds all inputs of a batch and nothing else, judged by shapes."""
        if isinstance(x, Mapping):
            arrays = [x[name] for name in self._names if name in x]
            if len(arrays) != len(x):
                return False
        else:
            arrays = list(x) if isinstance(x, (tuple, list)) else [x]
        if len(arrays) != len(self.shapes) or not all(hasattr(array, "shape") for array in arrays):
            return False
        return [tuple(e.shape)[1:] for e in arrays] == [s[1:] for s in self.shapes] and all(
            len(array.shape) for array in arrays
        )

    def targets(
        self, target: Any, shapes: tuple[tuple[int, ...], ...]
    ) -> tuple[list[Any], tuple[TensorType, ...]]:
        """The arrays of all targets, in order, and their types; GraphError if they do not fit.

        A single array is the target of all losses.
        """
        names, objective = self.target_names, self._objective
        arrays = self._listed(target, names)
        explicit = objective.explicit(shapes[0][0], self.shapes[0][0])
        typed = []
        for i, (name, array) in enumerate(zip(names, arrays, strict=True)):
            if explicit is not None and len(names) != len(objective.terms):
                typed.append(_checked(name, array, [explicit[i]]))  # a loss takes several targets
                continue
            term = objective.terms[i]
            outputs, output_names = self.outputs(shapes)
            output = outputs[objective.place(term, outputs, output_names) or 0]
            types = None if explicit is None else [explicit[i]]
            typed.append(_target_of(name, array, term.loss, output, types))
        return [array for array, _ in typed], tuple(type for _, type in typed)

    def _listed(self, target: Any, names: Sequence[str]) -> list[Any]:
        """The arrays of ``target`` in the order of ``names``."""
        if isinstance(target, Mapping):
            terms = [term.name for term in self._objective.terms]
            for keys in (names, terms):
                if all(key in target for key in keys):
                    return [target[key] for key in keys]
            raise GraphError(
                f"targets has {', '.join(map(repr, target))}; valid are "
                f"{', '.join(map(repr, names))}"
            )
        if len(names) == 1:
            return [target]
        if not isinstance(target, (tuple, list)) and self._objective.targets is None:
            return [target] * len(names)
        targets = list(target)
        if len(targets) != len(names):
            raise GraphError(f"{len(targets)} targets given; valid are {len(names)}")
        return targets

    def outputs(
        self, shapes: tuple[tuple[int, ...], ...]
    ) -> tuple[Sequence[TensorType], Sequence[str] | None]:
        """The types and names of the network's outputs for inputs of these shapes."""
        described = self._outputs.get(shapes)
        if described is None:
            graph = self._network._to_graph(list(shapes))
            described = [output.type for output in graph.outputs], graph.output_names
            self._outputs[shapes] = described
        return described

    def nothing(self) -> Any:
        """The network's outputs for no samples: arrays whose first axis has extent 0."""
        types, names = self.outputs(self.shapes)
        empty = [np.zeros((0, *type.shape[1:]), numpy_dtype(type.dtype)) for type in types]
        return packed(empty, names)

    def output_shape(self, term: str | None, shapes: tuple[tuple[int, ...], ...]) -> Sequence[int]:
        """The shape of the output that the term of this name is computed from; without such a term,
        the shape of the first output.
        """
        outputs, names = self.outputs(shapes)
        chosen = next((t for t in self._objective.terms if t.name == term), None)
        index = None if chosen is None else self._objective.place(chosen, outputs, names)
        return outputs[index or 0].shape


def concatenated(found: Sequence[Any]) -> Any:
    """Concatenates the results of batches along axis 0, on the host."""
    first = found[0]
    if isinstance(first, Mapping):
        return {name: concatenated([each[name] for each in found]) for name in first}
    if isinstance(first, (tuple, list)):
        return tuple(concatenated(each) for each in zip(*found, strict=True))
    return np.concatenate([on_host(each) for each in found])


def _target_of(
    name: str, array: Any, loss: Any, output: TensorType, types: Sequence[TensorType] | None
) -> tuple[Any, TensorType]:
    """The target in the form that its loss takes, and its type: one of ``types``, if given."""
    floats, shape = _kind(array) == "f", tuple(np.shape(array))
    formed = loss.form(floats, shape, output) if isinstance(loss, Loss) else loss
    checked, type = _checked(name, array, takes(formed, output) if types is None else types)
    if isinstance(formed, Loss) and not is_on_gpu(array):
        formed.check(np.asarray(array), output)
    return checked, type


def _kind(array: Any) -> str:
    """The kind of an array's dtype as a letter of NumPy's, whichever library made the array."""
    name = str(getattr(array, "dtype", None) or np.asarray(array).dtype)
    if "float" in name:
        return "f"
    return "u" if "uint" in name else "i" if "int" in name else "b" if "bool" in name else "O"


def _checked(name: str, target: Any, types: Sequence[TensorType]) -> tuple[Any, TensorType]:
    """The target as the first of ``types`` that has its kind of numbers and its shape."""
    is_there = is_on_gpu(target)  # reading its values would wait for the GPU
    array = target if is_there else np.asarray(target)
    kind, shape = _kind(array), tuple(np.shape(array))
    for type in types:
        kinds = "iu" if "int" in type.dtype else "f"
        if kind in kinds and shape == type.shape:
            if is_there or kinds == "f":
                return array, type
            return array.astype(numpy_dtype(type.dtype), copy=False), type
    valid = " or ".join(
        f"{'an int' if 'int' in type.dtype else 'a float'} dtype of shape {type.shape}"
        for type in types
    )
    raise GraphError(f"{name} is {array.dtype} of shape {shape}; valid is {valid}")


def is_on_gpu(array: Any) -> bool:
    """Whether an array, of whichever library, is in a GPU's memory."""
    is_cuda = getattr(array, "is_cuda", None)  # PyTorch tells more than CPU or GPU by the other
    return hasattr(array, "__cuda_array_interface__") if is_cuda is None else bool(is_cuda)


def on_host(array: Any) -> np.ndarray:
    """The array itself, or a copy in the host's memory of one that is on a GPU."""
    if is_on_gpu(array):
        array = array.detach().cpu() if hasattr(array, "detach") else array.get()
    return np.asarray(array)
