"""The writer of an ONNX model: its nodes, initializers and unique names; element-wise operators.

Some operators have a counterpart in ONNX; all other element-wise ones are written operation by
operation from their scalar expressions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from minidnn.errors import UnsupportedError
from minidnn.graph import operators as ops
from minidnn.graph.ir import Constant, Node, State, Value, fresh
from minidnn.graph.operator import Elementwise, Operator
from minidnn.graph.quantization import (
    DEQUANTIZE,
    PER_CHANNEL,
    QUANTIZE,
    dequantization_of,
    quantization_of,
)
from minidnn.graph.types import FLOATS, INT8_DTYPES, INTEGERS, numpy_dtype

#: minidnn's dtypes -> ``TensorProto.DataType``.
DATA_TYPES = {
    "float32": 1,
    "uint8": 2,
    "int8": 3,
    "int32": 6,
    "int64": 7,
    "bool": 9,
    "float16": 10,
    "float64": 11,
}

#: Writes one node: takes the writer, the node and the names of its operands, and returns the name
#: of its output.
Write = Callable[["Writer", Node, list[str]], str]


class Writer:
    """Collects the nodes and initializers of a model.

    Attributes:
        onnx: the package ``onnx``.
        opset: the version of the operator domain that is written.
        nodes: ``NodeProto`` in order.
        initializers: ``TensorProto``.
    """

    def __init__(self, onnx: ModuleType, opset: int) -> None:
        self.onnx = onnx
        self.opset = opset
        self.nodes: list[Any] = []
        self.initializers: list[Any] = []
        self._taken: set[str] = set()
        self._names: dict[Value, str] = {}

    def fresh(self, name: str) -> str:
        """Reserves and returns the first free one of ``name``, ``name_1``, ``name_2``, ..."""
        return fresh(name, self._taken, "_")

    def name(self, value: Value) -> str:
        """The name of a value; a constant becomes an initializer when it is first asked for."""
        if value not in self._names and isinstance(value, Constant):
            self._names[value] = self.constant(value.data, value.name)
        if isinstance(value, State):
            raise UnsupportedError(
                f"state {value.name!r} lives across runs, and ONNX has none; export a network or a "
                "graph without states"
            )
        return self._names[value]

    def bind(self, value: Value, name: str) -> None:
        """Sets the name of a value that a node or an input has."""
        self._names[value] = name

    def constant(self, array: Any, name: str = "constant") -> str:
        """Adds an initializer and returns its name."""
        fresh = self.fresh(name)
        data = np.ascontiguousarray(array).reshape(np.shape(array))
        self.initializers.append(self.onnx.numpy_helper.from_array(data, fresh))
        return fresh

    def integers(self, values: Sequence[int]) -> str:
        """Adds a list of int64 as an initializer and returns its name."""
        return self.constant(np.array(list(values), np.int64))

    def number(self, value: float, dtype: str) -> str:
        """Adds a scalar of that dtype as an initializer and returns its name."""
        return self.constant(np.array(value, numpy_dtype(dtype)), "number")

    def add(self, kind: str, inputs: Sequence[str], name: str | None = None, **given: Any) -> str:
        """Adds a node with one output and returns the output's name; ``given`` are attributes."""
        output = self.fresh(name or kind.lower())
        node = self.onnx.helper.make_node(kind, list(inputs), [output], name=output, **given)
        self.nodes.append(node)
        return output

    def reshape(self, x: str, shape: Sequence[int], name: str | None = None) -> str:
        return self.add("Reshape", [x, self.integers(shape)], name, allowzero=0)

    def refuse(self, node: Node, reason: str) -> UnsupportedError:
        """The error of a node that ONNX cannot express."""
        return UnsupportedError(
            f"node {node.name!r} ({node.op}) has no counterpart in ONNX: {reason}"
        )


class Writers:
    """A registry of functions by the operators that they write, used as a decorator."""

    def __init__(self) -> None:
        self._known: dict[type[Operator], Write] = {}

    def __call__(self, *kinds: type[Operator]) -> Callable[[Write], Write]:
        def register(write: Write) -> Write:
            for kind in kinds:
                self._known[kind] = write
            return write

        return register

    @property
    def known(self) -> Mapping[type[Operator], Write]:
        return self._known


writers = Writers()

