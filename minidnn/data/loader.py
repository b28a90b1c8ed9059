"""Loaders: batches in an order that a seed fixes, prefetched, with a state to resume from.

:class:`Loader` reads a dataset: samplers replace the order in which each sample comes once, and
mixup and CutMix mix a batch with itself, rolled by one sample.  :class:`Batches` wraps batches that
something else makes: PyTorch's DataLoader, grain, a list.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import closing
from dataclasses import dataclass
from math import sqrt
from typing import Any, Self

import numpy as np

from minidnn.data.datasets import DataError, Dataset, as_array, as_numbers, as_targets
from minidnn.data.workers import Workers

__all__ = ["Batches", "Epochs", "Loader", "WeightedSampler"]


Batch = tuple[np.ndarray, np.ndarray]


def mixed(x: np.ndarray, target: np.ndarray, alpha: float, random: np.random.Generator) -> Batch:
    """Returns a batch mixed with itself, rolled by one sample; the share is Beta(alpha, alpha).

    Source: mixup, Zhang et al., arXiv:1710.09412.
    """
    share = np.float32(random.beta(alpha, alpha))
    x = share * x + (1 - share) * np.roll(x, 1, axis=0)
    return x, share * target + (1 - share) * np.roll(target, 1, axis=0)


def cut_mixed(
    x: np.ndarray, target: np.ndarray, alpha: float, random: np.random.Generator
) -> Batch:
    """Returns a batch in which a box of each picture is that of the one before it.

    Source: CutMix, Yun et al., arXiv:1905.04899, with the box that torchvision takes.
    """
    if x.ndim != 4:
        raise DataError(f"cutmix: samples have shape {x.shape[1:]}; valid is (C, H, W)")
    height, width = x.shape[2:]
    share = float(random.beta(alpha, alpha))
    column, row = int(random.integers(width)), int(random.integers(height))
    half = 0.5 * sqrt(1.0 - share)
    half_width, half_height = int(half * width), int(half * height)
    left, right = max(column - half_width, 0), min(column + half_width, width)
    top, bottom = max(row - half_height, 0), min(row + half_height, height)
    x = x.copy()
    x[:, :, top:bottom, left:right] = np.roll(x, 1, axis=0)[:, :, top:bottom, left:right]
    kept = np.float32(1.0 - (right - left) * (bottom - top) / (width * height))
    return x, kept * target + (1 - kept) * np.roll(target, 1, axis=0)


class WeightedSampler:
    """Draws samples by weights, for an epoch of a :class:`Loader`, as PyTorch's
    ``WeightedRandomSampler`` does.

    Args:
        weights: a number of at least 0 for each sample; they need not add up to 1.
        num_samples: samples in an epoch; None is as many as there are weights.
        replacement: whether a sample may be drawn several times in an epoch.

    Raises:
        DataError: an argument is not valid.

    >>> pictures = md.data.Arrays(np.zeros((8, 3, 32, 32)), np.arange(8))
    >>> sampler = md.data.WeightedSampler([1, 1, 1, 1, 3, 3, 3, 3])
    >>> train = md.data.Loader(pictures, 4, sampler=sampler)
    """

    def __init__(
        self,
        weights: Sequence[float] | np.ndarray,
        num_samples: int | None = None,
        replacement: bool = True,
    ) -> None:
        array: Any = np.asarray(weights)
        is_numeric = array.ndim == 1 and array.size and array.dtype.kind in "buif"
        if not is_numeric or not np.isfinite(array).all() or (array < 0).any() or not array.any():
            raise DataError(
                f"WeightedSampler: weights={weights!r:.80}; valid is a number of at least 0 for "
                "each sample, not all 0"
            )
        count = len(array) if num_samples is None else num_samples
        drawable = int(np.count_nonzero(array))
        if type(count) is not int or count < 1 or (not replacement and count > drawable):
            most = "" if replacement else f" to {drawable}, the samples with a weight above 0"
            raise DataError(
                f"WeightedSampler: num_samples={count!r:.80}, replacement={replacement!r}; valid "
                f"is an int from 1{most}"
            )
        self.weights = array.astype(np.float64)
        self.num_samples, self.replacement = count, bool(replacement)

    @classmethod
    def balanced(cls, labels: Sequence[int] | np.ndarray, num_samples: int | None = None) -> Self:
        """A sampler that draws each class as often as any other, by the samples' classes."""
        array: Any = np.asarray(labels)
        if array.ndim != 1 or array.dtype.kind not in "iu" or not array.size:
            raise DataError(f"WeightedSampler: labels={labels!r:.80}; valid are ints, (N,)")
        _, class_index, counts = np.unique(array, return_inverse=True, return_counts=True)
        return cls(1.0 / counts[class_index], num_samples)

    def __len__(self) -> int:
        return self.num_samples

    def facts(self) -> str:
        """Text in a loader's state that identifies the sampler: its weights and arguments."""
        checksum = hashlib.sha256(self.weights.tobytes()).hexdigest()[:16]
        return f"weights {checksum}, {self.num_samples}, replacement={self.replacement}"

    def order(self, random: np.random.Generator) -> np.ndarray:
        """Draws the sample numbers of an epoch, in their order."""
        share = self.weights / self.weights.sum()
        return random.choice(len(share), self.num_samples, self.replacement, share)


