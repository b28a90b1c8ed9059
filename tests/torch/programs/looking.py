"""Programs whose modules look at values, call NumPy, print, or keep Python's state."""

from __future__ import annotations

import contextlib
import io
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from tests.torch.programs.arguments import Calls
from tests.torch.programs.harness import Run, program
from tests.torch.programs.parts import Around, around, train

CALLS: list[int] = []


@program()
def branch_by_a_value(run: Run) -> None:
    class Branches(Around):
        def middle(self, y: torch.Tensor) -> torch.Tensor:
            return y * 2 if y.sum() > 8 else y.tanh()

    net = Branches()
    train(run, net, run.compile(net), 5)


@program()
def loop_by_a_value(run: Run) -> None:
    def function(layer: Any, x: torch.Tensor) -> torch.Tensor:
        y = layer(x)
        for _ in range(int(x.abs().sum()) % 4):
            y = y.tanh() + 0.1
        return y

    net = Calls(function)
    fast = run.compile(net)
    for x in run.batches(5, 3, 4):
        y = fast(x)
        y.sum().backward()
        run.step(y, net)


@program(quick=True)
def norms_logged_by_item(run: Run) -> None:
    class Logs(Around):
        def setup(self) -> None:
            self.log: list[float] = []

        def middle(self, y: torch.Tensor) -> torch.Tensor:
            self.log.append(y.norm().item())
            return y

    net = Logs()
    train(run, net, run.compile(net), 3)
    run.step(net.log)


@program()
def numpy_in_the_middle(run: Run) -> None:
    class Numbers(Around):
        def middle(self, y: torch.Tensor) -> torch.Tensor:
            weights = np.sort(y.detach().cpu().numpy(), axis=1)
            return y * torch.from_numpy(weights).to(y)

    net = Numbers()
    train(run, net, run.compile(net), 3)


@program()
def print_of_shapes(run: Run) -> None:
    class Prints(Around):
        def middle(self, y: torch.Tensor) -> torch.Tensor:
            print("middle", tuple(y.shape))
            return y

    net = Prints()
    written = io.StringIO()
    with contextlib.redirect_stdout(written):
        train(run, net, run.compile(net), 3)
    run.step(written.getvalue())


