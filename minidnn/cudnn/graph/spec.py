"""What a graph computes, as plain frozen data: tensors, operations, constraints.

A :class:`GraphSpec` with its :class:`Constraints` is the key under which a choice of engine is
cached, so it holds everything that matters to cuDNN and nothing else.  Nodes refer to tensors by
their index in ``GraphSpec.tensors``.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from minidnn.cudnn.dtypes import element_type
from minidnn.errors import GraphError

ALIGNMENT = 16
"""Alignment in bytes that cuDNN's vectorised kernels want and every new CuPy array has."""


@dataclass(frozen=True)
class TensorSpec:
    """Shape (NCHW order), strides in elements, dtype by name, alignment of its address in bytes.

    ``virtual`` tensors stay inside a kernel, ``by_value`` ones are scalars passed from the host.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    alignment: int = ALIGNMENT
    virtual: bool = False
    by_value: bool = False

    @property
    def span(self) -> int:
        """The number of elements in memory from the first to the last, both included."""
        steps = zip(self.shape, self.strides, strict=True)
        return 1 + sum((size - 1) * stride for size, stride in steps)

    @property
    def nbytes(self) -> int:
        """The size of the span in bytes."""
        return self.span * element_type(self.dtype).size

    def __str__(self) -> str:
        shape = "x".join(map(str, self.shape))
        strides = ",".join(map(str, self.strides))
        kind = " virtual" if self.virtual else " scalar" if self.by_value else ""
        return f"{self.dtype}[{shape}; strides {strides}]{kind}"


@dataclass(frozen=True)
class Window:
    """Padding before and after, stride and dilation, each per spatial axis."""

    before: tuple[int, ...]
    after: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]


@dataclass(frozen=True)
class Convolution:
    """``kind`` is forward, backward_data or backward_filter; ``x``, ``w``, ``y`` are image,
    filter and output (or their gradients) in every kind."""

    kind: str
    x: int
    w: int
    y: int
    window: Window
    flip: bool
    compute: str

    @property
    def reads(self) -> tuple[int, ...]:
        operands = {
            "forward": (self.x, self.w),
            "backward_data": (self.y, self.w),
            "backward_filter": (self.y, self.x),
        }
        return operands[self.kind]

    @property
    def writes(self) -> tuple[int, ...]:
        results = {"forward": self.y, "backward_data": self.x, "backward_filter": self.w}
        return (results[self.kind],)


@dataclass(frozen=True)
class Pointwise:
    """``mode`` is cuDNN's name in lower case without prefix, such as ``add`` or ``relu_fwd``."""

    mode: str
    inputs: tuple[int, ...]
    output: int
    attributes: tuple[tuple[str, float], ...]
    compute: str

    @property
    def reads(self) -> tuple[int, ...]:
        return self.inputs

    @property
    def writes(self) -> tuple[int, ...]:
        return (self.output,)


@dataclass(frozen=True)
class Matmul:
    """``c = a @ b`` over the last two dimensions, batches broadcast."""

    a: int
    b: int
    c: int
    compute: str

    @property
    def reads(self) -> tuple[int, ...]:
        return (self.a, self.b)

    @property
    def writes(self) -> tuple[int, ...]:
        return (self.c,)


@dataclass(frozen=True)
class Resample:
    """Pooling; ``index`` is the tensor for the positions of maxima, if a backward pass needs them.

    ``before`` and ``after`` are the padding, per spatial axis.
    """

    mode: str
    padding_mode: str
    x: int
    y: int
    index: int | None
    window: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]
    stride: tuple[int, ...]
    compute: str

    @property
    def reads(self) -> tuple[int, ...]:
        return (self.x,)

    @property
    def writes(self) -> tuple[int, ...]:
        return (self.y,) if self.index is None else (self.y, self.index)


@dataclass(frozen=True)
class Reduction:
    """Reduces the dimensions in which ``y`` has size 1 and ``x`` has not."""

    operator: str
    x: int
    y: int
    compute: str

    @property
    def reads(self) -> tuple[int, ...]:
        return (self.x,)

    @property
    def writes(self) -> tuple[int, ...]:
        return (self.y,)


@dataclass(frozen=True)
class Statistics:
    """The sums of ``x`` and of its squares over all dimensions but the second."""

    x: int
    sums: int
    squares: int
    compute: str

    @property
    def reads(self) -> tuple[int, ...]:
        return (self.x,)

    @property
    def writes(self) -> tuple[int, ...]:
        return (self.sums, self.squares)