class Epochs(ABC):
    """Batches epoch by epoch: each iteration goes over one epoch, the next one over the next.

    An epoch whose loop was left before its end begins anew in the next loop, unless a state is
    restored in between.
    """

    def __init__(self) -> None:
        self._epoch = 0
        #: Batches of this epoch that were yielded, and that the next iteration skips.
        self._position = self._first = 0
        #: The number of the newest iteration; older ones raise.
        self._iteration = 0

    @abstractmethod
    def __len__(self) -> int:
        """Batches in an epoch."""

    @abstractmethod
    def _batches(self, epoch: int, first: int) -> Iterator[Batch]:
        """Yields the batches of an epoch from batch ``first`` on."""
        ...

    def _facts(self) -> dict[str, Any]:
        """The arguments that must be equal for a state to mean the same batches; None for one that
        is not given, which a state does not have."""
        return {}

    def state(self) -> dict[str, Any]:
        """The position after the last batch that was yielded, as a dict for JSON."""
        given = {name: value for name, value in self._facts().items() if value is not None}
        return {**given, "epoch": self._epoch, "position": self._position}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Makes the next iteration go on after a :meth:`state`, with the rest of its epoch.

        DataError if ``state`` is no state, or one of other data or other batches.
        """
        if not isinstance(state, Mapping):
            raise DataError(f"the state is {state!r:.80}; valid is what a loader's state() gave")
        for name, value in self._facts().items():
            if state.get(name) != value:
                raise DataError(
                    f"the state has {name}={state.get(name)!r}, and the loader has {value!r}; "
                    "valid is the state of a loader with the same data and arguments"
                )
        for name in ("epoch", "position"):
            value = state.get(name)
            if type(value) is not int or value < 0:
                raise DataError(f"the state has {name}={value!r}; valid are integers from 0")
        self._epoch, self._position = state["epoch"], state["position"]
        self._first = self._position
        self._iteration += 1

    def __iter__(self) -> Iterator[Batch]:
        self._iteration += 1
        self._position, self._first = self._first, 0
        return self._iterate(self._iteration, self._position)

    def _iterate(self, iteration: int, first: int) -> Iterator[Batch]:
        with closing(self._batches(self._epoch, first)) as batches:  # type: ignore[type-var]
            for batch in batches:
                self._must_be(iteration)
                self._position += 1
                yield batch
                self._must_be(iteration)
        self._epoch, self._position = self._epoch + 1, 0

    def _must_be(self, iteration: int) -> None:
        if iteration != self._iteration:
            raise DataError(
                "another iteration of this loader has begun, or its state was restored; valid is "
                "one iteration at a time: make a second loader"
            )


@dataclass(frozen=True)
class BatchMaker:
    """Makes one batch, in a worker or in the loader itself: a pure function of its arguments.

    Attributes:
        dataset: reads and augments the samples.
        mixup, cutmix: alpha of each one's Beta distribution; 0 for none.
        finite: whether NaN and infinities in the samples raise.
    """

    dataset: Dataset
    mixup: float
    finite: bool
    cutmix: float = 0.0

    def __call__(self, seed: int, epoch: int, position: int, samples: np.ndarray) -> Batch:
        x, target = self.dataset.batch(samples, seed, epoch)
        if self.finite:
            for sample, array in zip(samples, x, strict=True):
                if not np.isfinite(array).all():
                    raise DataError(
                        f"{self.dataset.name(int(sample))} has NaN or infinities; "
                        "finite=False lets them pass"
                    )
        if not self.mixup and not self.cutmix:
            return x, target
        random = _generator(seed, epoch, position)
        target = self._probabilities(target)
        if self.cutmix and (not self.mixup or random.random() < 0.5):
            return cut_mixed(x, target, self.cutmix, random)
        return mixed(x, target, self.mixup, random)

    def _probabilities(self, target: np.ndarray) -> np.ndarray:
        """One-hot probabilities of class targets, which mixing needs; others as they are."""
        if target.dtype == np.float32:
            return target
        classes = len(self.dataset.classes)
        if target.ndim != 1 or target.min() < 0 or target.max() >= classes:
            of_shape = f" in the shape {target.shape}" if target.ndim != 1 else ""
            raise DataError(
                f"{'mixup' if self.mixup else 'cutmix'}: targets go from {target.min()} to "
                f"{target.max()}{of_shape}, and the dataset says classes={classes}; valid are "
                f"classes from 0 to {classes - 1}, or probabilities"
            )
        return np.eye(classes, dtype=np.float32)[target]


class Loader(Epochs):
    """Batches (x, target) of a dataset: float32 (N, C, H, W), and int64 classes.

    Every random choice is a function of the seed, the epoch and the sample (for mixup and cutmix,
    the batch), so that the batches are bit-identical for any number of workers, and after
    :meth:`restore`.

    Args:
        dataset: the samples.
        batch: samples in each batch.
        shuffle: whether each epoch has an order of its own.
        seed: from 0 to 2**64 - 1; fixes all random choices.
        workers: batches that are made concurrently, ahead of time; 0 makes each on demand.
        processes: whether workers are processes, for datasets and steps that hold Python's global
            lock.  Decoding pictures does not, so threads are enough for it.  Processes are spawned,
            not forked, since other threads (a compiled network's, PyTorch's) may hold locks that a
            fork would leave locked: a script needs ``if __name__ == "__main__":``.
        ahead: the most batches that are ready or being made; by default twice the workers.
        drop_last: whether an incomplete batch at the end is left out.
        mixup: each batch is mixed with itself, rolled by one sample, with a share from
            Beta(mixup, mixup), and targets become probabilities; 0 mixes nothing.
        cutmix: a box of each picture, of a share from Beta(cutmix, cutmix), is that of the one
            before it, and so are the targets; 0 for none.  With ``mixup`` each batch has one of
            both.
        sampler: a :class:`WeightedSampler` that draws the samples of each epoch, instead of
            ``shuffle``.
        finite: whether NaN and infinities are refused.
        shard: (rank, ranks) of several processes that train together: each takes every
            ``ranks``-th sample of the same order, all the same number.  With ``drop_last`` the last
            few samples are left out for that, else the first of the order are taken twice.

    Raises:
        DataError: an argument is not valid, or, in a loop, a sample cannot be read.

    >>> pictures = md.data.Arrays(np.zeros((8, 3, 32, 32)), np.arange(8))
    >>> train = md.data.Loader(pictures, 4, shuffle=True)
    >>> for x, target in train:
    ...     print(x.shape, target)
    """

    def __init__(
        self,
        dataset: Dataset,
        batch: int,
        *,
        shuffle: bool = False,
        seed: int = 0,
        workers: int = 0,
        processes: bool = False,
        ahead: int | None = None,
        drop_last: bool = False,
        mixup: float = 0.0,
        cutmix: float = 0.0,
        sampler: WeightedSampler | None = None,
        finite: bool = True,
        shard: tuple[int, int] = (0, 1),
    ) -> None:
        super().__init__()
        if not isinstance(dataset, Dataset):
            raise DataError(
                f"dataset is a {type(dataset).__name__}; valid are Arrays, Folder and other "
                "datasets: Samples(...) makes one of what has a length and an index"
            )
        ahead = 2 * workers if ahead is None else ahead
        least = {"batch": 1, "seed": 0, "workers": 0, "ahead": int(workers != 0), "mixup": 0}
        least["cutmix"] = 0
        for (name, low), value in zip(
            least.items(), (batch, seed, workers, ahead, mixup, cutmix), strict=True
        ):
            is_share = name in ("mixup", "cutmix")
            kinds: Any = (int, float, np.number) if is_share else (int, np.integer)
            what = "numbers" if is_share else "ints"
            if not isinstance(value, kinds) or not low <= value < 2**64:
                raise DataError(f"{name}={value!r:.80}; valid are {what} from {low} to 2**64 - 1")
        if processes and not workers:
            raise DataError("processes=True with workers=0; valid is workers of at least 1")
        if sampler is not None:
            if not isinstance(sampler, WeightedSampler) or shuffle:
                raise DataError(
                    f"sampler={sampler!r:.80}, shuffle={shuffle!r}; valid is a "
                    "minidnn.data.WeightedSampler, which shuffles itself, with shuffle=False"
                )
            if len(sampler.weights) != len(dataset):
                raise DataError(
                    f"sampler has {len(sampler.weights)} weights; valid is one for each of the "
                    f"{len(dataset)} samples"
                )
        rank, ranks = shard
        if not 0 <= rank < ranks:
            raise DataError(f"shard={shard}; valid is a rank from 0, and a larger number of ranks")
        self._shard = shard
        total = len(dataset) if sampler is None else len(sampler)
        self._samples = total // ranks if drop_last else -(-total // ranks)
        if drop_last and batch > self._samples:
            shared = f" that each of {ranks} ranks has" if ranks > 1 else ""
            raise DataError(
                f"batch={batch} is more than the {self._samples} samples{shared}, and drop_last "
                "leaves none"
            )
        self.dataset, self.batch, self.shuffle, self.drop_last = dataset, batch, shuffle, drop_last
        self._seed, self._count, self._processes, self._ahead = seed, workers, processes, ahead
        self._make = BatchMaker(dataset, mixup, finite, cutmix)
        self._sampler = sampler
        self._workers: Workers | None = None

    def __len__(self) -> int:
        full, rest = divmod(self._samples, self.batch)
        return full + bool(rest and not self.drop_last)

    def _facts(self) -> dict[str, Any]:
        return {
            "cutmix": self._make.cutmix or None,
            "sampler": None if self._sampler is None else self._sampler.facts(),
            "seed": self._seed,
            "samples": len(self.dataset),
            "batch": self.batch,
            "shuffle": self.shuffle,
            "drop_last": self.drop_last,
            "mixup": self._make.mixup,
            "ranks": self._shard[1],
        }

    def _batches(self, epoch: int, first: int) -> Iterator[Batch]:
        order = np.arange(len(self.dataset))
        if self._sampler is not None:
            order = self._sampler.order(_generator(self._seed, epoch))
        elif self.shuffle:
            order = _generator(self._seed, epoch).permutation(order)
        rank, ranks = self._shard
        order = np.resize(order, self._samples * ranks)[rank::ranks]

        def task(position: int) -> tuple[int, int, int, np.ndarray]:
            start = position * self.batch
            return self._seed, epoch, position, order[start : start + self.batch]

        positions = range(first, len(self))
        if not self._count:
            yield from (self._make(*task(index)) for index in positions)
            return
        workers = self._running()
        pending: deque[Future[Batch]] = deque()
        try:
            for index in positions:
                pending.append(workers.submit(task(index)))
                if len(pending) == self._ahead:
                    yield _result(pending.popleft())
            while pending:
                yield _result(pending.popleft())
        finally:
            for future in pending:
                future.cancel()

    def _running(self) -> Workers:
        """Returns the worker pool, which lives from epoch to epoch.

        A new one replaces a pool of the parent of a fork, or one with a dead process.
        """
        if self._workers is None or not self._workers.are_whole():
            self.close()
            self._workers = Workers(self._make, self._count, self._processes)
        return self._workers

    def close(self) -> None:
        """Ends the workers, which otherwise end with the loader; the next iteration starts new
        ones."""
        if self._workers is not None:
            self._workers.close()
            self._workers = None


def _result(future: Future[Batch]) -> Batch:
    # Ctrl-C just before a wait takes effect after it, so no wait is long.
    while not wait([future], timeout=1).done:
        pass
    return future.result()


def _generator(seed: int, *key: int) -> np.random.Generator:
    """The random generator of an epoch, or of a batch: ``key`` is (epoch,) or (epoch, batch)."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=key)))


