"""Describing graphs: shapes, layouts, keys and messages; no library is needed."""

from __future__ import annotations

from typing import Any

import pytest

from minidnn.cache import digest
from minidnn.cudnn.graph import Constraints, Graph
from minidnn.cudnn.graph.spec import Convolution
from minidnn.errors import GraphError
from tests.cudnn_graph.fake import FakeArray


def conv_graph(dtype: str = "float16", layout: str = "NHWC", **settings: Any) -> tuple[Graph, Any]:
    g = Graph()
    x = g.tensor((2, 8, 10, 12), dtype, layout=layout, name="x")
    w = g.tensor((16, 8, 3, 3), dtype, layout=layout, name="w")
    return g, g.convolution(x, w, **settings)


def test_convolution_bias_add_relu_takes_a_few_lines() -> None:
    g = Graph()
    x = g.tensor((2, 8, 10, 12), "float16", layout="NHWC")
    w = g.tensor((16, 8, 3, 3), "float16", layout="NHWC")
    b = g.tensor((1, 16, 1, 1), "float16")
    z = g.tensor((2, 16, 10, 12), "float16", layout="NHWC")
    g.relu(g.convolution(x, w, padding=1) + b + z)
    spec = g.freeze()
    assert [type(node).__name__ for node in spec.nodes] == [
        "Convolution",
        "Pointwise",
        "Pointwise",
        "Pointwise",
    ]
    assert spec.inputs == (0, 1, 2, 3)
    assert spec.outputs == (7,)
    inner = [spec.tensors[i] for i in (4, 5, 6)]
    assert all(t.virtual and t.dtype == "float32" for t in inner)
    out = spec.tensors[7]
    assert (out.shape, out.dtype, out.virtual) == ((2, 16, 10, 12), "float16", False)
    assert out.strides == (16 * 120, 1, 12 * 16, 16)


@pytest.mark.parametrize(
    ("settings", "shape"),
    [
        ({}, (2, 16, 8, 10)),
        ({"padding": 1}, (2, 16, 10, 12)),
        ({"padding": (1, 0)}, (2, 16, 10, 10)),
        ({"padding": ((0, 1), (2, 0))}, (2, 16, 9, 12)),
        ({"padding": 1, "stride": 2}, (2, 16, 5, 6)),
        ({"padding": 2, "dilation": (2, 1)}, (2, 16, 10, 14)),
    ],
)
def test_output_shapes(settings: dict[str, Any], shape: tuple[int, ...]) -> None:
    _, y = conv_graph(**settings)
    assert y.shape == shape


def test_gradients_have_the_shapes_asked_for() -> None:
    g = Graph()
    dy = g.tensor((2, 16, 5, 6), "float32")
    w = g.tensor((16, 8, 3, 3), "float32")
    assert g.convolution_backward_data(dy, w, (2, 8, 10, 12), padding=1, stride=2).shape == (
        2,
        8,
        10,
        12,
    )
    x = g.tensor((2, 8, 10, 12), "float32")
    assert g.convolution_backward_filter(dy, x, (16, 8, 3, 3), padding=1, stride=2).shape == (
        16,
        8,
        3,
        3,
    )


def test_several_outputs_are_kept_when_marked() -> None:
    g, y = conv_graph(padding=1)
    g.output(y)
    g.output(g.relu(y))
    spec = g.freeze()
    assert spec.outputs == (2, 3)
    assert not spec.tensors[2].virtual


def test_statistics_have_a_number_for_each_channel() -> None:
    g, y = conv_graph(padding=1)
    g.output(y)
    found = g.statistics(y)
    assert [(t.shape, t.dtype) for t in found] == [((1, 16, 1, 1), "float32")] * 2
    for each in found:
        g.output(each)
    spec = g.freeze()
    assert spec.outputs == (2, 3, 4)
    assert "t3 = Statistics(t2; compute=float32)" in spec.describe()


def test_scalars_are_by_value_and_no_inputs() -> None:
    g, y = conv_graph()
    g.relu(y * 0.5)
    spec = g.freeze()
    assert spec.inputs == (0, 1)
    (scalar,) = spec.scalars
    assert spec.tensors[scalar].by_value
    assert spec.tensors[scalar].shape == (1, 1, 1, 1)


def test_tensor_from_an_array_takes_strides_and_alignment() -> None:
    g = Graph()
    x = g.tensor(FakeArray((2, 8, 4, 4), "float16", pointer=0x10008))
    assert (x.shape, x.dtype, x.strides) == ((2, 8, 4, 4), "float16", (128, 16, 4, 1))
    assert x.spec.alignment == 8


def test_equal_graphs_have_equal_keys_and_others_do_not() -> None:
    def key(**settings: Any) -> str:
        return digest(conv_graph(**settings)[0].freeze(), Constraints())

    assert key() == key()
    others = [
        key(padding=1),
        key(stride=2),
        key(dilation=2),
        key(flip=True),
        key(dtype="float32"),
        key(layout="NCHW"),
    ]
    assert len({key(), *others}) == 1 + len(others)
    spec = conv_graph()[0].freeze()
    limits = [
        Constraints(),
        Constraints(tf32=True),
        Constraints(deterministic=True),
        Constraints(accuracy="high"),
        Constraints(workspace_limit=5),
    ]
    assert len({digest(spec, limit) for limit in limits}) == len(limits)
    g = Graph()
    x = g.tensor((2, 8, 10, 12), "float16", layout="NHWC", alignment=4)
    g.convolution(x, g.tensor((16, 8, 3, 3), "float16", layout="NHWC"))
    assert digest(g.freeze(), Constraints()) != key()


