"""Branches and functions of a model: what stands in their place, against ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from minidnn.errors import GraphError, UnsupportedError
from minidnn.frontends.onnx.convert import OpenInputsError, load_onnx
from minidnn.graph.evaluate import evaluate

from .models import OPSET, model, node

RANDOM = np.random.default_rng(12)
X = RANDOM.standard_normal((2, 3)).astype(np.float32)
OWN = "own.domain"


def branch(nodes: Sequence[Any], outputs: Sequence[str], **arrays: np.ndarray) -> Any:
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
    stored = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    return helper.make_graph(nodes, "branch", [], infos, stored)


def if_(condition: str, output: str, then: Any, other: Any, **named: Any) -> Any:
    return node("If", condition, output, then_branch=then, else_branch=other, **named)


def function(
    name: str,
    inputs: str,
    outputs: str,
    nodes: Sequence[Any],
    attributes: Sequence[str] = (),
    defaults: Sequence[Any] = (),
    opset: int = OPSET,
) -> Any:
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid(OWN, 1)]
    return helper.make_function(
        OWN, name, inputs.split(), outputs.split(), nodes, opsets, attributes, defaults
    )


def call(kind: str, inputs: str, outputs: str = "y", **attributes: Any) -> Any:
    made = node(kind, inputs, outputs, **attributes)
    made.domain = OWN
    return made


def referring(made: Any, name: str, to: str, kind: int) -> Any:
    """A node with an attribute that is one of the function's."""
    made.attribute.append(onnx.AttributeProto(name=name, ref_attr_name=to, type=kind))
    return made


def with_functions(nodes: Sequence[Any], *functions: Any, **arrays: np.ndarray) -> Any:
    made = model(nodes, [("x", [2, 3])], arrays=arrays)
    made.functions.extend(functions)
    made.opset_import.append(helper.make_opsetid(OWN, 1))
    return made


FLOAT, INT = onnx.AttributeProto.FLOAT, onnx.AttributeProto.INT
LEAKY = function(
    "Leaky",
    "a b",
    "c",
    [
        referring(node("LeakyRelu", "a", "l"), "alpha", "slope", FLOAT),
        node("Add", "l b", "c"),
    ],
    defaults=[helper.make_attribute("slope", 0.5)],
)
#: Calls the other one twice, with and without its attribute, and has names that the model has, too.
TWICE = function(
    "Twice",
    "x",
    "y z",
    [
        referring(call("Leaky", "x x", "t"), "slope", "by", FLOAT),
        call("Leaky", "t x", "y"),
        referring(node("Softmax", "t", "z"), "axis", "axis", INT),
    ],
    attributes=["by", "axis"],
)
#: With a branch inside, whose nodes refer to the function's attributes, and an optional input.
CHOSEN = function(
    "Chosen",
    "x low",
    "y",
    [
        referring(node("Constant", "", "flag"), "value", "flag", onnx.AttributeProto.TENSOR),
        if_(
            "flag",
            "y",
            branch([referring(node("Elu", "x", "e"), "alpha", "by", FLOAT)], ["e"]),
            branch([node("Clip", "x low", "e")], ["e"]),
        ),
    ],
    attributes=["flag", "by"],
)


def flag(value: bool) -> Any:
    return numpy_helper.from_array(np.array(value))


MODELS: dict[str, Callable[[], Any]] = {
    "attributes and defaults": lambda: with_functions([call("Leaky", "x x")], LEAKY),
    "attributes given": lambda: with_functions([call("Leaky", "x w", slope=0.25)], LEAKY, w=X[0]),
    "nested": lambda: with_functions(
        [call("Twice", "x", "t s", by=0.1, axis=0), node("Mul", "t s")], LEAKY, TWICE
    ),
    "attributes left out": lambda: with_functions(
        [call("Twice", "x", "u z"), call("Twice", "z", "y v")], LEAKY, TWICE
    ),
    "a branch in a function": lambda: with_functions(
        [
            call("Chosen", "x", "t", flag=flag(True), by=2.0),
            call("Chosen", "t l", flag=flag(False)),
        ],
        CHOSEN,
        l=np.array(0.25, np.float32),
    ),
    "an input left out": lambda: with_functions(
        [call("Chosen", "x _", "y", flag=flag(False))], CHOSEN
    ),
    "an older opset in a function": lambda: with_functions(
        [call("Old", "x")],
        function("Old", "x", "y", [node("ReduceMean", "x", "y", axes=[1], keepdims=1)], opset=13),
    ),
    "a condition that is folded": lambda: model(
        [
            node("Shape", "x", "shape"),
            node("Gather", "shape one", "columns"),
            node("Greater", "columns one", "wide"),
            if_(
                "wide",
                "y",
                branch([node("Mul", "x two", "m")], ["m"], two=np.array(2, np.float32)),
                branch([node("Einsum", "x", "m", equation="ij->ji")], ["m"]),
            ),
        ],
        [("x", [2, 3])],
        arrays={"one": np.array(1)},
    ),
    "nested branches that see what is around": lambda: model(
        [
            node("Relu", "x", "r"),
            if_(
                "no",
                "y a",
                branch([node("Identity", "x", "p"), node("Identity", "x", "q")], ["p", "q"]),
                branch(
                    [
                        node("Neg", "r", "n"),
                        if_(
                            "yes",
                            "o",
                            branch([node("Add", "n x", "s")], ["s"]),
                            branch([node("Sub", "n x", "s")], ["s"]),
                        ),
                    ],
                    ["o", "r"],
                ),
            ),
        ],
        [("x", [2, 3])],
        [("y", None), ("a", None)],
        {"yes": np.array(True), "no": np.array([False])},
    ),
}


