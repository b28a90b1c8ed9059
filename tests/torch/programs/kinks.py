"""Programs whose numbers lie where derivatives jump, or are not finite."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from tests.torch.programs.harness import Run, program

ZEROS = (0.0, -0.0, 1.0, -1.0, 0.5, 2.0, 3.0, -3.0)
EXTREMES = (*ZEROS, float("inf"), float("-inf"), float("nan"), 1e-41, -1e-41, 3e38)


class Function(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x)


def _at(run: Run, rows: Any, function: Callable[..., Any]) -> None:
    """A value and its gradient, in training and in evaluation."""
    fast = run.compile(Function(function))
    for training in (True, False):
        fast.train(training)
        x = torch.tensor(rows, device=run.memory).requires_grad_()
        y = fast(x)
        y.sum().backward()
        run.step(y, x.grad)


@program()
def log_sigmoid_at_zero(run: Run) -> None:
    _at(run, [ZEROS], F.logsigmoid)


@program()
def softplus_at_zero(run: Run) -> None:
    _at(run, [ZEROS], lambda x: F.softplus(x) + F.softplus(x, beta=2.0, threshold=2.0))


@program()
def norm_of_a_zero_row(run: Run) -> None:
    _at(run, [[0.0, 0.0], [3.0, 4.0]], lambda x: x.norm(dim=1))


@program()
def normalize_of_a_zero_row(run: Run) -> None:
    _at(run, [[0.0, 0.0], [3.0, 4.0]], lambda x: F.normalize(x, dim=1))


@program()
def standard_deviation_of_equal_numbers(run: Run) -> None:
    _at(run, [[2.0, 2.0], [1.0, 3.0]], lambda x: x.std(1))


@program(quick=True)
def clamp_at_its_bounds(run: Run) -> None:
    _at(run, [ZEROS], lambda x: x.clamp(-1.0, 1.0))


@program()
def clamp_at_bounds_that_are_tensors(run: Run) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        bound = torch.ones_like(x)
        return x.clamp(-bound, bound)

    _at(run, [ZEROS], function)


@program()
def maximum_over_ties(run: Run) -> None:
    rows = [[1.0, 2.0, 2.0], [3.0, 3.0, 3.0]]
    _at(run, rows, lambda x: x.max(1).values + 2 * x.amax(1) + 3 * x.min(1).values + x.amin(1))


@program()
def maximum_of_two_equal_tensors(run: Run) -> None:
    _at(run, [ZEROS], lambda x: torch.maximum(x, x * 1.0) + torch.minimum(x * 2, x + x))


@program()
def pooling_over_ties(run: Run) -> None:
    _at(run, [[[[1.0, 1.0, 0.0, 0.0]] * 2] * 2], lambda x: F.max_pool2d(x, 2))


@program()
def absolute_and_root_at_zero(run: Run) -> None:
    _at(run, [ZEROS], lambda x: x.abs() + x.abs().sqrt())


@program()
def rectifiers_at_zero(run: Run) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = F.relu(x) + F.relu6(x * 3) + F.leaky_relu(x) + F.elu(x) + F.celu(x) + F.selu(x)
        return y + F.hardtanh(x) + F.hardswish(x) + F.hardsigmoid(x) + F.threshold(x, 0.5, 2.0)

    _at(run, [ZEROS], function)


@program()
def shrinkage_at_its_bounds(run: Run) -> None:
    _at(run, [ZEROS], lambda x: F.hardshrink(x) + F.softshrink(x) + F.hardsigmoid(x))


@program()
def powers_of_zero(run: Run) -> None:
    _at(run, [[0.0, 1.0, 4.0]], lambda x: x.pow(0.5) + x.pow(0) + x.pow(1) + x.pow(3))


@program()
def product_with_zeros(run: Run) -> None:
    rows = [[0.0, 2.0, 3.0], [0.0, 0.0, 3.0], [1.0, 2.0, 3.0]]
    _at(run, rows, lambda x: x.prod(1))


@program()
def where_hides_a_value_that_is_not_finite(run: Run) -> None:
    """The well-known trap: the gradient is NaN in PyTorch, and here."""
    _at(run, [ZEROS], lambda x: torch.where(x > 0, x.sqrt(), torch.zeros_like(x)))


@program()
def softmax_of_masked_rows(run: Run) -> None:
    inf = float("-inf")
    _at(run, [[inf, 1.0], [inf, inf], [0.0, 0.0]], lambda x: x.softmax(1))


@program()
def logarithm_of_sums_of_masked_rows(run: Run) -> None:
    inf = float("-inf")
    _at(run, [[inf, 1.0], [inf, inf], [0.0, 0.0]], lambda x: x.logsumexp(1))


@program()
def activations_of_extremes(run: Run) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.stack([F.relu(x), F.gelu(x), F.silu(x), x.sigmoid(), x.tanh(), F.mish(x)])

    _at(run, [EXTREMES], function)


@program()
def comparisons_of_extremes(run: Run) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = x * 1.0
        return torch.stack([torch.maximum(y, -y), y.clamp(-1, 1), y.clamp(min=0), y.sign()])

    _at(run, [EXTREMES], function)


@program()
def cosine_similarity_with_zeros(run: Run) -> None:
    rows = [[0.0, 0.0], [3.0, 4.0]]
    _at(run, rows, lambda x: F.cosine_similarity(x, x.flip(1) * 1.0, dim=1))


@program(share=0.1)
def losses_at_their_kinks(run: Run) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        zero = torch.zeros_like(x)
        both = F.l1_loss(x, zero) + F.smooth_l1_loss(x, zero) + F.huber_loss(x, zero)
        return both + F.hinge_embedding_loss(x, torch.ones_like(x))

    _at(run, [ZEROS], function)
