"""The builder of an imported graph: adds nodes, and folds operators of constants at once.

Shape arithmetic, transposed weights, casts of constants: converters apply ordinary operators, and
the builder leaves constants instead of nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import prod

import numpy as np

from minidnn.errors import GraphError
from minidnn.frontends.onnx.library import Budget, check_shape
from minidnn.frontends.onnx.tensors import DTYPES, STORED
from minidnn.graph.expression import Expression, argument, constant, number
from minidnn.graph.ir import Constant, Value
from minidnn.graph.operator import Operator, computed_in
from minidnn.graph.operators import Expand, Formula, Slice, Take, Transpose, View
from minidnn.graph.quantization import dequantization_of
from minidnn.graph.trace import Trace
from minidnn.graph.types import FLOATS, TensorType, numpy_dtype

#: The formula of an element-wise operator: a function of scalar expressions.
Body = Callable[..., Expression]
#: Integers below this are exact in float64.
_EXACT = 1 << 53


class Builder:
    """Adds values to a trace, within a budget for computed constants."""

    def __init__(self, trace: Trace, budget: Budget) -> None:
        self._trace = trace
        self._budget = budget
        self._sources: dict[Value, frozenset[str]] = {}
        #: Constants of an integer dtype that minidnn lacks: they are in int32, with the dtype here.
        self._stored: dict[Value, str] = {}
        #: For dequantized constants, the operator that computes them and its constant operands.
        self._unfolded: dict[Value, tuple[Operator, tuple[Constant, ...]]] = {}

    def input(self, value: Value) -> Value:
        """Registers a graph input, as its own source."""
        self._sources[value] = frozenset([value.name])
        return value

    def sources(self, value: Value) -> frozenset[str]:
        """The names of the graph inputs that a value is computed from."""
        return self._sources.get(value, frozenset())

    def dtype(self, value: Value) -> str:
        """The dtype in the model, which is another one than the value's for stored constants."""
        return self._stored.get(value, value.dtype)

    def store(self, value: Value, dtype: str) -> None:
        """Registers a constant in int32 as a stored one of that dtype."""
        self._stored[value] = dtype

    def constant(self, array: np.ndarray, name: str = "constant") -> Constant:
        """A constant of the array's shape and dtype; stored in int32 if minidnn lacks the dtype."""
        dtype = str(array.dtype)
        if dtype in STORED.values() and dtype not in DTYPES.values():
            value = self.constant(array.astype(np.int32), name)
            self.store(value, dtype)
            return value
        return self.later(TensorType(tuple(array.shape), dtype), lambda: array, name)

    def later(
        self, type: TensorType, compute: Callable[[], np.ndarray], name: str = "constant"
    ) -> Constant:
        """A constant that is computed when it is first read."""
        return self._trace.constant(object(), name, type, compute)

    def spend(self, what: str, bytes: int) -> None:
        """Counts bytes of constants that are not computed by :meth:`apply`; GraphError beyond the
        budget."""
        self._budget.spend(what, bytes)

    def filled(self, shape: Sequence[int], value: object, dtype: str) -> Constant:
        """A constant with the same number everywhere."""
        sizes = check_shape("a constant", shape)
        array = np.full((), value, numpy_dtype(dtype))
        self._budget.spend("filling a constant", prod(sizes) * array.itemsize)
        return self.constant(np.full(sizes, array))

    def apply(self, op: Operator, *operands: Value) -> Value:
        """The output of an operator: a constant if all operands are, or if it has no elements."""
        (type,) = op.infer(*(value.type for value in operands))
        check_shape(op.name, type.shape)
        if type.size == 0:
            return self.constant(np.empty(type.shape, numpy_dtype(type.dtype)))
        if all(isinstance(value, Constant) for value in operands):
            self._budget.spend(op.name, type.bytes)
            constants = [value for value in operands if isinstance(value, Constant)]

            def compute() -> np.ndarray:
                (result,) = op.reference(*(value.data for value in constants))
                return np.ascontiguousarray(result).reshape(type.shape)

            # Moves cannot fail, and a moved large weight may never be read: fold when it is read.
            moves = isinstance(op, (Transpose, View))
            return self.later(type, compute) if moves else self.constant(compute())
        (output,) = self._trace.apply(op, *operands)
        self._sources[output] = frozenset().union(*map(self.sources, operands))
        return output

    def dequantized(self, x: Value) -> bool:
        """Whether a value is the output of a dequantization of int8 or uint8."""
        node = x.producer
        return node is not None and any(
            dequantization_of(node.op, operand.dtype) for operand in node.inputs[:1]
        )

    def keep(self, value: Value, op: Operator, *operands: Constant) -> Value:
        """Registers a folded constant as ``op`` of others, so that :meth:`unfolded` can undo it."""
        self._unfolded[value] = (op, operands)
        return value

    def is_known(self, value: Value) -> bool:
        """Whether a value depends on no graph input."""
        return not self.sources(value)

    def unfolded(self, value: Value) -> Value:
        """Undoes the folding of a dequantized constant: the output of a node that dequantizes it.

        Passes make int8 contractions of such nodes.  Any other value is returned as it is.
        """
        if value not in self._unfolded:
            return value
        op, operands = self._unfolded[value]
        (output,) = self._trace.apply(op, *operands)
        return output

    def view(self, x: Value, shape: Sequence[int]) -> Value:
        """The same elements in another shape."""
        return x if tuple(shape) == x.shape else self.apply(View(tuple(shape)), x)

    def transpose(self, x: Value, dims: Sequence[int]) -> Value:
        if list(dims) == list(range(x.type.rank)):
            return x
        transpose = Transpose(tuple(dims))
        out = self.apply(transpose, x)
        if x in self._unfolded:
            op, operands = self._unfolded[x]
            moved = [self.apply(transpose, operand) for operand in operands]
            self.keep(out, op, *(value for value in moved if isinstance(value, Constant)))
        return out

    def expand(self, x: Value, shape: Sequence[int]) -> Value:
        return x if tuple(shape) == x.shape else self.apply(Expand(tuple(shape)), x)

    def slice(self, x: Value, axis: int, start: int, size: int, step: int = 1) -> Value:
        """Every ``step``-th of ``size`` elements along one axis, from ``start`` on."""
        if (start, size, step) == (0, x.shape[axis], 1):
            return x
        starts, sizes, steps = [0] * x.type.rank, list(x.shape), [1] * x.type.rank
        starts[axis], sizes[axis], steps[axis] = start, size, step
        return self.apply(Slice(tuple(starts), tuple(sizes), tuple(steps)), x)

    def take(self, x: Value, axis: int, chosen: Iterable[int], outside: float = 0.0) -> Value:
        """The elements at these indices of one axis; the index -1 stands for ``outside``."""
        indices: list[tuple[int, ...] | None] = [None] * x.type.rank
        indices[axis] = tuple(chosen)
        return self.apply(Take(tuple(indices), outside), x)

    def cast(self, x: Value, dtype: str) -> Value:
        """A value in another dtype; as bool, whether it is not zero."""
        if x.dtype == dtype:
            return x
        if dtype == "bool":
            return self.pointwise("Cast", lambda a: 1 - (a <= 0) * (a >= 0), x, dtype=dtype)
        return self.pointwise("Cast", lambda a: a, x, dtype=dtype)

    def pointwise(
        self,
        title: str,
        body: Body,
        *values: Value,
        dtype: str | None = None,
        op: Operator | None = None,
        compute: str | None = None,
    ) -> Value:
        """The output of an element-wise formula of values that broadcast.

        Constant scalars become literals of the formula, and constants with one number per channel
        become channel vectors, so that it fuses with its neighbours.  ``op`` is a named operator
        with the same meaning, which is used if there are neither.  ``compute`` is the dtype that
        the formula is computed in, if not the one that its operands determine.
        """
        try:
            shape = np.broadcast_shapes(*(value.shape for value in values))
        except ValueError:
            shapes = ", ".join(str(value.shape) for value in values)
            raise GraphError(f"shapes {shapes} do not broadcast") from None
        tensors, literals, vectors = _classified(values, shape, compute)
        arguments = {**{i: argument(n) for n, i in enumerate((*tensors, *vectors))}}
        arguments |= {i: constant(value) for i, value in literals.items()}
        formula = number(body(*(arguments[i] for i in range(len(values)))))
        operands = [values[i] for i in tensors]
        operands += [self.view(values[i], (shape[1],)) for i in vectors]
        if op is not None and len(tensors) == len(values) and tensors == sorted(tensors):
            return self.apply(op, *operands)
        formula_op = Formula(formula, len(tensors), len(vectors), title, dtype, compute)
        return self.apply(formula_op, *operands)


