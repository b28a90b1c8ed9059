"""Noticing that weights were changed after they were compiled in.

PyTorch counts the writes to a tensor, so nothing has to be compared: a weight is as it was if the
module holds the same tensor under that name, its count is the same and so is its address, and the
memory there was not freed meanwhile (it may have become another's ``.data``, and this one's).  What
that cannot see is a write past PyTorch (to ``tensor.data``, or to a NumPy view).  PyTorch does not
count what its batch normalization writes in training, either: of modules the number of batches is
looked at, which it does count, elsewhere the statistics themselves, where they lie on the CPU.

A captured program knows a tensor by one name, and has modules and their attributes in it as they
were.  So all that modules hold is looked at, under every name: where a tied weight is untied, a
bias or a module comes or goes, or an attribute is replaced, the program is captured anew.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain
from operator import call, getitem, is_, itemgetter
from typing import Any

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.hooks import RemovableHandle

from minidnn.acceleration.glance import Glance
from minidnn.acceleration.part import computes_its_own_way
from minidnn.frontends.torch.capture import Held
from minidnn.frontends.torch.hooks import HOOKS
from minidnn.frontends.torch.scripted import is_scripted
from minidnn.frontends.torch.state import OF_MODULES, PLAIN

_END = object()
#: Of what every module has, where it holds weights and modules.
_HOLDERS = ("_parameters", "_buffers", "_modules")
_BATCHES = "num_batches_tracked"


class StandsFor(nn.Module):
    """A module that stands for another, whose parameters, buffers and children it has.

    Attributes:
        original: that module.
    """

    original: nn.Module


class Watch:
    """The weights of a program as they were when it was compiled.

    ``root``: the module that was captured; ``opaque``: those in it that are called as they are, so
    that what they hold may change.  ``native``: whether to look with the CPU engine's C, which must
    be there.  ``statistics``: those of the weights that are statistics of modules that are not
    known.
    """

    def __init__(
        self,
        held: Iterable[Held],
        root: torch.nn.Module | None = None,
        native: bool = False,
        opaque: Iterable[nn.Module] = (),
        statistics: Iterable[Held] = (),
    ) -> None:
        self._held = list(held)
        statistics = list(statistics)
        self._counters = _counters(statistics)
        counted = {id(t) for each in self._counters for t in each.holder.values()}
        self._statistics = [each for each in statistics if id(each.tensor) not in counted]
        self._native = native
        self._opaque = list(opaque)
        known = {id(module) for module in self._opaque}
        #: The modules whose code is in the program, and their paths.
        self._owners = [] if root is None else list(_captured(root, "", known, set()))
        self._doubted = False
        self.renew()

    def renew(self) -> None:
        """Takes the weights as they are now for unchanged."""
        tensors = [(each, each.tensor) for each in self._held]
        batches = [(each, each.tensor) for each in self._batches()]
        self._contents = _Contents(self._statistics)
        self._seen = [
            (each.holder, each.key, tensor, tensor._version, tensor.data_ptr(), _memory(tensor))
            for each, tensor in (*tensors, *batches)
            if not tensor.is_inference()
        ]
        # PyTorch does not count the writes to tensors of inference mode.
        self._uncounted = [
            (each.holder, each.key, tensor, tensor.data_ptr(), _memory(tensor))
            for each, tensor in tensors
            if tensor.is_inference()
        ]
        self._types = [_type(tensor) for _, tensor in tensors]
        self._modules = [
            (owner._modules, name, module, module.training)
            for _, owner in self._owners
            for name, module in owner._modules.items()
            if module is not None
        ]
        self._others = self._not_compiled_in()
        self._keys = [(path, holder, list(holder)) for path, holder in self._holders()]
        self.attributes = _Attributes(self._owners)
        # The network's own run around the program.
        self._hooks = _Hooks(self._owners[1:], self._opaque)
        self._glance = Glance(
            self.dicts,
            [tensor for _, _, tensor, *_ in self._seen],
            [tensor for _, _, tensor, *_ in self._uncounted],
            [module for _, _, module, _ in self._modules],
            self.attributes,
            self._native,
        )

    def _holders(self) -> Iterator[tuple[str, Any]]:
        """The dicts in which modules hold weights and modules.  Those of PyTorch's modules look for
        nothing that they do not have from the beginning."""
        for path, owner in self._owners:
            for holder in (owner._parameters, owner._buffers, owner._modules):
                if holder or not _is_layer(owner):
                    yield path, holder

    def _batches(self) -> Iterator[Held]:
        """The numbers of batches of which statistics were taken."""
        for path, owner in self._owners:
            if isinstance(owner, _BatchNorm) and owner.num_batches_tracked is not None:
                yield Held(owner._buffers, _BATCHES, f"{path}.{_BATCHES}".lstrip("."))
        yield from self._counters

    def _not_compiled_in(self) -> list[tuple[str, Any, Any, Any]]:
        """What is held besides the weights that the program reads and that have just one name."""
        entries = [
            (f"{path}.{key}".lstrip("."), holder, key, holder[key])
            for path, owner in self._owners
            for holder in (owner._parameters, owner._buffers)
            for key in holder
        ]
        names = Counter(id(tensor) for *_, tensor in entries)
        alone = {(id(each.holder), each.key) for each in self._held if names[id(each.tensor)] == 1}
        return [entry for entry in entries if (id(entry[1]), entry[2]) not in alone]

    @property
    def dicts(self) -> list[Any]:
        """All dicts in which something is held that is looked at."""
        held = {id(each.holder): each.holder for each in self._held}
        held.update((id(each.holder), each.holder) for each in self._counters)
        held.update((id(holder), holder) for _, holder, _ in self._keys)
        return list(held.values())

    def doubt(self) -> None:
        """From now on nothing is as it was."""
        self._doubted = True

    @property
    def uncounted(self) -> int:
        """Of how many weights writes in place are not noticed."""
        return len(self._uncounted)

    def is_as_it_was(self) -> bool:
        """Whether weights and modules are those that were compiled in."""
        if (
            self._glance.is_as_it_was()
            and not self._doubted
            and self._hooks.are_the_same()
            and self._contents.changed() is None
        ):
            return True
        return self.restructured() is None and self.changed() is None

    def changed(self) -> str | None:
        """The name of a weight that is not what it was, or None."""
        for holder, key, tensor, version, address, memory in self._seen:
            if holder.get(key) is not tensor or tensor._version != version:
                return self._name(holder, key)
            if tensor.data_ptr() != address or memory.expired():
                return self._name(holder, key)
        for holder, key, tensor, address, memory in self._uncounted:
            if holder.get(key) is not tensor:
                return self._name(holder, key)
            if tensor.data_ptr() != address or memory.expired():
                return self._name(holder, key)
        return self._contents.changed()

    def _name(self, holder: Any, key: Any) -> str:
        looked_at = chain(self._held, self._batches())
        return next(e.name for e in looked_at if e.holder is holder and e.key == key)

    def refitted(self) -> str | None:
        """The name of a weight that now has another type, so that nothing fits it."""
        for each, before in zip(self._held, self._types, strict=True):
            now = each.holder.get(each.key)
            if now is None or _type(now) != before:
                return each.name
        return None

    def restructured(self) -> str | None:
        """What is not as it was captured, beyond a weight's value, or None."""
        if self._doubted:
            return "refresh() was called"
        for holder, name, module, training in self._modules:
            if holder.get(name) is not module or module.training != training:
                return "a module was replaced or changed mode"
        for name, holder, key, tensor in self._others:
            if holder.get(key) is not tensor:
                return f"weight {name}, which has or had another name or no use, was replaced"
        for path, holder, keys in self._keys:
            if list(holder) != keys:
                return f"weights or modules of {path or 'the network'} were added or removed"
        return self.attributes.changed() or self._hooks.changed()


