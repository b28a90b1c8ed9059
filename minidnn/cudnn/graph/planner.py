"""Plans a frozen graph: cuDNN proposes engines, the constraints reject some, the rest are timed.

The finding about a graph, ranked engines or "unsupported", is cached in memory and on disk.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import warnings
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any

from minidnn.cache import CacheStore, digest
from minidnn.cudnn import machine
from minidnn.cudnn.errors import CuDNNError
from minidnn.cudnn.graph import arrays, device, engines, lower, timing
from minidnn.cudnn.graph.descriptor import BackendDescriptor
from minidnn.cudnn.graph.engines import EngineConfig, Proposal
from minidnn.cudnn.graph.plan import Plan, built
from minidnn.cudnn.graph.spec import Constraints, GraphSpec
from minidnn.errors import GraphError, MiniDNNWarning, OutOfMemoryError, UnsupportedError
from minidnn.gpu import cupy

FORMAT = 2
KEPT = 8
"""The number of engines in a cached finding: the slower ones serve when memory is short."""


@dataclass(frozen=True)
class Ranked:
    """One engine that works: its time in milliseconds and its workspace in bytes."""

    config: EngineConfig
    milliseconds: float
    workspace: int


@dataclass(frozen=True)
class Finding:
    """The working engines of a graph from fast to slow; none, with the reason, if unsupported."""

    ranked: tuple[Ranked, ...]
    reason: str = ""


_found: dict[str, Finding] = {}
_lock = threading.Lock()
_store = CacheStore("cudnn_graph", ".json", 64 << 20)


def key_of(spec: GraphSpec, constraints: Constraints, device: str) -> str:
    """The cache key of a finding: a digest of everything that the choice depends on."""
    return digest("cudnn graph", FORMAT, spec, constraints, device, machine.library_name())


def recall(name: str) -> Finding | None:
    """The finding that is cached under a key, or None."""
    with _lock:
        if name in _found:
            return _found[name]
    data = _store.read(name)
    finding = None if data is None else _decode(data)
    if finding is not None:
        with _lock:
            _found[name] = finding
    return finding


def remember(name: str, finding: Finding, **shown: Any) -> None:
    """Caches a finding in memory and on disk; ``shown`` goes into the file for people to read."""
    with _lock:
        _found[name] = finding
    ranked = [
        {
            "engine": item.config.engine,
            "knobs": [list(knob) for knob in item.config.knobs],
            "milliseconds": item.milliseconds,
            "workspace": item.workspace,
        }
        for item in finding.ranked[:KEPT]
    ]
    entry = {"format": FORMAT, **shown, "unsupported": finding.reason, "ranked": ranked}
    _store.put(name, json.dumps(entry, indent=1).encode(), label="plan")


def forget() -> None:
    """Clears the cache in memory; what is on disk stays."""
    with _lock:
        _found.clear()


def _decode(data: bytes) -> Finding | None:
    """The finding in a cache file; None if it is malformed, and the caller measures again."""
    try:
        entry = json.loads(data)
        ranked = tuple(
            Ranked(
                EngineConfig(int(i["engine"]), tuple((int(k), int(v)) for k, v in i["knobs"])),
                float(i["milliseconds"]),
                int(i["workspace"]),
            )
            for i in entry["ranked"]
        )
        reason = str(entry["unsupported"])
    except (ValueError, KeyError, TypeError):
        return None
    return Finding(ranked, reason) if ranked or reason else None


log = logging.getLogger(__name__)
_THREADS = min(16, os.cpu_count() or 1)


def build(
    spec: GraphSpec,
    constraints: Constraints,
    choose: str | EngineConfig,
    scalars: Sequence[float] = (),
    names: Sequence[str] = (),
) -> Plan:
    """The plan for a graph on the current device; see :meth:`.Graph.build`."""
    if not isinstance(choose, EngineConfig) and choose not in ("measure", "heuristic"):
        raise GraphError(
            f"choose {choose!r} is not valid; valid are 'measure', 'heuristic', an EngineConfig"
        )
    target = device.current()
    if isinstance(choose, EngineConfig):
        made = built(spec, target, choose)
        return Plan(spec, made, target, choose, scalars=scalars, names=names)
    if choose == "heuristic":
        for plan in candidates(spec, constraints, target, scalars=scalars, names=names):
            return plan
        raise _unsupported(spec, constraints, "no engine was proposed that may be used")
    key = key_of(spec, constraints, target.name)
    finding = recall(key)
    if finding is None:
        finding = _measure(spec, constraints, target, scalars)
        shown = {"graph": spec.describe(), "constraints": str(constraints), "device": target.name}
        remember(key, finding, **shown)
    if not finding.ranked:
        raise _unsupported(spec, constraints, finding.reason)
    return _first_that_fits(spec, finding, target, scalars, names)


def _first_that_fits(
    spec: GraphSpec,
    finding: Finding,
    target: device.Target,
    scalars: Sequence[float],
    names: Sequence[str],
) -> Plan:
    """The plan of the fastest engine whose workspace can be allocated now."""
    for item in finding.ranked:
        plan = Plan(
            spec,
            built(spec, target, item.config),
            target,
            item.config,
            milliseconds=item.milliseconds,
            scalars=scalars,
            names=names,
        )
        try:
            plan.reserve()
        except OutOfMemoryError as error:
            plan.close()
            text = f"{error}; the next plan is taken instead"
            log.warning(text)
            warnings.warn(text, MiniDNNWarning, stacklevel=4)
            continue
        return plan
    raise OutOfMemoryError(f"no plan for {spec.describe()} fits into the free memory")


def candidates(
    spec: GraphSpec,
    constraints: Constraints,
    target: device.Target,
    *,
    defaults: bool = True,
    scalars: Sequence[float] = (),
    names: Sequence[str] = (),
) -> Iterator[Plan]:
    """Yields every plan that can be built for a graph under the constraints, in cuDNN's order.

    Each is built when it is asked for.  With ``defaults`` every engine is tried with its default
    knobs, too, after the proposals of the heuristics.
    """
    with _explained(spec, constraints):
        graph = lower.operation_graph(spec, target.handle)
    for proposal in _allowed(
        spec, constraints, engines.proposals(graph, target, defaults=defaults)
    ):
        plan = _try(spec, graph, target, proposal, scalars, names)
        if plan is not None and _fits(plan, constraints):
            yield plan


def all_plans(
    spec: GraphSpec,
    constraints: Constraints,
    target: device.Target,
    *,
    defaults: bool = True,
    most: int | None = None,
    most_compiled: int | None = None,
    compiles: bool | None = None,
    scalars: Sequence[float] = (),
    names: Sequence[str] = (),
) -> list[Plan]:
    """The plans of :func:`candidates`, built on several threads, since some engines compile long.

    Proposals for which :func:`.is_last_resort` holds are built only when there are no others.
    ``most`` limits how many of the proposals that may be used are tried, ``most_compiled`` how
    many of those whose engines compile; ``compiles`` then selects those whose engines compile
    (True) or do not (False).
    """
    with _explained(spec, constraints):
        graph = lower.operation_graph(spec, target.handle)
        # Proposals are read lazily: every list of them costs the time of a heuristic.
        proposed = engines.proposals(graph, target, defaults=defaults)
        allowed = _few_compiled(_allowed(spec, constraints, proposed), most_compiled)
        tried = [p for p in islice(allowed, most) if compiles in (None, p.compiles)]

    def make(proposal: Proposal) -> Plan | None:
        if target.index is not None:
            cupy().cuda.runtime.setDevice(target.index)
        return _try(spec, graph, target, proposal, scalars, names)

    preferred: list[Proposal] = []
    last_resort: list[Proposal] = []
    for proposal in tried:
        (last_resort if engines.is_last_resort(proposal, spec) else preferred).append(proposal)
    for group in (preferred, last_resort):
        with ThreadPoolExecutor(min(_THREADS, len(group) or 1)) as pool:
            attempts = list(pool.map(make, group))
        plans = [plan for plan in attempts if plan is not None and _fits(plan, constraints)]
        if plans:
            return plans
    return []


@contextmanager
def _explained(spec: GraphSpec, constraints: Constraints) -> Iterator[None]:
    """Turns cuDNN's "not supported" about a whole graph into an UnsupportedError."""
    try:
        yield
    except CuDNNError as error:
        if error.unsupported:
            raise _unsupported(spec, constraints, str(error)) from error
        raise


