"""Noticing that a network is not what it was when it was compiled.

PyTorch counts the writes to a tensor, so nothing has to be compared: a weight is as it was if the
module holds the same tensor under that name, its count is the same and so is its address, and the
memory there was not freed meanwhile (it may have become another's ``.data``, and this one's).  What
that cannot see is a write past PyTorch (to ``tensor.data``, or to a NumPy view).  PyTorch does not
count what its batch normalization writes in training, either: the number of batches is looked at,
which it does count.

A captured program knows a tensor by one name, and has modules and their attributes in it as they
were.  So all that modules hold is looked at, under every name: where a tied weight is untied, a
bias or a module comes or goes, or an attribute is replaced, the program is captured anew.

All of this is looked at before every call, when the network has just taken the caches.  So there
are two ways: passes that only compare objects and numbers, and one that tells what is another.
"""

from __future__ import annotations

import gc
import weakref
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain
from operator import attrgetter, call, is_, itemgetter
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from minidnn._torch_internals import BatchNorm
from minidnn.acceleration.counts import BATCHES
from minidnn.acceleration.part import computes_its_own_way
from minidnn.errors import UnsupportedError
from minidnn.frontends.torch.capture import Captured, Held, reader_of
from minidnn.frontends.torch.hooks import BACKWARD_HOOKS, HOOKS
from minidnn.frontends.torch.scripted import is_scripted
from minidnn.frontends.torch.state import OF_MODULES, PLAIN

_EVERY_HOOK = (*HOOKS, *BACKWARD_HOOKS)
_HOLDERS = ("_parameters", "_buffers", "_modules")
_END = object()
_VERSION = attrgetter("_version")
_ADDRESS = torch.Tensor.data_ptr

#: The path of a module, and the module.
_Owner = tuple[str, nn.Module]


class StandsFor(nn.Module):
    """A module that stands for another, whose parameters, buffers and children it has.

    Attributes:
        original: that module.
    """

    original: nn.Module


def check_weights(captured: Captured, name: str) -> None:
    """UnsupportedError if a weight of the module of that name computes in its own way."""
    for node, held in captured.held.items():
        if node.users and computes_its_own_way(held.tensor):
            raise UnsupportedError(
                f"{name} cannot be compiled: its weight {held.name} is a "
                f"{type(held.tensor).__name__}, a class that computes in its own way; valid are "
                "torch.Tensor and torch.nn.Parameter"
            )


class Watch:
    """A program's weights, and the modules that it was captured of, as they were when it was
    compiled."""

    def __init__(
        self,
        held: Iterable[Held],
        root: nn.Module | None = None,
        opaque: Iterable[nn.Module] = (),
        statistics: Iterable[Held] = (),
    ) -> None:
        """
        held: the weights.
        root: the module that was captured.
        opaque: those in it that are called as they are, so that what they hold may change.
        statistics: those of the weights that are statistics of modules that are not known.
        """
        self._held = list(held)
        self._opaque = list(opaque)
        known = {id(module) for module in self._opaque}
        self._owners = [] if root is None else list(_captured(root, "", known, set()))
        self._batches = [*_batches(self._owners), *_batches_of(statistics)]
        self._doubted = False
        self.renew()

    def renew(self) -> None:
        """Takes all for unchanged as it is now."""
        self._weights = _Weights(self._held, self._batches)
        self._entries = _Entries(self._owners, self._held, self._batches)
        self._attributes = _Attributes(self._owners)
        # The network's own hooks run around the program.
        self._hooks = _Hooks(self._owners[1:], self._opaque)

    @property
    def uncounted(self) -> int:
        """Of how many weights writes in place are not noticed."""
        return sum(each.tensor.is_inference() for each in self._held)

    def doubt(self) -> None:
        """From now on nothing is as it was."""
        self._doubted = True

    def is_as_it_was(self) -> bool:
        """Whether weights and modules are those that were compiled in."""
        if (
            not self._doubted
            and self._weights.are_the_same()
            and self._entries.are_the_same()
            and self._attributes.are_the_same()
            and self._hooks.changed() is None
        ):
            return True
        return self.restructured() is None and self.changed() is None

    def changed(self) -> str | None:
        """The name of a weight that is not what it was, or None."""
        return self._weights.changed()

    def refitted(self) -> str | None:
        """The name of a weight that now has another type, so that nothing fits it."""
        return self._weights.refitted()

    def restructured(self) -> str | None:
        """What is not as it was captured, beyond a weight's value, or None."""
        if self._doubted:
            return "refresh() was called"
        return self._entries.changed() or self._attributes.changed() or self._hooks.changed()


