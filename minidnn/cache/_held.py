"""Locks on files, which end with the process that took them."""

from __future__ import annotations

import os
import sys

if sys.platform != "win32":
    import fcntl

_descriptors: set[int] = set()


def try_lock(descriptor: int) -> bool | None:
    """Takes the lock of an open file or folder if nobody has it; None where there are no locks.

    A child of a fork gives its copy of the descriptor up, else the lock would last as long as the
    child.
    """
    if sys.platform == "win32":
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        return None
    _descriptors.add(descriptor)
    return True


def release(descriptor: int) -> None:
    """Gives back the lock that :func:`try_lock` took in this process, and closes the file."""
    if sys.platform != "win32" and descriptor in _descriptors:
        _descriptors.discard(descriptor)
        # Closing alone would not release it if a fork has copied the descriptor just now.
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def _forget() -> None:
    for descriptor in _descriptors:
        os.close(descriptor)
    _descriptors.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
