"""What ONNX says that an operator takes: how many inputs, and of which types."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from minidnn.errors import GraphError
from minidnn.frontends.onnx.library import import_onnx
from minidnn.frontends.onnx.tensors import DTYPES

_TYPES = {"tensor(float)": "float32", "tensor(double)": "float64"}


@dataclass(frozen=True)
class DeclaredInput:
    """An input that an operator declares: those of one ``kind`` are of one type, which ``dtypes``
    are; the last may stand for any number, each of a type of its own unless ``alike``."""

    name: str
    kind: str
    dtypes: frozenset[str]
    alike: bool


@dataclass(frozen=True)
class Signature:
    """The inputs of an operator."""

    parameters: tuple[DeclaredInput, ...]
    most: int

    def check(self, operands: Sequence[str | None]) -> None:
        """GraphError if operands of these dtypes are too many, or of others than it takes."""
        if len(operands) > self.most:
            raise GraphError(f"it has {len(operands)} inputs; valid are {self.most}")
        bound: dict[str, tuple[str, str]] = {}
        for index, given in enumerate(operands):
            if given is None:
                continue
            parameter = self.parameters[min(index, len(self.parameters) - 1)]
            name = parameter.name
            if given not in parameter.dtypes:
                valid = sorted(parameter.dtypes.intersection(DTYPES.values()))
                raise GraphError(f"its {name} is {given}; valid are {', '.join(valid)}")
            if not parameter.alike:
                continue
            dtype, first = bound.setdefault(parameter.kind, (given, name))
            if dtype != given:
                raise GraphError(f"its {name} is {given}; valid is {dtype}, as its {first} is")


@cache
def signature_of(kind: str, opset: int) -> Signature | None:
    """The signature of an operator of ONNX's own domain; None if that opset has none of it."""
    onnx = import_onnx()
    try:
        schema = onnx.defs.get_schema(kind, opset, "")
    except onnx.defs.SchemaError:
        return None
    constraints = {each.type_param_str: each.allowed_type_strs for each in schema.type_constraints}
    parameters = tuple(
        DeclaredInput(
            each.name,
            each.type_str,
            frozenset(map(_dtype, constraints.get(each.type_str, [each.type_str]))),
            bool(each.is_homogeneous),
        )
        for each in schema.inputs
    )
    return Signature(parameters, schema.max_input)


def _dtype(text: str) -> str:
    """minidnn's name of ``tensor(...)``; types that it lacks stay what they are."""
    return _TYPES.get(text) or text.removeprefix("tensor(").removesuffix(")")
