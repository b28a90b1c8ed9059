"""Modules that cannot be captured: called as they are, wherever and however often they stand."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import minidnn as md
from minidnn.errors import UnsupportedError


def examples(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(2))


class Deciding(nn.Module):
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
    def __init__(self, *inner: nn.Module) -> None:
        super().__init__()
        self.inner = nn.ModuleList(inner)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for module in self.inner:
            x = module(x)
        return x[0] + 1 if isinstance(x, tuple) else x + 1


def conv(inputs: int = 8) -> nn.Module:
    return nn.Conv2d(inputs, 8, 1)


def optimized(net: nn.Module, **options: Any) -> Any:
    """With its results compared on an input that it was not compiled with."""
    torch.manual_seed(0)
    fast = md.optimize(net.eval(), examples(2, 3, 4, 4), device="reference", **options)
    x = examples(2, 3, 4, 4) - 0.5
    with torch.no_grad():
        torch.testing.assert_close(fast(x), net(x), rtol=1e-5, atol=1e-5)
    return fast


def taken(fast: Any) -> list[bool]:
    return [level.taken for level in fast.programs[0].levels]


class Particular(nn.Module):
    """Takes nothing but plain tensors, and has no message for who brings others."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if type(x) is not torch.Tensor:
            raise AssertionError  # as a bare assert where pytest writes no message into it
        return x * 2


def test_one_that_fails_without_a_message() -> None:
    fast = optimized(nn.Sequential(conv(3), Particular(), conv()))
    assert taken(fast) == [True, False, True]
    assert "\n  1: a module as it is: AssertionError\n" in fast.explain()


