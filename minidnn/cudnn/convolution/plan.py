"""Plans of convolutions: descriptors, the algorithm in use, and the fallback to others.

A convolution descriptor holds padding, stride, dilation, groups, mode, compute and math type.
"""

from __future__ import annotations

import ctypes
import logging
import threading
import warnings
from dataclasses import dataclass
from typing import Any, NamedTuple, Self, TypeVar

from minidnn.cudnn import library
from minidnn.cudnn.arrays import Shape
from minidnn.cudnn.convolution.key import ConvolutionKey, in_order
from minidnn.cudnn.descriptor import Descriptor
from minidnn.cudnn.dtypes import (
    DOUBLE_ONE,
    DOUBLE_ZERO,
    ONE,
    ZERO,
    data_type,
    ints,
    is_double,
    scalar,
)
from minidnn.cudnn.enums import (
    ConvolutionBwdDataAlgo,
    ConvolutionBwdFilterAlgo,
    ConvolutionFwdAlgo,
    ConvolutionMode,
    DataType,
    MathType,
)
from minidnn.cudnn.errors import CuDNNError, NoAlgorithmError, check, status_name
from minidnn.cudnn.handle import current_handle
from minidnn.cudnn.tensor import FilterDescriptor, TensorDescriptor
from minidnn.cudnn.workspace import acquire
from minidnn.errors import MiniDNNWarning, OutOfMemoryError

CROSS_CORRELATION = ConvolutionMode.CUDNN_CROSS_CORRELATION
DEFAULT_MATH = MathType.CUDNN_DEFAULT_MATH


class ConvolutionInfo(NamedTuple):
    """What a convolution descriptor holds."""

    padding: Shape
    stride: Shape
    dilation: Shape
    groups: int
    mode: ConvolutionMode
    compute_type: DataType
    math_type: MathType


class ConvolutionDescriptor(Descriptor):
    """A ``cudnnConvolutionDescriptor_t``; ``ConvolutionDescriptor()`` is not initialised."""

    __slots__ = ()
    KIND = "Convolution"

    @classmethod
    def of(
        cls,
        padding: Shape,
        stride: Shape,
        dilation: Shape,
        groups: int = 1,
        compute: Any = "float32",
        math: MathType = DEFAULT_MATH,
        mode: ConvolutionMode = CROSS_CORRELATION,
    ) -> Self:
        """Describe a convolution of 2 or more dimensions."""
        made = cls()
        if len(padding) == 2:
            made.set_2d(padding, stride, dilation, mode, compute)
        else:
            made.set_nd(padding, stride, dilation, mode, compute)
        if groups != 1:
            made.set_groups(groups)
        made.set_math_type(math)
        return made

    def set_2d(
        self, padding: Shape, stride: Shape, dilation: Shape, mode: ConvolutionMode, compute: Any
    ) -> None:
        """``cudnnSetConvolution2dDescriptor``."""
        data = data_type(compute)
        context = {"padding": padding, "stride": stride, "dilation": dilation, "compute": data}
        arguments = (*padding, *stride, *dilation, mode, data)
        self._set("cudnnSetConvolution2dDescriptor", *arguments, **context)

    def set_nd(
        self, padding: Shape, stride: Shape, dilation: Shape, mode: ConvolutionMode, compute: Any
    ) -> None:
        """``cudnnSetConvolutionNdDescriptor``."""
        data = data_type(compute)
        context = {"padding": padding, "stride": stride, "dilation": dilation, "compute": data}
        arguments = (len(padding), ints(padding), ints(stride), ints(dilation), mode, data)
        self._set("cudnnSetConvolutionNdDescriptor", *arguments, **context)

    def set_groups(self, groups: int) -> None:
        """``cudnnSetConvolutionGroupCount``."""
        self._set("cudnnSetConvolutionGroupCount", groups, groups=groups)

    def set_math_type(self, math: MathType) -> None:
        """``cudnnSetConvolutionMathType``."""
        self._set("cudnnSetConvolutionMathType", math, math_type=MathType(math))

    @property
    def groups(self) -> int:
        """``cudnnGetConvolutionGroupCount``."""
        return self.query_ints("cudnnGetConvolutionGroupCount", 1)[0]

    @property
    def math_type(self) -> MathType:
        """``cudnnGetConvolutionMathType``."""
        return MathType(*self.query_ints("cudnnGetConvolutionMathType", 1))

    def get(self) -> ConvolutionInfo:
        """Return everything (``cudnnGetConvolutionNdDescriptor``, group count, math type)."""
        rank, mode, compute = (ctypes.c_int() for _ in range(3))
        padding, stride, dilation = (ints([0] * 6) for _ in range(3))
        kinds = (ctypes.byref(mode), ctypes.byref(compute))
        outputs = (ctypes.byref(rank), padding, stride, dilation, *kinds)
        self.call("cudnnGetConvolutionNdDescriptor", 6, *outputs)
        n = rank.value
        dims = (tuple(padding[:n]), tuple(stride[:n]), tuple(dilation[:n]))
        types = (ConvolutionMode(mode.value), DataType(compute.value), self.math_type)
        return ConvolutionInfo(*dims, self.groups, *types)

    def get_2d(self) -> ConvolutionInfo:
        """Return everything about a 2-d one (``cudnnGetConvolution2dDescriptor``)."""
        *dims, mode, compute = self.query_ints("cudnnGetConvolution2dDescriptor", 8)
        parts = (tuple(dims[:2]), tuple(dims[2:4]), tuple(dims[4:]))
        kinds = (ConvolutionMode(mode), DataType(compute), self.math_type)
        return ConvolutionInfo(*parts, self.groups, *kinds)

    def output_shape(self, x: TensorDescriptor, w: FilterDescriptor, rank: int) -> Shape:
        """Return the forward output's shape (``cudnnGetConvolutionNdForwardOutputDim``)."""
        dims = ints([0] * rank)
        self.call("cudnnGetConvolutionNdForwardOutputDim", x.value, w.value, rank, dims)
        return tuple(dims)


