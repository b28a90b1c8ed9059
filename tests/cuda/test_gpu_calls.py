"""Calling a program: arrays of every library, streams, threads, bound arrays, memory."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import minidnn as md
from minidnn import layers as L
from minidnn.backends.cuda import prepare
from minidnn.backends.cuda.program import CudaProgram
from minidnn.errors import DeviceError, GraphError, OutOfMemoryError, UnsupportedError

pytestmark = pytest.mark.gpu
cupy = pytest.importorskip("cupy")
torch = pytest.importorskip("torch")
SHAPE = (4, 3, 17, 19)


def network() -> md.Layer:
    return L.Sequential(
        L.Conv2d(3, 8, 3, padding=1), L.BatchNorm2d(8), L.ReLU(), L.MaxPool2d(2), L.Conv2d(8, 5, 1)
    )


@cache
def shared() -> md.Layer:
    return network()


def compiled(**options: Any) -> Any:
    return md.compile(shared(), SHAPE, device="cuda", tune="heuristic", **options)


def x(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(SHAPE, np.float32)


def expected(given: np.ndarray) -> np.ndarray:
    return md.compile(shared(), SHAPE, device="reference")(given)


@pytest.mark.parametrize("precision", ["float32", "float16", "bfloat16"])
def test_results_are_of_the_kind_of_the_input(precision: str) -> None:
    exe = compiled(precision=precision)
    by_numpy = exe(x())
    by_cupy = exe(cupy.asarray(x()))
    by_torch = exe(torch.from_numpy(x()).cuda())
    assert isinstance(by_numpy, np.ndarray) and isinstance(by_cupy, cupy.ndarray)
    assert by_torch.dtype == getattr(torch, precision) and by_torch.is_cuda
    np.testing.assert_array_equal(by_numpy.astype(np.float32), by_torch.float().cpu().numpy())
    np.testing.assert_array_equal(
        by_numpy.astype(np.float32), cupy.asnumpy(by_cupy.astype(cupy.float32))
    )
    error = np.abs(by_numpy.astype(np.float32) - expected(x())).max()
    assert error < {"float32": 1e-5, "float16": 2e-2, "bfloat16": 2e-1}[precision]


def test_half_precision_inputs_are_taken_as_they_are() -> None:
    exe = compiled(precision="float16")
    half = torch.from_numpy(x()).cuda().half()
    assert torch.equal(exe(half), exe(half.float()))
    strided = half.to(memory_format=torch.channels_last)
    assert torch.equal(exe(strided), exe(half))


@pytest.mark.parametrize("precision", ["tf32", "float16"])
def test_what_an_image_is_gathered_to_needs_no_leave(
    precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepare, "MOST_WORKSPACE", 0)
    for tune in ("heuristic", "quick"):
        net = L.Conv2d(3, 8, 3, padding=1)
        exe = md.compile(net, SHAPE, device="cuda", precision=precision, tune=tune)
        wanted = md.compile(net, SHAPE, device="reference")(x())
        assert np.abs(exe(x()).astype(np.float32) - wanted).max() < 1e-2


def test_a_limit_that_leaves_no_room_to_gather_is_told() -> None:
    net = L.Conv2d(3, 8, 3, padding=1)
    exe = md.compile(net, SHAPE, device="cuda", precision="float16", tune="heuristic")
    program = exe.program
    assert isinstance(program, CudaProgram)
    gathered = 4 * (17 + 2) * (19 + 2) * 8 * 2
    limit = program.bytes - gathered // 2
    with pytest.raises(OutOfMemoryError, match=rf"memory_limit={limit} .* \d+ are needed"):
        md.compile(net, SHAPE, device="cuda", precision="float16", memory_limit=limit)


def test_out_is_written_and_returned() -> None:
    exe = compiled()
    given = torch.from_numpy(x()).cuda()
    plain = exe(given)
    out = torch.full_like(plain, float("nan"))
    assert exe(given, out=out) is out and torch.equal(out, plain)
    host = np.empty(plain.shape, np.float32)
    exe(x(), out=host)
    np.testing.assert_array_equal(host, plain.cpu().numpy())


def test_what_does_not_fit_is_said() -> None:
    exe = compiled()
    with pytest.raises(GraphError, match=r"input 'input' has shape \(1, 3, 17, 19\), but the"):
        exe(x()[:1])
    with pytest.raises(GraphError, match="dtype int32; valid is float32"):
        exe(x().astype(np.int32))
    with pytest.raises(DeviceError, match="is on device cpu; valid is cuda:0"):
        exe(torch.from_numpy(x()))
    with pytest.raises(GraphError, match="is a str; valid are CuPy"):
        exe("image")
    with pytest.raises(GraphError, match=r"out\[0\] is float16.*valid is a contiguous, writable"):
        exe(x(), out=cupy.empty((4, 5, 8, 9), cupy.float16))
    with pytest.raises(UnsupportedError, match=r"option 'tunes' of device 'cuda'; valid are"):
        compiled(tunes="quick")
    with pytest.raises(DeviceError, match="'cuda:99' cannot be used here: cuda:99 does not exist"):
        md.compile(shared(), SHAPE, device="cuda:99")


def test_bound_arrays_are_read_and_written_in_place() -> None:
    exe = compiled()
    given = torch.from_numpy(x()).cuda()
    run = exe.bind(given)
    for seed in range(3):
        given.copy_(torch.from_numpy(x(seed)))
        run()
        np.testing.assert_allclose(run.outputs[0].cpu().numpy(), expected(x(seed)), atol=1e-5)
    with pytest.raises(GraphError, match="cannot be bound: valid is a contiguous array"):
        exe.bind(x())
    with pytest.raises(GraphError, match="cannot be bound"):
        exe.bind(given.half())


def test_arrays_of_every_kind_in_turn() -> None:
    """What the graph copies by itself, and what is copied around it, on one executable."""
    exe = compiled()
    results, order = [], np.random.default_rng(0).permutation(40)
    for seed in map(int, order):
        given, wanted = x(seed), expected(x(seed))
        kind = seed % 5
        if kind == 0:
            found = exe(cupy.asarray(given)).get()
        elif kind == 1:
            found = exe(torch.from_numpy(given).cuda())
            results.append((found, wanted))  # so that the next one lies elsewhere
            found = found.cpu().numpy()
        elif kind == 2:
            found = exe(given)
        elif kind == 3:
            array, out = managed(given), managed(np.empty_like(wanted))
            assert exe(array, out=out) is out
            found = out.get()
        else:
            out = np.empty_like(wanted)
            exe(cupy.asarray(given), out=out)
            found = out
        np.testing.assert_allclose(found, wanted, atol=1e-5)
    for result, wanted in results:
        np.testing.assert_allclose(result.cpu().numpy(), wanted, atol=1e-5)


@pytest.mark.parametrize("precision", ["float16", "tf32"])
def test_kernels_work_where_callers_arrays_lie(precision: str) -> None:
    net = L.Sequential(L.Conv2d(3, 16, 3, padding=1), L.ReLU(), L.Conv2d(16, 16, 3, padding=1))
    exe = md.compile(net, SHAPE, device="cuda", precision=precision, tune="heuristic")
    dtype = torch.float16 if precision == "float16" else torch.float32
    pool = [torch.from_numpy(x(seed)).to("cuda", dtype) for seed in range(3)]
    fixed = pool[0].clone()
    bound = exe.bind(fixed)
    results: list[Any] = []
    for given in (*pool, *pool):
        results.append(exe(given))  # which stay, so that the next one lies elsewhere
        assert in_place(exe) == [True, True]
        fixed.copy_(given)
        bound()
        assert torch.equal(results[-1], bound.outputs[0])
    assert all(map(torch.equal, results[:3], results[3:]))
    # What does not begin at 16 bytes, and what is written over what is read, is copied.
    count = pool[0].numel()
    room = torch.zeros(count + results[0].numel() + 8, dtype=dtype, device="cuda")
    given = room[1 : count + 1].view(SHAPE).copy_(pool[1])
    assert torch.equal(exe(given), results[1])
    assert in_place(exe) == [False, True]
    given = room[:count].view(SHAPE).copy_(pool[2])
    out = room[8 : 8 + results[0].numel()].view(results[0].shape)
    assert torch.equal(exe(given, out=out), results[2])
    assert in_place(exe) == [False, False]
    assert torch.equal(exe(pool[0]), results[0])
    assert in_place(exe) == [True, True]
    exe.profile(pool[0])
    assert torch.equal(exe(pool[1]), results[1])


def in_place(exe: Any) -> list[bool]:
    """Of inputs, then outputs: whether the last call's kernels worked in the caller's memory."""
    (instance,) = set(exe.program._instances.values())
    return [end.is_direct for end in (*instance.takes, *instance.gives)]


def managed(array: np.ndarray) -> Any:
    """A copy in memory that moves between the CPU and the GPU."""
    memory = cupy.cuda.malloc_managed(array.nbytes)
    made = cupy.ndarray(array.shape, array.dtype, memory)
    made.set(array)
    return made


def test_several_inputs_and_outputs_lie_anywhere() -> None:
    a, b = md.Input((3, 4, 4)), md.Input((3, 4, 4))
    net = md.Model((a, b), (L.ReLU()(a + b), a + b, b))
    exe = md.compile(net, [(2, 3, 4, 4)] * 2, device="cuda")
    random = np.random.default_rng(0)
    pool = [cupy.asarray(random.standard_normal((2, 3, 4, 4), np.float32)) for _ in range(4)]
    for i in range(12):
        one, two = pool[i % 4], pool[(i * 3 + 1 + i // 4) % 4]
        relu, total, same = exe(one, two)
        cupy.testing.assert_array_equal(relu, cupy.maximum(one + two, 0))
        cupy.testing.assert_array_equal(total, one + two)
        cupy.testing.assert_array_equal(same, two)
    one, two, spare = (array.copy() for array in pool[:3])
    exe(one, two, out=(two, spare, one))  # over what was given
    cupy.testing.assert_array_equal(two, cupy.maximum(pool[0] + pool[1], 0))
    cupy.testing.assert_array_equal(spare, pool[0] + pool[1])
    cupy.testing.assert_array_equal(one, pool[1])


def test_outputs_that_no_kernel_writes() -> None:
    a = md.Input((3, 4, 4))
    y = L.ReLU()(a)
    net = md.Model(a, (y, a, y, L.Flatten()(y)))
    given = np.random.default_rng(0).standard_normal((2, 3, 4, 4), np.float32)
    results = md.compile(net, given.shape, device="cuda")(given)
    relu = np.maximum(given, 0)
    for result, wanted in zip(results, (relu, given, relu, relu.reshape(2, -1)), strict=True):
        np.testing.assert_array_equal(result, wanted)


def test_streams_and_threads_at_once() -> None:
    first, second = compiled(), compiled(precision="float16")
    wanted = {seed: expected(x(seed)) for seed in range(4)}
    failures: list[str] = []

    def work(seed: int) -> None:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            given = torch.from_numpy(x(seed)).cuda()
            for _ in range(100):
                result, half = first(given), second(given)
            stream.synchronize()
            error = float((result.cpu() - torch.from_numpy(wanted[seed])).abs().max())
            coarse = float((half.float().cpu() - torch.from_numpy(wanted[seed])).abs().max())
            if error > 1e-5 or coarse > 2e-2:
                failures.append(f"{seed}: {error} {coarse}")

    threads = [threading.Thread(target=work, args=(seed % 4,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_a_thread_may_begin_with_a_call() -> None:
    """It has asked CUDA for nothing yet, and memory for results is found in the pool."""
    exe = compiled(precision="float16")
    pool = [cupy.asarray(x(seed).astype(np.float16)) for seed in range(3)]
    wanted = [cupy.asnumpy(exe(given)) for given in pool]
    cupy.cuda.get_current_stream().synchronize()
    found: list[Any] = []

    def work() -> None:
        found.extend(exe(given) for given in pool)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert len(found) == len(pool), "the thread failed"
    for result, expected_bits in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(cupy.asnumpy(result), expected_bits)


def test_arrays_of_several_libraries_wait_for_each_other() -> None:
    """PyTorch still writes the second one, on a stream of its own, and then takes it again."""
    a, b = md.Input((3, 8, 8)), md.Input((3, 8, 8))
    net = md.Model([a, b], L.MaxPool2d(3, 1, 1)(a + b))
    exe = md.compile(net, [(2, 3, 8, 8)] * 2, device="cuda", tune="heuristic")
    first = cupy.ones((2, 3, 8, 8), cupy.float32)
    second = torch.zeros((2, 3, 8, 8), device="cuda")
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    for number in range(10):
        with torch.cuda.stream(stream):
            torch.cuda._sleep(2_000_000)
            second.fill_(number)
            result = exe(first, second)
            second.fill_(-100)
        np.testing.assert_array_equal(cupy.asnumpy(result), np.float32(number + 1))


def test_a_call_follows_what_was_enqueued_before() -> None:
    exe = compiled()
    given = torch.zeros(SHAPE, device="cuda")
    for seed in range(20):
        torch.cuda._sleep(1_000_000)
        given.copy_(torch.from_numpy(x(seed)).cuda())
        result = exe(given)
        given.zero_()
        np.testing.assert_allclose(result.cpu().numpy(), expected(x(seed)), atol=1e-5)


def test_memory_is_given_back() -> None:
    pool = cupy.get_default_memory_pool()
    compiled()(x())
    gc.collect()
    before = pool.used_bytes()
    for _ in range(20):
        compiled()(x())
    gc.collect()
    assert pool.used_bytes() <= before + (1 << 20)


def test_a_memory_limit_is_kept_or_an_error() -> None:
    net = network()
    with pytest.raises(OutOfMemoryError, match=r"memory_limit=1000 bytes; weights take \d+ and"):
        md.compile(net, SHAPE, device="cuda", memory_limit=1000)
    exe = md.compile(net, (64, 3, 112, 112), device="cuda", memory_limit=200 << 20)
    program = exe.program
    assert isinstance(program, CudaProgram) and program.bytes <= 200 << 20


def test_profile_and_explain_tell_algorithms() -> None:
    exe = compiled(precision="float16")
    text = exe.explain(measure=True)
    assert "eng" in text and "occupancy" in text and "of the roofline" in text


def test_the_gpu_is_the_default_device() -> None:
    assert md.compile(shared(), SHAPE).device == "cuda"


def test_ends_that_libraries_take_are_not_copied_where_addresses_come_again() -> None:
    """As the values kept for a backward pass do, which PyTorch's allocator gives again."""
    exe = compiled()
    program = exe.program
    given = [torch.from_numpy(x(seed)).cuda() for seed in range(6)]
    external = program._external
    external.places, external.is_worth = (0, 1), True  # of small arrays it would not be worth it
    stream = torch.cuda.current_stream().cuda_stream
    results = [torch.empty(expected(x()).shape, device="cuda") for _ in given]

    def run(place: int) -> None:
        torch.cuda.synchronize()
        program.run_on(stream, [given[place].data_ptr()], [results[place].data_ptr()])
        torch.cuda.synchronize()
        error = np.abs(results[place].cpu().numpy() - expected(x(place))).max()
        assert error < 1e-4
        results[place].fill_(np.nan)

    run(0)
    assert not external.kept
    for _ in range(3):
        run(0)
    assert len(external.kept) == 1
    (fixed,) = external.kept.values()
    assert fixed.takes == [None] and fixed.gives == [None]
    for _ in range(3):  # more than are kept: the others are copied
        for place in range(len(given)):
            run(place)
    assert 1 < len(external.kept) <= 3