def _counters(statistics: Iterable[Held]) -> list[Held]:
    """The numbers of batches of which these statistics were taken, where modules count them: they
    are looked for among all modules that there are, as nobody tells whose the statistics are."""
    names = {id(each.tensor): each.name for each in statistics}
    found = []
    for each in gc.get_objects() if names else ():
        if issubclass(type(each), _BatchNorm):
            buffers = vars(each).get("_buffers", {})
            name = names.get(id(buffers.get("running_mean")))
            if name is not None and buffers.get(_BATCHES) is not None:
                found.append(Held(buffers, _BATCHES, f"{name.rpartition('.')[0]}.{_BATCHES}"))
    return found


class _Contents:
    """The elements of statistics, of those on the CPU."""

    def __init__(self, statistics: Iterable[Held]) -> None:
        found = [
            (each.name, memoryview(each.tensor.detach().view(torch.uint8).numpy()))
            for each in statistics
            if each.tensor.is_cpu and each.tensor.is_contiguous() and each.tensor.dim()
        ]
        self._names = [name for name, _ in found]
        self._views = [view for _, view in found]
        self._before = list(map(bytes, self._views))

    def changed(self) -> str | None:
        """The name of one that has other elements, or None."""
        now = list(map(bytes, self._views))
        if now == self._before:
            return None
        return next(n for n, a, b in zip(self._names, now, self._before, strict=True) if a != b)


