"""What architectures ("sm_90") have, as far as kernels that we print ask for it.

Source: CUDA programming guide, "Compute Capabilities".
"""

from __future__ import annotations

_SHARED_KIB = {80: 163, 87: 163, 90: 227, 100: 227, 103: 227, 110: 227}
_LEAST_SHARED_KIB = 99
"""Of all others: sm_86, sm_89, sm_120, sm_121."""
_HOPPER = 90


def shared_limit(arch: str) -> int:
    """Bytes of shared memory that a block can have."""
    return _SHARED_KIB.get(_number(arch), _LEAST_SHARED_KIB) << 10


def joins_three(arch: str) -> bool:
    """Whether the largest of three numbers is one instruction."""
    return _number(arch) >= _HOPPER


def has_clusters(arch: str) -> bool:
    """Whether blocks can run at once and read each other's shared memory."""
    return _number(arch) >= _HOPPER


def _number(arch: str) -> int:
    return int(arch.removeprefix("sm_").rstrip("af"))
