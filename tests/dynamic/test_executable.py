"""Executables of named sizes beside executables of one size, and beside NumPy."""

from __future__ import annotations

import os
import threading
from typing import Any

import numpy as np
import pytest

import minidnn as md
from minidnn import layers as L
from minidnn.dynamic.executable import DynamicExecutable
from minidnn.errors import CompileError, GraphError
from minidnn.executable import Executable
from tests.devices import unavailable

BATCH = md.Dim("batch", 1, 40)
DEVICES = ["reference", "cpu"]


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    if (reason := unavailable(name)) is not None:
        pytest.skip(reason)
    return name


def network() -> L.Sequential:
    return md.Sequential(
        L.Conv2d(3, 8, 3, padding=1),
        L.BatchNorm2d(8),
        L.ReLU(),
        L.MaxPool2d(2),
        L.AdaptiveAvgPool2d(1),
        L.Flatten(),
        L.Linear(8, 5),
    )


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng((seed, *shape)).standard_normal(shape).astype(np.float32)


def named(net: Any, shape: Any, **options: Any) -> DynamicExecutable:
    found = md.compile(net, shape, **options)
    assert isinstance(found, DynamicExecutable)
    return found


def fixed(net: Any, shape: Any, device: str) -> Executable:
    found = md.compile(net, shape, device=device)
    assert isinstance(found, Executable)
    return found


def expected(net: L.Sequential, x: np.ndarray) -> np.ndarray:
    """What the network computes, in float64."""
    exe = md.compile(net, x.shape, device="reference", precision="float64")
    return np.asarray(exe(x))


@pytest.mark.sampled(3)
def test_random_sizes_beside_numpy_and_beside_one_size(device: str) -> None:
    """In parts and by its own program: every size gives what its own executable gives, to the last
    bit where it is that one, and in any case what float64 does."""
    net, random = network(), np.random.default_rng(3)
    exe = named(net, (BATCH, 3, 8, 8), device=device, keep=4)
    assert exe.why_not_parts is None
    count = 12 if device == "reference" else 5  # kernels of as many sizes are compiled
    for turn, batch in enumerate(random.integers(1, 41, count).tolist()):
        x = numbers(batch, 3, 8, 8, seed=turn)
        np.testing.assert_allclose(exe(x), expected(net, x), rtol=1e-4, atol=1e-5)
    for batch in (3, 40):
        x = numbers(batch, 3, 8, 8)
        own = exe.at(batch=batch)
        np.testing.assert_array_equal(exe(x), own(x))
        np.testing.assert_array_equal(own(x), fixed(net, x.shape, device)(x))
    assert exe.counts.kept <= 4 and exe.counts.in_parts > 0


@pytest.mark.together(2)
def test_pictures_of_any_size(device: str) -> None:
    """What is no batch has a program of its own from the first call on."""
    height, width = md.Dim("height", 8, 24, multiple=4), md.Dim("width", 7, 19)
    net = network()
    exe = named(net, (BATCH, 3, height, width), device=device, keep=3, background=False)
    shapes = [(1, 3, 8, 7), (2, 3, 12, 19), (5, 3, 24, 11), (1, 3, 8, 7), (2, 3, 12, 19)]
    for shape in shapes if device == "reference" else shapes[:2]:
        x = numbers(*shape)
        np.testing.assert_array_equal(exe(x), fixed(net, shape, device)(x))
    counts = exe.counts
    assert counts.kept <= 3 and counts.kept + counts.dropped == counts.compiled
    assert counts.compiled <= len(shapes) and counts.in_parts == 0


@pytest.mark.parametrize("count", [150, pytest.param(1000, marks=pytest.mark.full)])
def test_random_sizes_are_right_and_bounded(count: int) -> None:
    """Of 400 that might all come."""
    batch, length = md.Dim("batch", 1, 20), md.Dim("length", 1, 20)
    exe = named(L.ReLU(), (batch, length), device="reference", keep=5)
    random = np.random.default_rng(0)
    for _ in range(count):
        x = random.standard_normal(random.integers(1, 21, 2).tolist()).astype(np.float32)
        np.testing.assert_array_equal(exe(x), np.maximum(x, 0))
        assert exe.counts.kept <= 5
    exe.wait()
    assert exe.counts.kept == 5 and exe.counts.dropped > 5
    batches = exe._batches
    kept = exe._kept._requests, exe._ready, batches._parts, batches._same_code, exe._failed
    assert all(len(each) <= 4096 for each in kept) and len(batches._row_wise) <= 16


