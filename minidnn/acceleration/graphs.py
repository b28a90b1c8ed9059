"""Having Dynamo hand over the pieces of one network, whoever else uses Dynamo."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

from torch import nn

from minidnn.frontends.torch.private import dynamo_context

#: So often Dynamo may compile one function of a network's code: for more sizes, modes and values of
#: attributes than networks have.  It stops at 8 by itself, and runs what is new in PyTorch.
RECOMPILES = 256


def captured(
    network: nn.Module,
    backend: Callable[..., Any],
    whole: bool,
    dynamic: bool | None,
    left: Callable[[Exception], None],
) -> Callable[..., Any]:
    """What calls a network by the pieces that Dynamo makes of it.

    Args:
        network: called with its hooks, as a module is.
        backend: makes a piece, of its graph and its arguments.
        whole: whether it is an error if there is more than one piece.
        dynamic: as ``torch.compile`` takes it.
        left: told why some of the network's code is not captured, and runs in Python.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        return network(*args, **kwargs)

    # Dynamo keeps what it has compiled at the code: each network has its own.
    own = types.FunctionType(
        call.__code__.replace(), call.__globals__, call.__name__, None, call.__closure__
    )
    return dynamo_context(backend, whole, dynamic, RECOMPILES, left)(own)
