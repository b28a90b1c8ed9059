"""Detects that a network's weights have changed since it was compiled.

Programs for inference have packed copies of the weights.  PyTorch's version counter counts the
writes to a tensor, so a weight is unchanged if its version and address are the same, and its memory
was not freed meanwhile (that memory may have become another tensor's, and then this one's again by
``.data``).  Which tensors are weights Dynamo says at every call.

Some writes are not counted.  Writes to ``tensor.data`` or to a NumPy view are found by samples of
the weights on the CPU, see :class:`WeightSamples`.  Updates of running statistics by eager batch
normalization in training show in its number of batches, whose writes are counted.

All checks run before every call, when the network has just filled the caches.  So there are two
paths: a fast one that only compares numbers, and one that names the weight that has changed.
"""

from __future__ import annotations

import ctypes
import gc
import weakref
from array import array
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Any

import numpy as np
import torch

from minidnn._torch_internals import BatchNorm
from minidnn.acceleration.part import overrides_computation
from minidnn.frontends.torch.captured import Held

# Samples of weights: some of their 32-bit words, all read at once before every call.
#
# PyTorch counts writes to a tensor, but not those to ``tensor.data`` or to a NumPy view of it.
# Moving averages of weights (``teacher.data.mul_(m).add_(...)``) are written so, and change every
# element.  So a few words of each weight suffice, and of a small weight all words.


#: The size of a word in bytes.
_WORD = 4
#: The number of words that are read of each weight: all words of a small one.
_WORDS = 8


class WeightSamples:
    """Words of tensors on the CPU, as they were when this was made.

    One array spans the memory from the first tensor to the last, and one gather reads the sampled
    words from it.  Tensors on a GPU are not sampled: that would have to wait for the GPU.
    """

    def __init__(self, tensors: Sequence[Any]) -> None:
        places: list[int] = []
        addresses: list[int] = []
        for place, tensor in enumerate(tensors):
            if not is_sampled(tensor):
                continue
            count, begin = _words_of(tensor), tensor.data_ptr()
            words = np.unique(np.linspace(0, count - 1, min(count, _WORDS)).astype(np.int64))
            addresses += [begin + _WORD * int(word) for word in words]
            places += [place] * len(words)
        self._places = places
        self._memory = np.empty(0, np.uint32)
        self._words = np.empty(0, np.int64)
        if addresses:
            first = min(addresses)
            count = (max(addresses) - first) // _WORD + 1
            self._memory = np.ctypeslib.as_array((ctypes.c_uint32 * count).from_address(first))
            self._words = (np.array(addresses, np.int64) - first) // _WORD
        self._before = self._memory.take(self._words).tobytes()

    def are_the_same(self) -> bool:
        """Whether the words are unchanged; the tensors must still have their addresses."""
        return self._memory.take(self._words).tobytes() == self._before

    def changed(self) -> int | None:
        """The place of a tensor that has changed, or None."""
        now = self._memory.take(self._words)
        others = np.flatnonzero(now != np.frombuffer(self._before, np.uint32))
        return self._places[int(others[0])] if len(others) else None


def is_sampled(tensor: Any) -> bool:
    """Whether words of a tensor are read: it is contiguous on the CPU, and aligned to words."""
    is_readable = tensor.is_cpu and tensor.is_contiguous() and tensor.data_ptr() % _WORD == 0
    return is_readable and _words_of(tensor) > 0


def _words_of(tensor: Any) -> int:
    return int(tensor.numel() * tensor.element_size() // _WORD)


#: The buffer in which normalizations count batches.
_BATCHES = "num_batches_tracked"
_VERSION = attrgetter("_version")
_ADDRESS = torch.Tensor.data_ptr


class Watch:
    """The weights of a program, as they were when it was compiled."""

    def __init__(self, held: Iterable[Held], statistics: Iterable[Held] = ()) -> None:
        """
        held: the weights.
        statistics: those of them that are running statistics, written in training.
        """
        self._held = list(held)
        self._batches = _batches_of(each for each in statistics if not is_sampled(each.tensor))
        self.renew()

    def renew(self) -> None:
        """Takes the weights as they are now for unchanged."""
        weights = [(each, each.tensor) for each in (*self._held, *self._batches)]
        #: Tensors with a version counter: those of inference mode have none.
        self._counted = [tensor for _, tensor in weights if not tensor.is_inference()]
        self._versions = list(map(_VERSION, self._counted))
        self._tensors = [each.tensor for each in self._held]
        self._addresses = array("Q", map(_ADDRESS, self._tensors))
        self._samples = WeightSamples(self._tensors)
        #: Storages that were freed: PyTorch has one Python object for each storage.
        self._freed: list[Any] = []
        self._seen = [
            (
                *(each, tensor, None if tensor.is_inference() else tensor._version),
                *(tensor.data_ptr(), weakref.ref(tensor.untyped_storage(), self._freed.append)),
            )
            for each, tensor in weights
        ]
        self._types = [(each, _type(each.tensor)) for each in self._held]

    @property
    def uncounted(self) -> int:
        """The number of weights whose in-place writes are not noticed."""
        return sum(each.tensor.is_inference() for each in self._held)

    def is_as_it_was(self) -> bool:
        """Whether the weights are unchanged: the fast path."""
        return (
            list(map(_VERSION, self._counted)) == self._versions
            and array("Q", map(_ADDRESS, self._tensors)) == self._addresses
            and not self._freed
            and self._samples.are_the_same()
        )

    def changed(self) -> str | None:
        """The name of a weight that has changed, or None."""
        for each, tensor, version, address, memory in self._seen:
            if (
                each.holder.get(each.key) is not tensor
                or (version is not None and tensor._version != version)
                or tensor.data_ptr() != address
                or memory() is None
            ):
                return each.name
        place = self._samples.changed()
        return None if place is None else self._held[place].name

    def refitted(self) -> str | None:
        """The name of a weight that now has another type, so that the program must be made anew; or
        None."""
        for each, before in self._types:
            now = each.holder.get(each.key)
            if now is None or _type(now) != before:
                return each.name
        return None


def _batches_of(statistics: Iterable[Held]) -> list[Held]:
    """The batch counters of the modules that these statistics belong to, if they count batches.
    All modules of the process are searched, as nothing tells whose the statistics are."""
    names = {id(each.tensor): each.name for each in statistics}
    counters = []
    for each in gc.get_objects() if names else ():
        if issubclass(type(each), BatchNorm):
            buffers = vars(each).get("_buffers", {})
            name = names.get(id(buffers.get("running_mean")))
            if name is not None and buffers.get(_BATCHES) is not None:
                counters.append(Held(buffers, _BATCHES, f"{name.rpartition('.')[0]}.{_BATCHES}"))
    return counters


def _type(tensor: Any) -> Any:
    return (tensor.shape, tensor.dtype, tensor.device, overrides_computation(tensor))
