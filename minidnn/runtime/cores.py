"""The resources of this process: how many cores and how much memory it may use."""

from __future__ import annotations

import contextlib
import math
import os
import sys
from functools import cache
from pathlib import Path

STATM = Path("/proc/self/statm")


def usable_memory() -> int:
    """Bytes of memory that this process may use: those of the machine, or fewer where a control
    group or a limit on the address space (RLIMIT_AS, less what is in use) grants less; more than
    any machine has where the system reports nothing."""
    address_space = _address_space()
    return granted_memory() if address_space is None else min(address_space, granted_memory())


@cache
def granted_memory() -> int:
    """Bytes of the machine's memory, or fewer where control groups grant less, as of the first
    call."""
    limits = [sys.maxsize]
    with contextlib.suppress(AttributeError, OSError, ValueError):
        limits.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    for folder in control_groups("memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):  # of version 2, and of version 1
            with contextlib.suppress(OSError, ValueError):  # there is none, or it says "max"
                limits.append(int((folder / name).read_text()))
    return min(limits)


def _address_space() -> int | None:
    """Bytes that a limit on the address space leaves; None if there is no limit."""
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


CGROUP = Path("/sys/fs/cgroup")
SELF = Path("/proc/self/cgroup")


def usable_cores() -> int:
    """Cores of the affinity mask, or fewer when a cgroup grants less processor time (at least 1).

    A quota of 1.5 processors counts as 2: one more thread costs less than half a core unused.
    """
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    quota = _quota()
    return max(1, cores if quota is None else min(cores, math.ceil(quota)))


def _quota() -> float | None:
    """Processors granted by the tightest cgroup on the way up, or None without a limit."""
    limits = []
    for folder in control_groups("cpu"):
        try:
            granted, period = (folder / "cpu.max").read_text().split()  # version 2
            if granted != "max":
                limits.append(int(granted) / int(period))
        except (OSError, ValueError):
            pass
        try:
            granted = (folder / "cpu.cfs_quota_us").read_text()  # version 1
            if int(granted) > 0:
                limits.append(int(granted) / int((folder / "cpu.cfs_period_us").read_text()))
        except (OSError, ValueError):
            pass
    return min(limits) if limits else None


def control_groups(controller: str) -> list[Path]:
    """The folders of the control groups of this process that limit "cpu" or "memory"; some may not
    be there."""
    folders = [CGROUP, CGROUP / controller]
    try:
        lines = SELF.read_text().splitlines()
    except OSError:
        return folders
    for line in lines:
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        base = CGROUP / controller if controller in controllers.split(",") else CGROUP
        if controllers and base == CGROUP:
            continue
        folder = base / path.lstrip("/")
        folders += [folder, *[p for p in folder.parents if p.is_relative_to(base)]]
    return list(dict.fromkeys(folders))
