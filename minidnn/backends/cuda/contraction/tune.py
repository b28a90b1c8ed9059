"""The fastest recipe for a contraction: measured once, remembered on disk.

"heuristic" measures nothing and takes cuDNN's first proposal; "quick" measures our kernels, then
cuDNN's first proposals for each form that may be faster than they are, by the bytes that it moves,
and those whose engines compile only where they may save a part of the plan's time; "exhaustive"
measures everything that cuDNN can build.
"""

from __future__ import annotations

import json
import logging
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache

from ....cache import CacheStore, digest
from ....cudnn.enums import ConvolutionFwdAlgo
from ....cudnn.errors import CuDNNError
from ....cudnn.gpu_turn import turn
from ....cudnn.graph import EngineConfig, Plan
from ....cudnn.graph.timing import Contestant, race
from ....cudnn.machine import device_name, library_name
from ....errors import MiniDNNWarning, OutOfMemoryError, UnsupportedError
from ....gpu import cupy
from ..kernels import Launch
from ..machine import Machine
from .fixed import FixedConvolution, algorithms_of, fixed_convolution
from .forms import forms_of, last_resort, least_milliseconds
from .graphs import CONVOLUTION, constraints_of, graph_of
from .kernel_registry import Load, load_contraction, refusals
from .memory import scratch_addresses
from .problem import Addresses, ContractionProblem
from .recipe import (
    FIXED,
    Built,
    Core,
    Form,
    Recipe,
    build,
    finish_of,
    prepare_of,
    room,
    sums_of,
    target,
)

log = logging.getLogger(__name__)

_KEPT = 6
_AGAIN = 2
"""So many race again, with other ones, once they were timed among themselves."""
_VERSION = 28
_COMPILED = 1
"""So many of cuDNN's engines that compile are measured for a form: building one takes a second of a
core, and on ResNet-50 and DenseNet-121 the first was within 1 % of the best of eight."""
_PROPOSED = 4
_PROPOSED_COMPILED = 8
"""Of so many of cuDNN's proposals for a convolution those are measured whose engines are compiled
already, and of so many those that compile: on ResNet-50 and EfficientNet-B0 the first four were
within 0.2 % of the best of eight."""
_TRIED = 3
"""So many proposals for a form are built when nothing is measured, should the first not run; and so
many are measured of forms whose engines differ less."""
_FOR_ALL_SIZES = (
    ConvolutionFwdAlgo.CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM,
    ConvolutionFwdAlgo.CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM,
)
"""cuDNN's algorithms that take planes of any size, the faster one first."""
_store = CacheStore("cuda_contraction", ".json", 64 << 20)

Ahead = dict[Form, list[tuple[Recipe, Core]]]
"""What was built of forms before anything was measured."""


@dataclass(frozen=True)
class RankedRecipes:
    """What is remembered: recipes from fast to slow, and whether engines of cuDNN's that compile
    were among those that raced."""

    recipes: tuple[Recipe, ...]
    compiled: bool


@dataclass(frozen=True)
class Tuning:
    """How recipes are chosen on the current device, a ``machine``: ``tune``, and bytes of
    workspace: ``workspace_limit``, or what is ``spare`` in the plan's memory while a contraction
    runs, or what it takes in any case, if that is more; ``taken`` is what another program of the
    same network computes its contractions by."""

    machine: Machine
    tune: str
    workspace_limit: int
    load: Load
    spare: Mapping[ContractionProblem, int] = field(default_factory=dict)
    taken: Mapping[ContractionProblem, Recipe] = field(default_factory=dict)

    def limit(self, problem: ContractionProblem) -> int:
        """Bytes of workspace that the problem may take."""
        needed = _least_room(problem, self.machine)
        return max(self.workspace_limit, self.spare.get(problem, 0), needed)

    @property
    def device(self) -> str:
        return device_name(cupy().cuda.runtime.getDevice())


@lru_cache(maxsize=1024)
def _least_room(problem: ContractionProblem, machine: Machine) -> int:
    """Bytes beside the tensors that all forms take: for an image that has to be gathered, or that
    only cuDNN's forms read, which take nothing that comes before.  Behind what sums are added up
    of, cuDNN's forms are followed by a sweep, and ours have parts of sums."""
    forms = forms_of(problem, machine)
    if problem.behind is not None:
        forms = [form for form in forms if form.kernel is None]
    return min(room(problem, form, 0) for form in forms)


