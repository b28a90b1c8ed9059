"""The fastest recipe for a contraction: measured once, remembered on disk.

"heuristic" measures nothing and takes cuDNN's first proposal; "quick" measures the first proposals
for each form; "exhaustive" measures everything that cuDNN can build.
"""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace

from ....cache import Store, digest
from ....cudnn import machine
from ....cudnn._cupy import cupy
from ....cudnn.enums import ConvolutionFwdAlgo
from ....cudnn.graph import EngineConfig
from ....cudnn.graph.plan import Plan
from ....cudnn.graph.timing import Contestant, race
from ....errors import MiniDNNWarning, OutOfMemoryError, UnsupportedError
from .fixed import FixedConvolution, fixed_convolution
from .forms import forms_of
from .graphs import CONVOLUTION, constraints_of, graph_of
from .memory import scratch_addresses
from .problem import ContractionProblem
from .recipe import FIXED, Addresses, Built, Form, Load, Recipe, build, core_of, room, target

log = logging.getLogger(__name__)

TUNES = ("quick", "heuristic", "exhaustive")
_KEPT = 6
_VERSION = 1
_store = Store("cuda_contraction", ".json", 64 << 20)


@dataclass(frozen=True)
class Tuning:
    """How recipes are chosen on the current device: ``tune``, and bytes of workspace."""

    tune: str
    workspace_limit: int
    load: Load

    @property
    def device(self) -> str:
        return machine.device_name(cupy().cuda.runtime.getDevice())


def choose(problem: ContractionProblem, tuning: Tuning) -> Built:
    """The fastest way to compute a contraction within the limit of the workspace.

    UnsupportedError if cuDNN has no way, OutOfMemoryError if all take too much workspace.
    """
    if tuning.tune == "heuristic":
        return _first(problem, tuning)
    key = _key(problem, tuning)
    ranked = _decode(_store.read(key))
    if ranked is None:
        ranked = _measured(problem, tuning)
        rows = [asdict(recipe) for recipe in ranked]
        entry = {"problem": problem.describe(), "ranked": rows}
        _store.put(key, json.dumps(entry, indent=1).encode(), label="contraction")
    recipe = ranked[0]
    return build(problem, recipe, core_of(problem, recipe, tuning.workspace_limit), tuning.load)


def _key(problem: ContractionProblem, tuning: Tuning) -> str:
    limit = tuning.workspace_limit
    return digest(
        "contraction", _VERSION, problem, tuning.tune, limit, tuning.device, machine.library_name()
    )


def _first(problem: ContractionProblem, tuning: Tuning) -> Built:
    for form in forms_of(problem):
        for recipe, core in _candidates(problem, form, 1, tuning.workspace_limit):
            return build(problem, recipe, core, tuning.load)
    raise _nothing(problem, tuning)


def _measured(problem: ContractionProblem, tuning: Tuning) -> tuple[Recipe, ...]:
    """All recipes that were tried and could run, from fast to slow."""
    built = [
        build(problem, recipe, core, tuning.load)
        for form in forms_of(problem)
        for recipe, core in _candidates(
            problem, form, _most(form, tuning.tune), tuning.workspace_limit
        )
    ]
    built, room_for = _fitting(problem, built, tuning.workspace_limit)
    if not built:
        raise _nothing(problem, tuning)
    at, workspace, kept = room_for
    times = race([Contestant(one.bind(at, workspace)) for one in built])
    del kept
    ranked = sorted((time, i) for i, time in enumerate(times) if time is not None)
    if not ranked:
        raise _nothing(problem, tuning)
    recipes = tuple(replace(built[i].recipe, milliseconds=time) for time, i in ranked)
    least = min(recipes, key=lambda recipe: recipe.workspace)
    return recipes[:_KEPT] if least in recipes[:_KEPT] else (*recipes[: _KEPT - 1], least)


def _fitting(
    problem: ContractionProblem, built: Sequence[Built], limit: int
) -> tuple[list[Built], tuple[Addresses, int, object]]:
    """Those within the limit, for whose workspace there is memory, and where they may run.

    When memory is short, those that take most are left out, and that is said.
    """
    fitting = sorted((b for b in built if b.workspace <= limit), key=lambda b: b.workspace)
    while fitting:
        most = fitting[-1].workspace
        try:
            at, workspace, kept = scratch_addresses(problem, most)
        except OutOfMemoryError as error:
            smaller = [b for b in fitting if b.workspace < most]
            text = f"{problem.describe()}: {error}; algorithms with less workspace are tried"
            log.warning(text)
            warnings.warn(text, MiniDNNWarning, stacklevel=2)
            if not smaller:
                raise
            fitting = smaller
            continue
        order = [b for b in built if any(b is one for one in fitting)]
        return order, (at, workspace, kept)
    return [], (Addresses(0, 0, 0), 0, None)


def _most(form: Form, tune: str) -> int | None:
    """How many of cuDNN's proposals for a form are measured."""
    if tune == "exhaustive":
        return None
    return 10 if form.core == CONVOLUTION and not form.packed else 5


def _candidates(
    problem: ContractionProblem, form: Form, most: int | None, workspace_limit: int
) -> Iterator[tuple[Recipe, Plan | FixedConvolution]]:
    if form.core == FIXED:
        yield from _fixed(problem, form, most, workspace_limit)
        return
    graph = graph_of(problem, form.core, form.stages, target(problem, form))
    try:
        plans = graph.plans(
            defaults=most is None or problem.is_exact,
            most=None if problem.is_exact and most != 1 else most,
            constraints=constraints_of(problem, workspace_limit),
        )
    except UnsupportedError as error:
        log.info("%s", error)
        return
    for plan in plans:
        config: EngineConfig = plan.config
        size = room(problem, form, plan.workspace)
        yield Recipe(form, config.engine, config.knobs, size), plan


def _fixed(
    problem: ContractionProblem, form: Form, most: int | None, workspace_limit: int
) -> Iterator[tuple[Recipe, FixedConvolution]]:
    for algorithm in list(ConvolutionFwdAlgo)[:most]:
        found = fixed_convolution(problem, int(algorithm), form.stages > 0)
        if isinstance(found, str):
            log.debug("%s: %s: %s", problem.describe(), algorithm.name, found)
            continue
        size = room(problem, form, found.workspace)
        if size <= workspace_limit:
            yield Recipe(form, int(algorithm), (), size), found


def _nothing(problem: ContractionProblem, tuning: Tuning) -> UnsupportedError:
    limit = tuning.workspace_limit
    return UnsupportedError(
        f"cuDNN has no way to compute {problem.describe()} within {limit} bytes of workspace"
    )


def _decode(data: bytes | None) -> tuple[Recipe, ...] | None:
    """None for what is missing or of another shape; the caller then measures."""
    if data is None:
        return None
    try:
        rows = json.loads(data)["ranked"]
        return (
            tuple(
                Recipe(
                    Form(**row["form"]),
                    int(row["engine"]),
                    tuple((int(k), int(v)) for k, v in row["knobs"]),
                    int(row["workspace"]),
                    float(row["milliseconds"]),
                )
                for row in rows
            )
            or None
        )
    except (ValueError, KeyError, TypeError):
        return None


__all__ = ["TUNES", "Tuning", "choose"]
