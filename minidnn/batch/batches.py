"""How many pictures an executable computes at once."""

from __future__ import annotations

import numpy as np

from minidnn.dynamic.executable import DynamicExecutable
from minidnn.dynamic.loaded import BatchExecutable
from minidnn.executable import Executable
from minidnn.runtime.interface import Interface

#: What computes batches of one size, or of all in a range.
AnyExecutable = Executable | DynamicExecutable | BatchExecutable


def interface_of(executable: AnyExecutable) -> Interface:
    """What it takes and gives: for a range that for the smallest batch."""
    if isinstance(executable, Executable):
        return executable.interface
    return executable.at(**{dim.name: dim.least for dim in executable.dims}).interface


def most_rows(executable: AnyExecutable, wanted: int) -> int:
    """How many pictures it computes at once, of which ``wanted`` are enough."""
    if isinstance(executable, Executable):
        return executable.interface.inputs[0].shape[0]
    return executable.dims[0].up_to(wanted)


def rows_for(executable: AnyExecutable, pictures: int) -> int:
    """The rows of a batch for so many pictures: as many, if it computes so few and any number."""
    if isinstance(executable, Executable):
        return executable.interface.inputs[0].shape[0]
    batch = executable.dims[0]
    return max(batch.least, -(-pictures // batch.multiple) * batch.multiple)


def ranked(scores: np.ndarray, top: int, are_probabilities: bool) -> tuple[list[int], list[float]]:
    """The classes with the ``top`` highest scores, highest first and of equal ones the first, and
    their probabilities: the softmax of scores that are none."""
    shares = scores
    if not are_probabilities:
        shares = np.exp(scores - scores.max())
        shares /= shares.sum()
    order = np.argsort(-scores, kind="stable")[:top]
    return [int(index) for index in order], [float(shares[index]) for index in order]
