"""Calling an executable: arrays of every kind, by position and by name, and what is refused."""

from __future__ import annotations

import copy
import pickle
import re
from typing import Any

import numpy as np
import pytest

import minidnn as md
from minidnn import layers as L
from minidnn.errors import GraphError, UnsupportedError
from minidnn.executable import Executable
from minidnn.graph import operators as ops
from minidnn.graph.ir import Graph, Value
from minidnn.graph.trace import Trace, apply
from minidnn.graph.types import TensorType, numpy_dtype
from tests.passes.build import graph_of

SHAPE = (2, 3, 4, 5)


@pytest.fixture(scope="module")
def relu() -> Executable:
    return md.compile(L.ReLU(), SHAPE, device="reference")


@pytest.fixture(scope="module")
def two() -> Executable:
    """left - right, and both joined."""
    a, b = md.Input((3, 4)), md.Input((3, 4))
    net = md.Model({"left": a, "right": b}, [a - b, L.Concat()(a, b)])
    return md.compile(net, {"right": (2, 3, 4), "left": (2, 3, 4)}, device="reference")


def numbers(shape: tuple[int, ...] = SHAPE, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


BYTES = (
    "; a picture's bytes become numbers by layers.Preprocess in the network, or by "
    "x.astype(np.float32) / 255"
)


def refused(exe: Executable, text: str, *inputs: object, **named: object) -> None:
    with pytest.raises(GraphError, match=f"^{re.escape(text)}$"):
        exe(*inputs, **named)


def test_fresh_results_every_time(relu: Executable) -> None:
    x = numbers()
    first, second = relu(x), relu(x)
    assert isinstance(first, np.ndarray) and not np.shares_memory(first, second)
    np.testing.assert_array_equal(first, np.maximum(x, 0))


def test_by_position_and_by_name(two: Executable) -> None:
    left, right = numbers((2, 3, 4)), numbers((2, 3, 4), 1)
    for difference, joined in (
        two(left, right),
        two(left=left, right=right),
        two(right=right, left=left),
    ):
        np.testing.assert_array_equal(difference, left - right)
        np.testing.assert_array_equal(joined, np.concatenate([left, right], 1))


def test_wrong_names_and_counts(two: Executable) -> None:
    x = numbers((2, 3, 4))
    refused(two, "1 inputs given; valid are 2: ['left', 'right']", x)
    refused(two, "0 inputs given; valid are 2: ['left', 'right']")
    valid = "valid is exactly ['left', 'right'], by name or by position"
    refused(two, f"inputs ['left'] given by name and 1 by position; {valid}", x, left=x)
    refused(two, f"inputs ['left', 'up'] given by name and 0 by position; {valid}", left=x, up=x)


def test_another_size_says_how_to_compile_for_it(relu: Executable) -> None:
    for shape, advice in (
        ((1, 3, 4, 5), "call minidnn.compile(network, (1, 3, 4, 5)) for this size"),
        ((2, 3, 5, 4), "call minidnn.compile(network, (2, 3, 5, 4)) for this size"),
        (
            (3, 4, 5),
            "the first size is the batch, so that a single sample has shape (1, 3, 4, 5)",
        ),
        ((2, 3, 4), "valid are 4 sizes, the batch first"),
        ((), "valid are 4 sizes, the batch first"),
        ((0, 3, 4, 5), "what has no elements cannot be computed"),
    ):
        refused(
            relu,
            f"input 'input' has shape {shape}, but the network was compiled for (2, 3, 4, 5); "
            f"{advice}",
            numbers(shape),
        )


def test_it_says_what_it_is_and_is_not_copied(two: Executable) -> None:
    types = "float32[2, 3, 4], float32[2, 3, 4] -> float32[2, 3, 4], float32[2, 6, 4]"
    assert repr(two) == f"<Executable of Model on reference in float32: {types}>"
    for copied in (pickle.dumps, copy.deepcopy):
        with pytest.raises(UnsupportedError, match="compiled code and memory; compile the network"):
            copied(two)


@pytest.mark.parametrize("dtype", ["float16", "float64", ">f4", "<f8"])
def test_other_floating_point_dtypes_are_converted(relu: Executable, dtype: str) -> None:
    x = numbers().astype(dtype)
    y = relu(x)
    assert y.dtype == np.float32
    np.testing.assert_array_equal(y, np.maximum(x.astype(np.float32), 0))


@pytest.mark.parametrize("dtype", ["int32", "uint8", "bool", "complex64", "object", "U3"])
def test_dtypes_that_are_no_floats_are_refused(relu: Executable, dtype: str) -> None:
    x = np.ones(SHAPE).astype(dtype)
    refused(
        relu,
        f"input 'input' has dtype {x.dtype}; valid is float32, or another floating-point dtype, "
        "which is converted" + (BYTES if dtype == "uint8" else ""),
        x,
    )


def test_whole_numbers_stay_whole() -> None:
    graph = graph_of(lambda t, x, y: apply(ops.Concat(1), x, y), (1, 2), (1, 3), dtype="int64")
    exe = md.compile(graph, device="reference")
    np.testing.assert_array_equal(exe(np.array([[1, 2]]), np.array([[3, 4, 5]])), [[1, 2, 3, 4, 5]])
    refused(exe, "input 'x0' has dtype float64; valid is int64", np.ones((1, 2)), np.ones((1, 3)))
    small = np.ones((1, 2), np.int32)
    refused(exe, "input 'x0' has dtype int32; valid is int64", small, np.ones((1, 3), np.int64))


def test_strides_and_read_only_memory_do_not_matter(relu: Executable) -> None:
    x = numbers((5, 4, 3, 2))
    y = relu(x.T)
    np.testing.assert_array_equal(y, np.maximum(x.T, 0))
    backwards = numbers()[:, ::-1, :, ::-1]
    np.testing.assert_array_equal(relu(backwards), np.maximum(backwards, 0))
    frozen = numbers()
    frozen.flags.writeable = False
    np.testing.assert_array_equal(relu(frozen), np.maximum(frozen, 0))
    one = np.broadcast_to(np.float32(-3), SHAPE)
    np.testing.assert_array_equal(relu(one), np.zeros(SHAPE))


def test_programs_get_contiguous_arrays_of_the_right_dtype(relu: Executable) -> None:
    class Recorder:
        def run(self, inputs: Any, outputs: Any) -> None:
            for array in (*inputs, *outputs):
                assert array.dtype == np.float32 and array.flags.c_contiguous
            outputs[0][...] = inputs[0]

    exe = Executable(relu.interface, Recorder(), "reference", "float32")
    for x in (numbers((5, 4, 3, 2)).T, numbers().astype(np.float64), numbers()[..., ::-1]):
        np.testing.assert_array_equal(exe(x), x.astype(np.float32))


def test_inputs_are_never_written_to() -> None:
    """A view of an input, which shares its memory, included."""
    net = L.Sequential(L.Flatten(), L.Linear(60, 3), L.ReLU())
    exe = md.compile(net, SHAPE, device="reference")
    x = numbers()
    x.flags.writeable = False
    before = x.copy()
    exe(x)
    np.testing.assert_array_equal(x, before)


def test_lists_are_arrays_too(relu: Executable) -> None:
    np.testing.assert_array_equal(relu(numbers().tolist()), np.maximum(numbers(), 0))
    with pytest.raises(GraphError, match=r"^input 'input' is no regular array: setting an array"):
        relu([[1.0], [1.0, 2.0]])


def test_numbers_are_arrays_of_rank_0() -> None:
    def build(t: Trace, x: Value) -> Value:
        factor = t.input(TensorType(()), "factor")
        return apply(ops.Mul(), x, factor)

    exe = md.compile(graph_of(build, SHAPE), device="reference")
    for factor in (2.0, np.float32(2), np.float64(2), np.array(2.0)):
        np.testing.assert_array_equal(exe(numbers(), factor), 2 * numbers())


@pytest.mark.parametrize("thing", [None, "abc", {"input": 1}, object])
def test_things_that_are_no_arrays(relu: Executable, thing: object) -> None:
    refused(
        relu,
        f"input 'input' is a {type(thing).__name__}; valid are NumPy arrays, PyTorch tensors and "
        "other arrays with __dlpack__",
        thing,
    )


def test_out(relu: Executable, two: Executable) -> None:
    x = numbers()
    out = np.full(SHAPE, np.nan, np.float32)
    assert relu(x, out=out) is out
    np.testing.assert_array_equal(out, np.maximum(x, 0))
    left, right = numbers((2, 3, 4)), numbers((2, 3, 4), 1)
    pair = [np.empty((2, 3, 4), np.float32), np.empty((2, 6, 4), np.float32)]
    assert two(left, right, out=pair) is pair
    np.testing.assert_array_equal(pair[0], left - right)
    np.testing.assert_array_equal(pair[1][:, 3:], right)


def test_out_may_be_the_input(relu: Executable) -> None:
    x = numbers()
    expected = np.maximum(x, 0)
    np.testing.assert_array_equal(relu(x, out=x), expected)


def test_what_out_cannot_be(relu: Executable, two: Executable) -> None:
    x = numbers()
    valid = "valid is a writable, C-contiguous NumPy array float32[2, 3, 4, 5]"
    frozen = numbers()
    frozen.flags.writeable = False
    for out, described in (
        (np.empty((2, 3, 5, 4), np.float32), "float32[2, 3, 5, 4]"),
        (np.empty(SHAPE), "float64[2, 3, 4, 5]"),
        (np.empty((5, 4, 3, 2), np.float32).T, "float32[2, 3, 4, 5], not C-contiguous"),
        (frozen, "float32[2, 3, 4, 5], read-only"),
        ([x.tolist()], "list"),
    ):
        refused(relu, f"out[0] is {described}; {valid}", x, out=out)
    refused(relu, "out gives 2 arrays; valid are 1", x, out=[x, x])
    y = numbers((2, 3, 4))
    refused(two, "out gives 1 arrays; valid are 2", y, y, out=y)
    text = "a NumPy array, or a tuple or list of them, in the order of the"
    refused(relu, f"out is a int; valid is {text} 1 outputs", x, out=5)
    refused(two, f"out is a dict; valid is {text} 2 outputs", y, y, out={"a": y})


def test_outputs_by_name() -> None:
    x = md.Input((3, 4, 5))
    net = md.Model(x, {"same": x, "positive": L.ReLU()(x)})
    exe = md.compile(net, SHAPE, device="reference")
    results = exe(numbers())
    assert list(results) == ["same", "positive"]
    np.testing.assert_array_equal(results["same"], numbers())
    np.testing.assert_array_equal(results["positive"], np.maximum(numbers(), 0))
    assert not np.shares_memory(results["same"], numbers())


def test_one_value_given_back_twice() -> None:
    x = md.Input((3,))
    y = L.ReLU()(x)
    first, second = md.compile(md.Model(x, [y, y]), (2, 3), device="reference")(numbers((2, 3)))
    np.testing.assert_array_equal(first, second)
    assert not np.shares_memory(first, second)


class Exporter:
    """An array of another library, known by DLPack alone."""

    def __init__(self, array: np.ndarray, device: int = 1) -> None:
        self.array = array
        self.device = device

    def __dlpack__(self, **options: Any) -> object:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (self.device, 0)


class WithNamespace(Exporter):
    """One whose library takes results back."""

    def __array_namespace__(self) -> type:
        class Namespace:
            @staticmethod
            def from_dlpack(array: np.ndarray) -> Exporter:
                return Exporter(array)

        return Namespace


def test_dlpack(relu: Executable) -> None:
    x = numbers()
    np.testing.assert_array_equal(relu(Exporter(x)), np.maximum(x, 0))
    result = relu(WithNamespace(x))
    assert isinstance(result, Exporter)
    np.testing.assert_array_equal(result.array, np.maximum(x, 0))
    refused(
        relu, "input 'input' is on DLPack device type 2; valid is the CPU", Exporter(x, device=2)
    )


def test_pytorch(relu: Executable) -> None:
    torch = pytest.importorskip("torch")
    x = numbers()
    for tensor in (
        torch.from_numpy(x),
        torch.from_numpy(x).requires_grad_(),
        torch.from_numpy(x).double(),
        torch.from_numpy(x).to(memory_format=torch.channels_last),
        torch.from_numpy(x.T.copy()).permute(3, 2, 1, 0),
    ):
        y = relu(tensor)
        assert isinstance(y, torch.Tensor) and y.dtype == torch.float32 and not y.requires_grad
        np.testing.assert_array_equal(y.numpy(), np.maximum(x, 0))
    half = torch.from_numpy(x).bfloat16()
    np.testing.assert_array_equal(relu(half).numpy(), np.maximum(half.float().numpy(), 0))


def test_tensors_that_cannot_be_read(relu: Executable) -> None:
    torch = pytest.importorskip("torch")
    x = torch.from_numpy(numbers())
    refused(relu, "input 'input' is on device meta; valid is the CPU", x.to("meta"))
    refused(
        relu,
        "input 'input' has layout torch.sparse_coo; valid is torch.strided, dense",
        x.to_sparse(),
    )
    dtype = "input 'input' has dtype int64; valid is float32, or another floating-point dtype"
    refused(relu, f"{dtype}, which is converted", x.long())
    small = x.to(torch.float8_e4m3fn)
    refused(relu, "input 'input' has dtype torch.float8_e4m3fn, which NumPy lacks", small)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_half_precision_graphs_lie_in_the_arena(dtype: str, precision: str) -> None:
    def build(t, x):
        y = apply(ops.Reshape((4, 10)), apply(ops.Softmax(1), apply(ops.Tanh(), x)))
        return apply(ops.Softmax(1), apply(ops.Flatten(), apply(ops.Softmax(2), y)))

    graph: Graph = graph_of(build, (3, 40), dtype=dtype)
    exe = md.compile(graph, device="reference", precision=precision)
    x = numbers((3, 40)).astype(np.float16)
    y = exe(x)
    assert y.dtype == ("float64" if precision == "float64" else numpy_dtype(dtype))
    np.testing.assert_allclose(y.sum(axis=1), 1, atol=5e-3)


def test_float64(relu: Executable) -> None:
    """The reference's other precision computes in what it is given."""
    exe = md.compile(L.Tanh(), (3,), device="reference", precision="float64")
    x = np.random.default_rng(0).standard_normal(3)
    y = exe(x)
    assert y.dtype == np.float64
    np.testing.assert_allclose(y, np.tanh(x), rtol=1e-15)
