"""compile: from a network to an executable, through the passes, the plan and a backend."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, overload
from weakref import ref

from minidnn._garbage_collection import garbage_collection_paused
from minidnn.backends.backend import (
    AUTO,
    Backend,
    advice_on_precision,
    any_size_options,
    check_inputs_and_outputs_fit,
    check_not_automatic,
    default_device,
    get_backend,
    takes_float32,
    why_no_states,
    why_not_in,
)
from minidnn.backends.options import memory_limit_option, tune_option
from minidnn.dynamic.dim import Dim, NamedShapes, dims_of, taken_options
from minidnn.dynamic.executable import DynamicExecutable
from minidnn.dynamic.source import NetworkSource
from minidnn.errors import GraphError, MiniDNNWarning, UnsupportedError
from minidnn.executable import Executable
from minidnn.frontends.frontend import looks_at_sizes, open_model, reads_code
from minidnn.fusion.collapse import NO_STACKS, check_strategy
from minidnn.fusion.region import Region, constants
from minidnn.fusion.target import check_target
from minidnn.graph.ir import Constant, Graph
from minidnn.graph.operators import Reorder
from minidnn.graph.types import FLOATS, plain
from minidnn.layers.arguments import Shapes
from minidnn.layers.functional import has_user_code
from minidnn.layers.layer import Layer
from minidnn.networks import check_has_no_size, checked_graph, graph_of, with_own_sizes
from minidnn.passes.infrastructure import Context, Observer
from minidnn.passes.multiply_int8 import precision_of
from minidnn.passes.pipeline import optimize
from minidnn.passes.reduce_precision import in_dtype
from minidnn.precision import check_asked, fastest
from minidnn.runtime.interface import interface_of
from minidnn.runtime.plan import Plan, make_plan
from minidnn.runtime.program import PackedProgram, StatefulProgram
from minidnn.runtime.store import Store

log = logging.getLogger(__name__)

_IN_FULL = ("float32", "tf32")
"""Precisions that keep the dtypes of the network's values."""


@overload
def compile(
    network: Layer | Graph | Any,
    shape: Shapes | None = None,
    *,
    device: str | None = None,
    precision: str | None = None,
    tolerance: float | None = None,
    examples: Any = None,
    strategy: str = "model",
    fuel: int | None = None,
    observe: Observer | None = None,
    store: Store | None = None,
    **options: Any,
) -> Executable: ...


@overload
def compile(
    network: Layer | Graph | Any,
    shape: NamedShapes,
    *,
    device: str | None = None,
    precision: str | None = None,
    tolerance: float | None = None,
    examples: Any = None,
    strategy: str = "model",
    fuel: int | None = None,
    observe: Observer | None = None,
    store: Store | None = None,
    keep: int = 8,
    keep_bytes: int | None = None,
    background: bool = True,
    **options: Any,
) -> Executable | DynamicExecutable: ...


def compile(
    network: Layer | Graph | Any,
    shape: NamedShapes | None = None,
    *,
    device: str | None = None,
    precision: str | None = None,
    tolerance: float | None = None,
    examples: Any = None,
    strategy: str = "model",
    fuel: int | None = None,
    observe: Observer | None = None,
    store: Store | None = None,
    **options: Any,
) -> Executable | DynamicExecutable:
    """Compiles a network for inputs of one size, or of named sizes.

    Args:
        network: a layer, a graph (which has its size already), or what a front end accepts: a
            PyTorch module; a file (ONNX, or one that save_graph wrote); a name of the zoo,
            "resnet18" with random weights or "resnet18.DEFAULT" with published ones.
        shape: the input's shape with the batch, (16, 3, 224, 224); a sequence or a dict of shapes
            for several inputs. Files that say their size need none, nor do names: one image. A
            :class:`minidnn.Dim` in a size's place names it, and gives its range.
        device: "cuda", "cpu", "reference"; by default the first of these that can be used here.
        precision: one of the backend's precisions; by default the dtype of all floating-point
            values of the network, if that is one of them, else its first, "float32". The CPU
            computes in "bfloat16" on processors that multiply it; networks in other dtypes it
            computes in float32, gives results in their own, and warns of it unless
            ``precision="float32"`` is given. "auto" is the fastest one for inference whose results
            stay within ``tolerance`` of float32's: all are compiled, compared and timed, and
            ``explain()`` says what was found.
        tolerance: with "auto", the error that is allowed, of each output ``|y - y32| / |y32|`` in
            Euclidean norms over all examples (0.01).
        examples: with "auto", inputs such as the network will see, on the CPU: an array, a tuple or
            dict of several inputs, of one batch or several times as many rows, or a list of them.
            By default random numbers, normally distributed.
        strategy: how stacks are collapsed: "model" (by predicted time), or the paper's "one",
            "five" and "unrestricted"; "contractions" lets only convolutions and linear layers take
            what is point-wise around them, "layers" computes layer by layer, and so does "cudnn",
            by cuDNN's function for a layer wherever it has one (on GPUs).
        fuel: how many rewrites the passes may make; all by default.
        observe: called with every pass and the graphs before and after it.
        store: where the graph's states live, shared with other programs; a layer's parameters are
            states then. Without one, states that the graph does not update are constants, and the
            others live in a store of the executable's own.
        options: further options of the backend. With named sizes also ``keep``, the number of sizes
            for which programs are kept (8), ``keep_bytes``, their most bytes, weights included
            (any), and ``background``, whether calls go on while programs are made (True): see
            :class:`minidnn.dynamic.executable.DynamicExecutable`.

    Returns:
        An executable, which is called with arrays: with named sizes a DynamicExecutable.

    Raises:
        GraphError: the network or an argument is not legal.
        UnsupportedError: the backend cannot run it; with all reasons at once.
        DeviceError: the device cannot be used.
        OutOfMemoryError: its memory cannot hold the network's values.

    >>> exe = md.compile(net, (2, 3, 32, 32))
    >>> y = exe(x)
    """
    check_asked(precision, tolerance, examples)
    how: dict[str, Any] = {"device": device, "strategy": strategy, "fuel": fuel}
    how |= {"observe": observe, "store": store}
    given: Any
    network, given = with_own_sizes(network, shape)
    dims = dims_of(given)
    if precision == AUTO:
        if store is not None:
            check_not_automatic(precision, "programs that share a store")
        if dims:
            check_not_automatic(precision, "named sizes")
        return _compile_fastest(network, given, tolerance, examples, options=options, **how)
    if dims:
        how |= {"precision": precision, "options": plain(options)}
        return _compile_named(network, given, dims, **how)
    return _compile(network, given, precision=precision, options=options, **how)


