"""What is said about models that cannot be read, and what belongs to reading them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import minidnn as md
from minidnn.errors import GraphError, MiniDNNWarning, UnsupportedError
from minidnn.frontends.onnx.convert import OpenInputsError, load_onnx
from minidnn.frontends.onnx.library import COMPUTED_BYTES
from minidnn.frontends.onnx.tensors import external_path
from minidnn.graph import operators as ops
from minidnn.graph.evaluate import evaluate
from minidnn.graph.types import TensorType
from tests.devices import unavailable
from tools.onnx_operators_page import page

from .models import model, network, node, save, with_external_data

X = [("x", [2, 3])]


def fails(made: Any, text: str, kind: type[Exception] = GraphError, **given: Any) -> None:
    with pytest.raises(kind) as caught:
        load_onnx(made, **given)
    assert text in str(caught.value), str(caught.value)


def test_paths_bytes_and_protos_are_the_same(tmp_path: Path) -> None:
    path = save(network(), tmp_path / "net.onnx")
    x = np.random.default_rng(0).standard_normal((2, 3, 16, 16)).astype(np.float32)
    results = [
        md.compile(each, x.shape, device="reference")(x)
        for each in (path, str(path), path.read_bytes(), network())
    ]
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])


def test_shapes_that_are_known_fold_away() -> None:
    graph = load_onnx(network(), (2, 3, 16, 16))
    kinds = [type(each.op).__name__ for each in graph.nodes]
    assert kinds == [
        *("Conv2d", "BatchNorm", "ReLU", "MaxPool2d", "Conv2d", "Add"),
        *("AdaptiveAvgPool2d", "View", "Linear", "Softmax"),
    ]


def test_open_sizes_are_bound() -> None:
    for shape in ((5, 3, 16, 16), [(5, 3, 16, 16)], {"x": (5, 3, 16, 16)}):
        assert load_onnx(network(), shape).inputs[0].shape == (5, 3, 16, 16)
    fails(network(), "leaves sizes of its inputs open (x: (N, 3, 16, 16)); give shape=")
    fails(network(), "shape (5, 4, 16, 16) for input 'x'; valid is (N, 3,", shape=(5, 4, 16, 16))
    fails(network(), "shape for 'z'; its inputs are ['x']", shape={"z": (1,)})
    fails(network(), "shape gives 2; valid is a shape for each of its 1 inputs", shape=[(1,), (2,)])
    two = model([node("Add", "a b")], [("a", ["N", 3]), ("b", ["N", 1])])
    assert load_onnx(two, {"a": (4, 3)}).inputs[1].shape == (4, 1)
    fails(two, "shape (5, 1) for input 'b'; valid is (N, 1) with {'N': 4}", shape=[(4, 3), (5, 1)])


def test_everything_unsupported_is_told_at_once() -> None:
    made = model(
        [
            node("NonMaxSuppression", "x x", "a"),
            node("Relu", "a", "b"),
            node("Einsum", "x", "c", equation="ij->ji"),
            node("Relu", "x", "y", wrong=1),
        ],
        X,
    )
    made.graph.node[3].name = "named"
    with pytest.raises(UnsupportedError) as caught:
        load_onnx(made)
    assert str(caught.value).splitlines() == [
        "the ONNX model (opset 21) has 3 nodes that cannot be converted:",
        "  'NonMaxSuppression_0' (NonMaxSuppression): no operator of minidnn does that",
        "  'Einsum_2' (Einsum): no operator of minidnn does that",
        "  'named' (Relu): its attributes wrong are not known",
    ]


def test_dtypes_that_are_not_known_are_told_with_all_else() -> None:
    one = np.array([1], np.uint32)
    made = model(
        [
            node("Einsum", "x", "a", equation="ij->ji"),
            node("Cast", "x", "b", to=TensorProto.UINT32),
            node("Constant", "", "c", value=numpy_helper.from_array(one)),
            node("ConstantOfShape", "shape", "d", value=numpy_helper.from_array(one)),
            node("NonZero", "q"),
            node("Relu", "q", "e"),
        ],
        X,
        arrays={"zero": one, "scale": np.ones(1, np.float32), "shape": np.array([2])},
    )
    made.graph.input.append(helper.make_tensor_value_info("q", TensorProto.UINT32, [2, 3]))
    made.graph.input.append(helper.make_tensor_sequence_value_info("list", TensorProto.FLOAT, None))
    valid = "valid are float32, int32, int64, bool, float16, float64, uint8, int8"
    with pytest.raises(UnsupportedError) as caught:
        load_onnx(made)
    assert str(caught.value).splitlines() == [
        "the ONNX model (opset 21) has 3 tensors and 5 nodes that cannot be converted:",
        f"  initializer 'zero' has element type UINT32; {valid}",
        f"  input 'q' has element type UINT32; {valid}",
        "  input 'list' is a sequence; valid is a tensor",
        "  'Einsum_0' (Einsum): no operator of minidnn does that",
        f"  'Cast_1' (Cast): attribute 'to' has element type UINT32; {valid}",
        f"  'Constant_2' (Constant): attribute 'value' has element type UINT32; {valid}",
        "  'ConstantOfShape_3' (ConstantOfShape): attribute 'value' has element type UINT32; "
        f"{valid}",
        "  'NonZero_4' (NonZero): no operator of minidnn does that",
    ]
    made.graph.node.append(node("Softmax", "x", "f", axis=9))
    fails(made, "node 'Softmax_6' (Softmax): axis=9; valid are -2 to 1")


def test_a_dtype_alone_is_told_with_the_opset() -> None:
    made = model([node("Relu", "x")], X, arrays={"zero": np.array([1], np.uint32)})
    fails(made, "(opset 21) has 1 tensors that cannot be converted:\n  init", UnsupportedError)
    sparse = model([node("Relu", "x")], X)
    values = numpy_helper.from_array(np.ones(1, np.float32), "thin")
    indices = numpy_helper.from_array(np.array([0]), "at")
    sparse.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [9]))
    fails(sparse, "  initializer 'thin' is sparse; valid is a dense one", UnsupportedError)


def test_inputs_that_decide_shapes() -> None:
    made = model([node("Expand", "x s")], X)
    made.graph.input.append(helper.make_tensor_value_info("s", TensorProto.INT64, [3]))
    with pytest.raises(
        OpenInputsError, match="from 's'; give these inputs as constants="
    ) as caught:
        load_onnx(made)
    assert caught.value.names == ("s",)
    graph = load_onnx(made, constants={"s": np.array([4, 2, 3])})
    assert graph.outputs[0].shape == (4, 2, 3) and len(graph.inputs) == 1
    fails(made, "constants names 't'; valid are ['x', 's']", constants={"t": 1})
    fails(made, "the constant 's' is float64; valid is int64", constants={"s": np.ones(3)})
    fails(made, "the constant 's' is no array: ", constants={"s": [[1], [2, 3]]})
    fails(made, "shape (2,) for input 's'; valid is (3)", constants={"s": np.array([2, 3])})
    two = model([node("Add", "a b")], [("a", ["N", 3]), ("b", ["N", 1])])
    known = {"b": np.ones((4, 1), np.float32)}
    assert load_onnx(two, constants=known).inputs[0].shape == (4, 3)
    fails(two, "shape (5, 3) for input 'a'; valid is (N, 3) with {'N': 4}", shape={"a": (5, 3)},
          constants=known)  # fmt: skip


def test_opsets() -> None:
    fails(
        model([node("Relu", "x")], X, opset=5),
        "has opset 5; valid is one from 6 to ",
        UnsupportedError,
    )
    newest = model([node("Relu", "x")], X, opset=99)
    fails(newest, "has opset 99; valid is one from 6 to ", UnsupportedError)


def test_malformed_models(tmp_path: Path) -> None:
    fails(b"nonsense", "the ONNX model is no ONNX model: ")
    fails(b"", "it has no graph with outputs")
    with pytest.raises(FileNotFoundError):
        load_onnx(tmp_path / "missing.onnx")
    cycle = model([node("Relu", "b", "a"), node("Relu", "a", "b"), node("Relu", "b")], X)
    fails(cycle, "reads 'b' before anything computes it: the nodes are in no order")
    twice = model([node("Relu", "x"), node("Tanh", "x")], X)
    fails(twice, "computes 'y', which is there already")
    fails(model([node("Relu", "x", "z")], X), "nothing computes its output 'y'")
    fails(model([node("Relu", "x")], [("x", [2, -3])]), "has an axis of size -3")
    fails(model([node("Add", "x")], X), "node 'Add_0' (Add): operand 1 is missing; it has 1")
    fails(
        model([node("Softmax", "x", axis=1.5)], X),
        "node 'Softmax_0' (Softmax): attribute 'axis' is a number; valid is an integer",
    )
    twice = model([node("Softmax", "x", axis=1)], X)
    twice.graph.node[0].attribute.append(twice.graph.node[0].attribute[0])
    fails(twice, "node 'Softmax_0' (Softmax): attribute 'axis' appears twice")
    referring = model([node("Softmax", "x", axis=1)], X)
    referring.graph.node[0].attribute[0].ref_attr_name = "way"
    fails(referring, "attribute 'axis' refers to 'way' of a function; valid is an integer")
    fails(model([node("Conv", "x x")], X), "it is of 0 dimensions", UnsupportedError)
    typed = model([node("Relu", "x")], X, dtype=TensorProto.BFLOAT16)
    fails(typed, "has element type BFLOAT16; valid are float32", UnsupportedError)


def test_small_models_must_not_take_much_memory() -> None:
    shape = np.array([1 << 20, 1 << 10])
    made = model([node("ConstantOfShape", "s", "z"), node("Add", "x z")], X, arrays={"s": shape})
    fails(made, f"makes {4 << 30} bytes of constants; valid are, in all, {COMPUTED_BYTES}")
    huge = model([node("Expand", "x s")], [("x", [1, 1])], arrays={"s": np.array([1 << 40, 1])})
    fails(huge, "valid are sizes from 0 to ")


def test_going_back_begins_within_the_axis() -> None:
    """As "clamped [...] into the range [0, dims[axes[i]]-1] for negative stepping" has it."""
    bounds = {"s": np.array([-99]), "e": np.array([-(2**40)]), "a": np.array([0])}
    made = model([node("Slice", "x s e a t")], [("x", [4])], arrays={**bounds, "t": np.array([-1])})
    x = np.arange(4, dtype=np.float32)
    np.testing.assert_array_equal(evaluate(load_onnx(made), [x])[0], [0])


def test_padding_with_whole_numbers_is_exact() -> None:
    def padded(value: np.ndarray) -> Any:
        arrays = {"p": np.array([0, 1]), "v": value}
        return model([node("Pad", "x p v")], [("x", [2])], arrays=arrays, dtype=TensorProto.INT64)

    value = 2**62 + 1  # which is no float64
    (found,) = evaluate(load_onnx(padded(np.array(value))), [np.array([3, 4])])
    assert found.tolist() == [3, 4, value]
    fails(padded(np.array(1.5, np.float32)), "constant_value is float32; valid is int64")
    older = model([node("Pad", "x", pads=[0, 1], value=1e30)], [("x", [2])], opset=10)
    older.graph.input[0].type.tensor_type.elem_type = TensorProto.INT64
    fails(older, "its data is int64; valid are float16, float32, float64")
    with pytest.raises(GraphError, match=r"value=1e\+30 of an input int64\[2\]; valid are nu"):
        ops.Pad((0,), (1,), "constant", 1e30).infer(TensorType((2,), "int64"))


def test_operands_are_what_the_operator_takes() -> None:
    arrays = {"i": np.array(3), "f": np.ones(1, np.float32), "b": np.array([True])}

    def refused(text: str, *given: Any, **attributes: Any) -> None:
        fails(model([node(*given, **attributes)], X, arrays=arrays), text)

    refused("node 'Relu_0' (Relu): it has 2 inputs; valid are 1", "Relu", "x x")
    refused("it has 4 inputs; valid are 3", "Clip", "x f f f")
    refused("(Where): its condition is float32; valid are bool", "Where", "x x x")
    refused("(Clip): its min is int64; valid is float32, as its input is", "Clip", "x i")
    refused("(Add): its B is int64; valid is float32, as its A is", "Add", "x i")
    refused("(Concat): its inputs is int64; valid is float32", "Concat", "x i", axis=0)
    refused("(Pow): its Y is bool; valid are float16, float32, float64, int32", "Pow", "x b")
    refused("(Reshape): its shape is float32; valid are int64", "Reshape", "x f")
    whole = model([node("Relu", "x")], X, dtype=TensorProto.INT64, opset=13)
    fails(whole, "(Relu): its X is int64; valid are float16, float32, float64")
    whole = model([node("Relu", "x")], X, dtype=TensorProto.INT64, opset=14)
    assert load_onnx(whole).outputs[0].dtype == "int64"
    kept = model([node("Pow", "x i"), node("Max", "y x x x", "z")], X, [("z", None)], arrays)
    assert load_onnx(kept).outputs[0].dtype == "float32"


def test_outputs_are_what_the_model_says() -> None:
    def declared(*sizes: Any, dtype: int = TensorProto.FLOAT) -> Any:
        made = model([node("Relu", "x")], X)
        made.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", dtype, sizes))
        return made

    for right in ((2, 3), ("N", 3), (None, None)):
        load_onnx(declared(*right))
    wrong = r"^the ONNX model: output 'y' is declared \({}\); what is computed is \(2, 3\)$"
    for sizes, shown in (((1, 3), "1, 3"), ((2, 3, 1), "2, 3, 1"), (("N", 4), "[?], 4")):
        with pytest.warns(MiniDNNWarning, match=wrong.format(shown)):
            load_onnx(declared(*sizes))
    text = "output 'y' is declared int64; what is computed is float32"
    fails(declared(2, 3, dtype=TensorProto.INT64), text)
    fails(declared(2, 3, dtype=TensorProto.UINT32), "'y' is declared of another type; what is")


@pytest.mark.parametrize("device", ["reference", "cpu"])
def test_a_product_over_an_axis_of_no_elements_is_zero(device: str) -> None:
    if unavailable(device) is not None:
        pytest.skip("the device cannot be used here")
    arrays = {"w": np.zeros((0, 4), np.float32), "c": np.arange(4, dtype=np.float32)}
    x = np.zeros((2, 0), np.float32)
    made = model([node("MatMul", "x w", "z"), node("Relu", "z")], [("x", [2, 0])], arrays=arrays)
    np.testing.assert_array_equal(md.compile(made, device=device)(x), np.zeros((2, 4)))
    made = model([node("Gemm", "x w c")], [("x", [2, 0])], arrays=arrays)
    np.testing.assert_array_equal(md.compile(made, device=device)(x), [[0, 1, 2, 3]] * 2)
    made = model([node("MatMul", "x v")], [("x", [2, 0]), ("v", [0, 3])])
    v = np.zeros((0, 3), np.float32)
    np.testing.assert_array_equal(md.compile(made, device=device)(x, v), np.zeros((2, 3)))


def test_strides_of_transposed_convolutions_have_an_end() -> None:
    made = model([node("ConvTranspose", "x w", strides=[1 << 25])], [("x", [1, 1, 9])])
    made.graph.initializer.append(numpy_helper.from_array(np.ones((1, 1, 1), np.float32), "w"))
    fails(made, "strides (1, 33554432) make 33554432 phases; known are 1048576", UnsupportedError)


@pytest.mark.parametrize("kind", ["MaxPool", "AveragePool"])
def test_no_window_lies_in_the_padding_alone(kind: str) -> None:
    def pooled(size: list[int], **attributes: Any) -> Any:
        return model([node(kind, "x", **attributes)], [("x", [1, 1, *size])])

    why = "of a window, so that no window is padding alone"
    given = {"kernel_shape": [2, 2], "pads": [0, 0, 2, 0]}
    told = "pads=[0, 0, 2, 0], kernel_shape=[2, 2], dilations=[1, 1]; valid are pads below the 2"
    fails(pooled([4, 4], **given), f"{told} positions {why}")
    fails(pooled([4], kernel_shape=[1], pads=[1, 0]), f"below the 1 positions {why}")
    deep = {"kernel_shape": [3, 3, 3], "pads": [2, 2, 2, 2, 3, 2]}
    fails(pooled([4, 4, 4], **deep), f"below the 3 positions {why}")
    wide = {"kernel_shape": [2], "dilations": [3], "pads": [4, 0]}
    fails(pooled([9], **wide), f"below the 4 positions {why}")
    near = pooled([9], **(wide | {"pads": [3, 0]}))
    x = np.arange(9, dtype=np.float32).reshape(1, 1, 9)
    assert np.isfinite(md.compile(near, device="reference")(x)).all()


def test_padding_has_an_end() -> None:
    def pooled(**attributes: Any) -> Any:
        return model(
            [node("AveragePool", "x", **({"kernel_shape": [2, 2]} | attributes))],
            [("x", [1, 1, 4, 4])],
        )

    wide = pooled(pads=[600] * 4, kernel_shape=[601, 601])
    fails(wide, "padding makes [4, 4] to [1204, 1204]; valid are 1048832")
    same = pooled(auto_pad="SAME_UPPER", dilations=[1 << 40, 1])
    fails(same, f"padding makes [4, 4] to [{(1 << 40) + 4}, 5]; valid are 1048832 elements")


def test_external_data(tmp_path: Path) -> None:
    data = with_external_data(tmp_path)
    (tmp_path / "net.onnx").write_bytes(data)
    x = np.random.default_rng(0).standard_normal((1, 3, 16, 16)).astype(np.float32)
    (expected,) = evaluate(load_onnx(network(), x.shape), [x])
    (found,) = evaluate(load_onnx(tmp_path / "net.onnx", x.shape), [x])
    np.testing.assert_array_equal(found, expected)
    fails(data, "which are looked for in the model's folder; give the model's path", shape=x.shape)
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(data.replace(b"weights.bin", b"weights.b\xff\xfe"))
    fails(broken, "says where its external data are in bytes that are no text", shape=x.shape)
    (tmp_path / "weights.bin").write_bytes(b"\0" * 100)
    fails(tmp_path / "net.onnx", "takes bytes 64 to 496 of 'weights.bin', which has 100")


@pytest.mark.parametrize(
    "location",
    ["../secret", "/etc/passwd", "a/../../secret", "link", "folder/link", "", "a\0b", "."],
)
def test_external_data_outside_of_the_folder(tmp_path: Path, location: str) -> None:
    folder = tmp_path / "model"
    (folder / "folder").mkdir(parents=True)
    (tmp_path / "secret").write_bytes(b"x" * 1000)
    (folder / "link").symlink_to(tmp_path / "secret")
    (folder / "folder" / "link").symlink_to("/etc/passwd")
    with pytest.raises(GraphError, match="external data in"):
        external_path(location, folder / "net.onnx", "tensor")


@pytest.mark.parametrize("location", ["w" * 300, "w" * 5000, "a/" * 3000 + "w", "loop"])
def test_external_data_that_no_file_system_can_look_for(tmp_path: Path, location: str) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(GraphError, match="tensor has external data in ") as caught:
        external_path(location, tmp_path / "net.onnx", "tensor")
    assert len(str(caught.value)) < 400


def test_arguments_that_are_not_legal() -> None:
    with pytest.raises(GraphError, match="model=5 is a int; valid are a path, the bytes of a mod"):
        load_onnx(5)
    with pytest.raises(GraphError, match="the ONNX model: constants is a list; valid is a dict of"):
        load_onnx(network(), (1, 3, 16, 16), constants=[1])  # type: ignore[arg-type]


def test_links_within_the_folder_are_followed(tmp_path: Path) -> None:
    (tmp_path / "real.bin").write_bytes(b"x")
    (tmp_path / "link.bin").symlink_to("real.bin")
    assert external_path("link.bin", tmp_path / "net.onnx", "tensor").name == "real.bin"


def in_cache(folder: Path) -> tuple[Path, Path]:
    """A model with external data as Hugging Face's cache keeps it: the path of its link, and the
    folder of what the links lead to."""
    blobs, snapshot = folder / "blobs", folder / "snapshots" / "3f2a" / "onnx"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    (blobs / "0a1b").write_bytes(with_external_data(blobs))
    (blobs / "weights.bin").rename(blobs / "2c3d")
    (snapshot / "net.onnx").symlink_to("../../../blobs/0a1b")
    (snapshot / "weights.bin").symlink_to("../../../blobs/2c3d")
    return snapshot / "net.onnx", blobs


def test_the_cache_of_hugging_face(tmp_path: Path) -> None:
    path, _ = in_cache(tmp_path)
    x = np.random.default_rng(0).standard_normal((1, 3, 16, 16)).astype(np.float32)
    (expected,) = evaluate(load_onnx(network(), x.shape), [x])
    (found,) = evaluate(load_onnx(path, x.shape), [x])
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(md.compile(str(path), x.shape, device="reference")(x), expected)


@pytest.mark.parametrize("target", ["../secret", "below/secret", "..", "/etc/passwd", "fifo"])
def test_nothing_but_what_lies_beside_a_links_target_is_read(tmp_path: Path, target: str) -> None:
    path, blobs = in_cache(tmp_path)
    (blobs / "below").mkdir()
    for secret in (tmp_path / "secret", blobs / "below" / "secret"):
        secret.write_bytes(b"x" * 1000)
    os.mkfifo(blobs / "fifo")
    data = path.with_name("weights.bin")
    data.unlink()
    data.symlink_to(os.path.normpath(blobs / target))
    text = "which is no file" if target == "fifo" else "files beside the one that it leads to"
    fails(path, text, shape=(1, 3, 16, 16))
    if target != "fifo":  # and where the model is no link, nothing beyond its own folder
        plain = path.with_name("plain.onnx")
        plain.write_bytes(path.read_bytes())
        data.unlink()
        data.symlink_to(blobs / "2c3d")
        fails(plain, "valid is a path to a file in the model's folder", shape=(1, 3, 16, 16))


def test_a_link_to_a_model_with_its_data_beside_it(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "net.onnx").write_bytes(with_external_data(tmp_path / "real"))
    (tmp_path / "net.onnx").symlink_to("real/net.onnx")
    assert load_onnx(tmp_path / "net.onnx", (1, 3, 16, 16)).nodes
    (tmp_path / "real" / "weights.bin").rename(tmp_path / "secret")
    (tmp_path / "real" / "weights.bin").symlink_to("../secret")
    fails(tmp_path / "net.onnx", "valid is a path to a file in the model's", shape=(1, 3, 16, 16))
    (tmp_path / "real" / "weights.bin").unlink()
    fails(tmp_path / "net.onnx", "which is no file", shape=(1, 3, 16, 16))


def test_importing_needs_no_onnx(root: Path) -> None:
    code = (
        "import sys, minidnn as md\n"
        "md.load_onnx, md.save_onnx, md.compare\n"
        "net = md.Sequential(md.layers.Conv2d(1, 2, 3), md.layers.ReLU())\n"
        "exe = md.compile(net, (1, 1, 5, 5), device='reference')\n"
        "exe(*exe.random_inputs())\n"
        "md.optimize, md.compile\n"
        "try: md.compile('no model', (1, 2), device='reference')\n"
        "except md.GraphError: pass\n"
        "assert not {'onnx', 'onnxruntime', 'google.protobuf', 'torch'} & set(sys.modules)\n"
        "sys.modules['onnx'] = None\n"
        "try: md.load_onnx(b'')\n"
        "except md.DeviceError as error: print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True
    )
    assert "pip install 'minidnn[onnx]'" in done.stdout


def test_the_page_has_the_table_of_what_is_taken(root: Path) -> None:
    found = (root / "docs/reference/onnx-operators.md").read_text(encoding="utf-8")
    assert found == page(), "python -m tools.onnx_operators_page prints it"


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    os.mkfifo(path)
    with pytest.raises(GraphError, match=r"net\.onnx' is not a regular file"):
        md.load_onnx(path)
