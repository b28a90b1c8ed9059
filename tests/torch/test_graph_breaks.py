"""Modules that cannot be captured whole run as several pieces, with Python between them."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import nn

import minidnn as md
from minidnn.errors import MiniDNNWarning, UnsupportedError

#: Which is said of code that raises an exception, or changes hooks, and of no rows.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*an error was suppressed"),
    pytest.mark.filterwarnings("ignore:.*nothing of it is taken"),
    pytest.mark.filterwarnings("ignore:.*shares memory with another argument"),
]


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


NETS: dict[str, Callable[[], nn.Module]] = {
    "looks at values": Deciding,
    "keeps state": Counting,
    "asks what its children are": Asking,
    "derives from a container": lambda: Inherited(block(3), block(3)),
    "grows": Growing,
    "nested": Nested,
}


def quick(names: Iterable[str]) -> list[Any]:
    """Every second name; the others are for the full suite."""
    return [pytest.param(name, marks=[pytest.mark.full] * (i % 2)) for i, name in enumerate(names)]


def same(found: Any, expected: Any) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def kinds(fast: Any) -> list[str]:
    """The operators of all parts."""
    return [
        node.op.name
        for program in fast.programs
        for part in program.parts
        for node in part.part.graph.nodes
    ]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("prepared", [True, pytest.param(False, marks=pytest.mark.full)])
@pytest.mark.parametrize("name", NETS)
@torch.no_grad()
def test_what_can_be_captured_is_taken(name: str, prepared: bool) -> None:
    net, x = NETS[name]().eval(), examples(2, 3, 9, 9)
    eager = copy.deepcopy(net)
    fast = md.optimize(net, x if prepared else None, device="reference")
    assert [k for k, _ in net.named_modules()] == [k for k, _ in eager.named_modules()]
    for scale in (1, 2, 3):
        same(fast(scale * x), eager(scale * x))
    found, convolutions = kinds(fast), sum(isinstance(m, nn.Conv2d) for m in net.modules())
    assert found.count("Conv2d") >= convolutions
    assert all(program.left == {} for program in fast.programs)
    one, other = vars(net), vars(eager)
    assert one.keys() == other.keys()
    assert one.get("n") == other.get("n")
    assert all(type(a) is type(b) for a, b in zip(net.modules(), eager.modules(), strict=True))


def test_it_is_said_where_code_goes_on_in_python() -> None:
    fast = md.optimize(Deciding().eval(), examples(2, 3, 9, 9), device="reference")
    assert [piece.broken is None for piece in fast.pieces] == [False, True]
    line = Deciding.forward.__code__.co_firstlineno + 2
    said = f"goes on in Python: {fast.pieces[0].broken}"
    assert said in fast.explain() and said.endswith(f"{__file__}:{line}")


def test_preparing_is_not_seen() -> None:
    net = Counting().eval()
    md.optimize(net, examples(2, 3, 9, 9), device="reference")
    assert net.n == 0 and not hasattr(net, "last")


def test_strict_refuses_it() -> None:
    x = examples(2, 3, 9, 9)
    with pytest.raises(
        UnsupportedError, match=r"^strict=True, and Deciding cannot be captured whole: Data-dep"
    ):
        md.optimize(Deciding().eval(), x, device="reference", strict=True)
    with pytest.raises(UnsupportedError, match=r"^Deciding cannot be captured: GuardOnDataDep"):
        md.compile(Deciding().eval(), (2, 3, 9, 9), device="reference")


def test_mistakes_are_pytorchs() -> None:
    with pytest.raises(RuntimeError, match="to have 3 channels"):
        md.optimize(Counting().eval(), examples(2, 4, 9, 9), device="reference")
    fast = md.optimize(Asking().eval(), examples(2, 3, 9, 9), device="reference")
    with pytest.raises(ValueError, match="a number is none"):
        fast(examples(2, 3, 9, 9) / 0.0 * 0.0)


@torch.no_grad()
def test_after_a_mistake_all_is_taken_as_before() -> None:
    net = nn.Sequential(conv(), nn.ReLU()).eval()
    fast = md.optimize(net, device="reference")
    with pytest.raises(RuntimeError, match="to have 3 channels"):
        fast(examples(2, 4, 9, 9))
    same(fast(examples(2, 3, 9, 9)), net(examples(2, 3, 9, 9)))
    assert kinds(fast) == ["Conv2d", "ReLU"]


def test_a_mistake_without_a_message_is_told_as_it_is() -> None:
    class Refusing(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise ValueError

    with pytest.raises(ValueError, match=r"^$"):
        md.optimize(nn.Sequential(conv(), Refusing()).eval(), examples(2, 3, 4, 4))


@torch.no_grad()
def test_changes_of_any_piece_are_noticed() -> None:
    net, x = Deciding().eval(), examples(2, 3, 9, 9)
    fast = md.optimize(net, x, device="reference")
    net.stem[0].weight.mul_(2.0)
    same(fast(x), net(x))
    net.layers[1] = nn.Sequential(block(3), nn.Sigmoid())
    same(fast(x), net(x))
    for layer in (net.head["a"], net.stem[0]):
        layer.weight.data.fill_(0.5)
        fast.refresh()
        same(fast(x), net(x))


@torch.no_grad()
def test_another_size_has_programs_of_its_own() -> None:
    net = Deciding().eval()
    fast = md.optimize(net, device="reference")
    for size in (9, 11, 9):
        same(fast(examples(2, 3, size, size)), net(examples(2, 3, size, size)))
    assert len(fast.programs) == len(fast.pieces) == 4


@torch.no_grad()
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


@torch.no_grad()
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
                with torch.no_grad():
                    same(fast(examples(batch, 3, 9, 9)), net(examples(batch, 3, 9, 9)))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(batch,)) for batch in (1, 2, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


def conv(inputs: int = 3) -> nn.Module:
    torch.manual_seed(inputs)
    return nn.Conv2d(inputs, 8, 1)


class Looking(nn.Module):
    """Looks at values to decide what it gives; both ways as it was told."""

    def __init__(self, give: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.give = give
        self.seen: list[float] = []

    def forward(self, x: torch.Tensor) -> Any:
        if x.mean() > 1e9:
            return None
        self.seen.append(float(x.detach().flatten()[0]))
        return self.give(x)


class Around(nn.Module):
    """With another layer before and behind it, and writes in place."""

    def __init__(self, middle: nn.Module) -> None:
        super().__init__()
        self.conv = conv()
        self.middle = middle
        self.last = conv(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv(x)
        z = self.middle(y)
        z = y if z is None else z[0] if isinstance(z, tuple) else z
        return self.last(y + z.view_as(y).relu_())  # writes to y, too, where middle gives y


GIVES: dict[str, Callable[[torch.Tensor], Any]] = {
    "another": torch.cos,
    "what it was given": lambda x: x,
    "a view": lambda x: x.flatten(1),
    "nothing": lambda x: None,
    "several": lambda x: (x + 1, 3),
    "what it has written to": lambda x: x.mul_(2),
    "random numbers": lambda x: x + torch.rand(1),
}


@torch.no_grad()
@pytest.mark.parametrize("name", quick(GIVES))
def test_one_that_looks_at_values_gives_what_it_gives(name: str) -> None:
    net = Around(Looking(GIVES[name])).eval()
    eager = copy.deepcopy(net)
    fast = md.optimize(net, examples(2, 3, 4, 4), device="reference")
    assert net.middle.seen == []
    for shift in (0.0, 0.5):
        x = examples(2, 3, 4, 4) + shift
        results = []
        for call in (fast, eager):
            torch.manual_seed(1)
            results.append(call(x))
        same(*results)
    same(net.middle.seen, eager.middle.seen)
    assert kinds(fast).count("Conv2d") == 2


@torch.no_grad()
def test_layers_of_pytorch_beside_one_that_looks_at_values_are_taken() -> None:
    """Dynamo breaks no loop into pieces, such as that of a Sequential over its modules."""
    shared = Looking(lambda x: x * 2)
    net = nn.Sequential(conv(), shared, conv(8), shared, nn.Sequential(conv(8), nn.ReLU())).eval()
    fast = md.optimize(net, examples(2, 3, 4, 4), device="reference")
    assert shared.seen == [] and kinds(fast).count("Conv2d") == 3
    same(fast(examples(2, 3, 4, 4) + 1), net(examples(2, 3, 4, 4) + 1))
    assert len(shared.seen) == 4
    assert (
        fast.explain().count("goes on in Python: layers of PyTorch's are captured one by one") == 1
    )


def test_one_of_which_nothing_is_known_is_told() -> None:
    class Leaf(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.special.i0(x) if float(x[0, 0]) > 0 else torch.special.i1(x)

    x = examples(2, 3).abs()
    with pytest.warns(MiniDNNWarning, match="^Leaf: nothing was taken, all runs in PyTorch:\n"):
        fast = md.optimize(Leaf().eval(), x, device="reference")
    with torch.no_grad():
        same(fast(-x), Leaf()(-x))


class Selecting(nn.Module):
    """Gives the rows whose first number is positive."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[x[:, 0] > 0] if x.mean() < 1e9 else x


