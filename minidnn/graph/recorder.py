"""What records the operators that are applied to values, as far as values need to know it.

Values (:mod:`.ir`) apply operators to themselves and a trace (:mod:`.trace`) makes nodes of
values, so what both of them need stands below both.
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
    """Takes operators as they are applied."""

    #: Whether it is a user's own code that applies them, in a layer's ``forward``.
    describing: bool

    def apply(self, op: Operator, *operands: Any) -> tuple[Any, ...]:
        """The outputs of ``op`` on ``operands``, which are values."""

    def constant(
        self, owner: object, name: str, type: TensorType, data: Callable[[], np.ndarray]
    ) -> Any:
        """The constant that belongs to ``owner``."""


_current: ContextVar[Recorder | None] = ContextVar("minidnn_recorder", default=None)


@contextmanager
def recording_by(recorder: Recorder) -> Iterator[None]:
    """``recorder`` is the current one within; an outer one waits until then."""
    token = _current.set(recorder)
    try:
        yield
    finally:
        _current.reset(token)


def is_recording() -> bool:
    """Whether there is a current recorder."""
    return _current.get() is not None


def is_describing() -> bool:
    """Whether a user's own code describes a network just now."""
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
