"""Which algorithm a convolution gets, what is remembered, and what happens when memory is short."""

from __future__ import annotations

import dataclasses
import logging
import threading
import warnings
from types import SimpleNamespace
from typing import Any

import pytest

from minidnn import cudnn
from minidnn.cudnn import convolution, handle, library, machine, workspace
from minidnn.cudnn.convolution import choose, functions
from minidnn.cudnn.enums import MathType
from minidnn.cudnn.errors import ArgumentError, CuDNNError, NoAlgorithmError
from minidnn.errors import MiniDNNWarning, OutOfMemoryError

FMA, DEFAULT = MathType.CUDNN_FMA_MATH, MathType.CUDNN_DEFAULT_MATH
TENSOR = MathType.CUDNN_TENSOR_OP_MATH
GET = "cudnnGetConvolutionForwardAlgorithm_v7"


@pytest.fixture
def xwy(fake: SimpleNamespace) -> tuple[Any, Any, Any]:
    empty = fake.cupy.empty
    return empty((2, 4, 8, 8)), empty((6, 4, 3, 3)), empty((2, 6, 6, 6))


def forget() -> None:
    choose.forget()
    functions._warm.clear()


def plan(xwy: tuple[Any, Any, Any], **options: Any) -> Any:
    return convolution.plan("forward", *xwy, **options)


def test_the_first_that_fits_is_taken(fake: SimpleNamespace, xwy: Any) -> None:
    fake.dll.rows = [(7, 0.1, 5000, 1, 0), (6, 0.2, 400, 0, 0), (1, 0.3, 300, 1, 0)]
    assert plan(xwy).choice.algorithm == 7
    small = plan(xwy, workspace_limit=400)
    assert small.choice.algorithm == 6 and "5000 bytes of workspace, over 400" in small.skipped[0]
    same = plan(xwy, workspace_limit=400, deterministic=True)
    assert same.choice.algorithm == 1 and "is not deterministic" in same.skipped[1]
    with pytest.raises(NoAlgorithmError) as caught:
        plan(xwy, workspace_limit=10)
    text = str(caught.value)
    assert "workspace limit: 10" in text and text.count("not taken") == 3


def test_only_better_algorithms_count_as_skipped(fake: SimpleNamespace, xwy: Any) -> None:
    fake.dll.rows = [(7, 0.1, 400, 1, 0), (6, 0.2, 5000, 1, 0), (1, 0.3, 300, 0, 0)]
    assert plan(xwy, workspace_limit=400, deterministic=True).skipped == []
    fake.dll.rows.insert(0, (5, 0.05, 6000, 1, 0))
    (skipped,) = plan(xwy, workspace_limit=500).skipped
    assert skipped.startswith("CUDNN_CONVOLUTION_FWD_ALGO_FFT_TILING wants 6000 bytes")


def test_fma_excludes_tensor_cores(fake: SimpleNamespace, xwy: Any) -> None:
    fake.dll.rows = [(7, 0.1, 0, 1, int(TENSOR)), (1, 0.3, 0, 1, int(DEFAULT))]
    assert plan(xwy, math=DEFAULT).choice.math == TENSOR
    exact = plan(xwy, math=FMA)
    assert (exact.choice.algorithm, exact.choice.math) == (1, FMA)
    assert "uses CUDNN_TENSOR_OP_MATH" in exact.skipped[0]
    assert plan(xwy) is exact  # TF32 only for those who ask for it
    half = tuple(array.astype("float16") for array in xwy)
    assert convolution.plan("forward", *half).choice.math == TENSOR


def test_fma_excludes_coarse_winograd(fake: SimpleNamespace) -> None:
    """5 x 5 Winograd loses more than TF32; by hand it may be had all the same."""
    fake.dll.rows = [(7, 0.1, 0, 1, int(FMA)), (1, 0.3, 0, 1, int(FMA))]
    empty = fake.cupy.empty
    five = (empty((2, 4, 8, 8)), empty((6, 4, 5, 5)), empty((2, 6, 4, 4)))
    exact = plan(five, math=FMA, algorithm="find")
    assert exact.choice.algorithm == 1 and "less accurate than TF32" in exact.skipped[0]
    assert plan(five, math=DEFAULT, algorithm="find").choice.algorithm == 7
    assert plan(five, math=FMA, algorithm=7).choice.algorithm == 7


