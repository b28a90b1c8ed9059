"""Random networks to be trained: branches, values with several readers, layers used twice.

A network is a list of steps, each a layer or a function of values that were computed before.
Layers and functions have the same names and arguments in minidnn and in PyTorch, so that both run
the same list.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from minidnn import layers as L
from minidnn.gradients.reverse import gradient
from minidnn.training.losses import CrossEntropy
from minidnn.training.step import Objective

Shape = tuple[int, ...]
CLASSES = 3

#: Functions of one value, which keep its shape.
ONE: dict[str, Callable[[Any], Any]] = {
    "twice": lambda x: x + x,
    "square": lambda x: x * x * 0.5,
    "ratio": lambda x: x / (1.0 + abs(x)),
    "centred": lambda x: x - x.mean((2, 3), True),
    "turn": lambda x: x.permute(0, 1, 3, 2),
    "scaled": lambda x: x * (x.mean(1, True) + 0.5),
}
#: Functions of two values of one shape.
TWO: dict[str, Callable[[Any, Any], Any]] = {
    "sum": lambda x, y: x + y,
    "difference": lambda x, y: x - 0.5 * y,
    "product": lambda x, y: x * y,
    "gate": lambda x, y: x / (2.0 + y * y),
}
ACTIVATIONS = [
    *((name, ()) for name in ("ReLU", "ReLU6", "SiLU", "GELU", "Sigmoid", "Tanh", "Hardswish")),
    ("ELU", (0.7,)),
    ("LeakyReLU", (0.1,)),
]


@dataclass(frozen=True)
class Step:
    """A layer by its place, or a function by its name, of values by their places."""

    what: int | str
    operands: tuple[int, ...]


@dataclass(frozen=True)
class Recipe:
    """A network for one input: value 0.  Those of ``ends`` go to the loss."""

    shape: Shape
    layers: tuple[tuple[str, tuple[Any, ...], dict[str, Any]], ...]
    steps: tuple[Step, ...]
    ends: tuple[int, ...]
    #: Channels of each of them.
    widths: tuple[int, ...]

    def made(self, library: Any) -> list[Any]:
        """The layers of minidnn.layers or torch.nn; the last makes classes."""
        every = [*self.layers, ("Linear", (sum(self.widths), CLASSES), {})]
        return [getattr(library, name)(*given, **named) for name, given, named in every]

    def run(self, layers: Sequence[Any], concat: Callable[..., Any], x: Any) -> Any:
        """The classes' logits."""
        values = [x]
        for step in self.steps:
            given = [values[place] for place in step.operands]
            values.append(_called(step.what, layers, concat, given))
        pooled = [values[end].mean((2, 3)) for end in self.ends]
        return layers[-1](pooled[0] if len(pooled) == 1 else concat(pooled, 1))


def _called(
    what: int | str, layers: Sequence[Any], concat: Callable[..., Any], given: list[Any]
) -> Any:
    if isinstance(what, int):
        return layers[what](*given)
    if what == "concat":
        return concat(given, 1)
    return ONE[what](*given) if what in ONE else TWO[what](*given)


class Ours(L.Layer):
    def __init__(self, recipe: Recipe) -> None:
        self.recipe, self.layers = recipe, L.Sequential(*recipe.made(L))

    def forward(self, x: Any) -> Any:
        return self.recipe.run(list(self.layers), np.concatenate, x)


class Theirs(torch.nn.Module):
    def __init__(self, recipe: Recipe) -> None:
        super().__init__()
        self.recipe, self.layers = recipe, torch.nn.Sequential(*recipe.made(torch.nn))

    def forward(self, x: Any) -> Any:
        return self.recipe.run(list(self.layers), torch.cat, x)


def draw(
    seed: int, least: int = 3, most: int = 9, shapes: Sequence[Shape] = (), width: int = 4
) -> Recipe:
    """The network of a seed, of so many steps, for an input of one of these shapes or of any;
    convolutions give at most ``width`` channels for each group."""
    return _Draw(np.random.default_rng(seed), least, most, shapes, width).recipe()


