"""CuPy 13's ``cupy.cudnn`` (``cupyx.cudnn``): the same names, arguments and results.

    from minidnn.cudnn import compat as cudnn      # was: from cupyx import cudnn

Not here: RNN, CTC loss, spatial transformer and the fused-ops packs.  As in CuPy, arrays are
C-contiguous (inputs are copied if not), NHWC is told by ``d_layout`` and ``w_layout``, and
convolutions keep to :func:`set_max_workspace_size`.
"""

from __future__ import annotations

from typing import Any

from minidnn.cudnn.compat.batch_norm import (
    batch_normalization_backward,
    batch_normalization_forward_inference,
    batch_normalization_forward_training,
    batch_normalization_forward_training_ex,
)
from minidnn.cudnn.compat.convolution import (
    convolution_backward_data,
    convolution_backward_filter,
    convolution_forward,
    get_max_workspace_size,
    is_tensor_core_available,
    set_max_workspace_size,
)
from minidnn.cudnn.compat.descriptors import (
    Descriptor,
    add_tensor,
    create_activation_descriptor,
    create_convolution_descriptor,
    create_filter_descriptor,
    create_op_tensor_descriptor,
    create_pooling_descriptor,
    create_reduce_tensor_descriptor,
    create_tensor_descriptor,
    create_tensor_nd_descriptor,
    create_uninitialized_tensor_descriptor,
    get_data_type,
    get_handle,
)
from minidnn.cudnn.compat.elementwise import (
    DropoutStates,
    activation_backward,
    activation_forward,
    create_dropout_descriptor,
    create_dropout_states,
    pooling_backward,
    pooling_forward,
    set_dropout_descriptor,
    softmax_backward,
    softmax_forward,
)
from minidnn.cudnn.handle import reset_handles

__all__ = [
    "Descriptor",
    "DropoutStates",
    "activation_backward",
    "activation_forward",
    "add_tensor",
    "batch_normalization_backward",
    "batch_normalization_forward_inference",
    "batch_normalization_forward_training",
    "batch_normalization_forward_training_ex",
    "convolution_backward_data",
    "convolution_backward_filter",
    "convolution_forward",
    "create_activation_descriptor",
    "create_convolution_descriptor",
    "create_dropout_descriptor",
    "create_dropout_states",
    "create_filter_descriptor",
    "create_op_tensor_descriptor",
    "create_pooling_descriptor",
    "create_reduce_tensor_descriptor",
    "create_tensor_descriptor",
    "create_tensor_nd_descriptor",
    "create_uninitialized_tensor_descriptor",
    "get_data_type",
    "get_handle",
    "get_max_workspace_size",
    "is_tensor_core_available",
    "pooling_backward",
    "pooling_forward",
    "reset_handles",
    "set_dropout_descriptor",
    "set_max_workspace_size",
    "softmax_backward",
    "softmax_forward",
]

_LEFT_OUT = ("rnn", "ctc_loss", "spatial", "fused_ops")


def __getattr__(name: str) -> Any:
    if any(part in name for part in _LEFT_OUT):
        raise AttributeError(
            f"{name} of CuPy 13 is not part of minidnn.cudnn, which leaves out RNN, CTC loss, "
            "spatial transformer and the fused-ops packs"
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
