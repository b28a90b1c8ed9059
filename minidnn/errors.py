"""The exceptions of minidnn.

Every error that minidnn raises on purpose derives from :class:`MiniDNNError`, so that a
caller can tell a mistake in a model, a file or a machine from a bug.  A message names the
argument, its value, the node where there is one, and what would be valid.

This module imports nothing of minidnn: everything else may import it.
"""

from __future__ import annotations

import collections.abc


class MiniDNNError(Exception):
    """Base class of all errors that minidnn raises on purpose."""


class GraphError(MiniDNNError, ValueError):
    """A model or graph is malformed: wrong shapes, dtypes, arguments, names or cycles."""


class UnsupportedError(MiniDNNError, NotImplementedError):
    """What was asked for is legal, but the chosen backend or front end cannot do it."""


class CompileError(MiniDNNError, RuntimeError):
    """Generating, compiling or loading a kernel failed."""


class DeviceError(MiniDNNError, RuntimeError):
    """A device, driver or library is missing, too old or failed."""


class OutOfMemoryError(MiniDNNError, MemoryError):
    """A buffer or workspace does not fit into the memory that may be used."""


class WeightsError(MiniDNNError, ValueError):
    """A weight file is damaged, hostile, or does not match the network."""


class TrainingError(MiniDNNError, ArithmeticError):
    """Training cannot go on: its loss is not finite."""


class DownloadError(MiniDNNError, OSError):
    """A file could not be fetched, or what came is not what was announced."""


class MiniDNNWarning(UserWarning):
    """Something works, but not as well or not in the way that was asked for."""


def did_you_mean(name: object, valid: collections.abc.Iterable[str], most: int = 1) -> str:
    """What a message about an unknown name ends with: ``; did you mean 'Conv2d'?``, or nothing if
    no valid name is near.  Upper and lower case, and underscores, make no difference.

    >>> did_you_mean("Conv2D", ["Conv1d", "Conv2d", "Linear"])
    "; did you mean 'Conv2d'?"
    """
    from difflib import get_close_matches  # only a message needs it

    names = {_plain(each): each for each in valid}
    near = get_close_matches(_plain(str(name)), names, most, 0.7)
    if not near:
        return ""
    return f"; did you mean {' or '.join(repr(names[each]) for each in near)}?"


def _plain(name: str) -> str:
    return name.lower().replace("_", "")
