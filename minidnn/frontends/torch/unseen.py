"""Running a network so that nobody sees that it ran."""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from minidnn._torch_internals import pytree
from minidnn.frontends.torch.opaque import NotOneOperation
from minidnn.frontends.torch.outside import Outside, nothing_kept
from minidnn.frontends.torch.reach import Place
from minidnn.frontends.torch.replica import replica
from minidnn.frontends.torch.state import ModuleState, unchanged


def unseen(
    root: nn.Module, work: Callable[[nn.Module, Outside], Any], replicates: bool = True
) -> Any:
    """What ``work`` gives, which runs the network that it is given, on copies of arguments; and may
    ask what was written to beyond its modules.  Afterwards all is as it was.

    That is done to a replica, as other threads may call the network.  But that may refer to itself
    where a replica cannot: if it fails, or with ``replicates`` False, it is done to the network
    itself.
    """
    return contextvars.copy_context().run(_unseen, root, work, replicates)


def _unseen(root: nn.Module, work: Callable[[nn.Module, Outside], Any], replicates: bool) -> Any:
    made = replica(root, with_buffers=True) if replicates else root
    while True:
        outside = Outside(root)
        with nothing_kept(outside, made), unchanged(made), outside.printed.counted():
            try:
                return work(made, outside)
            except NotOneOperation:
                raise
            except Exception:
                if made is root:
                    raise
            finally:
                outside.restore()
        made = root


@dataclass(frozen=True)
class Changing:
    """What a call of a network changes, so that no program of a part of it may have it in it.

    Attributes:
        places: what is beyond the network's modules, by key.
        attributes: the names of modules' attributes, by the modules' identity.
    """

    places: Mapping[Any, Place] = field(default_factory=dict)
    attributes: Mapping[int, Mapping[str, None]] = field(default_factory=dict)

    def also(self, other: Changing) -> Changing:
        """What is in either."""
        attributes = {
            key: {**self.attributes.get(key, {}), **other.attributes.get(key, {})}
            for key in {**self.attributes, **other.attributes}
        }
        return Changing({**self.places, **other.places}, attributes)


NOTHING = Changing()


def changing(root: nn.Module, args: Any, kwargs: Any) -> Changing:
    """What a call with these arguments changes, which is tried on copies, with gradients if they
    are on: code may register hooks on what requires one."""

    def work(subject: nn.Module, outside: Outside) -> Changing:
        state = ModuleState(subject)
        given = pytree.tree_map_only(torch.Tensor, torch.clone, (args, kwargs))
        subject(*given[0], **given[1])
        places = outside.changed()
        found: dict[int, dict[str, None]] = {}
        for path, names in state.changed(state).items():
            found.setdefault(id(root.get_submodule(path)), {}).update(names)
        for path, others in outside.attributes(places):
            found.setdefault(id(root.get_submodule(path)), {}).update(dict.fromkeys(others))
        return Changing(places, found)

    made: Changing = unseen(root, work)
    return made