class TrainedWatch(Watch):
    """That of a program that is trained, which is given weights at every run: their values may
    change, and their types may not."""

    def __init__(
        self, held: Iterable[Held], root: nn.Module | None, opaque: Iterable[nn.Module]
    ) -> None:
        self._given = list(held)
        self._read = reader_of(self._given)
        super().__init__((), root, opaque)
        self._batches = []
        self.renew()

    def renew(self) -> None:
        super().renew()
        self._known = [(each, _type(each.tensor)) for each in self._given]
        self._lying = self._addresses()

    def is_as_it_was(self) -> bool:
        if self._doubted or not (
            self._entries.are_the_same()
            and self._attributes.are_the_same()
            and self._hooks.changed() is None
            and self._addresses() == self._lying
        ):
            return self.restructured() is None
        return True

    def restructured(self) -> str | None:
        if (said := super().restructured()) is not None:
            return said
        for each, before in self._known:
            now = each.holder.get(each.key)
            if now is None or _type(now) != before:
                return f"weight {each.name} has another type"
        self._lying = self._addresses()
        return None

    def _addresses(self) -> list[int]:
        return list(map(_ADDRESS, self._read()))


class _Weights:
    """The weights that a program reads, and the numbers of batches of which statistics were
    taken."""

    def __init__(self, held: list[Held], batches: list[Held]) -> None:
        every = [(each, each.tensor) for each in (*held, *batches)]
        #: PyTorch does not count the writes to tensors of inference mode.
        self._counted = [tensor for _, tensor in every if not tensor.is_inference()]
        self._versions = list(map(_VERSION, self._counted))
        self._tensors = [each.tensor for each in held]
        self._addresses = array("Q", map(_ADDRESS, self._tensors))
        #: Those of the memories that were freed: PyTorch has one Python object for each.
        self._freed: list[Any] = []
        self._seen = [
            (
                *(each, tensor, None if tensor.is_inference() else tensor._version),
                *(tensor.data_ptr(), weakref.ref(tensor.untyped_storage(), self._freed.append)),
            )
            for each, tensor in every
        ]
        self._types = [(each, _type(each.tensor)) for each in held]

    def are_the_same(self) -> bool:
        """Whether these tensors are as they were; whether modules hold them is not looked at."""
        return (
            list(map(_VERSION, self._counted)) == self._versions
            and array("Q", map(_ADDRESS, self._tensors)) == self._addresses
            and not self._freed
        )

    def changed(self) -> str | None:
        for each, tensor, version, address, memory in self._seen:
            if (
                each.holder.get(each.key) is not tensor
                or (version is not None and tensor._version != version)
                or tensor.data_ptr() != address
                or memory() is None
            ):
                return each.name
        return None

    def refitted(self) -> str | None:
        for each, before in self._types:
            now = each.holder.get(each.key)
            if now is None or _type(now) != before:
                return each.name
        return None


class _Entries:
    """What the dicts of modules hold.  What is found to be another are modules, and weights beside
    those that a program reads and that have just one name."""

    def __init__(self, owners: list[_Owner], held: list[Held], batches: list[Held]) -> None:
        tensors = [
            (f"{path}.{key}".lstrip("."), holder, key, holder[key])
            for path, owner in owners
            for holder in (owner._parameters, owner._buffers)
            for key in holder
        ]
        names = Counter(id(tensor) for *_, tensor in tensors)
        alone = {(id(each.holder), each.key) for each in held if names[id(each.tensor)] == 1}
        self._tensors = [each for each in tensors if (id(each[1]), each[2]) not in alone]
        # PyTorch's own layers look for nothing that they do not have from the beginning.
        self._holders = [
            (path, holder, list(holder))
            for path, owner in owners
            for holder in (owner._parameters, owner._buffers, owner._modules)
            if holder or not _is_layer(owner)
        ]
        self._modules = [
            (path, owner._modules, list(owner._modules.values())) for path, owner in owners
        ]
        holders = {id(each.holder): each.holder for each in (*held, *batches)}
        holders.update((id(holder), holder) for _, holder, _ in self._holders)
        self._empty = [holder for holder in holders.values() if not holder]
        self._views = [holder.values() for holder in holders.values() if holder]
        self._objects = [*chain.from_iterable(self._views), _END]

    def are_the_same(self) -> bool:
        found = chain(chain.from_iterable(self._views), (_END,))
        return all(map(is_, found, self._objects)) and not any(self._empty)

    def changed(self) -> str | None:
        for path, holder, modules in self._modules:
            if len(holder) == len(modules) and not all(map(is_, holder.values(), modules)):
                return f"a module of {path or 'the network'} was replaced"
        for name, holder, key, tensor in self._tensors:
            if holder.get(key) is not tensor:
                return f"weight {name}, which has or had another name or no use, was replaced"
        for path, holder, keys in self._holders:
            if list(holder) != keys:
                return f"weights or modules of {path or 'the network'} were added or removed"
        return None


