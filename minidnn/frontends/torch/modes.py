"""Training and evaluation mode: what minidnn compiles is in the latter."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from minidnn.errors import GraphError


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
