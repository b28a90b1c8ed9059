"""Plans on a GPU: arrays of CuPy, capture, overhead, memory of choices, bad input."""

from __future__ import annotations

import gc
import json
import time
from pathlib import Path
from typing import Any

import pytest

from minidnn.cudnn import workspace as shared_workspace
from minidnn.cudnn.graph import Constraints, Graph, planner, properties_json
from minidnn.cudnn.graph.descriptor import counts
from minidnn.cudnn.graph.plan import _restored
from minidnn.errors import GraphError, MiniDNNWarning, OutOfMemoryError, UnsupportedError

pytestmark = pytest.mark.gpu


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of its own for what is remembered."""
    monkeypatch.setenv("MINIDNN_CACHE", str(tmp_path))
    planner.forget()
    return tmp_path


def small(**tensor: Any) -> Graph:
    g = Graph()
    x = g.tensor((2, 16, 8, 8), "float32", name="x", **tensor)
    w = g.tensor((8, 16, 3, 3), "float32", name="w")
    g.convolution(x, w, padding=1)
    return g


def data(seed: int = 0) -> tuple[Any, Any]:
    import cupy

    rng = cupy.random.RandomState(seed)
    x = rng.standard_normal((2, 16, 8, 8), dtype=cupy.float32)
    return x, rng.standard_normal((8, 16, 3, 3), dtype=cupy.float32)


def test_cupy_arrays_in_and_out(cache: Path) -> None:
    import cupy
    import torch

    x, w = data()
    y = small().build()(x, w)
    assert isinstance(y, cupy.ndarray)
    wanted = torch.nn.functional.conv2d(
        torch.from_dlpack(x).double(), torch.from_dlpack(w).double(), padding=1
    )
    assert float((torch.from_dlpack(y).double() - wanted).norm() / wanted.norm()) < 2e-6


def test_measured_plan_is_remembered_by_engine_and_knobs(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from minidnn.cudnn.graph import planner

    first = small().build()
    assert first.milliseconds is not None and first.milliseconds > 0
    (file,) = cache.rglob("*.json")
    entry = json.loads(file.read_text())
    assert entry["ranked"][0]["engine"] == first.config.engine
    planner.forget()

    def no_measuring(*_: object) -> None:
        raise AssertionError("measured again")

    monkeypatch.setattr(planner, "_measure", no_measuring)
    assert small().build().config == first.config


def test_unsupported_is_remembered(cache: Path) -> None:
    g = Graph()
    x = g.tensor((2, 16, 8, 8), "float64")
    g.pointwise("gelu", g.convolution(x, g.tensor((8, 16, 3, 3), "float64"), padding=1))
    with pytest.raises(UnsupportedError, match="cuDNN has no engine for"):
        g.build()
    (file,) = cache.rglob("*.json")
    assert json.loads(file.read_text())["ranked"] == []
    with pytest.raises(UnsupportedError, match="cuDNN has no engine for"):
        g.build()


def test_capture_and_replay(cache: Path) -> None:
    import cupy

    x, w = data()
    plan = small().build(choose="heuristic")
    bound = plan.bind(x, w)
    bound()
    wanted = bound.outputs[0].copy()
    bound.outputs[0].fill(cupy.nan)
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    with stream:
        stream.begin_capture()
        bound()
        graph = stream.end_capture()
        assert cupy.isnan(bound.outputs[0]).all()
        graph.launch(stream)
        stream.synchronize()
    cupy.testing.assert_array_equal(bound.outputs[0], wanted)
    x *= 2
    cupy.cuda.Device().synchronize()
    graph.launch(stream)
    stream.synchronize()
    cupy.testing.assert_allclose(bound.outputs[0], 2 * wanted, rtol=1e-5, atol=1e-5)


def test_overhead_of_a_prepared_plan_is_below_5_us() -> None:
    import cupy

    from minidnn.cudnn import library
    from minidnn.cudnn.handle import current_handle

    x, w = data()
    whole = small().build(choose="heuristic")
    bound = whole.bind(x, w)
    bare = library.load().cudnnBackendExecute
    handle, plan, pack = current_handle(), bound.plan._descriptor.pointer, bound._pack_pointer

    def per_call(run: Any) -> float:
        best = float("inf")
        for _ in range(20):
            cupy.cuda.Device().synchronize()
            begin = time.perf_counter()
            for _ in range(100):
                run()
            best = min(best, time.perf_counter() - begin)
        return best / 100 * 1e6

    raw = per_call(lambda: bare(handle, plan, pack))
    ours = per_call(bound)
    full = per_call(lambda: whole(x, w, out=bound.outputs[0]))
    print(f"bare {raw:.2f} us, bound {ours:.2f} us, checked call {full:.2f} us")
    assert ours - raw < 5


def test_arrays_stay_alive_with_the_bound_plan() -> None:
    import cupy

    x, w = data()
    bound = small().build(choose="heuristic").bind(x, w)
    bound()
    wanted = bound.outputs[0].copy()
    del x, w
    junk = [cupy.full((2, 16, 8, 8), cupy.nan, cupy.float32) for _ in range(8)]
    bound()
    cupy.testing.assert_array_equal(bound.outputs[0], wanted)
    del junk


def test_wrong_arrays_are_refused_by_name() -> None:
    x, w = data()
    plan = small().build(choose="heuristic")
    with pytest.raises(GraphError, match=r"x has dtype float64; the plan was built for float32"):
        plan(x.astype("float64"), w)
    with pytest.raises(GraphError, match=r"x has shape \(2, 16, 8, 7\)"):
        plan(x[..., :7], w)
    with pytest.raises(GraphError, match=r"x has strides"):
        plan(x.transpose(0, 1, 3, 2), w)
    with pytest.raises(GraphError, match=r"w is a numpy.ndarray, not an array on a GPU"):
        plan(x, w.get())
    with pytest.raises(GraphError, match=r"1 arrays given; the plan takes x, w"):
        plan(x)
    flat = x.ravel()[1:]
    shifted = flat[: 1 * 16 * 8 * 8].reshape(1, 16, 8, 8)
    g = Graph()
    t = g.tensor((1, 16, 8, 8), "float32", name="t")
    g.convolution(t, g.tensor(w), padding=1)
    with pytest.raises(GraphError, match=r"t begins at 0x\w+, which is not a multiple of 16"):
        g.build(choose="heuristic")(shifted, w)


def test_closed_plan_says_so() -> None:
    x, w = data()
    plan = small().build(choose="heuristic")
    bound = plan.bind(x, w)
    plan.close()
    with pytest.raises(ValueError, match="is closed"):
        bound()
    with pytest.raises(ValueError, match="is closed"):
        plan(x, w)


def test_workspace_limit_and_shortage(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    g = Graph()
    x = g.tensor((64, 64, 56, 56), "float32")
    g.convolution(x, g.tensor((64, 64, 3, 3), "float32"), padding=1)
    assert all(plan.workspace == 0 for plan in g.plans(workspace_limit=0))
    assert max(plan.workspace for plan in g.plans()) > 0
    chosen = g.build()
    if chosen.workspace == 0:
        pytest.skip("the fastest plan needs no workspace")
    original = shared_workspace.acquire

    def short(size: int) -> Any:
        if size >= chosen.workspace:
            raise OutOfMemoryError("none left")
        return original(size)

    monkeypatch.setattr(shared_workspace, "acquire", short)
    with pytest.warns(MiniDNNWarning, match="the next plan is taken instead"):
        other = g.build()
    assert other.workspace < chosen.workspace


def test_every_descriptor_is_destroyed(cache: Path) -> None:
    x, w = data()
    small().build()(x, w)
    gc.collect()  # what other tests left must not be counted here
    created, destroyed = counts()
    for _ in range(20):
        plan = small().build(constraints=Constraints())
        plan(x, w)
        plan.close()
    del plan
    after_created, after_destroyed = counts()
    assert after_created > created
    assert after_created - after_destroyed == created - destroyed


def test_device_properties_can_be_carried_away() -> None:
    from minidnn.cudnn.graph import described

    text = properties_json()
    assert json.loads(text)["multiProcessorCount"] > 0
    assert small().plans(target=described(text))


def test_plan_outlives_the_handle_it_was_built_with(cache: Path) -> None:
    import cupy

    from minidnn.cudnn.handle import reset_handles

    x, w = data()
    plan = small().build(choose="heuristic")
    bound = plan.bind(x, w)
    bound()
    wanted = bound.outputs[0].copy()
    reset_handles()
    bound.outputs[0].fill(cupy.nan)
    bound()
    cupy.testing.assert_array_equal(bound.outputs[0], wanted)
    cupy.testing.assert_array_equal(plan(x, w), wanted)


def test_threads_share_a_plan_on_streams_of_their_own(cache: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    import cupy

    inputs = [data(seed) for seed in range(8)]
    plan = small().build(choose="heuristic")
    wanted = [plan(x, w).copy() for x, w in inputs]
    cupy.cuda.Device().synchronize()

    def work(number: int) -> Any:
        x, w = inputs[number % 8]
        with cupy.cuda.Stream(non_blocking=True) as stream:
            y = plan(x, w)
            stream.synchronize()
        return y

    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(work, range(64)))
    for number, y in enumerate(results):
        cupy.testing.assert_array_equal(y, wanted[number % 8])


def test_bfloat16_arrays_of_cupy() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    import cupy

    x, w = (array.astype(cupy.dtype(ml_dtypes.bfloat16)) for array in data())
    g = Graph()
    g.convolution(*g.tensors(x, w), padding=1)
    y = g.build(choose="heuristic")(x, w)
    assert y.dtype.name == "bfloat16"
    g = Graph()
    exact = [array.astype(cupy.float32) for array in (x, w)]
    g.convolution(*g.tensors(*exact), padding=1)
    wanted = g.build(choose="heuristic")(*exact)
    difference = cupy.linalg.norm((y.astype(cupy.float32) - wanted).ravel())
    assert difference < 1e-2 * cupy.linalg.norm(wanted.ravel())


def test_compiled_plans_read_from_disk_give_the_same_bits(cache: Path) -> None:
    import cupy

    g = Graph()
    x = g.tensor((2, 64, 14, 14), "float16", layout="NHWC", name="x")
    w = g.tensor((64, 64, 3, 3), "float16", layout="NHWC", name="w")
    g.output(g.relu(g.convolution(x, w, padding=1)), "float16", layout="NHWC")
    plans = [plan for plan in g.plans() if plan.proposal is not None and plan.proposal.compiles]
    assert plans, "no engine compiles a fused graph"
    rng = cupy.random.RandomState(0)

    def random(*shape: int) -> Any:
        planar = rng.standard_normal(shape, dtype=cupy.float32).astype(cupy.float16)
        return cupy.ascontiguousarray(planar.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)

    arrays = random(2, 64, 14, 14), random(64, 64, 3, 3)
    for plan in plans[:3]:
        plan.keep()
        found = _restored(plan.spec, plan.target, plan.config)
        assert found is not None
        found.close()
        begin = time.perf_counter()
        again = g.build(choose=plan.config)
        assert time.perf_counter() - begin < 0.25
        assert again.workspace == plan.workspace
        assert again(*arrays).tobytes() == plan(*arrays).tobytes()
