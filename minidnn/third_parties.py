"""Backends and front ends that other distributions add by entry points, and their errors."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import Any

from minidnn.errors import DeviceError

BACKENDS = "minidnn.backends"
FRONTENDS = "minidnn.frontends"


def entries(group: str) -> list[EntryPoint]:
    """Returns the entry points of a group, sorted by name.  None of them is imported."""
    return sorted(entry_points(group=group), key=lambda entry: entry.name)


def described(entry: EntryPoint) -> str:
    """Describes an entry point and its distribution, for messages."""
    name, version = (entry.dist.name, entry.dist.version) if entry.dist else ("something", "")
    return f"{entry.name} = {entry.value} of {name} {version}".rstrip()


def make(entry: EntryPoint, kind: Any) -> Any:
    """Calls an entry point's function, which returns an object that implements a runtime protocol.

    DeviceError that names the entry point and its distribution for whatever goes wrong there.
    """
    try:
        made = entry.load()()
        complete = isinstance(made, kind)
    except Exception as error:  # whatever is raised there
        raise broken(entry, error) from error
    if not complete:
        raise DeviceError(
            f"entry point {described(entry)} ({entry.group}) gives a {type(made).__name__}, which "
            f"lacks something of a {kind.__name__}"
        )
    return made


def broken(entry: EntryPoint, error: Exception) -> DeviceError:
    """Makes the error that names the distribution whose code raised."""
    return DeviceError(
        f"entry point {described(entry)} ({entry.group}) fails: {type(error).__name__}: "
        f"{error!s:.500}"
    )
