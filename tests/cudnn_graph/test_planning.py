"""Planning and running against a fake library: bookkeeping, constraints, memory, bad arrays."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from minidnn.cudnn.errors import CuDNNError
from minidnn.cudnn.graph import EngineConfig, Graph, arrays, plan, planner
from minidnn.cudnn.graph.descriptor import BackendDescriptor, counts
from minidnn.cudnn.graph.enums import BehaviorNote, NumericalNote
from minidnn.cudnn.graph.enums import DescriptorType as D
from minidnn.errors import (
    DeviceError,
    GraphError,
    MiniDNNWarning,
    OutOfMemoryError,
    UnsupportedError,
)
from tests.cudnn_graph.fake import FakeArray, FakeEngine, FakeLibrary, FakeMemory

Install = Callable[..., FakeLibrary]
TENSOR_CORE = int(NumericalNote.CUDNN_NUMERICAL_NOTE_TENSOR_CORE)
RANDOM = int(NumericalNote.CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC)
WINOGRAD = int(NumericalNote.CUDNN_NUMERICAL_NOTE_WINOGRAD)
WINOGRAD_4 = int(NumericalNote.CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_4x4)
NARROW = int(NumericalNote.CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS)
NARROW_SUM = int(NumericalNote.CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION)
CUBLASLT = int(BehaviorNote.CUDNN_BEHAVIOR_NOTE_CUBLASLT_DEPENDENCY)
COMPILES = int(BehaviorNote.CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION)
X, W, Y = (2, 8, 6, 6), (4, 8, 3, 3), (2, 4, 4, 4)


def graph(dtype: str = "float32") -> Graph:
    g = Graph()
    g.convolution(g.tensor(X, dtype, name="x"), g.tensor(W, dtype, name="w"))
    return g


def data(**changes: Any) -> dict[str, FakeArray]:
    made = {
        "x": FakeArray(X, pointer=0x10000),
        "w": FakeArray(W, pointer=0x20000),
        "y": FakeArray(Y, pointer=0x30000),
    }
    made.update(changes)
    return made


def engines_of(g: Graph, **constraints: Any) -> list[int]:
    return [p.config.engine for p in g.plans(**constraints)]


def test_engines_that_write_wrong_sums_of_bytes_are_left_out(fake: Install) -> None:
    fake(*(FakeEngine() for _ in range(3)))
    for dtype, engines in (("int32", [1, 2]), ("float32", [0, 1, 2])):
        g = Graph()
        g.output(g.convolution(g.tensor(X, "int8"), g.tensor(W, "int8")), dtype)
        assert engines_of(g) == engines


@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 64])
def test_engines_may_have_any_number_of_knobs(fake: Install, count: int) -> None:
    knobs = tuple((kind, kind + 1) for kind in range(1, count + 1))
    library = fake(*(FakeEngine(knobs=knobs) for _ in range(40)))
    plans = graph().plans(defaults=False)
    assert [plan.config for plan in plans] == [EngineConfig(i, knobs) for i in range(40)]
    del plans
    assert not library.alive


def test_every_descriptor_is_destroyed_over_many_uses(fake: Install, measured: Any) -> None:
    library = fake(FakeEngine(knobs=((2, 1),)), FakeEngine(workspace=64, lists=("A", "B")))
    measured({0: 2.0, 1: 1.0})
    gc.collect()  # what other tests left must not be counted here
    created, destroyed = counts()
    for _ in range(50):
        arrays_given = data()
        with graph().build() as made:
            made(arrays_given["x"], arrays_given["w"], out=arrays_given["y"])
    assert library.alive == {}
    after = counts()
    assert after[0] - created == after[1] - destroyed == library.created > 500


def test_descriptors_die_with_their_last_reference(fake: Install) -> None:
    library = fake(FakeEngine())
    gc.disable()  # reference counting alone has to do it
    try:
        made = graph().build(choose="heuristic")
        bound = made.bind(data()["x"], data()["w"], out=data()["y"])
        assert library.alive
        del made
        bound()
        del bound
        assert library.alive == {}
    finally:
        gc.enable()


def test_descriptor_is_a_context_manager_and_closes_once(fake: Install) -> None:
    library = fake()
    with BackendDescriptor(D.CUDNN_BACKEND_TENSOR_DESCRIPTOR) as one:
        assert len(library.alive) == 1
    one.close()
    assert library.alive == {}
    with pytest.raises(ValueError, match="CUDNN_BACKEND_TENSOR_DESCRIPTOR is closed"):
        one.finalize()


def test_failing_attribute_names_descriptor_and_attribute(
    fake: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = fake(FakeEngine())
    monkeypatch.setattr(library, "cudnnBackendSetAttribute", lambda *_: 2010)
    library.message = "attribute of another type"
    with pytest.raises(CuDNNError) as caught:
        graph().build(choose="heuristic")
    text = str(caught.value)
    for part in (
        "CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE",
        "attribute of another type",
        "CUDNN_BACKEND_TENSOR_DESCRIPTOR",
        "CUDNN_ATTR_TENSOR_UNIQUE_ID",
    ):
        assert part in text
    caught.value.__traceback__ = None
    del caught
    gc.collect()
    assert library.alive == {}


def test_proposals_come_list_by_list_without_duplicates(fake: Install) -> None:
    fake(
        FakeEngine(lists=("fallback",)),
        FakeEngine(lists=("B", "A"), knobs=((2, 3), (1, 0))),
        FakeEngine(lists=()),
        FakeEngine(lists=("A",), builds=False),
    )
    found = graph().plans()
    assert [(p.config.engine, p.proposal.source) for p in found if p.proposal] == [
        (1, "A"),
        (0, "fallback"),
        (1, "default"),
        (2, "default"),
    ]
    assert found[0].config == EngineConfig(1, ((1, 0), (2, 3)))
    assert str(found[0].config) == "eng1_k1=0_k2=3"
    assert engines_of(graph(), defaults=False) == [1, 0]


@pytest.mark.parametrize(
    ("note", "allowed_by"),
    [
        (TENSOR_CORE, {"tf32": True}),
        (RANDOM, {}),
        (WINOGRAD, {}),
        (NARROW, None),
        (NARROW_SUM, None),
    ],
)
def test_numerical_notes(fake: Install, note: int, allowed_by: dict[str, Any] | None) -> None:
    fake(FakeEngine(), FakeEngine(numerical=(note,)))
    strict = {"deterministic": True, "accuracy": "high"}
    assert engines_of(graph(), **strict) == [0]
    if allowed_by is None:
        assert engines_of(graph(), tf32=True) == [0]
    else:
        assert engines_of(graph(), **allowed_by) == [0, 1]


def test_float32_excludes_cublaslt_which_may_round_silently(fake: Install) -> None:
    fake(FakeEngine(), FakeEngine(behavior=(CUBLASLT,)))
    assert engines_of(graph()) == [0]
    assert engines_of(graph(), tf32=True) == [0, 1]
    assert engines_of(graph("float16")) == [0, 1]


def test_exact_float32_has_no_coarse_winograd(fake: Install) -> None:
    """5 x 5 Winograd is less accurate than TF32; the fixed functions leave it out too."""
    fake(FakeEngine(numerical=(WINOGRAD,)), FakeEngine(numerical=(WINOGRAD_4,)), FakeEngine())
    five = Graph()
    five.convolution(five.tensor(X, "float32"), five.tensor((4, 8, 5, 5), "float32"))
    assert engines_of(five) == [2]
    assert engines_of(five, tf32=True) == engines_of(graph()) == [0, 1, 2]


def test_winograd_without_a_note_is_known(fake: Install) -> None:
    """Engine 17 of the filter's gradient is Winograd, and cuDNN 9.19 does not say so."""
    fake(*[FakeEngine() for _ in range(18)])

    def filter_gradient(size: int) -> Graph:
        g = Graph()
        dy = g.tensor((2, 4, 7 - size, 7 - size), "float32")
        g.convolution_backward_filter(dy, g.tensor(X, "float32"), (4, 8, size, size))
        return g

    assert 17 not in engines_of(filter_gradient(5))
    assert 17 in engines_of(filter_gradient(5), tf32=True)
    assert 17 in engines_of(filter_gradient(3))
    assert 17 not in engines_of(filter_gradient(3), accuracy="high")
    assert 17 in engines_of(graph(), accuracy="high")  # another engine goes by that number


