"""A model that makes no sense is one error: it names layer, value and what would be valid."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import minidnn as md
from minidnn import layers as L
from minidnn.errors import GraphError
from minidnn.layers.build import to_graph
from tests.layers.errors import graph, leaf


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
    (input_twice, "Model: Symbol(input: float32[batch, 2]) appears twice among the inputs"),
    (two_named_alike, "Model: the name 'fc' is given to two layers or reserved"),
    (
        graph(model(), {"a": (1, 2), "c": (1, 3)}),
        "shape names ['a', 'c']; valid is exactly ['a', 'b']",
    ),
    (graph(model(), (1, 2)), "shape gives 1 inputs; the model has 2"),
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
        lambda: md.Input((2,)) - "1",
        "cannot compute Sub of a symbolic value and '1' (str); valid are symbolic values, numbers "
        "and NumPy arrays of numbers",
    ),
    (lambda: [1.0, 2.0] * md.Input((2,)), "cannot compute Mul of a symbolic value and [1.0, 2.0]"),
    (
        lambda: np.array(["a"]) + md.Input((1,)),
        "cannot compute Add of a symbolic value and array([",
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
        lambda: L.Elementwise(math.exp),
        "Elementwise exp: the function failed on scalar expressions: must be real number, not "
        "Expression; valid are Python arithmetic, comparisons and the functions of minidnn.scalar",
    ),
    (
        lambda: L.Elementwise(3),  # type: ignore[arg-type]
        "Elementwise: function=3 is a int; valid is a function of scalar expressions, such as ",
    ),
    (
        lambda: L.Elementwise(lambda x: x, name="my op"),
        "Elementwise: name='my op'; valid is a Python identifier",
    ),
]


@pytest.mark.parametrize(("wrong", "text"), MODELS, ids=[text[:60] for _, text in MODELS])
def test_models(wrong: Callable[[], Any], text: str) -> None:
    with pytest.raises(GraphError, match=f"{re.escape(text)}"):
        wrong()


def test_a_type_error_inside_forward_stays_one() -> None:
    class Broken(L.Layer):
        def forward(self, x: Any) -> Any:
            return x + len(3)  # type: ignore[arg-type]

    with pytest.raises(TypeError, match="has no len"):
        to_graph(L.Sequential(Broken()), (1, 2))
