"""Running a network's code once without a trace of it: what it writes is put back."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import nn

_CONTAINERS = (list, dict, set)


@contextlib.contextmanager
def unchanged(network: nn.Module) -> Iterator[None]:
    """Puts back, at the end, attributes of all modules, what lists, dicts and sets among them hold,
    buffers, and the state of generators of random numbers."""
    modules = list(network.modules())
    before = [_copied(vars(module)) for module in modules]
    tensors = [(each, each.detach().clone()) for each in network.buffers()]
    states = random.getstate(), np.random.get_state()
    devices = {each.device.index for each in network.parameters() if each.is_cuda}
    try:
        with torch.random.fork_rng(devices):
            yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        for module, kept in zip(modules, before, strict=True):
            _put_back(vars(module), kept)
        with torch.no_grad():
            for tensor, value in tensors:
                if not torch.equal(tensor, value):  # a write would have programs compiled again
                    tensor.copy_(value)


def _copied(attributes: dict[str, Any]) -> dict[str, Any]:
    """Attributes, and what containers among them hold."""
    return {
        name: (value, value.copy() if type(value) in _CONTAINERS else None)
        for name, value in attributes.items()
    }


def _put_back(attributes: dict[str, Any], kept: dict[str, Any]) -> None:
    for name in [*attributes]:
        if name not in kept:
            del attributes[name]
    for name, (value, held) in kept.items():
        if attributes.get(name) is not value:
            attributes[name] = value
        if held is not None and value != held:
            value.clear()
            value.extend(held) if isinstance(value, list) else value.update(held)
