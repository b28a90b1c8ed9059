"""Where a node stands: the names that it sees, and the function or branch that it is part of."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from minidnn.errors import GraphError, UnsupportedError
from minidnn.frontends.onnx.limits import DEEPEST
from minidnn.graph.ir import Value

#: The name and domain of a function, and which of several of that name it is.
Key = tuple[str, str, str]


@dataclass(frozen=True)
class Scope:
    """The names of a graph, of a branch, or of a function's body."""

    #: What its own names stand for; None for what could not be converted.
    values: MutableMapping[str, Value | None]
    opset: int
    #: The names around a branch.
    around: Mapping[str, Value | None] = field(default_factory=dict)
    #: Inputs of a function that its caller left out.
    absent: frozenset[str] = frozenset()
    #: What the names of its nodes begin with, and the functions whose bodies these stand in.
    prefix: str = ""
    functions: tuple[Key, ...] = ()
    #: How many branches it stands in.
    depth: int = 0

    def knows(self, name: str) -> bool:
        return name in self.values or name in self.around or name in self.absent

    def value(self, name: str) -> Value | None:
        return self.values[name] if name in self.values else self.around.get(name)


def key_of(proto: Any) -> Key:
    """What a node calls, or what a function is, as a function of the model."""
    name = proto.name if hasattr(proto, "attribute_proto") else proto.op_type
    domain = "" if proto.domain == "ai.onnx" else str(proto.domain)
    return (domain, str(name), str(getattr(proto, "overload", "")))


def counted(nodes: Sequence[Any], functions: Mapping[Key, Any]) -> int:
    """How many nodes there are once functions stand wherever they are called, one that calls
    itself but once; and those of all branches.

    UnsupportedError if functions call each other too deeply.
    """
    sizes: dict[Key, int] = {}

    def size(nodes: Sequence[Any], within: tuple[Key, ...]) -> int:
        if len(within) > DEEPEST:
            raise UnsupportedError(f"functions call each other more than {DEEPEST} deep")
        total = len(nodes)
        for node in nodes:
            key = key_of(node)
            if key in functions and key not in within:
                if key not in sizes:
                    sizes[key] = size(functions[key].node, (*within, key))
                total += sizes[key]
            for attribute in node.attribute:
                if attribute.HasField("g"):
                    total += size(attribute.g.node, within)
        return total

    return size(nodes, ())


def attributes_of(function: Any, node: Any) -> dict[str, Any]:
    """The attributes of a function's call by their names: those given, and defaults of others."""
    found = {attribute.name: attribute for attribute in function.attribute_proto}
    valid = {*found, *function.attribute}
    for attribute in node.attribute:
        if attribute.name not in valid:
            raise GraphError(
                f"attribute {attribute.name!r:.50} is none of the function's; valid are "
                f"{', '.join(sorted(valid)) or 'none':.200}"
            )
        found[attribute.name] = attribute
    return found


def bound(nodes: Sequence[Any], given: Mapping[str, Any]) -> list[Any]:
    """Copies of a function's nodes in which attributes that refer to the function's are these;
    those that refer to one that is not given are left out."""
    return [_bound(node, given) for node in nodes]


def _bound(node: Any, given: Mapping[str, Any]) -> Any:
    copy = type(node)()
    copy.CopyFrom(node)
    del copy.attribute[:]
    for attribute in node.attribute:
        name = attribute.ref_attr_name
        if name and name not in given:
            continue
        own = copy.attribute.add()
        own.CopyFrom(given[name] if name else attribute)
        own.name = attribute.name
        if name and attribute.type and own.type != attribute.type:
            raise GraphError(
                f"attribute {attribute.name!r:.50} is {name!r:.50} of the function, which is of "
                "another type"
            )
        if own.HasField("g"):
            inner = bound(own.g.node, given)
            del own.g.node[:]
            own.g.node.extend(inner)
    return copy
