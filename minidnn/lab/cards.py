"""GPUs as CUDA describes them, for calculations where none is."""

from __future__ import annotations

from ..backends.cuda.machine import Machine
from ..errors import UnsupportedError

A100 = Machine("NVIDIA A100", (8, 0), 108, 1.35e12, 163 << 10, 40 << 20, 1.41e9)
RTX_3090 = Machine("NVIDIA GeForce RTX 3090", (8, 6), 82, 8.1e11, 99 << 10, 6 << 20, 1.70e9)
RTX_4090 = Machine("NVIDIA GeForce RTX 4090", (8, 9), 128, 8.8e11, 99 << 10, 72 << 20, 2.52e9)
H100 = Machine("NVIDIA H100", (9, 0), 132, 2.9e12, 227 << 10, 50 << 20, 1.98e9)
H200 = Machine("NVIDIA H200", (9, 0), 132, 4.3e12, 227 << 10, 60 << 20, 1.98e9)

CARDS = {"A100": A100, "RTX3090": RTX_3090, "RTX4090": RTX_4090, "H100": H100, "H200": H200}
"""By the names that the command line takes."""


def card_of(name: str) -> Machine:
    """The GPU of that name; UnsupportedError, which names all, if it is not described."""
    if name not in CARDS:
        raise UnsupportedError(f"gpu: {name!r} is not described; {', '.join(CARDS)} are")
    return CARDS[name]
