"""How much memory this process may use."""

from __future__ import annotations

import contextlib
import os
import sys
from functools import cache
from pathlib import Path

from minidnn.runtime.cores import control_groups

STATM = Path("/proc/self/statm")


def usable_memory() -> int:
    """Bytes of the machine's memory, or fewer where a control group or a limit on the address space
    (RLIMIT_AS, of which what is in use is gone) grants less; more than any machine has where the
    system says nothing."""
    left = _address_space()
    return granted_memory() if left is None else min(left, granted_memory())


@cache
def granted_memory() -> int:
    """The machine's memory, or what control groups grant, as it is when it is first asked for."""
    limits = [sys.maxsize]
    with contextlib.suppress(AttributeError, OSError, ValueError):
        limits.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    for folder in control_groups("memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):  # of version 2, and of version 1
            with contextlib.suppress(OSError, ValueError):  # there is none, or it says "max"
                limits.append(int((folder / name).read_text()))
    return min(limits)


def _address_space() -> int | None:
    """What a limit on the address space leaves; None without one."""
    try:
        import resource
    except ImportError:  # no Unix
        return None
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return None
    with contextlib.suppress(OSError, ValueError):
        limit -= int(STATM.read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    return max(0, limit)