_PLAIN: dict[type, str] = {
    **{ops.Add: "Add", ops.Sub: "Sub", ops.Mul: "Mul", ops.Div: "Div", ops.ReLU: "Relu"},
    **{ops.Sigmoid: "Sigmoid", ops.Tanh: "Tanh", ops.Hardswish: "HardSwish"},
    **{ops.Identity: "Identity", ops.Dropout: "Identity", ops.Reorder: "Identity"},
}


@writers(*_PLAIN)
def _plain(writer: Writer, node: Node, inputs: list[str]) -> str:
    if isinstance(node.op, ops.ReLU) and node.output.dtype in INTEGERS:
        # ONNX has Relu of integers, but ONNX Runtime has none of int64.
        return write_expression(writer, node, inputs)
    return writer.add(_PLAIN[type(node.op)], inputs, node.name)


#: Operators with attributes in ONNX, and what these are.
_WITH_ATTRIBUTES: dict[type, tuple[str, Callable[[Any], dict[str, Any]]]] = {
    ops.LeakyReLU: ("LeakyRelu", lambda op: {"alpha": float(op.negative_slope)}),
    ops.ELU: ("Elu", lambda op: {"alpha": float(op.alpha)}),
    ops.GELU: ("Gelu", lambda op: {"approximate": op.approximate}),
    ops.Hardsigmoid: ("HardSigmoid", lambda op: {"alpha": 1 / 6, "beta": 0.5}),
    ops.BatchNorm: ("BatchNormalization", lambda op: {"epsilon": float(op.eps)}),
    ops.Softmax: ("Softmax", lambda op: {"axis": op.dim}),
    ops.LogSoftmax: ("LogSoftmax", lambda op: {"axis": op.dim}),
    ops.Concat: ("Concat", lambda op: {"axis": op.axis}),
    ops.Transpose: ("Transpose", lambda op: {"perm": list(op.dims)}),
    ops.ArgMax: (
        "ArgMax",
        lambda op: {"axis": op.dim, "keepdims": int(op.keepdim), "select_last_index": int(op.last)},
    ),
}


@writers(*_WITH_ATTRIBUTES)
def _with_attributes(writer: Writer, node: Node, inputs: list[str]) -> str:
    kind, attributes = _WITH_ATTRIBUTES[type(node.op)]
    return writer.add(kind, inputs, node.name, **attributes(node.op))


@writers(ops.ReLU6)
def _relu6(writer: Writer, node: Node, inputs: list[str]) -> str:
    bounds = [writer.number(bound, node.output.dtype) for bound in (0.0, 6.0)]
    return writer.add("Clip", [*inputs, *bounds], node.name)


@writers(ops.SiLU)
def _silu(writer: Writer, node: Node, inputs: list[str]) -> str:
    return writer.add("Mul", [*inputs, writer.add("Sigmoid", inputs)], node.name)


@writers(ops.Formula)
def _formula(writer: Writer, node: Node, inputs: list[str]) -> str:
    """Writes QuantizeLinear or DequantizeLinear if the formula is one, else its expression."""
    op, x_dtype = node.op, node.inputs[0].dtype
    steps, name = quantization_of(op), QUANTIZE
    if steps is None or x_dtype != "float32":
        steps, name = dequantization_of(op, x_dtype), DEQUANTIZE
    if steps is not None and writer.opset >= _QUANTIZES_SINCE:
        scale = writer.number(steps.scale, "float32")
        return writer.add(name, [*inputs, scale, writer.number(steps.zero, steps.dtype)], node.name)
    if op == PER_CHANNEL and writer.opset >= _QUANTIZES_BY_AXIS:
        quantized, scales, zeros = node.inputs
        if isinstance(scales, Constant) and isinstance(zeros, Constant):
            per_channel = (quantized.shape[0], *(1,) * (quantized.type.rank - 1))
            is_per_tensor = scales.type.size == zeros.type.size == 1
            if is_per_tensor or scales.shape == zeros.shape == per_channel:
                to = () if is_per_tensor else (-1,)
                numbers = scales.data.reshape(to), zeros.data.reshape(to).astype(quantized.dtype)
                named = map(writer.constant, numbers, (scales.name, zeros.name))
                axis = {} if is_per_tensor else {"axis": 0}
                return writer.add(DEQUANTIZE, [inputs[0], *named], node.name, **axis)
    return write_expression(writer, node, inputs)


