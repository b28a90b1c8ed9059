"""Convolutions, pooling and resizing."""

from __future__ import annotations

from typing import Any

from tests.onnx.random_models import Drawer, RandomModel

from .registry import image, registrar

DRAWERS: list[Drawer] = []
_drawer = registrar(DRAWERS)


def _window(m: RandomModel, sizes: tuple[int, ...], kernel: tuple[int, ...]) -> dict[str, Any]:
    """Attributes of windows of which at least one lies in the padded input: without, outputs are
    empty, where ONNX Runtime makes some."""
    count = len(sizes)
    attributes = m.maybe(
        {
            "strides": [m.draw.randint(1, 3) for _ in range(count)],
            "dilations": [m.draw.randint(1, 2) for _ in range(count)],
        }
    )
    how = m.draw.choice(["pads", "auto", "none"])
    if how == "pads":
        attributes["pads"] = [m.draw.randint(0, 2) for _ in range(2 * count)]
    elif how == "auto":
        attributes["auto_pad"] = m.draw.choice(["SAME_UPPER", "SAME_LOWER", "VALID", "NOTSET"])
    if not attributes.get("auto_pad", "").startswith("SAME"):
        pads = attributes.get("pads", [0] * 2 * count)
        steps = attributes.get("dilations", [1] * count)
        for i, (size, k, step) in enumerate(zip(sizes, kernel, steps, strict=True)):
            if (k - 1) * step + 1 > size + pads[i] + pads[count + i]:
                return attributes | {"auto_pad": "SAME_UPPER", "dilations": [1] * count}
    return attributes


