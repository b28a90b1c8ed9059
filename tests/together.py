"""Tests whose kernels are compiled together, before the first of them runs.

Starting ISPC takes longer than compiling several small kernels does.  Tests marked ``together`` run
as far as they ask for kernels that are not there, all of a file; what they asked for is compiled at
once, and then they run as if nothing had been.  ``together(2)``: they ask twice, one after the
other.  They leave nothing behind where they ask, and their cache is not theirs alone.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence

import pytest
from _pytest.outcomes import Failed
from _pytest.runner import runtestprotocol

#: Where a test has its kernels compiled, and by what.
WHERE = ("MINIDNN_CACHE", "MINIDNN_ISPC")


class Asked(Failed):
    """Ends a test that asks for kernels; nothing but pytest catches it."""


def prepare(item: pytest.Item) -> None:
    """Compiles what the marked tests of a file ask for, if this is the first of them."""
    if not _turns(item):
        return
    others = [other for other in item.session.items if other.path == item.path]
    asking = [other for other in others if _turns(other)]
    if asking[0] is item:
        for turn in range(max(map(_turns, asking))):
            asking = _compile([other for other in asking if turn < _turns(other)], others)


def _turns(item: pytest.Item) -> int:
    """How often a test asks."""
    mark = item.get_closest_marker("together")
    return 0 if mark is None else mark.args[0] if mark.args else 1


def _compile(items: Sequence[pytest.Item], others: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Those of the tests that have asked, others being all of their file."""
    from minidnn.backends.codegen.kernel import KernelSource
    from minidnn.backends.cpu.compilers import kernels
    from minidnn.backends.cpu.isa import Isa
    from minidnn.errors import MiniDNNError
    from tests.cpu.warming import compile_together

    asked: dict[tuple[Isa, tuple[str | None, ...]], list[KernelSource]] = {}
    asking = []

    def ask(sources: Sequence[KernelSource], head: str, isa: Isa, jobs: int) -> None:
        asked.setdefault((isa, tuple(map(os.environ.get, WHERE))), []).extend(sources)
        asking.append(item)
        raise Asked("it asks for kernels", pytrace=False)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "group", ask)
        for item in items:
            # What a file's tests share stays, as another one is said to follow.
            after = next((other for other in others if other is not item), None)
            runtestprotocol(item, log=False, nextitem=after)
    for (isa, where), sources in asked.items():
        # What is wrong here is wrong when a test asks again, and then it fails.
        with pytest.MonkeyPatch.context() as patch, contextlib.suppress(MiniDNNError):
            for name, value in zip(WHERE, where, strict=True):
                if value is not None:
                    patch.setenv(name, value)
            compile_together(sources, isa)
    return list(dict.fromkeys(asking))
