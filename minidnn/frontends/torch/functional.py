"""A piece of PyTorch code as a functional graph of ATen operations.

Dynamo hands over pieces of a user's code that write in place, make views, and switch gradient mode
on and off.  AOTAutograd's functionalization turns such a piece into a graph without writes: the
value that the piece would write to an argument becomes a further result, which the caller writes
back after the run.  Such a graph may be cut between any two operations.  The graph is captured
before autograd dispatch, so composite operations such as ``conv2d`` are not decomposed.

PyTorch's tape records the parts of the graph and computes gradients across them.  Where the code
switches gradient mode off, operands are detached instead, which has the same meaning and no state.
"""

from __future__ import annotations

import contextvars
import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from minidnn._torch_internals import (
    FakeTensorMode,
    HigherOrderOperator,
    OpOverload,
    ShapeEnv,
    aot_export_module,
    data_of,
    enter_autocast,
    enter_inference_mode,
    exit_autocast,
    pytree,
    set_grad_enabled,
    to_copy,
    without_torch_function,
)
from minidnn.errors import UnsupportedError
from minidnn.frontends.torch.captured import CAPTURING, Captured, Held
from minidnn.frontends.torch.constants import constants, made_of_nothing
from minidnn.frontends.torch.higher_order import (
    inlined,
    put_back,
    standing_for,
    without_inference_mode,
)
from minidnn.frontends.torch.memory import (
    as_views,
    returned_operand,
    share_results,
    written_views,
)
from minidnn.frontends.torch.writes import call_name, check_untaped_writes, written_operands

#: Assertions about arguments, which the cache key of a program implies already.
_CHECKS = ("aten._assert_tensor_metadata.default", "aten._assert_scalar.default")
#: Functional operations whose gradients are wrong in PyTorch, and what is wrong.
_WRONG_GRADIENTS = {
    "aten.as_strided_scatter.default": "gives a gradient to the elements that are overwritten",
    "aten.rrelu_with_noise_functional.default": "computes its gradient by the noise before it",
}
_DETACH = torch.ops.aten.detach.default
#: The key in ``node.meta`` of the flag that a node's value may require a gradient.
_TRACKED = "minidnn_tracked"


def functional(
    piece: GraphModule,
    args: Sequence[Any],
    held: Mapping[int, Held],
    trained: bool,
    enabled: bool,
) -> Captured:
    """Returns the functional graph of a piece, specialized to the shapes of these arguments.

    Args:
        piece: the FX graph module that Dynamo hands over; its results are a tuple.
        args: the arguments with which the piece is called.
        held: the weights among the arguments, by position; they are constants where the piece is
            not trained.
        trained: whether gradients may flow through a part of the piece.
        enabled: whether gradient mode is on where the piece begins.

    Returns:
        The captured program.  Its results are the values to be written back to arguments, followed
        by the results of the piece.

    Raises:
        UnsupportedError: PyTorch cannot make it functional; it says why.
    """
    with CAPTURING:
        context = contextvars.copy_context()
        return context.run(_functional, piece, args, held, trained, enabled)


def _functional(
    piece: GraphModule,
    args: Sequence[Any],
    held: Mapping[int, Held],
    trained: bool,
    enabled: bool,
) -> Captured:
    piece = without_inference_mode(inlined(piece), enabled)
    _check_statistics(piece)
    if trained:
        check_untaped_writes(piece, args, enabled)
    try:
        # The piece's code may leave gradient mode changed.  cuDNN is off because the schema of its
        # batch normalization does not declare the running statistics that it writes.
        grad = torch.set_grad_enabled(enabled)
        without_cudnn = torch.backends.cudnn.flags(enabled=False)
        with grad, without_cudnn, standing_for(_prepared(piece)) as prepared:
            module, signature = aot_export_module(
                prepared, _without_data(args), trace_joint=False, pre_dispatch=True
            )
            put_back(module.graph)
    except Exception as error:  # tracing may raise anything
        text = " ".join(str(error).split())
        raise UnsupportedError(
            f"PyTorch cannot make it functional ({type(error).__name__}: {text:.400})"
        ) from error
    graph = module.graph
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    if len(placeholders) != len(args):
        raise UnsupportedError(
            f"it has {len(placeholders)} inputs for {len(args)} arguments, as PyTorch lifts "
            "tensors that its code holds"
        )
    by_name = {node.name: node for node in placeholders}
    # The values to write back are the first results; one of them may be a result of the piece, too.
    writes = [(i, by_name[name]) for i, name in enumerate(signature.user_inputs_to_mutate.values())]
    _without_copies(graph)
    _remove(graph, _CHECKS)
    _check_states(graph)
    _under_autocast(module)
    results: Any = next(n for n in graph.nodes if n.op == "output").args[0]
    untaped = set(placeholders)
    if trained and (enabled or any(switches_on(node) for node in graph.nodes)):
        taped = _detach(graph, placeholders, args, enabled)
        _check_gradients(taped)
        for position, node in writes:
            argument, result = args[placeholders.index(node)], results[position]
            # PyTorch allows a write to a leaf past its tape alone: by ``.data``, or without it.
            hidden = result not in taped or (argument.requires_grad and argument.is_leaf)
            if not hidden and (is_tracked(result) or is_tracked(node)):
                untaped.remove(node)
            elif is_tracked(node):
                _give_gradients(graph, node, result, taped)
    for node in list(graph.nodes):
        if node.target is set_grad_enabled:
            graph.erase_node(node)
    _mark_leaves(graph)
    counted, writes = _counted(graph, writes)
    share_results(graph, writes)
    made_of_nothing(graph)
    graph.eliminate_dead_code()
    module.recompile()
    for position, holder in held.items():
        placeholders[position].meta["minidnn_name"] = holder.name
    held_nodes = {placeholders[position]: holder for position, holder in held.items()}
    given = {node: position for position, node in enumerate(placeholders) if node not in held_nodes}
    output = next(node for node in graph.nodes if node.op == "output")
    count = len(output.args[0]) - len(writes)
    return Captured(
        module,
        held_nodes,
        given,
        constants(graph, () if trained else held_nodes),
        writes,
        pytree.tree_structure((0,) * count),
        untaped=frozenset(untaped),
        counted=counted,
    )