def test_searches_call_what_they_say(fake: SimpleNamespace, xwy: Any) -> None:
    wanted = {
        "heuristic": GET,
        "find": "cudnnFindConvolutionForwardAlgorithm",
        "find_ex": "cudnnFindConvolutionForwardAlgorithmEx",
    }
    for search, function in wanted.items():
        fake.dll.calls.clear()
        made = plan(xwy, algorithm=search)
        asked = [n for n in fake.dll.names() if "Algorithm" in n and "Max" not in n]
        # Measured twice: the first run loads kernels.
        assert asked == [function] * (1 if search == "heuristic" else 2)
        assert made.choice.name == "CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM"


def test_find_ex_is_given_a_scratch_output(fake: SimpleNamespace, xwy: Any) -> None:
    plan(xwy, algorithm="find_ex")
    arguments = next(a for n, a in fake.dll.calls if n.endswith("AlgorithmEx"))
    x, w, y = xwy
    assert (arguments[2], arguments[4]) == (x.data.ptr, w.data.ptr)
    assert arguments[7] != y.data.ptr
    assert workspace.sizes() == {}  # what it measured with went back to the pool


def test_the_better_of_two_measurements_counts(fake: SimpleNamespace, xwy: Any) -> None:
    answers = [
        [(7, 0.9, 0, 1, 0), (1, 0.3, 0, 1, 0)],  # the first call of 7 loaded its kernel
        [(7, 0.1, 0, 1, 0), (1, 0.4, 0, 1, 0)],
    ]
    original = fake.dll._search

    def search(name: str, arguments: Any) -> None:
        if "Find" in name:
            fake.dll.rows = answers.pop(0)
        original(name, arguments)

    fake.dll._search = search
    made = plan(xwy, algorithm="find")
    assert made.choice.algorithm == 7
    found = convolution.algorithms(made.key)
    times = [c.time_ms and round(c.time_ms, 3) for c in found]
    assert times == [0.1, 0.3]


def test_a_search_short_of_memory_is_not_kept_on_disk(
    fake: SimpleNamespace, xwy: Any, caplog: pytest.LogCaptureFixture
) -> None:
    fake.dll.size = 10_000  # each algorithm wants this
    fake.cupy.memory_left = 4_000
    with caplog.at_level(logging.WARNING):
        key = plan(xwy, algorithm="find_ex").key
    assert "trying half" in caplog.text
    assert choose._store().read(choose.disk_key(key)) is None
    fake.cupy.memory_left = 0
    forget()
    with pytest.raises(OutOfMemoryError, match="'find_ex' needs 64 bytes to write the output"):
        plan(xwy, algorithm="find_ex")


def test_by_hand(fake: SimpleNamespace, xwy: Any) -> None:
    made = plan(xwy, algorithm=6)
    assert made.choice.name == "CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD"
    assert made.choice.workspace == fake.dll.size and GET not in fake.dll.names()
    x, w, y = xwy
    with pytest.raises(NoAlgorithmError, match="is not deterministic"):
        convolution.plan("backward_data", x, w, y, algorithm=0, deterministic=True)


def test_remembered_in_memory_and_on_disk(fake: SimpleNamespace, xwy: Any) -> None:
    first = plan(xwy, algorithm="find")
    fake.dll.calls.clear()
    assert plan(xwy, algorithm="find") is first and fake.dll.calls == []
    forget()
    again = plan(xwy, algorithm="find")
    assert again.choice == first.choice and again is not first
    assert not any("Find" in name for name in fake.dll.names())


def test_a_damaged_entry_is_chosen_anew(
    fake: SimpleNamespace, xwy: Any, caplog: pytest.LogCaptureFixture
) -> None:
    key = plan(xwy).key
    choose._store().put(choose.disk_key(key), b'[{"algorithm": 3}]')
    forget()
    with caplog.at_level(logging.WARNING):
        assert plan(xwy).choice.algorithm == 1
    assert "not readable" in caplog.text


def test_every_field_of_the_key_tells(fake: SimpleNamespace, xwy: Any, monkeypatch: Any) -> None:
    """Two keys that differ anywhere but in the device's number have different names on disk."""
    key = plan(xwy).key
    x, w = key.x, key.w
    other: dict[str, Any] = {
        "operation": "backward_data",
        "x": x._replace(strides=(256, 1, 32, 4)),
        "w": w._replace(format=1),
        "y": key.y._replace(shape=(2, 6, 6, 5)),
        "padding": (0, 1),
        "stride": (1, 2),
        "dilation": (2, 1),
        "groups": 2,
        "mode": 0,
        "compute": 2,
        "math": DEFAULT,
        "search": "find",
        "deterministic": True,
        "workspace_limit": 5,
        "aligned": not key.aligned,
        "fused": True,
    }
    names = {choose.disk_key(key)}
    for field in dataclasses.fields(key):
        if field.name != "device":
            names.add(choose.disk_key(dataclasses.replace(key, **{field.name: other[field.name]})))
    assert len(names) == len(other) + 1
    assert choose.disk_key(dataclasses.replace(key, device=3)) in names
    names = {choose.disk_key(key)}
    runtime = fake.cupy.cuda.runtime
    monkeypatch.setattr(library.load(), "version", 92000)
    names.add(choose.disk_key(key))
    monkeypatch.setattr(library.load(), "cudnnGetCudartVersion", lambda: 12090)
    names.add(choose.disk_key(key))
    machine.device_name.cache_clear()
    runtime.driverGetVersion = lambda: 13010
    names.add(choose.disk_key(key))
    machine.device_name.cache_clear()
    runtime.getDeviceProperties = lambda d: dict(
        name="Fake GPU", major=9, minor=0, multiProcessorCount=78
    )
    names.add(choose.disk_key(key))
    assert len(names) == 5


