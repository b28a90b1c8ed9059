"""A piece of PyTorch code as a functional graph of ATen operations.

PyTorch's Dynamo hands over pieces of a user's code that write in place, make views and switch
gradients on and off.  AOTAutograd's functionalization gives the same without writes: what a piece
would write to an argument is a further result, which is written back afterwards.  In such a graph a
cut between any two operations is harmless, and operations below autograd (``conv2d``, not its
decomposition) stay whole.

Gradients are PyTorch's tape around the pieces of the graph.  Where the code switches gradients off,
operands are detached, which has the same meaning and no state.
"""

from __future__ import annotations

import contextvars
import operator
from collections.abc import Mapping, Sequence
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
    exit_autocast,
    pytree,
    set_grad_enabled,
    to_copy,
    without_torch_function,
)
from minidnn.errors import UnsupportedError
from minidnn.frontends.torch.captured import CAPTURING, Captured, Held
from minidnn.frontends.torch.constants import constants, made_of_nothing
from minidnn.frontends.torch.memory import (
    as_views,
    may_write,
    returned_operand,
    share_results,
    viewed,
)
from minidnn.frontends.torch.opaque import put_back, standing_for
from minidnn.frontends.torch.untaped_writes import check_untaped_writes

#: Operations that check what the key of a program says already.
_CHECKS = ("aten._assert_tensor_metadata.default", "aten._assert_scalar.default")
_CHECKPOINT = "tag_activation_checkpoint"
_DETACH = torch.ops.aten.detach.default
#: The key of what says that a node's value may require a gradient.
_TRACKED = "minidnn_tracked"


def functional(
    piece: GraphModule,
    args: Sequence[Any],
    held: Mapping[int, Held],
    trained: bool,
    enabled: bool,
) -> Captured:
    """The functional graph of a piece for arguments of these sizes.

    Args:
        piece: what Dynamo hands over; its results are a tuple.
        args: arguments as the piece is called with them.
        held: arguments, by place, that are weights: constants where the piece is not trained.
        trained: whether gradients may flow through some of it.
        enabled: whether gradients are on where the piece begins.

    Returns:
        The graph; its results are what is written back to arguments, and those of the piece.

    Raises:
        UnsupportedError: PyTorch cannot make it functional; it says why.
    """
    with CAPTURING:
        own = contextvars.copy_context()
        return own.run(_functional, piece, args, held, trained, enabled)


def _functional(
    piece: GraphModule,
    args: Sequence[Any],
    held: Mapping[int, Held],
    trained: bool,
    enabled: bool,
) -> Captured:
    if trained:
        check_untaped_writes(piece, args, enabled)
    try:
        # The code of the piece may leave gradients otherwise.  The operation of cuDNN for a batch
        # normalization says nothing of the statistics that it writes.
        grad = torch.set_grad_enabled(enabled)
        plain = torch.backends.cudnn.flags(enabled=False)
        with grad, plain, standing_for(_prepared(piece)) as whole:
            module, signature = aot_export_module(
                whole, _without_data(args), trace_joint=False, pre_dispatch=True
            )
            put_back(module.graph)
    except Exception as error:  # whatever PyTorch says of what it does not trace
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
    # What is written back comes first; the same value may be a result of the piece, too.
    writes = [(i, by_name[name]) for i, name in enumerate(signature.user_inputs_to_mutate.values())]
    _without_copies(graph)
    _remove(graph, _CHECKS)
    _check_states(graph)
    _under_autocast(module)
    results: Any = next(n for n in graph.nodes if n.op == "output").args[0]
    untaped = set(placeholders)
    if trained and (enabled or any(switches_on(node) for node in graph.nodes)):
        taped = _detach(graph, placeholders, args, enabled)
        for place, node in writes:
            given, result = args[placeholders.index(node)], results[place]
            # PyTorch refuses to write to leaves but past its tape: by ``.data``, or without it.
            hidden = result not in taped or (given.requires_grad and given.is_leaf)
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
    for place, where in held.items():
        placeholders[place].meta["minidnn_name"] = where.name
    own = {placeholders[place]: where for place, where in held.items()}
    given = {node: place for place, node in enumerate(placeholders) if node not in own}
    output = next(node for node in graph.nodes if node.op == "output")
    count = len(output.args[0]) - len(writes)
    return Captured(
        module,
        own,
        given,
        constants(graph, () if trained else own),
        writes,
        pytree.tree_structure((0,) * count),
        untaped=frozenset(untaped),
        counted=counted,
    )


