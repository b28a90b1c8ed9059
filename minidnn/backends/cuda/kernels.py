"""What a printer gives and a program launches: the text of a kernel and how it is started."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class KernelSource:
    """The text of one kernel, ``extern "C" __global__ void name(...)``, and what it alone uses.

    Several texts become one translation unit behind :func:`.dialect.prelude`, so names differ
    where texts do: put a digest of the text's ingredients into them.  Helper functions are
    ``static`` and carry the kernel's name.  ``specific``: it uses instructions that only this very
    architecture has ("sm_90a" for "sm_90").
    """

    name: str
    text: str
    specific: bool = False


@dataclass(frozen=True)
class Launch:
    """A kernel and its launch: blocks, threads a block, and bytes of dynamic shared memory.

    Arguments are pointers alone, in the order that the printer states; sizes stand in the text.
    More than 48 KiB of ``shared_bytes`` must be allowed to the function first
    (``CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES``).
    """

    source: KernelSource
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int = 0