def test_layouts_that_can_be_read_either_way(fake: SimpleNamespace) -> None:
    """Extents of 1 fit NCHW and NHWC: the other operands decide, so that all three agree."""
    x = fake.cupy.empty((2, 8, 8, 4)).transpose(0, 3, 1, 2)
    w = fake.cupy.empty((6, 4, 1, 1))  # KCRS and KRSC at once
    y = convolution.forward(x, w)
    key = convolution.plan("forward", x, w, y).key
    assert key.w.format == 1 and key.x.strides == (256, 1, 32, 4) and key.y.strides[1] == 1
    plain = convolution.plan("forward", fake.cupy.empty((2, 4, 8, 8)), w, fake.cupy.empty(y.shape))
    assert plain.key.w.format == 0


def test_one_dimension_becomes_two(fake: SimpleNamespace) -> None:
    y = convolution.forward(fake.cupy.empty((2, 4, 8)), fake.cupy.empty((6, 4, 3)), padding=1)
    assert y.shape == (2, 6, 8)
    key = convolution.plan(
        "forward",
        fake.cupy.empty((2, 4, 8)),
        fake.cupy.empty((6, 4, 3)),
        y,
        padding=[1],  # type: ignore[arg-type]
    ).key
    assert key.x.shape == (2, 4, 8, 1) and key.padding == (1, 0) and key.stride == (1, 1)


def test_short_memory_takes_the_next(
    fake: SimpleNamespace, xwy: Any, caplog: pytest.LogCaptureFixture
) -> None:
    fake.dll.rows = [(7, 0.1, 5000, 1, 0), (5, 0.15, 6000, 1, 0), (1, 0.2, 400, 1, 0)]
    made = plan(xwy)
    fake.cupy.memory_left = 1000
    with warnings.catch_warnings(), pytest.raises(MiniDNNWarning, match="falls back"):
        warnings.simplefilter("error")  # strict: nothing else than the best
        convolution.forward(*xwy)
    assert made.choice.algorithm == 7 and made.skipped == []
    said = "NONFUSED .5000 bytes of workspace.: no room"
    with caplog.at_level(logging.WARNING), pytest.warns(MiniDNNWarning, match=said):
        convolution.forward(*xwy)
    assert made.choice.algorithm == 1
    assert "WINOGRAD_NONFUSED (5000 bytes of workspace): no room" in made.skipped[-1]
    assert "falls back to CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM" in caplog.text
    fake.cupy.memory_left = 0
    workspace.release()
    with pytest.raises(OutOfMemoryError, match="no room for a cuDNN workspace of 400 bytes"):
        convolution.forward(*xwy)


def test_what_turns_out_unsupported_is_left(fake: SimpleNamespace, xwy: Any) -> None:
    fake.dll.rows = [(7, 0.1, 10, 1, 0), (1, 0.2, 10, 1, 0)]
    made = plan(xwy)
    original = fake.dll._call

    def refuse_winograd(name: str, arguments: Any) -> Any:
        if name == "cudnnConvolutionForward" and arguments[7] == 7:
            return 3000
        return original(name, arguments)

    fake.dll._call = refuse_winograd
    with pytest.warns(MiniDNNWarning, match="falls back to .*_NOT_SUPPORTED the fake says no"):
        convolution.forward(*xwy)
    assert made.choice.algorithm == 1 and "NOT_SUPPORTED" in made.skipped[0]
    assert made.unfit == ()  # no constraint excluded it
    fake.dll._call = original
    fake.dll.status["cudnnConvolutionForward"] = 3000
    with pytest.raises(CuDNNError, match="NOT_SUPPORTED"):
        convolution.forward(*xwy)