def _without_data(args: Sequence[Any]) -> list[Any]:
    """Tensors without data like the arguments; a number that a piece takes of one is unknown."""
    mode = FakeTensorMode(shape_env=ShapeEnv())
    mode.allow_scalar_outputs = True
    return [
        mode.from_tensor(_leaf(each), static_shapes=True)
        if isinstance(each, torch.Tensor)
        else each
        for each in args
    ]


def _leaf(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor that is not the result of an operation that PyTorch has on its tape."""
    if tensor.is_inference():  # which PyTorch does not make functional
        with torch.inference_mode(False):
            return torch.empty_strided(
                tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device
            )
    return tensor if tensor.is_leaf else tensor.detach().requires_grad_()


def _without_copies(graph: Graph) -> None:
    """Puts, in the place of what a tensor is after another was copied to it, that other one in its
    shape and dtype."""
    for node in list(graph.nodes):
        if node.target is not torch.ops.aten.copy.default:
            continue
        before, source = node.meta["val"], node.args[1]
        value = source.meta["val"]
        with graph.inserting_before(node):
            if (value.dtype, value.device) != (before.dtype, before.device):
                made = {"dtype": before.dtype, "device": before.device}
                source = graph.call_function(to_copy.default, (source,), made)
                source.meta = {**node.meta, "val": value.new_empty(value.shape, **made)}
            if value.shape != before.shape:
                shape = list(before.shape)
                source = graph.call_function(torch.ops.aten.expand.default, (source, shape))
                source.meta = dict(node.meta)
        node.replace_all_uses_with(source)
        graph.erase_node(node)


def _check_states(graph: Graph) -> None:
    """UnsupportedError if an operation sets a state of PyTorch's that is not known here."""
    known = (set_grad_enabled, enter_autocast, exit_autocast)
    for node in graph.nodes:
        if node.op != "call_function" or isinstance(node.target, (OpOverload, HigherOrderOperator)):
            continue
        name = getattr(node.target, "__name__", "")
        if name.startswith("_") and node.target not in known:
            raise UnsupportedError(f"it calls {name}, which sets how PyTorch computes")


def _remove(graph: Graph, names: Sequence[str]) -> None:
    for node in list(graph.nodes):
        if node.op == "call_function" and str(node.target) in names:
            graph.erase_node(node)


def _counted(
    graph: Graph, writes: Sequence[tuple[int, Node]]
) -> tuple[list[Node], list[tuple[int, Node]]]:
    """Counters to which one is added and that nothing else reads, as normalizations count batches:
    all of them are counted by one operation.  The other writes come with their new places."""
    output = next(node for node in graph.nodes if node.op == "output")
    results: list[Any] = list(output.args[0])
    counted = {
        place: node
        for place, node in writes
        if isinstance(result := results[place], Node)
        and result.target is torch.ops.aten.add.Tensor
        and result.args == (node, 1)
        and not result.kwargs
        and len(node.users) == 1
        and list(result.users) == [output]
        and results.count(result) == 1
    }
    output.args = ([each for place, each in enumerate(results) if place not in counted],)
    rest = [node for place, node in writes if place not in counted]
    return list(counted.values()), list(enumerate(rest))


def _mark_leaves(graph: Graph) -> None:
    """Notes at every node whether it comes from a module that calls no other."""
    stacks = [list((node.meta.get("nn_module_stack") or {}).values()) for node in graph.nodes]
    calling = {entry[0] for stack in stacks for entry in stack[:-1]}
    for node, stack in zip(graph.nodes, stacks, strict=True):
        node.meta["minidnn_leaf"] = bool(stack) and stack[-1][0] not in calling


def switches_on(node: Node) -> bool:
    """Whether a node switches gradients on."""
    return node.target is set_grad_enabled and bool(node.args[0])


class UnderAutocast:
    """An operation that PyTorch runs under autocast as a block in the code says."""

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
    """Notes in the graph that is made that a block begins, and begins it."""
    noted = enter_autocast(*settings)
    with without_torch_function():
        return noted, enter_autocast(*settings)


def _exit(begun: tuple[Any, Any]) -> None:
    noted, block = begun
    with without_torch_function():
        exit_autocast(block)
    exit_autocast(noted)


def _prepared(piece: GraphModule) -> GraphModule:
    """The piece as a graph can be made of it.

    Blocks under autocast are entered also where a graph is made of them: PyTorch only notes them
    there, and then takes results for such of other dtypes.  Blocks that are to be computed again
    for their gradients are computed as they are: parts choose themselves what they keep.  What
    gives an operand's memory without saying so does say so, see :mod:`.memory`.
    """
    special = (enter_autocast, exit_autocast)
    writes = may_write(piece)
    graph = Graph()
    found: dict[Node, Node] = {}
    for node in piece.graph.nodes:
        if _is_checkpoint(node):
            block, *operands = node.args
            given = torch.fx.map_arg(tuple(operands), found.__getitem__)
            found[node] = graph.call_module(str(block.target), given)
            continue
        if (operand := returned_operand(node)) is not None:
            found[node] = found[operand]
            continue
        found[node] = graph.node_copy(node, found.__getitem__)
        if node.target is data_of:  # of which a graph does not say that it has no gradient
            found[node].target = torch.Tensor.detach
        if node.target in special:
            found[node].target = _enter if node.target is enter_autocast else _exit
        if writes and (operands := viewed(node)):
            own = [None if each is None else found[each] for each in operands]
            found[node] = graph.call_function(as_views, (found[node], own))
    return GraphModule(piece, graph)


def _is_checkpoint(node: Node) -> bool:
    """Whether a node is a call by way of ``torch.utils.checkpoint``."""
    return isinstance(node.target, HigherOrderOperator) and str(node.target) == _CHECKPOINT


def _under_autocast(module: GraphModule) -> None:
    """Has each operation in a block under another autocast say so itself, in place of the block's
    beginning and end."""
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
    """An operation in such a block; itself where autocast is as it is around the piece."""
    return operation if _is_ambient(settings) else UnderAutocast(operation, settings)


def _is_ambient(settings: tuple[Any, ...]) -> bool:
    """Whether such an autocast is that which is on, or off, around the piece."""
    device, dtype, enabled, _ = settings
    if not enabled:
        return not torch.is_autocast_enabled(device)
    dtype = torch.get_autocast_dtype(device) if dtype is None else dtype
    return torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device) is dtype


