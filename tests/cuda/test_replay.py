"""What reaches callers' arrays from a CUDA graph: copies at its ends, and kernels that are told
where to work, with a driver that keeps graphs and memory in Python."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from minidnn.backends.cuda import replay
from minidnn.backends.cuda.arrays import DEVICE_TO_DEVICE, DEVICE_TO_HOST, HOST_TO_DEVICE
from minidnn.backends.cuda.replay import Aim, End, KernelNode, Replay
from minidnn.cudnn import driver
from minidnn.errors import DeviceError

IN, OUT = 0x100, 0x200  # an instance's own memory
FOREIGN = 0xBAD  # an address that no node of a graph can copy from

Step = Callable[[], None]


class FakeCuda:
    """One stream, whose work becomes nodes 1, 2, ... of one graph, each behind the one before."""

    def __init__(self) -> None:
        self.memory: dict[int, str] = {}
        self.nodes: dict[int, Any] = {}
        self.behind: dict[int, set[int]] = {}
        self.disabled: set[int] = set()
        self.sets = 0
        #: The arguments of kernels that take any, by their nodes; and some that none takes.
        self.arguments: dict[int, list[int]] = {}
        self.refused: set[int] = set()
        self.destroyed: list[str] = []
        #: Whether the thread has a context, without which nothing can be set.
        self.has_context = True
        self.streamCaptureModeRelaxed = 2

    # The runtime

    def streamBeginCapture(self, stream: int, mode: int) -> None:
        pass

    def streamEndCapture(self, stream: int) -> int:
        return 7

    def graphInstantiate(self, graph: int) -> int:
        return 8

    def graphDestroy(self, graph: int) -> None:
        self.destroyed.append(f"graph {graph}")

    def graphExecDestroy(self, executable: int) -> None:
        self.destroyed.append(f"executable {executable}")

    def start(self, work: Step) -> None:
        """Starts a kernel on the stream."""
        last = len(self.nodes)
        self.nodes[last + 1] = work
        self.behind[last + 1] = {last} if last else set()

    def launch(self) -> None:
        """Runs the graph, each node once all are done that it is behind."""
        done: set[int] = set()
        while len(done) < len(self.nodes):
            node = next(n for n in reversed(self.nodes) if n not in done and self.behind[n] <= done)
            work = self.nodes[node]
            if callable(work):
                work()
            elif node not in self.disabled:
                to, source = work
                self.memory[to] = self.memory[source]
            done.add(node)

    # The driver

    def captured(self, stream: int) -> tuple[int, list[int]]:
        return 7, [len(self.nodes)] if self.nodes else []

    def cuCtxGetCurrent(self, context: Any) -> int:
        context._obj.value = 9 if self.has_context else None
        return 0

    def cuCtxSetCurrent(self, context: Any) -> int:
        assert context.value == 9
        self.has_context = True
        return 0

    def cuGraphGetRootNodes(self, graph: Any, nodes: Any, count: Any) -> int:
        roots = [node for node, behind in self.behind.items() if not behind]
        if nodes is not None and not count._obj.value:
            return 1
        count._obj.value = len(roots)
        for i, node in enumerate(roots if nodes is not None else ()):
            nodes[i] = node
        return 0

    def cuGraphAddMemcpyNode(
        self, made: Any, graph: Any, behind: Any, count: Any, params: Any, context: Any
    ) -> int:
        if not params._obj.WidthInBytes:
            return 1
        node = made._obj.value = len(self.nodes) + 1
        self.behind[node] = {behind[i] for i in range(count.value)}
        self._write(node, params._obj)
        return 0

    def cuGraphAddDependencies_v2(
        self, graph: Any, begin: Any, end: Any, edge: Any, count: Any
    ) -> int:
        self.behind[end[0]].add(begin[0])
        return 0

    def cuGraphExecMemcpyNodeSetParams(
        self, executable: Any, node: Any, params: Any, context: Any
    ) -> int:
        assert (executable.value, context.value) == (8, 9)
        assert self.has_context, "the driver crashes"
        self.sets += 1
        if FOREIGN in (params._obj.srcDevice, params._obj.dstDevice):
            return 1
        self._write(node.value, params._obj)
        return 0

    def cuGraphKernelNodeGetParams_v2(self, node: Any, params: Any) -> int:
        params._obj.func = 1000 + node.value
        return 0

    def cuGraphExecKernelNodeSetParams_v2(self, executable: Any, node: Any, params: Any) -> int:
        assert (executable.value, params._obj.func) == (8, 1000 + node.value)
        assert self.has_context, "the driver crashes"
        given = self.arguments[node.value]
        pointers = ctypes.cast(params._obj.kernelParams, ctypes.POINTER(ctypes.c_void_p))
        new = [ctypes.c_uint64.from_address(pointers[i] or 0).value for i in range(len(given))]
        if self.refused.intersection(new):
            return 1
        given[:] = new
        self.sets += 1
        return 0

    def cuGraphNodeSetEnabled(self, executable: Any, node: Any, on: Any) -> int:
        assert self.has_context, "the driver crashes"
        (self.disabled.discard if on.value else self.disabled.add)(node.value)
        return 0

    def _write(self, node: int, params: Any) -> None:
        assert (params.WidthInBytes, params.Height, params.Depth) == (16, 1, 1)
        self.nodes[node] = (params.dstDevice, params.srcDevice)


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    fake = FakeCuda()
    module = SimpleNamespace(cuda=SimpleNamespace(runtime=fake))
    monkeypatch.setattr(replay, "cupy", lambda: module)
    monkeypatch.setattr(driver, "driver", lambda: fake)
    monkeypatch.setattr(driver, "captured", fake.captured)
    return fake


def made(cuda: FakeCuda) -> tuple[Replay, End, End]:
    """The graph of two kernels that make OUT of IN."""

    def first() -> None:
        cuda.memory[0x300] = cuda.memory[IN] + "'"

    def second() -> None:
        cuda.memory[OUT] = cuda.memory[0x300] + "'"

    def enqueue() -> None:
        cuda.start(first)
        cuda.start(second)

    take, give = End(IN, 16, takes=True), End(OUT, 16, takes=False)
    return Replay(SimpleNamespace(ptr=5), enqueue, [take], [give]), take, give


def test_a_launch_copies_from_and_to_where_it_was_told(cuda: FakeCuda) -> None:
    graph, take, give = made(cuda)
    assert graph.executable == 8
    cuda.memory |= {0x1000: "a", 0x2000: "b"}
    for source, to in ((0x1000, 0x4000), (0x2000, 0x4000), (0x2000, 0x5000)):
        assert take.reach(source) and give.reach(to)
        cuda.launch()
        assert cuda.memory[to] == cuda.memory[source] + "''"
    assert cuda.sets == 4  # what lies where it lay is not set again


def test_arrays_of_no_elements_have_no_nodes(cuda: FakeCuda) -> None:
    """The driver takes no copies of no bytes."""

    def enqueue() -> None:
        cuda.start(lambda: cuda.memory.update({OUT: "made"}))

    takes, gives = [End(IN, 0, takes=True)], [End(IN, 0, takes=False), End(OUT, 16, takes=False)]
    Replay(SimpleNamespace(ptr=5), enqueue, takes, gives)
    assert len(cuda.nodes) == 2
    assert takes[0].reach(0x1000) and gives[0].reach(FOREIGN) and gives[1].reach(0x4000)
    cuda.launch()
    assert cuda.memory == {OUT: "made", 0x4000: "made"} and cuda.sets == 1


def test_a_graph_may_be_empty(cuda: FakeCuda) -> None:
    """Results without elements need no kernel; the driver lists no first nodes then."""
    take, give = End(IN, 16, takes=True), End(OUT, 0, takes=False)
    Replay(SimpleNamespace(ptr=5), lambda: None, [take], [give])
    assert take.reach(0x1000) and give.reach(0x4000)
    cuda.memory[0x1000] = "a"
    cuda.launch()
    assert cuda.memory[IN] == "a" and 0x4000 not in cuda.memory


def test_what_a_node_cannot_reach_is_left_to_the_caller(cuda: FakeCuda) -> None:
    _graph, take, give = made(cuda)
    cuda.memory[0x1000] = "a"
    for kinds in ((HOST_TO_DEVICE, DEVICE_TO_HOST), ()):
        assert take.reach(0x1000) and give.reach(0x4000)
        source, to = (0x6000, 0x7000) if kinds else (FOREIGN, FOREIGN)
        assert not take.reach(source, *kinds[:1]) and not give.reach(to, *kinds[1:])
        cuda.memory |= {IN: "copied", 0x4000: "as it was"}
        cuda.launch()
        assert cuda.memory[OUT] == "copied''" and cuda.memory[0x4000] == "as it was"
        assert not take.reach(source, *kinds[:1])
        assert take.reach(0x1000) and give.reach(0x4000)
        cuda.launch()
        assert cuda.memory[0x4000] == "a''"


def aimed(cuda: FakeCuda, own: bool = True) -> tuple[Replay, End, End]:
    """The same of one kernel that takes addresses, and a number: of the elements behind the second
    one of what it is given.  ``own``: whether it has memory of its own from the beginning."""
    take, give = End(IN, 16, takes=True, own=own), End(OUT, 16, takes=False, own=own)

    def kernel() -> None:
        source, to, times = cuda.arguments[1]
        cuda.memory[to] = cuda.memory[source - 2] + "'" * times

    def enqueue() -> None:
        cuda.arguments[1] = [IN + 2, OUT, 3]
        cuda.start(kernel)
        node = KernelNode(1, cuda.arguments[1])
        take.aims, give.aims = [Aim(node, 0, 2)], [Aim(node, 1, 0)]

    return Replay(SimpleNamespace(ptr=5), enqueue, [take], [give]), take, give


def test_kernels_work_in_the_callers_memory(cuda: FakeCuda) -> None:
    _graph, take, give = aimed(cuda)
    cuda.memory |= {0x1000: "a", 0x2000: "b", IN: "own"}
    for source, to in ((0x1000, 0x4000), (0x2000, 0x4000), (0x2000, 0x5000)):
        assert take.reach(source) and give.reach(to)
        assert take.is_direct and give.is_direct
        cuda.launch()
        assert cuda.memory[to] == cuda.memory[source] + "'''"
    assert cuda.sets == 4  # what lies where it lay is not set again
    assert cuda.memory[IN] == "own" and OUT not in cuda.memory


@pytest.mark.parametrize("make", [made, aimed], ids=["copied", "in place"])
def test_a_thread_that_has_not_used_cuda_may_begin_with_a_call(
    make: Callable[[FakeCuda], tuple[Replay, End, End]], cuda: FakeCuda
) -> None:
    """It has no context, and is given the graph's before an address is set."""
    _graph, take, give = make(cuda)
    cuda.memory |= {0x1000: "a", IN: "copied"}
    for source, to in ((0x1000, 0x4000), (0x6000, 0x7000), (0x1000, 0x4000)):
        for end, address, kind in ((take, source, HOST_TO_DEVICE), (give, to, DEVICE_TO_HOST)):
            cuda.has_context = False
            reached = end.reach(address, kind) if source == 0x6000 else end.reach(address)
            assert cuda.has_context and reached is (source != 0x6000)
    cuda.launch()
    assert cuda.memory[0x4000].startswith("a'")


