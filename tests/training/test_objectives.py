"""What is trained and measured: losses of several outputs, targets in any form, loaders of any."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import minidnn as md
from minidnn import layers as L
from minidnn.errors import GraphError
from minidnn.training.objective import objective_of

random = np.random.default_rng(0)
X = random.standard_normal((6, 5)).astype(np.float32)
T = random.integers(0, 3, 6)
P = random.dirichlet(np.ones(3), 6).astype(np.float32)
R = random.standard_normal((6, 2)).astype(np.float32)


class Heads(L.Layer):
    """Two heads, whose outputs have names or are a tuple."""

    def __init__(self, named: bool = True) -> None:
        self.body, self.by_name = L.Linear(5, 4), named
        self.a, self.b = L.Linear(4, 3), L.Linear(4, 2)

    def forward(self, x: Any) -> Any:
        y = self.body(x)
        found = {"main": self.a(y), "aux": self.b(y)}
        return found if self.by_name else tuple(found.values())


class Sum(L.Layer):
    def __init__(self) -> None:
        self.first, self.second = L.Linear(5, 3), L.Linear(5, 3)

    def forward(self, left: Any, right: Any) -> Any:
        return self.first(left) + self.second(right)


CE, MSE = md.losses.CrossEntropy, md.losses.MSE


def trainer(network: L.Layer, loss: Any, shape: Any = (6, 5), **options: Any) -> md.Trainer:
    given: dict[str, Any] = {"device": "reference"} | options
    return md.Trainer(network, shape, loss, md.optim.SGD(0.1), **given)


def eager(net: L.Layer) -> tuple[dict[str, torch.Tensor], Callable[[Any], Any]]:
    state = {n: torch.tensor(a, requires_grad=True) for n, a in net.state_dict().items()}

    def forward(x: Any) -> Any:
        y = F.linear(x, state["body.weight"], state["body.bias"])
        heads = [F.linear(y, state[f"{n}.weight"], state[f"{n}.bias"]) for n in "ab"]
        return dict(zip(("main", "aux"), heads, strict=True))

    return state, forward


@pytest.mark.sampled(3)
@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("rows", [6, 3, 1])
def test_losses_of_several_outputs(named: bool, rows: int) -> None:
    """Steps are PyTorch's of the weighted sum, for any batch."""
    net = Heads(named)
    state, forward = eager(net)
    both: Any = {"main": CE(), "aux": (MSE(), 0.4)} if named else [CE(), (MSE(), 0.4)]
    ours = trainer(net, both)
    x, t, r = X[:rows], T[:rows], R[:rows]
    targets: Any = {"main": t, "aux": r} if named else (t, r)
    for _ in range(2):
        loss = ours.step(x, targets)
        found = forward(torch.tensor(x))
        parts = [F.cross_entropy(found["main"], torch.tensor(t))]
        parts.append(F.mse_loss(found["aux"], torch.tensor(r)))
        total = parts[0] + 0.4 * parts[1]
        slopes = torch.autograd.grad(total, list(state.values()))
        with torch.no_grad():
            for tensor, slope in zip(state.values(), slopes, strict=True):
                tensor -= 0.1 * slope
        assert float(loss) == pytest.approx(total.item(), rel=1e-5)
        names = ("main_loss", "aux_loss") if named else ("0_loss", "1_loss")
        for name, part in zip(names, parts, strict=True):
            assert float(ours.last[name]) == pytest.approx(part.item(), rel=1e-5)
    for name, array in ours.state_dict().items():
        np.testing.assert_allclose(array, state[name].detach().numpy(), rtol=1e-4, atol=1e-6)


def test_one_target_for_all_outputs_and_measures_of_each() -> None:
    net = md.Model(*_two_heads())
    metrics = {"main": {"f1": md.metrics.F1Score(average="macro")}, "aux": {"accuracy": None}}
    ours = trainer(net, {"main": CE(), "aux": (CE(ignore_index=1), 0.4)}, metrics=metrics)
    batches = [(X[:4], T[:4]), (X[4:], T[4:])]
    found = ours.evaluate(batches)
    assert set(found) == {"loss", "main_loss", "aux_loss", "main_accuracy", "main_f1"}
    scores = ours.predict(X)
    expected = md.metrics.F1Score(average="macro").of(scores["main"], T)
    assert found["main_f1"] == pytest.approx(expected)
    aux = F.cross_entropy(torch.tensor(scores["aux"]), torch.tensor(T), ignore_index=1)
    assert found["aux_loss"] == pytest.approx(aux.item(), rel=1e-5)
    assert found["loss"] == pytest.approx(found["main_loss"] + 0.4 * found["aux_loss"])
    assert ours.fit(batches, 1)[0].keys() >= set(found)


