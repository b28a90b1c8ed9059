"""Operators that place elements, and arithmetic on shapes."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.onnx.random_models import Drawer, RandomModel

from .registry import ALL, FLOATS, NUMBERS, registrar

DRAWERS: list[Drawer] = []
_drawer = registrar(DRAWERS)


@_drawer
def concat(m: RandomModel) -> None:
    x = m.value((1, 2, 3, 4), ALL)
    shape, dtype = m.arrays[x].shape, str(m.arrays[x].dtype)
    axis = m.draw.randrange(len(shape))
    operands = [x]
    for _ in range(m.draw.randint(0, 3)):
        size = (*shape[:axis], m.draw.randint(1, 3), *shape[axis + 1 :])
        array = m.numbers(size, dtype)
        operands.append(m.constant(array) if m.chance(0.4) else m.input(size, dtype))
    m.draw.shuffle(operands)
    axis -= len(shape) * (m.opset >= 11 and m.chance(0.3))
    m.add("Concat", operands, exact=True, axis=axis)


@_drawer
def split(m: RandomModel) -> None:
    x = m.value((1, 2, 3, 4), NUMBERS)
    shape = m.arrays[x].shape
    axis = m.draw.randrange(len(shape))
    size = shape[axis]
    count = m.draw.randint(1, min(size, 3))
    attributes: dict[str, Any] = m.maybe({"axis": axis}, 1.0 if axis else 0.5)
    operands = [x]
    sizes = [1] * (count - 1) + [size - count + 1]
    m.draw.shuffle(sizes)
    if m.chance(0.6):
        if m.opset < 13:
            attributes["split"] = sizes
        else:
            operands.append(m.constant(sizes, "int64"))
    elif m.opset >= 18:
        attributes["num_outputs"] = count
    m.add("Split", operands, count, exact=True, **attributes)


@_drawer
def units_of_channels(m: RandomModel) -> None:
    """Shuffles, splits and joins of channels one after another, as in ShuffleNet's units."""
    images, groups, each, rows, columns = (m.draw.randint(1, most) for most in (2, 3, 3, 7, 7))
    channels = groups * each
    x: str | None = m.input((images, channels, rows, columns))
    for _ in range(m.draw.randint(1, 3)):
        apart = m.constant([images, groups, each, rows, columns], "int64")
        turned = m.step("Transpose", m.step("Reshape", x, apart), perm=[0, 2, 1, 3, 4])
        x = m.step("Reshape", turned, m.constant([images, -1, rows, columns], "int64"))
        if x is None or channels == 1:
            return
        sizes = [1, channels - 1]
        if m.opset < 13:
            parts = m.add("Split", [x], 2, exact=True, axis=1, split=sizes)
        else:
            parts = m.add("Split", [x, m.constant(sizes, "int64")], 2, exact=True, axis=1)
        if not parts:
            return
        m.draw.shuffle(parts)
        x = m.step("Concat", parts[0], m.step("Relu", parts[1]), axis=1)


@_drawer
def slices(m: RandomModel) -> None:
    x = m.value((1, 2, 3, 4), ALL)
    shape = m.arrays[x].shape
    axes = m.draw.sample(range(len(shape)), m.draw.randint(1, len(shape)))
    starts = [m.draw.randint(-n, n - 1) if m.chance(0.8) else m.draw.choice([-99, 0]) for n in (
        shape[a] for a in axes
    )]  # fmt: skip
    ends = [m.draw.choice([m.draw.randint(-shape[a], shape[a]), 2**40, 99]) for a in axes]
    if m.opset < 10:
        m.add("Slice", [x], exact=True, starts=starts, ends=ends, axes=axes)
        return
    steps = [m.draw.choice([1, 1, 2, 3, -1, -2]) for _ in axes]
    ends = [m.draw.choice([-(2**40), 0]) if step < 0 else end for end, step in zip(
        ends, steps, strict=True
    )]  # fmt: skip
    if m.chance(0.3):
        axes = [a - len(shape) for a in axes]
    whole = m.draw.choice(["int64", "int32"])
    limit = np.iinfo(np.int32)
    if whole == "int32":
        ends = [max(int(limit.min), min(int(limit.max), end)) for end in ends]
    operands = [x, *(m.constant(each, whole) for each in (starts, ends, axes, steps))]
    m.add("Slice", operands, exact=True)


@_drawer
def reshape(m: RandomModel) -> None:
    x = m.value((1, 2, 3, 4), ALL)
    array = m.arrays[x]
    kind = m.draw.choice(["Reshape", "Flatten", "Transpose", "Squeeze", "Unsqueeze"])
    if kind == "Flatten":
        axis = m.draw.randint(-array.ndim if m.opset >= 11 else 0, array.ndim)
        m.add(kind, [x], exact=True, **m.maybe({"axis": axis}))
    elif kind == "Transpose":
        perm = m.draw.sample(range(array.ndim), array.ndim)
        m.add(kind, [x], exact=True, **m.maybe({"perm": perm}, 0.8))
    elif kind == "Reshape":
        first = array.shape[0]
        target = m.draw.choice(
            [[-1], [0, -1], [1, -1], [first, -1], [-1, 1, first], list(array.shape[::-1])]
        )
        m.add(kind, [x, m.constant(target, "int64")], exact=True)
    else:
        ones = [axis for axis, size in enumerate(array.shape) if size == 1]
        axes = m.draw.sample(ones, m.draw.randint(1, len(ones))) if ones else []
        if kind == "Unsqueeze":
            axes = m.draw.sample(range(array.ndim + 2), 2)
        if not axes:
            return
        if m.opset >= 11 and m.chance(0.3):
            rank = array.ndim + 2 * (kind == "Unsqueeze")
            axes = [axis - rank for axis in axes]
        if kind == "Squeeze" and m.chance(0.3):
            m.add(kind, [x], exact=True)
        elif m.opset < 13:
            m.add(kind, [x], exact=True, axes=sorted(axes))
        else:
            m.add(kind, [x, m.constant(axes, "int64")], exact=True)