class _Attributes:
    """The attributes of modules, but those of PyTorch's that say a program nothing."""

    def __init__(self, owners: list[_Owner]) -> None:
        self._seen = []
        self._getters = []
        getters: dict[Any, Any] = {}  # one for all modules of a class, so that the caches hold it
        for path, owner in owners:
            own = vars(owner)
            names = [
                name
                for name, value in own.items()
                if name not in OF_MODULES or name == "training" or (name in _HOLDERS and value)
            ]
            names += ["_modules"] * (2 - len(names))  # of fewer a getter gives no tuple
            get = itemgetter(*names)
            self._getters.append(getters.setdefault(tuple(names), get))
            self._seen.append((path, own, [(name, own[name]) for name in names], len(own)))
        self._dicts = [own for _, own, *_ in self._seen]
        self._counts = list(map(len, self._dicts))
        self._values = [value for *_, found, _ in self._seen for _, value in found]

    def are_the_same(self) -> bool:
        """Whether they are the same objects."""
        found = chain.from_iterable(map(call, self._getters, self._dicts))
        try:
            is_same = all(map(is_, found, self._values))
        except KeyError:
            return False
        return is_same and list(map(len, self._dicts)) == self._counts

    def changed(self) -> str | None:
        values = []
        for path, own, found, count in self._seen:
            for name, before in found:
                value = own.get(name, _END)
                if not _is_equal(value, before):
                    return f"attribute {f'{path}.{name}'.lstrip('.')} changed"
                values.append(value)
            if len(own) != count:
                return f"an attribute of {path or 'the network'} was added"
        self._values = values  # equal ones in their place are not looked at again
        return None


class _Hooks:
    """The hooks of modules.  PyTorch counts all that are registered anywhere, so that those of
    modules without any need not be looked at."""

    def __init__(self, owners: Iterable[_Owner], opaque: Iterable[nn.Module]) -> None:
        self._registered = RemovableHandle.next_id
        looked_at = [(path, vars(owner), name) for path, owner in owners for name in _EVERY_HOOK]
        # More hooks make no difference to these.
        looked_at += [
            ("a module that is called as it is", vars(each), name)
            for each in opaque
            for name in _EVERY_HOOK
            if vars(each).get(name)
        ]
        self._found = [
            (path, own, name, own[name], list(own[name].items())) for path, own, name in looked_at
        ]
        self._present = [(found, len(hooks)) for *_, found, hooks in self._found if hooks]

    def changed(self) -> str | None:
        registered = RemovableHandle.next_id
        if registered == self._registered and all(len(f) == count for f, count in self._present):
            return None
        for path, own, name, found, hooks in self._found:
            if own[name] is not found or list(found.items()) != hooks:
                return f"a hook of {path} was registered or removed"
        self._registered = registered
        return None


def _captured(root: nn.Module, path: str, opaque: set[int], seen: set[int]) -> Iterator[_Owner]:
    """The modules that a program was captured of, each once, and their paths."""
    if isinstance(root, StandsFor):
        root = root.original
    if id(root) in opaque or id(root) in seen or is_scripted(root):
        return
    seen.add(id(root))
    yield path, root
    for name, module in root._modules.items():
        if module is not None:
            yield from _captured(module, f"{path}.{name}".lstrip("."), opaque, seen)


def _batches(owners: Iterable[_Owner]) -> Iterator[Held]:
    """The numbers of batches of which modules took their statistics."""
    for path, owner in owners:
        if isinstance(owner, BatchNorm) and owner.num_batches_tracked is not None:
            yield Held(owner._buffers, BATCHES, f"{path}.{BATCHES}".lstrip("."))


def _batches_of(statistics: Iterable[Held]) -> list[Held]:
    """The numbers of batches of which these statistics were taken, where modules count them: they
    are looked for among all modules that there are, as nobody tells whose the statistics are."""
    names = {id(each.tensor): each.name for each in statistics}
    found = []
    for each in gc.get_objects() if names else ():
        if issubclass(type(each), BatchNorm):
            buffers = vars(each).get("_buffers", {})
            name = names.get(id(buffers.get("running_mean")))
            if name is not None and buffers.get(BATCHES) is not None:
                found.append(Held(buffers, BATCHES, f"{name.rpartition('.')[0]}.{BATCHES}"))
    return found


def _is_equal(value: Any, before: Any) -> bool:
    """Whether an attribute is the same object, or an equal number or text."""
    if value is before:
        return True
    return type(value) is type(before) and _is_plain(value) and bool(value == before)


def _is_plain(value: Any) -> bool:
    if type(value) is tuple:
        return all(map(_is_plain, value))
    return value is None or type(value) in PLAIN


def _is_layer(module: nn.Module) -> bool:
    """Whether it is one of PyTorch's that are no containers."""
    kind = type(module).__module__
    return kind.startswith("torch.nn.modules.") and not kind.endswith(".container")


def _type(tensor: Any) -> Any:
    return (tensor.shape, tensor.dtype, tensor.device, computes_its_own_way(tensor))