class Batches(Epochs):
    """Batches of any iterable, as a :class:`~minidnn.data.loader.Loader` gives them.

    Restoring a state reads the batches before it and drops them.  They are the same only if the
    source is deterministic in each epoch, so make what shuffles anew for each epoch::

        Batches(lambda epoch: DataLoader(data, 64, shuffle=True, generator=seeded(epoch)))

    Args:
        source: an iterable of batches, or a function of the epoch that returns one.
        convert: makes a pair (x, target) from an item of the source that is none.
        finite: whether NaN and infinities in x are refused.

    Raises:
        DataError: the source can be read only once, or yields something that is no batch.

    >>> train = md.data.Batches(batches)
    >>> for x, target in train:
    ...     print(x.shape, x.dtype)
    """

    def __init__(
        self,
        source: Iterable[Any] | Callable[[int], Iterable[Any]],
        convert: Callable[[Any], tuple[Any, Any]] | None = None,
        finite: bool = True,
    ) -> None:
        super().__init__()
        self._source, self._convert, self._finite = source, convert, finite
        if not callable(source) and not isinstance(source, Iterable):
            raise DataError(
                f"source is a {type(source).__name__}; valid are an iterable of batches, and a "
                "function of the epoch that returns one"
            )

    def __len__(self) -> int:
        return len(self._of(self._epoch))

    def _of(self, epoch: int) -> Any:
        return self._source(epoch) if callable(self._source) else self._source

    def _batches(self, epoch: int, first: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        index = -1
        for index, item in enumerate(self._of(epoch)):
            if index >= first:
                yield self._pair(item, f"batch {index} of epoch {epoch}")
        if index < max(first - 1, 0):
            raise DataError(
                f"the source has {index + 1} batches in epoch {epoch}, and more were expected; an "
                "iterator can be read only once: give a list, or a function of the epoch"
            )

    def _pair(self, item: Any, name: str) -> tuple[np.ndarray, np.ndarray]:
        if self._convert is not None:
            item = self._convert(item)
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise DataError(
                f"{name} is a {type(item).__name__}; valid is a pair (x, target): give convert=, a "
                "function that makes one"
            )
        x, target = as_numbers(as_array(item[0])), as_targets(as_array(item[1]))
        if len(x) != len(target):
            raise DataError(f"{name} has {len(x)} samples and {len(target)} targets")
        if self._finite and not np.isfinite(x).all():
            raise DataError(f"{name} has NaN or infinities; finite=False lets them pass")
        return x, target
