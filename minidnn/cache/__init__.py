"""Files that minidnn keeps between runs: compiled kernels, measured choices, downloaded weights.

A :class:`Store` is one kind of entry.  The file of an entry is::

    <root>/<kind>/<first two digits of key>/<key>-<checksum>[-<label>]<suffix>

The checksum stands in the name, so that content and checksum appear together in one atomic
rename and the file itself is exactly what was put (it can be given to ``dlopen``).  Nothing is
locked: writers use a temporary file of their own, readers check what they read, and whoever
removes a file accepts that somebody else was faster.  Files are not synced to the disk; one that
a power failure truncated fails its check and is rebuilt.

Environment: ``MINIDNN_CACHE`` is the folder; ``MINIDNN_NO_COMPILE=1`` makes
:func:`building_allowed` fail, so that a test or a service can prove that nothing is compiled.

Standard library only.
"""

from ._files import Entry
from ._folders import root
from ._fork_lock import ForkLock
from ._keys import digest
from ._store import Store
from ._switch import building_allowed, forbid_builds
from ._whole import Usage, clear, entries, usage

__all__ = [
    "Entry",
    "ForkLock",
    "Store",
    "Usage",
    "building_allowed",
    "clear",
    "digest",
    "entries",
    "forbid_builds",
    "root",
    "usage",
]