def _compile_fastest(
    network: Any,
    shape: Any,
    tolerance: float | None,
    examples: Any,
    *,
    device: str | None,
    observe: Observer | None,
    **how: Any,
) -> Executable:
    """Compiles a network in several precisions, and returns the fastest within the tolerance."""
    device = _default_device() if device is None else device
    graph = graph_of(network, shape)
    arrays = [constant.data for constant in constants(graph)]  # held, as each program forgets them

    def compiled(precision: str, observe: Observer | None) -> Executable:
        settings = {**how, "device": device, "precision": precision, "observe": observe}
        return _compile(graph, None, is_ours=graph is not network, **settings)

    executable = fastest(graph, get_backend(device), compiled, tolerance, examples, observe)
    del arrays
    return executable


def _compile_named(
    network: Any,
    shapes: Any,
    dims: Sequence[Dim],
    *,
    store: Store | None,
    options: dict[str, Any],
    device: str | None,
    **given: Any,
) -> DynamicExecutable:
    """Compiles a network for named sizes."""
    limits = taken_options(options)
    device = _default_device() if device is None else device
    check_has_no_size(network, shapes)
    _check_store(store)
    opened = network if isinstance(network, Layer) else open_model(network)
    kept = {"store": store}

    def trace(shape: Any) -> Graph:
        return graph_of(opened, shape, states=store is not None)

    def build(graph: Graph, own: Mapping[str, Any], strategy: str = "") -> Executable:
        how = given | {"strategy": strategy} if strategy else given
        result = _compile(
            graph, None, device=device, options=own, is_ours=True, **how, store=kept["store"]
        )
        if graph.states and kept["store"] is None:
            kept["store"] = result.store  # all programs share the states
        return result

    untuned = {**options, "tune": False} if "tune" in options else options

    def compiled(graph: Graph, tunes: bool) -> Executable:
        return build(graph, options if tunes else untuned)

    def compiled_for_any_size(graph: Graph) -> Callable[[], Executable] | None:
        extra = any_size_options(device, graph)
        # cuDNN's functions take windows of one size.
        if extra is None or given["strategy"] == "cudnn":
            return None
        # Only strategies that compute layer by layer have kernels for any size.
        strategy = given["strategy"] if given["strategy"] in NO_STACKS else "contractions"
        return lambda: build(graph, {**untuned, **extra}, strategy)

    tunes = tune_option(options, "heuristic") != "heuristic"
    has_code = has_user_code(opened) if isinstance(opened, Layer) else reads_code(opened)
    looks = has_code or (not isinstance(opened, Layer) and looks_at_sizes(opened))
    arguments = (shapes, trace, compiled, tunes, has_code, compiled_for_any_size, looks)
    return DynamicExecutable(NetworkSource(*arguments), dims, **limits)