def test_names_are_not_part_of_the_key() -> None:
    def made(name: str) -> Any:
        g = Graph()
        g.relu(g.tensor((1, 2, 3, 4), "float32", name=name))
        return g.freeze()

    assert made("a") == made("b")


def test_describe_names_the_operations_and_tensors() -> None:
    text = conv_graph(padding=1)[0].freeze().describe()
    assert text.startswith("t2 = Convolution(t0, t1; kind=forward, window=Window(before=(1, 1)")
    assert "t0: float16[2x8x10x12; strides 960,1,96,8]" in text


BAD: list[tuple[str, str]] = [
    ("g.convolution(x, g.tensor((16, 5, 3, 3), 'float16'))", "8 channels of images"),
    ("g.convolution(x, g.tensor((15, 4, 3, 3), 'float16'))", "cannot be split into 2 groups"),
    ("g.convolution(x, g.tensor((16, 8, 3), 'float16'))", "must both have 2 [+] spatial"),
    ("g.convolution(x, g.tensor((16, 8, 3, 3), 'float32'))", "dtypes differ: float16, float32"),
    ("g.convolution(x, w, padding=-1)", "padding .* is below 0"),
    ("g.convolution(x, w, padding=(1, 2, 3))", "padding .* has 3 values; 2 are needed"),
    ("g.convolution(x, w, stride=0)", "stride .* is below 1"),
    ("g.convolution(x, w, stride=1.5)", "stride 1.5 is not made of integers"),
    ("g.convolution(x, w, padding='same')", "padding 'same' has 4 values"),
    ("g.convolution(x, w, dilation=6)", "covers 13 positions and does not fit into 10"),
    ("g.convolution(x, Graph().tensor((16, 8, 3, 3), 'float16'))", "not a tensor of this graph"),
    ("g.convolution_backward_data(w, w, (2, 8, 10, 12))", "dy has shape"),
    ("g.convolution_backward_filter(x, x, (16, 8, 3, 3))", "dy has shape"),
    ("g.tensor((2, 0, 3), 'float16')", "not positive"),
    ("g.tensor((2, 3), 'complex64')", "dtype 'complex64' is not supported; valid are float16"),
    ("g.tensor((2, 3))", "dtype is missing"),
    ("g.tensor((2, 3, 4), 'float16', layout='NHWC')", "layout 'NHWC' is not valid for shape"),
    ("g.tensor((2, 3), 'float16', strides=(3, 1, 1))", "strides .* has 3 values; 2 are needed"),
    ("g.tensor((2, 3), 'float16', strides=(0, 1))", "stride of 0"),
    ("g.tensor((2, 3), 'float32', alignment=3)", "alignment 3 is not a power of 2"),
    ("g.tensor((1,) * 9, 'float32')", "has 9 dimensions; valid are 1 to 8"),
    ("g.add(x, w)", "do not fit together in axis"),
    ("g.add(x, g.tensor((8,), 'float16'))", "write a bias for NCHW as"),
    ("g.pointwise('sqare', x)", "pointwise operation 'sqare' is not known; valid are add"),
    ("g.pointwise('add', x)", "add takes 2 operands, not 1"),
    ("g.pointwise('relu', x, upper=6)", "parameter 'upper'; valid are relu_lower_clip"),
    ("g.pointwise('add', 1.0, 2.0)", "at least one operand must be a tensor"),
    ("g.matmul(x, w)", "are not .B, M, K. and .B, K, N."),
    ("g.pool('min', x, 2)", "mode 'min' is not known; valid are max, average"),
    ("g.pool('max', x, 2, padding=2)", "leaves windows .* without a value"),
    ("g.pool('max', x, 20)", "does not fit"),
    ("g.reduce('sum', x, 1)", "'sum' is not one of add"),
    ("g.reduce('add', x, 7)", "axes 7 are not axes of"),
    ("g.output(x)", "is an input of the graph, not a result"),
    ("g.output(g.relu(x), strides=(960, 1, 12, 1))", "elements overlap in memory"),
    ("g.constant(1, dtype='float16')", "dtype 'float16'; valid are float32, float64, int32"),
    ("g.constant(1.5, dtype='int32')", "1.5 is not an integer"),
    ("g.freeze()", "the graph has no operation"),
    ("g.tensor(FakeArray((2, 3)), 'float32')", "takes dtype and strides from the array"),
    ("g.tensor(FakeArray((2, 3), strides=(-12, 4)))", "strides .* is below 0"),
    ("g.tensor(FakeArray((2, 3), strides=(0, 4)))", "stride of 0"),
    ("g.tensor(FakeArray((2, 0)))", "not positive"),
    ("Constraints(accuracy='best')", "accuracy 'best' is not known; valid are normal, high"),
    ("Constraints(workspace_limit=-1)", "workspace_limit -1 is negative"),
]


@pytest.mark.parametrize(("text", "message"), BAD)
def test_bad_input_is_named(text: str, message: str) -> None:
    g = Graph()
    x = g.tensor((2, 8, 10, 12), "float16")
    w = g.tensor((16, 8, 3, 3), "float16")
    known = {"g": g, "x": x, "w": w, "Graph": Graph, "FakeArray": FakeArray}
    with pytest.raises(GraphError, match=message):
        eval(text, {**known, "Constraints": Constraints})


def test_unread_inputs_are_refused() -> None:
    g, _ = conv_graph()
    g.tensor((1, 2), "float32", name="extra")
    with pytest.raises(GraphError, match="no operation reads extra: float32"):
        g.freeze()


def test_nodes_say_what_they_read_and_write() -> None:
    (node,) = conv_graph()[0].freeze().nodes
    assert isinstance(node, Convolution)
    assert (node.reads, node.writes) == ((0, 1), (2,))
