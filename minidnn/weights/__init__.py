"""Reads and writes weight files, and downloads torchvision's published weights.

Most callers need ``load_weights`` and ``save_weights`` alone.  Nothing in a weight file is ever
executed.  Reading a file takes at most its own size plus 256 MiB of memory (twice its size where
elements are converted: bfloat16, foreign byte order, unaligned data), whatever is in it.

``minidnn.weights.download`` can be used by itself: it fetches any file, resumes interrupted
downloads and checks the hash.
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