def launches_of(
    problem: ContractionProblem, machine: Machine, known: Recipe | None = None
) -> list[Launch]:
    """The kernels of ours that may be chosen, and those around cuDNN's; only those of a recipe
    that is known."""
    found: list[Launch | None] = []
    for form in forms_of(problem, machine) if known is None else [known.form]:
        found += [prepare_of(problem, form, machine), finish_of(problem, form)]
        found += sums_of(problem, form)
        if form.kernel is not None:
            made = form.of_core(problem)
            choices = form.kernel.choices(made, machine)
            for choice in choices if known is None else [known.engine]:
                found += form.kernel.launches(made, choice, machine)
    return [launch for launch in found if launch is not None]


def first(problem: ContractionProblem, tuning: Tuning) -> Built:
    """The first that runs; nothing is measured."""
    for form in (*forms_of(problem, tuning.machine), *last_resort(problem)):
        for recipe, core in _candidates(problem, form, _TRIED, tuning):
            built = build(problem, recipe, core, tuning.machine, tuning.load)
            if _runs(built):
                return built
    raise _nothing(problem, tuning)


def again(problem: ContractionProblem, tuning: Tuning) -> Built | None:
    """What another program takes, if it is a fixed function of cuDNN's that takes these sizes; it
    runs, as it has run there."""
    recipe = tuning.taken.get(problem)
    if recipe is None or recipe.form.core != FIXED:
        return None
    form = recipe.form
    found = fixed_convolution(problem, recipe.engine, form.stages, target(problem, form))
    if isinstance(found, str) or room(problem, form, found.workspace) > tuning.limit(problem):
        return None
    return build(problem, recipe, found, tuning.machine, tuning.load)


def _runs(built: Built) -> bool:
    """Whether it can be executed: cuDNN builds plans that then fail."""
    at, workspace, kept = scratch_addresses(built.problem, built.workspace, timed=False)
    try:
        built.bind(at, workspace)()
        cupy().cuda.get_current_stream().synchronize()
    except CuDNNError as error:
        log.info("%s cannot be executed: %s", built.recipe.algorithm(built.problem), error)
        return False
    del kept
    return True


def own(problem: ContractionProblem, tuning: Tuning) -> list[Built]:
    """Our kernels within the limit of the workspace, from fast to slow."""
    forms = [form for form in forms_of(problem, tuning.machine) if form.kernel is not None]
    made = {form: _made(problem, form, tuning) for form in forms}
    return _raced(problem, _built(problem, made, tuning), tuning)


def certain(problem: ContractionProblem, tuning: Tuning) -> Ahead:
    """Those of cuDNN's forms that :func:`everything` has, however fast our kernels are."""
    forms = _others(problem, tuning)
    ours = [form for form in forms_of(problem, tuning.machine) if form.kernel is not None]
    if ours and tuning.tune == "quick":
        least = min(least_milliseconds(problem, form, tuning.machine) for form in ours)
        forms = [
            form for form in forms if least_milliseconds(problem, form, tuning.machine) <= least
        ]
    return _by_cudnn(problem, forms, {}, not ours, tuning)


def everything(
    problem: ContractionProblem, own: Sequence[Built], ahead: Ahead, tuning: Tuning
) -> list[Built]:
    """All that is to be measured in one race: the fastest of our own, and cuDNN's, of which some
    were built ahead."""
    forms = _others(problem, tuning)
    if own and tuning.tune == "quick":
        fastest = own[0].recipe.milliseconds or 0.0
        forms = [
            form for form in forms if least_milliseconds(problem, form, tuning.machine) < fastest
        ]
    found = [
        *own[:_AGAIN],
        *_built(problem, _by_cudnn(problem, forms, ahead, not own, tuning), tuning),
    ]
    if not found:
        others = _by_cudnn(problem, last_resort(problem), {}, True, tuning)
        found = _built(problem, others, tuning)
    if not found:
        raise _nothing(problem, tuning)
    return found


def compiles(built: Built) -> bool:
    """Whether cuDNN has compiled it."""
    proposal = built.core.proposal if isinstance(built.core, Plan) else None
    return proposal is not None and proposal.compiles