def _without_data(args: Sequence[Any]) -> list[Any]:
    """Returns fake tensors for the arguments; a number that the piece reads from a tensor
    (``item()``) is a symbol of unknown value."""
    mode = FakeTensorMode(shape_env=ShapeEnv())
    mode.allow_scalar_outputs = True
    return [
        mode.from_tensor(_leaf(each), static_shapes=True)
        if isinstance(each, torch.Tensor)
        else each
        for each in args
    ]


def _leaf(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a tensor of the same metadata that is a leaf of PyTorch's tape."""
    if tensor.is_inference():  # functionalization refuses inference tensors
        with torch.inference_mode(False):
            return torch.empty_strided(
                tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device
            )
    return tensor if tensor.is_leaf else tensor.detach().requires_grad_()


def _without_copies(graph: Graph) -> None:
    """Replaces each functional ``copy`` by its source, converted to the dtype and device of the
    destination and broadcast to its shape."""
    for node in list(graph.nodes):
        if node.target is not torch.ops.aten.copy.default:
            continue
        before, source = node.meta["val"], node.args[1]
        value = source.meta["val"]
        with graph.inserting_before(node):
            if (value.dtype, value.device) != (before.dtype, before.device):
                options = {"dtype": before.dtype, "device": before.device}
                source = graph.call_function(to_copy.default, (source,), options)
                source.meta = {**node.meta, "val": value.new_empty(value.shape, **options)}
            if value.shape != before.shape:
                shape = list(before.shape)
                source = graph.call_function(torch.ops.aten.expand.default, (source, shape))
                source.meta = dict(node.meta)
        node.replace_all_uses_with(source)
        graph.erase_node(node)


def _check_statistics(piece: GraphModule) -> None:
    """Raises UnsupportedError if a normalization writes to statistics that are computed: the schema
    of ``instance_norm`` does not declare that it writes to them."""
    for node in piece.graph.nodes:
        if call_name(node) == "instance_norm":
            for operand in written_operands(node):
                if operand.op != "placeholder":
                    raise UnsupportedError(
                        f"{node.name} writes to {operand.name}, which the code computes, and "
                        "PyTorch does not say so"
                    )


def _check_states(graph: Graph) -> None:
    """Raises UnsupportedError if a call sets a global state of PyTorch other than gradient mode and
    autocast."""
    known = (set_grad_enabled, enter_autocast, exit_autocast)
    for node in graph.nodes:
        if node.op != "call_function" or isinstance(node.target, (OpOverload, HigherOrderOperator)):
            continue
        name = getattr(node.target, "__name__", "")
        if name.startswith("_") and node.target not in known:
            raise UnsupportedError(f"it calls {name}, which sets how PyTorch computes")


def _check_gradients(taped: Iterable[Node]) -> None:
    """Raises UnsupportedError if PyTorch's tape has an operation whose gradient PyTorch does not
    compute right; functionalization makes such operations of writes in place."""
    for node in taped:
        if str(node.target) in _WRONG_GRADIENTS and is_tracked(node):
            raise UnsupportedError(
                f"{node.name} requires a gradient, and PyTorch's {node.target}, the functional "
                f"form of a write in place, {_WRONG_GRADIENTS[str(node.target)]}"
            )


def _remove(graph: Graph, names: Sequence[str]) -> None:
    for node in list(graph.nodes):
        if node.op == "call_function" and str(node.target) in names:
            graph.erase_node(node)


def _counted(
    graph: Graph, writes: Sequence[tuple[int, Node]]
) -> tuple[list[Node], list[tuple[int, Node]]]:
    """Returns the counters, and the other writes with their new positions among the results.

    A counter is a tensor whose only use is that one is added to it, such as the
    ``num_batches_tracked`` of a normalization.  A run increments all of them by one operation.
    """
    output = next(node for node in graph.nodes if node.op == "output")
    results: list[Any] = list(output.args[0])
    counted = {
        position: node
        for position, node in writes
        if isinstance(result := results[position], Node)
        and result.target is torch.ops.aten.add.Tensor
        and result.args == (node, 1)
        and not result.kwargs
        and len(node.users) == 1
        and list(result.users) == [output]
        and results.count(result) == 1
    }
    output.args = ([each for position, each in enumerate(results) if position not in counted],)
    remaining = [node for position, node in writes if position not in counted]
    return list(counted.values()), list(enumerate(remaining))


def _mark_leaves(graph: Graph) -> None:
    """Marks each node with whether it comes from a leaf module, which calls no other module."""
    stacks = [list((node.meta.get("nn_module_stack") or {}).values()) for node in graph.nodes]
    calling = {entry[0] for stack in stacks for entry in stack[:-1]}
    for node, stack in zip(graph.nodes, stacks, strict=True):
        node.meta["minidnn_leaf"] = bool(stack) and stack[-1][0] not in calling


def switches_on(node: Node) -> bool:
    """Whether a node switches gradient mode on."""
    if node.target is enter_inference_mode:
        return not node.args[0]
    return node.target is set_grad_enabled and bool(node.args[0])


class UnderAutocast:
    """An operation that PyTorch runs in its own autocast context, that of a block in the code.

    An instance is the target of a node and replaces the block's beginning and end.
    """

    minidnn_left = "it is in a block under autocast, which PyTorch honours"

    def __init__(self, operation: Any, settings: tuple[Any, ...]) -> None:
        self.operation = operation
        self._settings = settings
        self.__name__ = f"autocast({settings[0]!r}, {settings[1]}, enabled={settings[2]})"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        device, dtype, enabled, _ = self._settings
        with torch.autocast(device, dtype, enabled, cache_enabled=False):
            return self.operation(*args, **kwargs)


def _enter(*settings: Any) -> tuple[Any, Any]:
    """Records the beginning of an autocast block in the traced graph, and enters the block."""
    noted = enter_autocast(*settings)
    with without_torch_function():
        return noted, enter_autocast(*settings)


def _exit(begun: tuple[Any, Any]) -> None:
    """Records the end of an autocast block in the traced graph, and leaves the block."""
    noted, block = begun
    with without_torch_function():
        exit_autocast(block)
    exit_autocast(noted)


def _prepared(piece: GraphModule) -> GraphModule:
    """Returns a copy of the piece that AOTAutograd can trace.

    - Autocast blocks are entered while the piece is traced.  PyTorch would only record them, and
      infer the wrong dtypes for results.
    - Calls that return an operand, or a view of one that is written to later, without declaring it
      are replaced by ones that do, see :mod:`.memory`.
    """
    autocast_calls = (enter_autocast, exit_autocast)
    views = written_views(piece)
    graph = Graph()
    copies: dict[Node, Node] = {}
    for node in piece.graph.nodes:
        if (operand := returned_operand(node)) is not None:
            copies[node] = copies[operand]
            continue
        copies[node] = graph.node_copy(node, copies.__getitem__)
        if node.target is data_of:  # a traced graph does not show that it has no gradient
            copies[node].target = torch.Tensor.detach
        if node.target in autocast_calls:
            copies[node].target = _enter if node.target is enter_autocast else _exit
        if node in views:
            bases = [None if each is None else copies[each] for each in views[node]]
            copies[node] = graph.call_function(as_views, (copies[node], bases))
    return GraphModule(piece, graph)


def _under_autocast(module: GraphModule) -> None:
    """Wraps each operation in an autocast block in its context, and erases the block's beginning
    and end."""
    graph = module.graph
    if not any(node.target in (enter_autocast, exit_autocast) for node in graph.nodes):
        return
    blocks: list[tuple[Any, ...]] = []
    for node in graph.nodes:
        if node.target is enter_autocast:
            blocks.append((*node.args, *(None, True, None)[len(node.args) - 1 :])[:4])
        elif node.target is exit_autocast:
            blocks.pop()
        elif blocks and node.op == "call_function" and isinstance(node.target, OpOverload):
            node.target = _under(node.target, blocks[-1])
    for node in reversed(graph.nodes):
        if node.target in (enter_autocast, exit_autocast):
            graph.erase_node(node)


def _under(operation: Any, settings: tuple[Any, ...]) -> Any:
    """Returns an operation in the context of its block, or the operation itself where the block's
    settings are those around the piece."""
    return operation if _is_ambient(settings) else UnderAutocast(operation, settings)


def _is_ambient(settings: tuple[Any, ...]) -> bool:
    """Whether these autocast settings are those in effect around the piece."""
    device, dtype, enabled, _ = settings
    if not enabled:
        return not torch.is_autocast_enabled(device)
    dtype = torch.get_autocast_dtype(device) if dtype is None else dtype
    return torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device) is dtype


