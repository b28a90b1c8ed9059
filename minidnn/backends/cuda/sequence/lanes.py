"""The threads of a block and the channels that they compute."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Lanes:
    """``threads`` compute ``group`` channels, ``pack`` of them each at once.

    Planar: neighbouring threads compute neighbouring pixels, else neighbouring channels.
    ``full``: every block has all channels of its group; else ``channels`` is a variable.
    ``aligned``: numbers of vectors over channels lie at multiples of 16 bytes for each pack.
    """

    planar: bool
    group: int
    pack: int
    threads: int
    full: bool
    aligned: bool