def gain(problem: ContractionProblem, fastest: Built, tuning: Tuning) -> float:
    """Milliseconds that cuDNN's engines that compile may save, by the bytes that their forms move;
    0 where they have raced in any case, or never won: they are for what is fused or grouped, and
    saved 0.02 % of plain convolutions' and products' time at most."""
    is_plain = problem.groups == 1 and not problem.stages
    if tuning.tune != "quick" or problem.is_exact or is_plain:
        return 0.0
    least = [least_milliseconds(problem, f, tuning.machine) for f in _others(problem, tuning)]
    return max(0.0, (fastest.recipe.milliseconds or 0.0) - min(least, default=math.inf))


def with_compiled(
    problem: ContractionProblem, ranked: Sequence[Built], tuning: Tuning
) -> list[Built]:
    """What is to be measured in a second race: the fastest of the first, and cuDNN's engines that
    compile, of forms that may be faster."""
    fastest = ranked[0].recipe.milliseconds or 0.0
    made = {
        form: _made(problem, form, tuning, compiles=True)
        for form in _others(problem, tuning)
        if least_milliseconds(problem, form, tuning.machine) < fastest
    }
    return [*ranked[:_AGAIN], *_built(problem, made, tuning)]


def _by_cudnn(
    problem: ContractionProblem, forms: Sequence[Form], ahead: Ahead, needed: bool, tuning: Tuning
) -> Ahead:
    """Those of forms that were not built ahead, too; if they are needed, because there is nothing
    else, even those whose engines compile."""
    found = {form: ahead[form] if form in ahead else _made(problem, form, tuning) for form in forms}
    if needed and not any(found.values()) and tuning.tune == "quick":
        return {form: _made(problem, form, tuning, compiles=True) for form in forms}
    return found


def _others(problem: ContractionProblem, tuning: Tuning) -> list[Form]:
    return [form for form in forms_of(problem, tuning.machine) if form.kernel is None]


def _built(problem: ContractionProblem, made: Ahead, tuning: Tuning) -> list[Built]:
    return [
        build(problem, recipe, core, tuning.machine, tuning.load)
        for some in made.values()
        for recipe, core in some
    ]


def _made(
    problem: ContractionProblem, form: Form, tuning: Tuning, compiles: bool = False
) -> list[tuple[Recipe, Core]]:
    """Those of a form that are measured; of cuDNN's, unless all are, those whose engines compile,
    or the others."""
    most = _PROPOSED_COMPILED if compiles else _most(problem, form, tuning.tune)
    return list(_candidates(problem, form, most, tuning, compiles))


def measured(problem: ContractionProblem, found: Sequence[Built], tuning: Tuning) -> list[Built]:
    """Those that could run, from fast to slow, and what needs least workspace among them."""
    if all(one.recipe.milliseconds is not None for one in found):
        return list(found)  # nothing of cuDNN's races
    ranked = _raced(problem, found, tuning)
    if not ranked:
        raise _nothing(problem, tuning)
    least = min(ranked, key=lambda one: one.recipe.workspace)
    few = ranked[:_KEPT]
    return few if any(one is least for one in few) else [*few[:-1], least]


def _raced(problem: ContractionProblem, found: Sequence[Built], tuning: Tuning) -> list[Built]:
    """Those within the limit of the workspace that could run, from fast to slow."""
    with turn(cupy().cuda.runtime.getDevice()):  # filling memory would disturb others too
        built, (at, workspace, kept) = _fitting(problem, found, tuning.limit(problem))
        times = race([Contestant(one.bind(at, workspace)) for one in built])
        del kept
    order = sorted((ms, i) for i, ms in enumerate(times) if ms is not None)
    return [replace(built[i], recipe=replace(built[i].recipe, milliseconds=ms)) for ms, i in order]


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
            if not smaller:
                raise
            text = f"{problem.describe()}: {error}; algorithms with less workspace are tried"
            log.warning(text)
            warnings.warn(text, MiniDNNWarning, stacklevel=2)
            fitting = smaller
            continue
        order = [b for b in built if any(b is one for one in fitting)]
        return order, (at, workspace, kept)
    return [], (Addresses(0, 0, 0), 0, None)