@pytest.mark.parametrize("places", [(), (0,), (1,), (0, 1)])
def test_a_program_on_external_buffers_has_no_memory_for_inputs_and_outputs(
    places: tuple[int, ...],
) -> None:
    """Whichever of them libraries take, and even if an array is none that kernels reach."""
    exe = compiled()
    program = exe.program
    before = program.bytes
    program.use_external_buffers()
    assert program.bytes < before
    external = program._external
    external.places = tuple(sorted({*external.places, *places}))
    shape = expected(x()).shape
    memory = torch.empty(x().size + 1, device="cuda")
    unaligned = memory[1:].view(SHAPE)
    stream = torch.cuda.current_stream().cuda_stream
    kept: list[Any] = []  # else addresses would come again
    for seed in range(8):
        given = unaligned if seed % 3 == 2 else torch.empty(SHAPE, device="cuda")
        given.copy_(torch.from_numpy(x(seed)))
        result = torch.full(shape, np.nan, device="cuda")
        kept += [given, result]
        program.run_on(stream, [given.data_ptr()], [result.data_ptr()])
        error = np.abs(result.cpu().numpy() - expected(x(seed))).max()
        assert error < 1e-4, seed
    assert external.kept and external.bytes >= program.table.block.bytes
    np.testing.assert_allclose(exe(x(3)), expected(x(3)), atol=1e-4)


TENSORS = """
import sys
import torch
import minidnn as md
from minidnn import layers as L
executable = md.compile(L.Sequential(L.Flatten(), L.Linear(12, 2)), (2, 3, 4), device="cuda")
assert executable(torch.ones((2, 3, 4), device="cuda")).is_cuda
print("torch._dynamo" in sys.modules)
"""


def test_calls_with_tensors_import_nothing_that_captures(root: Path) -> None:
    """That takes seconds, of the first step of every process."""
    command = [sys.executable, "-c", TENSORS]
    found = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=root)
    assert found.stdout == "False\n", found
