"""``functools.cached_property`` as Python 3.12 has it: without a lock.

Until 3.11 it computes under a lock that all instances share: threads that compile wait for each
other, and a process that is forked meanwhile waits for ever.  Without the lock two threads may both
compute a value, with the same result.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

__all__ = ["cached_property"]

if TYPE_CHECKING or sys.version_info >= (3, 12):
    from functools import cached_property
else:

    class cached_property:
        """A property that is computed once for each object, which needs a ``__dict__``."""

        def __init__(self, function: Any) -> None:
            self.function = function
            self.__doc__ = function.__doc__

        def __set_name__(self, owner: type, name: str) -> None:
            self.name = name

        def __get__(self, instance: Any, owner: type | None = None) -> Any:
            if instance is None:
                return self
            value = instance.__dict__[self.name] = self.function(instance)
            return value
