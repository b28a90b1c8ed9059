"""Having Dynamo hand over the pieces of one network, whoever else uses Dynamo."""

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

#: So often Dynamo may compile one function of a network's code: for more sizes, modes and values of
#: attributes than networks have.  It stops at 8 by itself, and runs what is new in PyTorch.
RECOMPILES = 256
_PYTORCH = str(Path(torch.__file__).parent)
_LAYERS = str(Path(nn.modules.__file__).parent)
_PYTHON = sysconfig.get_path("stdlib")
_SETTINGS = {
    "recompile_limit": RECOMPILES,
    "accumulated_recompile_limit": RECOMPILES,
    "fail_on_recompile_limit_hit": True,
    "allow_rnn": True,
    # Code that calls NumPy does so; an array in the place of a tensor is PyTorch's error.
    "trace_numpy": False,
}
_ONE_BY_ONE = "layers of PyTorch's are captured one by one, as their caller is not captured"
#: What its wrapper that skips code has: what converts, and its argument.
_INNER = ("_torchdynamo_orig_backend", "hooks")
#: Who logs that an operation does not take such tensors.
_TRIALS = "torch._subclasses.fake_tensor"
#: Why Dynamo skips code of which nothing is to be said, as it computes nothing with tensors.
_IDLE = ("No ops traced", "no tensor-related objects")

#: Whether code is converted for a network that is optimized.
_CONVERTING: contextvars.ContextVar[bool] = contextvars.ContextVar("converting", default=False)


def _without_generators() -> None:
    """Has Dynamo leave objects of ``random.Random`` to Python while it converts for minidnn: it
    would draw the numbers that they give now at every call."""
    known = RandomVariable.is_supported_random_obj
    RandomVariable.is_supported_random_obj = staticmethod(
        lambda found: not _CONVERTING.get() and known(found)
    )


_without_generators()


def captured(
    network: nn.Module,
    backend: Callable[..., Any],
    whole: bool,
    dynamic: bool | None,
    left: Callable[[Exception], None],
    broken: Callable[[str], None],
) -> Callable[..., Any]:
    """What calls a network by the pieces that Dynamo makes of it.

    Args:
        network: called with its hooks, as a module is.
        backend: makes a piece, of its graph and its arguments.
        whole: whether it is an error if there is more than one piece.
        dynamic: as ``torch.compile`` takes it.
        left: told why some of the network's code is not captured, and runs in Python.
        broken: told why layers of PyTorch's are not captured with what calls them.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        return network(*args, **kwargs)

    # Dynamo keeps what it has compiled at the code: each network has its own.
    own = types.FunctionType(
        call.__code__.replace(), call.__globals__, call.__name__, None, call.__closure__
    )
    # What is compiled refers to the code, in a circle that Python does not see.
    weakref.finalize(own, reset_code, own.__code__).atexit = False
    context: Any = dynamo.optimize(backend, nopython=whole, dynamic=dynamic)
    if hasattr(context, "callback"):  # else TORCHDYNAMO_DISABLE is set
        context.callback = _Conversion(context.callback, left, broken)
    compiled: Callable[..., Any] = context(own)
    return compiled


class _Conversion:
    """What Dynamo calls for a function of the code that is not compiled yet."""

    def __init__(
        self, convert: Any, left: Callable[[Exception], None], broken: Callable[[str], None]
    ) -> None:
        self._convert = convert
        self._left = left
        self._broken = broken
        #: By which PyTorch's native code finds the backend.
        self._torchdynamo_orig_backend = convert

    def __call__(self, frame: Any, *args: Any) -> Any:
        token = _CONVERTING.set(True)
        try:
            # Dynamo puts aside what traces, in whichever thread.
            settings = dynamo_config.patch(_SETTINGS)
            silence = warnings.catch_warnings()
            with (
                CAPTURING,
                settings,
                silence,
                _unheard(),
                layers_in_full(),
                garbage_collection_paused(),
            ):
                # Dynamo asks tensors and classes for what PyTorch warns of.
                warnings.simplefilter("ignore")
                made = self._converted(frame, *args)
        except DynamoError as error:
            self._left(error)
            # What fails now, for a mistake of the caller's, is not to be skipped for ever.
            return NotConverted(apply_to_code=not isinstance(error, DynamoRuntimeError))
        finally:
            _CONVERTING.reset(token)
        # PyTorch 2.11 does not say why.
        why = getattr(made, "skip_reason", None)
        if why is None or any(map(why.__contains__, _IDLE)):
            return made
        if not _is_pytorchs(frame.f_code):
            where = f"{frame.f_code.co_filename}:{frame.f_code.co_firstlineno}"
            self._left(UnsupportedError(f"{frame.f_code.co_name} ({where}): {why}"))
        return made

    def _converted(self, frame: Any, cached: Any, state: Any) -> Any:
        """Dynamo's own way, but for the code of PyTorch's layers, which it skips where it is not
        part of other code: it may be called by code that cannot be captured."""
        convert, hooks = (getattr(self._convert, name, None) for name in _INNER)
        if convert is None or not _is_layers(frame.f_code):
            return self._convert(frame, cached, state)
        self._broken(_ONE_BY_ONE)
        with compile_lock:
            return convert(frame, cached, hooks, state)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._convert, name)


def _is_layers(code: types.CodeType) -> bool:
    """Whether code is what a layer of PyTorch's computes."""
    return code.co_name == "forward" and code.co_filename.startswith(_LAYERS)


@contextlib.contextmanager
def _unheard() -> Iterator[None]:
    """Sizes that do not fit are told by an error, and not by PyTorch's log of its trial as well."""
    log, silence = logging.getLogger(_TRIALS), logging.Filter("nobody")
    log.addFilter(silence)
    try:
        yield
    finally:
        log.removeFilter(silence)


def _is_pytorchs(code: types.CodeType) -> bool:
    """Whether code is PyTorch's own, Python's, or what calls the network here."""
    return code.co_filename.startswith((_PYTORCH, _PYTHON, __file__)) or code.co_filename[:1] == "<"
