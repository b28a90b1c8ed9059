"""How many cores this process may use."""

from __future__ import annotations

import math
import os
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")
SELF = Path("/proc/self/cgroup")


def usable_cores() -> int:
    """Cores of the affinity mask, or fewer when a cgroup grants less processor time (at least 1).

    A quota of 1.5 processors counts as 2: a thread more costs less than a half core unused.
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
        here = base / path.lstrip("/")
        folders += [here, *[p for p in here.parents if p.is_relative_to(base)]]
    return list(dict.fromkeys(folders))
