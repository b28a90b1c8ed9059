"""The front end for PyTorch modules, and the checks of their requirements.

PyTorch has to be installed in a supported version, and modules have to be in evaluation mode.  This
module imports PyTorch only when it is needed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from minidnn._versions import SUPPORTED, numbers
from minidnn.errors import DeviceError, GraphError
from minidnn.graph.ir import Graph

#: The first supported version of PyTorch, and the first one after it that is not supported.
OLDEST, BEYOND = next(
    (numbers(each.oldest), numbers(each.below)) for each in SUPPORTED if each.name == "torch"
)


def require_torch() -> None:
    """Imports PyTorch.  Raises DeviceError if it is missing, its version is not supported, or it
    lacks an internal function that minidnn uses."""
    valid = f"valid are {_text(OLDEST)} to {_text((BEYOND[0], BEYOND[1] - 1))}"
    try:
        import_module("torch")
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise DeviceError(
            f"PyTorch is not installed; {valid}: pip install 'minidnn[torch]'"
        ) from None
    installed = _installed()
    if not OLDEST <= numbers(installed)[:2] < BEYOND:
        raise DeviceError(f"PyTorch {installed} is installed; {valid}")
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


def check_mode(module: Any, where: str = "", trains: bool = False) -> None:
    """Raises GraphError, which says how to leave training mode, if a module is in it.

    where: the beginning of the message.
    trains: whether training mode is valid for modules that can switch modes; exported programs
        cannot.
    """
    if module.training and not (trains and not _is_exported(module)):
        how = "call module.eval() first"
        if _is_exported(module):
            how = (
                "it is an exported program, which computes in the mode that it was exported in and "
                "forbids eval(); export a module in evaluation mode and set module.training = False"
            )
        raise GraphError(
            f"{where}{type(module).__name__} is in training mode; valid is a module in evaluation "
            f"mode: {how}"
        )


def evaluated(module: Any) -> Any:
    """Sets a module to evaluation mode, and returns it."""
    if _is_exported(module):
        module.training = False
        return module
    return module.eval()


@contextmanager
def in_evaluation(network: Any) -> Iterator[None]:
    """Sets a module and its submodules to evaluation mode until the block ends, and restores the
    mode of each one then.  Exported programs and other objects stay as they are."""
    switches = callable(getattr(network, "modules", None)) and not _is_exported(network)
    modes = {submodule: submodule.training for submodule in network.modules()} if switches else {}
    try:
        for submodule in modes:
            submodule.training = False
        yield
    finally:
        for submodule, mode in modes.items():
            submodule.training = mode


def _is_exported(module: Any) -> bool:
    """Whether a module is an exported program: ``torch.export`` gives its modules an ``eval``
    attribute that raises."""
    return "eval" in vars(module)


class TorchFrontEnd:
    """Converts PyTorch modules."""

    name = "torch"
    takes = "PyTorch modules"

    def accepts(self, network: object) -> bool:
        torch = sys.modules.get("torch")  # imported already if the network is a module
        return torch is not None and isinstance(network, torch.nn.Module)

    def to_graph(self, network: Any, shape: Any) -> Graph:
        """Returns the graph of a module for inputs of these shapes, whose dtype is that of its
        parameters.  The weights are read when the graph is compiled."""
        require_torch()
        from minidnn.frontends.torch.capture import graph_of_module

        check_mode(network)
        return graph_of_module(network, *_arguments(shape))


def _arguments(shape: Any) -> tuple[list[Sequence[int]], dict[str, Sequence[int]]]:
    """The shapes of the positional arguments, and of the keyword arguments by name."""
    if isinstance(shape, Mapping):
        return [], dict(shape)
    if isinstance(shape, Sequence) and shape:
        if all(type(size) is int for size in shape):
            return [shape], {}
        if all(isinstance(each, Sequence) for each in shape):
            return list(shape), {}
    raise GraphError(
        f"shape={shape!r:.100}; valid is the input's shape with the batch, such as "
        "(1, 3, 224, 224), or a sequence or a dict of shapes"
    )
