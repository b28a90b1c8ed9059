"""How a network is accelerated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class BridgeSettings:
    """How a network is accelerated.

    Attributes:
        name: the network's, for messages.
        device, precision, strict, sizes, options: as :func:`minidnn.optimize` takes them.
        warned: of what there was a warning.
    """

    name: str
    device: str | None = None
    precision: str | None = None
    strict: bool = False
    sizes: int = 8
    options: Mapping[str, Any] = field(default_factory=dict)
    warned: set[str] = field(default_factory=set, compare=False)
