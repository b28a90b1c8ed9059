"""Programs whose modules write to buffers and parameters."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from tests.torch.programs.harness import Run, program
from tests.torch.programs.parts import Around, train


class Counter(Around):
    """Counts calls in a buffer, which is not read."""

    def setup(self) -> None:
        self.register_buffer("n", torch.zeros(()))

    def count(self) -> None:
        with torch.no_grad():
            self.n.add_(1)

    def middle(self, y: torch.Tensor) -> torch.Tensor:
        self.count()
        return y


def _counts(run: Run, count: Any) -> None:
    """Trains and evaluates, with gradients and without, a network that writes in its middle."""

    class Counts(Counter):
        def count(self) -> None:
            count(self)

    net = Counts()
    train(run, net, run.compile(net), 3)


@program(quick=True)
def counter_under_no_grad(run: Run) -> None:
    _counts(run, Counter.count)


@program(quick=True)
def counter_by_plus_equals(run: Run) -> None:
    def count(net: Any) -> None:
        net.n += 1

    _counts(run, count)


@program()
def counter_by_add_with_gradients(run: Run) -> None:
    _counts(run, lambda net: net.n.add_(1))


@program()
def counter_by_assignment(run: Run) -> None:
    def count(net: Any) -> None:
        net.n = net.n + 1

    _counts(run, count)


@program()
def counter_of_integers(run: Run) -> None:
    class Integers(Counter):
        def setup(self) -> None:
            self.register_buffer("n", torch.tensor(0))

    net = Integers()
    train(run, net, run.compile(net), 3)


@program()
def counter_on_data(run: Run) -> None:
    _counts(run, lambda net: net.n.data.add_(1))


@program()
def counter_in_evaluation_with_gradients(run: Run) -> None:
    net = Counter().eval()
    fast = run.compile(net)
    for x in run.batches(3, 2, 4):
        run.step(fast(x), net)


@program()
def counter_in_evaluation_without_gradients(run: Run) -> None:
    net = Counter().eval()
    fast = run.compile(net)
    with torch.no_grad():
        for x in run.batches(3, 2, 4):
            run.step(fast(x), net)


@program()
def counter_in_inference_mode(run: Run) -> None:
    net = Counter().eval()
    fast = run.compile(net)
    with torch.inference_mode():
        for x in run.batches(3, 2, 4):
            run.step(fast(x).clone(), net)


@program()
def counter_that_is_read_afterwards(run: Run) -> None:
    class Read(Counter):
        def middle(self, y: torch.Tensor) -> torch.Tensor:
            self.count()
            return y * self.n

    net = Read()
    train(run, net, run.compile(net), 3)


@program()
def counter_that_is_read_before(run: Run) -> None:
    class Read(Counter):
        def middle(self, y: torch.Tensor) -> torch.Tensor:
            scaled = y * (self.n + 1)
            self.count()
            return scaled

    net = Read()
    train(run, net, run.compile(net), 3)


@program(quick=True)
def average_by_mul_and_add(run: Run) -> None:
    class Average(Around):
        def setup(self) -> None:
            self.register_buffer("mean", torch.zeros(8))

        def middle(self, y: torch.Tensor) -> torch.Tensor:
            if self.training:
                with torch.no_grad():
                    self.mean.mul_(0.9).add_(y.mean(0), alpha=0.1)
            return y - self.mean

    net = Average()
    train(run, net, run.compile(net), 4)


@program()
def average_by_lerp_of_detached(run: Run) -> None:
    class Average(Around):
        def setup(self) -> None:
            self.register_buffer("mean", torch.zeros(8))

        def middle(self, y: torch.Tensor) -> torch.Tensor:
            self.mean.lerp_(y.detach().mean(0), 0.1)
            return y - self.mean

    net = Average()
    train(run, net, run.compile(net), 4)


@program()
def average_by_copy(run: Run) -> None:
    class Average(Around):
        def setup(self) -> None:
            self.register_buffer("mean", torch.zeros(8))

        def middle(self, y: torch.Tensor) -> torch.Tensor:
            if self.training:
                self.mean.copy_(0.9 * self.mean + 0.1 * y.detach().mean(0))
            return y - self.mean

    net = Average()
    train(run, net, run.compile(net), 4)


@program()
def last_batch_kept_by_out(run: Run) -> None:
    class Out(Around):
        def setup(self) -> None:
            self.register_buffer("last", torch.zeros(3, 8))

        def middle(self, y: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                torch.mul(y, 2.0, out=self.last)
            return y

    net = Out()
    train(run, net, run.compile(net), 3)


@program()
def clamped_buffer(run: Run) -> None:
    class Clamped(Around):
        def setup(self) -> None:
            self.register_buffer("range", torch.zeros(8))

        def middle(self, y: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                self.range.add_(y.abs().amax(0)).clamp_(0, 1.5)
            return y / (1 + self.range)

    net = Clamped()
    train(run, net, run.compile(net), 3)


@program(quick=True)
def slice_of_a_counter(run: Run) -> None:
    class Slices(Around):
        def setup(self) -> None:
            self.register_buffer("n", torch.zeros(3))

        def middle(self, y: torch.Tensor) -> torch.Tensor:
            self.n[0:1].add_(1)
            self.n[1] += y.detach().sum()
            self.n[-1].fill_(7)
            return y

    net = Slices()
    train(run, net, run.compile(net), 3)


@program()
def table_of_sightings(run: Run) -> None:
    """Rows that indices name are written to."""

    class Sightings(Around):
        def setup(self) -> None:
            self.register_buffer("seen", torch.zeros(5))

        def forward(self, x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                self.seen.index_add_(0, index, torch.ones_like(index, dtype=self.seen.dtype))
                self.seen[index[0]] = -1
            return self.head(self.first(x).relu())

    net = Sightings()
    fast = run.compile(net)
    for x in run.batches(3, 3, 4):
        loss = fast(x, run.randint(5, 3)).square().mean()
        loss.backward()
        run.step(loss, net)


@program()
def two_writes_to_one_buffer(run: Run) -> None:
    class Twice(Around):
        def setup(self) -> None:
            self.register_buffer("n", torch.ones(8))

        def middle(self, y: torch.Tensor) -> torch.Tensor:
            self.n.mul_(2)
            y = y * self.n
            self.n.sub_(0.5)
            return y + self.n

    net = Twice().eval()
    fast = run.compile(net)
    with torch.no_grad():
        for x in run.batches(3, 3, 4):
            run.step(fast(x), net)


@program()
def buffer_seen_through_a_view(run: Run) -> None:
    class Viewed(Around):
        def setup(self) -> None:
            self.register_buffer("n", torch.zeros(2, 4))

        def middle(self, y: torch.Tensor) -> torch.Tensor:
            flat = self.n.view(-1)
            with torch.no_grad():
                self.n[1].add_(1)
            return y + flat

    net = Viewed()
    train(run, net, run.compile(net), 3)


@program()
def buffer_that_two_modules_share(run: Run) -> None:
    class Shared(Around):
        def setup(self) -> None:
            self.other = nn.Module()
            self.register_buffer("n", torch.zeros(8))
            self.other.register_buffer("n", self.n)

        def middle(self, y: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                self.n.add_(1)
            return y * self.other.n

    net = Shared()
    train(run, net, run.compile(net), 3)


@program()
def weight_clipped_in_forward(run: Run) -> None:
    class Clipped(Around):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                self.first.weight.clamp_(-0.2, 0.2)
            return super().forward(x)

    net = Clipped()
    train(run, net, run.compile(net), 3)


@program()
def weight_normalized_in_forward(run: Run) -> None:
    """As prototype layers of self-supervised networks do."""

    class Prototypes(Around):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                self.first.weight.copy_(F.normalize(self.first.weight, dim=1))
            return super().forward(x)

    net = Prototypes()
    train(run, net, run.compile(net), 3)


@program()
def weight_written_through_data(run: Run) -> None:
    class Decayed(Around):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.training:
                self.first.weight.data.mul_(0.99)
            return super().forward(x)

    net = Decayed()
    train(run, net, run.compile(net), 3)


@program()
def statistics_only_in_evaluation(run: Run) -> None:
    """Observers of quantization look at ranges when a network is calibrated."""

    class Observer(Around):
        def setup(self) -> None:
            self.register_buffer("low", torch.tensor(0.0))
            self.register_buffer("high", torch.tensor(0.0))

        def middle(self, y: torch.Tensor) -> torch.Tensor:
            if not self.training:
                seen = y.detach()
                self.low.copy_(torch.minimum(seen.amin(), self.low))
                self.high.copy_(torch.maximum(seen.amax(), self.high))
            return y

    net = Observer()
    train(run, net, run.compile(net), 3)


@program()
def initialized_at_the_first_call(run: Run) -> None:
    """ActNorm: a flag in a buffer says whether data has come."""

    class ActNorm(Around):
        def setup(self) -> None:
            self.register_buffer("ready", torch.tensor(False))
            self.shift = nn.Parameter(torch.zeros(8))

        def middle(self, y: torch.Tensor) -> torch.Tensor:
            if not bool(self.ready):
                with torch.no_grad():
                    self.shift.copy_(-y.mean(0))
                    self.ready.fill_(True)
            return y + self.shift

    net = ActNorm()
    train(run, net, run.compile(net), 3)


@program()
def buffer_that_is_not_saved(run: Run) -> None:
    class Transient(Around):
        def setup(self) -> None:
            self.register_buffer("n", torch.zeros(8), persistent=False)

        def middle(self, y: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                self.n.add_(y.mean(0))
            return y

    net = Transient()
    train(run, net, run.compile(net), 3)


@program()
def swapped_halves_of_a_buffer(run: Run) -> None:
    class Swaps(Around):
        def setup(self) -> None:
            self.register_buffer("n", torch.arange(8.0))

        def middle(self, y: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                half = self.n[:4].clone()
                self.n[:4].copy_(self.n[4:])
                self.n[4:].copy_(half)
            return y * self.n

    net = Swaps()
    train(run, net, run.compile(net), 3)


@program()
def maximum_written_by_where(run: Run) -> None:
    class Peaks(Around):
        def setup(self) -> None:
            self.register_buffer("peak", torch.zeros(8))

        def middle(self, y: torch.Tensor) -> torch.Tensor:
            now = y.detach().amax(0)
            self.peak[:] = torch.where(now > self.peak, now, self.peak * 0.5)
            return y

    net = Peaks()
    train(run, net, run.compile(net), 3)


@program()
def masked_fill_of_a_buffer(run: Run) -> None:
    class Masks(Around):
        def setup(self) -> None:
            self.register_buffer("n", torch.ones(8))

        def middle(self, y: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                self.n.masked_fill_(y.mean(0) > 0, 3.0)
            return y * self.n

    net = Masks()
    train(run, net, run.compile(net), 3)