def test_many_sizes_leave_nothing_behind() -> None:
    """Each once: none gets a program, and what is counted is bounded."""
    exe = named(L.ReLU(), (md.Dim("n", 1, 100_000), 1), device="reference", keep=2)
    row = np.ones((100_000, 1), np.float32)
    for rows in range(2, 6_000, 2):
        with exe._lock:
            exe._kept.ask((rows,))
    for rows in (99_999, 5_001, 77):
        np.testing.assert_array_equal(exe(row[:rows]), row[:rows])
    exe.wait()
    assert exe.counts.compiled <= 4 and exe.counts.kept <= 2
    assert len(exe._kept._requests) <= 1024


def test_a_size_that_comes_again_gets_its_own_program() -> None:
    exe = named(network(), (BATCH, 3, 8, 8), device="reference", keep=2)
    x, y = numbers(2, 3, 8, 8), numbers(3, 3, 8, 8)
    exe(x)
    exe.wait()
    assert (exe.counts.compiled, exe.counts.in_parts) == (1, 1)
    exe(x)
    exe.wait()
    assert (exe.counts.compiled, exe.counts.in_parts) == (2, 2)
    for _ in range(3):
        exe(x)
    assert exe.counts.in_parts == 2
    exe(y)
    exe(y)
    exe.wait()
    assert exe.counts.compiled == 2, "the one that is used more must not go"
    for _ in range(20):
        exe(y)
    exe.wait()
    counts = exe.counts
    assert (counts.compiled, counts.dropped, counts.kept) == (3, 1, 2)


def test_many_parts_become_few() -> None:
    """A batch of many parts has a program made that other batches are put together of, once."""
    exe = named(network(), (BATCH, 3, 8, 8), device="reference")
    for batch in (23, 31, 6):
        exe(numbers(batch, 3, 8, 8))
        exe.wait()
    assert [key for key, _ in exe._kept] == [(1,), (16,), (4,)]
    split = exe._in_parts((38,))
    assert split is not None and len(split.parts) <= 5


def test_memory_is_bounded_by_bytes() -> None:
    net = network()
    one = named(net, (BATCH, 3, 8, 8), device="reference", background=False)
    one.at(batch=40)
    room = one.counts.run_bytes
    exe = named(net, (BATCH, 3, 8, 8), device="reference", background=False, keep_bytes=room)
    for batch in (40, 39, 38, 37):
        exe(numbers(batch, 3, 8, 8))
        assert exe.counts.run_bytes <= room
    assert exe.counts.kept == 2 and exe.counts.dropped == 3


def test_without_background_each_size_has_its_own_program_at_once() -> None:
    exe = named(network(), (BATCH, 3, 8, 8), device="reference", background=False)
    exe(numbers(5, 3, 8, 8))
    assert (exe.counts.compiled, exe.counts.in_parts) == (2, 0)
    assert threading.active_count() < 20


def test_warm_and_at() -> None:
    exe = named(network(), (BATCH, 3, 8, 8), device="reference")
    exe.warm([4, {"batch": 7}, 4])
    assert exe.counts.compiled == 3
    assert exe.at(batch=7).interface.inputs[0].shape == (7, 3, 8, 8)
    exe(numbers(7, 3, 8, 8))
    exe.wait()
    assert (exe.counts.compiled, exe.counts.in_parts) == (3, 0)


def test_a_compiled_size_can_be_saved(tmp_path: Any) -> None:
    if (reason := unavailable("cpu")) is not None:
        pytest.skip(reason)
    exe = named(network(), (BATCH, 3, 8, 8), device="cpu")
    exe.at(batch=3).save(tmp_path / "net.mdx")
    x = numbers(3, 3, 8, 8)
    np.testing.assert_array_equal(md.load(tmp_path / "net.mdx")(x), exe(x))


