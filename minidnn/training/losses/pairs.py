"""Losses of embeddings: samples that belong together should be near, others far apart."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Any, Literal

import numpy as np

from minidnn.errors import GraphError
from minidnn.graph import expression as scalar
from minidnn.graph import operators as ops
from minidnn.graph.scalar_functions import root
from minidnn.graph.symbolic import pointwise
from minidnn.graph.trace import apply
from minidnn.graph.types import FLOATS, TensorType
from minidnn.training.arguments import check_number
from minidnn.training.losses.common import Loss, mean
from minidnn.training.losses.distances import check_signs, several

__all__ = [
    "Contrastive",
    "CosineEmbedding",
    "InfoNCE",
    "MarginRanking",
    "SupervisedContrastive",
    "Triplet",
    "TripletMargin",
]


def _over(x: Any, margin: float) -> Any:
    """The hinge ``max(x + margin, 0)``."""
    return pointwise("Hinge", lambda x: scalar.maximum(x + margin, 0.0), x)


def _distance(a: Any, b: Any, p: float, eps: float) -> Any:
    """The p-norm of ``a - b + eps`` along the last axis, as PyTorch's ``pairwise_distance``."""
    if p == 2.0:
        squares = pointwise("Square", lambda a, b: (a - b + eps) * (a - b + eps), a, b).sum(-1)
        return pointwise("Root", root, squares)
    if p == 1.0:
        return pointwise("Apart", lambda a, b: abs(a - b + eps), a, b).sum(-1)
    powers = pointwise("Power", lambda a, b: abs(a - b + eps) ** p, a, b).sum(-1)
    return pointwise("Root", lambda x: scalar.where(x > 0.0, x ** (1.0 / p), 0.0), powers)


@dataclass(frozen=True)
class TripletMargin(Loss):
    """The mean of ``max(0, |anchor - positive| - |anchor - negative| + margin)`` of three outputs
    ``anchor``, ``positive`` and ``negative``, (N, D). As in PyTorch. The target does not matter.

    Args:
        margin: by how much the negative one should be farther.
        p: the norm's exponent.
        eps: added to differences.
        swap: whether the distance of the negative to the positive one counts if it is less.

    Raises:
        GraphError: an argument is not valid, or there are not three outputs.

    Source: Balntas et al., BMVC 2016.

    >>> loss = md.losses.TripletMargin(margin=0.5)
    """

    margin: float = 1.0
    p: float = 2.0
    eps: float = 1e-6
    swap: bool = False

    def __post_init__(self) -> None:
        check_number(self, "margin", self.margin, 0)
        check_number(self, "p", self.p, 1)
        check_number(self, "eps", self.eps, 0)

    def __call__(self, output: Any, target: Any = None, sample_weight: Any = None) -> Any:
        anchor, positive, negative = several(self, output, "anchor", "positive", "negative")
        p, eps = float(self.p), float(self.eps)
        near, far = _distance(anchor, positive, p, eps), _distance(anchor, negative, p, eps)
        if self.swap:
            far = np.minimum(far, _distance(positive, negative, p, eps))
        return mean(self, _over(near - far, float(self.margin)), sample_weight)


@dataclass(frozen=True)
class CosineEmbedding(Loss):
    """The mean of ``1 - cos(a, b)`` of two outputs where targets are 1, and of ``max(0, cos(a, b) -
    margin)`` where they are -1. As in PyTorch.

    Args:
        margin: the cosine from which on pairs that differ count, from -1 to 1.

    Raises:
        GraphError: an argument is not valid, or there are not two outputs.

    >>> loss = md.losses.CosineEmbedding(margin=0.2)
    """

    margin: float = 0.0

    def __post_init__(self) -> None:
        check_number(self, "margin", self.margin, -1, 1)

    def check(self, target: np.ndarray, output: TensorType) -> None:
        check_signs(self, target)

    def __call__(self, output: Any, target: Any, sample_weight: Any = None) -> Any:
        a, b = several(self, output, "a", "b")
        eps = 1e-12  # PyTorch's
        dot, squares = (a * b).sum(-1), ((a * a).sum(-1) + eps) * ((b * b).sum(-1) + eps)

        def body(dot: Any, squares: Any, t: Any) -> Any:
            cosine = dot / scalar.sqrt(squares)
            apart = scalar.maximum(cosine - float(self.margin), 0.0)
            return scalar.where(t > 0.0, 1.0 - cosine, apart)

        return mean(self, pointwise("CosineEmbedding", body, dot, squares, target), sample_weight)


