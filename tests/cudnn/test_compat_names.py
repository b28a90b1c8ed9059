"""The names, arguments and keyword defaults of CuPy 13's ``cupyx.cudnn``."""

from __future__ import annotations

import inspect

import pytest

from minidnn import cudnn
from minidnn.cudnn import compat

CONVOLUTION = "pad stride dilation groups *{} d_layout=0 w_layout=0"
TRAINING = (
    "x gamma beta running_mean running_var mean inv_std eps decay is_for_conv2d cudnn_mode debug "
    "d_layout=0"
)
SIGNATURES = {
    "activation_backward": "x y gy mode coef=0.0",
    "activation_forward": "x mode coef=0.0",
    "add_tensor": "handle alpha biasDesc biasData beta srcDestDesc srcDestData",
    "batch_normalization_backward": (
        "x gamma gy mean inv_std eps is_for_conv2d cudnn_mode debug d_layout=0 *reserve_space=None"
    ),
    "batch_normalization_forward_inference": (
        "x gamma beta mean var eps is_for_conv2d cudnn_mode d_layout=0"
    ),
    "batch_normalization_forward_training": TRAINING,
    "batch_normalization_forward_training_ex": TRAINING,
    "convolution_backward_data": "W x b y "
    + CONVOLUTION.format("deterministic auto_tune tensor_core"),
    "convolution_backward_filter": "x gy gW "
    + CONVOLUTION.format("deterministic auto_tune tensor_core"),
    "convolution_forward": "x W b y " + CONVOLUTION.format("auto_tune tensor_core"),
    "create_activation_descriptor": "mode relu_nan_opt=1 coef=0.0",
    "create_convolution_descriptor": (
        "pad stride dtype mode=1 dilation=None use_tensor_core=False groups=1"
    ),
    "create_dropout_descriptor": "handle dropout states state_size_in_bytes seed",
    "create_dropout_states": "handle",
    "create_filter_descriptor": "arr format=0",
    "create_op_tensor_descriptor": "op_type dtype",
    "create_pooling_descriptor": "ksize stride pad mode",
    "create_reduce_tensor_descriptor": "reduce_type dtype",
    "create_tensor_descriptor": "arr format=0",
    "create_tensor_nd_descriptor": "arr",
    "create_uninitialized_tensor_descriptor": "",
    "get_data_type": "dtype",
    "get_handle": "",
    "get_max_workspace_size": "",
    "is_tensor_core_available": "dtype",
    "pooling_backward": "x y gy ksize stride pad mode",
    "pooling_forward": "x y ksize stride pad mode",
    "reset_handles": "",
    "set_dropout_descriptor": "desc handle dropout",
    "set_max_workspace_size": "size",
    "softmax_backward": "y gy axis algorithm",
    "softmax_forward": "x axis algorithm",
    "DropoutStates": "handle seed",
    "Descriptor": "descriptor destroyer",
}
METHODS = {
    "set_dropout_ratio": "self dropout_ratio",
    "forward": "self handle x dropout_ratio",
    "backward": "self handle dy dropout_ratio reserve_space",
}


def printed(function: object) -> str:
    """Names in order, with defaults as numbers; a star before the first keyword-only one."""
    words, star = [], False
    for parameter in inspect.signature(function).parameters.values():  # type: ignore[arg-type]
        word = parameter.name
        if parameter.default is not parameter.empty:
            default = parameter.default
            is_enum = isinstance(default, int) and not isinstance(default, bool)
            word += f"={int(default) if is_enum else default}"
        if parameter.kind is parameter.KEYWORD_ONLY and not star:
            word, star = "*" + word, True
        words.append(word)
    return " ".join(words)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", list(SIGNATURES))
def test_signature(name: str) -> None:
    assert printed(getattr(compat, name)) == SIGNATURES[name]
    assert getattr(cudnn, name) is getattr(compat, name)


def test_nothing_else_is_public() -> None:
    assert sorted(SIGNATURES) == sorted(compat.__all__)
    assert set(compat.__all__) <= set(dir(cudnn))


@pytest.mark.parametrize("name", list(METHODS))
def test_dropout_states(name: str) -> None:
    assert printed(getattr(compat.DropoutStates, name)) == METHODS[name]


def test_an_unknown_name() -> None:
    with pytest.raises(AttributeError, match="no attribute 'convolution_sideways'"):
        _ = cudnn.convolution_sideways
