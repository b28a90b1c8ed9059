"""Converts nodes in order: operators, calls of the model's functions, which are inlined, branches.

A :class:`Scope` has the names that a node sees, and the function or branch that it is part of.  A
:class:`Signature` checks the number and types of a node's inputs, by ONNX's operator schema.
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
from minidnn.graph.types import INT8_DTYPES

#: Types in ONNX's schemas whose minidnn dtype has another name.
_TYPES = {"tensor(float)": "float32", "tensor(double)": "float64"}


@dataclass(frozen=True)
class Scope:
    """The names of a graph, of a branch, or of a function's body."""

    #: The values of its own names; None for what could not be converted.
    values: MutableMapping[str, Value | None]
    opset: int
    #: The names of the enclosing scopes that a branch sees.
    around: Mapping[str, Value | None] = field(default_factory=dict)
    #: Inputs of a function that its caller left out.
    absent: frozenset[str] = frozenset()
    #: The prefix of its nodes' names.
    prefix: str = ""
    #: The functions that are being inlined, outermost first.
    functions: tuple[Key, ...] = ()
    #: How many branches enclose it.
    depth: int = 0

    def knows(self, name: str) -> bool:
        return name in self.values or name in self.around or name in self.absent

    def value(self, name: str) -> Value | None:
        return self.values[name] if name in self.values else self.around.get(name)


def _counted(nodes: Sequence[Any], functions: Mapping[Key, Any]) -> int:
    """Counts nodes as if all functions were inlined, recursion not followed, with all branches.

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
    """The attributes of a function's call by name: those that the node has, and defaults."""
    attributes = {attribute.name: attribute for attribute in function.attribute_proto}
    valid = {*attributes, *function.attribute}
    for attribute in node.attribute:
        if attribute.name not in valid:
            raise GraphError(
                f"attribute {attribute.name!r:.50} is none of the function's; valid are "
                f"{', '.join(sorted(valid)) or 'none':.200}"
            )
        attributes[attribute.name] = attribute
    return attributes


def _bound(nodes: Sequence[Any], given: Mapping[str, Any]) -> list[Any]:
    """Copies a function's nodes with references to the function's attributes resolved.

    ``given`` are the attributes of the call.  A reference to one that is not given is dropped.
    """
    return [_bound_node(node, given) for node in nodes]


def _bound_node(node: Any, given: Mapping[str, Any]) -> Any:
    """Copies one node, with its branches, see :func:`_bound`."""
    copy = type(node)()
    copy.CopyFrom(node)
    del copy.attribute[:]
    for attribute in node.attribute:
        name = attribute.ref_attr_name
        if name and name not in given:
            continue
        resolved = copy.attribute.add()
        resolved.CopyFrom(given[name] if name else attribute)
        resolved.name = attribute.name
        if name and attribute.type and resolved.type != attribute.type:
            raise GraphError(
                f"attribute {attribute.name!r:.50} is {name!r:.50} of the function, which is of "
                "another type"
            )
        if resolved.HasField("g"):
            inner = _bound(resolved.g.node, given)
            del resolved.g.node[:]
            resolved.g.node.extend(inner)
    return copy


@dataclass(frozen=True)
class DeclaredInput:
    """A formal input of an operator, by ONNX's schema.

    Attributes:
        name: its name there.
        kind: its type variable, such as "T": inputs of one kind have the same dtype.
        dtypes: the dtypes that are allowed.
        alike: whether all inputs of its kind have the same dtype; False for the last, variadic
            input of operators whose operands may differ.
    """

    name: str
    kind: str
    dtypes: frozenset[str]
    alike: bool


