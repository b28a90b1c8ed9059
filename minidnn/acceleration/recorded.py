"""Whether someone else than the caller wants the operations of a network, not only its results.

A trace records them, a transform of ``torch.func`` or a dual number of forward-mode gradients has
each computed in another way: what minidnn computes from one memory to another says nothing to them.
"""

from __future__ import annotations

import torch
from torch.autograd import forward_ad

_TRANSFORMED = torch._C._are_functorch_transforms_active
_MODES = torch._C._len_torch_dispatch_stack
_TRACED = torch._C._is_tracing


def is_recorded() -> bool:
    """Whether operations are now recorded, or computed in another way."""
    return _TRACED() or _TRANSFORMED() or _MODES() > 0 or forward_ad._current_level >= 0


def how_transformed() -> str | None:
    """How a network is called whose operations are computed in another way, as text."""
    if _TRANSFORMED():
        return "within a transform of torch.func (vmap, grad, jvp, ...)"
    if forward_ad._current_level >= 0 and not _MODES():
        return "where forward-mode gradients are computed"
    return None
