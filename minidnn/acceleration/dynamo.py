"""The backend of ``torch.compile``: ``torch.compile(model, backend="minidnn")``."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Any

from minidnn.acceleration.piece import BridgeSettings, Piece
from minidnn.errors import GraphError
from minidnn.frontends.torch.frontend import require_torch

_OPTIONS = ("device", "precision", "strict", "sizes")


def backend(
    module: Any,
    example: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Piece:
    """What ``torch.compile`` calls for each piece of a model.

    options: "device", "precision", "strict" and "sizes" as :func:`minidnn.optimize` takes them;
    all others are the device's.  ``mode`` has no meaning here.

    GraphError for what is not legal, DeviceError if PyTorch's version is not accepted.
    """
    require_torch()
    if mode is not None:
        raise GraphError(
            f"torch.compile: mode={mode!r} with backend 'minidnn'; valid is none, or options="
        )
    given = dict(options or {})
    known = {name: given.pop(name) for name in _OPTIONS if name in given}
    sizes = known.get("sizes", 8)
    if type(sizes) is not int or sizes < 1:
        raise GraphError(f"torch.compile: sizes={sizes!r}; valid is an int of at least 1")
    strict = known.get("strict", False)
    if type(strict) is not bool:
        raise GraphError(f"torch.compile: strict={strict!r}; valid are True and False")
    others = pieces()
    settings = BridgeSettings(
        "torch.compile",
        known.get("device"),
        known.get("precision"),
        strict,
        sizes,
        given,
        others[-1].settings.warned if others else set(),
    )
    piece = Piece(module, example, settings)
    _pieces.append(weakref.ref(piece))
    return piece


_pieces: list[weakref.ref[Piece]] = []


def pieces() -> list[Piece]:
    """The pieces that PyTorch still holds, in the order in which it handed them over."""
    found = [piece for reference in _pieces if (piece := reference()) is not None]
    _pieces[:] = map(weakref.ref, found)
    return found


def explain() -> str:
    """What was taken of all pieces that ``torch.compile`` handed over, in order."""
    return "\n\n".join(piece.explain() for piece in pieces())