def test_after_the_last_failed_the_next_call_begins_with_the_first(
    fake: SimpleNamespace, xwy: Any
) -> None:
    fake.dll.rows = [(7, 0.1, 5000, 1, 0), (1, 0.2, 400, 1, 0)]
    made = plan(xwy)
    fake.cupy.memory_left = 0
    with pytest.warns(MiniDNNWarning, match="falls back"), pytest.raises(OutOfMemoryError):
        convolution.forward(*xwy)
    assert (made.choice.algorithm, made.skipped) == (7, [])
    fake.cupy.memory_left = 1 << 40
    fake.dll.status["cudnnConvolutionForward"] = 3000
    for _ in range(2):
        with pytest.warns(MiniDNNWarning, match="falls back"), pytest.raises(CuDNNError):
            convolution.forward(*xwy)
        assert (made.choice.algorithm, made.skipped) == (7, [])
    fake.dll.status.clear()
    convolution.forward(*xwy)
    assert fake.dll.calls[-1][1][7] == 7


def test_a_failure_of_what_another_thread_has_left_is_no_error(
    fake: SimpleNamespace, xwy: Any
) -> None:
    fake.dll.rows = [(7, 0.1, 10, 1, 0), (1, 0.2, 10, 1, 0)]
    made = plan(xwy)
    old = made.state
    for _ in range(2):  # two threads that ran the first algorithm at once
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made.failed(3000, old, "cudnnConvolutionForward")
    assert made.choice.algorithm == 1


def test_the_workspace_grows_and_is_shared(fake: SimpleNamespace) -> None:
    first = workspace.acquire(100)
    assert workspace.acquire(50) is first and workspace.acquire(0) is None
    larger = workspace.acquire(200)
    assert larger is not first and workspace.sizes() == {(0, 0): 200}
    fake.cupy.stream.ptr = 0x77
    assert workspace.acquire(10) is not larger
    assert fake.cupy.allocated == [100, 200, 10]
    workspace.release()
    assert workspace.sizes() == {}


def test_threads_do_not_share_a_workspace(fake: SimpleNamespace) -> None:
    """Two convolutions of several kernels each may mix on one stream."""
    mine = workspace.acquire(100)
    theirs: list[Any] = []
    thread = threading.Thread(target=lambda: theirs.append(workspace.acquire(100)))
    thread.start()
    thread.join()
    assert theirs[0] is not mine and workspace.acquire(100) is mine


def test_what_a_graph_recorded_is_kept(fake: SimpleNamespace) -> None:
    fake.cupy.stream.ptr, fake.cupy.capturing = 0x77, True
    recorded = workspace.acquire(100)
    fake.cupy.capturing = False
    workspace.acquire(200)
    workspace.acquire(300)
    assert [buffer.memory for buffer in workspace._kept] == [recorded]


def test_measuring_is_refused_in_a_capture(fake: SimpleNamespace, xwy: Any) -> None:
    fake.cupy.stream.ptr, fake.cupy.capturing = 0x77, True
    with pytest.raises(ArgumentError, match="call the function once before the capture"):
        plan(xwy, algorithm="find_ex")
    plan(xwy)  # the heuristic may


def test_limits(fake: SimpleNamespace) -> None:
    before = workspace.get_limit()
    workspace.set_limit(123)
    assert workspace.get_limit() == 123
    workspace.set_limit(before)
    with pytest.raises(ArgumentError, match="must not be negative"):
        workspace.set_limit(-1)


def test_a_handle_per_device_thread_and_stream(fake: SimpleNamespace) -> None:
    one = handle.current_handle()
    assert handle.current_handle() == one
    assert "cudnnSetStream" not in fake.dll.names()
    fake.cupy.stream.ptr = 0x99
    assert handle.current_handle() == one
    assert fake.dll.calls[-1] == ("cudnnSetStream", (one, 0x99))
    fake.cupy.device = 1
    other = handle.current_handle()
    assert other != one
    fake.cupy.device = 0
    seen: list[int] = []
    for _ in range(3):
        thread = threading.Thread(target=lambda: seen.append(handle.current_handle()))
        thread.start()
        thread.join()
    assert one not in seen and len(set(seen)) == 1  # given back and used again
    handle.reset_handles()
    assert not fake.dll.live
    assert handle.current_handle() not in (one, other)


def test_a_handle_that_cannot_be_made(fake: SimpleNamespace) -> None:
    fake.dll.status["cudnnCreate"] = 1001
    with pytest.raises(CuDNNError, match=r"NOT_INITIALIZED .* in cudnnCreate"):
        cudnn.convolution.forward(fake.cupy.empty((2, 4, 8, 8)), fake.cupy.empty((6, 4, 3, 3)))
