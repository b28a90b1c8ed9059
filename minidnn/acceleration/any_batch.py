"""A module for any number of rows, as ``md.optimize(dynamic=)`` asks for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn

from minidnn._torch_internals import pytree
from minidnn.acceleration.engine import engine_for
from minidnn.acceleration.named import (
    Named,
    NamedBatch,
    NamedProgram,
    NamedPrograms,
    another,
    rows_of,
    why_not_any_batch,
    with_rows,
)
from minidnn.acceleration.programs import describe
from minidnn.acceleration.watch import check_weights
from minidnn.dynamic.dim import Dim
from minidnn.errors import UnsupportedError
from minidnn.frontends.torch.capture import capture
from minidnn.frontends.torch.narrow import uncached
from minidnn.frontends.torch.unseen import Changing


class AnyBatch:
    """The programs of a module whose batch is named, by what else its arguments are.

    Attributes:
        dim: the batch; None if it has no name, and there are no programs.
        programs: as they were made.
    """

    def __init__(
        self, original: nn.Module, dim: Dim | None, settings: tuple[Any, ...], changing: Changing
    ) -> None:
        """settings: device, precision, strict, sizes and options of the module's."""
        self.dim = dim
        self.programs = NamedPrograms(type(original).__name__, settings[3])
        self._original = original
        self._settings = settings
        self._changing = changing

    @property
    def notes(self) -> list[str]:
        """Why arguments have no program for any number of rows."""
        return [f"note: not for any batch: {why}" for why in self.programs.refused.values()]

    def run(
        self, memory: str, leaves: Any, arranged: Any, args: Any, kwargs: Any
    ) -> tuple[bool, Any]:
        """Whether there is a program for such arguments, and what it gives."""
        found = self._found(memory, leaves, args, kwargs)
        if found is None:
            return False, None
        return self.programs.try_run(leaves, found[0], (arranged, memory), found[1])

    def prepare(self, memory: str, leaves: Any, arranged: Any, args: Any, kwargs: Any) -> bool:
        """Whether there is a program for such arguments, which is made if there is none."""
        found = self._found(memory, leaves, args, kwargs)
        if found is None:
            return False
        with torch.no_grad():
            return self.programs.prepare(leaves, found[0], (arranged, memory), found[1])

    def _found(
        self, memory: str, leaves: Any, args: Any, kwargs: Any
    ) -> tuple[Named, Callable[[], NamedProgram]] | None:
        """Which arguments have the batch, and what makes the program; None if none has."""
        found = None if self.dim is None else rows_of(leaves, self.dim)
        if self.dim is None or found is None:
            return None
        return found[0], partial(self._make, self.dim, memory, leaves, *found, args, kwargs)

    def _make(
        self,
        dim: Dim,
        memory: str,
        leaves: Any,
        named: Named,
        rows: int,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> NamedProgram:
        """UnsupportedError if there is no program for any number of rows."""
        device, precision, strict, sizes, options = self._settings
        if (reason := why_not_any_batch(self._original, args, kwargs, dim)) is not None:
            raise UnsupportedError(reason)
        _, spec = pytree.tree_flatten((args, kwargs))
        others = pytree.tree_unflatten(with_rows(leaves, named, another(rows, dim)), spec)
        hows: dict[str, Any] = {"runs_hooks": True, "changing": self._changing}
        with uncached(memory):
            captured = capture(self._original, args, kwargs, **hows)
            other = capture(self._original, *others, **hows)
        name = type(self._original).__name__
        check_weights(captured, name)
        engine = engine_for(memory, device, precision, options)
        given = f"any {dim.name} of {describe(leaves)}"
        batch = NamedBatch(dim, named, other, sizes)
        return NamedProgram(captured, batch, engine, name, given, strict, self._original)