def _most(problem: ContractionProblem, form: Form, tune: str) -> int | None:
    """How many of cuDNN's proposals for a form are measured; of our kernels, and of fixed functions
    of gradients, of which the first may be the slowest, all."""
    gradient = form.core == FIXED and problem.direction != "forward"
    if tune == "exhaustive" or form.kernel is not None or gradient:
        return None
    return _PROPOSED if form.core == CONVOLUTION and not form.packed else _TRIED


def _candidates(
    problem: ContractionProblem,
    form: Form,
    most: int | None,
    tuning: Tuning,
    compiles: bool | None = None,
) -> Iterator[tuple[Recipe, Core]]:
    workspace_limit = tuning.limit(problem)
    if form.core == FIXED:
        yield from _fixed(problem, form, most, workspace_limit)
        return
    if form.kernel is not None:
        made = form.of_core(problem)
        for choice in form.kernel.choices(made, tuning.machine)[:most]:
            core = load_contraction(made, form.kernel, choice, tuning.machine, tuning.load)
            size = room(problem, form, core.workspace)
            if size <= workspace_limit:
                yield Recipe(form, choice, (), size), core
        return
    left = workspace_limit - room(problem, form, 0)
    if left < 0:
        return
    graph = graph_of(problem, form.core, form.stages, target(problem, form))
    # The fastest of exact float32 are among those that no heuristic proposes, and few.
    everything = most is None or (problem.is_exact and tuning.tune == "quick")
    try:
        plans = graph.plans(
            defaults=everything,
            most=None if everything else most,
            most_compiled=_COMPILED if compiles is not None and not everything else None,
            compiles=None if everything else compiles,
            constraints=constraints_of(problem, left),
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
    output = target(problem, form)
    algorithms = list(algorithms_of(problem))
    if problem.any_size:
        algorithms = list(_FOR_ALL_SIZES)
    for algorithm in algorithms[:most]:
        found = fixed_convolution(problem, int(algorithm), form.stages, output)
        if isinstance(found, str):
            log.debug("%s: %s: %s", problem.describe(), algorithm.name, found)
            continue
        size = room(problem, form, found.workspace)
        if size <= workspace_limit:
            yield Recipe(form, int(algorithm), (), size), found


def _nothing(problem: ContractionProblem, tuning: Tuning) -> UnsupportedError:
    limit = tuning.limit(problem)
    reasons = refusals(problem, tuning.machine).items()
    return UnsupportedError(
        f"cuDNN has no way to compute {problem.describe()} within {limit} bytes of workspace; "
        f"of our kernels {'; '.join(f'not {name}: {reason}' for name, reason in reasons)}"
    )


def _key(problem: ContractionProblem, tuning: Tuning) -> str:
    limit = tuning.limit(problem)
    return digest(
        "contraction", _VERSION, problem, tuning.tune, limit, tuning.device, library_name()
    )


def recall(problem: ContractionProblem, tuning: Tuning) -> RankedRecipes | None:
    """What was remembered, if anything."""
    return _decode(_store.read(_key(problem, tuning)))


def remember(
    problem: ContractionProblem, tuning: Tuning, ranked: Sequence[Built], compiled: bool
) -> None:
    """Keeps what was measured on disk, and what was compiled for the fastest.

    compiled: whether engines of cuDNN's that compile were among those that raced.
    """
    if isinstance(ranked[0].core, Plan):
        ranked[0].core.keep()
    recipes = [asdict(one.recipe) for one in ranked]
    entry = {"problem": problem.describe(), "ranked": recipes, "compiled": compiled}
    text = json.dumps(entry, indent=1).encode()
    _store.put(_key(problem, tuning), text, label="contraction")


def _decode(data: bytes | None) -> RankedRecipes | None:
    """None for what is missing or of another shape; the caller then measures."""
    if data is None:
        return None
    try:
        entry = json.loads(data)
        recipes = tuple(
            Recipe(
                Form(**row["form"]),
                int(row["engine"]),
                tuple((int(k), int(v)) for k, v in row["knobs"]),
                int(row["workspace"]),
                float(row["milliseconds"]),
            )
            for row in entry["ranked"]
        )
        return RankedRecipes(recipes, bool(entry["compiled"])) if recipes else None
    except (ValueError, KeyError, TypeError):
        return None
