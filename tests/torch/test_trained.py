"""An optimized module in training mode: PyTorch's tape around programs of minidnn's."""

from __future__ import annotations

import contextlib
import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import minidnn as md
from minidnn.acceleration.module import OptimizedModule
from minidnn.acceleration.trained import TrainedProgram
from minidnn.errors import MiniDNNWarning, UnsupportedError
from tests.torch.steps import trained_programs
from tests.torch.test_optimize import examples

DEVICE = "reference"


def network() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(inplace=True),
        nn.Flatten(),
        nn.Linear(4 * 36, 5),
    )


def both(net: nn.Module, **options: Any) -> tuple[OptimizedModule, Any]:
    """An optimized module in training mode, and PyTorch's own with weights of its own."""
    own = copy.deepcopy(net).train()
    return md.optimize(net.eval(), device=DEVICE, **options).train(), own


def x_of(batch: int = 3) -> torch.Tensor:
    return examples(batch, 3, 6, 6)


def close(found: Any, expected: Any) -> None:
    torch.testing.assert_close(found, expected, rtol=2e-5, atol=2e-6)


def same_gradients(fast: nn.Module, own: nn.Module) -> None:
    for (name, found), expected in zip(fast.named_parameters(), own.parameters(), strict=True):
        assert (found.grad is None) == (expected.grad is None), name
        if expected.grad is not None:
            close(found.grad, expected.grad)


def same_state(fast: nn.Module, own: nn.Module) -> None:
    for found, expected in zip(fast.state_dict().values(), own.state_dict().values(), strict=True):
        close(found, expected)


def program(fast: OptimizedModule) -> TrainedProgram:
    (found,) = trained_programs(fast)
    assert isinstance(found, TrainedProgram)
    return found


@pytest.mark.parametrize("strided", [False, True])
def test_what_is_kept_is_one_block(strided: bool) -> None:
    """Where the engine takes addresses.  Whoever keeps it elsewhere meanwhile keeps it whole, and
    gradients that do not lie in order take the way of tensors."""
    net = network()
    own, fast = copy.deepcopy(net).train(), md.optimize(net, device="cpu").train()
    saved: list[torch.Tensor] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        saved.append(tensor)
        return tensor.clone()

    seed = examples(5, 3).T if strided else examples(3, 5)
    for module in (own, fast):
        saved.clear()
        with torch.autograd.graph.saved_tensors_hooks(pack, torch.clone):
            y = module(x_of())
        y.backward(seed)
    (pair,) = program(fast).parts[0].pairs.values()
    (block,) = (each for each in saved if each.dtype is torch.uint8)
    assert pair.kept_bytes <= block.numel() < pair.kept_bytes + 512 * 8
    same_gradients(fast, own)
    same_state(fast, own)


def test_a_backward_pass_that_takes_no_addresses_reads_the_block() -> None:
    net = network()
    own, fast = copy.deepcopy(net).train(), md.optimize(net, device="cpu").train()
    y, expected = fast(x_of()), own(x_of())
    (pair,) = program(fast).parts[0].pairs.values()
    ((_, backward),) = pair.backwards.values()
    assert backward.is_addressed
    backward.is_addressed = False
    y.square().sum().backward()
    expected.square().sum().backward()
    same_gradients(fast, own)


@pytest.mark.parametrize("mode", [True, False])
def test_it_is_prepared_for_the_mode_that_it_is_in(mode: bool) -> None:
    net = network().train(mode)
    fast = md.optimize(net, x_of(), device=DEVICE)
    assert [type(each) is TrainedProgram for each in fast.programs] == [mode]
    if mode:
        (part,) = program(fast).parts
        assert [len(pair.backwards) for pair in part.pairs.values()] == [1]
    fast.train()
    close(fast(x_of()), copy.deepcopy(net)(x_of()))


def test_gradients_and_statistics() -> None:
    fast, own = both(network())
    for step in range(3):
        x = x_of() + step
        loss, expected = fast(x).square().mean(), own(x).square().mean()
        close(loss, expected)
        loss.backward()
        expected.backward()
    same_gradients(fast, own)  # added up
    same_state(fast, own)
    assert fast[1].num_batches_tracked == 3
    assert len(program(fast).parts) == 1 and not program(fast).left
    assert "backwards, 6 gradients" in fast.explain()


def test_nothing_is_compiled_again_when_weights_change() -> None:
    fast, own = both(network())
    x = x_of()
    fast(x)
    before = program(fast)
    for module in (fast, own):
        optimizer = torch.optim.AdamW(module.parameters(), 0.1)
        for _ in range(3):
            optimizer.zero_grad()
            module(x).sum().backward()
            optimizer.step()
            with torch.no_grad():
                module[0].weight.data.mul_(0.5)
    assert program(fast) is before and len(before.parts[0].pairs) == 1