#: The first opsets with QuantizeLinear, and with its attribute ``axis``.
_QUANTIZES_SINCE, _QUANTIZES_BY_AXIS = 10, 13
#: Operations of scalar expressions -> ONNX's operators.
_OPERATIONS = {
    **{"add": "Add", "sub": "Sub", "mul": "Mul", "div": "Div", "neg": "Neg", "abs": "Abs"},
    **{"maximum": "Max", "minimum": "Min", "floor": "Floor", "round": "Round", "sqrt": "Sqrt"},
    **{"exp": "Exp", "log": "Log", "tanh": "Tanh", "erf": "Erf", "pow": "Pow", "where": "Where"},
    **{"sin": "Sin", "cos": "Cos", "atan": "Atan"},
    **{"lt": "Less", "le": "LessOrEqual", "gt": "Greater", "ge": "GreaterOrEqual"},
    "eq": "Equal",
}


def write_expression(writer: Writer, node: Node, inputs: list[str]) -> str:
    """Writes any element-wise operator, one ONNX node for each operation of its expression."""
    op = node.op
    assert isinstance(op, Elementwise)
    computed = op.computed_in([value.dtype for value in node.inputs]) or "float32"
    split = len(inputs) - op.channel_count
    operands = [
        _operand(writer, value, name, computed, node.output.type.rank if i >= split else None)
        for i, (value, name) in enumerate(zip(node.inputs, inputs, strict=True))
    ]
    results: list[str] = []
    lines = op.lines
    # A remainder, which subtracts a floored quotient times the divisor, must not round the product.
    exact = any(line.op == "floor" for line in lines)
    for line in lines:
        operand_names = [results[i] for i in line.operands]
        if line.op == "argument":
            results.append(operands[int(line.value or 0)])
        elif line.op == "constant":
            value = float(line.value or 0.0)
            results.append(writer.number(value if computed in FLOATS else int(value), computed))
        elif line.op == "fma" and exact:
            results.append(_exact_fma(writer, operand_names, computed))
        else:
            results.append(_operation(writer, line.op, operand_names, computed))
    result = results[-1]
    # int8 and uint8 saturate, which a cast in ONNX need not do.
    if node.output.dtype in INT8_DTYPES:
        bounds = np.iinfo(node.output.dtype)
        limits = [writer.number(bound, computed) for bound in (bounds.min, bounds.max)]
        result = writer.add("Clip", [result, *limits])
    if node.output.dtype != computed:
        return writer.add("Cast", [result], node.name, to=DATA_TYPES[node.output.dtype])
    return writer.add("Identity", [result], node.name)


def _operation(writer: Writer, op: str, given: Sequence[str], dtype: str) -> str:
    """Writes one operation of a scalar expression, computed in ``dtype``."""
    if op == "fma":
        return writer.add("Add", [writer.add("Mul", given[:2]), given[2]])
    if op == "expm1":
        return writer.add("Sub", [writer.add("Exp", given), writer.number(1.0, dtype)])
    if op == "log1p":
        return writer.add("Log", [writer.add("Add", [*given, writer.number(1.0, dtype)])])
    return writer.add(_OPERATIONS[op], given)


def _exact_fma(writer: Writer, given: Sequence[str], dtype: str) -> str:
    """Writes a fused multiply-add in float64, which holds the product of float32 exactly."""
    a, b, c = (writer.add("Cast", [name], to=DATA_TYPES["float64"]) for name in given)
    total = writer.add("Add", [writer.add("Mul", [a, b]), c])
    return writer.add("Cast", [total], to=DATA_TYPES[dtype])


def _operand(writer: Writer, value: Value, name: str, dtype: str, rank: int | None) -> str:
    """Returns the name of an operand, cast to the dtype that is computed in.

    ``rank`` is the output's rank for a channel vector, which is reshaped to broadcast along axis 1;
    None for other operands.
    """
    if rank is not None and rank != 2:
        shape = (*value.shape, *(1,) * (rank - 2))
        if isinstance(value, Constant):
            name = writer.constant(value.data.reshape(shape), value.name)
        else:
            name = writer.reshape(name, shape)
    if value.dtype != dtype:
        return writer.add("Cast", [name], to=DATA_TYPES[dtype])
    return name
