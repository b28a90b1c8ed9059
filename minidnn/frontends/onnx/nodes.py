"""Converting nodes one after another: operators, functions of the model, and branches; and where a
node stands: the names that it sees, and the function or branch that it is part of.

ONNX says how many inputs an operator takes, and of which types.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from minidnn.errors import GraphError, OutOfMemoryError, UnsupportedError
from minidnn.frontends.onnx.build import Builder
from minidnn.frontends.onnx.call import NotConverted, OnnxCall
from minidnn.frontends.onnx.library import (
    DEEPEST,
    MOST_NODES,
    MOST_OUTPUTS,
    OLDEST_OPSET,
    import_onnx,
    newest_opset,
)
from minidnn.frontends.onnx.model import OWN_DOMAIN, Key, OnnxModel, key_of
from minidnn.frontends.onnx.operators import CONVERTERS, OTHER_DOMAINS
from minidnn.frontends.onnx.operators.quantization import CONVERTERS as QUANTIZED
from minidnn.frontends.onnx.tensors import DTYPES, read_tensor
from minidnn.graph.ir import Value
from minidnn.graph.trace import Trace
from minidnn.graph.types import BYTES

_TYPES = {"tensor(float)": "float32", "tensor(double)": "float64"}


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


def _counted(nodes: Sequence[Any], functions: Mapping[Key, Any]) -> int:
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


def _attributes_of(function: Any, node: Any) -> dict[str, Any]:
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


def _bound(nodes: Sequence[Any], given: Mapping[str, Any]) -> list[Any]:
    """Copies of a function's nodes in which attributes that refer to the function's are these;
    those that refer to one that is not given are left out."""
    return [_bound_node(node, given) for node in nodes]


def _bound_node(node: Any, given: Mapping[str, Any]) -> Any:
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
            inner = _bound(own.g.node, given)
            del own.g.node[:]
            own.g.node.extend(inner)
    return copy


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


#: Operators that move numbers of any dtype, and those that make others of them.
_MOVING = {
    *("Concat", "DepthToSpace", "Expand", "Flatten", "Gather", "Identity", "Reshape", "Slice"),
    *("SpaceToDepth", "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze"),
}
_OF_ANY = _MOVING | set(QUANTIZED) | {*("Cast", "CastLike", "If", "MaxPool", "Shape", "Size")}


class _Told(Exception):
    """A node within one could not be converted, which was told already."""


class Nodes:
    """Converts nodes; what cannot be converted is in :attr:`refused`."""

    def __init__(self, model: OnnxModel, trace: Trace, build: Builder) -> None:
        self.model = model
        self.trace = trace
        self.build = build
        self.refused: list[str] = []
        #: The graph inputs that would have to be known.
        self.open_inputs: set[str] = set()
        count = _counted(model.nodes, model.functions)
        if count > MOST_NODES:
            raise GraphError(
                f"{model.title} has {count} nodes, those of functions counted wherever they are "
                f"called; valid are {MOST_NODES}"
            )

    def convert(self, protos: Sequence[Any], scope: Scope) -> None:
        """Converts nodes in their order, and adds what they compute to the scope's names."""
        for number, proto in enumerate(protos):
            self._node(number, proto, scope)

    def _node(self, number: int, proto: Any, scope: Scope) -> None:
        label = scope.prefix + (str(proto.name) or f"{proto.op_type}_{number}")
        where = f"{self.model.title}: node {label!r:.100} ({proto.op_type!s:.50})"
        if len(proto.output) > MOST_OUTPUTS:
            raise GraphError(f"{where} has {len(proto.output)} outputs; valid are {MOST_OUTPUTS}")
        for name in proto.output:
            if name and name in scope.values:
                raise GraphError(f"{where} computes {name!r:.100}, which is there already")
        for name in proto.input:
            if name and not scope.knows(name):
                raise GraphError(
                    f"{where} reads {name!r:.100} before anything computes it: the nodes are in no "
                    "order in which they can run, or in a cycle"
                )
        scope.values.update(dict.fromkeys((name for name in proto.output if name), None))
        try:
            results = self._converted(proto, label, scope)
        except _Told:
            return
        except (NotConverted, UnsupportedError) as reason:
            self.refused.append(f"{label!r:.100} ({proto.op_type!s:.50}): {reason}")
            if isinstance(reason, NotConverted):
                self.open_inputs |= reason.inputs
            return
        except GraphError as error:
            raise GraphError(f"{where}: {error}") from error
        except (ArithmeticError, AssertionError, LookupError, TypeError, ValueError) as error:
            # Attributes of the right types may still be beyond what an operator computes with.
            raise GraphError(f"{where} does not fit its operands: {error!r}") from error
        except MemoryError as error:
            raise OutOfMemoryError(f"{where} takes more memory than there is") from error
        for name, value in zip(proto.output, results, strict=False):
            if name:
                scope.values[name] = value

    def _converted(self, proto: Any, label: str, scope: Scope) -> tuple[Value, ...]:
        own = proto.domain in OWN_DOMAIN
        function = self.model.functions.get(key_of(proto))
        converters = CONVERTERS if own else OTHER_DOMAINS.get(str(proto.domain))
        converter = (converters or {}).get(str(proto.op_type))
        if function is None and converters is None:
            raise NotConverted(f"it is of the domain {proto.domain!r:.50}")
        if function is None and converter is None:
            raise NotConverted("no operator of minidnn does that")
        operands = [scope.value(name) if name else None for name in proto.input]
        given = [bool(name) and name not in scope.absent for name in proto.input]
        if any(known and value is None for known, value in zip(given, operands, strict=True)):
            raise _Told  # what it reads was refused already
        if function is not None:
            return self._called(function, proto, operands, label, scope)
        dtypes = [None if value is None else self.build.dtype(value) for value in operands]
        signature = signature_of(str(proto.op_type), scope.opset) if own else None
        if signature is not None:
            signature.check(dtypes)
        if own:
            self._check_dtypes(proto, operands, dtypes)

        def inline(graph: Any) -> tuple[Value, ...]:
            return self._branch(graph, proto, label, scope)

        call = OnnxCall(proto, scope.opset, operands, self.build, self.model.path, inline)
        with self.trace.scope(label, leaf=True):
            assert converter is not None
            results = converter.convert(call)
        if call.unread():
            raise NotConverted(f"its attributes {', '.join(call.unread())} are not known")
        found = results if isinstance(results, tuple) else (results,)
        missing = [n for n in proto.output[len(found) :] if n]
        if missing:
            raise NotConverted(f"its output {missing[0]!r:.50} is not computed")
        first = operands[0] if operands and proto.op_type in _MOVING else None
        if first is not None and dtypes[0] != first.dtype:
            for value in found:
                self.build.store(value, str(dtypes[0]))
        return found

    def _check_dtypes(
        self, proto: Any, operands: Sequence[Value | None], dtypes: Sequence[str | None]
    ) -> None:
        """Refused if there are numbers of few bits among the operands of what computes."""
        if proto.op_type in _OF_ANY:
            return
        for value, dtype in zip(operands, dtypes, strict=True):
            if value is not None and (dtype in BYTES or dtype != value.dtype):
                raise NotConverted(
                    f"it computes in {dtype}; {dtype} can be moved, and made to another dtype by "
                    "Cast or DequantizeLinear"
                )

    def _called(
        self, function: Any, proto: Any, operands: list[Value | None], label: str, scope: Scope
    ) -> tuple[Value, ...]:
        """What a function of the model gives: its nodes stand in the place of its call."""
        key = key_of(function)
        if key in scope.functions:
            through = " -> ".join(name for _, name, _ in (*scope.functions, key))
            raise NotConverted(f"the function calls itself ({through:.200})")
        names = list(function.input)
        if len(operands) > len(names) or len(proto.output) > len(function.output):
            raise GraphError(
                f"it has {len(operands)} inputs and {len(proto.output)} outputs; the function has "
                f"{len(names)} and {len(function.output)}"
            )
        operands = operands + [None] * (len(names) - len(operands))
        values = {n: v for n, v in zip(names, operands, strict=True) if v is not None}
        inner = Scope(
            dict(values),
            self._opset_of(function, scope),
            absent=frozenset(names) - set(values),
            prefix=f"{label}/",
            functions=(*scope.functions, key),
            depth=scope.depth,
        )
        self.convert(_bound(function.node, _attributes_of(function, proto)), inner)
        return self._results(function.output[: len(proto.output)], inner)

    def _opset_of(self, function: Any, scope: Scope) -> int:
        versions = [each.version for each in function.opset_import if each.domain in OWN_DOMAIN]
        opset = int(versions[0]) if versions else scope.opset
        if not OLDEST_OPSET <= opset <= newest_opset():
            raise NotConverted(
                f"the function has opset {opset}; valid is one from {OLDEST_OPSET} to "
                f"{newest_opset()}"
            )
        return opset

    def _branch(self, graph: Any, proto: Any, label: str, scope: Scope) -> tuple[Value, ...]:
        """What a graph within a node gives, which sees the names around it."""
        if scope.depth >= DEEPEST:
            raise NotConverted(f"branches stand more than {DEEPEST} deep in each other")
        if len(graph.input) or len(graph.output) != len(proto.output):
            raise GraphError(
                f"its branch has {len(graph.input)} inputs and {len(graph.output)} outputs; valid "
                f"are none and {len(proto.output)}"
            )
        if len(graph.sparse_initializer):
            raise NotConverted("its branch has a sparse initializer; valid is a dense one")
        values: dict[str, Value | None] = {}
        for tensor in graph.initializer:
            what = f"initializer {tensor.name!r:.100}"
            if not tensor.name or tensor.name in values:
                raise GraphError(f"{what} has no name of its own")
            array = read_tensor(tensor, self.model.path, what)
            values[tensor.name] = self.build.constant(array, tensor.name)
        around = ChainMap(dict(scope.values), dict(scope.around))
        inner = replace(
            scope, values=values, around=around, prefix=f"{label}/", depth=scope.depth + 1
        )
        self.convert(graph.node, inner)
        return self._results([output.name for output in graph.output], inner)

    def _results(self, names: Sequence[str], scope: Scope) -> tuple[Value, ...]:
        for name in names:
            if not scope.knows(name):
                raise GraphError(f"nothing computes {name!r:.100}, which it gives")
        found = [scope.value(name) for name in names]
        results = tuple(value for value in found if value is not None)
        if len(results) < len(found):
            raise _Told
        return results