def test_slow_compilers_are_a_last_resort(fake: Install) -> None:
    slow = FakeEngine(behavior=(COMPILES,), lists=())
    fake(FakeEngine(), slow)
    assert engines_of(graph("float16")) == [0]
    fake(FakeEngine(builds=False), slow)
    assert engines_of(graph("float16")) == [1]


def test_bfloat16_pooling_avoids_the_engine_that_writes_out_of_bounds(fake: Install) -> None:
    fake(*[FakeEngine()] * 5)

    def pooled(dtype: str) -> Graph:
        g = Graph()
        g.pool("max", g.tensor((1, 8, 4, 4), dtype, layout="NHWC"), 2)
        return g

    assert engines_of(pooled("bfloat16")) == [0, 1, 2, 4]
    assert engines_of(pooled("float16")) == [0, 1, 2, 3, 4]


def test_workspace_limit(fake: Install) -> None:
    fake(FakeEngine(workspace=100), FakeEngine(workspace=10))
    assert engines_of(graph(), workspace_limit=99) == [1]


def test_fastest_is_measured_once_and_remembered_on_disk(
    fake: Install, measured: Any, tmp_path: Path
) -> None:
    fake(FakeEngine(), FakeEngine(knobs=((5, 6),)), FakeEngine())
    seen = measured({0: 3.0, 1: 1.0, 2: None})
    first = graph().build()
    assert first.config == EngineConfig(1, ((5, 6),))
    assert first.milliseconds == 1.0
    (file,) = tmp_path.rglob("*.json")
    entry = json.loads(file.read_text())
    assert entry["device"] == "fake"
    assert entry["ranked"][0] == {
        "engine": 1,
        "knobs": [[5, 6]],
        "milliseconds": 1.0,
        "workspace": 0,
    }
    planner.forget()
    assert graph().build().config == first.config
    assert len(seen) == 1
    graph().build(deterministic=True)
    assert len(seen) == 2  # another key


