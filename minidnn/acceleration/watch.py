"""Noticing that a network's weights are not what they were when it was compiled.

Programs for inference have weights packed in them.  PyTorch counts the writes to a tensor, so a
weight is as it was if its count is the same and so is its address, and the memory there was not
freed meanwhile (it may have become another's ``.data``, and this one's).  Which tensor is a weight
Dynamo says at every call.

Some writes are not counted.  Those to ``tensor.data`` or to a NumPy view are looked for in samples
of weights on the CPU, see :mod:`minidnn.acceleration.samples`.  Of what eager batch
normalization writes elsewhere in training, the number of batches tells, which is counted.

All of this is looked at before every call, when the network has just taken the caches.  So there
are two ways: passes that only compare numbers, and one that tells what is another.
"""

from __future__ import annotations

import gc
import weakref
from array import array
from collections.abc import Iterable
from operator import attrgetter
from typing import Any

import torch

from minidnn._torch_internals import BatchNorm
from minidnn.acceleration.part import computes_its_own_way
from minidnn.acceleration.samples import WeightSamples, is_sampled
from minidnn.frontends.torch.captured import Held

#: Under which name normalizations count batches.
_BATCHES = "num_batches_tracked"
_VERSION = attrgetter("_version")
_ADDRESS = torch.Tensor.data_ptr


class Watch:
    """The weights of a program, as they were when it was compiled."""

    def __init__(self, held: Iterable[Held], statistics: Iterable[Held] = ()) -> None:
        """
        held: the weights.
        statistics: those of them that normalizations write in training.
        """
        self._held = list(held)
        self._batches = _batches_of(each for each in statistics if not is_sampled(each.tensor))
        self.renew()

    def renew(self) -> None:
        """Takes all for unchanged as it is now."""
        every = [(each, each.tensor) for each in (*self._held, *self._batches)]
        #: PyTorch does not count the writes to tensors of inference mode.
        self._counted = [tensor for _, tensor in every if not tensor.is_inference()]
        self._versions = list(map(_VERSION, self._counted))
        self._tensors = [each.tensor for each in self._held]
        self._addresses = array("Q", map(_ADDRESS, self._tensors))
        self._samples = WeightSamples(self._tensors)
        #: Those of the memories that were freed: PyTorch has one Python object for each.
        self._freed: list[Any] = []
        self._seen = [
            (
                *(each, tensor, None if tensor.is_inference() else tensor._version),
                *(tensor.data_ptr(), weakref.ref(tensor.untyped_storage(), self._freed.append)),
            )
            for each, tensor in every
        ]
        self._types = [(each, _type(each.tensor)) for each in self._held]

    @property
    def uncounted(self) -> int:
        """Of how many weights writes in place are not noticed."""
        return sum(each.tensor.is_inference() for each in self._held)

    def is_as_it_was(self) -> bool:
        """Whether these tensors are as they were."""
        return (
            list(map(_VERSION, self._counted)) == self._versions
            and array("Q", map(_ADDRESS, self._tensors)) == self._addresses
            and not self._freed
            and self._samples.are_the_same()
        )

    def changed(self) -> str | None:
        """The name of a weight that is not what it was, or None."""
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
        """The name of a weight that now has another type, so that nothing fits it."""
        for each, before in self._types:
            now = each.holder.get(each.key)
            if now is None or _type(now) != before:
                return each.name
        return None


def _batches_of(statistics: Iterable[Held]) -> list[Held]:
    """The numbers of batches of which these statistics were taken, where modules count them: they
    are looked for among all modules that there are, as nobody tells whose the statistics are."""
    names = {id(each.tensor): each.name for each in statistics}
    found = []
    for each in gc.get_objects() if names else ():
        if issubclass(type(each), BatchNorm):
            buffers = vars(each).get("_buffers", {})
            name = names.get(id(buffers.get("running_mean")))
            if name is not None and buffers.get(_BATCHES) is not None:
                found.append(Held(buffers, _BATCHES, f"{name.rpartition('.')[0]}.{_BATCHES}"))
    return found


def _type(tensor: Any) -> Any:
    return (tensor.shape, tensor.dtype, tensor.device, computes_its_own_way(tensor))
