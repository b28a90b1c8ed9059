"""Datasets, which a loader reads by sample number, and the random numbers of their augmentation.

The random numbers of a sample are the same in whatever batch, thread or process it is read.  A
counter-based generator makes them from (seed, epoch, sample, call, element), so there is no state
to keep, and one call draws the numbers of a whole batch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import inf, prod
from typing import Any

import numpy as np

from minidnn.errors import MiniDNNError
from minidnn.graph.philox import philox
from minidnn.graph.types import plain

__all__ = ["Arrays", "DataError", "Dataset", "Samples", "Subset"]

#: Part of the generator's key: separates these random numbers from dropout's of the same seed.
_DATA = 0x64617461


class Draws:
    """Random numbers for the samples of one batch.

    Every call gives new ones, with one entry per sample along the first axis.  What a step draws
    must not depend on what is in the batch, so that a sample's numbers stay its own: draw all that
    may be needed, at once.

    Args:
        seed: from 0 to 2**64 - 1.
        epoch, samples: the epoch, and the numbers of the batch's samples, from 0 to 2**32 - 1.

    >>> draws = md.data.Draws(seed=0, epoch=0, samples=np.arange(4))
    >>> print(draws.uniform(2).shape)
    """

    def __init__(self, seed: int, epoch: int, samples: np.ndarray) -> None:
        self._key = (seed & 0xFFFFFFFF, seed >> 32 ^ _DATA)
        self._epoch, self._samples, self._calls = epoch, np.asarray(samples, np.uint64), 0

    def __len__(self) -> int:
        return len(self._samples)

    def uniform(self, *shape: int, low: float = 0.0, high: float = 1.0) -> np.ndarray:
        """Returns numbers ``(samples, *shape)``, float64, uniform in [``low``, ``high``)."""
        self._calls += 1
        count = prod(shape)
        blocks = np.arange(-(-count // 2))
        counter = (blocks, self._calls, self._samples[:, None], self._epoch)
        words = philox([np.asarray(word) for word in counter], self._key)
        a, b, c, d = words
        bits = np.stack([a << np.uint64(32) | b, c << np.uint64(32) | d], axis=-1) >> np.uint64(11)
        unit = bits.reshape(len(self), -1)[:, :count] * 2.0**-53
        return (low + (high - low) * unit).reshape(len(self), *shape)

    def integers(self, count: int, *shape: int) -> np.ndarray:
        """Returns integers ``(samples, *shape)``, int64, from 0 to ``count - 1``."""
        return (self.uniform(*shape) * count).astype(np.int64)

    def normal(self, *shape: int) -> np.ndarray:
        """Returns numbers ``(samples, *shape)``, float64, of the standard normal distribution."""
        radius, angle = np.moveaxis(self.uniform(*shape, 2), -1, 0)
        return np.sqrt(-2 * np.log1p(-radius)) * np.cos(2 * np.pi * angle)


Step = Callable[[np.ndarray, Draws], np.ndarray]


class DataError(MiniDNNError, ValueError):
    """Data for training cannot be read, or does not fit together.

    >>> try:
    ...     md.data.Arrays(np.zeros((8, 3, 32, 32)), np.arange(7))
    >>> except md.data.DataError as error:
    ...     print(error)
    """


def check_numbers(step: object, low: float, high: float, *names: str) -> None:
    """DataError unless each of these arguments of a step is a number within these bounds."""
    for name in names:
        value = getattr(step, name)
        if not isinstance(value, (int, float, np.number)) or not low <= value <= high:
            bounds = f"of at least {low:g}" if high == inf else f"from {low:g} to {high:g}"
            raise DataError(
                f"{type(step).__name__}: {name}={value!r:.80}; valid is a number {bounds}"
            )


def check_ranges(step: object, *bounds: tuple[str, float, float]) -> None:
    """DataError unless each argument (name, low, high) of a step is a pair of numbers in order
    within these bounds, where ``low`` itself is valid unless ``high`` is infinite."""
    for name, low, high in bounds:
        value: Any = getattr(step, name)
        is_pair = isinstance(value, (tuple, list)) and len(value) == 2
        if not is_pair or not low <= value[0] <= value[1] <= high or (high == inf and not value[0]):
            what = "numbers above 0" if high == inf else f"numbers from {low:g} to {high:g}"
            raise DataError(
                f"{type(step).__name__}: {name}={value!r:.80}; valid are two {what}, in order"
            )


class Dataset(ABC):
    """Samples by number, and the steps that each batch of them goes through.

    Args:
        augment: functions (x, draws) -> x, see :mod:`minidnn.data.augment`.
        classes: the number of classes, or their names; 0 if targets are no classes.

    Raises:
        DataError: a step is no function, or ``classes`` is not valid.

    >>> isinstance(md.data.Arrays(x, np.arange(2)), md.data.Dataset)
    """

    def __init__(self, augment: Sequence[Step] = (), classes: int | Sequence[str] = 0) -> None:
        self.augment = tuple(augment)
        for step in self.augment:
            if not callable(step):
                raise DataError(f"augment has {step!r}; valid are functions (x, draws) -> x")
        classes = plain(classes)
        if isinstance(classes, str) or (isinstance(classes, int) and classes < 0):
            raise DataError(
                f"classes={classes!r:.80}; valid is a number of at least 0, or a name for each"
            )
        names = map(str, range(classes)) if isinstance(classes, int) else classes
        self.classes = tuple(names)

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def read(self, samples: np.ndarray, draws: Draws) -> tuple[np.ndarray, np.ndarray]:
        """Returns samples, by number, before augmentation, and their targets.

        The array of samples is new: steps may write to it.
        """

    def name(self, sample: int) -> str:
        """The name of a sample in error messages."""
        return f"sample {sample}"

    def batch(self, samples: np.ndarray, seed: int, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns samples, by number, after augmentation, as float32, and their targets.

        Raises DataError, which names the sample, or the step, that failed.
        """
        draws = Draws(seed, epoch, samples)
        x, target = self.read(samples, draws)
        x, target = self.stepped(x, target, draws, samples)
        return np.ascontiguousarray(x, np.float32), target

    def stepped(
        self, x: np.ndarray, target: np.ndarray, draws: Draws, samples: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Applies the steps to samples and targets that :meth:`read` returned."""
        for step in self.augment:
            with named(step, samples):
                x = step(x, draws)
        return x, target


@contextmanager
def named(step: Step, samples: np.ndarray) -> Iterator[None]:
    """Turns errors of a step into DataErrors that name the step and its samples."""
    try:
        yield
    except DataError:
        raise
    except Exception as error:
        numbers = ", ".join(map(str, samples[:8])) + (", …" if len(samples) > 8 else "")
        raise DataError(
            f"step {step} failed on samples {numbers}: {type(error).__name__}: {error}"
        ) from error


class Arrays(Dataset):
    """Samples in arrays, which may be memory-mapped.

    Args:
        x: (N, ...), for pictures (N, C, H, W).  uint8 is divided by 255; else float32 is made.
        y: (N,) classes or (N, ...) floating-point numbers.
        augment, classes: as of a :class:`Dataset`; by default classes go up to the largest target.

    Raises:
        DataError: an array has no samples or no numbers, or the two differ in length.

    >>> pictures = md.data.Arrays(np.zeros((8, 3, 32, 32)), np.arange(8))
    >>> print(len(pictures), pictures.classes)
    """

    def __init__(
        self,
        x: np.ndarray,
        y: np.ndarray,
        augment: Sequence[Step] = (),
        classes: int | Sequence[str] | None = None,
    ) -> None:
        self.x, self.y = np.asanyarray(x), np.asanyarray(y)
        for name, array in (("x", self.x), ("y", self.y)):
            if array.dtype.kind not in "buif":
                raise DataError(f"{name} has dtype {array.dtype}; valid are numbers")
            if array.ndim < 1 or not len(array):
                raise DataError(f"{name} has shape {array.shape}; valid is at least one sample")
        if len(self.x) != len(self.y):
            raise DataError(f"x has {len(self.x)} samples and y has {len(self.y)}; valid are equal")
        if classes is None:
            classes = 0 if self.y.dtype.kind == "f" else max(0, int(self.y.max()) + 1)
        super().__init__(augment, classes)

    def __len__(self) -> int:
        return len(self.x)

    def read(self, samples: np.ndarray, draws: Draws) -> tuple[np.ndarray, np.ndarray]:
        return as_numbers(self.x[samples]), as_targets(self.y[samples])


class Samples(Dataset):
    """Whatever has ``len()`` and gives a pair (x, target) for an index, as PyTorch's datasets do.

    Each x has the same shape, for pictures (C, H, W), and becomes float32 as in :class:`Arrays`.

    Args:
        source: an object with ``len()`` and an index, such as a dataset of PyTorch.
        augment, classes: as of a :class:`Dataset`.

    Raises:
        DataError: the source has no samples.

    >>> pairs = [(np.zeros((3, 32, 32)), 0), (np.ones((3, 32, 32)), 1)]
    >>> samples = md.data.Samples(pairs, classes=2)
    """

    def __init__(
        self, source: Any, augment: Sequence[Step] = (), classes: int | Sequence[str] = 0
    ) -> None:
        super().__init__(augment, classes)
        self.source = source
        if not len(source):
            raise DataError("the source has no samples")

    def __len__(self) -> int:
        return len(self.source)

    def read(self, samples: np.ndarray, draws: Draws) -> tuple[np.ndarray, np.ndarray]:
        return one_by_one(self, samples, self._read)

    def _read(self, index: int, sample: int) -> tuple[np.ndarray, np.ndarray]:
        x, target = self.source[sample]
        return as_numbers(as_array(x)), as_targets(as_array(target))


class Subset(Dataset):
    """Some samples of another dataset, with its steps and classes.

    Args:
        whole: the other dataset.
        samples: their numbers there.

    Raises:
        DataError: a number is none of a sample of the other dataset.

    >>> held_out = md.data.Subset(md.data.Arrays(x, np.zeros(2)), np.arange(1))
    """

    def __init__(self, whole: Dataset, samples: np.ndarray) -> None:
        super().__init__(whole.augment, whole.classes)
        self.whole, self.samples = whole, np.asarray(samples)
        is_valid = self.samples.ndim == 1 and self.samples.dtype.kind in "iu" and self.samples.size
        if not is_valid or not 0 <= self.samples.min() <= self.samples.max() < len(whole):
            raise DataError(
                f"samples={samples!r:.80}; valid are integers from 0 to {len(whole) - 1}"
            )

    def __len__(self) -> int:
        return len(self.samples)

    def read(self, samples: np.ndarray, draws: Draws) -> tuple[np.ndarray, np.ndarray]:
        return self.whole.read(self.samples[samples], draws)

    def stepped(
        self, x: np.ndarray, target: np.ndarray, draws: Draws, samples: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        return self.whole.stepped(x, target, draws, samples)

    def name(self, sample: int) -> str:
        return self.whole.name(int(self.samples[sample]))


def one_by_one(
    dataset: Dataset,
    samples: np.ndarray,
    read: Callable[[int, int], tuple[np.ndarray, np.ndarray]],
) -> tuple[np.ndarray, np.ndarray]:
    """Returns a batch of the pairs that ``read(index in the batch, sample number)`` returns.

    Raises DataError, which names the sample, if ``read`` fails or shapes differ.
    """
    pairs: list[tuple[np.ndarray, np.ndarray]] = []
    for index, sample in enumerate(samples.tolist()):
        try:
            pairs.append(read(index, sample))
        except Exception as error:
            text = (
                str(error)
                if isinstance(error, MiniDNNError)
                else f"{type(error).__name__}: {error}"
            )
            raise DataError(f"{dataset.name(sample)} cannot be read: {text}") from error
        for what, array, first in zip(("x", "target"), pairs[-1], pairs[0], strict=True):
            if array.shape != first.shape:
                raise DataError(
                    f"{dataset.name(sample)}: {what} has shape {array.shape}, and that of "
                    f"{dataset.name(int(samples[0]))} in its batch {first.shape}; valid are equal"
                )
    x, targets = zip(*pairs, strict=True)
    return np.stack(x), np.stack(targets)


def as_numbers(x: np.ndarray) -> np.ndarray:
    """Returns a copy in float32; uint8 is scaled from 0..255 to 0..1."""
    if x.dtype == np.uint8:
        return x / np.float32(255)
    return x.astype(np.float32)


def as_targets(y: np.ndarray) -> np.ndarray:
    """Returns a copy in float32, or in int64 for class numbers."""
    return y.astype(np.float32 if y.dtype.kind == "f" else np.int64)


def as_array(value: Any) -> np.ndarray:
    """Returns a NumPy array of an array-like, which may be a tensor of PyTorch or JAX."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
    return np.asarray(value)
