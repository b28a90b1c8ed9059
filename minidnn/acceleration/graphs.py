"""Runs TorchDynamo on one network with minidnn's backend, apart from any other use of Dynamo.

:func:`captured` gives each network a code object of its own, so that Dynamo's cache for it is
separate, and converts its frames under minidnn's settings.  Dynamo cuts the code into FX graphs at
graph breaks; the backend makes a piece of each.
"""

from __future__ import annotations

import contextlib
import contextvars
import logging
import sysconfig
import types
import warnings
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from minidnn._garbage_collection import garbage_collection_paused
from minidnn._torch_internals import (
    DynamoError,
    DynamoRuntimeError,
    NotConverted,
    RandomVariable,
    compile_lock,
    dynamo,
    dynamo_config,
    reset_code,
)
from minidnn.errors import UnsupportedError
from minidnn.frontends.torch.captured import CAPTURING, layers_in_full

#: How often Dynamo may compile one function of a network's code: more than a network has sizes,
#: modes and values of attributes.  Dynamo's default is 8, after which new cases run in PyTorch.
RECOMPILES = 256
_PYTORCH = str(Path(torch.__file__).parent)
_LAYERS = str(Path(nn.modules.__file__).parent)
_STANDARD_LIBRARY = sysconfig.get_path("stdlib")
_SETTINGS = {
    "recompile_limit": RECOMPILES,
    "accumulated_recompile_limit": RECOMPILES,
    "fail_on_recompile_limit_hit": True,
    "allow_rnn": True,
    # Calls of NumPy stay in Python.  An array in the place of a tensor is PyTorch's error.
    "trace_numpy": False,
}
_LAYERS_APART = "layers of PyTorch's are captured one by one, as their caller is not captured"
#: Attributes of Dynamo's wrapper that skips code: the converter of frames, and its argument.
_INNER = ("_torchdynamo_orig_backend", "hooks")
#: The logger that reports operations which do not accept the shapes of fake tensors.
_TRIAL_LOG = "torch._subclasses.fake_tensor"
#: Reasons of Dynamo to skip code that computes nothing with tensors; they are not reported.
_WITHOUT_TENSORS = ("No ops traced", "no tensor-related objects")

#: Whether Dynamo is converting code of an optimized network now.
_CONVERTING: contextvars.ContextVar[bool] = contextvars.ContextVar("converting", default=False)


def _leave_random_to_python() -> None:
    """Has Dynamo leave objects of ``random.Random`` to Python while it converts for minidnn: else
    the numbers that they give now would be those of every call."""
    known = RandomVariable.is_supported_random_obj
    RandomVariable.is_supported_random_obj = staticmethod(
        lambda found: not _CONVERTING.get() and known(found)
    )


_leave_random_to_python()


def captured(
    network: nn.Module,
    backend: Callable[..., Any],
    whole: bool,
    dynamic: bool | None,
    left: Callable[[Exception], None],
    broken: Callable[[str], None],
) -> Callable[..., Any]:
    """Returns a function that calls a network through the pieces that Dynamo makes of it.

    Args:
        network: called with its hooks, as a module is.
        backend: makes a piece of an FX graph and its example arguments.
        whole: whether a graph break is an error, so that there is one piece.
        dynamic: as ``torch.compile`` takes it.
        left: called with the reason when code of the network is not captured and runs in Python.
        broken: called with the reason when PyTorch's layers are captured apart from their caller.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        return network(*args, **kwargs)

    # Dynamo caches compiled code by code object: each network has one of its own.
    own_call = types.FunctionType(
        call.__code__.replace(), call.__globals__, call.__name__, None, call.__closure__
    )
    # Compiled code refers to its code object, in a cycle that Python's collector does not see.
    weakref.finalize(own_call, reset_code, own_call.__code__).atexit = False
    context: Any = dynamo.optimize(backend, nopython=whole, dynamic=dynamic)
    if hasattr(context, "callback"):  # missing if TORCHDYNAMO_DISABLE is set
        context.callback = _Conversion(context.callback, left, broken)
    compiled: Callable[..., Any] = context(own_call)
    return compiled


class _Conversion:
    """The callback of Dynamo for a frame whose code is not compiled yet."""

    def __init__(
        self, convert: Any, left: Callable[[Exception], None], broken: Callable[[str], None]
    ) -> None:
        self._convert = convert
        self._left = left
        self._broken = broken
        #: The attribute by which PyTorch's native code finds the backend.
        self._torchdynamo_orig_backend = convert

    def __call__(self, frame: Any, *args: Any) -> Any:
        token = _CONVERTING.set(True)
        try:
            # Dynamo suspends tracing while it converts, also in other threads.
            settings = dynamo_config.patch(_SETTINGS)
            silence = warnings.catch_warnings()
            with (
                CAPTURING,
                settings,
                silence,
                _logs_silenced(),
                layers_in_full(),
                garbage_collection_paused(),
            ):
                # Dynamo reads attributes of tensors and classes of which PyTorch warns.
                warnings.simplefilter("ignore")
                converted = self._converted(frame, *args)
        except DynamoError as error:
            self._left(error)
            # Code that fails now by a mistake of the caller's must not be skipped for ever.
            return NotConverted(apply_to_code=not isinstance(error, DynamoRuntimeError))
        finally:
            _CONVERTING.reset(token)
        # PyTorch 2.11 gives no reason.
        why = getattr(converted, "skip_reason", None)
        if why is None or any(map(why.__contains__, _WITHOUT_TENSORS)):
            return converted
        if not _is_pytorchs(frame.f_code):
            where = f"{frame.f_code.co_filename}:{frame.f_code.co_firstlineno}"
            self._left(UnsupportedError(f"{frame.f_code.co_name} ({where}): {why}"))
        return converted

    def _converted(self, frame: Any, cached: Any, state: Any) -> Any:
        """Converts a frame as Dynamo does, and also ``forward`` of PyTorch's layers, which Dynamo
        skips unless it is inlined: its caller may be code that cannot be captured."""
        convert, hooks = (getattr(self._convert, name, None) for name in _INNER)
        if convert is None or not _is_layer_forward(frame.f_code):
            return self._convert(frame, cached, state)
        self._broken(_LAYERS_APART)
        with compile_lock:
            return convert(frame, cached, hooks, state)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._convert, name)


def _is_layer_forward(code: types.CodeType) -> bool:
    """Whether code is the ``forward`` of one of PyTorch's layers."""
    return code.co_name == "forward" and code.co_filename.startswith(_LAYERS)


@contextlib.contextmanager
def _logs_silenced() -> Iterator[None]:
    """Silences PyTorch's log of shapes that do not fit: an error reports them already."""
    log, silence = logging.getLogger(_TRIAL_LOG), logging.Filter("nobody")
    log.addFilter(silence)
    try:
        yield
    finally:
        log.removeFilter(silence)


def _is_pytorchs(code: types.CodeType) -> bool:
    """Whether code is PyTorch's, of Python's standard library, generated, or of this file."""
    return (
        code.co_filename.startswith((_PYTORCH, _STANDARD_LIBRARY, __file__))
        or code.co_filename[:1] == "<"
    )
