"""Lists and dicts among a call's arguments, which a program is given the leaves of."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch import nn

from minidnn._torch_internals import pytree
from minidnn.frontends.torch.replica import holding


class Arguments:
    """The arguments of a call as they are at its beginning."""

    def __init__(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self._given = (args, kwargs)
        self.leaves, self.arranged = pytree.tree_flatten(self._given)

    def have_changed(self) -> bool:
        """Whether a list or dict among them is not what it was."""
        leaves, arranged = pytree.tree_flatten(self._given)
        return arranged != self.arranged or any(
            now is not before for now, before in zip(leaves, self.leaves, strict=True)
        )


@contextmanager
def changed_in_calls(module: nn.Module) -> Iterator[Callable[[], bool]]:
    """Gives what says whether a call of the module within has changed its arguments."""
    changed: list[bool] = []
    forward = module.forward

    @functools.wraps(forward)
    def observing(*args: Any, **kwargs: Any) -> Any:
        arguments = Arguments(args, kwargs)
        result = forward(*args, **kwargs)
        changed.append(arguments.have_changed())
        return result

    with holding(module, forward=observing):
        yield lambda: any(changed)