log = logging.getLogger(__name__)
T = TypeVar("T")


class Functions(NamedTuple):
    """The names of one operation's C functions, and the enumeration of its algorithms."""

    run: str
    get: str
    find: str
    find_ex: str
    max_count: str
    workspace: str
    algorithm: type[Any]


def _functions(name: str, algorithm: type[Any]) -> Functions:
    """Return the functions of the operation that cuDNN calls ``name``."""
    return Functions(
        f"cudnnConvolution{name}",
        f"cudnnGetConvolution{name}Algorithm_v7",
        f"cudnnFindConvolution{name}Algorithm",
        f"cudnnFindConvolution{name}AlgorithmEx",
        f"cudnnGetConvolution{name}AlgorithmMaxCount",
        f"cudnnGetConvolution{name}WorkspaceSize",
        algorithm,
    )


FUNCTIONS: dict[str, Functions] = {
    "forward": _functions("Forward", ConvolutionFwdAlgo),
    "backward_data": _functions("BackwardData", ConvolutionBwdDataAlgo),
    "backward_filter": _functions("BackwardFilter", ConvolutionBwdFilterAlgo),
}


@dataclass(frozen=True, slots=True)
class Candidate:
    """One algorithm, its ``workspace`` in bytes; ``time_ms`` is None when it was not measured."""

    algorithm: int
    name: str
    math: MathType
    workspace: int
    deterministic: bool
    time_ms: float | None


class Problem:
    """The descriptors of a convolution, without an algorithm; freed with the last reference."""

    __slots__ = ("conv", "functions", "key", "w", "x", "y")

    def __init__(self, key: ConvolutionKey) -> None:
        self.key = key
        self.functions = FUNCTIONS[key.operation]
        self.x = TensorDescriptor.strided(*key.x)
        self.w = FilterDescriptor.packed(key.w.dtype, key.w.shape, key.w.format)
        self.y = TensorDescriptor.strided(*key.y)
        self.conv = self.convolution(key.math)

    def convolution(self, math: MathType) -> ConvolutionDescriptor:
        """Return a new convolution descriptor with the given math type."""
        k = self.key
        arguments = (k.padding, k.stride, k.dilation, k.groups, k.compute, math, k.mode)
        return ConvolutionDescriptor.of(*arguments)

    def in_order(self, x: T, w: T, y: T) -> tuple[T, T, T]:
        """Return the three in the operation's order: first input, second input, output."""
        return in_order(self.key.operation, x, w, y)

    def operands(self) -> tuple[int, int, int]:
        """Return the descriptors of first input, second input and output."""
        return self.in_order(self.x.value, self.w.value, self.y.value)

    def output_bytes(self) -> int:
        """Return the size in bytes of the operation's output."""
        descriptors: tuple[Any, ...] = self.in_order(self.x, self.w, self.y)
        return int(descriptors[2].size_in_bytes)

    def workspace(self, algorithm: int, conv: ConvolutionDescriptor | None = None) -> int:
        """Ask cuDNN how much workspace an algorithm takes; CuDNNError if it cannot do this."""
        first, second, out = self.operands()
        size = ctypes.c_size_t()
        function = self.functions.workspace
        descriptors = (first, second, (conv or self.conv).value, out)
        call = getattr(library.load(), function)
        status = call(current_handle(), *descriptors, algorithm, ctypes.byref(size))
        if status:
            name = self.functions.algorithm(algorithm).name
            check(status, function, {**self.key.describe(), "algorithm": name})
        return size.value


