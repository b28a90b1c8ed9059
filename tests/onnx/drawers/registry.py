"""What the drawers of all families share."""

from __future__ import annotations

from collections.abc import Callable

from tests.onnx.random_models import Drawer, RandomModel

FLOATS = ("float32",)
NUMBERS = ("float32", "int64", "int32")
ALL = (*NUMBERS, "bool")


def registrar(drawers: list[Drawer]) -> Callable[[Drawer], Drawer]:
    """A decorator that adds to a list; what it is used on twice is drawn twice as often."""

    def register(draw: Drawer) -> Drawer:
        drawers.append(draw)
        return draw

    return register


def image(m: RandomModel, ranks: tuple[int, ...] = (3, 4)) -> str:
    if m.chance(0.5):
        return m.value(ranks)
    rank = m.draw.choice(ranks)
    return m.input((m.draw.randint(1, 2), m.draw.randint(1, 6), *m.shape(rank - 2, 9)))