class Scaled(md.Layer):
    """Its code looks at how many rows there are."""

    def forward(self, x: Any) -> Any:
        return x * float(x.shape[0])


class Large(md.Layer):
    """Its code does something else for some sizes between the least and the most."""

    def forward(self, x: Any) -> Any:
        return x * 2.0 if x.shape[0] in (1, 2, 9) else x * 3.0 if x.shape[0] == 5 else x * 2.0


def test_code_that_looks_at_the_batch() -> None:
    exe = named(Scaled(), (md.Dim("n", 1, 9), 3), device="reference")
    assert exe.why_not_parts is not None and "x * 9" not in exe.explain()
    for rows in (4, 7, 4):
        x = numbers(rows, 3)
        np.testing.assert_array_equal(exe(x), x * rows)
    exe = named(Large(), (md.Dim("n", 1, 9), 3), device="reference")
    assert exe.why_not_parts is None
    for rows in (4, 5, 5, 9):
        x = numbers(rows, 3)
        np.testing.assert_array_equal(exe(x), x * (3 if rows == 5 else 2))
    assert exe.counts.in_parts == 2


class Centered(md.Layer):
    """Each row depends on all others."""

    def forward(self, x: Any) -> Any:
        return x - x.mean((0,), keepdims=True)


@pytest.mark.together(2)
def test_a_network_that_joins_rows(device: str) -> None:
    exe = named(Centered(), (md.Dim("n", 1, 9), 4), device=device)
    assert "mixes rows" in str(exe.why_not_parts)
    for rows in (3, 9, 5):
        x = numbers(rows, 4)
        np.testing.assert_allclose(exe(x), x - x.mean(0), rtol=1e-5, atol=1e-6)
    assert "batches are not computed in parts: " in exe.explain()


class Two(md.Layer):
    """Results with rows and one without."""

    def forward(self, x: Any, scale: Any) -> Any:
        return {"scaled": x * scale, "twice": scale + scale}


@pytest.mark.together(2)
def test_several_inputs_and_outputs(device: str) -> None:
    exe = named(Two(), [(md.Dim("n", 2, 9), 3), (1, 3)], device=device)
    assert exe.why_not_parts is None
    x, scale = numbers(7, 3), numbers(1, 3)
    for given in (exe(x, scale), exe(input1=scale, input0=x)):
        np.testing.assert_array_equal(given["scaled"], x * scale)
        np.testing.assert_array_equal(given["twice"], scale + scale)
    out = [np.empty((7, 3), np.float32), np.empty((1, 3), np.float32)]
    assert exe(x, scale, out=out) is out
    np.testing.assert_array_equal(out[0], x * scale)
    assert exe.counts.in_parts >= 2
    with pytest.raises(GraphError, match=r"^out\[0\] is float32\[6, 3\]; valid is a writable"):
        exe(x, scale, out=[np.empty((6, 3), np.float32), out[1]])


def test_results_may_be_written_over_the_input() -> None:
    """Parts that overlap read rows that others have written."""
    exe = named(L.Sequential(L.LeakyReLU(0.5)), (md.Dim("n", 4, 9), 3), device="reference")
    x = numbers(7, 3)
    wanted = np.where(x > 0, x, x * np.float32(0.5))
    exe(x, out=x)
    assert exe.counts.in_parts == 1
    np.testing.assert_array_equal(x, wanted)


def test_lists_and_half_precision_and_bad_dtypes() -> None:
    exe = named(L.ReLU(), (md.Dim("n", 1, 9), 2), device="reference")
    np.testing.assert_array_equal(exe([[1.0, -2.0]] * 3), [[1.0, 0.0]] * 3)
    x = numbers(5, 2).astype(np.float16)
    np.testing.assert_array_equal(exe(x), np.maximum(x, 0).astype(np.float32))
    with pytest.raises(GraphError, match=r"^input 'input' has dtype int64; valid is float32"):
        exe(np.ones((5, 2), np.int64))


