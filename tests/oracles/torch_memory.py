"""How many bytes PyTorch has in use during a training step, found without computing it."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.oracles.torchvision_models import models


class _Storages(TorchDispatchMode):
    """Counts the bytes of all storages that operators make, as long as they live."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self.seen: Any = weakref.WeakKeyDictionary()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None):
        found = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(found):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                if storage not in self.seen:
                    self.seen[storage] = bytes = storage.nbytes()
                    self.now += bytes
                    weakref.finalize(storage, self._gone, bytes)
        self.peak = max(self.peak, self.now)
        return found

    def _gone(self, bytes: int) -> None:
        self.now -= bytes


def peak_of_step(name: str, shape: tuple[int, ...]) -> int:
    """The most bytes in use at once during a step of one of torchvision's networks, in float32
    with SGD and momentum, beside its images, weights, statistics and momentum."""
    with FakeTensorMode():
        net = getattr(models, name)(weights=None).train()
        optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
        images, targets = torch.empty(shape), torch.zeros(shape[0], dtype=torch.long)
        found = _Storages()
        for _ in range(2):  # the first makes the momentum
            found = _Storages()
            with found:
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(net(images), targets).backward()
                optimizer.step()
    return found.peak