def _two_heads() -> Any:
    x = md.Input((5,), name="x")
    return x, {"main": L.Linear(5, 3)(x), "aux": L.Linear(5, 3)(x)}


BATCHES: list[tuple[str, Callable[[], md.Trainer], Any]] = [
    ("tuple", lambda: trainer(Heads(), {"main": CE(), "aux": MSE()}), (X, T, R)),
    ("nested", lambda: trainer(Heads(), {"main": CE(), "aux": MSE()}), (X, (T, R))),
    ("dict", lambda: trainer(Heads(), {"main": CE(), "aux": MSE()}), {"x": X, "main": T, "aux": R}),
    (
        "targets",
        lambda: trainer(Heads(), {"main": CE(), "aux": MSE()}),
        {"x": X, "main_target": T, "aux_target": R, "number": np.arange(6)},
    ),
    ("image", lambda: trainer(L.Linear(5, 3), CE()), {"image": X, "label": T, "id": np.arange(6)}),
    ("rest", lambda: trainer(L.Linear(5, 3), CE()), {"x": X, "what it is": T}),
    ("torch", lambda: trainer(L.Linear(5, 3), CE()), [torch.tensor(X), torch.tensor(T)]),
    ("two", lambda: trainer(Sum(), CE(), [(6, 5), (6, 5)]), (X, X, T)),
    ("two nested", lambda: trainer(Sum(), CE(), [(6, 5), (6, 5)]), ((X, X), T)),
    ("two named", lambda: trainer(Sum(), CE(), [(6, 5)] * 2), {"right": X, "left": X, "y": T}),
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("make", "batch"), [b[1:] for b in BATCHES], ids=[b[0] for b in BATCHES])
def test_loaders_give_tuples_and_dicts(make: Callable[[], md.Trainer], batch: Any) -> None:
    ours, other = make(), make()
    history = ours.fit([batch], 1, validate=[batch])
    two = not isinstance(ours.network, (L.Linear, Heads))
    target: Any = {"main": T, "aux": R} if isinstance(ours.network, Heads) else T
    loss = other.step((X, X) if two else X, target)
    assert history[0]["loss"] == pytest.approx(float(loss))
    found = ours.predict([batch])
    again = ours.predict((X, X) if two else X)
    for one, each in zip(_arrays(found), _arrays(again), strict=True):
        np.testing.assert_array_equal(one, each)


def _arrays(found: Any) -> list[np.ndarray]:
    return list(found.values()) if isinstance(found, dict) else [found]


def test_mixed_targets_with_validation_on_classes() -> None:
    """Each batch counts as PyTorch's cross entropy counts it."""
    ours = trainer(L.Linear(5, 3), CE(label_smoothing=0.1))
    for target in (P, T):
        scores = torch.tensor(ours.predict(X))
        expected = F.cross_entropy(scores, torch.tensor(target), label_smoothing=0.1)
        assert ours.evaluate([(X, target)])["loss"] == pytest.approx(expected.item(), rel=1e-5)
        assert float(ours.step(X, target)) == pytest.approx(expected.item(), rel=1e-5)
    data = md.data.Loader(md.data.Arrays(X, T), 3, mixup=0.4)
    history = ours.fit(data, 1, validate=[(X, T)])
    scores = ours.predict(X)
    assert history[0]["validation_accuracy"] == pytest.approx((scores.argmax(1) == T).mean())


def test_launches_with_targets_of_both_forms() -> None:
    batches = [(X, P), (X, T), (X, T), (X, P)]
    one = trainer(L.Linear(5, 3), CE())
    other = trainer(L.Linear(5, 3), CE(), steps_per_launch=2)
    for each in (one, other):
        each.fit(batches, 1)
    assert other.history[0]["loss"] == one.history[0]["loss"]


def nll(output: Any, target: Any) -> Any:
    """Of indices of classes, by NumPy's functions."""
    logs = output - np.log(np.exp(output).sum(1, keepdims=True))
    classes = np.arange(output.shape[1]).reshape(1, -1)
    return -(logs * np.equal(target.reshape(-1, 1), classes).astype("float32")).sum(1).mean()


def test_plain_functions_over_class_indices() -> None:
    ours, other = trainer(L.Linear(5, 3), nll), trainer(L.Linear(5, 3), CE())
    for rows in (6, 4):
        loss = ours.step(X[:rows], T[:rows])
        assert float(loss) == pytest.approx(float(other.step(X[:rows], T[:rows])), rel=1e-5)


def test_targets_follow_the_batch() -> None:
    def masked(output: Any, targets: Any) -> Any:
        return (targets["mask"] * (output - targets["values"]) ** 2).mean()

    types = {"values": ((6, 2), "float32"), "mask": ((6, 2), "float32")}
    ours = trainer(L.Linear(5, 2), masked, targets=types)
    for rows in (6, 2, 1):
        targets = {"mask": np.ones((rows, 2), np.float32), "values": R[:rows]}
        assert float(ours.step(X[:rows], targets)) > 0
        assert ours.evaluate([{"x": X[:rows], **targets}])["loss"] > 0


