"""Element-wise operations by name: their mode in cuDNN, operands and parameters."""

from __future__ import annotations

from dataclasses import dataclass

from minidnn.cudnn.graph.attributes import Attribute
from minidnn.cudnn.graph.enums import PointwiseMode
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
"""Names of parameters and the attributes of the descriptor that carry them."""


@dataclass(frozen=True)
class Operation:
    """``arity``: how many tensors it takes; ``backward``: (gradient, input) -> gradient."""

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
