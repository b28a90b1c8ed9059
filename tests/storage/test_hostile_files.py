"""Whatever stands in a file, loading it gives a legal graph or one clear error.

Mutants are read in :mod:`tests.damage`.
"""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minidnn.errors import GraphError, WeightsError
from minidnn.graph.storage import MAX_NESTING, to_document
from minidnn.saving import save_graph
from minidnn.storage import METADATA_KEY, load_graph
from minidnn.weights import load_weights, save_weights
from tests.storage.sample import nested, net

Document = dict[str, Any]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "net.safetensors"
    save_graph(net(), path)
    return path


def load_document(path: Path, text: str, arrays: dict[str, np.ndarray]) -> Any:
    save_weights(arrays, path, {METADATA_KEY: text})
    return load_graph(path)


def node(document: Document, name: str) -> Document:
    return next(item for item in document["graph"]["nodes"] if item["name"] == name)


def conv(document: Document) -> Document:
    return node(document, "conv")["operator"]["Conv2d"]


def own(document: Document) -> Document:
    return node(document, "own")["operator"]["Formula"]


CASES: list[tuple[str, Callable[[Document], Any], str]] = [
    (
        "version",
        lambda d: d.update(version=2),
        r"the document has version 2; valid is 1",
    ),
    ("a version that only equals", lambda d: d.update(version=True), r"version True; valid is 1"),
    ("no graph", lambda d: d.pop("graph"), r"valid are version, constants, graph"),
    ("more", lambda d: d.update(run="rm"), r"valid are version, constants, graph"),
    (
        "unknown operator",
        lambda d: node(d, "conv").update(operator={"Eval": {}}),
        r"node 'conv': unknown operator 'Eval'; valid are: .*BatchNorm, Concat, Conv2d",
    ),
    (
        "two operators",
        lambda d: node(d, "conv").update(operator={"ReLU": {}, "ELU": {}}),
        r"node 'conv': operator \{.*\}; valid is \{\"ClassName\"",
    ),
    (
        "unknown field",
        lambda d: conv(d).update(strides=[1, 1]),
        r"node 'conv': Conv2d: unknown field 'strides'; valid are: stride, padding, dilation",
    ),
    (
        "missing field",
        lambda d: node(d, "pool")["operator"]["MaxPool2d"].pop("stride"),
        r"node 'pool': MaxPool2d: stride is missing; valid is a list of \(an int",
    ),
    (
        "wrong type",
        lambda d: conv(d).update(groups="1"),
        r"node 'conv': Conv2d: groups: '1'; valid is an int of 64 bits",
    ),
    ("a bool for an int", lambda d: conv(d).update(groups=True), r"groups: True; valid is an int"),
    ("a huge int", lambda d: conv(d).update(groups=2**63), r"groups: 9.*; valid is an int of 64"),
    ("a long list", lambda d: conv(d).update(stride=[1, 1, 1]), r"stride: \[1, 1, 1\]; valid is"),
    (
        "deep within",
        lambda d: conv(d).update(padding=[[0, 0], [0, None]]),
        r"Conv2d: padding: None; valid is an int",
    ),
    ("a zero stride", lambda d: conv(d).update(stride=[0, 1]), r"node 'conv'.*stride"),
    (
        "no expression",
        lambda d: own(d).update(body={"expression": [["call", 0]]}),
        r"node 'own': Formula: body: not a scalar expression",
    ),
    (
        "an expression that reads ahead",
        lambda d: own(d).update(body={"expression": [["argument", 0], ["neg", 1]]}),
        r"node 'own': Formula: body: not a scalar expression: line 1",
    ),
    (
        "an expression of objects",
        lambda d: own(d).update(body={"expression": [[{"a": []}]]}),
        r"valid is a list of lists of texts and numbers",
    ),
    (
        "many operands",
        lambda d: own(d).update(tensors=10**12),
        r"node 'own'",
    ),
    (
        "a cycle",
        lambda d: node(d, "conv").update(inputs=[9, "conv.weight", "conv.bias"]),
        r"node 'conv': operand 9; valid is the name of a constant or state, or the number of one",
    ),
    ("itself", lambda d: node(d, "conv").update(inputs=[1]), r"node 'conv': operand 1; valid is"),
    ("a negative number", lambda d: node(d, "conv").update(inputs=[-1]), r"operand -1; valid is"),
    (
        "a dangling name",
        lambda d: node(d, "conv").update(inputs=[0, "conv.weights"]),
        r"node 'conv': there is no constant or state 'conv\.weights'",
    ),
    ("no list of operands", lambda d: node(d, "conv").update(inputs=0), r"'conv': 0; valid is a l"),
    (
        "operands that do not fit",
        lambda d: node(d, "conv").update(inputs=[0, "skip.weight", "head.bias"]),
        r"node 'conv': Conv2d.*bias has shape \(5,\); valid is \(8,\)",
    ),
    ("outputs", lambda d: d["graph"].update(outputs=[99]), r"outputs: operand 99; valid is"),
    (
        "output names",
        lambda d: d["graph"].update(output_names=["a"]),
        r"1 output names for 2 outputs",
    ),
    (
        "two nodes of a name",
        lambda d: node(d, "norm").update(name="conv"),
        r"graph 'Net' is not legal:\n  two nodes are named 'conv'",
    ),
    (
        "half a character",
        lambda d: node(d, "conv").update(name="\ud800"),
        r"node name '\\ud800'; valid is a text of valid Unicode",
    ),
    ("a missing source", lambda d: node(d, "conv").update(source=3), r"source name 3; valid is"),
    (
        "an input's type",
        lambda d: d["graph"].update(inputs=[["x", ["float33", [2, 3, 8, 8]]]]),
        r"input 'x': dtype='float33' is not one of float16",
    ),
    (
        "an input's shape",
        lambda d: d["graph"].update(inputs=[["x", ["float32", [2, -3, 8, 8]]]]),
        r"input 'x': type .*; valid is \[\"dtype\", \[sizes\.\.\.\]\] with sizes of 0 or more",
    ),
    (
        "a huge input",
        lambda d: d["graph"].update(inputs=[["x", ["float32", [2, 3, 2**62, 2**62]]]]),
        r"node 'norm'",
    ),
    (
        "a constant's shape",
        lambda d: d["constants"]["head.bias"].update(type=["float32", [6]]),
        r"constant 'head\.bias': its array is float32\[5\]; valid is float32\[6\]",
    ),
    (
        "a constant's dtype",
        lambda d: d["constants"]["head.bias"].update(type=["float64", [5]]),
        r"constant 'head\.bias': its array is float32\[5\]; valid is float64\[5\]",
    ),
    (
        "an undescribed constant",
        lambda d: d["constants"].pop("head.bias"),
        r"there is no constant or state 'head\.bias'",
    ),
    (
        "a constant without an array",
        lambda d: d["constants"].update(more={"type": ["float32", [5]]}),
        r"constant 'more': its array is missing",
    ),
    (
        "constants of one name",
        lambda d: d["constants"]["head.bias"].update(name="head.weight"),
        r"are named 'head\.weight'",
    ),
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("change", "message"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_one_clear_error(
    change: Callable[[Document], Any], message: str, saved: Path, tmp_path: Path
) -> None:
    document, _ = to_document(net())
    document = copy.deepcopy(document)
    change(document)
    path = tmp_path / "bad.safetensors"
    with pytest.raises(GraphError, match=message) as caught:
        load_document(path, json.dumps(document), load_weights(saved))
    assert str(caught.value).startswith(f"graph file {str(path)!r}: ")
    assert len(str(caught.value)) < 2200


def test_an_array_that_nothing_reads(saved: Path, tmp_path: Path) -> None:
    document, _ = to_document(net())
    arrays = {**load_weights(saved), "more": np.zeros(3)}
    with pytest.raises(GraphError, match="nothing reads the array 'more'"):
        load_document(tmp_path / "g", json.dumps(document), arrays)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "its graph is not valid JSON"),
        ("{", "its graph is not valid JSON"),
        ('{"version":NaN}', "NaN is not JSON"),
        ('{"version":1,"version":1}', "the key 'version' appears twice"),
        ("9" * 5000, "its graph is not valid JSON"),
        ("[" * 100_000, "its JSON is nested too deep"),
        ("[" * 400 + "]" * 400, r"the document has \[\[\[\.\.\.\]\]\]; valid are version"),
        ("[1]", r"the document has \[1\]; valid are version, constants, graph"),
    ],
)
def test_what_is_no_document(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(GraphError, match=message):
        load_document(tmp_path / "g", text, {})


def test_bodies_nested_too_deep(tmp_path: Path) -> None:
    with pytest.raises(GraphError, match=f"nested deeper than {MAX_NESTING} levels"):
        save_graph(nested(MAX_NESTING), tmp_path / "g")
    graph = nested(MAX_NESTING - 1)
    save_graph(graph, tmp_path / "g")
    assert str(load_graph(tmp_path / "g")) == str(graph)
    document, constants = to_document(graph)
    type = ["float32", [1, 4, 6, 6]]
    region = {"Region": {"body": {"graph": document["graph"]}}}
    outer = {"name": "r", "operator": region, "inputs": [0]}
    document["graph"] = {
        "name": "g",
        "inputs": [["x", type]],
        "nodes": [outer],
        "outputs": [1],
        "output_names": None,
    }
    arrays = {key: constant.data for key, constant in constants.items()}
    with pytest.raises(GraphError, match=f"nested deeper than {MAX_NESTING} levels"):
        load_document(tmp_path / "g", json.dumps(document), arrays)


def test_a_file_of_weights_is_no_graph(tmp_path: Path) -> None:
    save_weights({"a": np.zeros(3)}, tmp_path / "w")
    message = "holds weights, but no graph .*; valid is a file that save_graph wrote"
    with pytest.raises(GraphError, match=message):
        load_graph(tmp_path / "w")


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="nothing"):
        load_graph(tmp_path / "nothing")


def test_a_large_graph_loads_quickly(tmp_path: Path) -> None:
    type = ["float32", [1, 8]]
    nodes = [{"name": f"n{i}", "operator": {"ReLU": {}}, "inputs": [i]} for i in range(20_000)]
    graph = {"name": "g", "inputs": [["x", type]], "nodes": nodes, "outputs": [20_000]}
    document = {"version": 1, "constants": {}, "graph": {**graph, "output_names": None}}
    start = time.process_time()
    assert len(load_document(tmp_path / "g", json.dumps(document), {}).nodes) == 20_000
    assert time.process_time() - start < 10
