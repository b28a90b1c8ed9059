"""Calling executables of the CPU engine: threads, several at once, fork, odd arrays, options."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import minidnn as md
from minidnn import layers as L
from minidnn.backends.cpu import backend
from minidnn.backends.cpu.backend import CpuProgram
from minidnn.backends.cpu.execution.buffers import AlignedMemory, Guard
from minidnn.errors import DeviceError, GraphError, OutOfMemoryError, UnsupportedError

from .conftest import run_python
from .warming import texts_of

SHAPE = (2, 3, 29, 23)


@cache
def network() -> Any:
    """Every kind of region: fused contractions, sequences, a join, a linear layer, softmax."""
    x = md.Input(SHAPE[1:])
    a = L.Sequential(L.Conv2d(3, 20, 3, padding=1), L.BatchNorm2d(20), L.ReLU())(x)
    b = L.Sequential(L.MaxPool2d(3, 1, 1), L.BatchNorm2d(20), L.SiLU())(a)
    c = L.Sequential(L.Conv2d(20, 20, 3, padding=1, groups=20), L.Conv2d(20, 16, 1))(b)
    d = L.Sequential(L.AvgPool2d(2), L.BatchNorm2d(36), L.ReLU())(L.Concat()(c, a))
    e = L.Conv2d(36, 36, 3, padding=1)(d) + d
    y = L.Sequential(L.AdaptiveAvgPool2d(3), L.Flatten(), L.Linear(324, 40), L.Softmax(-1))(e)
    net = md.Model(x, y)
    return md.calibrate(net, draw(0))


def draw(seed: int, shape: tuple[int, ...] = SHAPE) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def compiled(**options: Any) -> Any:
    return md.compile(network(), SHAPE, device="cpu", **options)


@pytest.mark.together
def test_result() -> None:
    expected = md.compile(network(), SHAPE, device="reference", precision="float64")(draw(1))
    np.testing.assert_allclose(compiled()(draw(1)), expected, rtol=1e-4)


@pytest.mark.together(2)
def test_same_bits_on_every_thread_count_and_run() -> None:
    results = []
    for threads in (1, 2, 3, 4):
        exe = compiled(threads=threads)
        results += [exe(draw(1)) for _ in range(20)]
    assert len({result.tobytes() for result in results}) == 1
    assert np.isfinite(results[0]).all()


@pytest.mark.parametrize("threads", [1, 3])
def test_one_executable_from_several_threads(threads: int) -> None:
    exe = compiled(threads=threads)
    inputs = [draw(seed) for seed in range(8)]
    expected = [exe(x) for x in inputs]
    with ThreadPoolExecutor(6) as pool:
        for _ in range(10):
            for result, right in zip(pool.map(exe, inputs), expected, strict=True):
                np.testing.assert_array_equal(result, right)


def test_several_executables_at_once() -> None:
    executables = [compiled(threads=1 + i % 3) for i in range(6)]
    x = draw(1)
    expected = executables[0](x)
    with ThreadPoolExecutor(6) as pool:
        runs = [pool.submit(exe, x) for _ in range(20) for exe in executables]
        for run in runs:
            np.testing.assert_array_equal(run.result(), expected)


@pytest.mark.together(2)
def test_a_sum_of_many_and_many_results_of_one() -> None:
    """A kernel has as many operands as what it computes."""
    inputs = [md.Input((3,)) for _ in range(100)]
    total = L.ReLU()(inputs[0])
    for one in inputs[1:]:
        total = total + one
    given = [draw(i, (2, 3)) for i in range(100)]
    exe = md.compile(md.Model(inputs, total), [(2, 3)] * 100, device="cpu")
    wanted = np.maximum(given[0], 0) + np.sum(given[1:], axis=0, dtype=np.float64)
    np.testing.assert_allclose(exe(*given), wanted, rtol=1e-5, atol=1e-5)
    x = md.Input((3,))
    many = md.Model(x, [L.ReLU()(L.Tanh()(x)) for _ in range(100)])
    results = md.compile(many, (2, 3), device="cpu")(given[0])
    assert len(results) == 100
    for one in results:
        np.testing.assert_allclose(one, np.maximum(np.tanh(given[0]), 0), rtol=1e-6)


def test_results_are_fresh_and_stay() -> None:
    exe = compiled()
    first = exe(draw(1))
    kept = first.copy()
    exe(draw(2))
    np.testing.assert_array_equal(first, kept)


def test_out_is_written_and_returned() -> None:
    exe = compiled()
    out = np.full((2, 40), np.nan, np.float32)
    assert exe(draw(1), out=out) is out
    np.testing.assert_array_equal(out, exe(draw(1)))
    room = np.full(2 * 40 + 1, np.nan, np.float32)[1:].reshape(2, 40)  # not at 64 bytes
    exe(draw(1), out=room)
    np.testing.assert_array_equal(room, out)


@pytest.mark.together
def test_out_may_be_the_input() -> None:
    net = L.Sequential(L.MaxPool2d(3, 1, 1), L.ReLU())
    exe = md.compile(net, (2, 20, 12, 12), device="cpu")
    x = draw(1, (2, 20, 12, 12))
    expected = exe(x)
    room = np.zeros(x.size + 64, np.float32)
    for shift in (0, 5, 64):
        given, out = (room[i : i + x.size].reshape(x.shape) for i in (shift, 0))
        given[...] = x
        exe(given, out=out)
        np.testing.assert_array_equal(out, expected)


@pytest.mark.together
def test_outs_that_share_memory_are_refused() -> None:
    x = md.Input((3, 4, 4))
    exe = md.compile(md.Model(x, (L.ReLU()(x), L.Tanh()(x))), (1, 3, 4, 4), device="cpu")
    room = np.zeros(96, np.float32)
    outs = [room[i : i + 48].reshape(1, 3, 4, 4) for i in (0, 47)]
    with pytest.raises(GraphError, match=r"out\[0\] and out\[1\] share memory; valid are arrays"):
        exe(draw(1, (1, 3, 4, 4)), out=outs)


def _read_only(x: np.ndarray) -> np.ndarray:
    x = x.copy()
    x.flags.writeable = False
    return x


def _misaligned(x: np.ndarray) -> np.ndarray:
    room = np.zeros(x.nbytes + 1, np.uint8)[1:].view(np.float32).reshape(x.shape)
    room[...] = x
    assert not room.flags.aligned
    return room


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda x: np.asfortranarray(x), id="column by column"),
        pytest.param(lambda x: np.repeat(x, 2, axis=3)[..., ::2], id="with gaps"),
        pytest.param(lambda x: x[::-1].copy()[::-1], id="backwards"),
        pytest.param(lambda x: np.moveaxis(np.moveaxis(x, 1, 3).copy(), 3, 1), id="NHWC"),
        pytest.param(_read_only, id="read-only"),
        pytest.param(_misaligned, id="misaligned"),
        pytest.param(lambda x: x.astype(np.float64), id="float64"),
        pytest.param(lambda x: x.astype(">f4"), id="other byte order"),
        pytest.param(lambda x: x.tolist(), id="list"),
    ],
)
def test_unusual_inputs(change: Any) -> None:
    exe, x = compiled(), draw(1)
    np.testing.assert_array_equal(exe(change(x)), exe(x))


def test_float16_is_converted() -> None:
    exe, x = compiled(), draw(1).astype(np.float16)
    result = exe(x)
    assert result.dtype == np.float32
    np.testing.assert_array_equal(result, exe(x.astype(np.float32)))


def test_pytorch_tensors() -> None:
    torch = pytest.importorskip("torch")
    exe, x = compiled(), draw(1)
    for tensor in (torch.from_numpy(x), torch.from_numpy(x).to(memory_format=torch.channels_last)):
        result = exe(tensor)
        assert isinstance(result, torch.Tensor)
        np.testing.assert_array_equal(result.numpy(), exe(x))


def test_integers_are_refused() -> None:
    with pytest.raises(GraphError, match=r"has dtype int64; valid is float32, or another floating"):
        compiled()(np.zeros(SHAPE, np.int64))


def test_other_sizes_are_refused() -> None:
    for shape, advice in (
        ((1, *SHAPE[1:]), r"call minidnn\.compile\(network, \(1, "),
        ((0, *SHAPE[1:]), "what has no elements cannot be computed"),
        (SHAPE[1:], r"a single sample has shape \(1, "),
    ):
        with pytest.raises(GraphError, match=rf"has shape .*{advice}"):
            compiled()(np.zeros(shape, np.float32))


def test_empty_batch_is_refused() -> None:
    with pytest.raises(GraphError, match="0"):
        md.compile(network(), (0, *SHAPE[1:]), device="cpu")


@pytest.mark.parametrize("net", [L.ReLU(), L.Conv2d(3, 4, 3)])
def test_images_that_no_memory_holds_are_refused(net: L.Layer) -> None:
    """At once: lowering takes longer the more rows there are."""
    with pytest.raises(OutOfMemoryError, match=r"takes 1\d{14} bytes, .*; this process has \d+$"):
        md.compile(net, (1, 3, 1 << 40, 8), device="cpu")


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"threads": 0}, GraphError, "threads=0; valid is an int from 1 to 1024"),
        ({"threads": 2.0}, GraphError, r"threads=2\.0; valid is an int"),
        ({"isa": "mmx"}, DeviceError, "isa='mmx'; valid are 'avx512', 'avx2'"),
        ({"isa": ["avx2"]}, DeviceError, r"isa=\['avx2'\]; valid are 'avx512', 'avx2'"),
        ({"guarded": 1}, GraphError, r"guarded=1; valid are True \(the debug mode\) and False"),
        ({"tread": 2}, UnsupportedError, "option 'tread' of device 'cpu'; valid are 'threads'"),
        ({"precision": "float64"}, UnsupportedError, "precision='float64' on device 'cpu'; valid"),
    ],
)
def test_bad_options(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        compiled(**options)


def test_what_no_kernel_computes() -> None:
    """Outputs that are inputs, constants, views, and one value twice."""
    x = md.Input((3, 4, 5))
    y = L.ReLU()(x)
    flat = L.Flatten()(x)
    exe = md.compile(md.Model(x, (x, y, y, flat, L.Flatten()(y))), (2, 3, 4, 5), device="cpu")
    given = draw(1, (2, 3, 4, 5))
    same, relu, again, view, flat_relu = exe(given)
    positive = np.maximum(given, 0)
    for result, expected in zip(
        (same, relu, again, view, flat_relu),
        (given, positive, positive, given.reshape(2, 60), positive.reshape(2, 60)),
        strict=True,
    ):
        np.testing.assert_array_equal(result, expected)
        assert not np.may_share_memory(result, given)


def test_guards_are_behind_and_before_buffers_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    guards: list[set[Guard]] = []

    def made(size: int, guard: Guard) -> AlignedMemory:
        guards[-1].add(guard)
        return AlignedMemory(size, guard)

    exe = md.compile(L.ReLU(), (1, 3, 5, 5), device="cpu", guarded=True, threads=1)
    monkeypatch.setattr(backend, "AlignedMemory", made)
    x = np.random.default_rng(0).standard_normal((1, 3, 5, 5), np.float32)
    for _ in range(3):
        guards.append(set())
        np.testing.assert_array_equal(exe(x), np.maximum(x, 0))
    assert guards == [{Guard.END}, {Guard.START}, {Guard.END}]


@pytest.mark.together(2)
def test_guard_finds_a_write_beside_a_buffer() -> None:
    """The debug mode tells of a kernel that is made to write where it must not."""
    from dataclasses import replace

    from minidnn.backends.codegen.kernel import KernelSource
    from minidnn.backends.cpu.compilers.kernels import compile_kernels
    from minidnn.backends.cpu.isa import best_isa

    exe = md.compile(L.ReLU(), (1, 3, 5, 5), device="cpu", guarded=True, threads=1)
    program = exe.program
    assert isinstance(program, CpuProgram)
    node = next(task.node for task in program.tasks if task.node.op.name == "FusedSequence")
    text = "MD_KERNEL(@) { if (md_begin == 0) MD_OUT(float, OPERAND)[INDEX] = 1.0f; }\n"
    for operand, index, message in (
        (1, "-1", "a kernel wrote outside the 300 bytes of the output 'relu'"),
        (0, "0", "a kernel wrote to the input 'input'"),
    ):
        name = f"stray_{operand}"
        source = KernelSource(
            name, text.replace("@", name).replace("OPERAND", str(operand)).replace("INDEX", index)
        )
        kernels = compile_kernels([source], best_isa())
        tasks = [
            replace(task, source=source) if task.node is node else task for task in program.tasks
        ]
        real = compile_kernels(texts_of(program.tasks), best_isa())
        mixed = [
            kernels[0] if task.node is node else kernel
            for task, kernel in zip(program.tasks, real, strict=True)
        ]
        broken = CpuProgram(exe.plan, tasks, mixed, best_isa(), 1, True)
        x, y = draw(1, (1, 3, 5, 5)), np.zeros((1, 3, 5, 5), np.float32)
        with pytest.raises(GraphError, match=message):
            broken.run([x], [y])


FORKED = """
import os, threading
import numpy as np
import minidnn as md
from minidnn import layers as L
net = L.Sequential(L.Conv2d(3, 16, 3, padding=1), L.ReLU(), L.MaxPool2d(2))
exe = md.compile(net, (2, 3, 16, 16), device="cpu", threads=3)
x = np.random.default_rng(0).standard_normal((2, 3, 16, 16), np.float32)
expected = exe(x)
stop = False
def busy():
    while not stop:
        exe(x)
thread = threading.Thread(target=busy)
thread.start()
for _ in range(5):
    pid = os.fork()
    if pid == 0:
        right = all((exe(x) == expected).all() for _ in range(20))
        other = md.compile(net, (2, 3, 16, 16), device="cpu", threads=2)
        os._exit(0 if right and (other(x) == expected).all() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
stop = True
thread.join()
assert (exe(x) == expected).all()
print("good")
"""


def test_fork_after_use() -> None:
    child = run_python(FORKED, PYTHONWARNINGS="ignore::DeprecationWarning")
    out, err = child.communicate(timeout=120)
    assert (out, child.returncode) == ("good\n", 0), err


def test_a_second_process_compiles_nothing(root: Path) -> None:
    compiled()
    code = (
        "from tests.cpu import test_backend_calls as t\n"
        "print(float(t.compiled()(t.draw(1)).sum().round(3)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=root,
        env={**os.environ, "MINIDNN_NO_COMPILE": "1", "PATH": "/nowhere:" + os.environ["PATH"]},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.stdout, done.returncode) == ("2.0\n", 0), done.stderr
