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
    """Returns the callable for one FX graph that ``torch.compile`` hands over: a :class:`Piece`.

    options: "device", "precision", "strict" and "sizes" as :func:`minidnn.optimize` takes them;
    all others are options of the device.  ``mode`` is refused.

    GraphError for an illegal mode or option, DeviceError if PyTorch's version is not accepted.
    """
    require_torch()
    if mode is not None:
        raise GraphError(
            f"torch.compile: mode={mode!r} with backend 'minidnn'; valid is none, or options="
        )
    device_options = dict(options or {})
    bridge_options = {name: device_options.pop(name) for name in _OPTIONS if name in device_options}
    sizes = bridge_options.get("sizes", 8)
    if type(sizes) is not int or sizes < 1:
        raise GraphError(f"torch.compile: sizes={sizes!r}; valid is an int of at least 1")
    strict = bridge_options.get("strict", False)
    if type(strict) is not bool:
        raise GraphError(f"torch.compile: strict={strict!r}; valid are True and False")
    earlier = pieces()
    settings = BridgeSettings(
        "torch.compile",
        bridge_options.get("device"),
        bridge_options.get("precision"),
        strict,
        sizes,
        device_options,
        earlier[-1].settings.warned if earlier else set(),
    )
    piece = Piece(module, example, settings)
    _pieces.append(weakref.ref(piece))
    return piece


#: All pieces that were made, by weak references: PyTorch alone keeps them alive.
_pieces: list[weakref.ref[Piece]] = []


def pieces() -> list[Piece]:
    """The pieces that PyTorch still holds, in the order in which it handed them over."""
    alive = [piece for reference in _pieces if (piece := reference()) is not None]
    _pieces[:] = map(weakref.ref, alive)
    return alive


def explain() -> str:
    """Describes for all pieces, in order, which operations were taken, which left, and why."""
    return "\n\n".join(piece.explain() for piece in pieces())
