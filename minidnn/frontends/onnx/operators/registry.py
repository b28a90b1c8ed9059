"""Converters, and how a family of them is written down."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from minidnn.frontends.onnx.call import OnnxCall
from minidnn.graph.ir import Value

Convert = Callable[[OnnxCall], Value | tuple[Value, ...]]


@dataclass(frozen=True)
class Converter:
    """Converts nodes of one kind.  ``note`` says in a sentence what of it is not supported."""

    convert: Convert
    family: str
    note: str = ""


class Family:
    """Collects the converters of a file; each function's docstring is its note."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.converters: dict[str, Converter] = {}

    def __call__(self, *names: str) -> Callable[[Convert], Convert]:
        """Registers a function for the operators of these names."""

        def register(convert: Convert) -> Convert:
            note = " ".join((convert.__doc__ or "").split())
            for name in names:
                self.add(name, convert, note)
            return convert

        return register

    def add(self, name: str, convert: Convert, note: str = "") -> None:
        assert name not in self.converters, name
        self.converters[name] = Converter(convert, self.title, note)