class _Hooks:
    """The hooks of modules.  PyTorch counts all that are registered anywhere, so that those of
    modules without any need not be looked at."""

    def __init__(
        self, owners: Iterable[tuple[str, nn.Module]], opaque: Iterable[nn.Module]
    ) -> None:
        self._registered = RemovableHandle.next_id
        looked_at = [(path, vars(owner), name) for path, owner in owners for name in HOOKS]
        # More hooks make no difference to these.
        as_it_is = [vars(each) for each in opaque]
        looked_at += [
            ("a module that is called as it is", own, name)
            for own in as_it_is
            for name in HOOKS
            if own.get(name)
        ]
        self._found = [
            (path, own, name, own[name], list(own[name].items())) for path, own, name in looked_at
        ]
        self._present = [(found, len(hooks)) for *_, found, hooks in self._found if hooks]

    def are_the_same(self) -> bool:
        """Whether none was registered anywhere, or removed here."""
        return self._registered == RemovableHandle.next_id and not any(
            len(found) != count for found, count in self._present
        )

    def changed(self) -> str | None:
        """What was registered or removed, or None."""
        registered = RemovableHandle.next_id
        for path, own, name, found, hooks in self._found:
            if own[name] is not found or list(found.items()) != hooks:
                return f"a hook of {path} was registered or removed"
        self._registered = registered
        return None


class _Attributes:
    """The attributes of modules, but those of PyTorch's that every module has."""

    def __init__(self, owners: Iterable[tuple[str, nn.Module]]) -> None:
        owners = list(owners)
        self._found = [
            (f"{path}.{name}".lstrip("."), vars(owner), name, value)
            for path, owner in owners
            for name, value in vars(owner).items()
            if name not in OF_MODULES or name in _HOLDERS
        ]
        self._all = [
            (path, owner, type(owner), vars(owner), list(vars(owner))) for path, owner in owners
        ]
        self.owners = [owner for _, owner in owners]
        self._kinds = list(map(type, self.owners))
        #: All that modules hold, of which there may be more later, and how much each has.
        self._holders = [vars(owner) for owner in self.owners]
        self._counts = list(map(len, self._holders))
        plain: dict[int, tuple[Any, list[str]]] = {}
        others: list[tuple[Any, str, Any]] = []
        for _, of, name, value in self._found:
            if _is_plain(value):
                plain.setdefault(id(of), (of, []))[1].append(name)
            else:
                others.append((of, name, value))
        self.dicts = self._holders
        #: The dicts with numbers and strings, which C compares by dicts.
        self._plain = [of for of, _ in plain.values()]
        self._getters = [itemgetter(*names) for _, names in plain.values()]
        self._values = list(map(call, self._getters, self._plain))
        #: Of what else there is: the dicts, names and values.
        self._others = [*zip(*others, strict=True)] or [(), (), ()]

    def are_the_same(self) -> bool:
        """Whether numbers and strings are equal, and all else is the same object."""
        of, names, values = self._others
        try:
            return (
                list(map(call, self._getters, self._plain)) == self._values
                and all(map(is_, map(getitem, of, names), values))
                and all(map(is_, map(type, self.owners), self._kinds))
                and all(map(is_, map(vars, self.owners), self._holders))
                and list(map(len, self._holders)) == self._counts
            )
        except Exception:  # one is gone, or something that compares in a way of its own
            return False

    def changed(self) -> str | None:
        """What is another now, or None."""
        for name, of, key, before in self._found:
            value = of.get(key, _END)
            alike = type(value) is type(before) and _is_plain(value)
            if value is not before and not (alike and value == before):
                return f"attribute {name} changed"
        for path, owner, kind, holder, names in self._all:
            if type(owner) is not kind:
                return f"the class of {path or 'the network'} is another"
            if vars(owner) is not holder:
                return f"the attributes of {path or 'the network'} are another dict"
            for name in holder.keys() - set(names):
                return f"attribute {f'{path}.{name}'.lstrip('.')} was added"
        return None


def _is_plain(value: Any) -> bool:
    if type(value) is tuple:
        return all(map(_is_plain, value))
    return value is None or type(value) in PLAIN


def _captured(
    root: nn.Module, path: str, opaque: set[int], seen: set[int]
) -> Iterator[tuple[str, nn.Module]]:
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


def _is_layer(module: nn.Module) -> bool:
    """Whether it is one of PyTorch's that are no containers."""
    kind = type(module).__module__
    return kind.startswith("torch.nn.modules.") and not kind.endswith(".container")


def _memory(tensor: Any) -> StorageWeakRef:
    """Tells whether a tensor's memory was freed, so that its address may be another's."""
    return StorageWeakRef(tensor.untyped_storage())


def _type(tensor: Any) -> Any:
    return (tensor.shape, tensor.dtype, tensor.device, computes_its_own_way(tensor))
