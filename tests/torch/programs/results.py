"""Programs that look at what results are: whether they need gradients, share memory, nest."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, namedtuple
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from tests.torch.programs.arguments import Calls
from tests.torch.programs.harness import Run, program
from tests.torch.programs.parts import Around


def _trains(run: Run, net: nn.Module, loss: Any, steps: int = 3) -> None:
    fast = run.compile(net)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for x in run.batches(steps, 3, 4):
        optimizer.zero_grad()
        found = fast(x)
        loss(found).backward()
        optimizer.step()
        run.step(found, net)


@program(quick=True)
def result_that_needs_no_gradient(run: Run) -> None:
    net = Calls(lambda layer, x: (layer(x).relu(), x * 2))
    _trains(run, net, lambda found: found[0].sum())


@program()
def result_made_under_no_grad(run: Run) -> None:
    def function(layer: Any, x: torch.Tensor) -> Any:
        y = layer(x)
        with torch.no_grad():
            accuracy = (y > 0).float().mean() * 2
        return y.relu(), accuracy

    _trains(run, Calls(function), lambda found: found[0].sum())


@program()
def result_that_is_detached(run: Run) -> None:
    def function(layer: Any, x: torch.Tensor) -> Any:
        y = layer(x).tanh()
        return {"loss": y.square().mean(), "features": y.detach()}

    _trains(run, Calls(function), lambda found: found["loss"])


@program()
def result_of_indices(run: Run) -> None:
    def function(layer: Any, x: torch.Tensor) -> Any:
        y = layer(x).softmax(1)
        best = y.max(1)
        return y, best.values, best.indices, y.argmax(1), y > 0.25

    _trains(run, Calls(function), lambda found: found[0].square().sum() + found[1].sum())


@program(quick=True)
def hidden_state_kept_as_an_attribute(run: Run) -> None:
    class Recurrent(Around):
        def setup(self) -> None:
            self.h = None

        def middle(self, y: torch.Tensor) -> torch.Tensor:
            if self.h is not None:
                y = y + 0.5 * self.h
            self.h = y.detach()
            return y

    net = Recurrent()
    fast = run.compile(net)
    for x in run.batches(5, 3, 4):
        fast(x).square().mean().backward()
        run.step(net.h, net)


@program(share=0.2)
def hidden_state_through_two_steps(run: Run) -> None:
    """Backpropagation through time: the graph of the step before is part of this one's."""

    class Recurrent(Around):
        def setup(self) -> None:
            self.h = None

        def middle(self, y: torch.Tensor) -> torch.Tensor:
            self.h = y if self.h is None else (y + self.h).tanh()
            return self.h

    net = Recurrent()
    fast = run.compile(net)
    for _ in range(3):
        net.h = None
        loss = fast(run.randn(3, 4)).sum() + fast(run.randn(3, 4)).square().sum()
        loss.backward()
        run.step(loss, net.h, net)


def _length(tensor: torch.Tensor) -> int:
    """How many nodes a graph of gradients has."""
    seen: set[Any] = set()
    left = [tensor.grad_fn]
    while left:
        node = left.pop()
        if node is not None and node not in seen:
            seen.add(node)
            left += [each for each, _ in node.next_functions]
    return len(seen)


def _fifty_steps(run: Run, net: Any) -> None:
    fast = run.compile(net)
    lengths = []
    for step, x in enumerate(run.batches(50, 3, 4)):
        y = fast(x)
        y.sum().backward()
        lengths.append(_length(y))
        if step % 15 == 4:
            run.step(y, net)
    run.step(lengths[-1] <= lengths[10], net.n.requires_grad, net.n.grad_fn is None)


@program()
def fifty_steps_of_an_assigned_buffer(run: Run) -> None:
    class Assigns(Around):
        def setup(self) -> None:
            self.register_buffer("n", torch.zeros(8))

        def middle(self, y: torch.Tensor) -> torch.Tensor:
            self.n: torch.Tensor = 0.9 * self.n + 0.1 * y.detach().mean(0)
            return y + self.n

    _fifty_steps(run, Assigns())


@program()
def fifty_steps_of_a_written_buffer(run: Run) -> None:
    class Writes(Around):
        def setup(self) -> None:
            self.register_buffer("n", torch.zeros(8))

        def middle(self, y: torch.Tensor) -> torch.Tensor:
            self.n.mul_(0.9).add_(0.1 * y.detach().mean(0))
            return y * 2

    _fifty_steps(run, Writes())


@program()
def requires_grad_changed_between_steps(run: Run) -> None:
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    fast = run.compile(net)
    for frozen in (False, True, False, True):
        net.zero_grad()
        net[0].requires_grad_(not frozen)
        y = fast(run.randn(3, 4))
        y.sum().backward()
        run.step(y, net)


@program()
def all_parameters_frozen(run: Run) -> None:
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).requires_grad_(False)
    fast = run.compile(net)
    for x in run.batches(2, 3, 4):
        run.step(fast(x))
        x.requires_grad_()
        y = fast(x)
        y.sum().backward()
        run.step(y, x)


class Pair(NamedTuple):
    first: torch.Tensor
    second: torch.Tensor


@dataclasses.dataclass
class Output:
    logits: torch.Tensor
    loss: Any = None


Named = namedtuple("Named", "values norm")


@program()
def named_tuple_of_results(run: Run) -> None:
    def function(layer: Any, x: torch.Tensor) -> Any:
        y = layer(x)
        return Pair(y.relu(), Named(y.tanh(), y.square().sum()))

    _trains(run, Calls(function), lambda found: found.first.sum() + found.second.norm)


