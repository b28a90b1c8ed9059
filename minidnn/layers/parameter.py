"""Parameters, and how the entries of a state dict find them."""

from __future__ import annotations

import copy
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from minidnn._habits import PARAMETER, absent
from minidnn.errors import GraphError, WeightsError
from minidnn.graph.types import TensorType, numpy_dtype
from minidnn.layers.copying import importable

__all__ = ["Parameter"]

Initializer = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]


class LazyArray:
    """An array that is made when it is first asked for."""

    def __init__(
        self, make: Callable[[], np.ndarray] | None, array: np.ndarray | None = None
    ) -> None:
        self._make = make
        self._array = array

    def __call__(self) -> np.ndarray:
        make = self._make  # another thread lets go of it once the array is there
        if self._array is None:
            assert make is not None
            self._array = make()
            self._make = None
        return self._array


class Parameter:
    """A named array of a layer: a weight, or a stored statistic.

    It is drawn by its initializer when it is first needed, from a seed and its name in the
    network, so that defining a network costs no time and its numbers do not depend on the order
    of anything.  Without :meth:`Layer.initialize`, the seed is 0 and the name is the one under
    which a graph or a state dict first asks for it.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        initializer: Initializer,
        dtype: str = "float32",
        *,
        optional: bool = False,
    ) -> None:
        self.type = TensorType(tuple(shape), dtype)
        self.initializer = initializer
        #: Whether a state dict may lack it (PyTorch's ``num_batches_tracked``).
        self.optional = optional
        self._array: LazyArray | None = None

    if not TYPE_CHECKING:  # a type checker that saw this would accept any name

        def __getattr__(self, name: str) -> Any:
            """Raises AttributeError, which says for names of training that there is none."""
            absent(self, name, PARAMETER)

    def initialize(self, seed: int, name: str) -> None:
        """Draws the parameter anew from ``seed`` and ``name``, when it is next needed."""
        self._array = LazyArray(partial(_drawn, self.initializer, self.type, seed, name))

    def bind(self, name: str) -> LazyArray:
        """The array as it now is, initialized with seed 0 if it never was."""
        if self._array is None:
            self.initialize(0, name)
        assert self._array is not None
        return self._array

    def assign(self, array: np.ndarray) -> None:
        """Sets the array, which must have the parameter's shape, to a copy in its dtype."""
        if array.shape != self.type.shape:
            raise WeightsError(f"shape {array.shape} given, {self.type.shape} expected")
        with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite
            held = array.astype(numpy_dtype(self.type.dtype))
        self._array = LazyArray(None, held)

    def __getstate__(self) -> dict[str, Any]:
        """What pickle keeps: of an initializer that it would not find again, its numbers alone."""
        state = dict(vars(self))
        if not importable(self.initializer):
            state["initializer"] = partial(_lost, repr(self.initializer))
            if self._array is not None:
                state["_array"] = LazyArray(None, self._array())
        return state

    def __copy__(self) -> Parameter:
        twin = Parameter(self.type.shape, self.initializer, self.type.dtype, optional=self.optional)
        twin._array = self._array
        return twin

    def __deepcopy__(self, memo: dict[int, Any]) -> Parameter:
        twin = copy.copy(self)
        twin._array = copy.deepcopy(self._array, memo)
        return twin


def _drawn(initializer: Initializer, type: TensorType, seed: int, name: str) -> np.ndarray:
    random = np.random.default_rng([seed, zlib.crc32(name.encode())])
    return initializer(random, type.shape).astype(numpy_dtype(type.dtype), copy=False)


def _lost(initializer: str, random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    raise GraphError(
        f"a parameter of shape {shape} cannot be drawn anew: it was unpickled, and its initializer "
        f"{initializer} could not be pickled; valid is a function at the top of a module"
    )


def filled(value: float) -> Initializer:
    """The initializer that gives one number everywhere."""
    return partial(_filled, value)


def _filled(value: float, random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return np.full(shape, value, np.float32)


@dataclass(frozen=True)
class Matched:
    """Which array goes to which parameter, and everything that does not fit."""

    arrays: list[tuple[Parameter, np.ndarray]]
    problems: list[str]


def match_state(
    named: Sequence[tuple[str, Parameter]],
    state: Mapping[str, Any],
    ignored: tuple[str, ...],
    strict: bool,
) -> Matched:
    """Matches a state dict with parameters, each of which may have several names.

    Entries that begin with one of ``ignored`` are tolerated; ``strict=False`` tolerates
    missing and unexpected ones too.
    """
    names: dict[Parameter, list[str]] = {}
    for name, parameter in named:
        names.setdefault(parameter, []).append(name)
    found = Matched([], [])
    for parameter, aliases in names.items():
        given = [name for name in aliases if name in state]
        if not given and strict and not parameter.optional:
            found.problems.append(f"missing: {aliases[0]} {parameter.type}")
        arrays = [_array(name, state[name], parameter.type, found.problems) for name in given]
        fitting = [array for array in arrays if array is not None]
        for name, array in zip(given[1:], fitting[1:], strict=False):
            if not np.array_equal(array, fitting[0], equal_nan=array.dtype.kind == "f"):
                found.problems.append(
                    f"contradiction: {given[0]} and {name} are one shared parameter, but differ"
                )
        if fitting:
            found.arrays.append((parameter, fitting[0]))
    if strict:
        known = {name for name, _ in named}
        found.problems.extend(
            f"unexpected: {name}"
            for name in state
            if name not in known and not (isinstance(name, str) and name.startswith(ignored))
        )
    return found


def _array(name: str, given: Any, type: TensorType, problems: list[str]) -> np.ndarray | None:
    """The entry as an array; None, with a problem added, if it does not fit.

    PyTorch's tensors need not be detached, and may have a dtype that NumPy lacks.
    """
    try:
        given = given.detach() if hasattr(given, "detach") else given
        bfloat16 = str(getattr(given, "dtype", "")) == "torch.bfloat16"
        array = np.asarray(given.float() if bfloat16 else given)
    except (TypeError, ValueError, RuntimeError) as error:
        problems.append(f"not an array: {name} ({error})")
        return None
    if array.shape != type.shape:
        problems.append(f"wrong shape: {name} is {array.shape}, valid is {type.shape}")
        return None
    kinds, valid = ("f", "a float dtype") if "float" in type.dtype else ("iu", "an int dtype")
    if array.dtype.kind not in kinds:
        problems.append(f"wrong dtype: {name} is {array.dtype}, valid is {valid}")
        return None
    return array
