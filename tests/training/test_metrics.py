"""Metrics of whole sets, beside scikit-learn's and torchmetrics' definitions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import sklearn.metrics as theirs
import torch

import minidnn as md
from minidnn import layers as L
from minidnn.errors import GraphError, MiniDNNWarning
from minidnn.training.metrics.metric import merged

m = md.metrics
ANY: Any = str
CLASSES = 5
GPU = pytest.param("cuda", marks=pytest.mark.gpu)


def parts(metric: Any, output: np.ndarray, target: np.ndarray, sizes: list[int]) -> Any:
    """The metric of a set that comes in batches."""
    states, begin = None, 0
    for size in sizes:
        some = slice(begin, begin + size)
        states = merged(metric, states, metric.batch(output[some], target[some]))
        begin += size
    assert begin == len(output)
    return metric.result(states)


def drawn(seed: int, task: str) -> tuple[np.ndarray, np.ndarray]:
    draws = np.random.default_rng(seed)
    if task == "multiclass":
        return draws.standard_normal((11, CLASSES, 3)), draws.integers(0, CLASSES, (11, 3))
    shape = (11,) if task == "binary" else (11, 4)
    return draws.standard_normal(shape), draws.integers(0, 2, shape)


def rate(function: Callable[..., float], **more: Any) -> Callable[..., Any]:
    def found(task: str, output: Any, target: Any, average: Any) -> Any:
        if task == "multiclass":
            given: Any = target.ravel(), output.argmax(1).ravel()
            return function(*given, average=average, zero_division=0, **more)
        given = target, (output > 0).astype(int)
        average = "binary" if task == "binary" else average
        return function(*given, average=average, zero_division=0, **more)

    return found


RATES: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "precision": (m.Precision, rate(theirs.precision_score)),
    "recall": (m.Recall, rate(theirs.recall_score)),
    "f1": (m.F1Score, rate(theirs.f1_score)),
    "f2": (lambda *a, **o: m.FBetaScore(2.0, *a, **o), rate(theirs.fbeta_score, beta=2.0)),
    "jaccard": (m.JaccardIndex, rate(theirs.jaccard_score)),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("average", ["micro", "macro", "weighted", None])
@pytest.mark.parametrize("task", ["multiclass", "binary", "multilabel"])
@pytest.mark.parametrize("name", RATES)
def test_rates(name: str, task: str, average: Any) -> None:
    ours, expected = RATES[name]
    for seed in range(3):
        output, target = drawn(seed, task)
        found = parts(ours(task, average=average), output, target, [4, 4, 3])
        np.testing.assert_allclose(found, expected(task, output, target, average), rtol=1e-12)


@pytest.mark.parametrize("k", [1, 2, 3, 7])
@pytest.mark.parametrize("ignored", [None, 2, -100, 255])
def test_top_k(k: int, ignored: int | None) -> None:
    for seed in range(3):
        output, target = drawn(seed, "multiclass")
        if ignored is not None:
            target[::3] = ignored
        best = torch.from_numpy(output).topk(min(k, CLASSES), 1).indices.numpy()
        keep = target != (ignored if ignored is not None else -1)
        right = (best == target[:, None]).any(1)
        metric = m.Accuracy(top_k=k, ignore_index=ignored)
        assert parts(metric, output, target, [5, 6]) == pytest.approx(right[keep].mean())
        macro = m.Accuracy(top_k=k, ignore_index=ignored, average="macro").of(output, target)
        means = [right[keep & (target == c)].mean() for c in np.unique(target[keep])]
        if k > 1:
            assert macro == pytest.approx(np.mean(means))


def test_accuracy_of_scores_and_logits() -> None:
    """Which of both they are is known when all of the set was seen."""
    scores, target = np.array([0.2, 0.4, 0.6, 0.9]), np.array([0, 1, 1, 1])
    assert m.Accuracy("binary").of(scores, target) == 0.75
    logits = np.array([0.2, 0.4, 0.6, 0.9, -3.0, 5.0])
    found = parts(m.Accuracy("binary"), logits, np.array([0, 1, 1, 1, 0, 1]), [4, 2])
    assert found == pytest.approx(5 / 6)


def test_confusion_matrix() -> None:
    output, target = drawn(4, "multiclass")
    given = target.ravel(), output.argmax(1).ravel()
    for normalize in (None, "true", "pred", "all"):
        expected = theirs.confusion_matrix(*given, labels=range(CLASSES), normalize=normalize)
        found = parts(m.ConfusionMatrix(normalize=normalize), output, target, [10, 1])
        np.testing.assert_allclose(found, expected, rtol=1e-12)
    output, target = drawn(4, "multilabel")
    expected = theirs.multilabel_confusion_matrix(target, output > 0)
    np.testing.assert_array_equal(m.ConfusionMatrix("multilabel").of(output, target), expected)


@pytest.mark.parametrize("weights", [None, "linear", "quadratic"])
def test_kappa_and_correlation(weights: Any) -> None:
    for seed in range(3):
        output, target = drawn(seed, "multiclass")
        given = target.ravel(), output.argmax(1).ravel()
        expected = theirs.cohen_kappa_score(*given, weights=weights)
        assert m.CohenKappa(weights=weights).of(output, target) == pytest.approx(expected)
        found = m.MatthewsCorrCoef().of(output, target)
        assert found == pytest.approx(theirs.matthews_corrcoef(*given))


@pytest.mark.parametrize("ties", [False, True])
def test_areas(ties: bool) -> None:
    for seed in range(3):
        draws = np.random.default_rng(seed)
        output, target = draws.standard_normal((30, 3)), draws.integers(0, 3, 30)
        likely = np.exp(output) / np.exp(output).sum(1, keepdims=True)
        if ties:
            output = likely = draws.integers(0, 5, (30, 3)) / 4.0
        is_class = np.eye(3)[target]
        for average in ("macro", "weighted", None):
            found = parts(m.AUROC(average=average), output, target, [10, 15, 5])
            expected = theirs.roc_auc_score(is_class, likely, average=average)
            np.testing.assert_allclose(found, expected, rtol=1e-12)
            found = parts(m.AveragePrecision(average=average), output, target, [10, 20])
            expected = theirs.average_precision_score(is_class, likely, average=average)
            np.testing.assert_allclose(found, expected, rtol=1e-12)
        one, every = (output[:, 0], is_class[:, 0]), (output, is_class)
        for metric, (y, t) in ((m.AUROC("binary"), one), (m.AUROC("multilabel"), every)):
            assert parts(metric, y, t, [29, 1]) == pytest.approx(theirs.roc_auc_score(t, y))
    with pytest.warns(MiniDNNWarning, match="a class that all samples are of, or none, counts"):
        assert m.AUROC("binary").of(np.array([0.1, 0.7]), np.array([1, 1])) == 0.0
    assert np.isnan(m.AUROC("binary").of(np.array([np.nan, 0.7]), np.array([0, 1])))


def test_distances() -> None:
    draws = np.random.default_rng(3)
    y, t = draws.standard_normal((2, 9, 2))
    for ours, expected in (
        (m.MeanAbsoluteError(), theirs.mean_absolute_error(t, y)),
        (m.MeanSquaredError(), theirs.mean_squared_error(t, y)),
        (m.RootMeanSquaredError(), np.sqrt(theirs.mean_squared_error(t, y))),
        (m.R2Score(), theirs.r2_score(t, y)),
    ):
        assert parts(ours, y, t, [1, 5, 3]) == pytest.approx(expected, rel=1e-12)


def test_ignored_classes_of_intersections() -> None:
    """As torchmetrics has it: what was taken for the ignored class counts for others alone."""
    output, target = drawn(5, "multiclass")
    keep = target != 2
    found, given = output.argmax(1)[keep], target[keep]
    each = []
    for c in (0, 1, 3, 4):
        each.append(((found == c) & (given == c)).sum() / ((found == c) | (given == c)).sum())
    assert m.JaccardIndex(ignore_index=2).of(output, target) == pytest.approx(np.mean(each))


SHAPE = (4, 1, 3, 3)
IMAGES = np.random.default_rng(6).standard_normal((10, 1, 3, 3)).astype(np.float32)
TARGETS = np.random.default_rng(7).integers(0, CLASSES, 10)
BATCHES = [(IMAGES[i : i + 4], TARGETS[i : i + 4]) for i in (0, 4, 8)]


def trainer(device: str = "reference", **options: Any) -> md.Trainer:
    net = md.Sequential(L.Flatten(), L.Linear(9, CLASSES))
    given: dict[str, Any] = {"optimizer": md.optim.SGD(0.0), "loss": md.losses.CrossEntropy()}
    return md.Trainer(net, SHAPE, **(given | options), device=device)


def test_a_warning_names_the_line_that_called() -> None:
    of_one_class = [(x, np.zeros_like(t)) for x, t in BATCHES]
    with pytest.warns(MiniDNNWarning, match="a class that all samples are of") as caught:
        trainer(metrics=[m.AUROC()]).evaluate(of_one_class)
        m.AUROC("binary").of(np.array([0.1, 0.7]), np.array([1, 1]))
    assert {warning.filename for warning in caught} == {__file__}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("device", ["reference", "cpu", GPU])
def test_a_trainer_measures_whole_sets(device: str) -> None:
    metrics = {
        **{"f1": m.F1Score(average="macro"), "top2": m.Accuracy(top_k=2)},
        **{"auc": m.AUROC(average="weighted"), "counts": m.ConfusionMatrix()},
    }
    ours = trainer(device, metrics=metrics)
    history = ours.fit(BATCHES, 1, validate=BATCHES[::-1])
    scores = ours.predict(BATCHES)
    found = ours.evaluate(BATCHES)
    assert set(found) == {"loss", "accuracy", *metrics}
    for name, metric in metrics.items():
        expected = metric.of(scores, TARGETS)
        np.testing.assert_allclose(found[name], expected, rtol=1e-6)
        for prefix in ("", "validation_"):
            held = ours.tables if name == "counts" else history[0]
            np.testing.assert_allclose(held[prefix + name], expected, rtol=1e-6)
    assert "counts" not in history[0] and set(ours.last) == {"loss", "accuracy"}


class Total(m.Metric):
    """The sum of all outputs, summed up on the device: a value without axes is all it sees."""

    def seen(self, output: Any, target: Any) -> tuple[Any, ...]:
        return (output.sum(),)

    def batch(self, output: Any, target: Any) -> Any:
        return {"total": np.asarray(output, np.float64).sum()}

    def result(self, states: Any) -> float:
        return float(states["total"])


class Samples(Total):
    """The number of targets: it sees nothing of the network."""

    def seen(self, output: Any, target: Any) -> tuple[Any, ...]:
        return ()

    def taken(self, seen: Any, target: Any, shape: Any) -> Any:
        return {"total": np.float64(len(target))}


def test_a_metric_that_sees_numbers_only() -> None:
    ours = trainer(metrics={"total": Total(), "samples": Samples()}, optimizer=md.optim.SGD(0.0))
    record = ours.fit(BATCHES, 1, validate=BATCHES)[0]
    assert record["samples"] == record["validation_samples"] == len(TARGETS)
    assert record["total"] == pytest.approx(record["validation_total"])
    assert record["total"] == pytest.approx(ours.predict(BATCHES).sum(), rel=1e-4)


def test_metrics_add_to_accuracy_or_leave_it_out() -> None:
    assert set(trainer(metrics=[m.F1Score()]).evaluate(BATCHES)) == {"loss", "accuracy", "f1_score"}
    assert set(trainer(metrics={"accuracy": None}).evaluate(BATCHES)) == {"loss"}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("weight", [None, [1.0, 2.0, 0.5, 0.0, 3.0]])
@pytest.mark.parametrize("ignored", [None, 1, -1])
def test_what_counts_in_an_evaluation(weight: Any, ignored: int | None) -> None:
    """Of all batches together, as PyTorch computes it of the whole set."""
    target = TARGETS.copy()
    if ignored is not None:
        target[[0, 1, 2, 3, 5]] = ignored  # all of the first batch
    batches = [(IMAGES[i : i + 4], target[i : i + 4]) for i in (0, 4, 8)]
    ours = trainer(loss=md.losses.CrossEntropy(weight=weight, ignore_index=ignored))
    scores = ours.predict(batches)
    expected = torch.nn.functional.cross_entropy(
        torch.from_numpy(scores),
        torch.from_numpy(target),
        None if weight is None else torch.tensor(weight),
        ignore_index=-100 if ignored is None else ignored,
    )
    keep = target != (-100 if ignored is None else ignored)
    right = (scores.argmax(1) == target)[keep].mean()
    found = ours.evaluate(batches)
    assert found["loss"] == pytest.approx(expected.item(), rel=1e-5)
    assert found["accuracy"] == pytest.approx(right, rel=1e-6)
    record = ours.fit(batches, 1, stop_on_nan=False)[0]
    assert record["loss"] == pytest.approx(expected.item(), rel=1e-5)
    assert record["accuracy"] == pytest.approx(right, rel=1e-6)


def test_metrics_go_on_within_an_epoch(tmp_path: Any) -> None:
    class Stops(md.callbacks.Callback):
        def after_step(self, trainer: Any) -> None:
            trainer.halt = "test" if trainer.progress.batches == 2 else None

    metrics = {"f1": m.F1Score(average="macro"), "auc": m.AUROC(average="weighted")}
    whole, first, second = (trainer(metrics=metrics) for _ in range(3))
    whole.fit(BATCHES, 1)
    first.fit(BATCHES, 1, callbacks=[Stops(), md.callbacks.Checkpoint(tmp_path / "run")])
    second.restore(tmp_path / "run")
    second.fit(BATCHES, 1)
    for name in metrics:
        assert second.history[0][name] == whole.history[0][name]


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (
            lambda: m.F1Score(ANY("many")),
            "F1Score: task='many'; valid are 'multiclass', 'binary', 'mult",
        ),
        (
            lambda: m.Recall(average=ANY("mean")),
            "Recall: average='mean'; valid are 'micro', 'macro', 'we",
        ),
        (lambda: m.Accuracy("binary", top_k=2), "top_k=2, task='binary'; valid with task='multi"),
        (lambda: m.Accuracy().of(np.eye(3), np.array([0, 1, 3])), "targets go from 0 to 3; valid"),
        (
            lambda: m.Accuracy().of(np.eye(3), np.ones(3)),
            r"target is float64 of shape \(3,\); valid",
        ),
        (
            lambda: m.Accuracy(top_k=2).of(np.eye(3), np.ones((3, 2))),
            r"Accuracy: the target is float64 of shape \(3, 2\); valid .* of the 3 classes",
        ),
        (
            lambda: m.Accuracy(top_k=2).of(np.ones(3), np.ones(3)),
            r"Accuracy: the output has shape \(3,\); valid",
        ),
        (lambda: m.Accuracy("binary").of(np.ones(3), np.array([0, 1, 2])), "a target is 2; valid"),
        (
            lambda: m.Accuracy().of(np.ones(3), np.array([0, 1, 1])),
            r"output has shape \(3,\); valid",
        ),
        (
            lambda: trainer(metrics={"loss": m.F1Score()}),
            "metrics has the name 'loss'; valid is one",
        ),
        (lambda: trainer(metrics={"f1": "f1"}), "'f1'.='f1'; valid is a metric of minidnn.metrics"),
        (
            lambda: trainer(metrics=["f1"]),
            "metrics has 'f1'; valid in a sequence are metrics of min",
        ),
        (
            lambda: trainer(metrics=[m.F1Score()], steps_per_launch=2),
            "steps_per_launch=2 with metrics f1_score; valid is 1 with metrics of whole sets",
        ),
    ],
)
def test_what_is_not_valid(use: Callable[[], Any], message: str) -> None:
    with pytest.raises(GraphError, match=message):
        use()
