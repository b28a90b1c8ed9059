"""A bounded memory for things that own descriptors."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

Value = TypeVar("Value")


class Memo(Generic[Value]):
    """A dictionary of limited size that forgets by generations.

    When ``limit`` new entries have come, those not used meanwhile are dropped.  So what was
    just looked up stays alive for at least ``limit`` more entries, and a call that has taken the
    address of a descriptor can rely on it.
    """

    __slots__ = ("_limit", "_older", "_recent")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._recent: dict[Hashable, Value] = {}
        self._older: dict[Hashable, Value] = {}

    def get(self, key: Hashable) -> Value | None:
        """Return what was put under ``key``, or None."""
        found = self._recent.get(key)
        if found is None and self._older:
            found = self._older.get(key)
            if found is not None:
                self.put(key, found)
        return found

    def put(self, key: Hashable, value: Value) -> Value:
        """Remember ``value`` and return it."""
        if len(self._recent) >= self._limit:
            self._older = self._recent
            self._recent = {}
        self._recent[key] = value
        return value

    def clear(self) -> None:
        """Forget everything."""
        self._recent, self._older = {}, {}

    def __len__(self) -> int:
        return len({**self._older, **self._recent})
