"""Losses and their gradients beside PyTorch's, torchvision's and formulas of papers, in float64."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import minidnn as md
from minidnn import layers as L
from minidnn.errors import GraphError
from minidnn.frontends.torch.torchvision import make_importable
from minidnn.graph.types import TensorType
from minidnn.training import losses
from minidnn.training.step import Objective

random = np.random.default_rng(0)
CLASSES = random.integers(0, 5, 7)
PARTS = random.dirichlet(np.ones(5), 7)
PARTS[0] = np.eye(5)[2]
SIGNS = np.where(random.random((7, 5)) < 0.5, -1.0, 1.0)
WEIGHT = [0.5, 2.0, 1.0, 0.0, 3.0]


def check(
    ours: Any,
    theirs: Callable[[Any, Any], Any],
    target: np.ndarray,
    shape: tuple[int, ...] = (7, 5),
    scales: tuple[float, ...] = (1.0, 30.0),
    positive: bool = False,
) -> None:
    """The loss, and its gradient by the output."""
    kind = "int64" if target.dtype.kind == "i" else "float32"
    objective = Objective(ours, {}, [TensorType(target.shape, kind)])
    graph = md.gradient(objective.applied(L.Identity(), shape, "eval"), "loss", of="input")
    exe = md.compile(graph, device="reference", precision="float64")
    for scale in scales:
        x = np.random.default_rng(1).standard_normal(shape) * scale
        x = abs(x) + 0.1 if positive else x
        value, slope = exe(x, target).values()
        given = torch.from_numpy(x).requires_grad_()
        expected = theirs(given, torch.from_numpy(target))
        np.testing.assert_allclose(value, expected.item(), rtol=1e-10, atol=1e-14)
        (by_x,) = torch.autograd.grad(expected, given)
        np.testing.assert_allclose(slope, by_x.numpy(), rtol=1e-8, atol=1e-12)


def focal(x: Any, t: Any, gamma: float, weight: Any = None, ignored: int = -100) -> Any:
    log = F.log_softmax(x, 1)
    each = F.nll_loss(log, t, weight, ignore_index=ignored, reduction="none")
    chosen = log.gather(1, t.clamp(min=0)[:, None])[:, 0].exp()
    count = torch.ones(5, dtype=torch.float64) if weight is None else weight
    return (each * (1 - chosen) ** gamma).sum() / count[t[t != ignored]].sum()


def sigmoid_focal(**options: float) -> Callable[[Any, Any], Any]:
    make_importable()
    from torchvision.ops import sigmoid_focal_loss

    return lambda x, t: sigmoid_focal_loss(x, t, **options, reduction="mean")


W = torch.tensor(WEIGHT).double()
IGNORED = np.where(np.arange(7) % 3 == 0, -1, CLASSES)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("ours", "theirs", "target"),
    [
        (losses.NLL(), F.nll_loss, CLASSES),
        (losses.NLL(WEIGHT, -1), lambda x, t: F.nll_loss(x, t, W, ignore_index=-1), IGNORED),
        (losses.SmoothL1(), F.smooth_l1_loss, PARTS),
        (losses.SmoothL1(0.3), lambda x, t: F.smooth_l1_loss(x, t, beta=0.3), PARTS),
        (losses.SmoothL1(0), F.l1_loss, PARTS),
        (losses.KLDiv(), lambda x, t: F.kl_div(x, t, reduction="none").mean(), PARTS),
        (
            losses.KLDiv(True, "batchmean"),
            lambda x, t: F.kl_div(x, t, log_target=True, reduction="batchmean"),
            np.log(PARTS + 0.1),
        ),
        (losses.SoftMargin(), F.soft_margin_loss, SIGNS),
        (losses.HingeEmbedding(), F.hinge_embedding_loss, SIGNS),
        (
            losses.HingeEmbedding(2.5),
            lambda x, t: F.hinge_embedding_loss(x, t, margin=2.5),
            SIGNS,
        ),
        (losses.MultiMargin(), F.multi_margin_loss, CLASSES),
        (
            losses.MultiMargin(2, 0.7, WEIGHT),
            lambda x, t: F.multi_margin_loss(x, t, 2, 0.7, W),
            CLASSES,
        ),
        (losses.MultiLabelSoftMargin(), F.multilabel_soft_margin_loss, PARTS),
        (
            losses.MultiLabelSoftMargin(WEIGHT),
            lambda x, t: F.multilabel_soft_margin_loss(x, t, W),
            PARTS,
        ),
        (losses.Focal(), lambda x, t: focal(x, t, 2), CLASSES),
        (losses.Focal(0), F.cross_entropy, CLASSES),
        (losses.Focal(1.5, WEIGHT, -1), lambda x, t: focal(x, t, 1.5, W, -1), IGNORED),
        (losses.SigmoidFocal(), sigmoid_focal(), PARTS),
        (losses.SigmoidFocal(-1, 3), sigmoid_focal(alpha=-1, gamma=3), PARTS),
    ],
    ids=lambda given: str(given) if isinstance(given, losses.Loss) else "",
)
def test_of_one_output(ours: Any, theirs: Any, target: np.ndarray) -> None:
    close = isinstance(ours, losses.Focal)  # far off 1 - p of the formula beside it is 0
    check(ours, theirs, target, scales=(1.0, 3.0) if close else (1.0, 30.0))


@pytest.mark.parametrize("full", [False, True])
def test_densities(full: bool) -> None:
    counts = np.random.default_rng(3).poisson(2.0, (7, 5)).astype(float)
    for logs in (True, False):
        check(
            losses.PoissonNLL(logs, full),
            partial(F.poisson_nll_loss, log_input=logs, full=full),
            counts,
            scales=(1.0,),
            positive=not logs,
        )
    check(
        lambda x, t: losses.GaussianNLL(full)((x[0], x[1]), t),
        lambda x, t: F.gaussian_nll_loss(x[0], t, x[1], full),
        counts,
        (2, 7, 5),
        positive=True,
    )


def rows(loss: Any) -> Any:
    """The loss of several outputs that are the parts of one."""
    return lambda x, t: loss(tuple(x[i] for i in range(x.shape[0])), t)


def contrastive(x: Any, t: Any, margin: float) -> Any:
    d = (x[0] - x[1]).norm(dim=1)
    return (0.5 * (t * d**2 + (1 - t) * (margin - d).clamp(min=0) ** 2)).mean()


def clip(x: Any, t: Any) -> Any:
    a, b = F.normalize(x[0]), F.normalize(x[1])
    logits = a @ b.T / 0.2
    own = torch.arange(len(a))
    return (F.cross_entropy(logits, own) + F.cross_entropy(logits.T, own)) / 2


triplet_margin: Any = F.triplet_margin_loss
cosine_embedding: Any = F.cosine_embedding_loss


@pytest.mark.parametrize(
    ("ours", "theirs", "count"),
    [
        (losses.TripletMargin(), lambda x, t: triplet_margin(*x), 3),
        (
            losses.TripletMargin(2.0, 1, 1e-3, True),
            lambda x, t: triplet_margin(*x, 2.0, 1, 1e-3, True),
            3,
        ),
        (losses.TripletMargin(p=3), lambda x, t: triplet_margin(*x, p=3), 3),
        (losses.CosineEmbedding(), lambda x, t: cosine_embedding(*x, t), 2),
        (losses.CosineEmbedding(0.2), lambda x, t: cosine_embedding(*x, t, 0.2), 2),
        (losses.Contrastive(3.0), lambda x, t: contrastive(x, t.clamp(min=0), 3.0), 2),
        (losses.InfoNCE(0.2), clip, 2),
    ],
    ids=lambda given: str(given) if isinstance(given, losses.Loss) else "",
)
def test_of_several_outputs(ours: Any, theirs: Any, count: int) -> None:
    own = rows(ours)
    if isinstance(ours, losses.Contrastive):
        own = rows(lambda x, t: ours(x, np.maximum(t, 0.0)))
    check(own, theirs, SIGNS[:, 0].copy(), (count, 7, 5), (1.0,))


def test_ranking() -> None:
    check(
        rows(losses.MarginRanking(0.5)),
        lambda x, t: F.margin_ranking_loss(x[0], x[1], t, 0.5),
        SIGNS,
        (2, 7, 5),
    )


def triplets(x: Any, labels: Any, margin: float, mining: str) -> Any:
    """By loops over samples."""
    d = torch.stack([torch.stack([(a - b).norm() for b in x]) for a in x])
    n, terms = len(x), []
    for a in range(n):
        own = [i for i in range(n) if labels[i] == labels[a] and i != a]
        others = [i for i in range(n) if labels[i] != labels[a]]
        if not own or not others:
            continue
        if mining == "hard":
            terms.append(max(d[a, i] for i in own) - min(d[a, i] for i in others) + margin)
        for p in own if mining != "hard" else ():
            if mining == "all":
                found = [d[a, p] - d[a, i] + margin for i in others]
                terms += [each for each in found if each > 0]
            else:
                beyond = [d[a, i] for i in others if d[a, i] > d[a, p]]
                far = min(beyond) if beyond else max(d[a, i] for i in others)
                terms.append(d[a, p] - far + margin)
    return torch.stack(terms).clamp(min=0).mean()


def supervised(x: Any, labels: Any) -> Any:
    z = F.normalize(x)
    terms = []
    for i in range(len(z)):
        own = [p for p in range(len(z)) if labels[p] == labels[i] and p != i]
        if own:
            others = torch.stack([z[i] @ z[a] / 0.5 for a in range(len(z)) if a != i])
            terms.append(-sum(z[i] @ z[p] / 0.5 - others.logsumexp(0) for p in own) / len(own))
    return torch.stack(terms).mean()


def all_pairs(x: Any, labels: Any) -> Any:
    n, found = len(x), []
    for i in range(n):
        for j in range(i + 1, n):
            found.append(
                contrastive((x[i : i + 1], x[j : j + 1]), int(labels[i] == labels[j]), 3.0)
            )
    return sum(found) / len(found)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        *(
            (losses.Triplet(0.7, mining), lambda x, t, m=mining: triplets(x, t, 0.7, m))
            for mining in ("hard", "semihard", "all")
        ),
        (losses.SupervisedContrastive(0.5), supervised),
        (losses.Contrastive(3.0), lambda x, t: all_pairs(x, t)),
    ],
    ids=lambda given: str(given) if isinstance(given, losses.Loss) else "",
)
def test_of_labels(ours: Any, theirs: Any) -> None:
    for labels in ([0, 1, 0, 2, 1, 1, 3], [0, 0, 1, 1, 1, 2, 2]):
        check(ours, theirs, np.array(labels), (7, 4), (1.0, 4.0))


def dice(x: Any, t: Any, smooth: float, batch: bool, background: bool) -> Any:
    p, t = x.softmax(1), F.one_hot(t, x.shape[1]).movedim(-1, 1).double()
    axes = (0, 2, 3) if batch else (2, 3)
    found = 1 - (2 * (p * t).sum(axes) + smooth) / (p.sum(axes) + t.sum(axes) + smooth)
    return found[..., 0 if background else 1 :].mean()


@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize("background", [False, True])
def test_dice(batch: bool, background: bool) -> None:
    target = np.random.default_rng(2).integers(0, 3, (2, 3, 5))
    ours = losses.Dice(smooth=0.5, batch=batch, background=background)
    check(ours, lambda x, t: dice(x, t, 0.5, batch, background), target, (2, 4, 3, 5))


def test_overlaps_of_several_labels_and_without_what_is_ignored() -> None:
    several = np.random.default_rng(2).random((2, 3, 4, 5)).round()

    def tversky(x: Any, t: Any) -> Any:
        p, axes = x.sigmoid(), (2, 3)
        both, fp, fn = (p * t).sum(axes), (p * (1 - t)).sum(axes), ((1 - p) * t).sum(axes)
        return (1 - (both + 0.5) / (both + 0.2 * fp + 0.8 * fn + 0.5)).mean()

    ours = losses.Tversky(0.2, 0.8, multilabel=True, smooth=1.0)
    check(ours, tversky, several, several.shape)
    index = np.random.default_rng(3).integers(0, 3, (1, 4, 5))
    index[0, 2:] = 255
    check(
        losses.Dice(ignore_index=255),
        lambda x, t: dice(x[:, :, :2], t[:, :2], 1e-5, False, True),
        index,
        (1, 3, 4, 5),
    )


def weighed(loss: Any, weight: np.ndarray) -> Any:
    return lambda x, t: loss(x, t, sample_weight=x._constant(weight, "float32"))


AMOUNTS = np.array([1.0, 0.0, 2.0, 0.5, 3.0, 1.0, 0.25])


@pytest.mark.parametrize(
    ("ours", "each", "target"),
    [
        (losses.MSE(), lambda x, t: F.mse_loss(x, t, reduction="none").mean(1), PARTS),
        (losses.L1(), lambda x, t: F.l1_loss(x, t, reduction="none").mean(1), PARTS),
        (losses.Huber(), lambda x, t: F.huber_loss(x, t, reduction="none").mean(1), PARTS),
        (
            losses.BinaryCrossEntropy(),
            lambda x, t: F.binary_cross_entropy_with_logits(x, t, reduction="none").mean(1),
            PARTS,
        ),
        (
            losses.KLDiv(reduction="batchmean"),
            lambda x, t: F.kl_div(x, t, reduction="none").sum(1),
            PARTS,
        ),
        (
            losses.MultiMargin(),
            lambda x, t: F.multi_margin_loss(x, t, reduction="none"),
            CLASSES,
        ),
        (
            losses.CrossEntropy(0.1),
            lambda x, t: F.cross_entropy(x, t, reduction="none", label_smoothing=0.1),
            CLASSES,
        ),
        (
            losses.CrossEntropy(probabilities=True),
            lambda x, t: F.cross_entropy(x, t, reduction="none"),
            PARTS,
        ),
    ],
    ids=lambda given: str(given) if isinstance(given, losses.Loss) else "",
)
def test_weights_of_samples(ours: Any, each: Any, target: np.ndarray) -> None:
    amounts = torch.from_numpy(AMOUNTS)

    def theirs(x: Any, t: Any) -> Any:
        return (each(x, t) * amounts).sum() / amounts.sum()

    check(weighed(ours, AMOUNTS), theirs, target)


def test_weights_of_pixels_with_those_of_classes() -> None:
    target = np.random.default_rng(2).integers(0, 3, (2, 4, 5))
    amounts = np.random.default_rng(3).integers(0, 9, target.shape) / 4
    w = torch.tensor([1.0, 2.0, 0.5]).double()

    def theirs(x: Any, t: Any) -> Any:
        each = F.cross_entropy(x, t, w, reduction="none") * torch.from_numpy(amounts)
        return each.sum() / (torch.from_numpy(amounts) * w[t]).sum()

    ours = losses.CrossEntropy(weight=[1.0, 2.0, 0.5])
    check(weighed(ours, amounts), theirs, target, (2, 3, 4, 5))


@pytest.mark.full
def test_on_the_cpu() -> None:
    """All losses of one output and classes, and their gradients, in one program."""
    several = [losses.NLL(), losses.Focal(1.5, WEIGHT), losses.MultiMargin(2, 0.7, WEIGHT)]
    several += [losses.Triplet(0.7, mining) for mining in ("hard", "semihard", "all")]  # type: ignore[arg-type]
    several += [losses.SupervisedContrastive(0.5), losses.Contrastive(3.0)]

    def total(x: Any, t: Any) -> Any:
        return sum(loss(x, t) for loss in several[1:]) + several[0](x, t)

    metrics = {f"m{i}": loss for i, loss in enumerate(several)}
    objective = Objective(total, metrics, [TensorType((7,), "int64")])
    graph = md.gradient(objective.applied(L.Identity(), (7, 5), "eval"), "loss", of="input")
    x = np.random.default_rng(1).standard_normal((7, 5)).astype(np.float32)
    found = md.compile(graph, device="cpu")(x, CLASSES)
    wanted = md.compile(graph, device="reference", precision="float64")(x, CLASSES)
    for name, array in wanted.items():
        np.testing.assert_allclose(found[name], array, rtol=2e-5, atol=1e-5, err_msg=name)


def test_a_trainer_with_weights_of_samples_is_one_without_those_of_none() -> None:
    x, t = np.random.default_rng(0).standard_normal((6, 4)), np.arange(6) % 3
    types = [((6,), "int64"), ((6,), "float32")]
    loss, optimizer = losses.CrossEntropy(), md.optim.SGD(0.1)
    net = md.Sequential(L.Linear(4, 3))
    weighted = md.Trainer(
        net, (6, 4), losses.Weighted(loss), optimizer, targets=types, device="reference"
    )
    weighted.step(x, (t, np.array([1, 1, 1, 1, 0, 0], np.float32)))
    plain = md.Trainer(net, (4, 4), loss, optimizer, device="reference")
    plain.step(x[:4], t[:4])
    for name, array in plain.state_dict().items():
        np.testing.assert_allclose(weighted.state_dict()[name], array, rtol=1e-5, atol=1e-7)


def test_weighted_means_count_by_their_weights() -> None:
    """Means of two parts, weighed by what they count, are the mean of all."""
    x, t = np.random.default_rng(0).standard_normal((7, 5)), CLASSES.copy()
    t[2] = -100
    for loss in (
        losses.Weighted(losses.CrossEntropy(weight=WEIGHT, ignore_index=-100)),
        losses.Weighted(losses.NLL(WEIGHT, ignore_index=-100)),
        losses.Weighted(losses.MultiMargin()),
    ):
        found = []
        for part in (slice(None), slice(0, 3), slice(3, 7)):
            own = np.where(t[part] < 0, 0, t[part]) if "MultiMargin" in str(loss) else t[part]
            types = [TensorType((len(own),), "int64"), TensorType((len(own),))]
            objective = Objective(loss, {"count": loss.counted}, types)
            graph = objective.applied(L.Identity(), (len(own), 5), "eval")
            exe = md.compile(graph, device="reference", precision="float64")
            found.append(list(exe(x[part], own, AMOUNTS[part]).values()))
        (whole, count), *parts = found
        assert sum(n for _, n in parts) == pytest.approx(count)
        assert sum(m * n for m, n in parts) / count == pytest.approx(whole)


def test_an_index_of_no_class_makes_a_weighted_loss_nan() -> None:
    x = np.random.default_rng(0).standard_normal((7, 5))
    types = [TensorType((7,), "int64"), TensorType((7,))]
    loss = losses.Weighted(losses.CrossEntropy(ignore_index=-1))
    graph = Objective(loss, {}, types).applied(L.Identity(), (7, 5), "eval")
    exe = md.compile(graph, device="reference")
    for wrong in (5, -2):
        target = IGNORED.copy()
        assert np.isfinite(exe(x, target, np.ones(7))["loss"])
        target[1] = wrong
        assert np.isnan(exe(x, target, np.ones(7))["loss"])


def test_a_trainer_learns_an_embedding_by_labels() -> None:
    random = np.random.default_rng(0)
    labels = np.arange(12) % 3
    x = random.standard_normal((12, 6)) + 2 * np.eye(6)[labels]
    net = md.Sequential(L.Linear(6, 4))
    trainer = md.Trainer(
        net, (12, 6), losses.Triplet(1.0, "hard"), md.optim.Adam(0.05), device="reference"
    )
    first, *_, last = (float(trainer.step(x, labels)) for _ in range(30))
    assert last < 0.5 * first


OUTPUT = TensorType((2, 3))
IMAGES = TensorType((2, 3, 4, 4))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: losses.KLDiv(reduction="sum"), "KLDiv: reduction='sum'; valid are 'mean' and"),  # type: ignore[arg-type]
        (lambda: losses.NLL().check(np.array([3]), OUTPUT), r"NLL: target\[0\] is 3; valid are in"),
        (lambda: losses.NLL([-1.0]), r"NLL: weight=\[-1.0\]; valid is a number of at"),
        (lambda: losses.Focal(-1), "Focal: gamma=-1; valid is a number of at least 0"),
        (lambda: losses.Focal(weight=[1]).target(OUTPUT), "Focal: weight has 1 numbers; valid"),
        (lambda: losses.SigmoidFocal(2.0), "alpha=2.0; valid is a number from 0 to 1"),
        (lambda: losses.Dice().target(OUTPUT), r"Dice: the output is .*; valid is .*classes, ..."),
        (lambda: losses.Dice(True, ignore_index=1), "ignore_index=1 with multilabel=True"),
        (lambda: losses.Dice().check(np.full((2, 4, 4), 3), IMAGES), r"is 3; valid are indices"),
        (lambda: losses.Triplet(mining="none"), "mining='none'; valid are 'hard', 'semihard' and"),  # type: ignore[arg-type]
        (lambda: losses.Triplet().target(IMAGES), r"valid is a float dtype and a shape \(N, feat"),
        (lambda: losses.InfoNCE(0.0), "temperature=0.0; valid is a number of at least"),
        (lambda: losses.MultiMargin(3), "MultiMargin: p=3; valid are 1 and 2"),
        (
            lambda: losses.SoftMargin().check(np.zeros(3), OUTPUT),
            r"target\[0\] is 0.0; valid are 1",
        ),
        (lambda: losses.TripletMargin()((1, 2)), "2 outputs; valid are 3: anchor, positive, nega"),
        (lambda: losses.Weighted("mse"), "Weighted: loss='mse'; valid is one of minidnn.losses"),  # type: ignore[arg-type]
        (
            lambda: losses.Weighted(losses.Triplet()),
            "which weighs no samples; valid is a loss whose",
        ),
    ],
)
def test_bad_arguments(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(GraphError, match=message):
        make()


def test_weights_that_fit_no_axis() -> None:
    with pytest.raises(GraphError, match=r"sample_weight has shape \(3,\); valid is \(7,\), a num"):
        check(weighed(losses.MSE(), np.ones(3)), F.mse_loss, PARTS)