@dataclass(frozen=True)
class MarginRanking(Loss):
    """The mean of ``max(0, -target * (a - b) + margin)`` of two outputs, where targets are 1 if the
    first should be larger, and else -1. As in PyTorch.

    Args:
        margin: by how much it should be larger.

    Raises:
        GraphError: an argument is not valid, or there are not two outputs.

    >>> loss = md.losses.MarginRanking(margin=0.1)
    """

    margin: float = 0.0

    def __post_init__(self) -> None:
        check_number(self, "margin", self.margin, float("-inf"))

    def check(self, target: np.ndarray, output: TensorType) -> None:
        check_signs(self, target)

    def __call__(self, output: Any, target: Any, sample_weight: Any = None) -> Any:
        a, b = several(self, output, "a", "b")
        each = pointwise("Ranked", lambda a, b, t: -t * (a - b), a, b, target)
        return mean(self, _over(each, float(self.margin)), sample_weight)


class _OfLabels(Loss):
    """A loss of one output (N, D) and labels, int64 (N,)."""

    def target(self, output: TensorType) -> TensorType:
        if output.rank != 2 or output.dtype not in FLOATS:
            raise GraphError(
                f"{type(self).__name__}: the output is {output}; valid is a float dtype and a "
                "shape (N, features)"
            )
        return TensorType(output.shape[:1], "int64")


def _same(x: Any, labels: Any) -> Any:
    """1 where two samples have the same label, (N, N); the diagonal is 1."""
    return np.equal(labels.reshape(-1, 1), labels.reshape(1, -1)).astype(x.dtype)


def _apart(x: Any) -> Any:
    """The distances between all pairs of samples, (N, N)."""
    n, features = x.shape
    return _distance(x.reshape(n, 1, features), x.reshape(1, n, features), 2.0, 0.0)


def _eye(x: Any) -> Any:
    """The identity matrix (N, N) as a constant."""
    return x._constant(np.eye(x.shape[0]), x.dtype)


def _mean_of(each: Any, counts: Any) -> Any:
    """The mean of the values whose ``counts`` are 1; 0 if there are none."""
    total, count = (each * counts).sum(), counts.sum()
    return pointwise("Mean", lambda s, c: s / scalar.where(c > 0.0, c, 1.0), total, count)


@dataclass(frozen=True)
class Triplet(_OfLabels):
    """``max(0, near - far + margin)`` of one output (N, D) and labels (N,), where ``near`` and
    ``far`` are distances of a sample to one of its own label and to one of another, both in the
    batch.

    Args:
        margin: by how much others should be farther.
        mining: which triplets count: "hard", for each sample that has one the farthest of its own
            label and the nearest other; "all" that are above 0; or "semihard", for each pair of
            one label the nearest other that is farther than the pair, or, where none is, the
            farthest.

    Raises:
        GraphError: an argument is not valid.

    Source: Hermans, Beyer and Leibe, arXiv:1703.07737; Schroff, Kalenichenko and Philbin,
    arXiv:1503.03832.

    >>> net = md.Sequential(L.Flatten(), L.Linear(64, 16))
    >>> trainer = md.Trainer(net, (8, 1, 8, 8), md.losses.Triplet(0.2), md.optim.Adam(1e-3))
    """

    margin: float = 1.0
    mining: Literal["hard", "semihard", "all"] = "hard"

    def __post_init__(self) -> None:
        check_number(self, "margin", self.margin, 0)
        if self.mining not in ("hard", "semihard", "all"):
            raise GraphError(
                f"Triplet: mining={self.mining!r:.80}; valid are 'hard', 'semihard' and 'all'"
            )

    def __call__(self, output: Any, target: Any) -> Any:
        apart, same, n = _apart(output), _same(output, target), output.shape[0]
        own, other, margin = same - _eye(output), 1.0 - same, float(self.margin)
        if self.mining == "hard":
            low = pointwise("Own", lambda d, s: scalar.where(s > 0.0, d, 0.0), apart, own).max(1)
            high = _nearest(apart, other)
            counts = own.max(1) * other.max(1)
            return _mean_of(_over(low - high, margin), counts)
        near, far = apart.reshape(n, n, 1), apart.reshape(n, 1, n)
        counts = own.reshape(n, n, 1) * other.reshape(n, 1, n)
        if self.mining == "all":
            over = _over(near - far, margin)
            counts = counts * (over > 0.0).astype(over.dtype)
            return _mean_of(over, counts)
        beyond = counts * (far > near).astype(apart.dtype)
        wide = np.broadcast_to(far, (n, n, n))
        farthest = pointwise("Other", lambda d, s: scalar.where(s > 0.0, d, 0.0), apart, other).max(
            1, keepdims=True
        )
        negative = pointwise(
            "Semihard",
            lambda near, far, any: scalar.where(any > 0.0, near, far),
            _nearest(wide, beyond),
            farthest,
            beyond.max(2),
        )
        return _mean_of(_over(apart - negative, margin), own * other.max(1, keepdims=True))


def _nearest(apart: Any, counts: Any) -> Any:
    """The least distance that counts, along the last axis; infinity where none does."""
    return pointwise("Counted", lambda d, s: scalar.where(s > 0.0, d, inf), apart, counts).min(-1)