def compile_mixed(graph: Graph, *, device: str, precision: str, **options: Any) -> Executable:
    """Compiles a graph in mixed precision, whose types say which values are in half precision.

    ``precision`` is "float16" or "bfloat16", for which the target is chosen; the other arguments,
    and what is raised, are those of :func:`compile`.
    """
    return _compile(graph, None, device=device, precision=precision, options=options, mixed=True)


def _compile(
    network: Layer | Graph | Any,
    shape: Shapes | None,
    *,
    device: str | None,
    precision: str | None,
    options: Mapping[str, Any],
    strategy: str = "model",
    fuel: int | None = None,
    observe: Observer | None = None,
    store: Store | None = None,
    mixed: bool = False,
    is_ours: bool = False,
) -> Executable:
    """``mixed``: the graph's types say which values are in half precision.  ``is_ours``: the graph
    has no other owner, so that its arrays may be forgotten."""
    method, limit, options = check_strategy(strategy), plain(fuel), plain(options)
    if limit is not None and (type(limit) is not int or limit < 0):
        raise GraphError(f"fuel={limit!r}; valid is a number of rewrites of at least 0, or None")
    if observe is not None and not callable(observe):
        raise GraphError(f"observe={observe!r:.80}; valid is a function of a pass and two graphs")
    if device is None:
        device = _default_device()
    backend = get_backend(device)
    _check_store(store)
    graph = graph_of(network, shape, states=store is not None)
    if store is not None and not graph.states:
        raise GraphError(f"store={store!r}, but graph {graph.name!r} has no states to keep there")
    check_inputs_and_outputs_fit(backend, graph)
    chosen = _precision(backend, precision, graph)
    context = Context(
        check_target(backend.target(chosen, options), backend.name, method),
        method,
        limit,
        stored=store is not None,
        memory_limit=memory_limit_option(options),
        mixed=mixed,
    )
    computed = graph if mixed else _computed(backend, graph, chosen, told=precision is not None)
    with garbage_collection_paused():
        plan = make_plan(optimize(computed, context, observe), context)
        _check_supported(backend, plan, chosen, graph)
        program = backend.compile(plan, chosen, options)
    if isinstance(program, PackedProgram):
        if observe is None:
            _forget_constants(plan.graph, graph, kept=graph is network and not is_ours)
            if computed is not graph:
                _forget_constants(plan.graph, computed, kept=False)
        program.release_memory()
    if plan.graph.states:
        store = Store() if store is None else store
        assert isinstance(program, StatefulProgram), f"{device} says that it keeps states"
        known = set(store)
        program.attach(store)
        # The plan may run nodes in another order than the graph has them.
        store.arrange(state.name for state in graph.states if state.name not in known)
    # A graph of the caller's is not kept alive: it still has its arrays, which may be large.
    kept = graph is network and not is_ours
    source: Callable[[], Graph | None] = ref(graph) if kept else lambda: graph
    rounded = computed is not graph and chosen != "float64"
    results = [value.dtype for value in graph.outputs] if rounded else None
    interface = interface_of(plan.graph)
    said = precision_of(plan.graph, chosen)
    return Executable(
        interface, program, device, said, results, plan=plan, source=source, store=store
    )


def unsupported_nodes(
    graph: Graph,
    device: str,
    precision: str | None = None,
    strategy: str = "model",
    **options: Any,
) -> dict[str, str]:
    """Returns why a device cannot run a graph: a reason for each unsupported node of the optimized
    graph, by the node's name and operator.

    Takes arguments of :func:`compile` and raises what it raises for those.
    """
    backend = get_backend(device)
    chosen = _precision(backend, precision, graph)
    method = check_strategy(strategy)
    context = Context(check_target(backend.target(chosen, options), backend.name, method), method)
    graph = checked_graph(graph)
    # A graph that is supported as it is is so optimized, unless a pass changes dtypes.
    if chosen in _IN_FULL and not _reasons(backend, graph, chosen):
        return {}
    return _reasons(backend, optimize(graph, context), chosen)


def _default_device() -> str:
    """The default device, which is logged: with a warning, once, if it is the slow reference."""
    device, reasons = default_device()
    text = f"device {device!r} is used{''.join(f'; not {reason}' for reason in reasons)}"
    slow = device == "reference" and reasons and text not in _warned
    log.log(logging.WARNING if slow else logging.INFO, "%s", text)
    if slow:
        _warned.add(text)
    return device


_warned: set[str] = set()


def _check_store(store: Store | None) -> None:
    if store is not None and not isinstance(store, Store):
        raise GraphError(f"store={store!r:.80}; valid is a minidnn.Store, or None")