_OPERANDS = ("a", "b", "c", "x", "w", "y", "inputs", "output", "index", "sums", "squares")
Node = Convolution | Pointwise | Matmul | Resample | Reduction | Statistics


@dataclass(frozen=True)
class GraphSpec:
    """An operation graph; ``inputs`` and ``outputs`` are in the order in which a plan takes its
    arrays, ``scalars`` are the constants in the order of their values."""

    tensors: tuple[TensorSpec, ...]
    nodes: tuple[Node, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    scalars: tuple[int, ...] = ()

    def describe(self) -> str:
        """One line for messages and cache files."""
        parts = []
        for node in self.nodes:
            settings = ", ".join(
                f"{field.name}={value}"
                for field in dataclasses.fields(node)
                if field.name not in _OPERANDS and (value := getattr(node, field.name)) is not None
            )
            reads = ", ".join(f"t{i}" for i in node.reads)
            parts.append(f"t{node.writes[0]} = {type(node).__name__}({reads}; {settings})")
        shown = [f"t{i}: {t}" for i, t in enumerate(self.tensors) if not t.virtual]
        return "; ".join(parts) + " with " + ", ".join(shown)

    @property
    def contracts(self) -> bool:
        """Whether a node is a convolution or a matrix product."""
        return any(isinstance(node, Convolution | Matmul) for node in self.nodes)

    @property
    def epilogue_inputs(self) -> tuple[int, ...]:
        """The inputs that the point-wise epilogue or prologue of a contraction reads."""
        if not self.contracts:
            return ()
        read = {i for node in self.nodes if isinstance(node, Pointwise) for i in node.inputs}
        return tuple(i for i in self.inputs if i in read)

    @property
    def windows(self) -> tuple[tuple[int, ...], ...]:
        """The spatial extents of the filter of each convolution."""
        convolutions = [node for node in self.nodes if isinstance(node, Convolution)]
        return tuple(self.tensors[node.w].shape[2:] for node in convolutions)

    @property
    def pools_bfloat16(self) -> bool:
        """Whether a pooling reads bfloat16."""
        return any(
            isinstance(node, Resample) and self.tensors[node.x].dtype == "bfloat16"
            for node in self.nodes
        )

    @property
    def sums_bytes(self) -> bool:
        """Whether a convolution of int8 or uint8 writes its int32 sums to memory."""
        return any(
            self.tensors[node.x].dtype in ("int8", "uint8")
            and self.tensors[node.y].dtype == "int32"
            and not self.tensors[node.y].virtual
            for node in self.nodes
            if isinstance(node, Convolution)
        )

    @property
    def contracts_float32(self) -> bool:
        """Whether a convolution or matrix product reads float32, so that TF32 would matter."""
        return any(
            self.tensors[i].dtype == "float32"
            for node in self.nodes
            if isinstance(node, Convolution | Matmul)
            for i in node.reads
        )


@dataclass(frozen=True)
class Constraints:
    """What an engine may do.

    Args:
        tf32: float32 products may be rounded to TF32 (10 bits of mantissa).
        deterministic: the same input must give the same bits on every run.
        accuracy: "normal" allows Winograd and FFT, "high" does not.
        workspace_limit: bytes that a plan may need beside its arrays.
    """

    tf32: bool = False
    deterministic: bool = False
    accuracy: str = "normal"
    workspace_limit: int = 1 << 30

    def __post_init__(self) -> None:
        if self.accuracy not in ("normal", "high"):
            raise GraphError(f"accuracy {self.accuracy!r} is not known; valid are normal, high")
        if self.workspace_limit < 0:
            raise GraphError(f"workspace_limit {self.workspace_limit} is negative; give bytes")


def constraints_from(given: Constraints | None, fields: dict[str, Any]) -> Constraints:
    """The constraints from an object, or from their fields as keyword arguments.

    Raises:
        GraphError: both are given, or an argument is none of the fields.
    """
    if given is None:
        valid = [field.name for field in dataclasses.fields(Constraints)]
        unknown = [name for name in fields if name not in valid]
        if unknown:
            raise GraphError(f"{unknown[0]!r} is no constraint; valid are {', '.join(valid)}")
        return Constraints(**fields)
    if fields:
        raise GraphError(f"give constraints or {', '.join(fields)}, not both")
    return given
