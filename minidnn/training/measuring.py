"""What epochs and evaluations measure: means over samples, and metrics of all of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from minidnn.training.feeding import Feeding, on_host
from minidnn.training.launches import means
from minidnn.training.metrics.metric import Metric, States, merged
from minidnn.training.objective import HIDDEN, Objective

_SEPARATOR = "/"


class SetMeasures:
    """What metrics keep of the batches so far.

    Args:
        objective: whose metrics these are.
        feeding: what batches mean.
    """

    def __init__(self, objective: Objective, feeding: Feeding) -> None:
        self._metrics = [m for m in objective.measures if isinstance(m.function, Metric)]
        self._terms = [term.name for term in objective.terms]
        self._feeding = feeding
        self.states: dict[str, States] = {}

    def see(
        self,
        found: Mapping[str, Any],
        targets: Sequence[Any],
        shapes: tuple[tuple[int, ...], ...],
    ) -> None:
        """Takes in a batch: what the program gave, and its targets."""
        for measure in self._metrics:
            metric: Any = measure.function
            seen: list[np.ndarray] = []
            while (name := f"{HIDDEN}{measure.name}.{len(seen)}") in found:
                seen.append(on_host(found[name]))
            i = self._terms.index(measure.term) if measure.term in self._terms else 0
            shape = self._feeding.output_shape(measure.term, shapes)
            new = metric.taken(seen, on_host(targets[i]), shape)
            self.states[measure.name] = merged(metric, self.states.get(measure.name), new)

    def results(self) -> dict[str, Any]:
        """What the metrics come to, by name: numbers and arrays."""
        found = {}
        for measure in self._metrics:
            if measure.name in self.states:
                metric: Any = measure.function
                found[measure.name] = metric.result(self.states[measure.name])
        return found

    def arrays(self) -> dict[str, np.ndarray]:
        """What is kept, by names for a file."""
        return {
            f"{name}{_SEPARATOR}{key}": np.asarray(array)
            for name, states in self.states.items()
            for key, array in states.items()
        }

    def take(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Sets what :meth:`arrays` gave; what is of no metric of these is left out."""
        found: dict[str, dict[str, np.ndarray]] = {}
        known = {measure.name for measure in self._metrics}
        for name, array in arrays.items():
            metric, _, key = name.rpartition(_SEPARATOR)
            if metric in known:
                found.setdefault(metric, {})[key] = np.array(array)
        self.states = dict(found)

    def gather(self, group: Any) -> None:
        """Joins what all ranks keep, of which each keeps all then."""
        found = {}
        for measure in self._metrics:
            metric: Any = measure.function
            found[measure.name] = {
                key: (_summed if metric.adds else _joined)(group, array)
                for key, array in sorted(self.states.get(measure.name, {}).items())
            }
        self.states = {name: states for name, states in found.items() if states}


def over_ranks(
    group: Any, sums: Mapping[str, float], samples: int, names: Iterable[str]
) -> tuple[dict[str, float], int]:
    """The sums of all ranks by these names, and the samples of all.

    What counts is known of the ranks that have it, of others it is their samples.
    """
    every = [*names]
    hidden = [HIDDEN + name for name in every]
    own = [*(sums.get(n, 0.0) for n in every), *(sums.get(n, float(samples)) for n in hidden)]
    there = [float(name in sums) for name in hidden]
    found = group.sum_of([*own, *there, samples])
    many = len(every)
    means = dict(zip(every, found[:many], strict=True))
    counts = zip(hidden, found[many : 2 * many], found[2 * many : -1], strict=True)
    return means | {name: count for name, count, is_there in counts if is_there}, int(found[-1])


def _summed(group: Any, array: np.ndarray) -> np.ndarray:
    found = np.array(group.sum_of(np.asarray(array, np.float64).reshape(-1).tolist()))
    return found.reshape(array.shape).astype(array.dtype)


def _joined(group: Any, array: np.ndarray) -> np.ndarray:
    """The arrays of all ranks one behind the other: each adds zeros in the places of others."""
    own = [0.0] * group.size
    own[group.place.rank] = float(len(array))
    counts = [int(count) for count in group.sum_of(own)]
    whole = np.zeros((sum(counts), *array.shape[1:]), np.float64)
    begin = sum(counts[: group.place.rank])
    whole[begin : begin + len(array)] = array
    found = np.array(group.sum_of(whole.reshape(-1).tolist()))
    return found.reshape(whole.shape).astype(array.dtype)


def public(found: Mapping[str, Any]) -> dict[str, Any]:
    """The results of a program that are for users."""
    return {name: value for name, value in found.items() if not name.startswith(HIDDEN)}


def totalled(objective: Objective, sums: Mapping[str, float], samples: int) -> dict[str, float]:
    """The means over samples by name; that of all losses is made of the means of each, which may
    count otherwise."""
    found = means(sums, samples)
    if objective.totals and all(name in found for name in objective.totals):
        found["loss"] = sum(f * found[name] for name, f in objective.totals.items())
    return found


def numbers_and_tables(found: Mapping[str, Any]) -> tuple[dict[str, float], dict[str, Any]]:
    """Which results are numbers, and which are arrays."""
    tables = {name: value for name, value in found.items() if np.ndim(value)}
    return {n: float(v) for n, v in found.items() if n not in tables}, tables
