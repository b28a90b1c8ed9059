"""PyTorch itself: whether it is there, and in a version that is known to work."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version

from minidnn._versions import SUPPORTED, numbers
from minidnn.errors import DeviceError

#: The first accepted version and the first one that is not.
OLDEST, BEYOND = next(
    (numbers(each.oldest), numbers(each.below)) for each in SUPPORTED if each.name == "torch"
)


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
    if not OLDEST <= numbers(found)[:2] < BEYOND:
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


def _text(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
