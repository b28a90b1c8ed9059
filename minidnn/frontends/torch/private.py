"""What minidnn asks of PyTorch that its documentation does not name."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch._dynamo
from torch._dynamo.exc import (
    FailOnRecompileLimitHit,
    TorchDynamoException,
    TorchRuntimeError,
)
from torch._dynamo.types import ConvertFrameReturn
from torch._functorch.aot_autograd import aot_export_module
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

__all__ = [
    "FailOnRecompileLimitHit",
    "FakeTensorMode",
    "ShapeEnv",
    "TorchRuntimeError",
    "aot_export_module",
    "dynamo_context",
]


def dynamo_context(
    backend: Callable[..., Any],
    whole: bool,
    dynamic: bool | None,
    limit: int,
    left: Callable[[Exception], None],
) -> Callable[..., Any]:
    """What has Dynamo compile a function, as ``torch.compile`` does.

    Args:
        backend, whole, dynamic: as ``torch.compile`` takes them (whole: fullgraph).
        limit: so often one function of the code may be compiled.
        left: told why a function of the code is not compiled, and runs in Python.
    """
    context: Any = torch._dynamo.optimize(backend, nopython=whole, dynamic=dynamic)
    if hasattr(context, "callback"):  # else TORCHDYNAMO_DISABLE is set
        context.callback = _Conversion(context.callback, limit, left)
    return context


class _Conversion:
    """What Dynamo calls for a function that is not compiled yet."""

    def __init__(self, compile: Any, limit: int, left: Callable[[Exception], None]) -> None:
        self._compile = compile
        self._left = left
        #: By which PyTorch's native code finds the backend.
        self._torchdynamo_orig_backend = compile
        self._settings = {
            "recompile_limit": limit,
            "accumulated_recompile_limit": limit,
            "fail_on_recompile_limit_hit": True,
        }

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with torch._dynamo.config.patch(self._settings), warnings.catch_warnings():
            try:
                # Dynamo asks any tensor for its gradient, of which PyTorch warns.
                warnings.filterwarnings("ignore", "The .grad attribute", UserWarning)
                return self._compile(*args, **kwargs)
            except TorchDynamoException as error:
                self._left(error)
                return ConvertFrameReturn()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._compile, name)