def test_input_gradients() -> None:
    fast, own = both(network())
    given = [x_of().requires_grad_() for _ in range(2)]
    for module, x in zip((fast, own), given, strict=True):
        (2 * module(3 * x)).square().sum().backward()  # it is no leaf, either
    close(given[0].grad, given[1].grad)
    same_gradients(fast, own)


def test_frozen_parameters_have_no_gradients() -> None:
    fast, own = both(network())
    for freeze in (True, False):
        for module in (fast, own):
            module.zero_grad()
            module[0].requires_grad_(not freeze)
            module[1].eval()
            module(x_of()).sum().backward()
        same_gradients(fast, own)
        same_state(fast, own)
    pairs = [pair for each in trained_programs(fast) for pair in each.parts[0].pairs.values()]
    assert [len(pair.graphs.backward.differentiated) for pair in pairs] == [4, 6]


def test_results_that_the_loss_does_not_depend_on() -> None:
    class Heads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.trunk, self.one, self.two = (nn.Linear(4, 4) for _ in range(3))

        def forward(self, x: torch.Tensor) -> Any:
            y = self.trunk(x).relu()
            return {"one": self.one(y), "two": self.two(y), "place": y.argmax(1)}

    torch.manual_seed(0)
    fast, own = both(Heads())
    x = examples(3, 4)
    for module in (fast, own):
        found = module(x)
        assert not found["place"].requires_grad
        found["one"].sum().backward()
    same_gradients(fast, own)
    for module in (fast, own):
        found = module(x)
        found["one"].sum().backward(retain_graph=True)
        found["two"].prod().backward()
    same_gradients(fast, own)


def test_evaluation_in_between_and_training_without_gradients() -> None:
    fast, own = both(network())
    x = x_of()
    for module in (fast, own):
        module(x).sum().backward()
        with torch.no_grad():
            assert not module(x).requires_grad  # which moves statistics
    same_state(fast, own)
    fast.eval(), own.eval()
    with torch.no_grad():
        close(fast(x), own(x))
    trained = program(fast)
    fast.train(), own.train()
    close(fast(x), own(x))
    assert program(fast) is trained


def test_several_sizes_are_bounded() -> None:
    fast, own = both(network(), sizes=2)
    for batch in (2, 3, 4, 2):
        close(fast(x_of(batch)), own(x_of(batch)))
    assert len(trained_programs(fast)) == 2


def test_going_backwards_twice() -> None:
    fast, own = both(network())
    for module in (fast, own):
        loss = module(x_of()).sum()
        loss.backward(retain_graph=True)
        loss.backward()
        with pytest.raises(RuntimeError, match="backward through the graph a second time"):
            loss.backward()
    same_gradients(fast, own)


def test_gradients_of_gradients_are_pytorchs() -> None:
    fast, own = both(network())
    for module in (fast, own):
        x = x_of().requires_grad_()
        warned = pytest.warns(MiniDNNWarning, match="a gradient of a gradient")
        with warned if module is fast else contextlib.nullcontext():
            (gradient,) = torch.autograd.grad(module(x).square().sum(), x, create_graph=True)
        gradient.square().sum().backward()
    same_gradients(fast, own)
    strict = md.optimize(network().train(), device=DEVICE, strict=True)
    with pytest.raises(UnsupportedError, match=r"strict=True, and .* gradient of a gradient"):
        torch.autograd.grad(strict(x).sum(), x, create_graph=True)


def test_gradients_of_gradients_of_what_draws_random_numbers_are_refused() -> None:
    fast = md.optimize(nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)).train(), device=DEVICE)
    x = examples(3, 4).requires_grad_()
    with pytest.raises(UnsupportedError, match=r"create_graph=True .* fast\.original"):
        torch.autograd.grad(fast(x).sum(), x, create_graph=True)


def test_a_weight_that_changes_before_the_gradient() -> None:
    fast, _ = both(network())
    loss = fast(x_of()).sum()
    with torch.no_grad():
        fast[4].weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_what_is_kept_goes_with_the_graph() -> None:
    fast, _ = both(network())
    loss = fast(x_of()).sum()
    node = loss.grad_fn.next_functions[0][0]
    assert len(node.saved_tensors) > 2
    loss.backward()
    with pytest.raises(RuntimeError, match="after they have already been freed"):
        _ = node.saved_tensors

    packed: list[int] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        packed.append(tensor.numel())
        return tensor.clone()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = fast(x_of()).sum()
    assert packed
    loss.backward()


