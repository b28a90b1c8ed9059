"""Running a network so that nobody sees that it ran."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from minidnn.frontends.torch.opaque import NotOneOperation
from minidnn.frontends.torch.outside import Outside, nothing_kept
from minidnn.frontends.torch.replica import replica
from minidnn.frontends.torch.state import unchanged


def unseen(root: nn.Module, work: Callable[[nn.Module, Outside], Any]) -> Any:
    """What ``work`` gives, which runs the network that it is given, on copies of arguments; and may
    ask what was written to beyond its modules.  Afterwards all is as it was.

    That is done to a replica, as other threads may call the network.  But that may refer to itself
    where a replica cannot: if it fails, it is done to the network itself.
    """
    made = replica(root, with_buffers=True)
    while True:
        outside = Outside(root)
        with nothing_kept(made), unchanged(made):
            try:
                return work(made, outside)
            except NotOneOperation:
                raise
            except Exception:
                if made is root:
                    raise
            finally:
                outside.restore()
        made = root
