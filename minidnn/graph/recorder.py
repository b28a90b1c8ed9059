"""The interface of recorders, which make nodes of the operators that are applied to values.

Values (:mod:`.ir`) apply operators to themselves, and a trace (:mod:`.trace`) makes nodes on
values; this module holds what both need, so that they need not import each other.  The current
recorder is a context variable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

import numpy as np

from minidnn.errors import GraphError
from minidnn.graph.operator import Operator
from minidnn.graph.types import TensorType


class Recorder(Protocol):
    """Records operators as they are applied to values."""

    #: Whether user code applies the operators, in a layer's ``forward``.
    describing: bool

    def apply(self, op: Operator, *operands: Any) -> tuple[Any, ...]:
        """Records a node of ``op`` on the values ``operands``, and returns its outputs."""

    def constant(
        self, owner: object, name: str, type: TensorType, data: Callable[[], np.ndarray]
    ) -> Any:
        """The constant that belongs to ``owner``; ``data`` returns its array when it is needed."""


_current: ContextVar[Recorder | None] = ContextVar("minidnn_recorder", default=None)


@contextmanager
def recording_by(recorder: Recorder) -> Iterator[None]:
    """Makes ``recorder`` the current one within the context; the outer one is restored after it."""
    token = _current.set(recorder)
    try:
        yield
    finally:
        _current.reset(token)


def is_recording() -> bool:
    """Whether there is a current recorder."""
    return _current.get() is not None


def is_describing() -> bool:
    """Whether user code is describing a network at the moment."""
    recorder = _current.get()
    return recorder is not None and recorder.describing


def current_recorder() -> Recorder:
    """The current recorder; GraphError if there is none."""
    recorder = _current.get()
    if recorder is None:
        raise GraphError(
            "a layer was called on a value of a finished graph; call layers on md.Input(...) "
            "symbols, or inside Layer.forward"
        )
    return recorder
