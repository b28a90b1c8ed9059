"""Adding nodes to a graph under construction; what is known already is computed at once.

Arithmetic on shapes, weights in another order, casts of constants: all of them are ordinary
operators here, and leave constants instead of nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import numpy as np

from minidnn.errors import GraphError
from minidnn.frontends.onnx.library import Budget, check_shape
from minidnn.frontends.onnx.tensors import DTYPES, STORED
from minidnn.graph.expression import Expression, argument, constant, number
from minidnn.graph.ir import Constant, Value
from minidnn.graph.operator import Operator, computed_in
from minidnn.graph.operators import Expand, Formula, Slice, Transpose, View
from minidnn.graph.quantization import dequantization_of
from minidnn.graph.trace import Trace
from minidnn.graph.types import FLOATS, TensorType, numpy_dtype

Body = Callable[..., Expression]
_EXACT = 1 << 53


class Builder:
    """A trace to which values are added, and a budget for constants."""

    def __init__(self, trace: Trace, budget: Budget) -> None:
        self._trace = trace
        self._budget = budget
        self._sources: dict[Value, frozenset[str]] = {}
        #: Constants of whole numbers that minidnn has no dtype for: in int32, and what they were.
        self._stored: dict[Value, str] = {}
        #: What computes constants that are known by fewer bits: an operator of other constants.
        self._unfolded: dict[Value, tuple[Operator, tuple[Constant, ...]]] = {}

    def input(self, value: Value) -> Value:
        """Takes note of a graph input."""
        self._sources[value] = frozenset([value.name])
        return value

    def sources(self, value: Value) -> frozenset[str]:
        """The graph inputs that a value is computed from."""
        return self._sources.get(value, frozenset())

    def dtype(self, value: Value) -> str:
        """What the model says: of stored numbers their own dtype, not that of the value."""
        return self._stored.get(value, value.dtype)

    def store(self, value: Value, dtype: str) -> None:
        """Takes note that a constant in int32 is one of that dtype."""
        self._stored[value] = dtype

    def constant(self, array: np.ndarray, name: str = "constant") -> Constant:
        """A constant of the array's shape and dtype; of a dtype that minidnn lacks in int32."""
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
        """Counts constants that something else than :meth:`apply` computes; GraphError if they are
        too many."""
        self._budget.spend(what, bytes)

    def filled(self, shape: Sequence[int], value: object, dtype: str) -> Constant:
        """A constant of one number."""
        sizes = check_shape("a constant", shape)
        array = np.full((), value, numpy_dtype(dtype))
        self._budget.spend("filling a constant", prod(sizes) * array.itemsize)
        return self.constant(np.full(sizes, array))

    def apply(self, op: Operator, *operands: Value) -> Value:
        """The output of an operator; a constant if all operands are, or if it has no elements."""
        (type,) = op.infer(*(value.type for value in operands))
        check_shape(op.name, type.shape)
        if type.size == 0:
            return self.constant(np.empty(type.shape, numpy_dtype(type.dtype)))
        if all(isinstance(value, Constant) for value in operands):
            self._budget.spend(op.name, type.bytes)
            known = [value for value in operands if isinstance(value, Constant)]

            def compute() -> np.ndarray:
                (result,) = op.reference(*(value.data for value in known))
                return np.ascontiguousarray(result).reshape(type.shape)

            # What moves numbers cannot fail, and that of large weights may never be read.
            moves = isinstance(op, (Transpose, View))
            return self.later(type, compute) if moves else self.constant(compute())
        (output,) = self._trace.apply(op, *operands)
        self._sources[output] = frozenset().union(*map(self.sources, operands))
        return output

    def dequantized(self, x: Value) -> bool:
        """Whether a value is computed of bytes that stand for numbers."""
        node = x.producer
        return node is not None and any(
            dequantization_of(node.op, operand.dtype) for operand in node.inputs[:1]
        )

    def keep(self, value: Value, op: Operator, *operands: Constant) -> Value:
        """A constant that is ``op`` of others, of which :meth:`unfolded` makes a node."""
        self._unfolded[value] = (op, operands)
        return value

    def is_known(self, value: Value) -> bool:
        """Whether a value does not depend on inputs."""
        return not self.sources(value)

    def unfolded(self, value: Value) -> Value:
        """A constant as the node that computes it of bytes, for passes that know what to do with
        those; the value itself if there is none."""
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
        turn = Transpose(tuple(dims))
        found = self.apply(turn, x)
        if x in self._unfolded:
            op, operands = self._unfolded[x]
            turned = [self.apply(turn, operand) for operand in operands]
            self.keep(found, op, *(value for value in turned if isinstance(value, Constant)))
        return found

    def expand(self, x: Value, shape: Sequence[int]) -> Value:
        return x if tuple(shape) == x.shape else self.apply(Expand(tuple(shape)), x)

    def slice(self, x: Value, axis: int, start: int, size: int, step: int = 1) -> Value:
        """Some elements of one axis."""
        if (start, size, step) == (0, x.shape[axis], 1):
            return x
        starts, sizes, steps = [0] * x.type.rank, list(x.shape), [1] * x.type.rank
        starts[axis], sizes[axis], steps[axis] = start, size, step
        return self.apply(Slice(tuple(starts), tuple(sizes), tuple(steps)), x)

    def cast(self, x: Value, dtype: str) -> Value:
        """A value in another dtype; to bool: whether it is not zero."""
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
        """An element-wise formula of values that broadcast.

        Single numbers that are known become part of the formula, and constants with one number
        per channel vectors, so that it fuses with what stands beside it.  ``op`` is an operator of
        its own that does the same, which is taken where nothing of this applies; ``compute`` is
        what the formula is computed in, if not what its operands say.
        """
        try:
            shape = np.broadcast_shapes(*(value.shape for value in values))
        except ValueError:
            given = ", ".join(str(value.shape) for value in values)
            raise GraphError(f"shapes {given} do not broadcast") from None
        kept, literals, vectors = _sorted_out(values, shape, compute)
        places = {**{i: argument(n) for n, i in enumerate((*kept, *vectors))}}
        places |= {i: constant(value) for i, value in literals.items()}
        formula = number(body(*(places[i] for i in range(len(values)))))
        operands = [values[i] for i in kept]
        operands += [self.view(values[i], (shape[1],)) for i in vectors]
        if op is not None and len(kept) == len(values) and kept == sorted(kept):
            return self.apply(op, *operands)
        formula_op = Formula(formula, len(kept), len(vectors), title, dtype, compute)
        return self.apply(formula_op, *operands)