def test_unsupported_is_remembered(fake: Install, measured: Any, tmp_path: Path) -> None:
    library = fake(FakeEngine())
    library.refuse_graphs = True
    seen = measured({})
    match = r"(?s)cuDNN has no engine for t2 = Convolution.*no such pattern"
    with pytest.raises(UnsupportedError, match=match):
        graph().build()
    made = library.created
    planner.forget()
    with pytest.raises(UnsupportedError, match=match):
        graph().build()
    assert library.created == made
    assert seen == []


def test_unreadable_entry_is_measured_again(
    fake: Install, measured: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake(FakeEngine())
    seen = measured({0: 1.0})
    monkeypatch.setattr(planner._store, "read", lambda _: b'{"ranked": [{"engine": "one"}]}')
    assert graph().build().config.engine == 0
    assert len(seen) == 1


def test_next_plan_is_taken_and_said_when_memory_is_short(
    fake: Install, measured: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake(FakeEngine(workspace=1000), FakeEngine(workspace=10))
    measured({0: 1.0, 1: 2.0})

    def short(size: int) -> Any:
        if size > 100:
            raise OutOfMemoryError(f"no room for {size} bytes")
        return arrays.allocate(size)

    monkeypatch.setattr(plan.shared_workspace, "acquire", short)
    with pytest.warns(MiniDNNWarning, match="no room for 1000 bytes; the next plan is taken"):
        assert graph().build().config.engine == 1
    monkeypatch.setattr(plan.shared_workspace, "acquire", lambda size: short(1000))
    with (
        pytest.warns(MiniDNNWarning),
        pytest.raises(OutOfMemoryError, match="no plan for t2 = Convolution"),
    ):
        graph().build()


def test_heuristic_takes_the_first_that_builds(fake: Install, tmp_path: Path) -> None:
    fake(FakeEngine(builds=False), FakeEngine(), FakeEngine())
    assert graph().build(choose="heuristic").config.engine == 1
    assert not list(tmp_path.rglob("*.json"))


def test_engine_by_hand(fake: Install) -> None:
    fake(FakeEngine(), FakeEngine())
    chosen = EngineConfig(1, ((2, 7),))
    assert graph().build(choose=chosen).config == chosen
    with pytest.raises(GraphError, match="choose 'best' is not valid; valid are 'measure'"):
        graph().build(choose="best")
    with pytest.raises(GraphError, match="'tf23' is no constraint; valid are tf32"):
        graph().build(tf23=True)


def test_execution_gets_addresses_and_workspace(fake: Install) -> None:
    library = fake(FakeEngine(workspace=64))
    made = graph().build(choose="heuristic")
    given = data()
    made(given["x"], given["w"], out=given["y"])
    made.bind(given["x"], given["w"], out=given["y"])()
    addresses = [0x10000, 0x20000, 0x30000]
    assert library.executed == [(0, addresses, 0x800000), (0, addresses, 0x900000)]


def test_variant_packs_are_reused_and_bounded(fake: Install) -> None:
    library = fake(FakeEngine())
    made = graph().build(choose="heuristic")
    given = data()
    made(given["x"], given["w"], out=given["y"])
    before = library.created
    made(given["x"], given["w"], out=given["y"])
    assert library.created == before
    for number in range(100):
        made(given["x"], given["w"], out=FakeArray(Y, pointer=0x40000 + 0x1000 * number))
    packs = [r for r in library.alive.values() if r.kind == D.CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR]
    assert len(packs) == 16


def test_failing_execution_explains_the_graph(fake: Install) -> None:
    library = fake(FakeEngine())
    made = graph().build(choose="heuristic")
    library.execute_status = 5000
    given = data()
    with pytest.raises(CuDNNError, match=r"(?s)EXECUTION_FAILED.*cudnnBackendExecute.*eng0"):
        made(given["x"], given["w"], out=given["y"])


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"x": FakeArray((2, 8, 6, 5))}, GraphError, r"x has shape \(2, 8, 6, 5\); the plan"),
        ({"w": FakeArray(W, "float16")}, GraphError, "w has dtype float16; the plan was built"),
        ({"x": FakeArray(X, strides=(1152, 4, 192, 32))}, GraphError, "x has strides .288, 1, 48"),
        ({"x": FakeArray(X, pointer=0x10004)}, GraphError, "not a multiple of 16"),
        ({"x": FakeArray(X, device=1)}, DeviceError, "x is on device 1; the plan was built on 0"),
        ({"x": [1.0]}, GraphError, "x is a builtins.list, not an array on a GPU"),
    ],
)
def test_wrong_arrays(
    fake: Install, change: dict[str, Any], error: type[Exception], message: str
) -> None:
    library = fake(FakeEngine())
    made = graph().build(choose="heuristic")
    given = data(**change)
    with pytest.raises(error, match=message):
        made(given["x"], given["w"], out=given["y"])
    assert library.executed == []


