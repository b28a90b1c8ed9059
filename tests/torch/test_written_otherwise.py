"""What code writes to weights, to hooks and to Python's own objects: not seen of a capture, and
seen at every call."""

from __future__ import annotations

import array
import io
import random
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import minidnn as md
from minidnn._torch_internals import VERSION
from minidnn.errors import MiniDNNWarning
from tests.torch.test_hooks import Net, Writing, copied, examples, same

#: Makes a network, and what tells the state of the things that it writes to.
Make = Callable[[], tuple[nn.Module, Callable[[], Any]]]
MAKES: dict[str, Make] = {}


def writing(write: Callable[[torch.Tensor], Any]) -> nn.Module:
    net = Net()
    net.middle = Writing(write)
    return net


def case(make: Make) -> Make:
    MAKES[make.__name__] = make
    return make


class Private:
    __slots__ = ("__last",)

    def put(self, value: Any) -> None:
        self.__last = value

    def get(self) -> Any:
        return getattr(self, "_Private__last", None)


class Bounded(nn.Conv2d):
    """Keeps its weight's norms bounded, as networks for EEG do."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.weight.data = torch.renorm(self.weight.data, p=2, dim=0, maxnorm=0.3)
        return super().forward(x)


class Clamped(nn.Conv2d):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.weight.data.clamp_(-0.1, 0.1)
        return super().forward(x)


@case
def private_slots() -> Any:
    kept = Private()
    return writing(lambda y: kept.put(y)), kept.get


@case
def a_file_in_memory() -> Any:
    file = io.StringIO()
    return writing(lambda y: print("a call", file=file)), file.getvalue


@case
def bytes_in_memory() -> Any:
    file = io.BytesIO(b"before")
    return writing(lambda y: file.write(b"x")), lambda: (file.getvalue(), file.tell())


@case
def an_array() -> Any:
    numbers = array.array("i", [5])
    return writing(lambda y: numbers.append(1)), lambda: list(numbers)


@case
def random_numbers() -> Any:
    numbers = random.Random(0)
    return writing(lambda y: numbers.random()), numbers.getstate


@case
def an_attribute_of_a_weight() -> Any:
    net = Net()
    net.middle.register_forward_hook(lambda m, i, o: setattr(m.weight, "seen", o))
    return net, lambda: getattr(net.middle.weight, "seen", None)


@case
def a_hook_that_removes_itself() -> Any:
    net, seen = Net(), []

    def hook(module: Any, args: Any, result: Any) -> None:
        seen.append(result)
        handle.remove()

    handle = net.middle.register_forward_hook(hook)
    return net, lambda: (seen, len(net.middle._forward_hooks))


@case
def a_hook_that_registers_another() -> Any:
    net, seen = Net(), []

    def hook(module: Any, args: Any) -> None:
        if not net.last._forward_hooks:
            net.last.register_forward_hook(lambda m, i, o: seen.append(o))

    net.middle.register_forward_pre_hook(hook)
    return net, lambda: (seen, len(net.last._forward_hooks))


@case
def what_a_function_calls_by_a_variable_around_it() -> Any:
    net, seen = Net(), []
    net.middle.register_forward_hook(lambda m, i, o: seen.append(o))
    net.__dict__["forward"] = lambda x: net.last(net.middle(net.first(x)))
    return net, lambda: seen


def _with_middle(middle: nn.Conv2d) -> Any:
    net = Net()
    net.middle = middle
    return net, lambda: middle.weight.detach().clone()


@case
def a_weights_data() -> Any:
    return _with_middle(Bounded(4, 4, 1))


@case
def into_a_weights_data() -> Any:
    return _with_middle(Clamped(4, 4, 1))


@case
def a_hook_into_a_weights_data() -> Any:
    net = Net()
    net.middle.register_forward_pre_hook(lambda m, i: [m.weight.data.mul_(0.5)][1:] or None)
    return net, lambda: net.middle.weight.detach().clone()


#: What is also said of these, once.
SAID = {
    "a_hook_that_removes_itself": "some of its code runs in PyTorch: hook",
    "a_hook_that_registers_another": "some of its code runs in PyTorch: torch_dynamo_resume",
    "a_weights_data": "a piece runs in PyTorch: PyTorch cannot make it functional",
}


@torch.no_grad()
@pytest.mark.parametrize("name", MAKES)
def test_it_is_as_in_pytorch(name: str) -> None:
    def run(optimizes: bool) -> Any:
        net, state = MAKES[name]()
        net.eval()
        before = copied(state())
        fast: Any = net
        if optimizes:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                fast = md.optimize(net, examples(), device="reference")
            ours = [str(each.message) for each in caught if each.category is MiniDNNWarning]
            if VERSION >= (2, 13):  # before, PyTorch does not say all of it
                assert bool(ours) == (name in SAID)
                assert all(SAID[name] in text or "nothing was taken" in text for text in ours)
            same(state(), before)
            left = name == "a_weights_data" or (VERSION < (2, 13) and ours)
            assert left or any(program.parts for program in fast.programs)
        return [(fast(examples(shift)), copied(state())) for shift in (0.0, 1.0, -1.0)]

    same(run(True), run(False))


@torch.no_grad()
def test_modules_that_print_print_at_every_call(capsys: pytest.CaptureFixture[str]) -> None:
    net = writing(lambda y: print("a call")).eval()
    fast = md.optimize(net, examples(), device="reference")
    assert "goes on in Python: " in fast.explain()
    assert any(program.parts for program in fast.programs)
    capsys.readouterr()
    same(fast(examples()), net(examples()))
    same(fast(examples(1.0)), net(examples(1.0)))
    assert capsys.readouterr().out == 4 * "a call\n"
