"""PyTorch itself: whether it is there, and in a version that is known to work."""

from __future__ import annotations

import re
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version

from minidnn.errors import DeviceError

#: The first accepted version and the first one that is not.
OLDEST, BEYOND = (2, 11), (2, 15)


def require_torch() -> None:
    """Imports PyTorch; DeviceError if it is missing, its version is not accepted, or it lacks what
    minidnn asks of it."""
    valid = f"valid are {_text(OLDEST)} to {_text((BEYOND[0], BEYOND[1] - 1))}"
    try:
        import_module("torch")
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise DeviceError(
            f"PyTorch is not installed; {valid}: pip install 'minidnn[torch]'"
        ) from None
    found = _installed()
    numbers = re.match(r"(\d+)\.(\d+)", found)
    if numbers is None or not OLDEST <= tuple(map(int, numbers.groups())) < BEYOND:
        raise DeviceError(f"PyTorch {found} is installed; {valid}")
    import_module("minidnn._torch_internals")


def _installed() -> str:
    loaded = getattr(import_module("torch"), "__version__", None)
    if loaded is not None:
        return str(loaded)
    try:
        return version("torch")
    except PackageNotFoundError:
        return "of unknown version"


def _text(numbers: tuple[int, int]) -> str:
    return ".".join(map(str, numbers))