class _Draw:
    def __init__(
        self,
        random: np.random.Generator,
        least: int,
        most: int,
        shapes: Sequence[Shape],
        width: int,
    ) -> None:
        self.random, self.width = random, width
        self.count = self.number(least, most)
        plane = (self.number(2, 7), self.number(2, 7))
        own = (self.number(2, 3), self.number(1, 6), *plane)
        self.shapes: list[Shape] = [self.one_of(shapes) if shapes else own]
        self.layers: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        self.steps: list[Step] = []

    def recipe(self) -> Recipe:
        while len(self.steps) < self.count:
            getattr(self, self.one_of(["_layer", "_layer", "_again", "_function", "_two"]))()
        read = {place for step in self.steps for place in step.operands}
        ends = tuple(i for i in range(len(self.shapes)) if i not in read)
        widths = tuple(self.shapes[i][1] for i in ends)
        return Recipe(self.shapes[0], tuple(self.layers), tuple(self.steps), ends, widths)

    def one_of(self, given: Sequence[Any]) -> Any:
        return given[int(self.random.integers(len(given)))]

    def number(self, least: int, most: int) -> int:
        return int(self.random.integers(least, most + 1))

    def place(self) -> int:
        """Recent values are preferred, so that graphs become deep as well as wide."""
        last = len(self.shapes) - 1
        return last if self.random.random() < 0.5 else self.number(0, last)

    def add(self, what: int | str, shape: Shape, *operands: int) -> None:
        self.steps.append(Step(what, operands))
        self.shapes.append(shape)

    def _layer(self) -> None:
        place = self.place()
        batch, channels, *size = self.shapes[place]
        kinds = ["_conv", "_conv", "_transposed", "_norm", "_norm", "_activation", "_pool", "_move"]
        name, given, named, channels, size = getattr(self, self.one_of(kinds))(channels, size)
        if min(size) < 1 or max(size) > 12:
            return
        self.layers.append((name, given, named))
        self.add(len(self.layers) - 1, (batch, channels, *size), place)

    def _conv(self, channels: int, size: list[int]) -> Any:
        groups = self.one_of([g for g in (1, 1, 2, 3, channels) if channels % g == 0])
        made = groups * self.number(1, self.width if groups < channels else 2)
        kernel = self.one_of([(1, 1), (3, 3), (3, 3), (2, 3)])
        stride, dilation = self.one_of([(1, 1), (1, 1), (2, 1), (2, 2)]), self.one_of([1, 1, 2])
        padding = (kernel[0] // 2, kernel[1] // 2)
        named = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
        named["bias"] = bool(self.random.random() < 0.5)
        axes = zip(size, kernel, stride, padding, strict=True)
        sizes = [(n + 2 * p - dilation * (k - 1) - 1) // s + 1 for n, k, s, p in axes]
        return "Conv2d", (channels, made, kernel), named, made, sizes

    def _transposed(self, channels: int, size: list[int]) -> Any:
        made, kernel, stride = self.number(1, self.width), self.one_of([2, 3]), self.one_of([1, 2])
        sizes = [(n - 1) * stride + kernel for n in size]
        return "ConvTranspose2d", (channels, made, kernel, stride), {}, made, sizes

    def _norm(self, channels: int, size: list[int]) -> Any:
        kinds: list[Any] = [("BatchNorm2d", (channels,))]
        if np.prod(size) > 2:
            groups = [g for g in (1, 2, 3) if channels % g == 0]
            kinds += [
                ("GroupNorm", (self.one_of(groups), channels)),
                ("InstanceNorm2d", (channels,)),
                ("LayerNorm", ((channels, *size),)),
            ]
        name, given = self.one_of(kinds)
        return name, given, {}, channels, size

    def _activation(self, channels: int, size: list[int]) -> Any:
        name, given = self.one_of([*ACTIVATIONS, ("Softmax", (1,)), ("LogSoftmax", (1,))])
        return name, given, {}, channels, size

    def _pool(self, channels: int, size: list[int]) -> Any:
        if self.random.random() < 0.25:
            made = [self.number(1, 3), self.number(1, 3)]
            return "AdaptiveAvgPool2d", (tuple(made),), {}, channels, made
        kernel, stride = self.one_of([2, 3]), self.one_of([1, 2])
        padding = self.one_of([0, 1])
        sizes = [(n + 2 * padding - kernel) // stride + 1 for n in size]
        name = self.one_of(["MaxPool2d", "AvgPool2d"])
        return name, (kernel, stride, padding), {}, channels, sizes

    def _move(self, channels: int, size: list[int]) -> Any:
        rows, columns = size
        if self.random.random() < 0.5:
            mode = self.one_of(["nearest", "bilinear"])
            return "Upsample", (None, 2, mode), {}, channels, [2 * rows, 2 * columns]
        names = ["ZeroPad2d", "ReplicationPad2d", *(["ReflectionPad2d"] if min(size) > 1 else [])]
        name = self.one_of(names)
        return name, ((1, 0, 1, 1),), {}, channels, [rows + 2, columns + 1]

    def _again(self) -> None:
        """A layer a second time, of another value: shared weights."""
        place = self.number(0, len(self.steps))
        used = {s.what: s for s in self.steps if isinstance(s.what, int)}
        fit = [(k, s) for k, s in used.items() if self.shapes[s.operands[0]] == self.shapes[place]]
        if fit:
            what, step = self.one_of(fit)
            self.add(what, self.shapes[self.steps.index(step) + 1], place)

    def _function(self) -> None:
        place = self.place()
        batch, channels, rows, columns = self.shapes[place]
        name = self.one_of(list(ONE))
        size = (columns, rows) if name == "turn" else (rows, columns)
        self.add(name, (batch, channels, *size), place)

    def _two(self) -> None:
        place = self.place()
        shape = self.shapes[place]
        if self.random.random() < 0.3:
            most = 2 * self.width
            fit = [i for i, s in enumerate(self.shapes) if s[2:] == shape[2:] and s[1] <= most]
            other = self.one_of(fit) if fit else place
            channels = shape[1] + self.shapes[other][1]
            if channels <= 4 * self.width:
                self.add("concat", (shape[0], channels, *shape[2:]), place, other)
            return
        fit = [i for i, s in enumerate(self.shapes) if s == shape]
        self.add(self.one_of(list(TWO)), shape, place, self.one_of(fit))


class Trained:
    """A network with a batch and its loss, and the graph of the gradients by all its parameters
    and by its input.

    Its outputs are "loss", and "gradient.x" and the like.
    """

    def __init__(self, recipe: Recipe, seed: int) -> None:
        self.recipe = recipe
        self.network = Ours(recipe)
        random = np.random.default_rng(seed)
        state = {
            name: _numbers(random, name, array) for name, array in self.network.state_dict().items()
        }
        self.network.load_state_dict(state)
        self.state = state
        x = random.standard_normal(recipe.shape).astype(np.float32)
        self.batch: list[np.ndarray] = [x, random.integers(0, CLASSES, recipe.shape[0])]
        graph = Objective(CrossEntropy(), {}).applied(self.network, recipe.shape, "train")
        self.names = [name for name, _ in self.network.trainable_parameters()]
        self.graph = gradient(graph, "loss", [graph.inputs[0].name, *self.names])

    def by_torch(self, dtype: Any) -> dict[str, np.ndarray]:
        """The outputs by PyTorch, computed in ``dtype``."""
        net = Theirs(self.recipe).train()
        net.load_state_dict({k: torch.from_numpy(v) for k, v in self.state.items()})
        net.to(torch.from_numpy(np.empty(0, dtype)).dtype)
        x = torch.from_numpy(self.batch[0].astype(dtype)).requires_grad_()
        loss = torch.nn.functional.cross_entropy(net(x), torch.from_numpy(self.batch[1]))
        parameters = dict(net.named_parameters())
        found = torch.autograd.grad(
            loss, [x, *(parameters[name] for name in self.names)], materialize_grads=True
        )
        names = self.graph.output_names
        assert names is not None
        return dict(zip(names, [loss.detach().numpy(), *(g.numpy() for g in found)], strict=True))


def _numbers(random: np.random.Generator, name: str, array: np.ndarray) -> np.ndarray:
    """Weights as large as keeps values near 1, and of normalizations numbers near 1."""
    if array.dtype.kind != "f" or "running" in name:
        return array
    if array.ndim < 2:
        return random.uniform(0.5, 1.5, array.shape).astype(np.float32)
    size = np.sqrt(1.0 / max(1, array[0].size))
    return np.asarray(random.standard_normal(array.shape) * size, np.float32)
