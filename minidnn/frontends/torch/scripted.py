"""TorchScript modules: what they hold and compute is not Python's, so Dynamo calls them as they
are."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from minidnn.errors import UnsupportedError

_REASON = "it is a TorchScript module, whose code is not Python's"


def is_scripted(module: Any) -> bool:
    return isinstance(module, torch.jit.ScriptModule)


def check_scripted(module: nn.Module) -> None:
    """UnsupportedError if a module as a whole is scripted or traced."""
    if is_scripted(module):
        raise UnsupportedError(
            f"{type(module).__name__} cannot be captured: {_REASON}; valid is the module that it "
            "was made of"
        )
