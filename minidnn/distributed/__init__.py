"""Training in several processes, one a GPU: which process this is, what ranks add up, who watches.

``md.Trainer(..., distributed=True)`` uses it; nothing else of minidnn does.
"""

from minidnn.distributed.place import DistributedError, RankPlace, find_place

__all__ = ["DistributedError", "RankPlace", "find_place"]
