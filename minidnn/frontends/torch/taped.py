"""Capturing a module that is trained: what PyTorch's tape has besides operations.

A captured program says what is computed, and its gradient follows from that.  Where code says what
the gradient is, or asks for one, the module whose code it is cannot be captured.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch

from minidnn.errors import UnsupportedError

#: Functions that say or ask more of gradients than operations do.
_MORE: tuple[tuple[Any, str, str], ...] = (
    (
        torch.autograd.Function,
        "apply",
        "it uses a torch.autograd.Function",
    ),
    (torch.Tensor, "register_hook", "it registers a hook on a tensor"),
    (torch.Tensor, "retain_grad", "it retains the gradient of a tensor"),
    (torch.Tensor, "backward", "it computes gradients itself"),
    (torch.autograd, "grad", "it computes gradients itself"),
)


@contextmanager
def taped(trained: bool) -> Iterator[None]:
    """Within, a module's code runs as it does when it is trained, and UnsupportedError comes up in
    this thread where it says or asks more of gradients than operations do; or without gradients.
    """
    if not trained:
        with torch.no_grad():
            yield
        return
    with torch.enable_grad(), unsaved(), ExitStack() as stack:
        for owner, name, reason in _MORE:
            stack.enter_context(_refused(owner, name, reason))
        yield


def unsaved() -> AbstractContextManager[Any]:
    """Within, nobody is told of what operations save for their gradients: a checkpoint around the
    call of a module, for example, which counts that."""
    return torch.autograd.graph.saved_tensors_hooks(_itself, _itself)


def _itself(tensor: Any) -> Any:
    return tensor


@contextmanager
def _refused(owner: Any, name: str, reason: str) -> Iterator[None]:
    """Within, a function refuses to be called by this thread."""
    thread = threading.get_ident()
    original = vars(owner).get(name)  # None for what a class inherits
    is_bound = isinstance(original, classmethod)
    function: Any = getattr(owner, name) if original is None else original
    function = function.__func__ if is_bound else function

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() == thread:
            raise UnsupportedError(reason)
        return function(*args, **kwargs)

    setattr(owner, name, classmethod(called) if is_bound else called)
    try:
        yield
    finally:
        if original is None:
            delattr(owner, name)
        else:
            setattr(owner, name, original)