def _precision(backend: Backend, precision: str | None, graph: Graph) -> str:
    """The precision to compute in: the one that was asked for, or the default for the graph."""
    known = backend.precisions()
    valid = [each for each in known if why_not_in(backend, each) is None]
    check_not_automatic(precision, "parts of networks", valid)
    if precision is None:
        own = _own_precision(graph)
        return own if own is not None and own in valid else valid[0]
    if precision in known and precision not in valid:
        raise UnsupportedError(
            f"precision={precision!r} on device {backend.name!r}: "
            f"{why_not_in(backend, precision)}; valid here "
            f"{'is' if len(valid) == 1 else 'are'} {', '.join(map(repr, valid))}"
        )
    if precision not in valid:
        raise UnsupportedError(
            f"precision={precision!r:.80} on device {backend.name!r}; valid "
            f"{'is' if len(valid) == 1 else 'are'} {', '.join(map(repr, valid))}"
            f"{advice_on_precision(precision)}"
        )
    return precision


def _own_precision(graph: Graph) -> str | None:
    """The dtype of all floating-point values of a graph; None if there are several, or none."""
    dtypes = {value.dtype for value in graph.values if value.dtype in FLOATS}
    return dtypes.pop() if len(dtypes) == 1 else None


def _computed(backend: Backend, graph: Graph, precision: str, told: bool) -> Graph:
    """The graph in the dtype that the backend computes in.

    It is in float64 for that precision, and in float32 for a backend whose inputs and outputs have
    no other floating-point dtype, with a warning unless the caller named (``told``) the precision.
    """
    if precision == "float64":
        return in_dtype(graph, set(FLOATS) - {"float64"}, "float64")
    others = {value.dtype for value in graph.values if value.dtype in FLOATS} - {"float32"}
    narrow = tuple(backend.precisions()) == ("float32",) or takes_float32(backend)
    if not others or graph.states or not narrow:
        return graph
    if not told and others != {precision}:
        named, kept = " and ".join(sorted(others)), " and ".join(sorted(others - {"bfloat16"}))
        stay = f"inputs and results stay {kept}, and " if kept else ""
        lost = "results in bfloat16, which NumPy has not, and " if "bfloat16" in others else ""
        warnings.warn(
            f"device {backend.name!r} computes in float32, and the network is in {named}: {stay}"
            f"{lost}all between them is float32; precision='float32' says that this is meant, "
            "device='reference' computes in the network's own dtype",
            MiniDNNWarning,
            stacklevel=4,
        )
    return in_dtype(graph, others, "float32")


def _forget_constants(optimized: Graph, original: Graph, kept: bool) -> None:
    """Frees the arrays of an optimized graph, of which the program has packed copies.

    Outputs keep theirs, and so does the original graph if the caller has it (``kept``).  Otherwise
    its arrays are freed, too: values and nodes refer to each other, so that an unused graph lives
    until Python's cyclic garbage collection.
    """
    held = {*optimized.outputs, *(constants(original) if kept else ())}
    for value in optimized.outputs:
        if isinstance(value, Constant):
            _ = value.data  # computed now, if it depends on other constants
    for constant in (*constants(optimized), *constants(original)):
        if constant not in held:
            constant.forget()


def _check_supported(backend: Backend, plan: Plan, precision: str, given: Graph) -> None:
    """UnsupportedError, with all reasons, if the backend cannot run the plan."""
    states = plan.graph.states
    if states and (reason := why_no_states(backend)) is not None:
        named = ", ".join(repr(state.name) for state in states[:3])
        raise UnsupportedError(
            f"graph {plan.graph.name!r} has {len(states)} states ({named}"
            f"{', ...' if len(states) > 3 else ''}), which live across runs, and {reason}"
        )
    reasons = _reasons(backend, plan.graph, precision)
    if reasons:
        raise UnsupportedError(
            f"device {backend.name!r} cannot run this network:\n  "
            + "\n  ".join(f"{node}: {reason}" for node, reason in reasons.items())
            + _advice_on_dtype(backend, plan.graph)
            + _advice_on_optimized(given)
        )


def _advice_on_dtype(backend: Backend, graph: Graph) -> str:
    """Advice for a network in a dtype that its device does not compute in, or ""."""
    own = _own_precision(graph)
    if own is None or own in backend.precisions():
        return ""
    return (
        f"\nthe network is in {own}{advice_on_precision(own)}; a PyTorch module is in float32 "
        "after module.float()"
    )


def _advice_on_optimized(graph: Graph) -> str:
    """Advice for a graph that was optimized for one device already, or ""."""
    if not any(isinstance(node.op, (Region, Reorder)) for node in graph.nodes):
        return ""
    return (
        f"\ngraph {graph.name!r} was optimized already, as it suits one device (an executable's "
        ".graph is); valid for all devices is the network, or what save_graph(network, path, "
        "shape) or save_graph(executable, path) writes"
    )


def _reasons(backend: Backend, graph: Graph, precision: str) -> dict[str, str]:
    """Why the backend cannot run nodes of a graph, by node."""
    return {
        f"node {node.name!r} ({node.op})": reason
        for node in graph.nodes
        if (reason := backend.unsupported(node, precision)) is not None
    }
