"""Small random models of all operators that are taken, with what ONNX Runtime computes.

A model grows node by node.  ONNX Runtime runs each new node by itself, on the arrays that are there
already, so that the shapes and the expected values of all names are known at once; what it refuses
is drawn again.  Attributes and operands are drawn as the model's opset has them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

from .models import node

#: The oldest and the newest opset that are drawn; ONNX Runtime knows none beyond.
OPSETS = (7, min(26, onnx.defs.onnx_opset_version()))
#: Elements of a value, and the largest number in one.
MOST_ELEMENTS = 4096
LARGEST = 1e4

_TYPES = {
    "float32": TensorProto.FLOAT,
    "int64": TensorProto.INT64,
    "int32": TensorProto.INT32,
    "bool": TensorProto.BOOL,
}


class RandomModel:
    """A model that grows.

    Attributes:
        opset: that of its operators.
        arrays: what each name is.
        exact: names of values that any engine computes to the last bit: what depends on them in
            jumps, as rounding does, is comparable.
        inputs: names of the model's inputs.
        nodes: in order.
    """

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.opset = self.draw.randint(*OPSETS)
        self.arrays: dict[str, np.ndarray] = {}
        self.exact: set[str] = set()
        self.inputs: list[str] = []
        self.nodes: list[Any] = []
        self._known: dict[str, np.ndarray] = {}
        self._constants: set[str] = set()

    # Drawing

    def chance(self, part: float) -> bool:
        return self.draw.random() < part

    def shape(self, rank: int, most: int = 5) -> tuple[int, ...]:
        return tuple(self.draw.randint(1, most) for _ in range(rank))

    def numbers(self, shape: Sequence[int], dtype: str = "float32") -> np.ndarray:
        """Multiples of a quarter, or small integers."""
        made = np.random.default_rng(self.draw.getrandbits(32))
        if dtype == "float32":
            return np.array(made.integers(-12, 13, tuple(shape)) / 4, np.float32)
        low, high = (0, 2) if dtype == "bool" else (-9, 10)
        return np.array(made.integers(low, high, tuple(shape)), dtype)

    def input(self, shape: Sequence[int], dtype: str = "float32") -> str:
        name = f"x{len(self.inputs)}"
        self.inputs.append(name)
        self.arrays[name] = self.numbers(shape, dtype)
        self.exact.add(name)
        return name

    def constant(self, array: Any, dtype: str | None = None) -> str:
        """A value that is known: an initializer or the output of a Constant."""
        made = np.asarray(array, dtype)
        name = f"c{len(self._known)}"
        self.arrays[name] = self._known[name] = made
        self.exact.add(name)
        if self.chance(0.3):
            tensor = numpy_helper.from_array(made, "")
            self.nodes.append(node("Constant", "", name, value=tensor))
            self._constants.add(name)
        return name

    def weight(self, shape: Sequence[int], positive: bool = False) -> str:
        """Parameters: known, and now and then an input."""
        array = np.asarray(self.numbers(shape) / 4, np.float32)
        if positive:
            array = np.asarray(np.abs(array) + 0.5, np.float32)
        name = self.input(shape) if self.chance(0.1) else self.constant(array)
        np.copyto(self.arrays[name], array)
        return name

    def value(
        self,
        ranks: Sequence[int] = (0, 1, 2, 3, 4, 5),
        dtypes: Sequence[str] = ("float32",),
        exact: bool = False,
    ) -> str:
        """A value that is there, or a new input, of one of these ranks and dtypes."""
        found = [
            name
            for name, array in self.arrays.items()
            if array.ndim in ranks
            and str(array.dtype) in dtypes
            and name not in self._known
            and array.size
            and (name in self.exact or not exact)
        ]
        if found and self.chance(0.8):
            # The latest most often, so that chains grow.
            return found[-1] if self.chance(0.6) else self.draw.choice(found)
        return self.input(self.shape(self.draw.choice(list(ranks))), self.draw.choice(list(dtypes)))

    def partner(self, name: str, known: float = 0.4) -> str:
        """A value that broadcasts with another, of its dtype."""
        array = self.arrays[name]
        shape = [size if self.chance(0.7) else 1 for size in array.shape]
        shape = shape[self.draw.randint(0, len(shape)) :] if self.chance(0.4) else shape
        if self.chance(0.2):
            shape = [*self.shape(1), *shape] if len(shape) == array.ndim < 4 else shape
        same = [
            other
            for other, there in self.arrays.items()
            if there.shape == array.shape and there.dtype == array.dtype and other != name
        ]
        if same and self.chance(0.4):
            return self.draw.choice(same)
        if self.chance(known):
            return self.constant(self.numbers(shape, str(array.dtype)))
        return self.input(shape, str(array.dtype))

    def maybe(self, attributes: dict[str, Any], part: float = 0.5) -> dict[str, Any]:
        """Some of these attributes; the others have their defaults."""
        return {key: value for key, value in attributes.items() if self.chance(part)}

    # Growing

    def add(
        self,
        kind: str,
        inputs: Sequence[str],
        outputs: int = 1,
        exact: bool = False,
        **attributes: Any,
    ) -> list[str]:
        """A node; the names of its outputs, or none if ONNX Runtime refuses it or its results are
        empty, too large or not finite.

        exact: whether results are the same to the last bit where all inputs are.
        """
        names = [f"v{len(self.nodes)}_{i}" for i in range(outputs)]
        made = helper.make_node(kind, list(inputs), names, **attributes)
        results = self._run(made)
        if results is None:
            return []
        for result in results:
            if str(result.dtype) not in _TYPES or not 0 < result.size <= MOST_ELEMENTS:
                return []
            if not np.isfinite(result).all() or np.abs(result.astype(float)).max(initial=0) > (
                LARGEST
            ):
                return []
        self.nodes.append(made)
        self.arrays |= dict(zip(names, results, strict=True))
        if exact and all(name in self.exact for name in inputs if name):
            self.exact |= set(names)
        return names

    def step(self, kind: str, *inputs: str | None, **attributes: Any) -> str | None:
        """An exact node of one output, unless an input is missing; its name, if it was added."""
        given = [name for name in inputs if name is not None]
        if len(given) < len(inputs):
            return None
        names = self.add(kind, given, exact=True, **attributes)
        return names[0] if names else None

    def _run(self, made: Any) -> list[np.ndarray] | None:
        """What ONNX Runtime computes; known operands are initializers, as in the model."""
        names = [name for name in dict.fromkeys(made.input) if name]
        given = {name: self.arrays[name] for name in names if name not in self._known}
        return run(self._model([made], list(given), list(made.output)), given)

    def _model(self, nodes: Sequence[Any], inputs: Sequence[str], outputs: Sequence[str]) -> Any:
        made_here = {name for each in nodes for name in each.output}
        read = {name for each in nodes for name in each.input} | set(outputs)
        kept = [name for name in self._known if name in read - made_here]

        def info(name: str) -> Any:
            array = self.arrays[name]
            return helper.make_tensor_value_info(name, _TYPES[str(array.dtype)], array.shape)

        ends = [
            info(name) if name in self.arrays else helper.make_empty_tensor_value_info(name)
            for name in outputs
        ]
        graph = helper.make_graph(
            nodes,
            "random",
            [info(name) for name in inputs],
            ends,
            [numpy_helper.from_array(self._known[name], name) for name in kept],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)])
        # Before version 4, initializers had to be inputs as well.
        model.ir_version = 8 if self.opset < 20 else 10
        return model

    @property
    def kinds(self) -> set[str]:
        return {each.op_type for each in self.nodes}

    def outputs(self) -> list[str]:
        """What nothing reads, all of it computed."""
        read = {name for each in self.nodes for name in each.input}
        computed = [n for each in self.nodes for n in each.output if n not in self._constants]
        ends = [name for name in computed if name not in read]
        return ends or computed[-1:]

    def model(self) -> Any:
        """The model as a ``ModelProto``."""
        return self._model(self.nodes, self.inputs, self.outputs())


ort.set_default_logger_severity(4)


def run(model: Any, inputs: dict[str, np.ndarray]) -> list[np.ndarray] | None:
    """What ONNX Runtime computes without rewrites; None if it refuses."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        data = model.SerializeToString()
        session = ort.InferenceSession(data, options, providers=["CPUExecutionProvider"])
        found: list[np.ndarray] = [np.asarray(each) for each in session.run(None, inputs)]
    except Exception:  # its exceptions have no common base
        return None
    return found


Drawer = Callable[[RandomModel], Any]


def random_model(seed: int, drawers: Sequence[Drawer], nodes: int = 5) -> RandomModel:
    """A model of up to so many nodes, the constants not counted."""
    made = RandomModel(seed)
    wanted = made.draw.randint(1, nodes)
    for _ in range(40):
        made.draw.choice(drawers)(made)
        if sum(each.op_type != "Constant" for each in made.nodes) >= wanted:
            break
    return made
