"""What stands for a module that may be a container: ``net[0]``, ``len(net)``, ``item in net``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn


class StandsForContainer(nn.Module):
    """A module that stands for another one, also where that is asked for its entries."""

    original: Any

    # Python looks for these at the type: what the original has none of is its TypeError.

    def __getitem__(self, key: Any) -> Any:
        return self.original[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        self.original[key] = value

    def __delitem__(self, key: Any) -> None:
        del self.original[key]

    def __len__(self) -> int:
        return len(self.original)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.original)

    def __contains__(self, item: Any) -> bool:
        return item in self.original

    def __bool__(self) -> bool:
        return bool(self.original)  # else one without a length would be asked for it
