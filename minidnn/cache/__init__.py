"""The on-disk cache: compiled kernels, measured choices, downloaded weights, kept between runs.

A :class:`CacheStore` holds the entries of one kind.  The file of an entry is::

    <root>/<kind>/<first two digits of key>/<key>-<checksum>[-<label>]<suffix>

The checksum is in the name, so that content and checksum appear together in one atomic rename and
the file has exactly the bytes that were put (``dlopen`` can load it).  Entries are not locked:
writers use a temporary file of their own, readers verify the checksum, and removing a file
tolerates that another process was faster.  Folders are made for this user alone, and files that
others could have written are not read (:mod:`._trust`).  Files are not synced to the disk; one
that a power failure truncated fails its check and is rebuilt.

Environment: ``MINIDNN_CACHE`` is the root folder; ``MINIDNN_NO_COMPILE=1`` makes
:func:`building_allowed` raise, so that a test or a service can prove that nothing is compiled.

Standard library only.
"""

from ._files import Entry, Usage, clear, entries, usage
from ._folders import root, temporary_folder, why_not_used
from ._locks import LockFile, building_allowed, building_forbidden, forbid_builds, one_at_a_time
from ._store import CacheStore, digest
from ._trust import UntrustedError, open_folder, why_any_untrusted, why_unsafe

__all__ = [
    "CacheStore",
    "Entry",
    "LockFile",
    "UntrustedError",
    "Usage",
    "building_allowed",
    "building_forbidden",
    "clear",
    "digest",
    "entries",
    "forbid_builds",
    "one_at_a_time",
    "open_folder",
    "root",
    "temporary_folder",
    "usage",
    "why_any_untrusted",
    "why_not_used",
    "why_unsafe",
]