@dataclass(frozen=True)
class Contrastive(_OfLabels):
    """Half of ``d**2`` of what belongs together, and of ``max(0, margin - d)**2`` of what does not,
    where ``d`` is the distance; the mean over pairs.

    Of two outputs (N, D) pairs are their rows, and targets, float (N,), 1 where they belong
    together and else 0. Of one output all pairs of the batch count, and targets are labels, int64
    (N,).

    Args:
        margin: the distance from which on what does not belong together does not count.

    Raises:
        GraphError: ``margin`` is not valid.

    Source: Hadsell, Chopra and LeCun, CVPR 2006.

    >>> net = md.Sequential(L.Flatten(), L.Linear(64, 16))
    >>> trainer = md.Trainer(net, (8, 1, 8, 8), md.losses.Contrastive(), md.optim.Adam(1e-3))
    """

    margin: float = 1.0

    def __post_init__(self) -> None:
        check_number(self, "margin", self.margin, 0)

    def __call__(self, output: Any, target: Any, sample_weight: Any = None) -> Any:
        def body(d: Any, same: Any) -> Any:
            far = scalar.maximum(float(self.margin) - d, 0.0)
            return 0.5 * (same * (d * d) + (1.0 - same) * (far * far))

        if isinstance(output, (tuple, list, dict)):
            a, b = several(self, output, "a", "b")
            each = pointwise("Contrastive", body, _distance(a, b, 2.0, 0.0), target)
            return mean(self, each, sample_weight)
        each = pointwise("Contrastive", body, _apart(output), _same(output, target))
        if sample_weight is not None:
            raise GraphError("Contrastive: sample_weight of one output; valid is one of two")
        return _mean_of(each, 1.0 - _eye(output))


@dataclass(frozen=True)
class SupervisedContrastive(_OfLabels):
    """For rows ``z`` of length 1 of one output (N, D) and labels (N,): minus the mean, over the
    others of a sample's label, of ``log(exp(z @ other / t) / sum)``, where the sum is that of all
    other samples; the mean over samples with others of their label.

    With a label for each picture and two views of it in the batch this is NT-Xent, SimCLR's loss.

    Args:
        temperature: what products are divided by.

    Raises:
        GraphError: ``temperature`` is not valid.

    Source: Khosla et al., arXiv:2004.11362; Chen et al., arXiv:2002.05709.

    >>> net = md.Sequential(L.Flatten(), L.Linear(64, 16))
    >>> loss = md.losses.SupervisedContrastive(0.1)
    >>> trainer = md.Trainer(net, (8, 1, 8, 8), loss, md.optim.Adam(1e-3))
    """

    temperature: float = 0.1

    def __post_init__(self) -> None:
        _check_temperature(self, self.temperature)

    def __call__(self, output: Any, target: Any) -> Any:
        z, eye = _unit(output), _eye(output)
        products = (z @ z.swapaxes(0, 1)) / float(self.temperature)
        hidden = pointwise("Others", lambda x, e: scalar.where(e > 0.0, -1e30, x), products, eye)
        logs = apply(ops.LogSoftmax(1), hidden)
        own = _same(output, target) - eye
        count = own.sum(1)
        total = pointwise("Own", lambda x, s: scalar.where(s > 0.0, -x, 0.0), logs, own).sum(1)
        each = pointwise("Mean", lambda s, c: s / scalar.maximum(c, 1.0), total, count)
        return _mean_of(each, (count > 0.0).astype(output.dtype))


@dataclass(frozen=True)
class InfoNCE(Loss):
    """The cross entropy of finding, by the products of rows of length 1, each row's partner in the
    other one of two outputs (N, D), both ways: CLIP's loss. The target does not matter.

    Args:
        temperature: what products are divided by.

    Raises:
        GraphError: ``temperature`` is not valid, or there are not two outputs.

    Source: van den Oord, Li and Vinyals, arXiv:1807.03748; Radford et al., arXiv:2103.00020.

    >>> loss = md.losses.InfoNCE(temperature=0.07)
    """

    temperature: float = 0.07

    def __post_init__(self) -> None:
        _check_temperature(self, self.temperature)

    def __call__(self, output: Any, target: Any = None, sample_weight: Any = None) -> Any:
        a, b = map(_unit, several(self, output, "a", "b"))
        products = (a @ b.swapaxes(0, 1)) / float(self.temperature)
        eye = _eye(products)
        rows, columns = ((apply(ops.LogSoftmax(axis), products) * eye).sum(axis) for axis in (1, 0))
        return mean(self, (rows + columns) * -0.5, sample_weight)


def _check_temperature(owner: Loss, temperature: Any) -> None:
    check_number(owner, "temperature", temperature, 1e-6)


def _unit(x: Any) -> Any:
    """Rows divided by their lengths, as ``torch.nn.functional.normalize`` does."""
    squares = (x * x).sum(-1, keepdims=True)
    return pointwise("Unit", lambda x, s: x / scalar.maximum(root(s), 1e-12), x, squares)