def is_tracked(node: Node) -> bool:
    """Whether the value of a node in a trained piece may require a gradient."""
    return bool(node.meta.get(_TRACKED))


def _detach(
    graph: Graph, placeholders: Sequence[Node], args: Sequence[Any], enabled: bool
) -> set[Node]:
    """Detaches the operands that may require a gradient and are read where gradient mode is off.

    Returns the nodes that run where gradient mode is on, which PyTorch has on its tape.
    """
    for node, each in zip(placeholders, args, strict=True):
        node.meta[_TRACKED] = isinstance(each, torch.Tensor) and each.requires_grad
    taped = set()
    for node in list(graph.nodes):
        if node.target is set_grad_enabled:
            enabled = bool(node.args[0])
        elif node.op == "call_function" and enabled:
            taped.add(node)
            node.meta[_TRACKED] = _has_gradient(node) and any(map(is_tracked, node.all_input_nodes))
        elif node.op == "call_function" and node.target is not _DETACH:
            for operand in filter(is_tracked, node.all_input_nodes):
                with graph.inserting_before(node):
                    detached = graph.call_function(_DETACH, (operand,))
                    detached.meta = {**operand.meta, _TRACKED: False}
                node.replace_input_with(operand, detached)
    return taped


class _Rewritten(torch.autograd.Function):
    """The value of a tensor after a write without gradient mode; the gradient by this value is
    passed on to the tensor."""

    @staticmethod
    def forward(ctx: Any, before: torch.Tensor, after: torch.Tensor) -> torch.Tensor:
        return after.view_as(after)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradients[0], None


