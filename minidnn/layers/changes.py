"""How often anything was frozen or unfrozen, for those that look again only then."""

from __future__ import annotations

__all__ = ["changes"]


class _Changes:
    """A count that grows with each change, of whatever network."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


changes = _Changes()
