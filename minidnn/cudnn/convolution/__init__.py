"""Convolution: forward, gradients by input, filter and bias, and forward with bias + activation.

Arrays are in logical order: x (N, C, ...), w (K, C / groups, ...), y (N, K, ...), with one to
three spatial dimensions; the memory layout follows from the strides.
"""

from minidnn.cudnn.convolution.choose import algorithms, workspace_size
from minidnn.cudnn.convolution.functions import (
    backward_bias,
    backward_data,
    backward_filter,
    bias_activation_forward,
    forward,
    plan,
)
from minidnn.cudnn.convolution.key import ConvolutionKey, output_shape
from minidnn.cudnn.convolution.plan import (
    Candidate,
    ConvolutionDescriptor,
    ConvolutionInfo,
    ConvolutionPlan,
)

__all__ = [
    "Candidate",
    "ConvolutionDescriptor",
    "ConvolutionInfo",
    "ConvolutionKey",
    "ConvolutionPlan",
    "algorithms",
    "backward_bias",
    "backward_data",
    "backward_filter",
    "bias_activation_forward",
    "forward",
    "output_shape",
    "plan",
    "workspace_size",
]