def _allowed(
    spec: GraphSpec, constraints: Constraints, proposed: Iterable[Proposal]
) -> Iterator[Proposal]:
    """Yields the proposals that the constraints allow, and logs why others are rejected."""
    for proposal in proposed:
        reason = engines.rejection(proposal, spec, constraints)
        if reason is None:
            yield proposal
        else:
            log.debug("%s is not used: %s", proposal.config, reason)


def _few_compiled(proposals: Iterable[Proposal], most: int | None) -> Iterator[Proposal]:
    """Drops the proposals whose engines compile, after the first ``most`` of these."""
    count = 0
    for proposal in proposals:
        count += proposal.compiles
        if not proposal.compiles or most is None or count <= most:
            yield proposal


def _fits(plan: Plan, constraints: Constraints) -> bool:
    """Whether the workspace of a plan is within the limit; closes the plan if not."""
    if plan.workspace <= constraints.workspace_limit:
        return True
    log.debug("%s is over the limit of the workspace", plan)
    plan.close()
    return False


def _try(
    spec: GraphSpec,
    graph: BackendDescriptor,
    target: device.Target,
    proposal: Proposal,
    scalars: Sequence[float],
    names: Sequence[str],
) -> Plan | None:
    """The plan of a proposal, or None where cuDNN refuses to build it."""
    config = proposal.config
    try:
        made = engines.execution_plan(graph, target, config)
        return Plan(spec, made, target, config, proposal=proposal, scalars=scalars, names=names)
    except CuDNNError as error:
        # cuDNN proposes engines, in its fallback list above all, that then refuse the graph.
        log.debug("%s cannot be built: %s", config, error)
        return None