class State(NamedTuple):
    """The algorithm in use; replaced as a whole, so that other threads see the old or the new."""

    candidate: Candidate
    conv: ConvolutionDescriptor
    conv_value: int
    algorithm: int
    workspace: int


class ConvolutionPlan:
    """A convolution with its algorithm chosen; run it as often as you like, on any stream.

    ``choice`` is the algorithm in use, ``skipped`` tells which better ones were not taken and why;
    ``unfit`` are those of them that the constraints excluded when the plan was made.  The plan
    holds descriptors, not arrays.  ``first``, ``second`` and ``out`` are addresses of
    descriptors, for calls like the fused one.
    """

    def __init__(
        self, problem: Problem, candidates: tuple[Candidate, ...], skipped: tuple[str, ...]
    ) -> None:
        self.key = problem.key
        self.unfit = skipped
        self.skipped = list(skipped)
        self._problem = problem
        self._candidates = candidates
        self._position = 0
        self._lock = threading.Lock()
        self.first, self.second, self.out = problem.operands()
        self._call = getattr(library.load(), problem.functions.run)
        self._double = is_double(self.key.x.dtype)
        self._one = DOUBLE_ONE if self._double else ONE
        self._zero = DOUBLE_ZERO if self._double else ZERO
        self.state = self._prepare()

    @property
    def choice(self) -> Candidate:
        """The algorithm that runs now."""
        return self.state.candidate

    def _prepare(self) -> State:
        candidate = self._candidates[self._position]
        conv = self._problem.convolution(candidate.math)
        return State(candidate, conv, conv.value, candidate.algorithm, candidate.workspace)

    def run(self, first: int, second: int, out: int, alpha: float = 1.0, beta: float = 0.0) -> None:
        """Compute out = alpha * convolution(first, second) + beta * out on device addresses.

        The inputs are (x, w) forward, (w, dy) for the data's and (x, dy) for the filter's
        gradient.  Runs on CuPy's current stream; the caller vouches for the addresses.
        """
        one = self._one if alpha == 1.0 else scalar(alpha, self._double)
        zero = self._zero if beta == 0.0 else scalar(beta, self._double)
        while True:
            state = self.state
            size = state.workspace
            try:
                memory = acquire(size) if size else None
            except OutOfMemoryError as error:
                self.fall_back(state, str(error), error)
                continue
            status = self._call(
                current_handle(),
                one,
                self.first,
                first,
                self.second,
                second,
                state.conv_value,
                state.algorithm,
                memory.ptr if memory is not None else None,
                size,
                zero,
                self.out,
                out,
            )
            if not status:
                return
            self.failed(status, state, self._problem.functions.run)

    def failed(
        self, status: int, state: State, function: str, more: dict[str, Any] | None = None
    ) -> None:
        """Go to the next algorithm when this one turned out to be unsupported, else raise."""
        try:
            context = {**self.key.describe(), "algorithm": state.candidate.name, **(more or {})}
            check(status, function, context)
        except CuDNNError as error:
            if not error.unsupported:
                raise
            self.fall_back(state, f"{status_name(status)} {error.last_error}", error)

    def fall_back(self, state: State, reason: str, error: Exception) -> None:
        """Switch to the next algorithm, one with less workspace if memory is short, and warn.

        If there is none, go back to the first, for the next call, and raise ``error``.
        """
        short = isinstance(error, OutOfMemoryError)
        with self._lock:
            if self.state is not state:
                return  # another thread has gone on already
            position = self._position
            while True:
                position += 1
                if position >= len(self._candidates):
                    self._restart()
                    raise error
                after = self._candidates[position]
                if not short or after.workspace < state.workspace:
                    break
            note = f"{state.candidate.name} ({state.workspace} bytes of workspace): {reason}"
            text = f"convolution falls back to {after.name} after {note}"
            log.warning(text)
            # Before anything changes: where warnings are errors the plan stays as it is.
            warnings.warn(text, MiniDNNWarning, stacklevel=4)
            self.skipped.append(note)
            self._position = position
            self.state = self._prepare()

    def _restart(self) -> None:
        """Go back to the first algorithm."""
        if self._position:
            self._position = 0
            self.state = self._prepare()
        self.skipped = list(self.unfit)


def no_algorithm(key: ConvolutionKey, skipped: tuple[str, ...]) -> NoAlgorithmError:
    """Return the error for a convolution that no algorithm fits."""
    lines = "".join(f"\n  {name}: {text}" for name, text in key.describe().items())
    reasons = "".join(f"\n  not taken: {reason}" for reason in skipped)
    return NoAlgorithmError(
        f"no algorithm for this convolution ({key.operation}) fits the constraints; a larger "
        "workspace_limit, deterministic=False, another math type or dense arrays may help"
        f"{lines}{reasons}"
    )