def is_tracked(node: Node) -> bool:
    """Whether what a node of a trained piece gives may require a gradient."""
    return bool(node.meta.get(_TRACKED))


def _detach(
    graph: Graph, placeholders: Sequence[Node], args: Sequence[Any], enabled: bool
) -> set[Node]:
    """Detaches what is read where gradients are off, of all that may require a gradient.

    Returns what is made where they are on, for arguments that PyTorch has on its tape.
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
    """What was written to a tensor where gradients are off; its gradient is the tensor's."""

    @staticmethod
    def forward(ctx: Any, before: torch.Tensor, after: torch.Tensor) -> torch.Tensor:
        return after.view_as(after)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradients[0], None


def rewritten(before: torch.Tensor, after: torch.Tensor) -> torch.Tensor:
    """A tensor as it is after a write where gradients are off: it still is the tensor by which
    there are gradients."""
    return _Rewritten.apply(before, after)


def _give_gradients(graph: Graph, given: Node, written: Node, taped: set[Node]) -> None:
    """Lets gradients by what was written to an argument, where they are off, be such by it.

    UnsupportedError where it was written to more than once, and read between.
    """
    made: set[Node] = {given}
    for node in graph.nodes:
        off = node.op == "call_function" and node not in taped
        if off and any(each in made for each in node.all_input_nodes):
            made.add(node)
    readers = [user for user in written.users if user in taped]
    chain, pending = {written}, [written]
    while pending:
        for each in pending.pop().all_input_nodes:
            if each in made and each not in chain and each is not given:
                chain.add(each)
                pending.append(each)
    for node in chain - {written}:
        if node.target is not _DETACH and any(user in taped for user in node.users):
            raise UnsupportedError(
                f"{given.name} requires a gradient and is read between writes to it, where "
                "gradients are off"
            )
    if readers:
        with graph.inserting_after(written):
            value = graph.call_function(rewritten, (given, written))
        value.meta = {**written.meta, _TRACKED: True}
        for reader in readers:
            reader.replace_input_with(written, value)
        for node in graph.nodes:  # what is read of it may require a gradient, too
            if node in taped and any(map(is_tracked, node.all_input_nodes)):
                node.meta[_TRACKED] = _has_gradient(node)


def _has_gradient(node: Node) -> bool:
    """Whether PyTorch gives gradients by what a node gives."""
    if node.target is _DETACH:
        return False
    if node.target is operator.getitem:
        value, place = node.args
        if "batch_norm" in str(getattr(value, "target", "")):  # statistics have none
            return place == 0
    value = node.meta.get("val")
    return any(
        isinstance(each, torch.Tensor) and (each.is_floating_point() or each.is_complex())
        for each in (value if isinstance(value, (list, tuple)) else (value,))
    )