@_drawer
def shape_arithmetic(m: RandomModel) -> None:
    """What exporters write for a view: sizes picked from Shape, computed with, joined, and used."""
    x = m.value((2, 3, 4), NUMBERS)
    array = m.arrays[x]
    if m.opset >= 11 and m.chance(0.1):
        size = m.step("Size", x)
        if size:
            m.add("Range", [m.constant(0, "int64"), size, m.constant(2, "int64")], exact=True)
        return
    shape = m.step("Shape", x)
    if shape is None:
        return
    first = m.step("Gather", shape, m.constant(0, "int64"), axis=0)
    if m.chance(0.5):  # a scalar that becomes a list, after arithmetic that does nothing
        first = m.step("Mul", first, m.constant(2, "int64"))
        first = m.step("Div", first, m.constant(2, "int64"))
    if m.opset < 13:
        first = m.step("Unsqueeze", first, axes=[0])
    else:
        first = m.step("Unsqueeze", first, m.constant([0], "int64"))
    end = m.constant([-1], "int64")
    target = m.step("Concat", first, end, axis=0)
    if target is None:
        return
    how = m.draw.choice(["Reshape", "Expand", "ConstantOfShape"])
    if how == "Reshape":
        m.add("Reshape", [x, target], exact=True)
    elif m.opset >= 9 and how == "ConstantOfShape":
        ones = m.step("ConstantOfShape", shape)
        if ones and array.dtype == np.float32:
            m.add("Add", [x, ones], exact=True)
    elif m.opset >= 8:
        m.add("Expand", [m.input((*array.shape[:-1], 1)), shape], exact=True)


@_drawer
def expand(m: RandomModel) -> None:
    if m.opset < 8:
        return
    x = m.value((0, 1, 2, 3), ALL)
    shape = [
        m.draw.choice([1, m.draw.randint(1, 4)]) if n == 1 else m.draw.choice([n, 1])
        for n in m.arrays[x].shape
    ]
    if m.chance(0.5):
        shape = [*m.shape(1), *shape]
    m.add("Expand", [x, m.constant(shape, "int64")], exact=True)


@_drawer
def tile(m: RandomModel) -> None:
    x = m.value((1, 2, 3, 4), ALL)
    repeats = [m.draw.randint(1, 3) for _ in m.arrays[x].shape]
    m.add("Tile", [x, m.constant(repeats, "int64")], exact=True)


@_drawer
def pad(m: RandomModel) -> None:
    x = m.value((1, 2, 3, 4), FLOATS if m.opset < 11 else NUMBERS)
    array = m.arrays[x]
    mode = m.draw.choice(["constant", "edge", "reflect", *(["wrap"] if m.opset >= 19 else [])])
    axes = list(range(array.ndim))
    if m.opset >= 18 and m.chance(0.4):
        axes = m.draw.sample(axes, m.draw.randint(1, len(axes)))
    if mode == "constant":
        pads = [m.draw.randint(-1, 2) for _ in range(2 * len(axes))]
    else:
        pads = [m.draw.randint(0, min(2, array.shape[a] - 1)) for _ in range(2) for a in axes]
    attributes: dict[str, Any] = {"mode": mode} if mode != "constant" or m.chance(0.5) else {}
    if m.opset < 11:
        attributes |= m.maybe({"value": 0.75})
        m.add("Pad", [x], exact=True, pads=pads, **attributes)
        return
    operands = [x, m.constant(pads, "int64")]
    named = axes != list(range(array.ndim))  # some of them, or in another order
    if m.chance(0.6):
        operands.append(m.constant(3, str(array.dtype)))
    elif named:
        operands.append("")
    if named:
        operands.append(m.constant([a - array.ndim * m.chance(0.3) for a in axes], "int64"))
    m.add("Pad", operands, exact=True, **attributes)


@_drawer
def gather(m: RandomModel) -> None:
    x = m.value((1, 2, 3, 4), ALL)
    shape = m.arrays[x].shape
    axis = m.draw.randrange(len(shape))
    least = -shape[axis] if m.opset >= 11 else 0
    size = m.shape(m.draw.randint(0, 2), 3)
    places = np.random.default_rng(m.draw.getrandbits(32)).integers(least, shape[axis], size)
    indices = m.constant(places, m.draw.choice(["int64", "int32"]))
    if m.chance(0.5):
        indices = m.input(size, "int64")
        m.arrays[indices][...] = places
    m.add("Gather", [x, indices], exact=True, **m.maybe({"axis": axis}, 1.0 if axis else 0.5))


@_drawer
def blocks(m: RandomModel) -> None:
    x = m.input((*m.shape(1, 2), *(m.draw.choice([4, 8]) for _ in range(3))))
    mode: dict[str, Any] = {"mode": m.draw.choice(["DCR", "CRD"])}
    if m.chance(0.5):
        m.add("DepthToSpace", [x], exact=True, blocksize=2, **(mode if m.opset >= 11 else {}))
    else:
        m.add("SpaceToDepth", [x], exact=True, blocksize=m.draw.choice([1, 2, 4]))
