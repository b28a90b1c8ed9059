"""Programs with states: several runs against the evaluator, stores that programs share."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import minidnn as md
from minidnn import layers as L
from minidnn.backends.reference import ReferenceBackend
from minidnn.errors import GraphError, UnsupportedError
from minidnn.graph import operators as ops
from minidnn.graph.evaluate import evaluate
from minidnn.graph.ir import Graph
from minidnn.graph.trace import Trace, apply, tracing
from minidnn.graph.types import TensorType
from minidnn.memory import Annotations, lifetimes, storage_roots, updates_in_place
from tests.states.build import BUILDERS, Build, graph_of, momentum, running_mean, state, swap

SHAPE = (2, 3, 4, 5)
BARE = Annotations()


def runs_like_the_evaluator(
    graph: Graph, device: str = "reference", error: float = 0.0, **options: object
) -> None:
    """Five runs: outputs and states are those of the evaluator after each, with its bits if no
    ``error`` is allowed."""
    exe = md.compile(graph, device=device, **options)  # type: ignore[call-overload]
    held: dict[str, np.ndarray] = {}
    random = np.random.default_rng(5)
    for _ in range(5):
        given = [random.standard_normal(v.shape).astype(np.float32) for v in graph.inputs]
        wanted = evaluate(graph, given, states=held)
        found = exe(*given)
        for one, other in zip(found if isinstance(found, tuple) else (found,), wanted, strict=True):
            np.testing.assert_allclose(one, other, error, error)
        assert exe.store is not None
        for name, array in held.items():
            np.testing.assert_allclose(exe.store[name], array, error, error)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("strategy", ["model", "layers", "unrestricted"])
@pytest.mark.parametrize("build", BUILDERS)
def test_several_runs(build: Build, strategy: str) -> None:
    runs_like_the_evaluator(graph_of(build), strategy=strategy)
    runs_like_the_evaluator(graph_of(build), strategy=strategy, store=md.Store(), interpret=True)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", range(40))
def test_random_graphs(seed: int) -> None:
    runs_like_the_evaluator(random_graph(seed), store=md.Store(), interpret=bool(seed % 2))


def random_graph(seed: int) -> Graph:
    """Element-wise nodes, windows, joins and views over states, some of which are updated."""
    random = np.random.default_rng(seed)
    with tracing("random") as trace:
        values = [trace.input(TensorType(SHAPE), "x")]
        states = [state(trace, f"s{i}", SHAPE) for i in range(int(random.integers(1, 5)))]
        values += states
        for _ in range(int(random.integers(1, 9))):
            one, other = (values[i] for i in random.integers(0, len(values), 2))
            values.append(_some_node(int(random.integers(6)), one, other))
        for s in states:
            if random.random() < 0.8:
                trace.update(s, values[random.integers(0, len(values))])
        outputs = [values[i] for i in random.integers(0, len(values), 2)]
    return trace.graph(outputs)


def _some_node(kind: int, one, other):
    match kind:
        case 0:
            return one + other
        case 1:
            return apply(ops.ReLU(), one)
        case 2:
            return apply(ops.MaxPool2d((3, 3), (1, 1), (1, 1)), one)
        case 3:
            joined = apply(ops.Concat(1), one, other)
            return apply(ops.Slice((0, 2, 0, 0), SHAPE, (1, 1, 1, 1)), joined)
        case 4:
            return apply(ops.Reshape(SHAPE[1:]), apply(ops.Flatten(), one))
    return one * 0.5 - other


def in_place(graph: Graph) -> list[tuple[str, str]]:
    return [(s.name, v.name) for v, s in updates_in_place(graph, BARE).items()]


def test_what_is_read_for_the_last_time_is_written_over() -> None:
    graph = graph_of(momentum)
    made = [v for v, s in updates_in_place(graph, BARE).items() if s.name == "w"]
    assert len(made) == 0, "the output reads the old weight after the new one is known"

    def build(trace: Trace, x):
        w = state(trace, "w", SHAPE)
        y = apply(ops.ReLU(), w)
        trace.update(w, w * 0.5 + x)
        return y

    graph = graph_of(build)
    ((_, value),) = in_place(graph)
    assert value == "add"
    root = storage_roots(graph, BARE)[graph.node("add").output]
    assert root is graph.states[0]
    assert [life.value.name for life in lifetimes(graph, BARE)] == ["mul"]


@pytest.mark.parametrize("why", ["view", "output", "shared", "window", "later", "broadcast"])
def test_what_is_not_written_over(why: str) -> None:
    def build(trace: Trace, x):
        w = state(trace, "w", SHAPE)
        match why:
            case "view":  # the value has no storage of its own
                trace.update(w, apply(ops.Reshape(SHAPE[1:]), x))
            case "output":
                new = w * 2.0
                trace.update(w, new)
                return [new]
            case "shared":
                new = w * 2.0
                trace.update(w, new)
                trace.update(state(trace, "v", SHAPE), new)
            case "window":  # it reads neighbours of what it writes
                trace.update(w, apply(ops.MaxPool2d((3, 3), (1, 1), (1, 1)), w))
            case "later":
                new = x * 2.0
                trace.update(w, new)
                return [w + new]
            case "broadcast":
                v = state(trace, "v", (1, 3, 1, 1))
                trace.update(w, w + v)
                trace.update(v, v + v)
                return [apply(ops.ReLU(), v)]
        return [apply(ops.ReLU(), x)]

    graph = graph_of(build)
    assert ("w", "w") not in in_place(graph)
    if why != "broadcast":
        assert in_place(graph) == []
    runs_like_the_evaluator(graph, strategy="layers")
    runs_like_the_evaluator(graph)


def test_what_a_state_becomes_is_kept_until_the_state_was_read() -> None:
    def build(trace: Trace, x):
        w = state(trace, "w", SHAPE)
        trace.update(w, x * 2.0)
        y = apply(ops.MaxPool2d((3, 3), (1, 1), (1, 1)), x * 3.0)
        return [apply(ops.MaxPool2d((3, 3), (1, 1), (1, 1)), y) + w]

    graph = graph_of(build)
    (life,) = [f for f in lifetimes(graph, BARE) if f.value is graph.updates[graph.states[0]]]
    assert life.last == len(graph.nodes) - 1


def test_programs_share_a_store() -> None:
    net = L.Sequential(L.Conv2d(3, 4, 3), L.BatchNorm2d(4)).initialize(1)
    store = md.Store()
    one = md.compile(net, (1, 3, 6, 6), device="reference", store=store)
    four = md.compile(net, (4, 3, 6, 6), device="reference", store=store)
    assert one.store is four.store is store
    assert list(store) == [name for name, _ in net.named_parameters() if "num_batches" not in name]
    x = np.random.default_rng(0).standard_normal((4, 3, 6, 6)).astype(np.float32)
    before = four(x)
    store["0.weight"] = 2 * store["0.weight"]
    store["0.bias"] = np.zeros(4)
    assert not np.array_equal(four(x), before)
    np.testing.assert_array_equal(one(x[1:2]), four(x)[1:2])
    net.load_state_dict({**net.state_dict(), **store})
    frozen = md.compile(net, (4, 3, 6, 6), device="reference")
    assert frozen.store is None
    np.testing.assert_allclose(frozen(x), four(x), rtol=1e-5, atol=1e-6)


def test_one_program_trains_what_another_reads() -> None:
    def reads(trace: Trace, x):
        return x * state(trace, "mean", (1, 3, 1, 1))

    store = md.Store()
    step = md.compile(graph_of(running_mean), device="reference", store=store)
    look = md.compile(graph_of(reads), device="reference", store=store)
    x = np.ones(SHAPE, np.float32)
    for _ in range(3):
        step(x)
        np.testing.assert_array_equal(look(x)[:1, :, :1, :1], store["mean"])
    count = int(store["count"])
    step(x)
    assert int(store["count"]) == count + 1


def test_a_run_that_fails_leaves_the_store_as_it_was() -> None:
    def build(trace: Trace, x):
        w = state(trace, "w", SHAPE)
        trace.update(w, w + x)
        return [apply(Failing(), x)]

    class Failing(ops.MaxPool2d):
        def __init__(self) -> None:
            super().__init__((3, 3), (1, 1), (1, 1))

        def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
            if np.isnan(inputs[0]).any():
                raise ArithmeticError("planted")
            return super().reference(*inputs)

    exe = md.compile(graph_of(build), device="reference", strategy="layers")
    assert exe.store is not None
    exe(np.ones(SHAPE, np.float32))
    before = exe.store["w"].copy()
    with pytest.raises(ArithmeticError, match="planted"):
        exe(np.full(SHAPE, np.nan, np.float32))
    np.testing.assert_array_equal(exe.store["w"], before)


def test_threads_take_turns() -> None:
    exe = md.compile(graph_of(running_mean), device="reference")
    assert exe.store is not None
    begin = int(exe.store["count"])
    x = np.ones(SHAPE, np.float32)
    threads = [threading.Thread(target=lambda: [exe(x) for _ in range(25)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert int(exe.store["count"]) == begin + 100


def test_float64_holds_states_in_float64() -> None:
    exe = md.compile(graph_of(running_mean), device="reference", precision="float64")
    assert exe.store is not None
    assert exe.store["mean"].dtype == np.float64 and exe.store["count"].dtype == np.int64
    other = "state 'mean' is float32.*the store has float64.* under that name"
    with pytest.raises(GraphError, match=other):
        md.compile(graph_of(running_mean), device="reference", store=exe.store)


class Far:
    """The memory of a device that keeps arrays as bytes."""

    name = "far"

    def keep(self, array: np.ndarray, dtype: str) -> list[bytes]:
        return [array.tobytes()]

    def read(self, kept: list[bytes]) -> np.ndarray:
        return np.frombuffer(kept[0], np.float32).reshape(1, 3, 4, 5)

    def write(self, kept: list[bytes], array: np.ndarray) -> None:
        kept[0] = array.astype(np.float32).tobytes()


def test_a_store_lies_in_the_memory_of_its_first_program() -> None:
    store, graph = md.Store(), graph_of(swap)
    held = store.hold(graph.states, Far())
    assert store.hold(graph.states, Far()) == held and isinstance(store.memory, Far)
    store["a"] = np.full((1, 3, 4, 5), 2.0)
    np.testing.assert_array_equal(store["a"], np.full((1, 3, 4, 5), np.float32(2)))
    message = (
        r"<Store of 2 states, 480 bytes> is in the memory of far, where its first program runs, "
        "and this one runs in that of the host; valid is a store of its own"
    )
    with pytest.raises(GraphError, match=message):
        md.compile(graph, device="reference", store=store)


def test_what_a_store_refuses() -> None:
    store = md.Store()
    md.compile(graph_of(swap), device="reference", store=store)
    with pytest.raises(KeyError, match="c: the store has a, b"):
        store["c"]
    with pytest.raises(GraphError, match=r"store\['a'\] = float64\[3\]; valid is float32\[1, 3"):
        store["a"] = np.zeros(3)
    with pytest.raises(GraphError, match="valid is float32"):
        store["a"] = np.zeros((1, 3, 4, 5), np.int64)
    assert repr(store) == "<Store of 2 states, 480 bytes>"

    def other(trace: Trace, x):
        return x + state(trace, "new", SHAPE) + state(trace, "a", (1, 3, 1, 1))

    with pytest.raises(GraphError, match=r"state 'a' is float32.*, but the store has float32"):
        md.compile(graph_of(other), device="reference", store=store)
    assert sorted(store) == ["a", "b"], "nothing is added by what is refused"


def test_what_compile_refuses() -> None:
    with pytest.raises(GraphError, match=r"store=\{\}; valid is a minidnn.Store, or None"):
        md.compile(graph_of(swap), device="reference", store={})  # type: ignore[call-overload]
    stateless = graph_of(lambda trace, x: apply(ops.ReLU(), x))
    with pytest.raises(GraphError, match="graph 'g' has no states to keep there"):
        md.compile(stateless, device="reference", store=md.Store())


def test_devices_without_states_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ReferenceBackend, "keeps_states", False)
    message = (
        r"has 2 states \('a', 'b'\), .*has no states; devices 'cpu', 'cuda' and 'reference' have"
    )
    with pytest.raises(UnsupportedError, match=message):
        md.compile(graph_of(swap), device="reference")