@program()
def dataclass_of_results(run: Run) -> None:
    def function(layer: Any, x: torch.Tensor, target: Any = None) -> Any:
        logits = layer(x)
        return Output(logits, None if target is None else F.cross_entropy(logits, target))

    net = Calls(function)
    fast = run.compile(net)
    for x in run.batches(3, 3, 4):
        found = fast(x, target=run.randint(4, 3))
        found.loss.backward()
        run.step(found, type(found) is Output, net)
        run.step(fast(x))


@program()
def nested_containers_with_constants(run: Run) -> None:
    def function(layer: Any, x: torch.Tensor) -> Any:
        y = layer(x).relu()
        more = OrderedDict(name="net", size=x.shape[1], none=None)
        return {"levels": [y, (y.mean(), [y.sum(1)])], "scale": 0.5, "more": more, "empty": ()}

    _trains(run, Calls(function), lambda found: found["levels"][0].sum())


@program()
def same_tensor_twice_in_results(run: Run) -> None:
    net = Calls(lambda layer, x: (lambda y: (y, y, [y]))(layer(x).relu()))
    fast = run.compile(net)
    for x in run.batches(3, 3, 4):
        one, two, (three,) = fast(x)
        (one + 2 * two + 3 * three).sum().backward()
        run.step(one is two, one, two, three, net)


@program()
def arguments_that_are_no_tensors(run: Run) -> None:
    def function(layer: Any, x: Any, scale: float, *, mode: str = "relu", sizes: Any = ()) -> Any:
        y = layer(x["image"]) * scale
        y = y.relu() if mode == "relu" else y.tanh()
        return y.reshape(*sizes) if sizes else y

    net = Calls(function)
    fast = run.compile(net)
    for scale, mode, sizes in ((1.0, "relu", ()), (2.0, "tanh", (2, 6)), (0.5, "relu", (12,))):
        y = fast({"image": run.randn(3, 4)}, scale, mode=mode, sizes=sizes)
        y.sum().backward()
        run.step(y, net)


@program()
def list_of_tensors_as_an_argument(run: Run) -> None:
    net = Calls(lambda layer, pyramid: [layer(each).relu() for each in pyramid])
    fast = run.compile(net)
    for count in (2, 3, 2):
        found = fast([run.randn(2, 4) for _ in range(count)])
        sum(each.sum() for each in found).backward()
        run.step(found, net)


@program()
def optional_mask(run: Run) -> None:
    def function(layer: Any, x: torch.Tensor, mask: Any = None) -> torch.Tensor:
        y = layer(x)
        return (y if mask is None else y.masked_fill(mask, -1e4)).softmax(1)

    net = Calls(function)
    fast = run.compile(net)
    for masked in (False, True, False):
        x = run.randn(3, 4)
        y = fast(x, mask=x > 0.5) if masked else fast(x)
        y.square().sum().backward()
        run.step(y, net)


@program()
def result_that_is_a_view_of_an_argument(run: Run) -> None:
    net = Calls(lambda layer, x: (x[:, :2], x.t(), layer(x).relu())).eval()
    fast = run.compile(net)
    with torch.no_grad():
        for x in run.batches(3, 3, 4):
            first, turned, y = fast(x)
            first.add_(1)
            run.step(x, first, turned, y)


@program()
def result_that_is_a_view_of_a_buffer(run: Run) -> None:
    class Holds(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)
            self.register_buffer("table", torch.randn(6, 4))

        def forward(self, x: torch.Tensor) -> Any:
            return self.layer(x) + self.table[: len(x)], self.table[1]

    net = Holds().eval()
    fast = run.compile(net)
    with torch.no_grad():
        for x in run.batches(3, 3, 4):
            y, row = fast(x)
            row.mul_(2)
            run.step(y, row, net)


@program()
def results_that_share_memory(run: Run) -> None:
    net = Calls(lambda layer, x: (lambda y: (y, y[:, 1:3], y.view(-1)))(layer(x).relu())).eval()
    fast = run.compile(net)
    with torch.no_grad():
        for x in run.batches(3, 3, 4):
            y, columns, flat = fast(x)
            columns.zero_()
            flat[0] = 9
            run.step(y, columns, flat)


@program()
def results_that_are_kept_between_calls(run: Run) -> None:
    net = Calls(lambda layer, x: layer(x).relu()).eval()
    fast = run.compile(net)
    with torch.no_grad():
        kept = [fast(x) for x in run.batches(4, 3, 4)]
    run.step(kept)


@program()
def parameter_as_a_result(run: Run) -> None:
    net = Calls(lambda layer, x: (layer(x).relu(), layer.weight, layer.bias * 2))
    _trains(run, net, lambda found: found[0].sum() + found[1].square().sum() + found[2].sum())


@program()
def no_result_at_all(run: Run) -> None:
    class Records(Around):
        def setup(self) -> None:
            self.register_buffer("n", torch.zeros(8))

        def forward(self, x: torch.Tensor) -> None:
            with torch.no_grad():
                self.n.add_(self.first(x).relu().mean(0))

    net = Records()
    fast = run.compile(net)
    for x in run.batches(3, 3, 4):
        run.step(fast(x), net)


@program()
def results_of_other_dtypes(run: Run) -> None:
    def function(layer: Any, x: torch.Tensor) -> Any:
        y = layer(x)
        return y.double(), y.to(torch.bfloat16), (y > 0).long(), y.sum(dtype=torch.float64)

    _trains(run, Calls(function), lambda found: found[0].sum() + found[1].float().sum())
