"""In which half precision an optimized module computes, and why not in any."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from minidnn.acceleration.engine import engine_for
from minidnn.errors import UnsupportedError
from minidnn.frontends.torch.narrow import HALVES, autocast_to, is_narrow


class LeftError(Exception):
    """There is to be no program for a call: how it is made, and why it is PyTorch's."""


class Narrowing:
    """What is asked of half precision beside what a module is in itself: autocast, and the
    precision that it was optimized with."""

    def __init__(
        self, device: str | None, precision: str | None, options: Mapping[str, Any]
    ) -> None:
        self._asked = device, precision, options
        self._precision = precision if precision in HALVES else None
        self._refusals: dict[str, str | None] = {}

    def half(self, memory: str) -> str | None:
        """In which half precision a network on that device of PyTorch's is trained that is in
        float32 itself, if in any."""
        return autocast_to(memory) or self._precision

    def is_followed(self, memory: str) -> bool:
        """Whether autocast is on, and the engine does as it says."""
        return autocast_to(memory) is not None and self.why_not(memory) is None

    def why_not(self, memory: str) -> str | None:
        """Why the engine for such tensors does not compute in half precision; None if it does."""
        if memory not in self._refusals:
            device, precision, options = self._asked
            engine = engine_for(memory, device, precision, options)
            self._refusals[memory] = engine.why_not_mixed()
        return self._refusals[memory]

    def refuse(self, memory: str, name: str) -> None:
        """UnsupportedError where autocast is on, and the engine does not do as it says."""
        if autocast_to(memory) is not None:
            raise UnsupportedError(
                f"{name} was called under autocast, which an optimized module does not follow: "
                f"{self.why_not(memory)}; leave the autocast block, or optimize with precision="
            )

    def check(self, memory: str, tensors: Iterable[Any]) -> None:
        """LeftError if :meth:`why_left` has a reason."""
        if (how := self.why_left(memory, tensors)) is not None:
            raise LeftError(*how)

    def why_left(self, memory: str, tensors: Iterable[Any]) -> tuple[str, str] | None:
        """How training with these tensors is in half precision where the engine does not compute
        in it, and why it does not; None if there is nothing of the kind."""
        if (reason := self.why_not(memory)) is None:
            return None
        if (half := autocast_to(memory)) is not None:
            return f"under autocast to {half}", f"as {reason}"
        if self._precision is not None:
            return f"with precision={self._precision!r}", f"as {reason}"
        if any(map(is_narrow, tensors)):
            return "with tensors in half precision", f"as {reason}"
        return None
