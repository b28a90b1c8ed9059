"""What does not fit is one error that names argument, value, node and what would be valid."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import minidnn as md
from minidnn import layers as L
from minidnn.errors import GraphError
from minidnn.graph import operators as ops
from minidnn.layers.build import to_graph


def graph(layer: L.Layer, *shapes: Any, **arguments: Any) -> Callable[[], Any]:
    return lambda: to_graph(layer, shapes if len(shapes) != 1 else shapes[0], **arguments)


def stack(*layers: L.Layer) -> L.Sequential:
    return L.Sequential({f"l{i}": layer for i, layer in enumerate(layers)})


def leaf() -> L.Linear:
    return L.Linear(2, 2)


ARGUMENTS: list[tuple[Callable[[], Any], str]] = [
    (lambda: L.Conv2d(0, 1, 1), "Conv2d: in_channels=0; valid is an int of at least 1"),
    (lambda: L.Conv2d(3, -4, 1), "Conv2d: out_channels=-4; valid is an int of at least 1"),
    (lambda: L.Conv2d(3, 4, 0), "Conv2d: kernel_size=0; valid is an int >= 1 or a pair of them"),
    (
        lambda: L.Conv2d(3, 4, (3, 3, 3)),  # type: ignore[arg-type]
        "Conv2d: kernel_size=(3, 3, 3); valid is an int >= 1 or a pair of them",
    ),
    (lambda: L.Conv2d(3, 4, 3, 0), "Conv2d: stride=0; valid is an int >= 1 or a pair of them"),
    (
        lambda: L.Conv2d(3, 4, 3, padding=-1),
        "Conv2d: padding=-1; valid is an int >= 0 or a pair of them",
    ),
    (
        lambda: L.Conv2d(3, 4, 3, padding=((0, 1), (0, -1))),
        "Conv2d: padding for columns=(0, -1); valid is an int >= 0 or a pair of them",
    ),
    (
        lambda: L.Conv2d(3, 4, 3, padding="full"),
        "Conv2d: padding='full'; valid are 'same', 'valid', an int or pairs of ints",
    ),
    (
        lambda: L.Conv2d(3, 4, 3, 2, "same"),
        "Conv2d: padding='same' with stride=(2, 2); valid is stride 1",
    ),
    (
        lambda: L.Conv2d(3, 4, 3, dilation=0),
        "Conv2d: dilation=0; valid is an int >= 1 or a pair of them",
    ),
    (
        lambda: L.Conv2d(3, 4, 3, groups=3),
        "Conv2d: groups=3 does not divide out_channels=4; valid is a common divisor of "
        "in_channels and out_channels",
    ),
    (
        lambda: L.Conv2d(3, 4, 3, padding_mode="reflect"),
        "Conv2d: padding_mode='reflect'; valid is 'zeros'",
    ),
    (lambda: L.Linear(2.0, 1), "Linear: in_features=2.0; valid is an int of at least 1"),  # type: ignore[arg-type]
    (lambda: L.Linear(True, 1), "Linear: in_features=True; valid is an int of at least 1"),
    (lambda: L.BatchNorm2d(0), "BatchNorm2d: num_features=0; valid is an int of at least 1"),
    (
        lambda: L.BatchNorm2d(1, track_running_stats=False),
        "BatchNorm2d: track_running_stats=False; valid is True, as inference needs stored "
        "statistics",
    ),
    (
        lambda: L.BatchNorm2d(1, -1e-5),
        "BatchNorm(eps=-1e-05): eps=-1e-05; valid is a number of at least 0",
    ),
    (lambda: L.MaxPool2d(0), "MaxPool2d: kernel_size=0; valid is an int >= 1 or a pair of them"),
    (lambda: L.MaxPool2d(2, 0), "MaxPool2d: stride=0; valid is an int >= 1 or a pair of them"),
    (
        lambda: L.MaxPool2d(2, padding=True),
        "MaxPool2d: padding=True; valid is an int >= 0 or a pair of them",
    ),
    (
        lambda: L.MaxPool2d(3, padding=2),
        "MaxPool2d(kernel_size=(3, 3), stride=(3, 3), padding=(2, 2)): padding=(2, 2) is more "
        "than half of kernel_size=(3, 3); valid is at most half, so that no window lies in the "
        "padding alone",
    ),
    (
        lambda: L.MaxPool2d(2, return_indices=True),
        "MaxPool2d: return_indices=True; valid is False",
    ),
    (
        lambda: L.AvgPool2d(2, divisor_override=0),
        "AvgPool2d(kernel_size=(2, 2), stride=(2, 2), divisor_override=0): divisor_override=0; "
        "valid is a non-zero int or None",
    ),
    (
        lambda: L.AdaptiveAvgPool2d(0),
        "AdaptiveAvgPool2d(output_size=(0, 0)): output_size=(0, 0); valid is a pair of ints of "
        "at least 1 or None",
    ),
    (
        lambda: L.AdaptiveAvgPool2d((1, 2, 3)),  # type: ignore[arg-type]
        "AdaptiveAvgPool2d(output_size=(1, 2, 3)): output_size=(1, 2, 3); valid is a pair of",
    ),
    (lambda: L.Dropout(1.5), "Dropout(p=1.5): p=1.5; valid is a probability from 0 to 1"),
    (lambda: L.Dropout(float("nan")), "Dropout(p=nan): p=nan; valid is a probability"),
    (
        lambda: L.LeakyReLU("0.1"),  # type: ignore[arg-type]
        "LeakyReLU(negative_slope=0.1): negative_slope='0.1' is a str; valid is a number",
    ),
    (lambda: L.ELU(None), "ELU(alpha=None): alpha=None is a NoneType; valid is a number"),  # type: ignore[arg-type]
    (
        lambda: L.GELU("erf"),
        "GELU(approximate=erf): approximate='erf'; valid are 'none' and 'tanh'",
    ),
    (lambda: L.Softmax(1.0), "Softmax(dim=1.0): dim=1.0; valid is an int"),  # type: ignore[arg-type]
    (lambda: L.Concat("1"), "Concat(axis=1): axis='1'; valid is an int"),  # type: ignore[arg-type]
    (lambda: L.Flatten(None), "Flatten(start_dim=None): start_dim=None; valid is an int"),  # type: ignore[arg-type]
    (lambda: L.Reshape(2, 3.0), "Reshape: shape=(2, 3.0); valid are ints, one of them may be -1"),  # type: ignore[arg-type]
    (
        lambda: L.Reshape(-1, -1),
        "Reshape(shape=(-1, -1)): shape=(-1, -1); valid are non-negative sizes, and -1 at most "
        "once",
    ),
    (
        lambda: L.Sequential(L.ReLU(), L.Tanh),  # type: ignore[arg-type]
        "Sequential: entry '1' is <class 'minidnn.layers.activations.Tanh'> (type); valid are "
        "layers",
    ),
    (
        lambda: L.Sequential([L.ReLU()]),  # type: ignore[arg-type]
        "Sequential: entry '0' is [ReLU()] (list); valid are layers",
    ),
    (
        lambda: L.Sequential({"a.b": L.ReLU()}),
        "Sequential: name 'a.b'; valid is a non-empty name without dots that is no attribute of "
        "Sequential and begins with no underscore",
    ),
    (lambda: L.Sequential({"forward": L.ReLU()}), "Sequential: name 'forward'; valid is a non-"),
    (lambda: L.Sequential({"": L.ReLU()}), "Sequential: name ''; valid is a non-empty name"),
    (lambda: L.Sequential({3: L.ReLU()}), "Sequential: name 3; valid is a non-empty name"),  # type: ignore[dict-item]
    (
        lambda: L.Sequential({"1": L.ReLU()}).append(L.ReLU()),
        "Sequential: the name '1' of the new layer is taken",
    ),
    (
        lambda: L.Sequential(L.ReLU())[1],
        "Sequential: index 1; valid is an int from -1 to 0, as it has 1 layers",
    ),
    (lambda: L.LayerList()["0"], "LayerList: index '0'; valid is an int from 0 to -1, as"),  # type: ignore[index]
    (lambda: L.ReLU().named("a.b"), "name='a.b'; valid is a non-empty name without dots"),
]

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
        "takes 4; is a Flatten missing?",
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
        graph(stack(L.ReLU()), (2, 3), dtype="int32"),
        "node 'l0': ReLU(): operands have dtypes int32; valid is one of float16, bfloat16, "
        "float32, float64 for all of them",
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
    (graph(L.ReLU(), (1, 2.5)), "input 0: shape=1; valid is a sequence of ints of at least 1"),
    (graph(L.ReLU(), "12"), "shapes='12' (str); valid is a shape, the batch included, a sequence"),
    (graph(L.ReLU(), 7), "shapes=7 (int); valid is a shape, the batch included, a sequence"),
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
        "shapes={'x': (1, 2)} names inputs, but ReLU has no named inputs; give shapes in the "
        "order of forward's arguments",
    ),
    (lambda: to_graph(np.maximum, (1, 2)), "network=<ufunc 'maximum'> (ufunc) is not a Layer"),  # type: ignore[arg-type]
]


def model(names: bool = True) -> md.Model:
    a, b = md.Input((2,)), md.Input((3,))
    return md.Model({"a": a, "b": b} if names else [a, b], L.Concat()(a, b))


def two_named_alike() -> Any:
    x = md.Input((2,))
    return md.Model(x, leaf().named("fc")(leaf().named("fc")(x)))


def other_models_symbol() -> Any:
    x, y = md.Input((2,), name="x"), md.Input((2,), name="y")
    return md.Model(x, x + y)


def unused_input() -> Any:
    x, y = md.Input((2,), name="x"), md.Input((2,), name="y")
    return md.Model([x, y], L.ReLU()(x))


def input_twice() -> Any:
    x = md.Input((2,))
    return md.Model([x, x], L.ReLU()(x))


def symbol_in_forward() -> Any:
    outside = md.Input((2,))

    class Closure(L.Layer):
        def forward(self, x: Any) -> Any:
            return L.Add()(x, L.ReLU()(outside))

    return to_graph(Closure(), (1, 2))


def value_of_another_graph() -> Any:
    kept: list[Any] = []

    class Keeping(L.Layer):
        def forward(self, x: Any) -> Any:
            kept.append(x)
            return x + kept[0]

    to_graph(Keeping(), (1, 2))
    return to_graph(Keeping(), (1, 2))


def returns_value_of_another_graph() -> Any:
    (value,) = to_graph(L.ReLU(), (1, 2)).outputs

    class Foreign(L.Layer):
        def forward(self, x: Any) -> Any:
            return value

    return to_graph(Foreign(), (1, 2))


def value_of_a_finished_graph() -> Any:
    (value,) = to_graph(L.ReLU(), (1, 2)).outputs
    return value + 1


class Nothing(L.Layer):
    def forward(self, x: Any) -> Any:
        L.ReLU()(x)


class Undefined(L.Layer):
    pass


class Empty(L.Layer):
    def forward(self, x: Any) -> Any:
        return ()


class MakesConvolution(L.Layer):
    def forward(self, x: Any) -> Any:
        return L.Linear(2, 2)(x)


class KeepsList(L.Layer):
    def __init__(self, kept: Any) -> None:
        self.kept = kept


def cyclic() -> L.Layer:
    inner, outer = L.Sequential(L.ReLU()), L.Sequential()
    outer.append(inner)
    inner.append(outer)
    return outer


MODELS: list[tuple[Callable[[], Any], str]] = [
    (
        lambda: md.Input((3, 0)),
        "Input: shape=(3, 0); valid is a sequence of ints of at least 1, without the batch size",
    ),
    (lambda: md.Input(3), "Input: shape=3; valid is a sequence of ints of at least 1, without"),  # type: ignore[arg-type]
    (lambda: md.Input((3,), dtype="half"), "dtype='half' is not one of float16, bfloat16, float3"),
    (
        lambda: md.Model([], []),
        "Model: inputs=[]; valid are a symbol made by Input(...) and layers, or a non-empty "
        "sequence or dict of them",
    ),
    (lambda: md.Model(md.Input((1,)), L.ReLU()), "Model: outputs=ReLU(); valid are a symbol made"),
    (lambda: md.Model(np.ones(3), None), "Model: inputs=array([1., 1., 1.]); valid are a symbol"),
    (
        other_models_symbol,
        "Model: the outputs depend on Symbol(y: float32[batch, 2]), which is not among the inputs",
    ),
    (
        unused_input,
        "Model: no output depends on the input Symbol(y: float32[batch, 2]); remove it",
    ),
    (input_twice, "Model: Symbol(input: float32[batch, 2]) stands twice among the inputs"),
    (two_named_alike, "Model: the name 'fc' is given to two layers or reserved"),
    (
        graph(model(), {"a": (1, 2), "c": (1, 3)}),
        "shapes names ['a', 'c']; valid is exactly ['a', 'b']",
    ),
    (graph(model(), (1, 2)), "shapes gives 1 inputs; the model has 2"),
    (
        graph(model(), (1, 2), (1, 4)),
        "Model: input 1 is float32[1, 4], but it was declared as float32[batch, 3]",
    ),
    (graph(model(names=False), {"a": (1, 2), "b": (1, 3)}), "names inputs, but Model has no named"),
    (
        lambda: L.Flatten(0)(md.Input((2, 3))),
        "Flatten: from one sample of shape [(2, 3)] it makes %Flatten: float32[6], which has no "
        "batch axis of size 1; valid are layers that keep the batch first",
    ),
    (lambda: L.Concat(0)(md.Input((2,)), md.Input((2,))), "it makes %Concat: float32[2, 2], which"),
    (
        lambda: L.Conv2d(3, 4, 3)(md.Input((4, 8, 8))),
        "node 'Conv2d': Conv2d(): input has 4 channels (shape (1, 4, 8, 8)), but the weight",
    ),
    # Calling layers on what is no symbol
    (
        lambda: L.ReLU()(np.zeros(3)),
        "ReLU was called on (ndarray); valid are symbols made by md.Input(...). Layers describe "
        "and never compute: to run a network, compile it",
    ),
    (lambda: L.Concat()([md.Input((2,))]), "Concat was called on (list); valid are symbols made"),
    (lambda: L.Concat()(), "Concat was called on (); valid are symbols made by md.Input(...)."),
    (
        lambda: L.Add()(md.Input((2,)), 3),
        "Add: argument 1 is 3 (int); valid are symbols",
    ),
    (
        lambda: md.Input((2,)) + np.ones(2),
        "cannot compute Add of a symbolic value and array([1., 1.]) (ndarray); valid are "
        "symbolic values and numbers",
    ),
    (lambda: np.ones(2) * md.Input((2,)), "cannot compute Mul of a symbolic value and array([1."),
    (lambda: md.Input((2,)) - "1", "cannot compute Sub of a symbolic value and '1' (str); valid"),
    (lambda: md.Input((2,)) * True, "cannot compute Mul of a symbolic value and True (bool)"),
    (
        lambda: md.Input((2,)) ** md.Input((2,)),
        "exponent Symbol(input: float32[batch, 2]) of ** is a Symbol; valid is a number",
    ),
    # Symbols and values outside of where they belong
    (
        symbol_in_forward,
        "Add: argument 0 is %input: float32[1, 2], a value inside forward, but Symbol(relu: "
        "float32[batch, 2]) comes from outside; valid are forward's own arguments and what is "
        "made of them",
    ),
    (value_of_another_graph, "Add: operand %input: float32[1, 2] belongs to another graph"),
    (
        returns_value_of_another_graph,
        "output 0 of Foreign, %relu: float32[1, 2], belongs to another graph",
    ),
    (
        value_of_a_finished_graph,
        "a layer was called on a value of a finished graph; call layers on md.Input(...) "
        "symbols, or inside Layer.forward",
    ),
    # One's own layers
    (
        graph(Nothing(), (1, 2)),
        "Nothing: result 0 is None (NoneType); valid are symbolic values (is a return missing in "
        "forward?)",
    ),
    (lambda: Nothing()(md.Input((2,))), "Nothing: result 0 is None (NoneType); valid are symb"),
    (graph(Undefined(), (1, 2)), "Undefined does not define forward(self, ...)"),
    (graph(Empty(), (1, 2)), "Empty: forward gives (); valid is at least one value"),
    (
        graph(L.Sequential(MakesConvolution()), (1, 2)),
        "0.linear: a layer with parameters was made inside forward(), where its parameters would "
        "be lost; make it in __init__ and keep it as an attribute",
    ),
    (
        lambda: KeepsList([L.ReLU(), leaf()]).state_dict(),
        "KeepsList.kept is a list of layers, which would not be found; use Sequential or "
        "LayerList, or attributes of their own",
    ),
    (lambda: KeepsList({"a": leaf()}).state_dict(), "KeepsList.kept is a dict of layers, which"),
    (
        lambda: KeepsList((leaf().weight,)).state_dict(),
        "KeepsList.kept is a tuple of parameters, which would not be found",
    ),
    (lambda: cyclic().state_dict(), "0.1: the Sequential contains itself; valid is a network with"),
    (
        graph(cyclic(), (1, 2)),
        "0.1: the Sequential contains itself; valid is a network without cyc",
    ),
    (lambda: cyclic()(md.Input((2,))), "Sequential.0.1: the Sequential contains itself; valid is"),
    # Element-wise layers
    (
        lambda: L.Elementwise(lambda x: x, slope=[1.0]),
        "Elementwise Elementwise: the function takes (x), parameters are (slope); valid are "
        "inputs first, at least one, then the parameters",
    ),
    (
        lambda: L.Elementwise(lambda slope, x: x, slope=[1.0]),
        "the function takes (slope, x), parameters are (slope); valid are inputs first, at least",
    ),
    (lambda: L.Elementwise(lambda: 1.0), "the function takes (), parameters are (); valid are inp"),
    (
        lambda: L.Elementwise(lambda x, op: x, op=[1.0]),
        "parameter 'op' would hide an attribute of the layer; give it another name",
    ),
    (
        lambda: L.Elementwise(lambda x, k: x, k=[[1.0]]),
        "parameter k has shape (1, 1); valid is one number per channel",
    ),
    (lambda: L.Elementwise(lambda x, k: x, k="abc"), "parameter k='abc' is no array of numbers: "),
    (lambda: L.Elementwise(lambda x: x == 1), "the function gave False; valid is an expression of"),
    (lambda: L.Elementwise(lambda x: [x]), "the function gave [Expression("),
    (
        lambda: L.Elementwise(lambda x: x, name="my op"),
        "Elementwise: name='my op'; valid is a Python identifier",
    ),
]

#: Operators are made by loaded graphs too, without a layer that checks their attributes.
OPERATORS: list[tuple[Callable[[], Any], str]] = [
    (lambda: ops.Conv2d(stride=(0, 1)), "Conv2d: stride=(0, 1); valid is an int >= 1 or a pair"),
    (lambda: ops.Conv2d(padding=((0, 0), (0, -1))), "Conv2d: padding for columns=(0, -1); valid"),
    (lambda: ops.Conv2d(groups=1.0), "Conv2d(): groups=1.0; valid is an int"),  # type: ignore[arg-type]
    (lambda: ops.MaxPool2d((0, 1), (1, 1)), "MaxPool2d: kernel_size=(0, 1); valid is an int >= 1"),
    (lambda: ops.MaxPool2d((1, 1), (1, 0)), "MaxPool2d: stride=(1, 0); valid is an int >= 1 or"),
    (lambda: ops.AvgPool2d((2, 2), (1, 1), (-1, 0)), "AvgPool2d: padding=(-1, 0); valid is an int"),
    (
        lambda: ops.MaxPool2d((2, 2), (1, 1), dilation=(0, 1)),
        "MaxPool2d: dilation=(0, 1); valid is an int >= 1 or a pair of them",
    ),
    (
        lambda: ops.AvgPool2d((2, 2), (1, 1), divisor_override=2.5),  # type: ignore[arg-type]
        "divisor_override=2.5; valid is a non-zero int or None",
    ),
    (
        lambda: ops.Formula(md.scalar.argument(2), 2),
        "the expression takes 3 operands, but 2 tensors and 0 channel vectors are declared",
    ),
    (
        lambda: ops.Formula(md.scalar.argument(0) > 1),
        "the expression is a comparison; valid is a number: where(comparison, 1.0, 0.0)",
    ),
]


@pytest.mark.parametrize(("wrong", "text"), ARGUMENTS, ids=[t[:60] for _, t in ARGUMENTS])
def test_arguments(wrong: Callable[[], Any], text: str) -> None:
    with pytest.raises(GraphError, match=f"^{re.escape(text)}"):
        wrong()


@pytest.mark.parametrize(
    ("wrong", "text"),
    [*SHAPES, *MODELS, *OPERATORS],
    ids=[t[:60] for _, t in (*SHAPES, *MODELS, *OPERATORS)],
)
def test_text(wrong: Callable[[], Any], text: str) -> None:
    with pytest.raises(GraphError, match=re.escape(text)):
        wrong()


def test_a_type_error_inside_forward_stays_one() -> None:
    class Broken(L.Layer):
        def forward(self, x: Any) -> Any:
            return x + len(3)  # type: ignore[arg-type]

    with pytest.raises(TypeError, match="has no len"):
        to_graph(L.Sequential(Broken()), (1, 2))