@dataclass(frozen=True)
class Signature:
    """The formal inputs of an operator, the last of which may be variadic, and the most inputs."""

    parameters: tuple[DeclaredInput, ...]
    most: int

    def check(self, operands: Sequence[str | None]) -> None:
        """GraphError if there are too many operands, or some of these dtypes are not allowed."""
        if len(operands) > self.most:
            raise GraphError(f"it has {len(operands)} inputs; valid are {self.most}")
        bound: dict[str, tuple[str, str]] = {}
        for index, operand_dtype in enumerate(operands):
            if operand_dtype is None:
                continue
            parameter = self.parameters[min(index, len(self.parameters) - 1)]
            name = parameter.name
            if operand_dtype not in parameter.dtypes:
                valid = sorted(parameter.dtypes.intersection(DTYPES.values()))
                raise GraphError(f"its {name} is {operand_dtype}; valid are {', '.join(valid)}")
            if not parameter.alike:
                continue
            dtype, first = bound.setdefault(parameter.kind, (operand_dtype, name))
            if dtype != operand_dtype:
                raise GraphError(
                    f"its {name} is {operand_dtype}; valid is {dtype}, as its {first} is"
                )


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
            formal.name,
            formal.type_str,
            frozenset(map(_dtype, constraints.get(formal.type_str, [formal.type_str]))),
            bool(formal.is_homogeneous),
        )
        for formal in schema.inputs
    )
    return Signature(parameters, schema.max_input)


def _dtype(text: str) -> str:
    """minidnn's dtype for ``tensor(...)``; a type that it lacks keeps ONNX's name."""
    return _TYPES.get(text) or text.removeprefix("tensor(").removesuffix(")")


#: Operators that move elements and keep their dtype, that of constants stored in int32 included.
_KEEPS_DTYPE = {
    *("Concat", "DepthToSpace", "Expand", "Flatten", "Gather", "Identity", "Reshape", "Slice"),
    *("SpaceToDepth", "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze"),
}
#: Operators that take int8, uint8 and stored dtypes; all others compute, and refuse these.
_TAKES_ANY_DTYPE = (
    _KEEPS_DTYPE | set(QUANTIZED) | {*("Cast", "CastLike", "If", "MaxPool", "Shape", "Size")}
)


class _ReportedAlready(Exception):
    """What a node depends on could not be converted, and its reason is recorded already."""


