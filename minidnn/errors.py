"""The exceptions of minidnn.

Every error that minidnn raises on purpose derives from :class:`MiniDNNError`, so that a
caller can tell a mistake in a model, a file or a machine from a bug.  A message names the
argument, its value, the node where there is one, and what would be valid.

This module imports nothing of minidnn: everything else may import it.
"""

from __future__ import annotations

import collections.abc
import os
import sys


class MiniDNNError(Exception):
    """Base class of all errors that minidnn raises on purpose.

    >>> try:
    ...     md.compile(net, (2, 3, 32, 32), device="abacus")
    >>> except md.MiniDNNError as error:
    ...     print(error)
    """


class GraphError(MiniDNNError, ValueError):
    """A model or graph is malformed: wrong shapes, dtypes, arguments, names or cycles.

    >>> try:
    ...     md.compile(net, (2, 5, 32, 32))
    >>> except md.GraphError as error:
    ...     print(error)
    """


class UnsupportedError(MiniDNNError, NotImplementedError):
    """What was asked for is legal, but the chosen backend or front end cannot do it.

    >>> try:
    ...     md.compile(net, (2, 3, 32, 32), device="reference", precision="float8")
    >>> except md.UnsupportedError as error:
    ...     print(error)
    """


class CompileError(MiniDNNError, RuntimeError):
    """Generating, compiling or loading a kernel failed.

    >>> try:
    ...     exe = md.compile(net, (2, 3, 32, 32))
    >>> except md.CompileError as error:
    ...     print(error)
    """


class DeviceError(MiniDNNError, RuntimeError):
    """A device, driver or library is missing, too old or failed.

    >>> try:
    ...     exe = md.compile(net, (2, 3, 32, 32), device="cuda")
    >>> except md.DeviceError as error:
    ...     print(error)
    """


class OutOfMemoryError(MiniDNNError, MemoryError):
    """A buffer or workspace does not fit into the memory that may be used.

    >>> try:
    ...     md.compile(net, (2, 3, 32, 32), device="reference", memory_limit=1000)
    >>> except md.OutOfMemoryError as error:
    ...     print(error)
    """


class WeightsError(MiniDNNError, ValueError):
    """A weight file is damaged, hostile, or does not match the network.

    >>> try:
    ...     net.load_state_dict({"0.weight": np.zeros((4, 3, 3, 3), np.float32)})
    >>> except md.WeightsError as error:
    ...     print(error)
    """


class TrainingError(MiniDNNError, ArithmeticError):
    """Training cannot go on: its loss is not finite.

    >>> trainer = md.Trainer(net, (2, 3, 32, 32), md.losses.CrossEntropy(), md.optim.SGD(0.1))
    >>> try:
    ...     trainer.fit([(np.full((2, 3, 32, 32), np.nan, np.float32), np.array([3, 7]))], 1)
    >>> except md.TrainingError as error:
    ...     print(error)
    """


class DownloadError(MiniDNNError, OSError):
    """A file could not be fetched, or what came is not what was announced.

    >>> try:
    ...     weights = md.load_weights("net.safetensors")
    >>> except md.DownloadError as error:
    ...     print(error)
    """


class MiniDNNWarning(UserWarning):
    """Something works, but not as well or not in the way that was asked for.

    >>> import warnings
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("error", md.MiniDNNWarning)
    ...     exe = md.compile(net, (2, 3, 32, 32), device="reference")
    """


def stack_level() -> int:
    """Returns the ``stacklevel`` at which ``warnings.warn``, in the function that calls this, names
    the line that called minidnn, however many of minidnn's functions are between them."""
    package = os.path.dirname(__file__) + os.sep
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_code.co_filename.startswith(package):
        frame, level = frame.f_back, level + 1
    return level


def did_you_mean(name: object, valid: collections.abc.Iterable[str], most: int = 1) -> str:
    """Returns the end of a message about an unknown name: ``; did you mean 'Conv2d'?``, or "" if no
    valid name is similar.  Case and underscores make no difference.

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
