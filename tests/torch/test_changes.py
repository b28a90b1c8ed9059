"""Changes of an optimized network that are no writes to a weight: another tensor, module or
attribute."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import minidnn as md
from minidnn.acceleration.watch import Watch
from minidnn.frontends.torch.captured import Held


def examples(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(2))


X = examples(2, 3, 6, 6)


class Scaled(nn.Module):
    power = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 1)
        self.scale = torch.tensor(2.0)
        self.factor = 1.5
        self.turned = False
        self.act: Callable[[torch.Tensor], torch.Tensor] = torch.relu
        self.table = {"shift": 1.0}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv(x) * self.scale * self.factor * self.power + self.table["shift"]
        y = y.transpose(2, 3) if self.turned else y
        return self.act(y + self.offset) if hasattr(self, "offset") else self.act(y)


def make() -> nn.Sequential:
    torch.manual_seed(0)
    net = nn.Sequential(
        *(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3), nn.LeakyReLU(0.1), Scaled()),
        *(nn.Conv2d(3, 3, 1, bias=False), nn.BatchNorm2d(3)),
    )
    net[4].weight, net[5].running_mean = net[0].weight, net[1].running_mean
    return net.eval()


def _weight() -> nn.Parameter:
    return nn.Parameter(examples(3, 3, 1, 1))


CHANGES: dict[str, Callable[[Any], Any]] = {
    "tied weight": (lambda net: setattr(net[4], "weight", _weight())),
    "first of tied": (lambda net: setattr(net[0], "weight", _weight())),
    "tied buffer": (lambda net: setattr(net[5], "running_mean", examples(3))),
    "assigned": (
        lambda net: net.load_state_dict(
            {name: tensor.clone() * 1.5 for name, tensor in net.state_dict().items()}, assign=True
        )
    ),
    "bias": (lambda net: setattr(net[4], "bias", nn.Parameter(examples(3)))),
    "buffer": (lambda net: net[3].register_buffer("offset", examples(6))),
    "appended": (lambda net: net.append(nn.Conv2d(3, 4, 1))),
    "removed": (lambda net: net.pop(2)),
    "module": (lambda net: setattr(net, "2", nn.Tanh())),
    "order": (lambda net: setattr(net, "2", net._modules.pop("2"))),
    "slope": (lambda net: setattr(net[2], "negative_slope", 0.5)),
    "tensor": (lambda net: setattr(net[3], "scale", torch.tensor(7.0))),
    "float": (lambda net: setattr(net[3], "factor", 9)),
    "bool": (lambda net: setattr(net[3], "turned", True)),
    "function": (lambda net: setattr(net[3], "act", torch.sigmoid)),
    "of the class": (lambda net: setattr(net[3], "power", 3.0)),
    "forward": (lambda net: setattr(net[2], "forward", lambda x: x * 3)),
    "dict of parameters": (
        lambda net: setattr(net[0], "_parameters", {"weight": _weight(), "bias": None})
    ),
    "dict of buffers": (
        lambda net: setattr(
            net[1], "_buffers", {name: each + 1 for name, each in net[1].named_buffers()}
        )
    ),
    "dict of modules": (lambda net: setattr(net, "_modules", {**net._modules, "2": nn.Tanh()})),
}


@pytest.fixture(params=["reference", "cpu"])
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", CHANGES)
def test_changes_are_noticed(name: str) -> None:
    net = make()
    fast = md.optimize(net, X, device="reference")
    with torch.no_grad():
        torch.testing.assert_close(fast(X), net(X), rtol=1e-4, atol=1e-4)
        CHANGES[name](net)
        torch.testing.assert_close(fast(X), net(X), rtol=1e-4, atol=1e-4)
        pieces, programs = list(fast.pieces), fast.programs
        torch.testing.assert_close(fast(X + 1), net(X + 1), rtol=1e-4, atol=1e-4)
        assert fast.pieces == pieces and fast.programs == programs


def test_memory_that_was_freed_and_taken_again_is_another() -> None:
    """As by ``net.half().float()``: what a GPU frees it gives to the next who asks for as much."""
    conv, memory = nn.Conv2d(3, 3, 1), np.ones((3, 3, 1, 1), np.float32)
    weight = conv.weight
    weight.data = torch.from_numpy(memory)
    watch = Watch([Held(conv._parameters, "weight", "weight")])
    before = weight._version, weight.data_ptr()
    assert watch.is_as_it_was()
    weight.data = torch.empty(0)  # where the storage was another may be then
    memory.reshape(-1)[7] = 2  # which is no word that is looked at
    weight.data = torch.from_numpy(memory)
    assert (weight._version, weight.data_ptr()) == before
    assert not watch.is_as_it_was() and watch.changed() == "weight"
    watch.renew()
    assert watch.is_as_it_was() and watch.changed() is None


def test_writes_between_the_words_that_are_looked_at_are_counted() -> None:
    weight = nn.Parameter(torch.zeros(64))
    watch = Watch([Held({"weight": weight}, "weight", "weight")])
    with torch.no_grad():
        weight[1] = 5.0
    assert not watch.is_as_it_was() and watch.changed() == "weight"


def test_memory_of_another_tensor_is_noticed_by_its_address() -> None:
    """Where all words that are looked at are the same, and PyTorch counts no write."""
    weight = nn.Parameter(torch.zeros(64))
    before = weight.data  # else its memory is freed, which is noticed, too
    watch = Watch([Held({"weight": weight}, "weight", "weight")])
    other = torch.zeros(64)
    other[1] = 5.0
    weight.data = other
    assert before.data_ptr() != weight.data_ptr()
    assert not watch.is_as_it_was() and watch.changed() == "weight"


def test_equal_attributes_are_no_change() -> None:
    net = make()
    fast = md.optimize(net, X, device="reference")
    pieces, programs = list(fast.pieces), fast.programs
    net[3].factor = float("1.5")
    net[0].stride = tuple([1, 1])
    with torch.no_grad():
        torch.testing.assert_close(fast(X), net(X), rtol=1e-4, atol=1e-4)
    assert fast.pieces == pieces and fast.programs == programs


def test_writes_past_pytorch_are_seen() -> None:
    net = make()
    fast = md.optimize(net, X, device="reference")
    with torch.no_grad():
        fast(X)
        net[0].weight.data.mul_(2)
        torch.testing.assert_close(fast(X), net(X), rtol=1e-4, atol=1e-4)
        net[0].bias.numpy()[:] += 1
        torch.testing.assert_close(fast(X), net(X), rtol=1e-4, atol=1e-4)


def test_the_inside_of_a_dict_is_noticed_and_refresh_captures_anew() -> None:
    net = make()
    fast = md.optimize(net, X, device="reference")
    net[3].table["shift"] = 3.0
    with torch.no_grad():
        torch.testing.assert_close(fast(X), net(X), rtol=1e-5, atol=1e-5)
        fast.refresh()
        assert fast.pieces == []
        torch.testing.assert_close(fast(X), net(X), rtol=1e-5, atol=1e-5)
        (program,) = fast.programs
        fast(X)
    assert fast.programs == [program]


def test_other_sizes_leave_programs_as_they_are() -> None:
    net = make()
    table, stride = net[3].table, net[0].stride
    fast = md.optimize(net, X, device="reference")
    with torch.no_grad():
        fast(X[:1])
    assert all(program.watch.is_as_it_was() for program in fast.programs)
    assert net[3].table is table and net[0].stride is stride


def test_weights_computed_of_weights() -> None:
    class Normalized(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.utils.parametrizations.weight_norm(nn.Conv2d(3, 4, 3))
            self.register_buffer("table", torch.arange(4.0))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(self.conv(x)) * self.table.exp()[:, None, None]

    torch.manual_seed(0)
    net, x = Normalized().eval(), examples(1, 3, 6, 6)
    fast: Any = md.optimize(net, (x,), device="reference")
    with torch.no_grad():
        torch.testing.assert_close(fast(x), net(x), rtol=1e-5, atol=1e-5)
        net.conv.parametrizations.weight.original0.mul_(2)
        net.table.add_(0.5)
        torch.testing.assert_close(fast(x), net(x), rtol=1e-5, atol=1e-5)


def test_attributes_set_at_the_optimized_module_are_the_originals() -> None:
    class Divided(Scaled):
        @property
        def halved(self) -> float:
            return self.factor / 2

        @halved.setter
        def halved(self, value: float) -> None:
            self.factor = value * 2

    torch.manual_seed(0)
    net = Divided().eval()
    fast: Any = md.optimize(net, X, device="reference")
    for name, value in (("power", 3.0), ("halved", 2.0), ("conv", nn.Conv2d(3, 3, 1))):
        setattr(fast, name, value)
        assert getattr(net, name) == value
        with torch.no_grad():
            torch.testing.assert_close(fast(X), net(X), rtol=1e-5, atol=1e-5)
    del fast.power
    assert "power" not in vars(net)
    with torch.no_grad():
        torch.testing.assert_close(fast(X), net(X), rtol=1e-5, atol=1e-5)


def test_the_mode_is_the_originals() -> None:
    class Functional(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(x) * (2 if self.training else 1)

    net = Functional().eval()
    fast = md.optimize(net, X, device="reference")
    for mode in (True, False):
        net.train(mode)
        assert fast.training is mode
        torch.testing.assert_close(fast(X), net(X))
        fast.train(not mode)
        assert net.training is not mode
        torch.testing.assert_close(fast(X), net(X))


# One that is optimized is not looked into: around it there may be nothing.
@pytest.mark.sampled(3)
@pytest.mark.filterwarnings("ignore:.*makes no graph of any of it:minidnn.errors.MiniDNNWarning")
@pytest.mark.parametrize("change", [CHANGES["float"], CHANGES["forward"]])
def test_changes_within_an_optimized_module_in_another(change: Callable[[Any], Any]) -> None:
    net = make()
    around = nn.Sequential(md.optimize(net, device="reference"), nn.ReLU()).eval()
    fast = md.optimize(around, X, device="reference")
    change(net)
    with torch.no_grad():
        torch.testing.assert_close(fast(X), net(X).relu(), rtol=1e-5, atol=1e-5)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("is_direct", [False, True])
def test_statistics_that_training_writes(device: str, is_direct: bool) -> None:
    """PyTorch does not count these writes."""
    net = make()
    fast = md.optimize(net, X, device=device)
    called = net if is_direct else fast
    with torch.no_grad():
        called.train()
        called(X * 3)
        called.eval()
        torch.testing.assert_close(fast(X), net(X), rtol=1e-4, atol=1e-4)


def test_tensors_in_the_place_of_parameters() -> None:
    net = make()
    fast = md.optimize(net, X, device="reference")
    other = {name: tensor.detach() * 1.5 for name, tensor in net.named_parameters()}
    with torch.no_grad():
        for given in (other, {}):
            found = torch.func.functional_call(fast, given, (X,))
            expected = torch.func.functional_call(net, given, (X,))
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_items_set_at_the_optimized_module_are_the_originals() -> None:
    net = make()
    fast = md.optimize(net, X, device="reference")
    fast[0] = nn.Conv2d(3, 3, 3)
    del fast[5]
    assert len(net) == 5 and net[0] is fast[0]
    torch.testing.assert_close(fast(X), net(X), rtol=1e-4, atol=1e-4)


def _doubled(module: nn.Module, given: Any, result: torch.Tensor) -> torch.Tensor:
    return result * 2


def _pickled(module: Any) -> Any:
    return pickle.loads(pickle.dumps(module))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, _pickled])
def test_copies_have_the_hooks(copied: Callable[[Any], Any]) -> None:
    fast = md.optimize(make(), X, device="reference")
    fast.register_forward_hook(_doubled)
    torch.testing.assert_close(copied(fast)(X), fast.original(X) * 2, rtol=1e-4, atol=1e-4)


def test_hooks_of_the_state_dict_are_the_originals() -> None:
    net = make()
    fast = md.optimize(net, X, device="reference")
    loaded: list[nn.Module] = []
    fast.register_state_dict_post_hook(lambda module, found, *_: found.__delitem__("0.bias"))
    fast.register_load_state_dict_post_hook(lambda module, keys: loaded.append(module))
    assert "0.bias" not in fast.state_dict() and "0.bias" not in net.state_dict()
    fast.load_state_dict(fast.state_dict(), strict=False)
    assert loaded == [net]
    assert "0.bias" not in copy.deepcopy(fast).state_dict()
