"""Hooks that are registered after a network was captured.

Dynamo looks at every call whether the hooks that it has captured are the same, but not whether a
module that had none has one now: that would cost as much as all its other guards together.
PyTorch numbers hooks as they come, so that one comparison tells whether any came at all.
"""

from __future__ import annotations

from torch import nn

from minidnn._torch_internals import GLOBAL_HOOKS, RemovableHandle


class LateHooks:
    """Tells of hooks that a network, or all modules, got since it was asked last."""

    def __init__(self, network: nn.Module) -> None:
        self._network = network
        self._next: int = RemovableHandle.next_id

    def came(self) -> bool:
        """Whether there are new ones."""
        if self._next == RemovableHandle.next_id:
            return False
        first, self._next = self._next, RemovableHandle.next_id
        own = (
            hooks
            for module in self._network.modules()
            for name, hooks in vars(module).items()
            if name.endswith("_hooks") and name.startswith(("_forward", "_backward"))
        )
        return any(number >= first for hooks in (*GLOBAL_HOOKS, *own) for number in hooks)
