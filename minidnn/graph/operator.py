"""The base classes of operators: everything that the system must know about a kind of node.

An operator is a frozen dataclass that holds a node's attributes.  It infers types, computes a
reference with NumPy, and counts its cost.  Its base class is its operator class, which decides how
passes and code generators treat it:

================  =============================================================  ==============
class             computes                                                       base class
================  =============================================================  ==============
element-wise      every element by itself, by a scalar expression                Elementwise
window            every element from a window of its own channel                 Windowed
contraction       sums over channels: convolution, linear                        Contraction
movement          nothing, it only moves elements                                Movement
reduction         everything else that combines elements of one value            Reduction
================  =============================================================  ==============
"""

from __future__ import annotations

from abc import ABCMeta, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any, ClassVar, TypeGuard

import numpy as np

from minidnn._cached_property import cached_property
from minidnn.errors import GraphError
from minidnn.graph import expression as scalar
from minidnn.graph.expression import Expression, Instruction, argument
from minidnn.graph.scalar_ops import INTEGER_OPS
from minidnn.graph.types import (
    FLOATS,
    HALF_DTYPES,
    INT8_DTYPES,
    INTEGERS,
    NUMBERS,
    TensorType,
    plain,
)
from minidnn.graph.window import Window, pool


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of one run of a node: the number of scalar operations (a multiply-add counts as 2),
    and the bytes of its tensors, each read or written once, parameters included."""

    operations: int
    bytes: int


class OperatorMeta(ABCMeta):
    """An ``ABCMeta`` without virtual subclasses, whose ``isinstance`` is the plain, fast one.

    Passes call ``isinstance`` a hundred thousand times for a large graph, and that of ``ABCMeta``
    takes three times as long.
    """

    __instancecheck__ = type.__instancecheck__


@dataclass(frozen=True)
class Operator(metaclass=OperatorMeta):
    """Base class of all operators.  Instances are immutable and compare by their attributes."""

    #: The operator class: "elementwise", "window", "contraction", "movement", "reduction".
    kind: ClassVar[str]
    #: Names of the operands, for error messages; the last may repeat when it ends with "*".
    operand_names: ClassVar[tuple[str, ...]] = ("input",)
    #: How many of the last operands may be absent.
    optional_operands: ClassVar[int] = 0

    @abstractmethod
    def infer(self, *inputs: TensorType) -> tuple[TensorType, ...]:
        """The types of the outputs for operands of these types; GraphError if these do not fit."""

    @abstractmethod
    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        """The outputs, computed with NumPy in the operands' dtype: the operator's semantics."""

    def operations(self, inputs: tuple[TensorType, ...], outputs: tuple[TensorType, ...]) -> int:
        """The number of scalar operations of one run; a multiply-add counts as 2."""
        return 0

    def cost(self, inputs: tuple[TensorType, ...], outputs: tuple[TensorType, ...]) -> Cost:
        return Cost(self.operations(inputs, outputs), sum(t.bytes for t in (*inputs, *outputs)))

    @property
    def in_place(self) -> bool:
        """Whether the output may overwrite an operand of the same type: every element is computed
        from the elements at its own position alone."""
        return False

    @property
    def lasts(self) -> bool:
        """Whether the operator is asynchronous: it may read its operands while later nodes are
        computed, until one of them reads a result."""
        return False

    @property
    def name(self) -> str:
        return type(self).__name__

    def __str__(self) -> str:
        shown = (
            f"{field.name}={getattr(self, field.name)!s}"
            for field in fields(self)
            if field.repr and getattr(self, field.name) != field.default
        )
        return f"{self.name}({', '.join(shown)})"

    def fail(self, message: str) -> GraphError:
        return GraphError(f"{self}: {message}")

    def require(self, condition: object, message: str) -> None:
        if not condition:
            raise self.fail(message)

    def require_number(self, name: str, value: object) -> None:
        self.require(
            isinstance(value, (int, float)) and not isinstance(value, bool),
            f"{name}={value!r} is a {type(value).__name__}; valid is a number",
        )

    def require_int(self, name: str, value: object) -> None:
        self.require(type(value) is int, f"{name}={value!r}; valid is an int")

    def require_pair(self, name: str, value: object, least: int) -> None:
        """Requires a tuple of two ints of at least ``least``, which layers make of a single int."""
        self.require(
            is_ints(value, least) and len(value) == 2,
            f"{name}={value!r}; valid is a pair of ints of at least {least}",
        )

    def operands(self, inputs: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        """The inputs, if the operator takes that many; else raises GraphError."""
        names = self.operand_names
        if not len(names) - self.optional_operands <= len(inputs) <= len(names):
            counts = range(len(names) - self.optional_operands, len(names) + 1)
            raise self.fail(
                f"takes {' or '.join(map(str, counts))} operand{'s' * (counts[-1] > 1)} "
                f"({', '.join(names)}), got {len(inputs)}"
            )
        return inputs

    def require_float(self, *inputs: TensorType) -> None:
        """Requires that all operands have one floating-point dtype."""
        dtypes = list(dict.fromkeys(t.dtype for t in inputs))
        if len(dtypes) != 1 or dtypes[0] not in FLOATS:
            raise self.fail(
                f"operands have dtypes {', '.join(dtypes)}; valid is one of {', '.join(FLOATS)} "
                "for all of them"
            )

    def require_rank(self, what: str, value: TensorType, *ranks: int) -> None:
        if value.rank in ranks:
            return
        valid = " or ".join(map(str, ranks))
        hint = ""
        if what == "input" and value.rank + 1 in ranks:
            hint = f"; is the batch missing, as in {(1, *value.shape)}?"
        raise self.fail(
            f"{what} has shape {value.shape} of rank {value.rank}; valid is rank {valid}{hint}"
        )


@lru_cache(maxsize=1 << 10)
def _broadcast(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    return np.broadcast_shapes(*shapes)


class Elementwise(Operator):
    """Computes every element by itself, by one scalar expression.

    Operands broadcast as in NumPy, except that the last ``channel_operands`` of them are
    vectors with one element per channel (axis 1 of what the others broadcast to).
    """

    kind = "elementwise"
    in_place = True
    channel_operands: ClassVar[int] = 0

    @abstractmethod
    def expression(self) -> Expression:
        """The formula of one element, over ``argument(0)``, ``argument(1)``, ..."""

    @cached_property
    def lines(self) -> tuple[Instruction, ...]:
        """The formula as straight-line code."""
        return scalar.linearize(self.expression())

    @property
    def arity(self) -> int:
        return len(self.operand_names)

    @property
    def channel_count(self) -> int:
        """The number of last operands that are vectors with one element per channel."""
        return self.channel_operands

    def computed_in(self, dtypes: Sequence[str]) -> str | None:
        """The dtype to compute in for operands of ``dtypes``; None if these do not fit."""
        return computed_in(dtypes)

    def result_dtype(self, dtypes: Sequence[str]) -> str:
        """The dtype of the result for operands of ``dtypes``, in which it is computed, too;
        GraphError if these do not fit."""
        if len(set(dtypes)) != 1 or dtypes[0] not in NUMBERS:
            raise self.fail(
                f"operands have dtypes {', '.join(dict.fromkeys(dtypes))}; valid is one of "
                f"{', '.join(NUMBERS)} for all of them"
            )
        self.require_integers(dtypes[0])
        return dtypes[0]

    def require_integers(self, dtype: str) -> None:
        """Requires, for an integer ``dtype``, that integers have all operations it computes."""
        if dtype not in INTEGERS:
            return
        used = {line.op for line in self.lines}
        unknown = sorted(used - INTEGER_OPS - {"argument", "constant"})
        self.require(
            not unknown,
            f"operands have dtype {dtype}; valid is one of {', '.join(FLOATS)}, for its "
            f"expression takes {', '.join(unknown)}",
        )

    def infer(self, *inputs: TensorType) -> tuple[TensorType, ...]:
        self.operands(inputs)
        dtype = self.result_dtype([value.dtype for value in inputs])
        tensors = inputs[: len(inputs) - self.channel_count]
        try:
            shape = _broadcast(*(tuple(t.shape) for t in tensors))
        except ValueError:
            shapes = ", ".join(str(t.shape) for t in tensors)
            raise self.fail(
                f"shapes {shapes} do not broadcast; valid are equal sizes, or 1, on every axis"
            ) from None
        channels = shape[1] if len(shape) > 1 else None
        for name, vector in zip(
            self.operand_names[len(tensors) :], inputs[len(tensors) :], strict=True
        ):
            if channels is None:
                raise self.fail(f"input of shape {shape} has no axis of channels")
            if vector.shape != (channels,):
                raise self.fail(
                    f"{name} has shape {vector.shape}, but the input {shape} has {channels} "
                    f"channels; valid is ({channels},)"
                )
        return (TensorType(shape, dtype),)

    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        split = len(inputs) - self.channel_count
        rank = max(array.ndim for array in inputs[:split])
        vectors = [v.reshape(v.shape + (1,) * (rank - 2)) for v in inputs[split:]]
        return (scalar.evaluate(self.expression(), (*inputs[:split], *vectors)),)

    def operations(self, inputs: tuple[TensorType, ...], outputs: tuple[TensorType, ...]) -> int:
        return scalar.operations(self.expression()) * outputs[0].size


class Activation(Elementwise):
    """An element-wise operator of one operand, written as ``formula(x)``."""

    @abstractmethod
    def formula(self, x: Expression) -> Expression:
        """The formula of one element ``x``."""

    def expression(self) -> Expression:
        return self.formula(argument(0))


class Windowed(Operator):
    """Computes every element from windows over the rows and columns of its own channel.

    Plain maxima take int8 and uint8, too; the maximum of padding alone is the dtype's least number.
    """

    kind = "window"

    @abstractmethod
    def window(self) -> Window:
        """The window, what is computed from the elements under it, and how that is reduced."""

    def infer(self, *inputs: TensorType) -> tuple[TensorType, ...]:
        window, names = self.window(), self.operand_names
        x, *others = self.operands(inputs)
        if not (x.dtype in INT8_DTYPES and window.chooses and window.reduction == "max"):
            self.require_float(*inputs)
        self.require_rank("input", x, 4)
        batch, channels, *extent = x.shape
        self.require(
            min(extent) >= 1,
            f"input has shape {x.shape}; valid is at least one row and one column",
        )
        sizes = []
        for axis, name, size in zip(window.axes, ("rows", "columns"), extent, strict=True):
            out = axis.output_size(size)
            self.require(
                out >= 1,
                f"a window of {axis.reach} {name} is larger than the padded input "
                f"of {size + sum(axis.padding)} (input {x.shape}); use a smaller "
                "kernel_size or dilation, or more padding",
            )
            sizes.append(out)
        result = x.with_shape((batch, channels, *sizes))
        for at, (name, other) in enumerate(zip(names[1:], others, strict=True), 1):
            valid = x if at < window.under else result
            self.require(
                other.shape == valid.shape,
                f"{name} has shape {other.shape}; valid is {valid.shape}",
            )
        return (result,)

    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        return (pool(self.window(), *inputs),)

    def operations(self, inputs: tuple[TensorType, ...], outputs: tuple[TensorType, ...]) -> int:
        return self.window().operations * outputs[0].size


class Contraction(Operator):
    """Sums products over channels: operand 1 is the weight, operand 2 the bias, if any.

    For integer operands (int8, uint8, int32) the accumulators are int32, which wrap, and so is the
    bias.  ``zero`` is the zero point of an integer input: it is subtracted from each element, so
    padding stays 0.  For half-precision operands ``dtype`` may be "float32": the sums are not
    rounded then.  Their bias may be float32, whatever the dtype of the result.
    """

    kind = "contraction"
    operand_names = ("input", "weight", "bias")
    optional_operands = 1
    zero: int
    dtype: str | None

    def result_dtype(self, *inputs: TensorType) -> str:
        """The dtype of the result; GraphError if the operands' dtypes do not fit."""
        if not is_integer_product(*inputs):
            half = inputs[0].dtype in HALF_DTYPES
            self.require_float(*inputs[:2])
            if not half or any(t.dtype != "float32" for t in inputs[2:]):
                self.require_float(*inputs)
            if type(self.zero) is not int or self.zero != 0:
                raise self.fail(f"zero={self.zero!r}; valid is 0 where the input has fractions")
            if self.dtype is not None and not (half and self.dtype == "float32"):
                raise self.fail(
                    f"dtype={self.dtype!r}; valid are None and, of float16 and bfloat16, 'float32'"
                )
            return self.dtype or inputs[0].dtype
        dtypes = [value.dtype for value in inputs]
        self.require(
            self.dtype is None,
            f"dtype={self.dtype!r}; valid is None: sums of integers are int32",
        )
        self.require(
            dtypes[2:] in ([], ["int32"]),
            f"bias is {dtypes[-1]}; valid is int32 beside {inputs[0]}",
        )
        bounds = np.iinfo(dtypes[0])
        self.require(
            type(self.zero) is int and bounds.min <= self.zero <= bounds.max,
            f"zero={self.zero!r}; valid is an int of {dtypes[0]}",
        )
        return "int32"


