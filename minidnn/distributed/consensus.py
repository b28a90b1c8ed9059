"""How ranks make sure that they run the same programs."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from minidnn.distributed.rank import DistributedError, RankInfo


class ConsensusCheck:
    """Texts about which ranks were asked already."""

    place: RankInfo

    def __init__(self) -> None:
        self._texts: set[str] = set()

    def sum_of(self, numbers: Sequence[float]) -> list[float]:
        """See :class:`RankGroup`."""
        raise NotImplementedError

    def agree(self, text: str) -> None:
        """See :class:`RankGroup`."""
        if text in self._texts:
            return
        digest = hashlib.sha256(text.encode()).digest()
        parts = [int.from_bytes(digest[i : i + 3]) for i in range(0, 30, 3)]
        # A rank that says what is the mean of all may be wrong; then another one sees it.
        if self.sum_of(parts) != [self.place.size * part for part in parts]:
            raise DistributedError(
                f"rank {self.place.rank} trains by another program than the others; valid are the "
                "same network, shapes, options and version in all ranks. Its sums over ranks are\n"
                f"{text}"
            )
        self._texts.add(text)
