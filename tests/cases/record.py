"""The record of an operator case: one layer, its inputs, and two independent oracles.

A case says everything that a test of an operator needs and nothing about who computes it, so
that the same records drive the reference, every backend, and fused and unfused variants:

    @pytest.mark.parametrize("case", CASES, ids=str)
    def test_my_backend(case):
        check(case, "float32", run)      # run(graph, inputs, dtype) -> outputs

Records stand in one file per family of operators; ``tests.cases.CASES`` has all of them.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from minidnn.graph.ir import Graph
from minidnn.layers import Layer
from minidnn.layers.build import to_graph

Shape = tuple[int, ...]
Arrays = tuple[np.ndarray, ...]

DTYPES = ("float64", "float32", "float16")

#: Shapes with odd sizes, single pixels and single channels, batches 1 to 3, ranks 2 to 5.
ANY_RANK = (
    (1, 1, 1, 1),
    (2, 3, 5, 7),
    (3, 17, 1, 9),
    (1, 33, 2, 1),
    (2, 5),
    (3, 2, 3),
    (1, 2, 3, 2, 2),
)
PLANES = tuple(shape for shape in ANY_RANK if len(shape) == 4)


@dataclass(frozen=True, kw_only=True)
class Case:
    """One layer with particular arguments.

    ``torch`` makes what PyTorch computes: a module, which takes the layer's state dict, or a
    function of the inputs (and of the parameters by name).  ``formula`` is the same in NumPy,
    written independently; it is given float64.
    """

    name: str
    layer: Callable[[], Layer]
    #: The inputs' shapes, the batch included; one entry for each time the case is run.
    shapes: tuple[tuple[Shape, ...], ...]
    torch: Callable[[], Any]
    formula: Callable[..., np.ndarray]
    dtypes: tuple[str, ...] = DTYPES
    #: Tolerated error in units of the dtype's epsilon and of the element; of the largest
    #: element (``of_largest``) where terms may cancel; or of the sum of the absolute products
    #: (``sums``), for what is a sum of products.  0 means equal numbers.
    ulps: float = 4.0
    of_largest: bool = False
    sums: bool = False
    #: Whether NaN, infinities, signed zeros, subnormal and huge numbers are fed too.
    special: bool = True
    #: Why PyTorch's result for special numbers is not what it should be; then only the formula
    #: is asked.
    torch_differs: str = ""
    #: What the inputs are drawn from.
    draw: Callable[[np.random.Generator, Shape], np.ndarray] = field(
        default=lambda random, shape: 2.0 * random.standard_normal(shape)
    )

    def __str__(self) -> str:
        return self.name

    def network(self) -> Layer:
        """The layer with parameters drawn at random: weights of both signs, variances > 0."""
        layer = self.layer()
        state = {
            name: _draw_parameter(name, parameter.type.shape, parameter.type.dtype)
            for name, parameter in layer.named_parameters()
        }
        layer.load_state_dict(state)
        return layer

    def graph(self, shapes: tuple[Shape, ...]) -> Graph:
        return to_graph(self.network(), shapes)

    def parameters(self, dtype: str = "float64") -> dict[str, np.ndarray]:
        """The network's floating-point parameters, rounded to ``dtype``, as float64."""
        return {
            name: array.astype(dtype).astype(np.float64)
            for name, array in self.network().state_dict().items()
            if array.dtype.kind == "f"
        }

    def inputs(self, shapes: tuple[Shape, ...], dtype: str, special: bool = False) -> Arrays:
        """Inputs, the same in every process; ``special`` mixes extraordinary numbers in."""
        random = np.random.default_rng(zlib.crc32(f"{self.name} {shapes}".encode()))
        arrays = tuple(self.draw(random, shape).astype(dtype) for shape in shapes)
        if special:
            for array in arrays:
                _sprinkle(random, array)
        return arrays

    def variants(self, dtype: str) -> Iterator[tuple[str, tuple[Shape, ...], Arrays]]:
        """Every set of inputs that the case is run on: a description, shapes, arrays."""
        for shapes in self.shapes:
            plain = self.inputs(shapes, dtype)
            yield f"{shapes}", shapes, plain
            yield f"{shapes} not contiguous", shapes, tuple(map(not_contiguous, plain))
            if self.special:
                yield f"{shapes} special", shapes, self.inputs(shapes, dtype, special=True)

    def expected(self, inputs: Arrays, dtype: str) -> np.ndarray:
        """What the formula gives in float64 for inputs and parameters rounded to ``dtype``."""
        given = (array.astype(np.float64) for array in inputs)
        with np.errstate(all="ignore"):
            return np.asarray(self.formula(*given, **self.parameters(dtype)))

    def magnitude(self, inputs: Arrays, dtype: str) -> np.ndarray:
        """For each element, what the tolerated error is measured by."""
        given = [array.astype(np.float64) for array in inputs]
        parameters = self.parameters(dtype)
        if self.sums:
            given = [np.abs(array) for array in given]
            parameters = {name: np.abs(array) for name, array in parameters.items()}
        with np.errstate(all="ignore"):
            size = np.array(np.abs(self.formula(*given, **parameters)))
        size[~np.isfinite(size)] = 0.0
        return np.maximum(size, size.max()) if self.of_largest and size.size else size

    def by_torch(self, inputs: Arrays, dtype: str) -> np.ndarray:
        """What PyTorch computes in ``dtype``."""
        import torch

        kind = getattr(torch, dtype)
        reference = self.torch()
        tensors = [torch.from_numpy(array.copy("C")).to(kind) for array in inputs]
        with torch.no_grad(), one_thread():
            if isinstance(reference, torch.nn.Module):
                state = self.network().state_dict()
                reference.load_state_dict({k: torch.from_numpy(v) for k, v in state.items()})
                return reference.to(kind).eval()(*tensors).numpy()
            own = {k: torch.from_numpy(v).to(kind) for k, v in self.parameters(dtype).items()}
            return reference(*tensors, **own).numpy()


