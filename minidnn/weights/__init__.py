"""Weights: files that hold them, and torchvision's from the network.

``load_weights`` and ``save_weights`` are what most need.  Nothing in a weight file is ever
executed, and no file makes reading it take more than its own size plus 256 MiB of memory (twice
its size where elements must be converted: bfloat16, foreign byte order, unaligned data).

``minidnn.weights.download`` is useful alone: it fetches any file with resume and hash check.
"""

from ._file import Unread
from .load import KNOWN_WEIGHTS, KnownWeights, find_known, load_weights
from .safetensors import save_weights

__all__ = [
    "KNOWN_WEIGHTS",
    "KnownWeights",
    "Unread",
    "find_known",
    "load_weights",
    "save_weights",
]
