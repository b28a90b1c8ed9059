"""Data-parallel training in several processes, one for each GPU: ranks, their sums, their watch.

``md.Trainer(..., distributed=True)`` uses it; nothing else of minidnn does.
"""

from __future__ import annotations

import warnings
from typing import Any

from minidnn.distributed import rank
from minidnn.distributed.rank import DistributedError, RankInfo, find_rank

__all__ = ["DistributedError", "RankInfo", "find_rank"]

#: Deprecated names, and those that replace them.
_FORMER = {"RankPlace": "RankInfo", "find_place": "find_rank"}


def __getattr__(name: str) -> Any:
    if name not in _FORMER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    new = _FORMER[name]
    warnings.warn(
        f"minidnn.distributed.{name} is called {new} now", DeprecationWarning, stacklevel=2
    )
    return getattr(rank, new)
