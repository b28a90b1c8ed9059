"""A shape or dtype that does not fit is one error: it names node, value and what would be valid."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import minidnn as md
from minidnn import layers as L
from minidnn.errors import GraphError
from minidnn.layers.build import to_graph
from tests.layers.errors import graph, leaf, stack

SHAPES: list[tuple[Callable[[], Any], str]] = [
    (
        graph(stack(L.ReLU(), L.Conv2d(4, 2, 3)), (1, 3, 8, 8)),
        "node 'l1': Conv2d(): input has 3 channels (shape (1, 3, 8, 8)), but the weight "
        "(2, 4, 3, 3) with groups=1 takes 4",
    ),
    (
        graph(stack(L.Conv2d(4, 2, 1, groups=2)), (1, 2, 8, 8)),
        "node 'l0': Conv2d(groups=2): input has 2 channels (shape (1, 2, 8, 8)), but the weight "
        "(2, 2, 1, 1) with groups=2 takes 4",
    ),
    (
        graph(stack(L.Conv2d(3, 2, 3)), (3, 8, 8)),
        "node 'l0': Conv2d(): input has shape (3, 8, 8) of rank 3; valid is rank 4",
    ),
    (
        graph(stack(L.Conv2d(3, 2, 5, padding=1, dilation=2)), (1, 3, 9, 6)),
        "node 'l0': Conv2d(padding=((1, 1), (1, 1)), dilation=(2, 2)): a kernel that reaches "
        "over 9 positions is larger than the padded input of 8 (input (1, 3, 9, 6), weight "
        "(2, 3, 5, 5)); use more padding or a smaller kernel_size or dilation",
    ),
    (
        graph(stack(L.MaxPool2d(3, 2)), (1, 3, 9, 2)),
        "node 'l0': MaxPool2d(kernel_size=(3, 3), stride=(2, 2)): a window of 3 columns is "
        "larger than the padded input of 2 (input (1, 3, 9, 2)); use a smaller kernel_size or "
        "dilation, or more padding",
    ),
    (
        graph(stack(L.AvgPool2d(5, 2, 1, ceil_mode=True)), (1, 3, 1, 9)),
        "a window of 5 rows is larger than the padded input of 3 (input (1, 3, 1, 9))",
    ),
    (
        graph(stack(L.MaxPool2d(1)), (4, 4)),
        "input has shape (4, 4) of rank 2; valid is rank 4",
    ),
    (
        graph(stack(L.AdaptiveAvgPool2d(1)), (4, 4)),
        "node 'l0': AdaptiveAvgPool2d(output_size=(1, 1)): input has shape (4, 4) of rank 2; "
        "valid is rank 4",
    ),
    (
        graph(stack(L.ReLU(), L.GroupNorm(2, 4)), (1, 6, 2, 2)),
        "node 'l1': GroupNorm: input has shape (1, 6, 2, 2) with 6 channels; valid are 4",
    ),
    (
        graph(stack(L.InstanceNorm1d(4)), (1, 4, 2, 2)),
        "node 'l0': InstanceNorm1d: input has shape (1, 4, 2, 2) of rank 4; valid is rank 3",
    ),
    (
        graph(stack(L.LayerNorm((4, 2))), (1, 4, 3)),
        "node 'l0': LayerNorm: input has shape (1, 4, 3); valid are last axes of (4, 2)",
    ),
    (
        graph(stack(L.ReflectionPad2d((0, 1, 3, 0))), (1, 4, 3, 5)),
        "node 'l0': ReflectionPad2d: padding of (3, 0) does not fit axis 2 of the input "
        "(1, 4, 3, 5); valid is at most 2",
    ),
    (
        graph(stack(L.ZeroPad1d((-2, -1))), (1, 4, 3)),
        "node 'l0': ZeroPad1d: padding of (-2, -1) does not fit axis 2 of the input (1, 4, 3); "
        "valid is what leaves at least one element",
    ),
    (
        graph(stack(L.Conv2d(4, 2, 3, padding=4, padding_mode="circular")), (1, 4, 3, 5)),
        "node 'l0': Conv2d: padding of (4, 4) does not fit axis 2 of the input (1, 4, 3, 5); "
        "valid is at most 3",
    ),
    (
        graph(stack(L.ConvTranspose1d(3, 2, 3)), (1, 4, 9)),
        "node 'l0': ConvTranspose1d: input has shape (1, 4, 9) with 4 channels; valid are 3",
    ),
    (
        graph(stack(L.ConvTranspose2d(4, 2, 2, padding=3)), (1, 4, 4, 4)),
        "node 'l0': ConvTranspose2d: cutting off (3, 3) leaves nothing of an axis of 5",
    ),
    (
        lambda: L.MultiheadAttention(4, 2)(*[md.Input((1, 4))] * 3, attn_mask=np.zeros((2, 1))),
        "node 'MultiheadAttention': MultiheadAttention: attn_mask is float64 of shape (2, 1); "
        "valid is bool or a float dtype, of shape (1, 1) or (2, 1, 1)",
    ),
    (
        lambda: L.MultiheadAttention(4, 2)(*[md.Input((1, 4))] * 3, mask=None),
        "average_attn_weights: 'bool' = True, is_causal: 'bool' = False) -> 'Any', got 3 inputs "
        "and mask=: got an unexpected keyword argument 'mask'",
    ),
    (
        graph(stack(L.BatchNorm2d(3)), (1, 4, 2, 2)),
        "node 'l0': BatchNorm(): weight has shape (3,), but the input (1, 4, 2, 2) has 4 "
        "channels; valid is (4,)",
    ),
    (
        graph(stack(L.BatchNorm2d(3)), (1, 3)),
        "BatchNorm2d: input has shape (1, 3) of rank 2; valid is rank 4",
    ),
    (
        graph(stack(L.Linear(4, 2)), (1, 4, 2, 2)),
        "node 'l0': Linear(): input of shape (1, 4, 2, 2) has 2 features, but the weight (2, 4) "
        "takes 4; flattened, the input would have 16 features a sample",
    ),
    (
        graph(stack(L.Softmax(3)), (2, 3)),
        "node 'l0': Softmax(dim=3): dim=3 is not an axis of the input (2, 3); valid are -2 to 1",
    ),
    (
        graph(stack(L.Flatten(2)), (2, 3)),
        "node 'l0': Flatten(start_dim=2): input of shape (2, 3) has axes 0 to 1; start_dim and "
        "end_dim must be among them, in order",
    ),
    (
        graph(stack(L.Reshape(4, -1)), (2, 3, 5)),
        "node 'l0': Reshape(shape=(4, -1)): 15 elements a sample (input (2, 3, 5)) do not fit "
        "into (4, -1)",
    ),
    (graph(stack(L.Reshape(0, -1)), (2, 3)), "3 elements a sample (input (2, 3)) do not fit into"),
    (
        graph(L.Add(), (2, 3), (2, 4)),
        "node 'add': Add(): shapes (2, 3), (2, 4) do not broadcast; valid are equal sizes, or 1, "
        "on every axis",
    ),
    (
        graph(L.Concat(), (2, 3, 4, 4), (2, 3, 4, 5)),
        "node 'concat': Concat(): input 1 is float32[2, 3, 4, 5], which does not join input 0, "
        "float32[2, 3, 4, 4], along axis 1; all other sizes and the dtype must be equal",
    ),
    (graph(L.Concat(2), (2, 3)), "Concat(axis=2): axis=2 is not an axis of the input (2, 3);"),
    (
        graph(stack(L.ReLU()), (2, 3), dtype="bool"),
        "node 'l0': ReLU(): operands have dtypes bool; valid is one of float16, bfloat16, "
        "float32, float64, int32, int64 for all of them",
    ),
    (
        graph(stack(L.Sigmoid()), (2, 3), dtype="int32"),
        "node 'l0': Sigmoid(): operands have dtype int32; valid is one of float16, bfloat16, "
        "float32, float64, for its expression takes exp",
    ),
    (
        graph(stack(leaf()), (2, 2), dtype="float64"),
        "node 'l0': Linear(): operands have dtypes float64, float32; valid is one of",
    ),
    (
        graph(L.Elementwise(lambda x, slope: x * slope, slope=[1.0, 2.0]), (2, 3)),
        "channel vector 0 has shape (2,), but the input (2, 3) has 3 channels; valid is (3,)",
    ),
    (
        graph(L.Elementwise(lambda x, slope: x * slope, slope=[1.0, 2.0]), (2,)),
        "input of shape (2,) has no axis of channels",
    ),
    # The network's own inputs
    (
        graph(L.ReLU(), (1, 0, 2)),
        "input 0: shape=(1, 0, 2); valid is a sequence of ints of at least 1, the batch size first",
    ),
    (graph(L.ReLU(), (-1, 3)), "input 0: shape=(-1, 3); valid is a sequence of ints of at least 1"),
    (graph(L.Add(), (1, 3), (0, 3)), "input 1: shape=(0, 3); valid is a sequence of ints"),
    (graph(L.ReLU(), (1, 2.5)), "input 0: shape=(1, 2.5); valid is a sequence of ints of"),
    (graph(L.ReLU(), "12"), "shape='12' (str); valid is a shape, the batch included, such as"),
    (graph(L.ReLU(), 7), "shape=7 (int); valid is a shape, the batch included, such as"),
    (graph(L.ReLU(), (1, 2), dtype="int7"), "dtype='int7' is not one of float16, bfloat16,"),
    (
        graph(L.Sequential(L.ReLU()), (1, 2), (1, 2)),
        "Sequential.forward takes (x: 'Any') -> 'Any', got 2 inputs: too many positional arguments",
    ),
    (graph(L.ReLU(), (1, 2), (1, 2)), "ReLU(): takes 1 operand (input), got 2"),
    (graph(L.Add(), (1, 2)), "Add(): takes 2 operands (a, b), got 1"),
    (
        graph(L.Conv2d(1, 1, 1), (1, 1, 1, 1), (1, 1, 1, 1)),
        "Conv2d.forward takes (x: 'Any') -> 'Any', got 2 inputs",
    ),
    (
        graph(L.ReLU(), {"x": (1, 2)}),
        "shape={'x': (1, 2)} names inputs, but ReLU has no named inputs; give them in the "
        "order of forward's arguments",
    ),
    (lambda: to_graph(np.maximum, (1, 2)), "network=<ufunc 'maximum'> (ufunc) is not a Layer"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("wrong", "text"), SHAPES, ids=[text[:60] for _, text in SHAPES])
def test_shapes(wrong: Callable[[], Any], text: str) -> None:
    with pytest.raises(GraphError, match=f"{re.escape(text)}"):
        wrong()
