"""TorchScript modules: what they hold and compute is not Python's, so they are called as they
are."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from minidnn.errors import UnsupportedError

_REASON = "it is a TorchScript module, whose code is not Python's"
_USES_OBJECT = "it uses a TorchScript object (as quantized layers do for their weights)"


def is_scripted(module: Any) -> bool:
    return isinstance(module, torch.jit.ScriptModule)


def check_scripted(module: nn.Module) -> None:
    """UnsupportedError if a module as a whole is scripted or traced."""
    if is_scripted(module):
        raise UnsupportedError(
            f"{type(module).__name__} cannot be captured: {_REASON}; valid is the module that it "
            "was made of"
        )


def scripted_within(root: nn.Module) -> dict[str, str]:
    """The paths of the scripted modules in a network, without those in others, and why they are
    not captured."""
    found: dict[str, str] = {}
    for path, module in root.named_modules():
        if is_scripted(module) and not any(path.startswith(f"{outer}.") for outer in found):
            found[path] = _REASON
    return found


class Scripted(nn.Module):
    """Stands for a scripted module where what a module holds is changed."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.__dict__["module"] = module  # not as a child

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)


class HiddenObject:
    """Stands for an object of TorchScript's where PyTorch captures, which asks more of such an
    object than most can do.  It is an error to use it."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # somebody asks what kind of thing it is
            raise AttributeError(name)
        raise UnsupportedError(_USES_OBJECT)

    @classmethod
    def __torch_function__(cls, *args: Any) -> Any:
        raise UnsupportedError(_USES_OBJECT)
