"""Which parameters a trainer trains, and since which step: layers are frozen and unfrozen."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import copy
from typing import Any

from minidnn.layers.layer import Layer
from minidnn.layers.parameter import changes
from minidnn.training.optim.optimizer import Optimizer
from minidnn.weights.trained import state_name


class TrainedParameters:
    """The parameters of a network that are trained.

    What an optimizer keeps for a parameter begins as 0 when that is first trained, and its
    corrections count from there, as PyTorch's do.

    Args:
        network: whose parameters these are.
        optimizer: what parameters become.
    """

    def __init__(self, network: Layer, optimizer: Optimizer) -> None:
        self._network, self._optimizer = network, optimizer
        #: The step at which each parameter that was ever trained began to be.
        self.begun: dict[str, int] = {}
        #: What of a checkpoint is of parameters that are frozen at present.
        self.waiting: dict[str, Any] = {}
        self._seen = -1
        self._known: Any = ()
        self._names: list[str] = []
        self.has_changed(0)

    def has_changed(self, step: int) -> bool:
        """Whether programs are for other parameters than are trained now, before this step."""
        if self._seen == changes.count:
            return False
        self._seen = changes.count
        names = [name for name, _ in self._network.trainable_parameters()]
        for name in names:
            self.begun.setdefault(name, step)
        frozen = (path for path, layer in self._network.named_layers() if layer.frozen)
        known = (tuple(frozen), *((name, self.begun[name]) for name in names))
        found = known != self._known
        self._known, self._names = known, names
        return found

    def restore(self, begun: Mapping[str, int] | None, waiting: Mapping[str, Any]) -> None:
        """Goes on as a checkpoint says; None if it does not, as all began together then."""
        self.begun = dict.fromkeys(self._names, 0) if begun is None else dict(begun)
        self.waiting = dict(waiting)
        self._seen = -1

    @property
    def starts(self) -> list[int]:
        """The steps at which those that are trained began, each once."""
        return sorted({self.begun[name] for name in self._names}) or [0]

    def numbers(self, step: int) -> list[tuple[str, float]]:
        """What the optimizer gives to a step, by names of inputs of its graph."""
        return [
            (input_name(name, start), number)
            for start in self.starts
            for name, number in _since(self._optimizer, start).numbers(step - start).items()
        ]


def input_name(name: str, start: int) -> str:
    """The name of an optimizer's number for parameters that are trained since a step."""
    return f"{name}.since{start}" if start else name


def _since(optimizer: Optimizer, start: int) -> Optimizer:
    """The optimizer as of parameters that are trained since a step, at the rates of all."""
    if not start:
        return optimizer
    found = copy(optimizer)
    object.__setattr__(found, "lr", lambda step: optimizer.rate(step + start))
    return found


def of_parameters(names: Iterable[str], parameters: Iterable[str]) -> dict[str, str]:
    """The names of states that are kept for some parameters, and which those are."""
    mark = state_name("")
    known = set(parameters)
    return {
        name: parameter
        for name in names
        if (parameter := name.partition(mark)[2]) and parameter in known
    }
