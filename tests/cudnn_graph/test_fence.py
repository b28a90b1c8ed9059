"""Which plans are fenced, and what a fence does to a graph that is being captured."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from minidnn.cudnn import driver as cuda_driver
from minidnn.cudnn.graph import Graph, execution
from minidnn.errors import DeviceError
from tests.cudnn_graph.fake import FakeEngine, FakeLibrary

Install = Callable[..., FakeLibrary]
IMAGE, FILTER, BIAS = (2, 8, 6, 6), (8, 8, 3, 3), (1, 8, 1, 1)
X, W, VECTOR, TENSOR, Y = range(0x1000, 0x6000, 0x1000)


def graph(bias: bool, residual: bool) -> tuple[Graph, list[int]]:
    """A convolution with what is added to it, and addresses for its arrays."""
    g = Graph()
    y = g.convolution(g.tensor(IMAGE, "float16"), g.tensor(FILTER, "float16"), padding=1)
    pointers = [X, W]
    for shape, address in [(BIAS, VECTOR)] * bias + [(IMAGE, TENSOR)] * residual:
        y = g.add(y, g.tensor(shape, "float16"))
        pointers.append(address)
    g.output(g.relu(y))
    return g, [*pointers, Y]


@pytest.fixture
def events(fake: Install, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is done, in order, on a device whose kernels begin early."""
    made, seen = fake(FakeEngine()), []
    execute = made.cudnnBackendExecute

    def executed(*arguments: Any) -> int:
        seen.append("execute")
        return execute(*arguments)

    def fenced(launch: Callable[[], int]) -> int:
        seen.append("fence")
        return launch()

    monkeypatch.setattr(made, "cudnnBackendExecute", executed, raising=False)
    monkeypatch.setattr(execution, "begin_early", lambda device: True)
    monkeypatch.setattr(execution, "fenced", fenced)
    return seen


@pytest.mark.parametrize(
    ("bias", "residual", "settled", "expected"),
    [
        (False, False, (), ["execute"]),
        (True, False, (), ["fence", "execute"]),
        (False, True, (), ["fence", "execute"]),
        (True, False, (1, 2), ["execute"]),
        (True, True, (1, 2), ["fence", "execute"]),
        (True, True, (1, 2, 3), ["execute"]),
    ],
)
def test_what_is_joined_is_fenced(
    events: list[str], bias: bool, residual: bool, settled: tuple[int, ...], expected: list[str]
) -> None:
    """Unless nothing in flight writes it."""
    g, pointers = graph(bias, residual)
    plan = g.build(choose="heuristic")
    plan.bind_pointers(pointers, 0x9000, None, settled)()
    assert events == expected


def test_nothing_is_fenced_where_no_kernel_begins_early(
    events: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execution, "begin_early", lambda device: False)
    g, pointers = graph(True, True)
    g.build(choose="heuristic").bind_pointers(pointers, 0, None)()
    assert events == ["execute"]


def test_a_point_wise_graph_is_not_fenced(events: list[str]) -> None:
    g = Graph()
    a, b = (g.tensor(IMAGE, "float16") for _ in range(2))
    g.output(g.add(a, b))
    g.build(choose="heuristic").bind_pointers([X, TENSOR, Y], 0, None)()
    assert events == ["execute"]


ORDINARY, PROGRAMMATIC = 0, 1
GRAPH = 0x77
Edges = dict[tuple[int, int], int]


class FakeDriver:
    """CUDA's driver, with one stream that is captured: edges by their ends, with their types."""

    def __init__(self, edges: Edges, last: list[int]) -> None:
        self.edges = edges
        self.last = (ctypes.c_void_p * len(last))(*last)
        self.status = 0

    def cuStreamGetCaptureInfo_v3(
        self, stream: Any, state: Any, number: Any, graph: Any, nodes: Any, edges: Any, count: Any
    ) -> int:
        graph._obj.value, count._obj.value = GRAPH, len(self.last)
        nodes._obj.contents = self.last
        return self.status

    def cuGraphNodeGetDependentNodes_v2(self, node: Any, nodes: Any, edges: Any, count: Any) -> int:
        found = [(end, kind) for (begin, end), kind in self.edges.items() if begin == node.value]
        count._obj.value = len(found)
        if nodes is not None:
            for i, (end, kind) in enumerate(found):
                nodes[i], edges[i].type = end, kind
        return 0

    def cuGraphRemoveDependencies_v2(
        self, graph: Any, begin: Any, end: Any, edge: Any, count: Any
    ) -> int:
        assert graph.value == GRAPH and count.value == 1
        assert self.edges.pop((begin[0], end[0])) == edge._obj.type
        return 0

    def cuGraphAddDependencies_v2(
        self, graph: Any, begin: Any, end: Any, edge: Any, count: Any
    ) -> int:
        assert graph.value == GRAPH and count.value == 1 and edge is None
        self.edges[begin[0], end[0]] = ORDINARY
        return 0


def install(
    monkeypatch: pytest.MonkeyPatch, stream: int, capturing: bool, driver: FakeDriver | None
) -> list[str]:
    """Puts a stream and a driver in CUDA's place; the result lists the kernels launched."""
    launched: list[str] = []
    cuda = SimpleNamespace(
        get_current_stream=lambda: SimpleNamespace(ptr=stream),
        runtime=SimpleNamespace(streamIsCapturing=lambda _: capturing),
    )
    for module in (execution, cuda_driver):
        monkeypatch.setattr(module, "cupy", lambda: SimpleNamespace(cuda=cuda))
    monkeypatch.setattr(cuda_driver, "driver", lambda: driver)
    monkeypatch.setattr(execution, "_empty", lambda: lambda *_: launched.append("empty"))
    return launched


def test_an_edge_of_a_captured_graph_waits_for_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what was in front, only: what the plan itself and others launch stays as it is."""
    edges = {(1, 2): PROGRAMMATIC}
    driver = FakeDriver(edges, [2])
    launched = install(monkeypatch, 5, True, driver)

    def launch() -> int:
        edges.update({(2, 3): PROGRAMMATIC, (3, 4): PROGRAMMATIC})
        return 0

    assert execution.fenced(launch) == 0
    assert edges == {(1, 2): PROGRAMMATIC, (2, 3): ORDINARY, (3, 4): PROGRAMMATIC}
    assert launched == []


def test_what_failed_leaves_the_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller says which status a plan had; CUDA would only say that the graph is spoilt."""
    edges = {(1, 2): PROGRAMMATIC}
    install(monkeypatch, 5, True, FakeDriver(edges, [1]))
    assert execution.fenced(lambda: 3000) == 3000
    assert edges == {(1, 2): PROGRAMMATIC}


@pytest.mark.parametrize(("stream", "capturing"), [(0, True), (5, False), (5, True)])
def test_elsewhere_an_empty_kernel_goes_in_front(
    monkeypatch: pytest.MonkeyPatch, stream: int, capturing: bool
) -> None:
    """On the default stream, which cannot be captured, on others, and with an old driver."""
    launched = install(monkeypatch, stream, capturing, None)

    def launch() -> int:
        launched.append("plan")
        return 7

    assert execution.fenced(launch) == 7
    assert launched == ["empty", "plan"]


def test_a_failing_driver_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = FakeDriver({}, [1])
    driver.status = 999
    install(monkeypatch, 5, True, driver)
    with pytest.raises(
        DeviceError, match=r"cuStreamGetCaptureInfo_v3 failed with CUDA's error 999"
    ):
        execution.fenced(lambda: 0)
