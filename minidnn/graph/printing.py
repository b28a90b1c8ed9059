"""A graph as text: one line per node, bodies of fused regions indented below theirs."""

from __future__ import annotations

from minidnn.graph.ir import Constant, Graph, Value


def to_text(graph: Graph, indent: str = "") -> str:
    """The graph, readable and the same in every process."""
    inputs = ", ".join(map(repr, graph.inputs))
    lines = [f"{indent}{graph.name}({inputs}) {{"]
    for node in graph.nodes:
        outputs = ", ".join(map(repr, node.outputs))
        operands = ", ".join(map(_operand, node.inputs))
        lines.append(f"{indent}  {outputs} = {node.op}({operands})")
        body = getattr(node.op, "body", None)
        if isinstance(body, Graph):
            lines.append(to_text(body, indent + "    "))
    names = graph.output_names or ("",) * len(graph.outputs)
    returned = ", ".join(
        f"{name}: {_operand(v)}" if name else _operand(v)
        for name, v in zip(names, graph.outputs, strict=True)
    )
    lines += [f"{indent}  return {returned}", f"{indent}}}"]
    return "\n".join(lines)


def _operand(value: Value) -> str:
    return f"@{value.name}" if isinstance(value, Constant) else f"%{value.name}"
