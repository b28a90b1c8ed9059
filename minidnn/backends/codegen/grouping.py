"""Which kernels are compiled together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar


class _Source(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def text(self) -> str: ...


_S = TypeVar("_S", bound=_Source)


def in_groups(sources: Sequence[_S], count: int) -> list[list[_S]]:
    """Distributes kernels over ``count`` groups of about equal length: compilers that run side by
    side then end together.  Equal arguments, in any order, give equal groups in every process."""
    groups: list[list[_S]] = [[] for _ in range(count)]
    lengths = [0] * count
    for source in sorted(sources, key=lambda s: (-len(s.text), s.name)):
        shortest = lengths.index(min(lengths))
        groups[shortest].append(source)
        lengths[shortest] += len(source.text)
    return groups
