"""A module that cannot be captured runs in PyTorch, and what is below it is taken."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import minidnn as md
from minidnn.acceleration.below import StandIns
from minidnn.acceleration.part import TakenPart
from minidnn.errors import MiniDNNWarning, UnsupportedError
from minidnn.frontends.torch.reach import Reach


def examples(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def block(channels: int) -> nn.Sequential:
    torch.manual_seed(channels)
    return nn.Sequential(nn.Conv2d(3, channels, 3), nn.BatchNorm2d(channels), nn.ReLU())


class Net(nn.Module):
    """A stem, a list of layers and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = block(3)
        self.layers = nn.ModuleList([block(3), nn.Sequential(block(3), nn.Tanh())])
        self.head = nn.ModuleDict({"a": nn.Linear(3, 2), "b": nn.Linear(3, 4)})
        self.n = 0

    def body(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x.mean((2, 3))

    def forward(self, x: torch.Tensor) -> Any:
        raise NotImplementedError


class Deciding(Net):
    def forward(self, x: torch.Tensor) -> Any:
        x = self.stem(x)
        if x.sum() > 1e9:
            return x
        return self.head["a"](self.body(x))


class Counting(Net):
    def forward(self, x: torch.Tensor) -> Any:
        self.n += 1
        self.last = self.body(self.stem(x))
        return {"a": self.head["a"](self.last) * self.n, "n": self.n}


class Asking(Net):
    """Asks what its children are, and takes them apart."""

    def forward(self, x: torch.Tensor) -> Any:
        if x.isnan().any():
            raise ValueError("a number is none")
        assert isinstance(self.stem, nn.Sequential) and self.stem.__class__ is nn.Sequential
        assert self.stem is self.stem and self.stem == self._modules["stem"]
        assert [name for name, _ in self.named_children()] == ["stem", "layers", "head"]
        x = self.stem[1:](self.stem[0](x))
        for each in self.layers[:1]:
            x = each(x)
        kinds = {nn.Tanh: 2.0, nn.Sequential: 1.0}
        for each in self.layers[1].children():
            x = each(x) * kinds[each.__class__]
        return self.head["b"](x.mean((2, 3))), len(list(self.parameters()))


class Inherited(nn.Sequential):
    def forward(self, x: torch.Tensor) -> Any:
        return super().forward(x) if x.sum() < 1e9 else x


class Growing(Net):
    """Adds a layer to itself at its first call."""

    def forward(self, x: torch.Tensor) -> Any:
        if "late" not in self._modules:
            self.add_module("late", block(3).eval())
        return self.late(self.stem(x)) if x.sum() < 1e9 else x


class Nested(nn.Module):
    """What it calls cannot be captured either, but for what that calls."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Deciding()
        self.again = Inherited(block(3), nn.Flatten())

    def forward(self, x: torch.Tensor) -> Any:
        y = self.inner(x)
        return (y if float(y.max()) < 1e9 else -y), self.again(x)


NETS: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "looks at values": (Deciding, 4),
    "keeps state": (Counting, 4),
    "asks what its children are": (Asking, 7),
    "derives from a container": (lambda: Inherited(block(3), block(3)), 2),
    "grows": (Growing, 2),
    "nested": (Nested, 5),
}


def parts(fast: Any) -> int:
    return sum(len(program.parts) for program in fast.programs)


def same(found: Any, expected: Any) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_from_an_assertion_of_a_test_code_does_not_reach_all_tests() -> None:
    """It names a module of pytest's, which holds the session."""
    reach = Reach()
    reach.add(Asking.forward, "the code")
    assert len(reach.places) < 100


@pytest.mark.parametrize("prepared", [True, pytest.param(False, marks=pytest.mark.full)])
@pytest.mark.parametrize("name", NETS)
def test_what_is_below_is_taken(name: str, prepared: bool) -> None:
    make, count = NETS[name]
    net, x = make().eval(), examples(2, 3, 9, 9)
    eager = copy.deepcopy(net)
    fast = md.optimize(net, x if prepared else None, device="reference")
    if prepared and name != "grows":
        assert parts(fast) == count
    assert [k for k, _ in net.named_modules()] == [k for k, _ in eager.named_modules()]
    with torch.no_grad():
        for scale in (1, 2, 3):
            same(fast(scale * x), eager(scale * x))
    assert parts(fast) == count
    one, other = vars(net), vars(eager)
    assert one.keys() == other.keys()
    assert one.get("n") == other.get("n")
    assert all(type(a) is type(b) for a, b in zip(net.modules(), eager.modules(), strict=True))


def test_parts_compute_what_pytorch_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    net, x = Deciding().eval(), examples(2, 3, 9, 9)
    fast = md.optimize(net, x, device="reference")
    calls = 0
    forward = TakenPart.forward

    def counted(self: Any, *tensors: Any) -> Any:
        nonlocal calls
        calls += 1
        return forward(self, *tensors)

    monkeypatch.setattr(TakenPart, "forward", counted)
    monkeypatch.setattr(nn.Conv2d, "forward", None)
    fast(x)
    assert calls == 4


def test_it_is_said_what_was_taken_and_why_not_all() -> None:
    fast = md.optimize(Counting().eval(), examples(2, 3, 9, 9), device="reference")
    text = fast.explain()
    assert text.startswith(
        "Counting for float32[2, 3, 9, 9]: its own code runs in PyTorch, as it cannot be captured: "
        "it keeps state: its attribute 'n' changes when it is called\n"
        "modules that it calls, 4 so far:\n\nstem:\n  Sequential for float32[2, 3, 9, 9] on device "
        "'reference': 3 of 3 operations taken, in 1 part\n"
    )
    assert "\nlayers.1:\n" in text and "\nhead.a:\n" in text


def test_preparing_is_not_seen() -> None:
    net = Counting().eval()
    md.optimize(net, examples(2, 3, 9, 9), device="reference")
    assert net.n == 0 and not hasattr(net, "last")


def test_strict_refuses_it() -> None:
    x = examples(2, 3, 9, 9)
    with pytest.raises(UnsupportedError, match=r"^Deciding cannot be captured: GuardOnDataDep"):
        md.optimize(Deciding().eval(), x, device="reference", strict=True)
    with pytest.raises(UnsupportedError, match=r"^Counting cannot be captured: it keeps state: "):
        md.compile(Counting().eval(), (2, 3, 9, 9), device="reference")


def test_one_with_nothing_below_warns() -> None:
    class Leaf(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x if x.sum() > 0 else -x

    x = examples(2, 3)
    with pytest.warns(MiniDNNWarning, match=r"^Leaf: nothing was taken, all runs in PyTorch:\n"):
        fast = md.optimize(Leaf().eval(), x, device="reference")
    same(fast(-x), Leaf()(-x))


def test_mistakes_are_pytorchs() -> None:
    with pytest.raises(RuntimeError, match="to have 3 channels"):
        md.optimize(Counting().eval(), examples(2, 4, 9, 9), device="reference")
    fast = md.optimize(Asking().eval(), examples(2, 3, 9, 9), device="reference")
    with pytest.raises(ValueError, match="a number is none"):
        fast(examples(2, 3, 9, 9) / 0.0 * 0.0)


def test_changes_below_are_noticed() -> None:
    net, x = Deciding().eval(), examples(2, 3, 9, 9)
    fast = md.optimize(net, x, device="reference")
    with torch.no_grad():
        net.stem[0].weight.mul_(2.0)
        same(fast(x), net(x))
        net.layers[1] = nn.Sequential(block(3), nn.Sigmoid())
        same(fast(x), net(x))
        net.head["a"].weight.data.fill_(0.5)
        fast.refresh()
        same(fast(x), net(x))
        net.stem[0].weight.data.fill_(0.25)
        fast.refresh()
        same(fast(x), net(x))


def test_another_size_has_programs_of_its_own() -> None:
    net = Deciding().eval()
    fast = md.optimize(net, device="reference")
    with torch.no_grad():
        for size in (9, 11, 9):
            same(fast(examples(2, 3, size, size)), net(examples(2, 3, size, size)))
    assert parts(fast) == 8 and fast.explain().count("modules that it calls, 4 so far") == 2


def test_hooks_of_all_run_once() -> None:
    net, x = Deciding().eval(), examples(2, 3, 9, 9)
    seen: list[Any] = []
    net.register_forward_hook(lambda module, args, result: seen.append("net"))
    net.stem.register_forward_hook(lambda module, args, result: seen.append(module))
    net.layers[0].register_forward_pre_hook(lambda module, args: seen.append(module))
    expected = net(x)
    before, seen[:] = list(seen), []
    fast = md.optimize(net, device="reference")
    same(fast(x), expected)
    seen.clear()
    same(fast(x), expected)
    assert seen == before == [net.stem, net.layers[0], "net"]


def test_modes_within_its_code() -> None:
    class Autocast(Net):
        def forward(self, x: torch.Tensor) -> Any:
            x = x if x.sum() < 1e9 else -x
            with torch.autocast("cpu", torch.bfloat16):
                y = self.stem(x)
            self.layers.train()
            z = self.layers[0](x)
            self.layers.eval()
            return y, z

    net, x = Autocast().eval(), examples(2, 3, 9, 9)
    eager = copy.deepcopy(net)
    fast = md.optimize(net, device="reference")
    found, expected = fast(x), eager(x)
    assert found[0].dtype == torch.bfloat16
    same(found, expected)
    same(net.state_dict(), eager.state_dict())


def test_threads_may_call_it_at_once() -> None:
    net = Deciding().eval()
    fast = md.optimize(net, device="reference")
    errors: list[BaseException] = []

    def work(batch: int) -> None:
        try:
            for _ in range(3):
                same(fast(examples(batch, 3, 9, 9)), net(examples(batch, 3, 9, 9)))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(batch,)) for batch in (1, 2, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


def test_the_users_classes_are_not_told() -> None:
    derived: list[type] = []

    class Registering(nn.Module):
        def __init_subclass__(cls, **_: Any) -> None:
            derived.append(cls)

    class Own(Registering):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x

    own = Own()
    stands = StandIns(lambda module, *args: (module, args)).of(own)
    assert stands(1) == (own, (1,))
    assert isinstance(stands, Own) and derived == [Own]
    assert type(copy.deepcopy(stands)) is Own
