"""The text of a kernel, its name, and which kernels are compiled together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ...cache import digest


@dataclass(frozen=True)
class KernelSource:
    """The text of one kernel, with the functions that it uses.

    Several texts become one unit behind a prelude, so kernels of different text have different
    names.  Helper functions are ``static``.  Those that a kernel alone uses carry its name.

    Attributes:
        specific: it uses instructions that only this very architecture of a GPU has ("sm_90a" for
            "sm_90").
        beside: pieces of C that are compiled into the same unit, each once.
        shared: functions that kernels of other texts use, too: they stand in a unit before its
            kernels, each once, and equal names mean equal texts.
    """

    name: str
    text: str
    specific: bool = False
    beside: tuple[str, ...] = ()
    shared: tuple[str, ...] = ()

    @classmethod
    def named(
        cls,
        kind: str,
        text: str,
        mark: str = "@",
        specific: bool = False,
        beside: tuple[str, ...] = (),
        shared: tuple[str, ...] = (),
    ) -> KernelSource:
        """A kernel named after its text, in which ``mark`` stands for the name."""
        name = f"{kind}_{digest(text, *beside, *shared)[:20]}"
        return cls(name, text.replace(mark, name), specific, beside, shared)


def by_name(sources: Iterable[KernelSource]) -> dict[str, KernelSource]:
    """Each kernel once; ValueError if two of one name have different texts."""
    unique: dict[str, KernelSource] = {}
    for source in sources:
        if unique.setdefault(source.name, source).text != source.text:
            raise ValueError(f"compile_kernels: two kernels named {source.name} differ")
    return unique


def in_groups(sources: Sequence[KernelSource], count: int) -> list[list[KernelSource]]:
    """Distributes kernels over ``count`` groups of about equal length: compilers that run side by
    side then end together.  Equal arguments, in any order, give equal groups in every process."""
    groups: list[list[KernelSource]] = [[] for _ in range(count)]
    lengths = [0] * count
    for source in sorted(sources, key=lambda s: (-len(s.text), s.name)):
        shortest = lengths.index(min(lengths))
        groups[shortest].append(source)
        lengths[shortest] += len(source.text)
    return groups
