"""The operations of a graph: each method checks shapes, adds a node and returns its result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from minidnn.cudnn.dtypes import HOST_TYPES, element_type
from minidnn.cudnn.graph import tensor
from minidnn.cudnn.graph.attributes import Attribute
from minidnn.cudnn.graph.enums import PointwiseMode
from minidnn.cudnn.graph.spec import (
    Convolution,
    Matmul,
    Node,
    Pointwise,
    Reduction,
    Resample,
    Statistics,
    TensorSpec,
    Window,
)
from minidnn.cudnn.graph.tensor import Tensor
from minidnn.errors import GraphError

_PREFIX = "CUDNN_POINTWISE_"
_BINARY = frozenset(
    """add add_square div max min mod mul pow sub atan2
    cmp_eq cmp_neq cmp_gt cmp_ge cmp_lt cmp_le logical_and logical_or""".split()  # noqa: SIM905
)
_SHORT = frozenset(
    "relu tanh sigmoid elu gelu softplus swish gelu_approx_tanh".split()  # noqa: SIM905
)

PARAMETERS = {
    "relu_lower_clip": Attribute.CUDNN_ATTR_POINTWISE_RELU_LOWER_CLIP,
    "relu_upper_clip": Attribute.CUDNN_ATTR_POINTWISE_RELU_UPPER_CLIP,
    "relu_lower_clip_slope": Attribute.CUDNN_ATTR_POINTWISE_RELU_LOWER_CLIP_SLOPE,
    "elu_alpha": Attribute.CUDNN_ATTR_POINTWISE_ELU_ALPHA,
    "softplus_beta": Attribute.CUDNN_ATTR_POINTWISE_SOFTPLUS_BETA,
    "swish_beta": Attribute.CUDNN_ATTR_POINTWISE_SWISH_BETA,
    "axis": Attribute.CUDNN_ATTR_POINTWISE_AXIS,
}
"""The descriptor's attribute for each parameter of an element-wise operation, by name."""


@dataclass(frozen=True)
class Operation:
    """An element-wise operation of ``arity`` operands; ``backward`` ones take (gradient, input)."""

    name: str
    mode: PointwiseMode
    arity: int
    backward: bool


def _table() -> dict[str, Operation]:
    table = {}
    for mode in PointwiseMode:
        name = mode.name.removeprefix(_PREFIX).lower()
        backward = name.endswith("_bwd")
        arity = 3 if name == "binary_select" else 2 if backward or name in _BINARY else 1
        table[name] = Operation(name, mode, arity, backward)
    return table


OPERATIONS = _table()


def operation(name: str) -> Operation:
    """The element-wise operation of that name; ``relu`` stands for ``relu_fwd`` and so on.

    Raises:
        GraphError: no such operation.
    """
    full = f"{name}_fwd" if name in _SHORT else name
    try:
        return OPERATIONS[full]
    except KeyError:
        known = ", ".join(OPERATIONS)
        raise GraphError(f"pointwise operation {name!r} is not known; valid are {known}") from None


Padding = int | Sequence[int | Sequence[int]]
POOLING = {
    "max": ("maxpool", "neg_inf_pad"),
    "average": ("avgpool_exclude_padding", "zero_pad"),
    "average_include_padding": ("avgpool_include_padding", "zero_pad"),
}
REDUCTIONS = ("add", "mul", "min", "max", "amax", "avg", "norm1", "norm2", "mul_no_zeros")