@program()
def calls_counted_in_an_attribute(run: Run) -> None:
    class Counts(Around):
        def setup(self) -> None:
            self.calls = 0

        def middle(self, y: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            return y * (1.0 / self.calls)

    net = Counts()
    fast = run.compile(net)
    for x in run.batches(5, 3, 4):
        y = fast(x)
        y.sum().backward()
        run.step(y, net.calls, net)


@program()
def calls_counted_in_a_global(run: Run) -> None:
    class Counts(Around):
        def middle(self, y: torch.Tensor) -> torch.Tensor:
            CALLS.append(len(y))
            return y

    CALLS.clear()
    net = Counts()
    train(run, net, run.compile(net), 3)
    run.step(list(CALLS))


@program()
def activations_kept_in_a_dict(run: Run) -> None:
    class Keeps(Around):
        def setup(self) -> None:
            self.kept: dict[str, torch.Tensor] = {}

        def middle(self, y: torch.Tensor) -> torch.Tensor:
            self.kept["middle"] = y
            return y

    net = Keeps()
    fast = run.compile(net)
    for x in run.batches(3, 3, 4):
        y = fast(x)
        (y.sum() + net.kept["middle"].square().sum()).backward()
        run.step(y, net.kept, net)


@program()
def schedule_by_the_number_of_calls(run: Run) -> None:
    class Warms(Around):
        def setup(self) -> None:
            self.register_buffer("step", torch.tensor(0))

        def middle(self, y: torch.Tensor) -> torch.Tensor:
            if self.training:
                self.step += 1
            return y * torch.clamp(self.step / 3, max=1.0)

    net = Warms()
    train(run, net, run.compile(net), 5)


@program()
def random_layer_skipped(run: Run) -> None:
    """Stochastic depth by a number that the caller gives."""

    def function(layer: Any, x: torch.Tensor, skip: bool) -> torch.Tensor:
        return x if skip else x + layer(x).relu()

    net = Calls(function)
    fast = run.compile(net)
    for step, x in enumerate(run.batches(4, 3, 4)):
        y = fast(x.requires_grad_(), step % 2 == 1)
        y.square().sum().backward()
        run.step(y, net)


@program()
def attribute_changed_between_calls(run: Run) -> None:
    class Scales(Around):
        def setup(self) -> None:
            self.scale = 1.0
            self.activation = F.relu

        def middle(self, y: torch.Tensor) -> torch.Tensor:
            return self.activation(y * self.scale - 0.1)

    net = Scales().eval()
    fast = run.compile(net)
    with torch.no_grad():
        x = run.randn(3, 4)
        run.step(fast(x))
        net.scale = 0.5
        run.step(fast(x))
        net.activation = torch.tanh
        run.step(fast(x))


@program()
def tensor_attribute_changed_between_calls(run: Run) -> None:
    class Masks(Around):
        def setup(self) -> None:
            self.mask = torch.ones(8)

        def middle(self, y: torch.Tensor) -> torch.Tensor:
            return y * self.mask.to(y.device)

    net = Masks().eval()
    fast = run.compile(net)
    with torch.no_grad():
        x = run.randn(3, 4)
        run.step(fast(x))
        net.mask[2:5] = 0
        run.step(fast(x))
        net.mask = torch.full((8,), 2.0)
        run.step(fast(x))


@program()
def checks_of_values_raise(run: Run) -> None:
    class Checks(Around):
        def middle(self, y: torch.Tensor) -> torch.Tensor:
            if not torch.isfinite(y).all():
                raise ValueError("numbers are not finite")
            return y

    net = Checks()
    fast = run.compile(net)
    for x in run.batches(2, 3, 4):
        y = fast(x)
        y.sum().backward()
        run.step(y, net)
        run.raises(partial(fast, x * float("inf")))


@program()
def exception_in_the_middle_after_a_write(run: Run) -> None:
    """What was written before the exception stays written."""

    class Fails(Around):
        def setup(self) -> None:
            self.register_buffer("n", torch.zeros(()))
            self.fails = False

        def middle(self, y: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                self.n.add_(1)
            if self.fails:
                raise KeyError("no such thing")
            return y

    net = Fails()
    fast = run.compile(net)
    for fails in (False, True, False):
        net.fails = fails
        run.raises(lambda: fast(run.randn(3, 4)).sum().backward())
        run.step(net)


@program()
def early_return_by_a_flag(run: Run) -> None:
    class Features(Around):
        def forward(self, x: torch.Tensor, only_features: bool = False) -> torch.Tensor:
            y = self.first(x).relu()
            return y if only_features else self.head(y)

    net = Features()
    fast = run.compile(net)
    for step, x in enumerate(run.batches(4, 3, 4)):
        y = fast(x, only_features=step % 2 == 0)
        y.sum().backward()
        run.step(y, net)


@program()
def context_manager_in_forward(run: Run) -> None:
    class Context(Around):
        @contextlib.contextmanager
        def doubled(self) -> Any:
            self.factor = 2.0
            yield
            self.factor = 1.0

        def middle(self, y: torch.Tensor) -> torch.Tensor:
            with self.doubled():
                return y * self.factor

    net = Context()
    train(run, net, run.compile(net), 3)


@program()
def try_and_except_in_forward(run: Run) -> None:
    class Tries(Around):
        def middle(self, y: torch.Tensor) -> torch.Tensor:
            try:
                return y.view(2, 12)[:, :8] * 2
            except RuntimeError:
                return y * 3

    net = Tries()
    train(run, net, run.compile(net), 3)


@program()
def no_parameters_at_all(run: Run) -> None:
    net = nn.Sequential(nn.ReLU(), nn.Softmax(1))
    fast = run.compile(net)
    for x in run.batches(3, 3, 4):
        x.requires_grad_()
        y = fast(x)
        y.square().sum().backward()
        run.step(y, x)


@program()
def mode_read_by_a_child(run: Run) -> None:
    class Child(nn.Module):
        def forward(self, y: torch.Tensor) -> torch.Tensor:
            return y * 2 if self.training else y

    net = around(Child())
    fast = run.compile(net)
    for training, child in ((True, True), (True, False), (False, True), (False, False)):
        fast.train(training)
        net[2].train(child)
        y = fast(run.randn(3, 4))
        y.sum().backward()
        run.step(y, net)