@torch.no_grad()
def test_results_of_other_sizes_from_call_to_call() -> None:
    class Averaging(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.selecting = nn.Linear(4, 4), Selecting()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.selecting(self.first(x))
            return torch.sigmoid(y) / len(y)

    torch.manual_seed(0)
    net = Averaging().eval()
    fast = md.optimize(net, examples(8, 4), device="reference")
    sizes = set()
    for shift in (0.0, 0.5, -0.5, 2.0):
        x = examples(8, 4) + shift
        same(fast(x), net(x))
        sizes.add(len(net(x)))
    assert len(sizes) > 2


@torch.no_grad()
def test_results_of_other_strides() -> None:
    class Turning(nn.Module):
        """Gives an array's transpose, whose strides depend on its sum."""

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            turned = (x + 1).transpose(1, 2)
            return turned if x.sum() > 0 else turned.contiguous()

    class Asking(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x if x.is_contiguous() else x.contiguous()
            return torch.sin(x.view(2, -1)).cumsum(1)

    net = nn.Sequential(nn.ReLU(), Turning(), Asking()).eval()
    for given in (1.0, -1.0):
        fast = md.optimize(net, torch.full((2, 3, 4), given), device="reference")
        for x in (examples(2, 3, 4).abs(), -examples(2, 3, 4).abs()):
            torch.testing.assert_close(fast(x), net(x), rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_hooks_of_one_that_looks_at_values_run_once() -> None:
    net = Around(Looking(torch.cos)).eval()
    net.middle.register_forward_pre_hook(lambda module, args: (args[0] * 3,))
    net.middle.register_forward_hook(lambda module, args, result: result + args[0])
    net.last.register_forward_hook(lambda _, args, x: x * 2 if x.sum() < 1e9 else x)
    fast = md.optimize(net, examples(2, 3, 4, 4), device="reference")
    same(fast(examples(2, 3, 4, 4) - 1), net(examples(2, 3, 4, 4) - 1))
    assert len(net.middle.seen) == 2


@torch.no_grad()
def test_hooks_that_the_module_around_it_registers_in_a_call() -> None:
    class Listening(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Looking(torch.cos)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            heard: list[torch.Tensor] = []
            hook = self.inner.register_forward_hook(lambda _, args, result: heard.append(result))
            y = self.inner(x)
            hook.remove()
            return y + heard[0]

    net = Around(Listening()).eval()
    fast = md.optimize(net, examples(2, 3, 4, 4), device="reference")
    for _ in range(2):
        same(fast(examples(2, 3, 4, 4)), net(examples(2, 3, 4, 4)))
    assert not net.middle.inner._forward_hooks