class Operations:
    """Everything that a :class:`.Graph` can compute.

    Every method raises :class:`~minidnn.errors.GraphError` for operands that do not fit.
    """

    def __init__(self) -> None:
        self._tensors: list[TensorSpec] = []
        self._nodes: list[Node] = []
        self._inputs: list[int] = []
        self._outputs: list[int] = []
        self._scalars: dict[int, float] = {}
        self._names: dict[int, str] = {}

    def constant(self, value: float, dims: int = 4, dtype: str = "float32") -> Tensor:
        """A scalar that is passed by value at each execution."""
        if dtype not in HOST_TYPES:
            raise GraphError(f"constant: dtype {dtype!r}; valid are {', '.join(HOST_TYPES)}")
        if dtype == "int32" and value != int(value):
            raise GraphError(f"constant: {value!r} is not an integer, but its dtype is int32")
        spec = TensorSpec((1,) * dims, (1,) * dims, dtype, element_type(dtype).size, by_value=True)
        tensor = self._declare(spec, None)
        self._scalars[tensor.index] = int(value) if dtype == "int32" else float(value)
        return tensor

    # --- convolution -------------------------------------------------------------------------

    def convolution(
        self,
        x: Tensor,
        w: Tensor,
        *,
        padding: Padding = 0,
        stride: int | Sequence[int] = 1,
        dilation: int | Sequence[int] = 1,
        flip: bool = False,
    ) -> Tensor:
        """Cross-correlation of images (N, C, *size) with filters (K, C / groups, *window).

        The number of groups follows from the shapes.  ``flip`` makes it a convolution in the
        mathematical sense.  ``padding`` is one integer, one per axis, or pairs (before, after).
        """
        node, shape = self._window(x.shape, w.shape, padding, stride, dilation)
        self._same_dtype("convolution", x, w)
        y = self._result(shape, x)
        self._add(Convolution("forward", x.index, w.index, y.index, node, flip, _compute(x)), x, w)
        return y

    def convolution_backward_data(
        self,
        dy: Tensor,
        w: Tensor,
        input_shape: Sequence[int],
        *,
        padding: Padding = 0,
        stride: int | Sequence[int] = 1,
        dilation: int | Sequence[int] = 1,
        flip: bool = False,
    ) -> Tensor:
        """The gradient by the images, of shape ``input_shape``, of :meth:`convolution`."""
        x_shape = tensor.check_shape(input_shape, "input_shape")
        node, y_shape = self._window(x_shape, w.shape, padding, stride, dilation)
        self._expect("convolution_backward_data", "dy", dy, y_shape, f"input_shape {x_shape}")
        self._same_dtype("convolution_backward_data", dy, w)
        dx = self._result(x_shape, dy)
        self._add(
            Convolution("backward_data", dx.index, w.index, dy.index, node, flip, _compute(dy)),
            dy,
            w,
        )
        return dx

    def convolution_backward_filter(
        self,
        dy: Tensor,
        x: Tensor,
        filter_shape: Sequence[int],
        *,
        padding: Padding = 0,
        stride: int | Sequence[int] = 1,
        dilation: int | Sequence[int] = 1,
        flip: bool = False,
    ) -> Tensor:
        """The gradient by the filters, of shape ``filter_shape``, of :meth:`convolution`."""
        w_shape = tensor.check_shape(filter_shape, "filter_shape")
        node, y_shape = self._window(x.shape, w_shape, padding, stride, dilation)
        self._expect("convolution_backward_filter", "dy", dy, y_shape, f"filter_shape {w_shape}")
        self._same_dtype("convolution_backward_filter", dy, x)
        dw = self._result(w_shape, x)
        self._add(
            Convolution("backward_filter", x.index, dw.index, dy.index, node, flip, _compute(x)),
            dy,
            x,
        )
        return dw

    def _window(
        self,
        x: tuple[int, ...],
        w: tuple[int, ...],
        padding: Padding,
        stride: int | Sequence[int],
        dilation: int | Sequence[int],
    ) -> tuple[Window, tuple[int, ...]]:
        if len(x) != len(w) or len(x) < 3:
            raise GraphError(
                f"convolution: images {x} and filters {w} must both have 2 + spatial dimensions"
            )
        if x[1] % w[1]:
            raise GraphError(
                f"convolution: {x[1]} channels of images {x} are not a multiple of the "
                f"{w[1]} channels of filters {w}"
            )
        groups = x[1] // w[1]
        if w[0] % groups:
            raise GraphError(
                f"convolution: {w[0]} filters {w} cannot be split into {groups} groups, "
                f"which images {x} imply"
            )
        count = len(x) - 2
        before, after = tensor.padding_pair(padding, count)
        steps = tensor.per_axis(stride, count, "stride", 1)
        spread = tensor.per_axis(dilation, count, "dilation", 1)
        size = tensor.window_output(x[2:], w[2:], before, after, steps, spread)
        return Window(before, after, steps, spread), (x[0], w[0], *size)

    # --- element-wise ------------------------------------------------------------------------

    def pointwise(self, mode: str, *operands: Tensor | float, **parameters: float) -> Tensor:
        """Any element-wise operation of cuDNN by its name in lower case.

        Activations go without ``_fwd``; their gradients are ``relu_bwd`` and so on and take
        (gradient, input).  Operands broadcast where a size is 1; numbers become scalars.
        ``parameters`` are ``relu_lower_clip``, ``relu_upper_clip``, ``relu_lower_clip_slope``,
        ``elu_alpha``, ``softplus_beta``, ``swish_beta`` and ``axis``.  The result has the dtype of
        the first operand of its shape, which also determines the compute type.
        """
        return self.pointwise_in(None, mode, *operands, **parameters)

    def pointwise_in(
        self, dtype: str | None, mode: str, *operands: Tensor | float, **parameters: float
    ) -> Tensor:
        """:meth:`pointwise` with a result of ``dtype``, which determines the compute type, too:
        float32 from int32 sums, for example."""
        kind = operation(mode)
        if len(operands) != kind.arity:
            raise GraphError(f"{mode} takes {kind.arity} operands, not {len(operands)}")
        unknown = [name for name in parameters if name not in PARAMETERS]
        if unknown:
            raise GraphError(f"{mode}: parameter {unknown[0]!r}; valid are {', '.join(PARAMETERS)}")
        known = [o for o in operands if isinstance(o, Tensor)]
        if not known:
            raise GraphError(f"{mode}: at least one operand must be a tensor of the graph")
        dims = len(known[0].shape)
        tensors = [o if isinstance(o, Tensor) else self.constant(o, dims) for o in operands]
        shape = tensor.broadcast([t.shape for t in tensors], mode)
        lead = next((t for t in known if t.shape == shape), known[0])
        if dtype is not None:
            element_type(dtype)
        compares = mode.startswith(("cmp", "logical"))
        result = self._result(shape, lead, "bool" if compares else dtype)
        node = Pointwise(
            kind.name,
            tuple(t.index for t in tensors),
            result.index,
            tuple(sorted((name, float(value)) for name, value in parameters.items())),
            _compute(lead) if dtype is None else element_type(dtype).compute,
        )
        self._add(node, *tensors)
        return result

    def add(self, a: Tensor, b: Tensor | float) -> Tensor:
        """``a + b``; a bias for NCHW has the shape (1, C, 1, 1)."""
        return self.pointwise("add", a, b)

    def mul(self, a: Tensor, b: Tensor | float) -> Tensor:
        """``a * b``."""
        return self.pointwise("mul", a, b)

    def relu(self, x: Tensor, *, upper: float | None = None, slope: float = 0.0) -> Tensor:
        """``max(x, 0)``, at most ``upper``; ``slope`` times x below 0."""
        parameters = {} if upper is None else {"relu_upper_clip": upper}
        if slope:
            parameters["relu_lower_clip_slope"] = slope
        return self.pointwise("relu", x, **parameters)

    def sigmoid(self, x: Tensor) -> Tensor:
        """``1 / (1 + exp(-x))``."""
        return self.pointwise("sigmoid", x)

    def tanh(self, x: Tensor) -> Tensor:
        """Hyperbolic tangent."""
        return self.pointwise("tanh", x)

    def gelu(self, x: Tensor) -> Tensor:
        """``x * Phi(x)``, exact."""
        return self.pointwise("gelu", x)

    def elu(self, x: Tensor, alpha: float = 1.0) -> Tensor:
        """``x`` above 0, ``alpha * (exp(x) - 1)`` below."""
        return self.pointwise("elu", x, elu_alpha=alpha)

    def swish(self, x: Tensor, beta: float = 1.0) -> Tensor:
        """``x * sigmoid(beta * x)``."""
        return self.pointwise("swish", x, swish_beta=beta)

    # --- matrix product, pooling, reduction --------------------------------------------------

    def matmul(self, a: Tensor, b: Tensor) -> Tensor:
        """Matrices (B, M, K) times (B, K, N); a batch size of 1 is repeated."""
        if len(a.shape) != len(b.shape) or len(a.shape) < 3 or a.shape[-1] != b.shape[-2]:
            raise GraphError(f"matmul: {a.shape} and {b.shape} are not (B, M, K) and (B, K, N)")
        self._same_dtype("matmul", a, b)
        batch = tensor.broadcast([a.shape[:-2], b.shape[:-2]], "matmul")
        shape = (*batch, a.shape[-2], b.shape[-1])
        c = self._declare(TensorSpec(shape, tensor.packed_strides(shape), a.dtype), None)
        self._add(Matmul(a.index, b.index, c.index, _compute(a)), a, b)
        return c

    def pool(
        self,
        mode: str,
        x: Tensor,
        window: int | Sequence[int],
        *,
        stride: int | Sequence[int] | None = None,
        padding: Padding = 0,
    ) -> Tensor:
        """Pooling (cuDNN's resample): ``max``, ``average`` (padding does not count) or
        ``average_include_padding``; ``stride`` is the window unless given."""
        if mode not in POOLING:
            raise GraphError(f"pool: mode {mode!r} is not known; valid are {', '.join(POOLING)}")
        count = len(x.shape) - 2
        if count < 1:
            raise GraphError(f"pool: {x.shape} has no spatial dimensions")
        size = tensor.per_axis(window, count, "window", 1)
        steps = tensor.per_axis(size if stride is None else stride, count, "stride", 1)
        before, after = tensor.padding_pair(padding, count)
        if any(p >= k for p, k in zip((*before, *after), (*size, *size), strict=True)):
            raise GraphError(f"pool: padding {padding!r} leaves windows {size} without a value")
        out = tensor.window_output(x.shape[2:], size, before, after, steps, (1,) * count)
        y = self._result((*x.shape[:2], *out), x)
        method, outside = POOLING[mode]
        compute = "float32" if x.dtype != "float64" else "float64"
        self._add(
            Resample(method, outside, x.index, y.index, None, size, before, after, steps, compute),
            x,
        )
        return y

    def reduce(self, operator: str, x: Tensor, axes: int | Sequence[int]) -> Tensor:
        """Reduces ``axes``, which stay with size 1: add, mul, min, max, amax, avg, norm1, norm2."""
        if operator not in REDUCTIONS:
            raise GraphError(f"reduce: {operator!r} is not one of {', '.join(REDUCTIONS)}")
        wanted = [axes] if isinstance(axes, int) else list(axes)
        dims = len(x.shape)
        if not wanted or any(not -dims <= axis < dims for axis in wanted):
            raise GraphError(f"reduce: axes {axes!r} are not axes of {x.shape}")
        reduced = {axis % dims for axis in wanted}
        shape = tuple(1 if axis in reduced else size for axis, size in enumerate(x.shape))
        y = self._result(shape, x)
        self._add(Reduction(operator, x.index, y.index, _compute(x)), x)
        return y

    def statistics(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The sums of ``x`` and of its squares over all axes but channels, of shape (1, C, 1, 1),
        in float32: for a batch normalization.  cuDNN computes it in a convolution's epilogue."""
        shape = (1, x.shape[1], *(1 for _ in x.shape[2:]))
        strides = tensor.packed_strides(shape, channels_last=True)
        sums, squares = (
            self._declare(TensorSpec(shape, strides, "float32"), None) for _ in range(2)
        )
        self._add(Statistics(x.index, sums.index, squares.index, "float32"), x)
        return sums, squares

    # --- helpers -----------------------------------------------------------------------------

    def _declare(self, spec: TensorSpec, name: str | None) -> Tensor:
        self._tensors.append(spec)
        if name is not None:
            self._names[len(self._tensors) - 1] = name
        return Tensor(self, len(self._tensors) - 1)

    def _result(self, shape: tuple[int, ...], like: Tensor, dtype: str | None = None) -> Tensor:
        """A tensor of the dtype and in the layout (channels first or last) of ``like``."""
        last = tensor.is_channels_last(like.shape, like.strides)
        strides = tensor.packed_strides(shape, channels_last=last)
        return self._declare(TensorSpec(shape, strides, dtype or like.dtype), None)

    def _add(self, node: Node, *operands: Tensor) -> None:
        for operand in operands:
            self._own(operand)
        self._nodes.append(node)

    def _own(self, tensor: Tensor) -> None:
        if not isinstance(tensor, Tensor) or tensor.graph is not self:
            raise GraphError(f"{tensor!r} is not a tensor of this graph")

    def _same_dtype(self, what: str, *tensors: Tensor) -> None:
        if len({t.dtype for t in tensors}) > 1:
            raise GraphError(f"{what}: dtypes differ: {', '.join(t.dtype for t in tensors)}")

    def _expect(
        self, what: str, argument: str, tensor: Tensor, shape: tuple[int, ...], given: str
    ) -> None:
        if tensor.shape != shape:
            raise GraphError(
                f"{what}: {argument} has shape {tensor.shape}, but {given} with these filters, "
                f"padding, stride and dilation belongs to an output of {shape}"
            )


def _compute(tensor: Tensor) -> str:
    return element_type(tensor.dtype).compute