def rewritten(before: torch.Tensor, after: torch.Tensor) -> torch.Tensor:
    """Returns the value ``after`` of a tensor that was ``before`` until a write without gradient
    mode: gradients by the result are gradients by ``before``."""
    return _Rewritten.apply(before, after)


def _give_gradients(graph: Graph, placeholder: Node, written: Node, taped: set[Node]) -> None:
    """Passes gradients by a value that was written to an argument, without gradient mode, on to the
    argument.

    placeholder: that of the argument; written: the node of its last value; taped: the nodes that
        run with gradient mode.

    Raises UnsupportedError where the argument is read between two writes to it.
    """
    derived: set[Node] = {placeholder}
    for node in graph.nodes:
        off = node.op == "call_function" and node not in taped
        if off and any(operand in derived for operand in node.all_input_nodes):
            derived.add(node)
    readers = [user for user in written.users if user in taped]
    chain, pending = {written}, [written]
    while pending:
        for operand in pending.pop().all_input_nodes:
            if operand in derived and operand not in chain and operand is not placeholder:
                chain.add(operand)
                pending.append(operand)
    for node in chain - {written}:
        if node.target is not _DETACH and any(user in taped for user in node.users):
            raise UnsupportedError(
                f"{placeholder.name} requires a gradient and is read between writes to it, where "
                "gradients are off"
            )
    if readers:
        with graph.inserting_after(written):
            value = graph.call_function(rewritten, (placeholder, written))
        value.meta = {**written.meta, _TRACKED: True}
        for reader in readers:
            reader.replace_input_with(written, value)
        for node in graph.nodes:  # its users may require a gradient, too
            if node in taped and any(map(is_tracked, node.all_input_nodes)):
                node.meta[_TRACKED] = _has_gradient(node)


def _has_gradient(node: Node) -> bool:
    """Whether PyTorch computes gradients by the value of a node: it is floating-point or complex,
    and neither detached nor a statistic of a batch normalization."""
    if node.target is _DETACH:
        return False
    if node.target is operator.getitem:
        value, index = node.args
        if "batch_norm" in str(getattr(value, "target", "")):  # statistics have no gradient
            return index == 0
    value = node.meta.get("val")
    return any(
        isinstance(each, torch.Tensor) and (each.is_floating_point() or each.is_complex())
        for each in (value if isinstance(value, (list, tuple)) else (value,))
    )