def _measure(
    spec: GraphSpec, constraints: Constraints, target: device.Target, scalars: Sequence[float]
) -> Finding:
    """Builds and times every plan that is allowed; the fastest compiled one is cached on disk.

    Raises:
        OutOfMemoryError: there is not enough memory to measure.
    """
    try:
        plans = all_plans(spec, constraints, target, scalars=scalars)
    except UnsupportedError as error:
        return Finding((), str(error.__cause__))
    if not plans:
        return Finding((), "no engine may be used or can be built")
    try:
        times = measure(plans)
        ranked = sorted((time, index) for index, time in enumerate(times) if time is not None)
        if not ranked:
            return Finding((), f"{len(plans)} plans could be built and none could be executed")
        kept = tuple(Ranked(plans[i].config, time, plans[i].workspace) for time, i in ranked)
        plans[ranked[0][1]].keep()
    finally:
        for plan in plans:
            plan.close()
    return Finding(_with_small_one(kept))


def _with_small_one(ranked: tuple[Ranked, ...]) -> tuple[Ranked, ...]:
    """The engines to cache: the fastest, and the fastest of those with the least workspace."""
    least = min(ranked, key=lambda item: item.workspace)
    kept = ranked[:KEPT]
    return kept if least in kept else (*kept[:-1], least)


def measure(plans: Sequence[Plan]) -> list[float | None]:
    """The times of plans of one graph on random data in milliseconds, None for those that fail.

    Raises:
        OutOfMemoryError: there is not enough memory for the data and the largest workspace.
    """
    if not plans:
        return []
    buffers, workspace = _memory_for(plans)
    pointers = [buffer.ptr for buffer in buffers]
    address = workspace.ptr if workspace is not None else 0
    runs = [
        timing.Contestant(plan.bind_pointers(pointers, address, keep=(buffers, workspace)))
        for plan in plans
    ]
    return timing.race(runs)


def _memory_for(plans: Sequence[Plan]) -> tuple[list[Any], Any]:
    """Random data for the inputs and outputs of plans of one graph, and a workspace for each in
    turn; None if they need none."""
    spec = plans[0].spec
    ends = [spec.tensors[index] for index in (*spec.inputs, *spec.outputs)]
    nbytes = max(plan.workspace for plan in plans)
    try:
        buffers = [arrays.random_like(tensor, seed) for seed, tensor in enumerate(ends)]
        return buffers, arrays.allocate(nbytes) if nbytes else None
    except MemoryError as error:
        raise OutOfMemoryError(
            f"no memory to measure {spec.describe()}: its tensors have "
            f"{sum(tensor.nbytes for tensor in ends)} bytes, and its plans need {nbytes} bytes of "
            f"workspace: {error}; build with a smaller workspace_limit, or with "
            "choose='heuristic', which measures nothing"
        ) from error


def _unsupported(spec: GraphSpec, constraints: Constraints, reason: str) -> UnsupportedError:
    return UnsupportedError(
        f"cuDNN has no engine for {spec.describe()} under {constraints}: {reason}"
    )