def test_weights_that_changed_since_are_told() -> None:
    net = network()
    exe = named(net, (BATCH, 3, 8, 8), device="reference", background=False)
    x = numbers(1, 3, 8, 8)
    before = exe(x)
    net.initialize(7)
    np.testing.assert_array_equal(exe(x), before)
    with pytest.raises(GraphError, match="has other numbers than when it was compiled"):
        exe(numbers(2, 3, 8, 8))


@pytest.mark.together(2)
def test_states_are_those_of_all_sizes(device: str) -> None:
    net, store = network(), md.Store()
    exe = named(net, (BATCH, 3, 8, 8), device=device, store=store)
    x = numbers(6, 3, 8, 8)
    exe.warm([6])
    before = exe(x)
    store["6.bias"] = store["6.bias"] + 1
    for rows in (6, 1, 5):
        np.testing.assert_allclose(exe(x[:rows]), before[:rows] + 1, rtol=1e-4, atol=1e-5)
    assert exe.store is store


def test_what_cannot_be_compiled_in_the_background_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    exe = named(network(), (BATCH, 3, 8, 8), device="reference")
    x = numbers(6, 3, 8, 8)

    def fail(*_: Any) -> Executable:
        raise CompileError("the disk is full")

    source = exe._source
    monkeypatch.setattr(exe, "_source", type(source)(**{**vars(source), "compile": fail}))
    first = exe(x)
    for _ in range(4):
        np.testing.assert_array_equal(exe(x), first)
        exe.wait()
    assert caplog.text.count("no program for sizes (6,): the disk is full") == 1
    assert "note: sizes (6,): CompileError: the disk is full" in exe.explain()


def test_threads_call_at_once(device: str) -> None:
    net = network()
    exe = named(net, (BATCH, 3, 8, 8), device=device, keep=3)
    wrong: list[int] = []

    def call(seed: int) -> None:
        random = np.random.default_rng(seed)
        for batch in random.choice([1, 2, 5, 8], 10).tolist():
            x = numbers(batch, 3, 8, 8, seed=seed)
            if not np.allclose(exe(x), exact[seed, batch], rtol=1e-4, atol=1e-5):
                wrong.append(batch)

    exact = {
        (seed, batch): expected(net, numbers(batch, 3, 8, 8, seed=seed))
        for seed in range(2)
        for batch in (1, 2, 5, 8)
    }
    threads = [threading.Thread(target=call, args=(seed,)) for seed in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    exe.wait()
    assert not wrong and exe.counts.kept <= 3


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_child_of_a_fork_goes_on() -> None:
    exe = named(network(), (BATCH, 3, 8, 8), device="reference")
    x = numbers(4, 3, 8, 8)
    wanted = exe(x)
    exe(x)
    exe.wait()
    child = os.fork()
    if child == 0:  # pragma: no cover (another process)
        fine = False
        try:
            y = numbers(5, 3, 8, 8)
            exe(y)
            exe(y)
            exe.wait()
            fine = np.allclose(exe(x), wanted, rtol=1e-5) and exe.counts.compiled == 3
        finally:
            os._exit(0 if fine else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def test_tuning_goes_on_in_the_background() -> None:
    if (reason := unavailable("cpu")) is not None:
        pytest.skip(reason)
    exe = named(Centered(), (md.Dim("n", 1, 9), 4), device="cpu", tune=True)
    x = numbers(3, 4)
    first = exe(x)
    exe.wait()
    assert "tuned in the background" in exe.explain()
    np.testing.assert_allclose(exe(x), first, rtol=1e-5, atol=1e-6)


def test_what_is_told_of_it() -> None:
    exe = named(network(), (BATCH, 3, 8, 8), device="reference")
    exe(numbers(2, 3, 8, 8))
    text = exe.explain()
    assert text.startswith(
        "DynamicExecutable of Sequential on reference in float32: float32(batch, 3, 8, 8); "
        "batch 1 to 40\n1 programs of at most 8, 1 compiled, 0 dropped; memory of runs "
    )
    assert "\nbatch=1 " in text and "compiled at first" in text
    assert "\n1 calls of batches without a program were computed in parts\n" in text
    assert [each.shape for each in exe.random_inputs(batch=3)] == [(3, 3, 8, 8)]