class Nodes:
    """Converts the nodes of a model; :attr:`refused` has the reasons for those that it cannot."""

    def __init__(self, model: OnnxModel, trace: Trace, build: Builder) -> None:
        self.model = model
        self.trace = trace
        self.build = build
        self.refused: list[str] = []
        #: The graph inputs that would have to be constants for refused nodes.
        self.open_inputs: set[str] = set()
        count = _counted(model.nodes, model.functions)
        if count > MOST_NODES:
            raise GraphError(
                f"{model.title} has {count} nodes, those of functions counted wherever they are "
                f"called; valid are {MOST_NODES}"
            )

    def convert(self, protos: Sequence[Any], scope: Scope) -> None:
        """Converts nodes in their order, and binds their outputs in the scope."""
        for number, proto in enumerate(protos):
            self._node(number, proto, scope)

    def _node(self, number: int, proto: Any, scope: Scope) -> None:
        """Converts one node; records a reason if that is not supported, raises if it is wrong."""
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
        except _ReportedAlready:
            return
        except (NotConverted, UnsupportedError) as reason:
            self.refused.append(f"{label!r:.100} ({proto.op_type!s:.50}): {reason}")
            if isinstance(reason, NotConverted):
                self.open_inputs |= reason.inputs
            return
        except GraphError as error:
            raise GraphError(f"{where}: {error}") from error
        except (ArithmeticError, AssertionError, LookupError, TypeError, ValueError) as error:
            # Attributes of the right types may still have values that an operator cannot use.
            raise GraphError(f"{where} does not fit its operands: {error!r}") from error
        except MemoryError as error:
            raise OutOfMemoryError(f"{where} takes more memory than there is") from error
        for name, value in zip(proto.output, results, strict=False):
            if name:
                scope.values[name] = value

    def _converted(self, proto: Any, label: str, scope: Scope) -> tuple[Value, ...]:
        """The outputs of a node: of a function's call, or by the operator's converter."""
        is_onnx = proto.domain in OWN_DOMAIN
        function = self.model.functions.get(key_of(proto))
        converters = CONVERTERS if is_onnx else OTHER_DOMAINS.get(str(proto.domain))
        converter = (converters or {}).get(str(proto.op_type))
        if function is None and converters is None:
            raise NotConverted(f"it is of the domain {proto.domain!r:.50}")
        if function is None and converter is None:
            raise NotConverted("no operator of minidnn does that")
        operands = [scope.value(name) if name else None for name in proto.input]
        is_given = [bool(name) and name not in scope.absent for name in proto.input]
        if any(known and value is None for known, value in zip(is_given, operands, strict=True)):
            raise _ReportedAlready  # the node that computes it was refused
        if function is not None:
            return self._called(function, proto, operands, label, scope)
        dtypes = [None if value is None else self.build.dtype(value) for value in operands]
        signature = signature_of(str(proto.op_type), scope.opset) if is_onnx else None
        if signature is not None:
            signature.check(dtypes)
        if is_onnx:
            self._check_dtypes(proto, operands, dtypes)

        def inline(graph: Any) -> tuple[Value, ...]:
            return self._branch(graph, proto, label, scope)

        call = OnnxCall(proto, scope.opset, operands, self.build, self.model.path, inline)
        with self.trace.scope(label, leaf=True):
            assert converter is not None
            results = converter.convert(call)
        if call.unread():
            raise NotConverted(f"its attributes {', '.join(call.unread())} are not known")
        outputs = results if isinstance(results, tuple) else (results,)
        missing = [n for n in proto.output[len(outputs) :] if n]
        if missing:
            raise NotConverted(f"its output {missing[0]!r:.50} is not computed")
        first = operands[0] if operands and proto.op_type in _KEEPS_DTYPE else None
        if first is not None and dtypes[0] != first.dtype:
            for value in outputs:
                self.build.store(value, str(dtypes[0]))
        return outputs

    def _check_dtypes(
        self, proto: Any, operands: Sequence[Value | None], dtypes: Sequence[str | None]
    ) -> None:
        """NotConverted if an operator that computes has int8, uint8 or stored operands."""
        if proto.op_type in _TAKES_ANY_DTYPE:
            return
        for value, dtype in zip(operands, dtypes, strict=True):
            if value is not None and (dtype in INT8_DTYPES or dtype != value.dtype):
                raise NotConverted(
                    f"it computes in {dtype}; {dtype} can be moved, and made to another dtype by "
                    "Cast or DequantizeLinear"
                )

    def _called(
        self, function: Any, proto: Any, operands: list[Value | None], label: str, scope: Scope
    ) -> tuple[Value, ...]:
        """Inlines a call of one of the model's functions and returns its outputs."""
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
        values = {n: v for n, v in zip(names, operands, strict=False) if v is not None}
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
        """The opset of a function's body, by default the caller's."""
        versions = [entry.version for entry in function.opset_import if entry.domain in OWN_DOMAIN]
        opset = int(versions[0]) if versions else scope.opset
        if not OLDEST_OPSET <= opset <= newest_opset():
            raise NotConverted(
                f"the function has opset {opset}; valid is one from {OLDEST_OPSET} to "
                f"{newest_opset()}"
            )
        return opset

    def _branch(self, graph: Any, proto: Any, label: str, scope: Scope) -> tuple[Value, ...]:
        """Inlines a branch, a node's graph attribute, which sees the names of enclosing scopes."""
        if scope.depth >= DEEPEST:
            raise NotConverted(f"branches are nested more than {DEEPEST} deep")
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
        """The values of an inlined graph's outputs."""
        for name in names:
            if not scope.knows(name):
                raise GraphError(f"nothing computes {name!r:.100}, which it gives")
        values = [scope.value(name) for name in names]
        results = tuple(value for value in values if value is not None)
        if len(results) < len(values):
            raise _ReportedAlready
        return results
