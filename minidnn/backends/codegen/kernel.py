"""Kernel sources: text, name, and the distribution of kernels over compilation units.

A kernel is named after a digest of its text, so that equal kernels of several networks share one
compiled function in the cache.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from ...cache import digest


@dataclass(frozen=True)
class KernelSource:
    """The text of one kernel, with the functions that it uses.

    A compilation unit is a prelude and the texts of several kernels, so kernels of different text
    need different names.  Helper functions are ``static``; one that a single kernel uses carries
    the kernel's name.

    Attributes:
        name: the kernel's symbol in compiled code.
        text: its definition, with the helper functions that it alone uses.
        specific: whether it needs an architecture-specific target ("sm_90a" instead of "sm_90").
        beside: pieces of C that are compiled into the same unit, each once.
        shared: functions that other kernels use as well; a unit has each of them once, before its
            kernels, and equal names mean equal texts.
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
        """Returns a kernel named after ``kind`` and a digest of its text, in which ``mark`` stands
        for the name."""
        name = f"{kind}_{digest(text, *beside, *shared)[:20]}"
        return cls(name, text.replace(mark, name), specific, beside, shared)


@lru_cache(2048)
def shared_function(kind: str, text: str, *constants: object) -> tuple[str, str]:
    """Returns the name of a function that several kernels call, and its text with that name in
    place of ``<name>``.

    ``constants`` are the arguments that are literals in the calls.  They are part of the name since
    a compiler specializes the function for them: the code of a kernel must not depend on the other
    kernels of its unit.
    """
    name = f"{kind}_{digest(text, *constants)[:20]}"
    return name, text.replace("<name>", name)


def by_name(sources: Iterable[KernelSource]) -> dict[str, KernelSource]:
    """Returns each kernel once, by its name; ValueError if two of one name have different texts."""
    unique: dict[str, KernelSource] = {}
    for source in sources:
        if unique.setdefault(source.name, source).text != source.text:
            raise ValueError(f"compile_kernels: two kernels named {source.name} differ")
    return unique


def in_groups(sources: Sequence[KernelSource], count: int) -> list[list[KernelSource]]:
    """Distributes kernels over ``count`` groups of about equal source length, so that compilers
    that run in parallel end together.  Equal kernels, in any order, give equal groups in every
    process."""
    groups: list[list[KernelSource]] = [[] for _ in range(count)]
    shared: list[set[str]] = [set() for _ in range(count)]
    lengths = [0] * count

    def length_with(source: KernelSource, group: int) -> int:
        new_lengths = (len(piece) for piece in source.shared if piece not in shared[group])
        return lengths[group] + len(source.text) + sum(new_lengths)

    def length_alone(source: KernelSource) -> int:
        return len(source.text) + sum(map(len, source.shared))

    for source in sorted(sources, key=lambda s: (-length_alone(s), s.name)):
        shortest = min(range(count), key=lambda group: length_with(source, group))
        lengths[shortest] = length_with(source, shortest)
        groups[shortest].append(source)
        shared[shortest].update(source.shared)
    return groups