def test_a_mistake_without_a_message_is_told_as_it_is() -> None:
    class Refusing(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise ValueError

    with pytest.raises(ValueError, match=r"^$"):
        md.optimize(nn.Sequential(conv(3), Refusing()).eval(), examples(2, 3, 4, 4))


def test_one_that_stands_in_several_places() -> None:
    shared = Deciding(lambda x: x * 2)
    fast = optimized(nn.Sequential(conv(3), shared, conv(), shared, conv(), Around(shared)))
    assert taken(fast) == [True, False, True, False, True, False, True]
    assert "\n  1, 1, 1: a module as it is: GuardOnDataDependentSymNode: " in fast.explain()
    assert "(3 times)" in fast.explain()
    shared.seen.clear()
    fast(examples(2, 3, 4, 4))
    assert len(shared.seen) == 3


def test_one_within_a_module_that_stands_in_several_places() -> None:
    shared = Around(conv(), Deciding(torch.cos))
    fast = optimized(nn.Sequential(conv(3), shared, nn.ReLU(True), shared))
    assert taken(fast) == [True, False, True, False, True]


def test_one_that_gives_what_it_was_given() -> None:
    """Such as one that prints: writes in place behind it keep their meaning."""
    look = Deciding(lambda x: x)
    fast = optimized(nn.Sequential(conv(3), look, nn.ReLU(True), conv()))
    assert taken(fast) == [True, False, True]
    optimized(nn.Sequential(look, nn.ReLU(), conv(3)))


def test_one_that_gives_a_view() -> None:
    flatten = Deciding(lambda x: x.flatten(1))
    fast = optimized(nn.Sequential(conv(3), flatten, nn.Linear(128, 4)))
    assert taken(fast) == [True, False, True]


def test_one_that_gives_nothing_is_called() -> None:
    class Logged(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = conv(3)
            self.log = Deciding(lambda x: None)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.conv(x)
            self.log(y)
            return torch.relu(y)

    net = Logged()
    fast = optimized(net)
    net.log.seen.clear()
    fast(examples(2, 3, 4, 4))
    assert net.log.seen == [
        pytest.approx(net.conv(examples(2, 3, 4, 4)).detach()[0, 0, 0, 0].item())
    ]


@pytest.mark.parametrize(
    ("give", "reason"),
    [
        (lambda x: (x, 3), "it gives Tensor, int; valid are tensors, and None"),
        (lambda x: x.mul_(2), "it writes to its operands"),
    ],
)
def test_what_is_more_than_an_operation_takes_the_module_around_it_along(
    give: Callable[[torch.Tensor], Any], reason: str
) -> None:
    around = Around(conv(), Deciding(give))
    fast = optimized(nn.Sequential(conv(3), around, conv(), nn.Sequential(around)))
    assert taken(fast) == [True, False, True, False]
    lines = fast.explain().splitlines()
    (line,) = [line for line in lines if "1, 1: a module as it is: its module " in line]
    assert "'1.inner.1' cannot be captured (GuardOnDataDependentSymNode: " in line
    assert line.endswith(f"), nor be called as one operation: {reason} (2 times)")
    with pytest.raises(UnsupportedError) as caught:
        md.optimize(
            nn.Sequential(conv(3), Deciding(give)).eval(), examples(2, 3, 4, 4), strict=True
        )
    text = str(caught.value)
    assert text.startswith("Sequential cannot be captured: its module '1' cannot be captured (")
    assert f"nor be called as one operation: {reason}; torch.compile(" in text


def test_one_of_several_uses_that_nothing_is_around_of() -> None:
    shared = Deciding(lambda x: x.mul_(2))
    net = nn.Sequential(conv(3), Around(conv(), shared), conv(), shared).eval()
    with pytest.raises(UnsupportedError, match=r"its module '1\.inner\.1' cannot be captured"):
        md.optimize(net, examples(2, 3, 4, 4), strict=True)


class Residual(nn.Module):
    def __init__(self, middle: nn.Module) -> None:
        super().__init__()
        self.conv = conv()
        self.middle = middle

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv(x)
        return y + self.middle(y).relu_()  # writes to y, too, where middle gives y


def test_a_write_in_place_to_memory_that_one_was_given() -> None:
    look = Deciding(lambda x: x)
    fast = optimized(nn.Sequential(conv(3), Residual(look), conv()))
    assert taken(fast) == [True, False, True]
    assert "it gives memory that it was given, and aten.relu_.default writes to" in fast.explain()
    fast = optimized(nn.Sequential(conv(3), Residual(Deciding(lambda x: x + 1)), conv()))
    assert "it gives memory" not in fast.explain()
    with pytest.raises(UnsupportedError, match="it gives memory that it was given, and aten"):
        md.optimize(Residual(look).eval(), examples(2, 8, 4, 4), strict=True)


def test_results_that_are_not_those_of_the_capture() -> None:
    class Growing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.grown = False

        def forward(self, x: torch.Tensor) -> Any:
            if self.grown and x.mean() < 1e9:
                return None
            return x + float(x.mean().item() > 1e9) if x.mean() < 1e9 else x

    net = nn.Sequential(conv(3), Growing(), nn.ReLU()).eval()
    fast = md.optimize(net, examples(2, 3, 4, 4), device="reference")
    net[1].grown = True
    with pytest.raises(UnsupportedError) as caught:
        fast(examples(2, 3, 4, 4))
    assert str(caught.value).startswith("module '1' gave ")
    assert " of NoneType; when the network was captured, " in str(caught.value)


class Selecting(nn.Module):
    """Gives the rows whose first number is positive."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[x[:, 0] > 0] if x.mean() < 1e9 else x


@pytest.mark.parametrize("is_read", [True, False])
def test_results_of_another_size_than_at_the_capture(is_read: bool) -> None:
    class Averaging(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.sin(x).cumsum(0) / len(x)

    net = nn.Sequential(nn.Linear(4, 4), Selecting(), *[Averaging()][:is_read]).eval()
    with torch.no_grad():
        x = torch.linalg.solve(net[0].weight, examples(8, 4).abs().T - net[0].bias[:, None]).T
        fast = md.optimize(net, x, device="reference")
        torch.testing.assert_close(fast(x), net(x), rtol=1e-4, atol=1e-4)
        other = x.clone()
        other[:4] -= torch.linalg.solve(net[0].weight, torch.full((4,), 9.0))
        if not is_read:
            torch.testing.assert_close(fast(other), net(other), rtol=1e-4, atol=1e-4)
            return
        with pytest.raises(UnsupportedError) as caught:
            fast(other)
    assert str(caught.value).startswith("module '1' gave float32[4, 4] on cpu; when the network")


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


def test_random_numbers_are_those_of_pytorch() -> None:
    class Drawing(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.rand(1) if x.mean() < 1e9 else x

    net = nn.Sequential(nn.ReLU(), Drawing(), nn.ReLU()).eval()
    found = []
    for call in (net, md.optimize(net, device="reference")):
        torch.manual_seed(1)
        found.append(call(examples(2, 3)))
    torch.testing.assert_close(*found)


class Keeping(nn.Module):
    """Writes to what it holds, as it is told."""

    def __init__(self, write: Callable[[Any, torch.Tensor], Any]) -> None:
        super().__init__()
        self.write = write
        self.calls = 0
        self.last: torch.Tensor | None = None
        self.seen: list[torch.Tensor] = []
        self.by_name: dict[str, Any] = {"nested": []}
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * (self.calls + 1) + self.mean
        if self.last is not None:
            y = y + self.last
        self.write(self, x)
        return y + len(self.seen)


WRITES: dict[str, Callable[[Any, torch.Tensor], Any]] = {
    "calls": lambda self, x: setattr(self, "calls", self.calls + 1),
    "last": lambda self, x: setattr(self, "last", x.detach()),
    "seen": lambda self, x: self.seen.append(x),
    "by_name": lambda self, x: self.by_name["nested"].append(x),
    "feature": lambda self, x: setattr(self, "feature", x),
}


@pytest.mark.parametrize("name", WRITES)
def test_one_that_keeps_state(name: str) -> None:
    """It is called as it is, and capturing leaves no trace in it."""
    torch.manual_seed(0)
    net = nn.Sequential(conv(3), Around(Keeping(WRITES[name])), conv()).eval()
    kept, seen, eager = net[1].inner[0], net[1].inner[0].seen, copy.deepcopy(net)
    before = dict(vars(kept))
    fast = md.optimize(net, examples(2, 3, 4, 4), device="reference")
    assert taken(fast) == [True, False, True]
    assert vars(kept) == before and kept.seen is seen == []
    assert f"it keeps state: its attribute {name!r} changes when it is called" in fast.explain()
    with torch.no_grad():
        for shift in range(3):
            x = examples(2, 3, 4, 4) + shift
            torch.testing.assert_close(fast(x), eager(x), rtol=1e-5, atol=1e-5)
    states = [vars(each.get_submodule("1.inner.0"))[name] for each in (net, eager)]
    torch.testing.assert_close(*states, rtol=1e-5, atol=1e-5)
    assert len(fast.programs) == 1


def test_one_that_keeps_state_beside_one_that_cannot_be_captured() -> None:
    """The network is run once to see what that gives, which leaves no trace either."""

    def write(self: Any, x: torch.Tensor) -> None:
        self.calls += 1
        self.mean.add_(1)

    torch.manual_seed(0)
    net = nn.Sequential(conv(3), Deciding(torch.cos), Keeping(write), conv()).eval()
    eager = copy.deepcopy(net)
    fast = md.optimize(net, examples(2, 3, 4, 4), device="reference")
    assert net[2].calls == net[2].mean == 0
    x = examples(2, 3, 4, 4)
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(fast(x), eager(x), rtol=1e-5, atol=1e-5)
    assert net[2].calls == net[2].mean == 3


def test_state_of_the_network_itself_is_refused() -> None:
    class Counting(nn.Sequential):
        calls = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            return super().forward(x) * self.calls

    net = Counting(conv(3)).eval()
    with pytest.raises(UnsupportedError, match="Counting cannot be captured: it keeps state: its"):
        md.optimize(net, examples(2, 3, 4, 4), strict=True)
    assert "calls" not in vars(net)


class Outside(nn.Module):
    """Has one whose state it reads or writes itself."""

    def __init__(self, read: Callable[[Any, torch.Tensor], Any], inner: nn.Module) -> None:
        super().__init__()
        self.read = read
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.inner(x)
        found = self.read(self.inner, y)
        return y if found is None else y + found


def _written(inner: Any, y: torch.Tensor) -> None:
    inner.flag = not getattr(inner, "flag", False)


@pytest.mark.parametrize(
    ("read", "said"),
    [
        (lambda inner, y: inner.last, "attribute 'last' is read from outside"),
        (_written, "attribute 'flag' is written to from outside"),
    ],
)
def test_state_that_another_reads_or_writes(
    read: Callable[[Any, torch.Tensor], Any], said: str
) -> None:
    torch.manual_seed(0)
    around = Outside(read, Keeping(WRITES["last"]))
    net = nn.Sequential(conv(3), around, conv()).eval()
    x = examples(2, 3, 4, 4)
    with torch.no_grad():
        net(x - 1)
        eager = copy.deepcopy(net)
        fast = md.optimize(net, x, device="reference")
        assert taken(fast) == [True, False, True]
        for _ in range(3):
            torch.testing.assert_close(fast(x), eager(x), rtol=1e-5, atol=1e-5)
        assert said in fast.explain()
        with pytest.raises(UnsupportedError, match=f"Outside cannot be captured: .*{said}"):
            md.optimize(around, net[0](x), strict=True)


class Encoding(nn.Module):
    """Encodes sequences, of which a mask says what is padding."""

    def __init__(self, kind: type[nn.TransformerEncoder]) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.before = nn.Linear(8, 8)
        self.encoder = kind(layer, 1)
        self.after = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor, padding: torch.Tensor | None = None) -> Any:
        return self.after(self.encoder(self.before(x), src_key_padding_mask=padding))


class OwnEncoder(nn.TransformerEncoder):
    def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        return super().forward(*args, **kwargs) * 2


@torch.no_grad()
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize("kind", [nn.TransformerEncoder, OwnEncoder])
def test_an_encoder_that_takes_padding_away(kind: type[nn.TransformerEncoder]) -> None:
    """Which has zeros in its place only when it is called, and not for every mask."""
    torch.manual_seed(0)
    net, x = Encoding(kind).eval(), examples(2, 4, 8)
    masks = [torch.tensor(m) > 0 for m in ([[0, 0, 0, 1], [0] * 4], [[0, 0, 1, 1], [0, 0, 0, 1]])]
    fast = md.optimize(net, (x, masks[0]), device="reference")
    assert taken(fast) == [True, False, True]
    assert "\n  encoder: a module as it is: with a padding mask it uses nested" in fast.explain()
    for mask in (*masks, masks[1].flip(1)):
        torch.testing.assert_close(fast(x, mask), net(x, mask), rtol=1e-5, atol=1e-5)
    plain = md.optimize(net, x, device="reference")
    assert "a module as it is" not in plain.explain()
    torch.testing.assert_close(plain(x), net(x), rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_an_encoder_that_keeps_padding_is_captured() -> None:
    net, x = Encoding(nn.TransformerEncoder).eval(), examples(2, 4, 8)
    mask = torch.tensor([[0, 0, 0, 1], [0] * 4]) > 0
    with pytest.raises(UnsupportedError, match="valid is use_nested_tensor = False"):
        md.optimize(net.encoder, x, kwargs={"src_key_padding_mask": mask}, strict=True)
    net.encoder.use_nested_tensor = False
    fast = md.optimize(net, (x, mask), device="reference")
    assert "a module as it is" not in fast.explain()
    torch.testing.assert_close(fast(x, mask), net(x, mask), rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_its_hooks_run_once() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(conv(3), Deciding(torch.cos), conv()).eval()
    net[1].register_forward_pre_hook(lambda module, args: (args[0] * 3,))
    net[1].register_forward_hook(lambda module, args, result: result + args[0])
    fast = optimized(net)
    assert taken(fast) == [True, False, True]


@torch.no_grad()
def test_hooks_that_cannot_be_captured_are_part_of_it() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(conv(3), nn.Tanh(), conv()).eval()
    net[1].register_forward_hook(lambda _, args, x: x * 2 if x.sum() < 1e9 else x)
    assert taken(optimized(net)) == [True, False, True]


@torch.no_grad()
def test_hooks_that_the_module_around_it_registers_in_a_call() -> None:
    class Listening(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Deciding(torch.cos)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            heard: list[torch.Tensor] = []
            hook = self.inner.register_forward_hook(lambda _, args, result: heard.append(result))
            y = self.inner(x)
            hook.remove()
            return y + heard[0]

    assert taken(optimized(nn.Sequential(conv(3), Listening(), conv()))) == [True, False, True]