def test_strides_of_axes_of_size_one_do_not_matter(fake: Install) -> None:
    fake(FakeEngine())
    g = Graph()
    g.relu(g.tensor((2, 1, 3, 1), "float32"))
    made = g.build(choose="heuristic")
    made(FakeArray((2, 1, 3, 1), strides=(12, 999, 4, 77)), out=FakeArray((2, 1, 3, 1)))


def test_wrong_count_and_workspace(fake: Install) -> None:
    fake(FakeEngine(workspace=1 << 20))
    made = graph().build(choose="heuristic")
    given = data()
    with pytest.raises(GraphError, match="1 arrays given; the plan takes x, w"):
        made(given["x"])
    with pytest.raises(GraphError, match="out has 2 arrays; 1 are written"):
        made(given["x"], given["w"], out=[given["y"], given["y"]])
    with pytest.raises(GraphError, match="workspace has 2304 bytes; the plan needs 1048576"):
        made.bind(given["x"], given["w"], out=given["y"], workspace=given["x"])
    y, pretended = given["y"], FakeArray((1 << 18,), strides=(0,))
    with pytest.raises(GraphError, match=r"workspace of shape .* has strides \(0,\), not contig"):
        made.bind(given["x"], given["w"], out=y, workspace=pretended)
    elsewhere = FakeArray((1 << 18,), device=1)
    with pytest.raises(DeviceError, match="workspace is on device 1; the plan was built on 0"):
        made.bind(given["x"], given["w"], out=y, workspace=elsewhere)
    memory_elsewhere = FakeMemory(0x1000, 1 << 20)
    memory_elsewhere.device_id = 1
    with pytest.raises(DeviceError, match="workspace is on device 1"):
        made.bind(given["x"], given["w"], out=y, workspace=memory_elsewhere)