@contextmanager
def one_thread() -> Iterator[None]:
    """Waking threads takes PyTorch longer than these small tensors do."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def like_torch(name: str, kind: str, *args: Any, shapes: Any, **given: Any) -> Case:
    """A case of ``minidnn.layers.<kind>(*args)``, which PyTorch has under the same name with
    the same arguments, or as ``torch=`` computes it.  ``arguments=`` gives those by keyword;
    ``shapes`` are of one input."""
    keywords: Mapping[str, Any] = given.pop("arguments", {})
    return Case(
        name=name,
        layer=partial(_layer, kind, args, keywords),
        torch=given.pop("torch", None) or partial(_torch_module, kind, args, keywords),
        shapes=tuple((shape,) for shape in shapes),
        **given,
    )


def _layer(kind: str, args: tuple[Any, ...], keywords: Mapping[str, Any]) -> Layer:
    from minidnn import layers

    made: Layer = getattr(layers, kind)(*args, **keywords)
    return made


def _torch_module(kind: str, args: tuple[Any, ...], keywords: Mapping[str, Any]) -> Any:
    import torch

    return getattr(torch.nn, kind)(*args, **keywords)


def not_contiguous(array: np.ndarray) -> np.ndarray:
    """An equal array whose axes lie in memory in reverse, with gaps, one of them backwards."""
    wide = np.full(tuple(2 * size for size in reversed(array.shape)), np.nan, array.dtype)
    view = wide[tuple(slice(None, None, 2) for _ in array.shape)].transpose()[::-1]
    view[...] = array
    return view


def specials(dtype: np.dtype) -> np.ndarray:
    """NaN, infinities, signed zeros, subnormal, tiny and huge numbers of a dtype."""
    info = np.finfo(dtype)
    tiny, small, huge = info.smallest_subnormal, info.tiny, np.sqrt(info.max) / 2
    numbers = [0.0, 3 * tiny, tiny, small, huge, np.inf]
    return np.array([np.nan, *numbers, *(-x for x in numbers)], dtype)


def _sprinkle(random: np.random.Generator, array: np.ndarray) -> None:
    """Puts special numbers at places drawn at random, into at most half of them."""
    numbers = random.permutation(specials(array.dtype))
    count = min(len(numbers), max(1, array.size // 2))
    places = random.choice(array.size, count, replace=False)
    array.reshape(-1)[places] = numbers[:count]


def _draw_parameter(name: str, shape: Shape, dtype: str) -> np.ndarray:
    random = np.random.default_rng(zlib.crc32(name.encode()))
    if "int" in dtype:
        return np.zeros(shape, dtype)
    if name.endswith("running_var"):
        return random.uniform(0.25, 4.0, shape).astype(dtype)
    fan_in = int(np.prod(shape[1:])) if len(shape) > 1 else 1
    return (random.standard_normal(shape) / np.sqrt(fan_in)).astype(dtype)