def is_integer(number: float) -> bool:
    """Whether a number is an integer that int32 has."""
    return number.is_integer() and abs(number) < 1 << 31


def broadcasts_to(shape: Sequence[int], full: Sequence[int]) -> bool:
    """Whether a shape broadcasts to ``full`` without changing it."""
    pairs = zip(shape[::-1], full[::-1], strict=False)
    return len(shape) <= len(full) and all(size in (1, full_size) for size, full_size in pairs)


def _classified(
    values: Sequence[Value], shape: tuple[int, ...], compute: str | None
) -> tuple[list[int], dict[int, float], list[int]]:
    """Splits the values of a formula into tensor operands, scalar literals and channel vectors.

    Returns the indices of tensors, the literals by index, and the indices of vectors.  The tensors
    alone must determine the result's shape and the dtype that it is computed in.
    """
    computed = compute or computed_in([value.dtype for value in values])
    indices = list(range(len(values)))
    literals = {i: n for i in indices if (n := _number(values[i])) is not None}
    remaining = [i for i in indices if i not in literals]

    def enough(chosen: list[int]) -> bool:
        """Whether these values alone determine the result's shape and compute dtype."""
        operands = [values[i] for i in chosen]
        own_shape = np.broadcast_shapes(*(value.shape for value in operands))
        own_dtype = compute or computed_in([value.dtype for value in operands])
        return own_shape == shape and own_dtype == computed

    if not remaining or not enough(remaining):
        return indices, {}, []
    vectors = [i for i in remaining if _is_vector(values[i], shape, computed)]
    tensors = [i for i in remaining if i not in vectors]
    if not tensors or not enough(tensors):
        return remaining, literals, []
    return tensors, literals, vectors


def _number(value: Value) -> float | None:
    """The number of a constant scalar; None for others, and for integers that no float holds."""
    if not isinstance(value, Constant) or value.type.size != 1:
        return None
    element = value.data.reshape(-1)[0]
    return None if value.dtype not in FLOATS and abs(int(element)) >= _EXACT else float(element)


def _is_vector(value: Value, shape: tuple[int, ...], computed: str | None) -> bool:
    """Whether a constant has one number per channel (axis 1) of a result of this shape."""
    if not isinstance(value, Constant) or value.dtype != computed or len(shape) < 2:
        return False
    aligned = (1,) * (len(shape) - value.type.rank) + value.shape
    channels = (1, shape[1], *(1,) * (len(shape) - 2))
    return value.dtype in FLOATS and shape[1] > 1 and aligned == channels
