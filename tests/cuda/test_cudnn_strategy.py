"""The strategy "cudnn" without a GPU: a cuDNN in NumPy gets the calls, on a GPU's layouts."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import minidnn as md
from minidnn import layers as L
from minidnn.backends.cuda.contraction.fixed_function import FixedConvolution
from minidnn.backends.cuda.library.call import FunctionCall
from minidnn.backends.cuda.library.convolution import LayerConvolution
from minidnn.backends.cuda.task import Task
from minidnn.cudnn import handle, library
from minidnn.cudnn.convolution.key import TensorKey
from minidnn.cudnn.convolution.plan import Problem
from minidnn.cudnn.enums import DataType, MathType
from minidnn.errors import UnsupportedError
from minidnn.graph.ir import Graph
from minidnn.layers.build import to_graph
from minidnn.training.step import Objective, step_graph
from tests.cudnn.fakes import FakeArray, FakeCupy

from .host_cudnn import HostCuDNN
from .lowered import planned_graph
from .test_emulated_step import check_values

FULL = pytest.mark.full
SHAPE = (4, 3, 13, 12)


class Everything(L.Layer):
    """Every kind of layer that cuDNN has a function for, and some that it has none for."""

    def __init__(self) -> None:
        self.first = L.Conv2d(3, 8, 3, padding=1, stride=2)
        self.norms = L.LayerList(
            L.BatchNorm2d(8), L.BatchNorm2d(8, momentum=None), L.BatchNorm1d(8)
        )
        self.group = L.Conv2d(8, 8, (3, 1), padding=(2, 0), groups=2, dilation=2, bias=False)
        self.most, self.mean = L.MaxPool2d(3, 2, 1), L.AvgPool2d(2, 1, count_include_pad=False)
        self.whole, self.flat = L.AdaptiveAvgPool2d(1), L.Flatten()
        self.kinds = L.LayerList(
            L.ReLU(), L.SiLU(), L.ELU(0.7), L.Sigmoid(), L.Tanh(), L.ReLU6(), L.GELU()
        )
        self.drop, self.head = L.Dropout(0.25), L.Linear(8, 5)

    def forward(self, x: Any) -> Any:
        relu, silu, elu, sigmoid, tanh, relu6, gelu = self.kinds
        y = relu(self.norms[0](self.first(x)))
        y = y + self.group(elu(self.norms[1](y)))
        y = silu(self.most(y)) + tanh(gelu(y)).mean((2, 3), keepdims=True)
        y = self.drop(self.flat(self.whole(self.mean(relu6(y)))))
        return self.head(sigmoid(self.norms[2](y)))


def step() -> Graph:
    objective = Objective(md.losses.CrossEntropy(), {})
    network = Everything().initialize(0)
    return step_graph(network, (SHAPE,), objective, md.optim.SGD(0.02, momentum=0.9))


def arrays_of(graph: Graph) -> list[np.ndarray]:
    random = np.random.default_rng(0)
    x = random.standard_normal(SHAPE, np.float32)
    return [x, np.array([0, 3, 1, 4]), np.array(0.02, np.float32)][: len(graph.inputs)]


@pytest.fixture
def cudnn(monkeypatch: pytest.MonkeyPatch) -> Iterator[HostCuDNN]:
    """A cuDNN, and a CuPy, on the host."""
    dll, cupy = HostCuDNN(), FakeCupy()
    cupy.asarray = lambda array: np.array(array).view(FakeArray)  # type: ignore[attr-defined]
    cupy.cuda.runtime.memcpyAsync = lambda to, of, size, kind, stream: ctypes.memmove(to, of, size)
    monkeypatch.setattr(FakeArray, "get", lambda self: np.asarray(self), raising=False)
    handle.reset_handles()
    monkeypatch.setattr("minidnn.gpu._module", cupy)
    monkeypatch.setattr(library, "_library", library.Library(dll, "/host/libcudnn.so.9"))
    yield dll
    handle.reset_handles()
    gc.collect()
    assert not dll.live, "descriptors or handles were not freed"


def call(task: Task, addresses: list[int]) -> None:
    """Runs a function twice, as a captured graph would: the second time nothing is made for it."""
    work = task.work
    if isinstance(work, FunctionCall):
        run = FunctionCall.restored(work.stored()).bind(addresses)
    else:
        assert isinstance(work, LayerConvolution)
        halves = work.key.x.dtype in (DataType.CUDNN_DATA_HALF, DataType.CUDNN_DATA_BFLOAT16)
        assert (work.key.math == MathType.CUDNN_TENSOR_OP_MATH) is halves
        x, w, y = (addresses[i] for i in work.order)
        run = FixedConvolution.of(Problem(work.key), 1, 0).bind((x, w, y, 0, 0, 0))
    added = isinstance(work, FunctionCall) and work.function == "cudnnAddTensor"
    run()
    if not added:  # which adds to what is there
        run()


@pytest.mark.parametrize(
    "precision",
    ["float32", "bfloat16", *(pytest.param(each, marks=FULL) for each in ("tf32", "float16"))],
)
def test_a_step(precision: str, cudnn: HostCuDNN, tmp_path: Path) -> None:
    graph = step()
    plan = planned_graph(graph, precision, True, "cudnn")
    check_values(plan, arrays_of(graph), precision, tmp_path, call)
    used = {name for name in cudnn.names if name in FUNCTIONS}
    assert used == FUNCTIONS - ({"cudnnConvolutionBackwardBias"} if "16" in precision else set())


FUNCTIONS = {
    *(f"cudnnActivation{way}" for way in ("Forward", "Backward")),
    *(f"cudnnPooling{way}" for way in ("Forward", "Backward")),
    *(f"cudnnSoftmax{way}" for way in ("Forward", "Backward")),
    *(f"cudnnBatchNormalization{way}" for way in ("ForwardTraining", "Backward")),
    *(f"cudnnConvolution{way}" for way in ("Forward", "BackwardData", "BackwardFilter")),
    *("cudnnConvolutionBackwardBias", "cudnnAddTensor", "cudnnOpTensor", "cudnnDropoutBackward"),
}


@pytest.mark.parametrize(
    "precision",
    ["float16", *(pytest.param(each, marks=FULL) for each in ("float32", "tf32", "bfloat16"))],
)
def test_inference(precision: str, cudnn: HostCuDNN, tmp_path: Path) -> None:
    graph = to_graph(Everything().initialize(0), SHAPE)
    plan = planned_graph(graph, precision, False, "cudnn")
    check_values(plan, arrays_of(graph), precision, tmp_path, call)
    assert cudnn.names.count("cudnnBatchNormalizationForwardInference") == 2 * 3


def test_dropout_is_refused_where_masks_lie_otherwise(cudnn: HostCuDNN) -> None:
    """The message tells how, as far as masks show it."""
    x = np.zeros(8, np.float32)
    mask = np.zeros(16, np.uint8)
    key = TensorKey(DataType.CUDNN_DATA_FLOAT, (1, 8, 1, 1), (8, 1, 1, 1))
    call = FunctionCall("cudnnDropoutBackward", (key,), (0.5,))
    addresses = (x.ctypes.data, x.ctypes.data, mask.ctypes.data)
    call.bind(addresses)
    cudnn.bitorder = "big"
    with pytest.raises(UnsupportedError, match="for the first ones bits 7, 6, 5, 4, 3, 2, 1, 0;"):
        call.bind(addresses)