def test_closed_plan_and_other_device(fake: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    library = fake(FakeEngine())
    made = graph().build(choose="heuristic")
    given = data()
    bound = made.bind(given["x"], given["w"], out=given["y"])
    made.device = 3
    with pytest.raises(DeviceError, match=r"the current device is 0; .* was built on 3"):
        bound()
    made.device = 0
    made.close()
    with pytest.raises(ValueError, match="EXECUTION_PLAN_DESCRIPTOR is closed"):
        bound()
    assert library.executed == []


def test_bound_plan_keeps_its_arrays(fake: Install) -> None:
    import weakref

    fake(FakeEngine())
    given = data()
    alive = weakref.ref(given["x"])
    bound = graph().build(choose="heuristic").bind(given["x"], given["w"], out=given["y"])
    given.clear()
    assert alive() is not None
    del bound
    assert alive() is None


def test_few_of_those_that_compile_may_be_asked_for(fake: Install) -> None:
    compiles = FakeEngine(behavior=(COMPILES,))
    fake(compiles, FakeEngine(), compiles, FakeEngine())
    found = graph("float16").plans(most=3, most_compiled=1)
    assert [plan.config.engine for plan in found] == [0, 1, 3]
    found = graph("float16").plans(most=3)
    assert [plan.config.engine for plan in found] == [0, 1, 2]
    found = graph("float16").plans(most=3, compiles=True)
    assert [plan.config.engine for plan in found] == [0, 2]
    found = graph("float16").plans(most=3, most_compiled=1, compiles=False)
    assert [plan.config.engine for plan in found] == [1, 3]


def test_no_more_heuristics_are_asked_than_have_what_is_tried(fake: Install) -> None:
    compiles = FakeEngine(behavior=(COMPILES,))
    both, fallback = FakeEngine(lists=("A", "B")), FakeEngine(lists=("fallback",))
    library = fake(compiles, compiles, both, fallback)
    for most, expected, asked in (
        (2, [0, 1], ["A"]),
        (3, [0, 1, 2], ["A"]),
        (4, [0, 1, 2, 3], ["A", "B", "fallback"]),
    ):
        library.asked.clear()
        plans = graph("float16").plans(most=most, defaults=False)
        assert [plan.config.engine for plan in plans] == expected
        assert library.asked == asked
    library.asked.clear()
    few = graph("float16").plans(most=3, most_compiled=1, defaults=False)
    assert [plan.config.engine for plan in few] == [0, 2, 3]
    assert library.asked == ["A", "B", "fallback"]


def test_compiled_plans_are_read_from_disk(fake: Install, measured: Any, tmp_path: Path) -> None:
    """Those of the fastest engine, and of one that is asked for; not of engines that compile
    nothing, and not where the file is damaged."""
    library = fake(*(FakeEngine(behavior=behavior) for behavior in ((), (COMPILES,), (COMPILES,))))
    measured({0: 2.0, 1: 1.0, 2: 3.0})
    assert graph().build().config.engine == 1
    assert (library.built, library.restored) == ([0, 1, 2], [1])
    for engine in (2, 2, 1, 0, 0):
        graph().build(choose=EngineConfig(engine))
    assert (library.built[3:], library.restored) == ([2, 0, 0], [1, 2, 1])
    for file in (tmp_path / "cudnn_plan").rglob("*.json"):
        file.write_bytes(b"other")
    with pytest.warns(MiniDNNWarning, match="is damaged"):
        graph().build(choose=EngineConfig(2))
    assert library.built[6:] == [2]


def test_a_plan_that_cudnn_does_not_take_back_is_built_again(
    fake: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = fake(FakeEngine(behavior=(COMPILES,)))
    monkeypatch.setattr("tests.cudnn_graph.fake._TEXT", b"of an older library ")
    graph().build(choose=EngineConfig(0))
    monkeypatch.setattr("tests.cudnn_graph.fake._TEXT", b"plan of engine ")
    assert graph().build(choose=EngineConfig(0)).config.engine == 0
    assert (library.built, library.restored) == ([0, 0], [])