@pytest.mark.parametrize("by_host", [True, False])
def test_what_is_copied_around_the_graph_is_the_kernels_own(cuda: FakeCuda, by_host: bool) -> None:
    _graph, take, give = aimed(cuda)
    cuda.memory[0x1000] = "a"
    for _ in range(2):
        assert take.reach(0x1000) and give.reach(0x4000)
        cuda.launch()
        assert cuda.memory[0x4000] == "a'''"
        if by_host:
            reached = take.reach(0x6000, HOST_TO_DEVICE), give.reach(0x7000, DEVICE_TO_HOST)
        else:
            reached = take.reach(FOREIGN), give.reach(FOREIGN)
        assert reached == (False, False)
        assert not take.is_direct and not give.is_direct
        cuda.memory |= {IN: "copied", 0x4000: "as it was"}
        cuda.launch()
        assert cuda.memory[OUT] == "copied'''" and cuda.memory[0x4000] == "as it was"


def test_an_external_buffer_has_memory_once_something_is_copied(
    cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A caller's arrays, at which it was made, stay as they are."""
    places = iter((0x8000, 0x9000))
    made: list[int] = []

    def allocated(size: int, what: str) -> SimpleNamespace:
        made.append(size)
        return SimpleNamespace(ptr=next(places))

    monkeypatch.setattr(replay, "allocated", allocated)
    _graph, take, give = aimed(cuda, own=False)
    assert not take.node and not give.node
    cuda.memory |= {IN: "a", 0x2000: "b"}
    for source, to in ((IN, OUT), (0x2000, OUT), (IN, 0x5000)):
        assert take.reach(source) and give.reach(to)
        cuda.launch()
        assert cuda.memory[to] == cuda.memory[source] + "'''"
    assert not made
    for _ in range(2):
        assert not take.reach(0x6000, HOST_TO_DEVICE) and not give.reach(0x7008)
        cuda.memory |= {take.address: "copied", OUT: "as it was"}
        cuda.launch()
        assert cuda.memory[give.address] == "copied'''"
        assert cuda.memory[IN] == "a" and cuda.memory[OUT] == "as it was"
        assert take.reach(IN) and give.reach(0x5000)
        cuda.launch()
        assert cuda.memory[0x5000] == "a'''"
    assert made == [16, 16] and (take.address, give.address) == (0x8000, 0x9000)


def test_what_overlaps_or_begins_anywhere_is_copied(cuda: FakeCuda) -> None:
    _graph, take, give = aimed(cuda)
    cuda.memory |= {0x1000: "a", 0x1008: "b"}
    assert take.reach(0x1000) and give.reach(0x4000)
    for source, apart in ((0x1000, False), (0x1008, True)):
        assert take.reach(source, apart=apart) and give.reach(0x4000, apart=apart)
        assert not take.is_direct and give.is_direct is apart
        cuda.launch()
        assert cuda.memory[IN] == cuda.memory[source]
        assert cuda.memory[0x4000] == cuda.memory[source] + "'''"
    assert take.reach(0x1000) and take.is_direct


def test_kernels_that_take_no_other_address_are_left_alone(cuda: FakeCuda) -> None:
    _graph, take, give = aimed(cuda)
    cuda.memory |= {0x1000: "a", 0x2000: "b"}
    cuda.refused.add(0x1000 + 2)
    for source in (0x1000, 0x2000):
        assert take.reach(source) and give.reach(0x4000)
        assert not take.is_direct and give.is_direct
        cuda.launch()
        assert cuda.memory[0x4000] == cuda.memory[source] + "'''"
    cuda.refused |= {0x5000, OUT}
    with pytest.raises(DeviceError, match="takes no address, not even the first"):
        give.reach(0x5000)


def test_a_kernel_of_which_one_address_is_refused_has_the_others_again(cuda: FakeCuda) -> None:
    """A kernel that is given an input twice: at its beginning, and behind that."""
    take, give = End(IN, 16, takes=True), End(OUT, 16, takes=False)

    def kernel() -> None:
        first, second, to = cuda.arguments[1]
        cuda.memory[to] = cuda.memory[first] + cuda.memory[second - 2]

    def enqueue() -> None:
        cuda.arguments[1] = [IN, IN + 2, OUT]
        cuda.start(kernel)
        node = KernelNode(1, cuda.arguments[1])
        take.aims, give.aims = [Aim(node, 0, 0), Aim(node, 1, 2)], [Aim(node, 2, 0)]

    _graph = Replay(SimpleNamespace(ptr=5), enqueue, [take], [give])
    cuda.memory |= {0x1000: "a", 0x2000: "b"}
    cuda.refused.add(0x1000 + 2)
    for source in (0x1000, 0x2000):
        assert take.reach(source) and give.reach(0x4000)
        assert not take.is_direct and give.is_direct
        cuda.launch()
        assert cuda.memory[0x4000] == 2 * cuda.memory[source]


def test_graphs_of_many_ends_have_no_nodes_for_those_that_kernels_are_told_of(
    cuda: FakeCuda,
) -> None:
    """A node that is switched off takes part in every launch.  What kernels cannot be told of has
    one, and what they do not take where it lies is left to the caller."""
    many = [End(0x100000 + 16 * place, 16, takes=True) for place in range(20)]
    copied, give = End(IN, 16, takes=True), End(OUT, 16, takes=False)

    def kernel() -> None:
        *sources, to = cuda.arguments[1]
        cuda.memory[to] = "".join(cuda.memory[source] for source in (*sources, IN))

    def enqueue() -> None:
        cuda.arguments[1] = [*(end.address for end in many), OUT]
        cuda.start(kernel)
        node = KernelNode(1, cuda.arguments[1])
        for place, end in enumerate((*many, give)):
            end.aims = [Aim(node, place, 0)]

    _graph = Replay(SimpleNamespace(ptr=5), enqueue, [*many, copied], [give])
    assert len(cuda.nodes) == 2  # the kernel and one copy
    sources = [0x1000 + 16 * place for place in range(20)]
    cuda.memory |= dict.fromkeys(sources, "a") | {0x9000: "b", many[3].address: "c"}
    for end, source in zip((*many, copied), (*sources, 0x9000), strict=True):
        assert end.reach(source)
    assert give.reach(0x4000)
    cuda.launch()
    assert cuda.memory[0x4000] == 20 * "a" + "b"
    for address, kind in ((0x1001, DEVICE_TO_DEVICE), (0x6000, HOST_TO_DEVICE)):
        for _ in range(2):
            assert not many[3].reach(address, kind) and not many[3].is_direct
        cuda.launch()
        assert cuda.memory[0x4000] == "aaac" + 16 * "a" + "b"
        assert many[3].reach(sources[3]) and many[3].is_direct
        cuda.launch()
        assert cuda.memory[0x4000] == 20 * "a" + "b"


def test_an_old_driver_copies_nothing(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "captured", lambda stream: None)
    _graph, take, give = made(cuda)
    assert not take.reach(0x1000) and not give.reach(0x4000) and len(cuda.nodes) == 2


def test_graphs_are_given_back(cuda: FakeCuda) -> None:
    graph, _take, _give = made(cuda)
    gc.collect()
    assert cuda.destroyed == []
    del graph
    assert sorted(cuda.destroyed) == ["executable 8", "graph 7"]