class Movement(Operator):
    """Moves elements without computing."""

    kind = "movement"

    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        return (self.move(*inputs),)

    @abstractmethod
    def move(self, *inputs: np.ndarray) -> np.ndarray:
        """The output, computed with NumPy."""


class Reshaping(Movement):
    """Gives a value another shape; the elements stay in order, so a device copies nothing."""

    @abstractmethod
    def shape_of(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The output's shape; raises GraphError if the input's does not fit."""

    def infer(self, *inputs: TensorType) -> tuple[TensorType, ...]:
        (x,) = self.operands(inputs)
        return (x.with_shape(self.shape_of(x.shape)),)

    def move(self, *inputs: np.ndarray) -> np.ndarray:
        return inputs[0].reshape(self.shape_of(inputs[0].shape))


class Reduction(Operator):
    """Combines elements of one value over axes or irregular windows."""

    kind = "reduction"


#: The integer dtypes that contractions take as operands.
WHOLE = (*INT8_DTYPES, "int32")


def is_integer_product(*inputs: TensorType) -> bool:
    """Whether a contraction of these operands is computed in integers."""
    return all(value.dtype in WHOLE for value in inputs[:2])


def integer_sums(
    product: Callable[..., np.ndarray], x: np.ndarray, weight: np.ndarray, zero: int = 0
) -> np.ndarray:
    """The product of ``x - zero`` and a weight, accumulated in int32, which wraps.

    Sums of products of int8 and uint8 are exact in float64, which NumPy multiplies in a fraction of
    the time.
    """
    compute = np.float64 if x.itemsize == weight.itemsize == 1 else np.int64
    sums = product(x.astype(compute) - compute(zero), weight.astype(compute))
    return np.asarray(sums).astype(np.int64).astype(np.int32)


def computed_in(dtypes: Sequence[str]) -> str | None:
    """The dtype that a formula with operands of ``dtypes`` is computed in: the one floating-point
    dtype, else int32 or int64, else float32 (bool, int8, uint8).  None if there are several."""
    for family in (FLOATS, INTEGERS):
        of_family = {dtype for dtype in dtypes if dtype in family}
        if of_family:
            return of_family.pop() if len(of_family) == 1 else None
    return "float32"


def is_ints(value: object, least: int | None = None) -> TypeGuard[tuple[int, ...]]:
    """Whether a value is a tuple of ints (of at least ``least``), as attributes must be."""
    return isinstance(value, tuple) and all(
        type(v) is int and (least is None or v >= least) for v in value
    )


def check_pair(owner: str, name: str, value: Any, minimum: int) -> tuple[int, int]:
    """The pair of ints that ``value`` is, or that a single int stands for, as PyTorch takes both;
    raises GraphError for anything else."""
    value = plain(value)
    pair = (value, value) if isinstance(value, int) else value
    valid = (
        isinstance(pair, (tuple, list))
        and len(pair) == 2
        and all(isinstance(v, int) and not isinstance(v, bool) and v >= minimum for v in pair)
    )
    if not valid or isinstance(value, bool):
        raise GraphError(
            f"{owner}: {name}={value!r}; valid is an int >= {minimum} or a pair of them"
        )
    return (pair[0], pair[1])
