"""The front end that ``minidnn.compile`` finds for PyTorch's modules, and what these need.

PyTorch has to be there, in a version that is known to work, and modules in evaluation mode.
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


def check_mode(module: Any, where: str = "", trains: bool = False) -> None:
    """GraphError if a module is in training mode; it says how that is left.

    trains: whether training mode is valid, of a module that can change between both.
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
    """The module, set to evaluation mode."""
    if _is_exported(module):
        module.training = False
        return module
    return module.eval()


@contextmanager
def in_evaluation(network: Any) -> Iterator[None]:
    """Has a module be in evaluation mode until the block ends, and each of its parts in its own
    mode then; an exported program, and what is no module, stay as they are."""
    takes = callable(getattr(network, "modules", None)) and not _is_exported(network)
    modes = {part: part.training for part in network.modules()} if takes else {}
    try:
        for part in modes:
            part.training = False
        yield
    finally:
        for part, mode in modes.items():
            part.training = mode


def _is_exported(module: Any) -> bool:
    """Whether it is what ``torch.export`` gives: such a module has an ``eval`` of its own, which
    does nothing but raise."""
    return "eval" in vars(module)


class TorchFrontEnd:
    """Modules of PyTorch."""

    name = "torch"
    takes = "PyTorch modules"

    def accepts(self, network: object) -> bool:
        torch = sys.modules.get("torch")  # who has a module has imported PyTorch
        return torch is not None and isinstance(network, torch.nn.Module)

    def to_graph(self, network: Any, shape: Any) -> Graph:
        """The graph of what the module computes for float32 inputs of these shapes; the weights
        are read when the graph is compiled."""
        require_torch()
        from minidnn.frontends.torch.capture import graph_of_module

        check_mode(network)
        return graph_of_module(network, *_arguments(shape))


def _arguments(shape: Any) -> tuple[list[Sequence[int]], dict[str, Sequence[int]]]:
    """The shapes of the arguments by position, and of those by name."""
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
