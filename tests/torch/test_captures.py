"""Captures beside calls: in several threads, and of modules that refer to themselves."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

import minidnn as md
from minidnn.acceleration import engine
from tests.sampling import mixed


class Looking(nn.Module):
    """Looks at values, which cannot be captured, and has weights."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) if float(x.detach().sum()) < 1e9 else x


def network(outputs: int = 5) -> nn.Module:
    """With a layer that looks at values, and one with weights that only PyTorch knows."""
    torch.manual_seed(outputs)
    return Network(nn.Linear(4, 6), Looking(), Unknown(), nn.Linear(6, outputs))


class Network(nn.Sequential):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self[1](self[0](x).relu())
        x = self[3](self[2](x).relu())
        return x


class Unknown(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.atan2(x, self.weight)


def examples(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def together(works: Iterable[Callable[[], None]]) -> None:
    """Runs all at once, each in a thread; raises the first error."""
    errors: list[BaseException] = []
    works = list(works)
    start = threading.Barrier(len(works))

    def guarded(work: Callable[[], None]) -> None:
        start.wait()
        try:
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


@torch.no_grad()
def check(fast: Any, net: nn.Module, x: torch.Tensor) -> None:
    torch.testing.assert_close(fast(x), net(x), rtol=1e-5, atol=1e-5)


def test_several_modules_are_captured_at_once() -> None:
    nets = [network(outputs).eval() for outputs in (2, 3, 4, 5)]

    def work(net: nn.Module) -> None:
        x = examples(2, 3, 4)
        check(md.optimize(net, x, device="reference"), net, x)

    together(partial(work, net) for net in nets)


def test_known_sizes_are_called_while_others_are_captured() -> None:
    net = network().eval()
    fast = md.optimize(net, examples(2, 3, 4), device="reference", sizes=20)
    pieces = len(fast.programs)
    done = threading.Event()

    def captures() -> None:
        try:
            for size in range(3, 6):
                check(fast, net, examples(size, 3, 4))
        finally:
            done.set()

    def calls() -> None:
        x = examples(2, 3, 4)
        while not done.is_set():
            check(fast, net, x)

    together((captures, calls, calls))
    assert len(fast.programs) == 4 * pieces


def test_a_known_size_does_not_wait_for_a_capture() -> None:
    net = nn.Sequential(nn.Linear(4, 4), Waiting())
    fast = md.optimize(net.eval(), examples(2, 4), device="reference")
    fast(examples(2, 4))
    waiting = net[1]
    waiting.is_slow = True

    def captures() -> None:
        fast(examples(3, 4))

    def calls() -> None:
        assert waiting.reached.wait(60)
        waiting.is_slow = False
        try:
            fast(examples(2, 4))
            assert not waiting.go_on.is_set()
        finally:
            waiting.go_on.set()

    together((captures, calls))


def test_nobody_has_a_program_that_is_compiled_again_before_that_is_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    net, x = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval(), examples(2, 4)
    fast = md.optimize(net, x, device="cpu")  # which packs weights
    check(fast, net, x)
    with torch.no_grad():
        net[0].weight.mul_(3)
    compiles, called = threading.Event(), threading.Event()
    compile_ = engine.compile

    def slow(*args: Any, **kwargs: Any) -> Any:
        compiles.set()
        called.wait(0.5)  # as long as the other call may take that has not to wait
        return compile_(*args, **kwargs)

    monkeypatch.setattr(engine, "compile", slow)

    def calls() -> None:
        assert compiles.wait(60)
        check(fast, net, x)
        called.set()

    together((lambda: check(fast, net, x), calls))


class Waiting(nn.Module):
    """Can be held up while it is captured."""

    def __init__(self) -> None:
        super().__init__()
        self.is_slow = False
        self.reached = threading.Event()
        self.go_on = threading.Event()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.is_slow:
            self.reached.set()
            assert self.go_on.wait(60)
        return x.relu()


class Referring(nn.Module):
    """Comes by its weight in some other way than as its own."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
        self.ways: dict[str, Any] = {
            "bound": [self.product],
            "partial": [partial(self.product)],
            "function": [lambda x: x * self.weight],
            "reference": [partial(lambda me, x: x * me().weight, weakref.ref(self))],
            "module": [partial(lambda me, x: x * me.weight, self)],
        }
        self.way = way

    def product(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        product: torch.Tensor = self.ways[self.way][0](x)
        return product + 1


@pytest.mark.parametrize("way", ["bound", "partial", "function", "reference", "module"])
def test_weights_of_a_module_that_refers_to_itself_are_its_weights(way: str) -> None:
    net, x = Referring(way).eval(), examples(2, 4)
    fast = md.optimize(net, x, device="reference")
    check(fast, net, x)
    with torch.no_grad():
        net.weight.mul_(3)
    check(fast, net, x)


@pytest.mark.filterwarnings("ignore:.*nothing (was|of it is) taken")
@pytest.mark.parametrize(
    ("kind", "is_outermost"), mixed(2, [nn.LSTM, nn.GRU, nn.RNN], [True, False])
)
def test_recurrent_layers_refer_to_their_weights(kind: type[nn.Module], is_outermost: bool) -> None:
    """By lists of these and of weak references, which they make anew where PyTorch puts others in
    the weights' places: that is no state."""
    torch.manual_seed(0)
    layer = kind(4, 5, num_layers=2, bidirectional=True).eval()
    net = layer if is_outermost else nn.Sequential(nn.Linear(4, 4), layer).eval()
    x = examples(3, 2, 4)
    fast = md.optimize(net, x, device="reference")
    assert "aten." in fast.explain() and len(fast.pieces) == 1
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(fast(x), net(x), rtol=1e-5, atol=1e-5)
            layer.weight_hh_l1.mul_(3)
        layer.weight_ih_l0 = nn.Parameter(layer.weight_ih_l0 * 2)
        torch.testing.assert_close(fast(x), net(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("is_within", [True, False])
def test_weights_that_were_made_in_inference_mode(is_within: bool) -> None:
    with torch.inference_mode():
        net = network().eval()
    x = examples(2, 3, 4)
    with torch.inference_mode(is_within):
        fast = md.optimize(net, x, device="cpu")
    check(fast, net, x)
    with torch.inference_mode():
        net[0].weight.mul_(3)
    fast.refresh()
    check(fast, net, x)
    assert all(weight.requires_grad for weight in net.parameters())