#: What ONNX Runtime refuses, so that ONNX's reference says what is right.
NOT_IN_RUNTIME = {"an older opset in a function", "nested branches that see what is around"}


@pytest.mark.parametrize("name", MODELS)
def test_what_they_compute(name: str) -> None:
    made = MODELS[name]()
    if name in NOT_IN_RUNTIME:
        wanted = ReferenceEvaluator(made).run(None, {"x": X})
    else:
        wanted = onnxruntime.InferenceSession(made.SerializeToString()).run(None, {"x": X})
    graph = load_onnx(made)
    assert not {"If"} & {each.op.name for each in graph.nodes}
    for found, expected in zip(evaluate(graph, [X]), wanted, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


def test_nodes_have_the_names_of_what_they_stand_in() -> None:
    made = with_functions([call("Twice", "x", "y z", name="block")], LEAKY, TWICE)
    names = [each.name for each in load_onnx(made).nodes]
    assert names[:2] == ["block/Leaky_0/LeakyRelu_0", "block/Leaky_0/Add_1"]


def test_a_condition_that_is_an_input_can_be_given() -> None:
    made = model(
        [
            if_(
                "c",
                "y",
                branch([node("Relu", "x", "a")], ["a"]),
                branch([node("Neg", "x", "a")], ["a"]),
            )
        ],
        [("x", [2, 3])],
    )
    made.graph.input.append(helper.make_tensor_value_info("c", TensorProto.BOOL, []))
    with pytest.raises(
        OpenInputsError, match="its condition is computed at run time, from 'c'"
    ) as e:
        load_onnx(made)
    assert e.value.names == ("c",)
    for value, wanted in ((True, np.maximum(X, 0)), (False, -X)):
        graph = load_onnx(made, constants={"c": np.array(value)})
        np.testing.assert_array_equal(evaluate(graph, [X])[0], wanted)


def recursive() -> Any:
    return with_functions(
        [call("A", "x")],
        function("A", "x", "y", [call("B", "x")]),
        function("B", "x", "y", [call("A", "x")]),
    )


def growing() -> Any:
    """Each function calls the next one twice."""
    names = [f"F{i}" for i in range(25)]
    made = [function(a, "x", "y", [call(b, "x", "t"), call(b, "t")]) for a, b in pairwise(names)]
    last = function(names[-1], "x", "y", [node("Relu", "x")])
    return with_functions([call("F0", "x")], *made, last)


WRONG: list[tuple[type[Exception], Callable[[], Any], str]] = [
    (UnsupportedError, recursive, "'A_0/B_0/A_0' (A): the function calls itself (A -> B -> A)"),
    (
        GraphError,
        growing,
        "has 50331647 nodes, those of functions counted wherever they are c",
    ),
    (
        UnsupportedError,
        lambda: with_functions(
            [call("Bad", "x")], function("Bad", "x", "y", [node("Einsum", "x", equation="ij->ji")])
        ),
        "has 1 nodes that cannot be converted:\n  'Bad_0/Einsum_0' (Einsum): no operator of",
    ),
    (
        UnsupportedError,
        lambda: with_functions([call("Gone", "x")], LEAKY),
        "'Gone_0' (Gone): it is of the domain 'own.domain'",
    ),
    (
        GraphError,
        lambda: with_functions([call("Leaky", "x x", beta=1.0)], LEAKY),
        "attribute 'beta' is none of the function's; valid are slope",
    ),
    (
        GraphError,
        lambda: with_functions([call("Leaky", "x x x")], LEAKY),
        "it has 3 inputs and 1 outputs; the function has 2 and 1",
    ),
    (
        GraphError,
        lambda: with_functions([call("Leaky", "x x", slope=3)], LEAKY),
        "attribute 'alpha' is 'slope' of the function, which is of another type",
    ),
    (
        UnsupportedError,
        lambda: with_functions(
            [call("Old", "x")], function("Old", "x", "y", [node("Relu", "x")], opset=3)
        ),
        "the function has opset 3; valid is one from 6 to",
    ),
    (
        GraphError,
        lambda: with_functions([call("F", "x")], function("F", "x", "z", [node("Relu", "x")])),
        "nothing computes 'z', which it gives",
    ),
    (
        GraphError,
        lambda: model(
            [if_("c", "y", branch([], []), branch([], []))],
            [("x", [2, 3])],
            arrays={"c": np.array(True)},
        ),
        "its branch has 0 inputs and 0 outputs; valid are none and 1",
    ),
    (
        GraphError,
        lambda: model([node("If", "c")], [("x", [2, 3])], arrays={"c": np.array(True)}),
        "attribute 'then_branch' is missing; valid is a graph",
    ),
]


@pytest.mark.parametrize(("kind", "wrong", "text"), WRONG, ids=[text[:40] for *_, text in WRONG])
def test_what_is_refused(kind: type[Exception], wrong: Callable[[], Any], text: str) -> None:
    with pytest.raises(kind) as caught:
        load_onnx(wrong())
    assert text in str(caught.value)
