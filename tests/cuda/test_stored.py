"""Programs of GPUs as files have them, without a GPU."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import minidnn as md
from minidnn import layers as L
from minidnn.backends.cuda import stored
from minidnn.backends.cuda.block import Block
from minidnn.backends.cuda.contraction.fixed_function import FixedConvolution, PlanCall
from minidnn.backends.cuda.functions import CompiledKernel, Loaded
from minidnn.backends.cuda.kernels import Launch
from minidnn.backends.cuda.nvrtc import UNKNOWN
from minidnn.backends.cuda.stored import store, why_not_loadable
from minidnn.backends.cuda.table import CudaTable, KernelRow, LibraryRow
from minidnn.compiled_file import write_compiled
from minidnn.cudnn import machine as cudnn_machine
from minidnn.cudnn.convolution.key import ConvolutionKey, FilterKey, TensorKey
from minidnn.cudnn.enums import ConvolutionMode, DataType, MathType, TensorFormat
from minidnn.cudnn.graph.execution import Execution, StoredExecution
from minidnn.errors import GraphError
from minidnn.runtime.operand import Operand
from minidnn.runtime.program import StoredProgram
from tests.cuda.cards import H200

FLOAT = DataType.CUDNN_DATA_FLOAT
KEY = ConvolutionKey(
    operation="forward",
    x=TensorKey(FLOAT, (2, 3, 8, 9), (216, 72, 9, 1)),
    w=FilterKey(FLOAT, TensorFormat.CUDNN_TENSOR_NCHW, (4, 3, 3, 3)),
    y=TensorKey(FLOAT, (2, 4, 6, 7), (168, 42, 7, 1)),
    padding=(0, 0),
    stride=(1, 1),
    dilation=(1, 1),
    groups=1,
    mode=ConvolutionMode.CUDNN_CROSS_CORRELATION,
    compute=FLOAT,
    math=MathType.CUDNN_FMA_MATH,
    search="6",
    deterministic=True,
    workspace_limit=1 << 62,
    aligned=True,
    fused=False,
    device=0,
)


class FakeExecution:
    """A plan of cuDNN's, as far as files have it."""

    def __init__(self, text: str) -> None:
        self.text = text

    def stored(self) -> StoredExecution:
        return StoredExecution(self.text, (1, 2, 3), (("float32", 0.5),), (1,))


class FakeProblem:
    key = KEY


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cudnn_machine, "library_name", lambda: "cuDNN 9.19")
    monkeypatch.setattr(stored, "machine_of", lambda index: H200)


def table() -> CudaTable:
    """Two kernels of one unit and one of another, a plan twice, and a fixed function."""

    def kernel(unit: bytes, name: str, *arguments: Any) -> KernelRow:
        launch = Launch(stored.KernelSource(name, ""), (3, 2, 1), (64, 1, 1), 1024)
        return KernelRow(Loaded(launch, CompiledKernel(unit, name, UNKNOWN), name), arguments)

    plan: Any = FakeExecution("a plan")
    fixed = FixedConvolution(FakeProblem(), 6, 64)  # type: ignore[arg-type]
    return CudaTable(
        (
            (kernel(b"one", "a", Operand(1), 7), kernel(b"two", "c", Operand(0, 256))),
            (LibraryRow(PlanCall(plan, (1,)), (Operand(0), Operand(4, 512), Operand(2), 0)),),
            (LibraryRow(fixed, (Operand(0), 0)), kernel(b"one", "b", Operand(0), Operand(2))),
            (LibraryRow(PlanCall(plan), (Operand(0), Operand(0, 64), Operand(3), 0)),),
        ),
        Block(1024, 2048, (1024,), (1280, 1536), {}),
        (128,),
        (256, 256),
        ((Operand(3), Operand(2, 4), 256),),
    )


def test_a_table_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rows in order, equal kernels and plans once."""
    made: list[str] = []

    def load(compiled: Sequence[tuple[Launch, CompiledKernel]]) -> list[Loaded]:
        return [Loaded(launch, kernel, kernel.name) for launch, kernel in compiled]

    def plan(given: StoredExecution, device: int) -> FakeExecution:
        made.append(given.text)
        assert (list(given.ids), list(given.epilogue_inputs), device) == ([1, 2, 3], [1], 0)
        return FakeExecution(given.text)

    monkeypatch.setattr(stored, "load_compiled", load)
    monkeypatch.setattr(Execution, "restored", plan)
    monkeypatch.setattr(FixedConvolution, "restored", lambda given: ("fixed", given[1:]))
    before = table()
    file = store(before, np.arange(10, dtype=np.uint8), H200)
    assert sorted(file.code) == ["kernels 0", "kernels 1", "plan 0"]
    document = json.loads(json.dumps(file.document))
    after = stored._table(document, lambda name: memoryview(file.code[name]), 0)
    assert made == ["a plan"]
    assert replace(after, tasks=()) == replace(before, tasks=())
    rows = [[row for task in one.tasks for row in task] for one in (before, after)]
    assert [len(task) for task in after.tasks] == [len(task) for task in before.tasks]
    for one, other in zip(*rows, strict=True):
        assert one.arguments == other.arguments
        if isinstance(one, KernelRow) and isinstance(other, KernelRow):
            assert one.loaded == other.loaded
        elif isinstance(one.call, PlanCall):  # type: ignore[union-attr]
            assert one.call.settled == other.call.settled  # type: ignore[union-attr]
        else:
            assert other.call == ("fixed", [6, 64])  # type: ignore[union-attr]


def test_a_convolution_comes_back() -> None:
    found = ConvolutionKey.restored(json.loads(json.dumps(KEY.stored())))
    assert found == KEY and repr(found) == repr(KEY)  # enumerations are equal to numbers


def test_what_is_for_another_card_or_library_is_refused() -> None:
    document = store(table(), np.zeros(0, np.uint8), H200).document
    assert why_not_loadable(document, 0) is None
    other = document | {"card": "NVIDIA A100 (sm_80, 108 multiprocessors)"}
    assert (why_not_loadable(other, 0) or "").startswith("is for NVIDIA A100 (sm_80, 108 multip")
    other = document | {"library": "cuDNN 9.1"}
    assert why_not_loadable(other, 0) == "is for cuDNN 9.1, and this is cuDNN 9.19"


def test_arguments_that_do_not_fit_the_device(tmp_path: Any) -> None:
    network: dict[str, Any] = {"output_names": None, "name": "n", "inputs": [], "outputs": []}
    path = tmp_path / "net.mdx"
    write_compiled(path, "cuda:1", StoredProgram("sm_90", {}, {}, [], 0), network)
    with pytest.raises(GraphError, match=r"threads=2; .* is for a GPU, which takes none"):
        md.load(path, threads=2)
    with pytest.raises(GraphError, match=r"device='cpu'; .* is for 'cuda'"):
        md.load(path, device="cpu")
    md.compile(L.ReLU(), (1, 2), device="cpu").save(path)
    with pytest.raises(GraphError, match=r"device='cuda'; .* is for 'cpu'"):
        md.load(path, device="cuda")
