"""Arguments that the module itself refuses, and those without elements."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor

import minidnn as md
from minidnn.errors import MiniDNNWarning, UnsupportedError


class Looking(nn.Module):
    """Looks at values."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.exp() if float(x.detach().sum()) < 9 else x.neg()


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), Looking(), nn.Conv2d(4, 2, 1)).eval()


def test_mistakes_of_the_caller_are_pytorchs_errors() -> None:
    net, x = network(), torch.ones(1, 3, 8, 8)
    for args in ((), (x, 1.0), (x.numpy(),), (torch.ones(1, 4, 8, 8),), (x.double(),)):
        with pytest.raises((TypeError, RuntimeError)) as expected:
            net(*args)
        with pytest.raises(type(expected.value)) as found:
            md.optimize(net, device="reference")(*args)
        assert str(found.value) == str(expected.value)


def test_without_images_all_runs_in_pytorch() -> None:
    net, x = network(), torch.ones(0, 3, 8, 8)
    fast = md.optimize(net, device="reference")
    with torch.no_grad():
        with pytest.warns(MiniDNNWarning, match=r"nothing of it is taken(.|\n)* has no elements"):
            found = fast(x)
        torch.testing.assert_close(found, net(x), rtol=0, atol=0)


class Given(nn.Module):
    """Takes a tensor, and what is done with it."""

    def forward(self, x: torch.Tensor, what: Any) -> torch.Tensor:
        if isinstance(what, slice):
            return x[:, what].relu()
        return x * what(x) if callable(what) else x * torch.as_tensor(what).sum()


@pytest.mark.filterwarnings("ignore:Given. a piece runs in PyTorch:minidnn.errors.MiniDNNWarning")
@pytest.mark.parametrize("what", [slice(0, 2), 2j, np.float32(2), np.arange(3.0), nn.ReLU()])
def test_arguments_that_are_no_tensors(what: Any) -> None:
    net, x = Given().eval(), torch.ones(2, 3)
    fast = md.optimize(net, device="reference")
    for factor in (1, -2):
        torch.testing.assert_close(fast(x * factor, what), net(x * factor, what), rtol=0, atol=0)
    if isinstance(what, complex):  # the engine has no such numbers
        with pytest.raises(UnsupportedError, match=r"strict=True(.|\n)* dtype complex"):
            md.optimize(net, device="reference", strict=True)(x, what)
    elif not isinstance(what, nn.Module):
        other = slice(1, 3) if isinstance(what, slice) else what + 1
        torch.testing.assert_close(fast(x, other), net(x, other), rtol=0, atol=0)


class Tagged(torch.Tensor):
    """Keeps its tag in whatever is computed of it."""

    tag = ""

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        made = super().__torch_function__(func, types, args, kwargs)
        if isinstance(made, Tagged) and isinstance(args[0], Tagged):
            made.tag = args[0].tag
        return made


def tagged(x: torch.Tensor) -> Tagged:
    found = x.as_subclass(Tagged)
    found.tag = "seen"
    return found


OF_OTHER_CLASSES: list[Callable[[torch.Tensor], torch.Tensor]] = [
    tagged,
    lambda x: TwoTensor(x, x + 1),
]


@pytest.mark.parametrize("device", ["reference", "cpu"])
@pytest.mark.parametrize("of_another", OF_OTHER_CLASSES)
def test_tensors_of_other_classes_are_left_to_pytorch(of_another: Any, device: str) -> None:
    net, x = nn.Sequential(nn.Linear(3, 2), nn.ReLU()).eval(), torch.ones(2, 3)
    fast, other = md.optimize(net, x, device=device), of_another(x)
    with torch.no_grad():
        with warned(other):
            found = fast(other)
        expected = net(other)
        assert type(found) is type(other)
        assert getattr(found, "tag", None) == getattr(expected, "tag", None)
        for part in ("a", "b") if isinstance(other, TwoTensor) else ("data",):
            pair = getattr(found, part), getattr(expected, part)
            if isinstance(other, TwoTensor):
                assert torch.equal(*pair)
            else:  # computed by a program, which may round otherwise than PyTorch
                torch.testing.assert_close(*pair)
        assert type(fast(x)) is torch.Tensor  # still by its program
    if isinstance(other, TwoTensor):
        assert len(fast.programs) == 1
        with pytest.raises(UnsupportedError, match=r"^strict=True, .* a TwoTensor is given, which"):
            md.optimize(net, device=device, strict=True)(other)


def warned(tensor: torch.Tensor) -> Any:
    """A tensor without memory of its own is left to PyTorch; functions of others are traced."""
    said = "Sequential: a piece runs in PyTorch: a TwoTensor is given, which has no memory"
    is_left = isinstance(tensor, TwoTensor)
    return pytest.warns(MiniDNNWarning, match=said) if is_left else nullcontext()


class Appending(nn.Module):
    def forward(self, x: torch.Tensor, kept: list[torch.Tensor]) -> torch.Tensor:
        kept.append(x.relu())
        return kept[-1] + 1


class Entering(nn.Module):
    def forward(self, x: torch.Tensor, kept: dict[str, torch.Tensor]) -> torch.Tensor:
        kept["x"] = x.relu()
        return x + 1


class Replacing(nn.Module):
    """Looks at values, and changes what it is given."""

    def forward(self, kept: list[torch.Tensor]) -> torch.Tensor:
        kept[0] = kept[0].relu() if float(kept[0].sum()) < 9 else kept[0]
        return kept[0] + 1


class Around(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Replacing()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = [x * 2]
        found: torch.Tensor = self.inner(kept)
        return found + kept[0]


@pytest.mark.parametrize(
    "net, kept", [(Appending(), []), (Entering(), {}), (Entering(), {"x": torch.zeros(2, 3)})]
)
def test_a_module_that_changes_a_list_or_dict_that_it_is_given_does_so(
    net: nn.Module, kept: Any
) -> None:
    expected, x = kept.copy(), torch.ones(2, 3)
    fast = md.optimize(net.eval(), device="reference", strict=True)
    for scale in (1, 2):
        torch.testing.assert_close(fast(scale * x, kept), net(scale * x, expected))
        torch.testing.assert_close(kept, expected)


def test_one_that_breaks_the_graph_changes_a_list_of_the_module_around_it() -> None:
    body = Around()
    net = nn.Sequential(nn.Linear(3, 3), body, nn.ReLU()).eval()
    x = torch.ones(2, 3)
    fast = md.optimize(net, x, device="reference")
    with torch.no_grad():
        torch.testing.assert_close(fast(x), net(x), rtol=1e-5, atol=1e-5)
    assert "goes on in Python" in fast.explain()