@pytest.mark.parametrize("rows", [1, 6, 13])
def test_predictions_of_any_number(rows: int) -> None:
    net = Heads(named=False)
    ours = trainer(net, [CE(), MSE()], average=0.5)
    ours.step(X, (T, R))
    x = np.random.default_rng(1).standard_normal((rows, 5)).astype(np.float32)
    net.load_state_dict(ours.state_dict())  # the averages
    expected = md.compile(net, (rows, 5), device="reference")(x)
    for one, other in zip(ours.predict(x), expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_predictions_of_nothing() -> None:
    ours = several()
    for given in (X[:0], [X[:0]], [(X[:0], (T[:0], R[:0]))]):
        found = ours.predict(given)
        assert {name: array.shape for name, array in found.items()} == {
            "main": (0, 3),
            "aux": (0, 2),
        }
    assert ours.predict([X[:0], X[:2]])["main"].shape == (2, 3)


def several() -> md.Trainer:
    return trainer(Heads(), {"main": CE(), "aux": MSE()})


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (
            lambda: trainer(Heads(), CE()),
            "has 2 outputs; valid are one, losses of several by their",
        ),
        (
            lambda: trainer(Heads(), {"main": CE(), "au": MSE()}),
            "loss.'au'.: the network has no such output; valid are 'main', 'aux'; did you m",
        ),
        (lambda: trainer(Heads(), {"main": (CE(), "x")}), r"loss\['main'\]='x'; valid is a number"),
        (
            lambda: trainer(Heads(), {"main": 3}),
            r"loss\['main'\]=3; valid is a loss of minidnn.loss",
        ),
        (lambda: trainer(Heads(), {}), "loss={}; valid is a loss of minidnn.losses"),
        (
            lambda: trainer(Heads(), {"main": CE()}),
            "the loss '.*' does not depend on 'b.weight', 'b.bias'",
        ),
        (lambda: several().step(X, (T,)), "1 targets given; valid are 2"),
        (
            lambda: several().step(X, (R, T)),
            r"main_target is float32 of shape \(6, 2\); valid is an",
        ),
        (
            lambda: several().step(X, {"main": T}),
            "targets has 'main'; valid are 'main_target', 'aux",
        ),
        (lambda: several().fit([(X, T, R, R)], 1), "a tuple of 4; .* or a tuple of 1 inputs and 2"),
        (
            lambda: several().fit([{"pixels": X, "main": T, "aux": R}], 1),
            "batch 1 has 'pixels', 'main', 'aux'; valid is a mapping with the network's input",
        ),
        (
            lambda: trainer(L.Linear(5, 3), nll).step(X, T.reshape(6, 1)),
            r"target is int64 of shape \(6, 1\); valid is a float dtype of shape \(6, 3\) or",
        ),
        (
            lambda: trainer(L.Linear(5, 2), lambda y, t: ((y - t) ** 2).mean()).step(X, R[:, 0]),
            r"target is float32 of shape \(6,\); valid is",
        ),
        (
            lambda: trainer(L.Linear(5, 3), CE(), metrics={"main": {"a": nll}}),
            "metrics.'main'. is a mapping; valid under a name of an output with a loss of its own",
        ),
        (lambda: several().predict([]), "predict: there are no batches"),
        (lambda: several().predict([3]), "predict: batch 1 is 3 .int.; valid are inputs of shape"),
    ],
)
def test_what_does_not_fit_is_told(use: Callable[[], Any], message: str) -> None:
    with pytest.raises(GraphError, match=message):
        use()


@pytest.mark.parametrize(
    ("metrics", "text"),
    [
        (
            {"acuracy": None},
            r"metrics\['acuracy'\]=None; metrics that can be left out are 'accuracy'",
        ),
        ({"accuracy": None, "f1": None}, r"metrics\['f1'\]=None"),
    ],
)
def test_only_suggested_metrics_can_be_left_out(metrics: Any, text: str) -> None:
    with pytest.raises(GraphError, match=text):
        objective_of(md.losses.CrossEntropy(), metrics, None)
    assert not objective_of(md.losses.CrossEntropy(), {"accuracy": None}, None).metrics


def test_metrics_that_an_output_does_not_suggest_cannot_be_left_out_of_it() -> None:
    losses = {"main": md.losses.CrossEntropy(), "aux": md.losses.MSE()}
    with pytest.raises(GraphError, match=r"metrics\['main'\]\['top'\]=None; .* are 'accuracy'$"):
        objective_of(losses, {"main": {"top": None}}, None)
