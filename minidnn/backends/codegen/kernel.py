"""The text of a kernel, its name, and which kernels are compiled together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

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


@lru_cache(2048)
def shared_function(kind: str, text: str, *constants: object) -> tuple[str, str]:
    """The name of a function that kernels share, and its text, in which ``<name>`` stands for it.

    ``constants`` says which arguments are numbers in its calls: a compiler puts them into the
    function, and what it makes of a kernel should not depend on the others in the same file.
    """
    name = f"{kind}_{digest(text, *constants)[:20]}"
    return name, text.replace("<name>", name)


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
    shared: list[set[str]] = [set() for _ in range(count)]
    lengths = [0] * count

    def length_with(source: KernelSource, group: int) -> int:
        added = (len(piece) for piece in source.shared if piece not in shared[group])
        return lengths[group] + len(source.text) + sum(added)

    def length_alone(source: KernelSource) -> int:
        return len(source.text) + sum(map(len, source.shared))

    for source in sorted(sources, key=lambda s: (-length_alone(s), s.name)):
        shortest = min(range(count), key=lambda group: length_with(source, group))
        lengths[shortest] = length_with(source, shortest)
        groups[shortest].append(source)
        shared[shortest].update(source.shared)
    return groups
