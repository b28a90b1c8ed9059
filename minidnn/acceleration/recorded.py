"""Whether someone else than the caller wants the operations of a network, not only its results.

A trace records them, a transform of ``torch.func`` or a dual number of forward-mode gradients has
each computed in another way: what minidnn computes from one memory to another says nothing to them.
"""

from __future__ import annotations

from minidnn._torch_internals import (
    are_forward_gradients_computed,
    are_transforms_active,
    count_of_modes,
    is_tracing,
)


def is_recorded() -> bool:
    """Whether operations are now recorded, or computed in another way."""
    return (
        is_tracing()
        or are_transforms_active()
        or count_of_modes() > 0
        or are_forward_gradients_computed()
    )


def how_transformed() -> str | None:
    """How a network is called whose operations are computed in another way, as text."""
    if are_transforms_active():
        return "within a transform of torch.func (vmap, grad, jvp, ...)"
    if are_forward_gradients_computed() and not count_of_modes():
        return "where forward-mode gradients are computed"
    return None
