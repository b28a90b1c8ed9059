"""Muon and Lion: Muon beside PyTorch's, whose iteration is in bfloat16, in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import minidnn as md
from minidnn import layers as L
from minidnn.errors import GraphError
from minidnn.training import losses, optim
from minidnn.training.step import Objective, step_graph

from .test_optim import BATCHES, SHAPE, assert_equal, by_formula, by_torch, trained


def orthogonal(grad: torch.Tensor, ns_coefficients: Any, ns_steps: int, eps: float) -> torch.Tensor:
    """PyTorch's iteration in the gradient's own precision."""
    a, b, c = ns_coefficients
    x = grad.T if grad.size(0) > grad.size(1) else grad
    x = x / x.norm().clamp(min=eps)
    for _ in range(ns_steps):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if grad.size(0) > grad.size(1) else x


class Both:
    """PyTorch's Muon for matrices, and another optimizer for the rest."""

    def __init__(self, parameters: Any, rest: Any, own: Any, **options: Any) -> None:
        given = list(parameters)
        self.each = [
            torch.optim.Muon([p for p in given if own(p)], **options),
            rest([p for p in given if not own(p)]),
        ]

    def step(self) -> None:
        for each in self.each:
            each.step()

    def zero_grad(self) -> None:
        for each in self.each:
            each.zero_grad()


@pytest.mark.parametrize(
    ("adjust", "nesterov"),
    [
        ("match_rms_adamw", True),
        *(pytest.param(None, each, marks=pytest.mark.full) for each in (False, True)),
    ],
)
def test_like_torch(adjust: Any, nesterov: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.optim._muon._zeropower_via_newtonschulz", orthogonal)
    options: dict[str, Any] = {"weight_decay": 0.2, "nesterov": nesterov, "adjust_lr_fn": adjust}
    options |= {"ns_steps": 3, "momentum": 0.8}
    expected = by_torch(
        lambda p: Both(
            p, lambda r: torch.optim.Adam(r, 0.1), lambda p: p.ndim > 1, lr=0.1, **options
        )
    )
    assert_equal(trained(optim.Muon(0.1, others=optim.Adam(0.1), **options)), expected)


def test_weights_that_others_train() -> None:
    own, other = optim.Muon(0.1, leave=["3.*"], others=optim.SGD(0.1, momentum=0.9)), "3.weight"
    expected = by_torch(
        lambda p: Both(
            p,
            lambda r: torch.optim.SGD(r, 0.1, 0.9),
            lambda p: p.shape == (5, 4),
            lr=0.1,
            weight_decay=0.1,
        )
    )
    found = trained(own)
    # PyTorch rounds to bfloat16 in between.
    assert np.abs(found["0.weight"] - expected["0.weight"]).max() < 0.15
    assert np.abs(found[other] - expected[other]).max() < 0.15
    assert not any("0.bias" in name for name in found)


def test_filters_are_matrices_and_schedules_apply() -> None:
    net = md.Sequential(L.Conv2d(2, 3, 2, bias=False), L.Flatten())
    before = net.state_dict()["0.weight"]
    lr = optim.Exponential(0.1, 0.5)
    optimizer = optim.Muon(lr, weight_decay=0.0, ns_steps=30, ns_coefficients=(2, -1.5, 0.5))
    trainer = md.Trainer(net, (4, 2, 2, 2), losses.MSE(), optimizer, device="reference")
    random = np.random.default_rng(0)
    for rate in (0.1, 0.05):
        trainer.step(random.standard_normal((4, 2, 2, 2)), random.standard_normal((4, 3)))
        now = trainer.state_dict()["0.weight"]
        step = (now - before).reshape(3, 8) / rate
        np.testing.assert_allclose(step @ step.T, np.eye(3), atol=1e-4)
        before = now


def test_a_plateau_lowers_the_rates_of_both() -> None:
    net = md.Sequential(L.Linear(3, 2))
    optimizer = optim.Muon(0.1, others=optim.SGD(0.2))
    trainer = md.Trainer(net, (2, 3), losses.MSE(), optimizer, device="reference")
    plateau = optim.ReduceOnPlateau(factor=0.5, patience=0, threshold=1.0)
    trainer.fit(
        [(np.ones((2, 3), np.float32), np.ones((2, 2), np.float32))], 2, callbacks=[plateau]
    )
    assert trainer.optimizer.numbers(9) == pytest.approx({"rate": 0.05, "others_rate": 0.1})


def test_lion() -> None:
    def step(t: int, x: np.ndarray, g: np.ndarray, kept: dict[str, Any]) -> np.ndarray:
        c = 0.9 * kept["m"] + 0.1 * g
        kept["m"] = 0.95 * kept["m"] + 0.05 * g
        return np.asarray(x - 0.01 * (np.sign(c) + 0.3 * x))

    assert_equal(trained(optim.Lion(0.01, betas=(0.9, 0.95), weight_decay=0.3)), by_formula(step))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: optim.Muon(0.1, adjust_lr_fn="x"), "adjust_lr_fn='x'; valid are 'original', 'ma"),  # type: ignore[arg-type]
        (lambda: optim.Muon(0.1, ns_steps=0), "ns_steps=0; valid is an int of at least 1"),
        (lambda: optim.Muon(0.1, others=0.1), "others=0.1; valid is an optimizer of minidnn"),  # type: ignore[arg-type]
        (lambda: optim.Muon(0.1, leave=["a"]), "others=None; valid is a sequence of patterns, w"),
        (
            lambda: optim.Muon(0.1, others=optim.SGD(0.1, clip_norm=1.0)),
            "others has clip_norm or clip_value; valid is to give them to Muon",
        ),
        (
            lambda: step_graph(L.Linear(4, 3), SHAPE, Objective(losses.MSE(), {}), optim.Muon(0.1)),
            r"parameter 'bias' has shape \(3,\); valid are at least two axes, or others=",
        ),
        (
            lambda: step_graph(
                L.Linear(4, 3),
                SHAPE,
                Objective(losses.MSE(), {}),
                optim.Muon(0.1, leave=["wieght"], others=optim.SGD(0.1)),
            ),
            "leave='wieght' fits no parameter that is trained; did you mean 'weight'",
        ),
        (lambda: optim.NAdam(0.1, momentum_decay=-1), "momentum_decay=-1; valid is a number of"),
        (lambda: optim.Rprop(0.1, etas=(0.5, 0.9)), r"etas\[1\]=0.9; valid is a number of at leas"),
        (lambda: optim.Adagrad(0.1, lr_decay=-1), "lr_decay=-1; valid is a number of at least 0"),
    ],
)
def test_bad_arguments(make: Callable[[], Any], message: str) -> None:
    assert BATCHES
    with pytest.raises(GraphError, match=message):
        make()
