"""Normalizations."""

from __future__ import annotations

from tests.onnx.random_models import Drawer, RandomModel

from .registry import image, registrar

DRAWERS: list[Drawer] = []
_drawer = registrar(DRAWERS)


@_drawer
def batch_norm(m: RandomModel) -> None:
    x = m.value((2, 3, 4)) if m.opset < 9 else m.value((2, 3, 4, 5))
    channels = m.arrays[x].shape[1:2]
    attributes = m.maybe({"epsilon": 0.01, "momentum": 0.5})
    shape = channels
    if m.opset < 9 and m.chance(0.4):
        attributes["spatial"] = 0
        shape = m.arrays[x].shape[1:]
    vectors = [m.weight(shape), m.weight(shape), m.weight(shape), m.weight(shape, positive=True)]
    m.add("BatchNormalization", [x, *vectors], **attributes)


@_drawer
def other_norms(m: RandomModel) -> None:
    # Of inputs alone: what is nearly constant has statistics that are all rounding.
    x = m.input((*m.shape(1, 2), 4, *(n + 2 for n in m.shape(m.draw.randint(1, 2)))))
    shape = m.arrays[x].shape
    epsilon = m.maybe({"epsilon": 0.01})
    kind = m.draw.choice(["InstanceNormalization", "LayerNormalization", "GroupNormalization"])
    if kind == "InstanceNormalization":
        m.add(kind, [x, m.weight(shape[1:2]), m.weight(shape[1:2])], **epsilon)
    elif kind == "LayerNormalization" and m.opset >= 17:
        axis = m.draw.randint(1, len(shape) - 1)
        operands = [x, m.weight(shape[axis:])]
        if m.chance(0.5):
            operands.append(m.weight(shape[axis:]))
        axis -= len(shape) * m.chance(0.5)
        m.add(kind, operands, m.draw.choice([1, 1, 3]), axis=axis, **epsilon)
    elif kind == "GroupNormalization" and m.opset >= 18:
        per = shape[1:2] if m.opset >= 21 else (2,)
        m.add(kind, [x, m.weight(per), m.weight(per)], num_groups=2, **epsilon)


@_drawer
def lrn(m: RandomModel) -> None:
    x = image(m, (4,))
    attributes = m.maybe({"alpha": 0.02, "beta": 0.5, "bias": 2.0})
    m.add("LRN", [x], size=m.draw.choice([1, 3, 5, 2, 4]), **attributes)


@_drawer
def softmax(m: RandomModel) -> None:
    x = m.value((1, 2, 3, 4))
    rank = m.arrays[x].ndim
    axis = m.draw.randint(-rank if m.opset >= 11 else 0, rank - 1)
    kind = m.draw.choice(["Softmax", "LogSoftmax", "Hardmax"])
    if kind == "Hardmax":
        x = m.value((1, 2, 3, 4), exact=True)
        axis %= m.arrays[x].ndim
    m.add(kind, [x], exact=kind == "Hardmax", **m.maybe({"axis": axis}, 0.7))