def is_whole(number: float) -> bool:
    """Whether all dtypes of whole numbers have that number."""
    return number.is_integer() and abs(number) < 1 << 31


def broadcasts_to(shape: Sequence[int], full: Sequence[int]) -> bool:
    """Whether what has the first shape repeats to the second one, which stays as it is."""
    pairs = zip(shape[::-1], full[::-1], strict=False)
    return len(shape) <= len(full) and all(size in (1, whole) for size, whole in pairs)


def _sorted_out(
    values: Sequence[Value], shape: tuple[int, ...], compute: str | None
) -> tuple[list[int], dict[int, float], list[int]]:
    """Which values stay operands, the numbers of those that are single ones, and which are
    vectors over channels."""
    computed = compute or computed_in([value.dtype for value in values])
    every = list(range(len(values)))
    literals = {i: n for i in every if (n := _number(values[i])) is not None}
    rest = [i for i in every if i not in literals]

    def enough(places: list[int]) -> bool:
        """Whether these values alone say the result's shape and what it is computed in."""
        found = [values[i] for i in places]
        own = np.broadcast_shapes(*(value.shape for value in found))
        told = compute or computed_in([value.dtype for value in found])
        return own == shape and told == computed

    if not rest or not enough(rest):
        return every, {}, []
    vectors = [i for i in rest if _is_vector(values[i], shape, computed)]
    tensors = [i for i in rest if i not in vectors]
    if not tensors or not enough(tensors):
        return rest, literals, []
    return tensors, literals, vectors


def _number(value: Value) -> float | None:
    if not isinstance(value, Constant) or value.type.size != 1:
        return None
    found = value.data.reshape(-1)[0]
    return None if value.dtype not in FLOATS and abs(int(found)) >= _EXACT else float(found)


def _is_vector(value: Value, shape: tuple[int, ...], computed: str | None) -> bool:
    if not isinstance(value, Constant) or value.dtype != computed or len(shape) < 2:
        return False
    aligned = (1,) * (len(shape) - value.type.rank) + value.shape
    channels = (1, shape[1], *(1,) * (len(shape) - 2))
    return value.dtype in FLOATS and shape[1] > 1 and aligned == channels
