"""From a model to a graph: node after node, all that cannot be converted told at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from minidnn.errors import GraphError, UnsupportedError
from minidnn.frontends.onnx.build import Builder
from minidnn.frontends.onnx.call import Call, Refused
from minidnn.frontends.onnx.limits import MOST_OUTPUTS, Budget
from minidnn.frontends.onnx.model import OWN_DOMAIN, Declared, Model, read_model
from minidnn.frontends.onnx.operators import CONVERTERS
from minidnn.frontends.onnx.shapes import bind_shapes, check_output
from minidnn.frontends.onnx.signature import signature_of
from minidnn.graph.ir import Graph, Value
from minidnn.graph.trace import Trace, tracing
from minidnn.graph.types import TensorType, numpy_dtype


class OpenInputsError(UnsupportedError):
    """Inputs decide a shape, an axis or the like, so they must be known: ``names`` says which."""

    def __init__(self, message: str, names: tuple[str, ...]) -> None:
        super().__init__(message)
        self.names = names


def load_onnx(model: Any, shape: Any = None, constants: Mapping[str, Any] | None = None) -> Graph:
    """The graph of an ONNX model: a path, its bytes, or a ``ModelProto``.

    shape: for inputs whose sizes the model leaves open: one shape, a sequence of shapes or a dict
        of them by input name; open sizes of one name are equal everywhere.
    constants: values for inputs by name, which are then no inputs of the graph; inputs that decide
        the shape of something must be given so.

    The graph's outputs are returned in order, several of them as a dict by their names.

    Raises:
        GraphError: the model is malformed, hostile, or the shapes do not fit it.
        UnsupportedError: nodes, dtypes or the opset are not known; all inputs, initializers and
            nodes are listed at once.
        DeviceError: the package ``onnx`` is not installed.
        OSError: the file cannot be read.
    """
    graph, _ = load_model(read_model(model), shape, constants)
    return graph


def load_model(
    model: Model, shape: Any = None, constants: Mapping[str, Any] | None = None
) -> tuple[Graph, dict[str, Value | None]]:
    """The graph of a model that was read, and what each name of the model stands for in it."""
    if constants is not None and not isinstance(constants, Mapping):
        raise GraphError(
            f"{model.title}: constants is a {type(constants).__name__}; valid is a dict of values "
            "by the input's name"
        )
    with tracing(str(model.proto.graph.name) or "onnx") as trace:
        conversion = _Conversion(model, trace, shape, constants or {})
        return conversion.graph(), conversion.values


class _Conversion:
    def __init__(
        self, model: Model, trace: Trace, shape: Any, constants: Mapping[str, Any]
    ) -> None:
        self.model = model
        self.trace = trace
        self.build = Builder(trace, Budget(model.bytes))
        #: What each name of the model stands for; None for what could not be converted.
        self.values: dict[str, Value | None] = dict.fromkeys(model.refused)
        self.refused: list[str] = []
        self.open_inputs: set[str] = set()
        for name, array in model.initializers.items():
            self.values[name] = self.build.constant(array, name)
        known = self._known(constants)
        inputs = [one for one in model.inputs if one.name not in constants]
        for name, size in bind_shapes(model.title, inputs, shape, known).items():
            dtype = next(one.dtype for one in inputs if one.name == name and one.dtype)
            value = self.build.input(trace.input(TensorType(size, dtype), name))
            self.values[name] = value

    def _known(self, constants: Mapping[str, Any]) -> list[tuple[Declared, tuple[int, ...]]]:
        """The inputs that are constants, which are taken over, and their shapes."""
        found = []
        declared = {one.name: one for one in self.model.inputs}
        for name, given in constants.items():
            if name not in declared:
                raise GraphError(
                    f"{self.model.title}: constants names {name!r:.100}; valid are {list(declared)}"
                )
            dtype = declared[name].dtype
            if dtype is None:
                continue
            try:
                array = np.asarray(given)
            except ValueError as error:  # rows of different lengths
                raise GraphError(
                    f"{self.model.title}: the constant {name!r} is no array: {error}"
                ) from error
            if array.dtype != numpy_dtype(dtype):
                raise GraphError(
                    f"{self.model.title}: the constant {name!r} is {array.dtype}; valid is {dtype}"
                )
            self.values[name] = self.build.constant(array, name)
            found.append((declared[name], tuple(array.shape)))
        return found

    def graph(self) -> Graph:
        for number, proto in enumerate(self.model.proto.graph.node):
            self._node(number, proto)
        if self.refused or self.model.refused:
            raise self._refusal()
        outputs = []
        for name in self.model.outputs:
            value = self.values.get(name)
            if value is None:
                raise GraphError(f"{self.model.title}: nothing computes its output {name!r:.100}")
            outputs.append(value)
        for declared, value in zip(self.model.proto.graph.output, outputs, strict=True):
            check_output(self.model.title, declared, value.type)
        names = self.model.outputs if len(outputs) > 1 else None
        if names is not None and len(set(names)) < len(names):
            raise GraphError(f"{self.model.title} has two outputs of one name: {names}")
        return self.trace.graph(outputs, names)

    def _refusal(self) -> UnsupportedError:
        """All that cannot be taken: inputs, initializers, nodes."""
        tensors = list(self.model.refused.values())
        counts = [f"{len(tensors)} tensors"] * bool(tensors)
        counts += [f"{len(self.refused)} nodes"] * bool(self.refused)
        message = (
            f"{self.model.title} (opset {self.model.opset}) has {' and '.join(counts)} that cannot "
            "be converted:\n  " + "\n  ".join(tensors + self.refused)
        )
        if self.open_inputs:
            return OpenInputsError(message, tuple(sorted(self.open_inputs)))
        return UnsupportedError(message)

    def _node(self, number: int, proto: Any) -> None:
        label = str(proto.name) or f"{proto.op_type}_{number}"
        where = f"{self.model.title}: node {label!r:.100} ({proto.op_type!s:.50})"
        if len(proto.output) > MOST_OUTPUTS:
            raise GraphError(f"{where} has {len(proto.output)} outputs; valid are {MOST_OUTPUTS}")
        for name in proto.output:
            if name and name in self.values:
                raise GraphError(f"{where} computes {name!r:.100}, which is there already")
        for name in proto.input:
            if name and name not in self.values:
                raise GraphError(
                    f"{where} reads {name!r:.100} before anything computes it: the nodes are in no "
                    "order in which they can run, or in a cycle"
                )
        self.values |= dict.fromkeys((name for name in proto.output if name), None)
        try:
            results = self._converted(proto, label)
        except (Refused, UnsupportedError) as reason:
            self.refused.append(f"{label!r:.100} ({proto.op_type!s:.50}): {reason}")
            if isinstance(reason, Refused):
                self.open_inputs |= reason.inputs
            return
        except GraphError as error:
            raise GraphError(f"{where}: {error}") from error
        except (ArithmeticError, AssertionError, LookupError, TypeError, ValueError) as error:
            # Attributes of the right types may still be beyond what an operator computes with.
            raise GraphError(f"{where} does not fit its operands: {error!r}") from error
        except MemoryError as error:
            raise GraphError(f"{where} takes more memory than there is") from error
        for name, value in zip(proto.output, results, strict=False):
            if name:
                self.values[name] = value

    def _converted(self, proto: Any, label: str) -> tuple[Value, ...]:
        if proto.domain not in OWN_DOMAIN:
            raise Refused(f"it is of the domain {proto.domain!r:.50}")
        if proto.op_type not in CONVERTERS:
            raise Refused("no operator of minidnn does that")
        operands = [self.values[name] if name else None for name in proto.input]
        unknown = [n for n, v in zip(proto.input, operands, strict=True) if n and v is None]
        if unknown:
            return ()  # what it reads was refused already
        signature = signature_of(str(proto.op_type), self.model.opset)
        if signature is not None:
            signature.check(operands)
        call = Call(proto, self.model.opset, operands, self.build, self.model.path)
        with self.trace.scope(label, leaf=True):
            results = CONVERTERS[proto.op_type].convert(call)
        if call.unread():
            raise Refused(f"its attributes {', '.join(call.unread())} are not known")
        found = results if isinstance(results, tuple) else (results,)
        missing = [n for n in proto.output[len(found) :] if n]
        if missing:
            raise Refused(f"its output {missing[0]!r:.50} is not computed")
        return found
