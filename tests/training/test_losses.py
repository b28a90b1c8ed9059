"""Losses and their gradients, beside PyTorch's in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import minidnn as md
from minidnn import layers as L
from minidnn.errors import GraphError
from minidnn.graph.types import TensorType
from minidnn.training import losses
from minidnn.training.metrics.metric import OfClasses
from minidnn.training.step import Objective

WEIGHT = [0.5, 2.0, 1.0, 0.0, 3.0]
random = np.random.default_rng(0)
INDICES = random.integers(0, 5, 7)
PLANES = random.integers(0, 5, (2, 3, 4))
PARTS = random.dirichlet(np.ones(5), 7)


def check(
    loss: Any,
    theirs: Callable[[Any, Any], Any],
    target: np.ndarray,
    shape: tuple[int, ...] = (7, 5),
) -> None:
    """The loss, and its gradient by the output."""
    graph = Objective(loss, {}).applied(L.Identity(), shape, "eval")
    graph = md.gradient(graph, "loss", of="input")
    exe = md.compile(graph, device="reference", precision="float64")
    for scale in (1.0, 60.0):
        x = np.random.default_rng(1).standard_normal(shape) * scale
        x.reshape(-1)[:3] = 0.0
        value, slope = exe(x, target).values()
        given = torch.from_numpy(x).requires_grad_()
        expected = theirs(given, torch.from_numpy(target))
        np.testing.assert_allclose(value, expected.item(), rtol=1e-12)
        (by_x,) = torch.autograd.grad(expected, given)
        np.testing.assert_allclose(slope, by_x.numpy(), rtol=1e-9, atol=1e-12)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("weight", [None, WEIGHT])
@pytest.mark.parametrize("ignored", [None, 2, -1])
def test_cross_entropy(smoothing: float, weight: Any, ignored: int | None) -> None:
    ours = losses.CrossEntropy(smoothing, weight, ignored)
    tensor = None if weight is None else torch.tensor(weight).double()

    def theirs(x: Any, t: Any) -> Any:
        return F.cross_entropy(
            x,
            t,
            tensor,
            ignore_index=-100 if ignored is None else ignored,
            label_smoothing=smoothing,
        )

    for target, shape in ((INDICES, (7, 5)), (PLANES, (2, 5, 3, 4))):
        given = target.copy()
        if ignored == -1:
            given.reshape(-1)[::3] = -1
        check(ours, theirs, given, shape)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("weight", [None, WEIGHT])
def test_cross_entropy_of_probabilities(smoothing: float, weight: Any) -> None:
    tensor = None if weight is None else torch.tensor(weight).double()
    check(
        losses.CrossEntropy(smoothing, weight, probabilities=True),
        lambda x, t: F.cross_entropy(x, t, tensor, label_smoothing=smoothing),
        PARTS,
    )


@pytest.mark.parametrize("weight", [1.0, 2.5, WEIGHT])
def test_binary_cross_entropy(weight: Any) -> None:
    check(
        losses.BinaryCrossEntropy(weight),
        lambda x, t: F.binary_cross_entropy_with_logits(x, t, pos_weight=torch.tensor(weight)),
        PARTS,
    )


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (losses.MSE(), F.mse_loss),
        (losses.L1(), F.l1_loss),
        (losses.Huber(), F.huber_loss),
        (losses.Huber(0.25), lambda x, t: F.huber_loss(x, t, delta=0.25)),
        (lambda x, t: np.exp(-x * t / 99).mean(), lambda x, t: torch.exp(-x * t / 99).mean()),
        (lambda x, t: (L.Sigmoid()(x) - t).max(), lambda x, t: (x.sigmoid() - t).amax()),
    ],
)
def test_distances(ours: Any, theirs: Any) -> None:
    target = np.random.default_rng(2).standard_normal((7, 5))
    target.reshape(-1)[0] = 0.0
    check(ours, theirs, target)


def test_accuracy() -> None:
    x = np.eye(5)[[0, 1, 2, 3]] + 0.5 * np.eye(5)[[1, 2, 3, 4]]
    for probabilities, target in ((False, np.array([0, 1, 0, 3])), (True, np.eye(5)[[0, 1, 0, 3]])):
        loss = losses.CrossEntropy(probabilities=probabilities)
        graph = Objective(loss, loss.metrics).applied(L.Identity(), (4, 5), "eval")
        assert md.compile(graph, device="reference")(x, target)["accuracy"] == 0.75


OUTPUT = TensorType((2, 3))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: losses.CrossEntropy(1.5), "label_smoothing=1.5; valid is a number from 0 to 1"),
        (lambda: losses.CrossEntropy(weight=[-1.0]), r"weight=\[-1.0\]; valid is a number of at"),
        (
            lambda: losses.CrossEntropy(weight=[1.0, np.inf]),
            r"weight=\[1.0, inf\]; valid is a num",
        ),
        (lambda: losses.CrossEntropy(weight=["a"]), "weight=.'a'.; valid is a number of at least"),  # type: ignore[list-item]
        (lambda: losses.CrossEntropy(ignore_index=0.5), "ignore_index=0.5; valid is an int"),  # type: ignore[arg-type]
        (lambda: losses.CrossEntropy(0, None, 1, True), "ignore_index=1 with probabilities=True"),
        (lambda: losses.CrossEntropy(weight=[1.0]).target(OUTPUT), "weight has 1 numbers; valid"),
        (lambda: losses.CrossEntropy().target(TensorType((3,))), r"a shape \(N, classes, ...\)"),
        (
            lambda: losses.BinaryCrossEntropy("2"),  # type: ignore[arg-type]
            "positive_weight='2'; valid is a number of at lea",
        ),
        (lambda: losses.BinaryCrossEntropy([1, -1]), r"positive_weight=\[1, -1\]; valid is a numb"),
        (lambda: losses.Huber(-1.0), "Huber: delta=-1.0; valid is a number of at least 0"),
        (
            lambda: losses.CrossEntropy().check(np.array([0, 3]), OUTPUT),
            r"CrossEntropy: target\[1\] is 3; valid are indices from 0 to 2",
        ),
        (
            lambda: losses.CrossEntropy(ignore_index=-1).check(np.array([-1, -2]), OUTPUT),
            r"target\[1\] is -2; valid are indices from 0 to 2 of the output's classes, and -1",
        ),
        (
            lambda: losses.BinaryCrossEntropy().check(np.array([[0.5, np.nan, 0]]), OUTPUT),
            r"BinaryCrossEntropy: target\[0, 1\] is nan; valid are numbers from 0 to 1",
        ),
    ],
)
def test_bad_arguments(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(GraphError, match=message):
        make()


#: Losses that take any target of the right type, and one that checks those of another loss.
TAKE_ALL = {"MSE", "L1", "Huber", "SmoothL1", "PoissonNLL", "GaussianNLL", "Weighted", "Loss"}
TAKE_ALL |= {"Triplet", "TripletMargin", "Contrastive", "SupervisedContrastive", "InfoNCE"}


def kinds(module: Any, base: type) -> list[type]:
    """The public classes of a module that are derived from a base class."""
    found = [getattr(module, name) for name in dir(module) if not name.startswith("_")]
    return [each for each in found if isinstance(each, type) and issubclass(each, base)]


@pytest.mark.parametrize("kind", kinds(losses, losses.Loss))
def test_a_wrong_target_is_reported_by_the_loss_itself(kind: Any) -> None:
    output = TensorType((2, 3, 4))
    target = np.full((2, 4), -9)
    if kind.__name__ in TAKE_ALL:
        assert kind.check is losses.Loss.check
        return
    with pytest.raises(GraphError, match=rf"^{kind.__name__}: target\[0, 0\] is -9; valid are "):
        kind().check(target, output)


@pytest.mark.parametrize("kind", kinds(md.metrics, md.metrics.Metric))
def test_a_wrong_target_is_reported_by_the_metric_itself(kind: Any) -> None:
    scores = np.eye(3)
    if kind is md.metrics.Metric:
        with pytest.raises(GraphError, match=r"^Metric does not define batch\("):
            kind().of(scores, scores)
        return
    # The latter has no probability for one of the classes.
    for target in (np.full(3, 9), np.full((3, 2), 0.5)):
        with pytest.raises(GraphError, match=rf"^{kind.__name__}: .*; valid "):
            kind().of(scores, target)
    if issubclass(kind, OfClasses):
        with pytest.raises(GraphError, match=rf"^{kind.__name__}: a target is 9; valid "):
            kind(task="binary").of(scores[0], np.array([0, 1, 9]))