@_drawer
def convolution(m: RandomModel) -> None:
    x = image(m)
    channels, *sizes = m.arrays[x].shape[1:]
    groups = m.draw.choice([g for g in range(1, channels + 1) if channels % g == 0])
    kernel = m.shape(len(sizes), 3)
    outputs = groups * m.draw.randint(1, 3)
    attributes = _window(m, tuple(sizes), kernel) | m.maybe({"kernel_shape": list(kernel)})
    if attributes.get("auto_pad"):
        attributes.pop("pads", None)
    if groups > 1:
        attributes["group"] = groups
    operands = [x, m.weight((outputs, channels // groups, *kernel))]
    if m.chance(0.5):
        operands.append(m.weight((outputs,)))
    m.add("Conv", operands, **attributes)


@_drawer
def transposed(m: RandomModel) -> None:
    x = image(m)
    channels, *sizes = m.arrays[x].shape[1:]
    groups = m.draw.choice([g for g in range(1, channels + 1) if channels % g == 0])
    kernel = m.shape(len(sizes), 3)
    strides = [m.draw.randint(1, 3) for _ in sizes]
    dilations = [m.draw.randint(1, 2) for _ in sizes]
    per_group = m.draw.randint(1, 3)
    attributes: dict[str, Any] = {"strides": strides, "dilations": dilations}
    how = m.draw.choice(["pads", "auto", "shape", "none"])
    if how == "pads":
        attributes["pads"] = [m.draw.randint(0, 2) for _ in range(2 * len(sizes))]
    elif how == "auto":
        # Where a window reaches less far than a stride, ONNX Runtime does not give
        # "output_shape[i] = input_shape[i] * strides[i]".
        reaches = all((k - 1) * d + 1 >= s for k, d, s in zip(
            kernel, dilations, strides, strict=True
        ))  # fmt: skip
        same = ["SAME_UPPER", "SAME_LOWER"] if reaches else []
        attributes["auto_pad"] = m.draw.choice([*same, "VALID", "NOTSET"])
    elif how == "shape":
        attributes["output_shape"] = [
            (n - 1) * s + (k - 1) * d + 1 - m.draw.randint(0, 2)
            for n, s, k, d in zip(sizes, strides, kernel, dilations, strict=True)
        ]
        attributes |= m.maybe({"auto_pad": m.draw.choice(["SAME_UPPER", "SAME_LOWER"])})
    if m.chance(0.5):
        attributes["output_padding"] = [
            m.draw.randint(0, max(s, d) - 1) for s, d in zip(strides, dilations, strict=True)
        ]
    if groups > 1:
        attributes["group"] = groups
    attributes |= m.maybe({"kernel_shape": list(kernel)})
    operands = [x, m.weight((channels, per_group, *kernel))]
    if m.chance(0.5):
        operands.append(m.weight((groups * per_group,)))
    m.add("ConvTranspose", operands, **attributes)


@_drawer
def pooling(m: RandomModel) -> None:
    x = image(m, (3, 4, 5))
    sizes = m.arrays[x].shape[2:]
    kind = m.draw.choice(["MaxPool", "AveragePool"])
    kernel = m.shape(len(sizes), 3)
    attributes = _window(m, sizes, kernel) | {"kernel_shape": list(kernel)}
    same = attributes.get("auto_pad", "").startswith("SAME")
    # ONNX Runtime leaves dilations out of SAME's "((kernel_shape[i] - 1) * dilations[i] + 1)".
    if same and "strides" in attributes:  # with longer ones it takes elements off in front
        attributes["strides"] = [
            min(s, k) for s, k in zip(attributes["strides"], kernel, strict=True)
        ]
    if same or m.opset < (10 if kind == "MaxPool" else 19):
        attributes.pop("dilations", None)
    if attributes.get("auto_pad"):
        attributes.pop("pads", None)
    if "pads" in attributes:  # less than a window
        steps = attributes.get("dilations", [1] * len(sizes))
        most = [(k - 1) * step for k, step in zip(kernel, steps, strict=True)] * 2
        attributes["pads"] = [*map(min, attributes["pads"], most)]
    if m.opset >= 10:
        attributes |= m.maybe({"ceil_mode": 1})
    if kind == "AveragePool":
        m.add(kind, [x], **attributes, **m.maybe({"count_include_pad": 1}))
        return
    places = m.opset >= 8 and len(sizes) < 3 and x in m.exact and m.chance(0.4)
    if m.opset >= 8:
        attributes |= m.maybe({"storage_order": 1}, 0.3)
    m.add(kind, [x], 1 + places, exact=True, **attributes)


@_drawer
def whole_pooling(m: RandomModel) -> None:
    m.add(m.draw.choice(["GlobalAveragePool", "GlobalMaxPool"]), [image(m, (3, 4, 5))])


@_drawer
def resize(m: RandomModel) -> None:
    x = image(m)
    shape = m.arrays[x].shape
    scales = [1.0, 1.0, *(m.draw.choice([0.5, 1.0, 2.0, 1.5, 3.0, 0.75]) for _ in shape[2:])]
    if m.opset < 11:
        mode: dict[str, Any] = m.maybe({"mode": m.draw.choice(["nearest", "linear"])})
        if m.opset < 9:
            m.add("Upsample", [x], scales=scales, **mode)
        else:
            kind = "Upsample" if m.opset == 9 else "Resize"
            m.add(kind, [x, m.constant(scales, "float32")], **mode)
        return
    modes = ["half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric"]
    if m.opset >= 19:
        modes.append("half_pixel_symmetric")
    attributes: dict[str, Any] = {
        "mode": m.draw.choice(["nearest", "linear", "cubic"]),
        **m.maybe({"coordinate_transformation_mode": m.draw.choice(modes)}, 0.8),
    }
    roundings = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
    if attributes["mode"] == "nearest":
        attributes |= m.maybe({"nearest_mode": m.draw.choice(roundings)})
    elif attributes["mode"] == "cubic":
        attributes |= m.maybe({"cubic_coeff_a": -0.5, "exclude_outside": 1})
    operands = [x, m.constant([], "float32") if m.opset < 13 else ""]
    # Whole results: with others, engines take the last sizes for different things.
    if m.chance(0.5) or any(s * n != int(s * n) for s, n in zip(scales, shape, strict=True)):
        sizes = [*shape[:2], *(m.draw.randint(1, 2 * n) for n in shape[2:])]
        operands += ["", m.constant(sizes, "int64")]
    else:
        operands.append(m.constant(scales, "float32"))
    m.add("Resize", operands, **attributes)
