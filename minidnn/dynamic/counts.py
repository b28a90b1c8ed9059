"""What an executable of named sizes has done."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["SizeCounts"]


@dataclass(frozen=True)
class SizeCounts:
    """What an executable of named sizes has done, and what it keeps.

    Attributes:
        kept: programs.
        compiled: programs that were made, those that are gone included.
        dropped: programs that made room for others.
        in_parts: calls that were computed in parts.
        by_any_size: calls that were computed by kernels of any size.
        run_bytes: memory of runs of all programs that are kept.
        weight_bytes: their packed weights, those that several share once.

    >>> exe = md.compile(net, (md.Dim("batch", 1, 64), 3, 32, 32), device="reference")
    >>> print(exe.counts.kept)
    """

    kept: int
    compiled: int
    dropped: int
    in_parts: int
    by_any_size: int
    run_bytes: int
    weight_bytes: int
