"""Converters of ONNX's operators to graph operators: one file per family.

:data:`CONVERTERS` has them by name.  A converter's docstring is its note in the documentation's
table of operators.
"""

from __future__ import annotations

from minidnn.frontends.onnx.call import Converter
from minidnn.frontends.onnx.operators import (
    activations,
    constants,
    contraction,
    elementwise,
    microsoft,
    movement,
    normalization,
    pooling,
    quantization,
    reduction,
    resize,
)

#: Converters by ONNX's operator names, sorted.
CONVERTERS: dict[str, Converter] = dict(
    sorted(
        (name, converter)
        for family in (
            *(activations, constants, contraction, elementwise, movement),
            *(normalization, pooling, quantization, reduction, resize),
        )
        for name, converter in family.CONVERTERS.items()
    )
)

#: Converters of domains other than ONNX's own, by domain and operator name.
OTHER_DOMAINS: dict[str, dict[str, Converter]] = {microsoft.DOMAIN: microsoft.CONVERTERS}

__all__ = ["CONVERTERS", "OTHER_DOMAINS", "Converter"]
