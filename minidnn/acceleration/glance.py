"""Whether all is as it was, at one glance, before every call of a network.

By then the network has taken the caches, and hundreds of weights lie somewhere in memory.  So each
thing is looked at in a pass over all modules, which only C walks: the processor then waits for many
of them at a time, where a loop of Python's waits for one after the other.  What is read of each is
as little as there can be: of a dict the number that says whether it was written to
(:mod:`.dict_versions`), of a module which its dict and its class are, of a tensor its counts and
addresses where PyTorch keeps them (:mod:`.layout`).  Where these places are not known, or there is
no C of ours, the entries of dicts are looked at themselves, and PyTorch is asked; the former are
then fetched all at a time before.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from operator import attrgetter, is_
from typing import Any, Protocol

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from minidnn.acceleration import dict_versions
from minidnn.acceleration.layout import TensorWords
from minidnn.acceleration.nearby import fetcher
from minidnn.backends.cpu.native import runner, unchanged
from minidnn.cache import building_forbidden
from minidnn.errors import CompileError, DeviceError

log = logging.getLogger(__name__)

_ADDRESS = torch.Tensor.data_ptr
_VERSION = attrgetter("_version")
_TRAINING = attrgetter("training")
_EXPIRED = StorageWeakRef.expired
_END = object()

#: Modules that compute the same in training: their mode need not be looked at.
_WITHOUT_MODES = {
    *(nn.AdaptiveAvgPool2d, nn.AvgPool2d, nn.Conv2d, nn.Flatten, nn.GELU, nn.Hardsigmoid),
    *(nn.Hardswish, nn.Identity, nn.LayerNorm, nn.Linear, nn.MaxPool2d, nn.ReLU, nn.ReLU6),
    *(nn.Sequential, nn.Sigmoid, nn.SiLU),
}


class Attributes(Protocol):
    """What modules hold besides weights and modules."""

    #: The modules, and the dicts in which they hold it.
    owners: list[nn.Module]
    dicts: list[dict[str, Any]]

    def are_the_same(self) -> bool: ...


class Glance:
    """What is looked at before every call.

    ``dicts``: where weights and modules are held; ``counted``: the tensors of which PyTorch counts
    the writes, ``uncounted``: the others; ``modules``: those that have a mode.  ``native``: whether
    to look with the CPU engine's C, which must be there.
    """

    def __init__(
        self,
        dicts: Sequence[Any],
        counted: Sequence[Any],
        uncounted: Sequence[Any],
        modules: Sequence[nn.Module],
        attributes: Attributes,
        native: bool,
    ) -> None:
        self._alive = [*dicts, *attributes.dicts, *attributes.owners, *counted, *uncounted]
        #: Where a tensor's memory was freed meanwhile, no other has that storage's address.
        self._memories = [StorageWeakRef(t.untyped_storage()) for t in (*counted, *uncounted)]
        self._words = TensorWords(counted) if native else None
        self._tensors = list(counted) if self._words is None else self._words.others
        self._versions = list(map(_VERSION, self._tensors))
        self._addressed = [*self._tensors, *uncounted]
        self._addresses = array("Q", map(_ADDRESS, self._addressed))
        addressed = set(map(id, self._addressed))
        every = zip((*counted, *uncounted), self._memories, strict=True)
        self._asked = [memory for tensor, memory in every if id(tensor) in addressed]

        self._views = [each.values() for each in dicts]
        self._objects = [*chain.from_iterable(self._views), _END]
        self._attributes = attributes
        modules = [module for module in modules if type(module) not in _WITHOUT_MODES]
        self._modes = _Modes(modules)
        everything = [*dicts, *attributes.dicts]
        self._places = _places(everything, attributes.owners) if native else None
        known = set() if self._places is None else set(map(id, attributes.dicts))
        #: Modules whose modes nothing else tells.
        self._others = _Modes([module for module in modules if not _is_entry(module, known)])
        #: Tells that nothing was written to dicts and tensors since they were looked at.
        self._unwritten: Callable[[], int] | None = None
        self._fetch: Callable[[], None] | None = None
        if native and self._places is None:
            fetched = [*everything, *map(vars, modules)]
            self._fetch = fetcher(fetched, self._objects, self._addressed)

    def is_as_it_was(self) -> bool:
        """True only if nothing at all has changed; a longer look may find it in order, too."""
        if self._unwritten is not None and self._unwritten():
            return self._others.are_the_same() and self._says_the_same()
        return self._looks_the_same()

    def _looks_the_same(self) -> bool:
        """Whether modules hold the same objects, and equal attributes."""
        # Taken before: what another thread writes while entries are looked at is seen next time.
        unwritten = self._taken()
        if self._fetch is not None:
            self._fetch()
        if not (
            all(map(is_, chain(chain.from_iterable(self._views), (_END,)), self._objects))
            and (self._words is None or self._words.unchanged())
            and self._says_the_same()
            and self._modes.are_the_same()
            and self._attributes.are_the_same()
        ):
            return False
        self._unwritten = unwritten
        return True

    def _taken(self) -> Callable[[], int] | None:
        """What tells whether anything is written from now on; None where nothing does."""
        if self._places is None or self._words is None:
            return None
        seen = dict_versions.versions(self._places)
        return partial(unchanged(), self._places, seen, len(seen), *self._words.arguments)

    def _says_the_same(self) -> bool:
        """Whether PyTorch says of those tensors what it said."""
        return not self._addressed or (
            list(map(_VERSION, self._tensors)) == self._versions
            and array("Q", map(_ADDRESS, self._addressed)) == self._addresses
            and not any(map(_EXPIRED, self._asked))
        )


def is_native(device: str) -> bool:
    """Whether networks on a device are looked at with the CPU engine's C.  Those on a GPU are if it
    can be built, as the processor has less to do then between two launches; else this is logged."""
    kind = device.partition(":")[0]
    if kind == "cuda":
        try:
            runner()
        except (CompileError, DeviceError) as error:
            if building_forbidden():
                raise  # whoever forbids to compile counts on what is in the cache
            log.info("weights are looked at by Python before each call on a GPU: %s", error)
            return False
    return kind in ("cpu", "cuda")


class _Modes:
    """Whether modules are in training mode."""

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        self._modules = modules
        self._before = list(map(_TRAINING, modules))

    def are_the_same(self) -> bool:
        return list(map(_TRAINING, self._modules)) == self._before


def _places(dicts: Sequence[Any], owners: Sequence[nn.Module]) -> Any:
    """Where dicts say whether they were written to, and modules which their dict and class are;
    None if not all of them do."""
    if not dict_versions.are_known() or any(type(each) is not dict for each in dicts):
        return None
    if not all(map(dict_versions.say_their_dict, owners)):
        return None
    return dict_versions.places(list({id(each): each for each in dicts}.values()), owners)


def _is_entry(module: nn.Module, known: set[int]) -> bool:
    """Whether a module's mode is nothing but an entry of one of these dicts."""
    kind: Any = type(module)
    return (
        id(vars(module)) in known
        and "training" in vars(module)
        and not hasattr(kind, "training")
        and kind.__getattribute__ is object.__getattribute__
    )