class Dropping(nn.Module):
    def __init__(self, channels: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
        self.drop = nn.Dropout2d(0.25) if channels else nn.Dropout(0.25)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.drop(x * self.weight[:, None, None])


@pytest.mark.parametrize("channels", [False, True])
def test_dropout(channels: bool) -> None:
    fast, _ = both(Dropping(channels))
    x = torch.ones(64, 4, 8, 8)

    def drawn() -> torch.Tensor:
        result = fast(x)
        result.sum().backward()
        return result

    torch.manual_seed(5)
    first, second = drawn(), drawn()
    close(fast.weight.grad, (first + second).sum((0, 2, 3)))  # the same elements on the way back
    assert not torch.equal(first, second)
    torch.manual_seed(5)
    assert torch.equal(drawn(), first)
    assert sorted(set(first.unique().tolist())) == pytest.approx([0, 1 / 0.75])
    share = float((first == 0).float().mean())
    assert share == pytest.approx(0.25, abs=0.08 if channels else 0.02)
    whole = first.flatten(2).amax(2) == first.flatten(2).amin(2)
    assert bool(whole.all()) == channels
    fast.eval()
    close(fast(x), x)


@pytest.mark.parametrize("momentum", [0.3, None])
def test_statistics_of_a_shared_normalization(momentum: float | None) -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm2d(3, momentum=momentum)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.norm(self.norm(x + 1) * 2).relu() + 3 * self.norm(x)

    fast, own = both(Shared())
    for _ in range(3):
        for module in (fast, own):
            module(x_of() + 1).prod(1).sum().backward()
    same_gradients(fast, own)
    same_state(fast, own)
    assert fast.norm.num_batches_tracked == 9


def test_what_a_module_writes_to_buffers() -> None:
    class Centre(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)
            self.register_buffer("centre", torch.zeros(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.linear(x) - self.centre
            with torch.no_grad():
                self.centre.mul_(0.9).add_(y.mean(0), alpha=0.1)
            return y.square() + self.centre

    torch.manual_seed(0)
    fast, own = both(Centre())
    for step in range(3):
        for module in (fast, own):
            module(examples(3, 4) + step).sum().backward()
    same_state(fast, own)
    same_gradients(fast, own)


def test_no_gradient_flows_where_the_code_says_so() -> None:
    class Stopping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.one(x)
            with torch.no_grad():
                scale = self.two(y).sigmoid()
            return self.two(y.detach()) * scale + y.relu()

    torch.manual_seed(0)
    fast, own = both(Stopping())
    for module in (fast, own):
        module(examples(3, 4)).square().sum().backward()
    same_gradients(fast, own)


def test_two_gradients_that_are_one_value() -> None:
    class Adding(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = (nn.Parameter(torch.ones(3)) for _ in range(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (self.one + self.two) * 1.0 + x

    fast, own = both(Adding())
    for module in (fast, own):
        (module(torch.ones(3)) ** 2).sum().backward()
    same_gradients(fast, own)
    assert fast.one.grad.data_ptr() != fast.two.grad.data_ptr()


def test_weights_of_another_type() -> None:
    fast, own = both(network())
    fast(x_of())
    fast.double(), own(x_of()), own.double()
    x = x_of().double().requires_grad_()
    close(fast(x), own(x))
    fast[4] = nn.Linear(4 * 36, 2).double()
    assert fast(x).shape == (3, 2)


def test_a_module_that_cannot_be_captured() -> None:
    class Looking(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = network()

        def forward(self, x: torch.Tensor) -> Any:
            y = self.body(x)
            return y if float(y.detach().sum()) < 1e9 else -y

    fast, own = both(Looking())
    for module in (fast, own):
        module(x_of()).square().sum().backward()
    same_gradients(fast, own)
    same_state(fast, own)
    assert "goes on in Python: " in fast.explain() and "test_trained.py" in fast.explain()
    assert "backwards, 6 gradients" in fast.explain()


def test_one_value_for_each_statistic_is_pytorchs_error() -> None:
    fast, own = both(nn.Sequential(nn.BatchNorm1d(3)))
    for module in (fast, own):
        with pytest.raises(ValueError, match="Expected more than 1 value per channel"):
            module(torch.ones(1, 3))


def test_losses_beside_it() -> None:
    """The loss may be part of what is optimized."""

    class WithLoss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = network()

        def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            return F.cross_entropy(self.body(x), target)

    fast, own = both(WithLoss())
    for module in (fast, own):
        module(x_of(), torch.tensor([0, 4, 2])).backward()
    same_gradients(fast, own)
