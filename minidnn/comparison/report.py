"""What a comparison needs of a model's own engine, and what it found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from minidnn.graph.ir import Graph, Value

#: Layers that a report shows before and after the first that differs.
AROUND = 3


@dataclass(frozen=True)
class ComparedValue:
    """One value of the model, as both compute it.

    Attributes:
        name: what the model calls it.
        kind: the operator that computes it, or "output".
        shape: of the value.
        deviation: the largest difference as a part of the value's largest finite number; infinite
            where one of them is not finite and the other not the same.
        place: where the largest difference is.
        original, ours: what the two compute there.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    deviation: float
    place: tuple[int, ...]
    original: float
    ours: float

    def __str__(self) -> str:
        at = f"at {self.place} {self.original:.6g} became {self.ours:.6g}"
        return f"{self.name} ({self.kind}, {self.shape}): {self.deviation:.3g}, {at}"


@dataclass(frozen=True)
class Comparison:
    """A model in its original engine and in minidnn.

    Attributes:
        engine: the original one, with its version.
        device: minidnn's.
        tolerance: the largest deviation that counts as equal.
        layers: all values that both compute, in order; to be seen, they are all written, so that
            less is fused than usual.
        outputs: the results of the network as it is usually compiled.
    """

    engine: str
    device: str
    tolerance: float
    layers: Sequence[ComparedValue]
    outputs: Sequence[ComparedValue]

    @property
    def first(self) -> ComparedValue | None:
        """The first layer that differs by more than the tolerance."""
        return next((layer for layer in self.layers if self._differs(layer)), None)

    @property
    def equal(self) -> bool:
        """Whether nothing differs by more than the tolerance."""
        return self.first is None and not any(map(self._differs, self.outputs))

    def _differs(self, layer: ComparedValue) -> bool:
        return not layer.deviation <= self.tolerance

    def __str__(self) -> str:
        worst = max((layer.deviation for layer in self.layers), default=0.0)
        lines = [
            f"{len(self.layers)} layers in {self.engine} and in minidnn on device {self.device!r}: "
            f"the largest deviation is {worst:.3g}; the tolerance is {self.tolerance:.3g}"
        ]
        first = self.first
        if first is not None:
            at = list(self.layers).index(first)
            lines.append(f"the first layer that differs is {first}")
            for i in range(max(0, at - AROUND), min(len(self.layers), at + AROUND + 1)):
                lines.append(f"  {'>' if i == at else ' '} {self.layers[i]}")
        for output in self.outputs:
            lines.append(f"compiled as usual, {output}")
        if first is None and not self.equal:
            lines.append(
                "it differs only when it is fused: minidnn bisect finds the rewrite that does it"
            )
        return "\n".join(lines)


def compared(name: str, kind: str, original: np.ndarray, ours: np.ndarray) -> ComparedValue:
    """Both results of one value."""
    one, other = (np.asarray(array).astype(np.float64) for array in (original, ours))
    if one.shape != other.shape:
        return ComparedValue(name, kind, one.shape, np.inf, (), np.nan, np.nan)
    if not one.size:
        return ComparedValue(name, kind, one.shape, 0.0, (), 0.0, 0.0)
    finite = np.isfinite(one) & np.isfinite(other)
    same = (one == other) | (np.isnan(one) & np.isnan(other))
    with np.errstate(all="ignore"):
        apart = np.where(same, 0.0, np.where(finite, np.abs(one - other), np.inf))
    place = tuple(int(i) for i in np.unravel_index(int(np.argmax(apart)), apart.shape))
    scale = float(np.abs(one[np.isfinite(one)]).max(initial=0.0)) or 1.0
    worst = float(apart[place]) / scale
    return ComparedValue(
        name, kind, one.shape, worst, place, float(one[place]), float(other[place])
    )


@dataclass(frozen=True)
class Original:
    """A model as its own engine runs it.

    Attributes:
        engine: its name and version.
        graph: minidnn's graph of the model.
        layers: name, kind and value of each layer, in order.
        outputs: the graph's outputs, by name.
        inputs: for the graph.
        results: what the engine computes, by name.
    """

    engine: str
    graph: Graph
    layers: Sequence[tuple[str, str, Value]]
    outputs: Sequence[str]
    inputs: Sequence[np.ndarray]
    results: Mapping[str, np.ndarray]
