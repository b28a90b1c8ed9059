"""The fastest recipe for a contraction: measured once, remembered on disk.

"heuristic" measures nothing and takes the first candidate that runs.  "quick" measures our kernels,
then cuDNN's first proposals for each form that may be faster than they are, by its memory traffic;
engines that cuDNN compiles at run time are built only where they may save a share of the plan's
time.  "exhaustive" measures everything that cuDNN can build.
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
"""How many of the fastest recipes are remembered."""
_AGAIN = 2
"""How many of the fastest of one race take part in the next, against other candidates."""
_VERSION = 28
"""Part of the cache's keys: what another version has remembered is not found."""
_COMPILED = 1
"""How many of cuDNN's runtime-compiled engines are measured for a form: building one takes a second
of a core, and on ResNet-50 and DenseNet-121 the first was within 1 % of the best of eight."""
_PROPOSED = 4
_PROPOSED_COMPILED = 8
"""Precompiled engines are measured that are among the first four of cuDNN's proposals for a
convolution, and runtime-compiled ones among the first eight: on ResNet-50 and EfficientNet-B0 the
first four were within 0.2 % of the best of eight."""
_TRIED = 3
"""How many proposals for a form are built when nothing is measured, should the first not run; and
how many are measured of forms whose engines differ less."""
_FOR_ALL_SIZES = (
    ConvolutionFwdAlgo.CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM,
    ConvolutionFwdAlgo.CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM,
)
"""cuDNN's algorithms that take any spatial size, the faster one first."""
_store = CacheStore("cuda_contraction", ".json", 64 << 20)

Ahead = dict[Form, list[tuple[Recipe, Core]]]
"""Candidates by their forms, with their cores, as far as these are built before a race."""


@dataclass(frozen=True)
class RankedRecipes:
    """What the cache remembers of a problem: recipes from fast to slow, and whether cuDNN's
    runtime-compiled engines were among those that raced."""

    recipes: tuple[Recipe, ...]
    compiled: bool


@dataclass(frozen=True)
class Tuning:
    """How recipes are chosen on the current device.

    Attributes:
        machine: the current device.
        tune: "heuristic", "quick" or "exhaustive".
        workspace_limit: bytes of workspace that a contraction may take, unless :meth:`limit` says
            more.
        load: compiles kernels of ours and loads them.
        spare: bytes of the plan's memory that are free while a contraction runs.
        taken: the recipes of another program of the same network.
    """

    machine: Machine
    tune: str
    workspace_limit: int
    load: Load
    spare: Mapping[ContractionProblem, int] = field(default_factory=dict)
    taken: Mapping[ContractionProblem, Recipe] = field(default_factory=dict)

    def limit(self, problem: ContractionProblem) -> int:
        """Bytes of workspace that the problem may take: at least what all of its forms take."""
        needed = _least_room(problem, self.machine)
        return max(self.workspace_limit, self.spare.get(problem, 0), needed)

    @property
    def device(self) -> str:
        """The name of the current device."""
        return device_name(cupy().cuda.runtime.getDevice())


@lru_cache(maxsize=1024)
def _least_room(problem: ContractionProblem, machine: Machine) -> int:
    """Bytes of workspace that all forms take: for a gathered image, or for the result of a prologue
    where all cores are cuDNN's, which fuses none.  Of a problem with an epilogue reduction only
    cuDNN's forms count, which a sweep follows: ours have partial sums in the core's workspace."""
    forms = forms_of(problem, machine)
    if problem.behind is not None:
        forms = [form for form in forms if form.kernel is None]
    return min((room(problem, form, 0) for form in forms), default=0)


def launches_of(
    problem: ContractionProblem, machine: Machine, known: Recipe | None = None
) -> list[Launch]:
    """The launches of our kernels that may be chosen, and of those before and after cuDNN's cores;
    if a recipe is ``known``, of that one alone."""
    launches: list[Launch | None] = []
    for form in forms_of(problem, machine) if known is None else [known.form]:
        launches += [prepare_of(problem, form, machine), finish_of(problem, form)]
        launches += sums_of(problem, form)
        if form.kernel is not None:
            core_problem = form.of_core(problem)
            choices = form.kernel.choices(core_problem, machine)
            for choice in choices if known is None else [known.engine]:
                launches += form.kernel.launches(core_problem, choice, machine)
    return [launch for launch in launches if launch is not None]


def first(problem: ContractionProblem, tuning: Tuning) -> Built:
    """Builds the first candidate that runs; measures nothing."""
    for form in (*forms_of(problem, tuning.machine), *last_resort(problem)):
        for recipe, core in _candidates(problem, form, _TRIED, tuning):
            built = build(problem, recipe, core, tuning.machine, tuning.load)
            if _runs(built):
                return built
    raise _nothing(problem, tuning)


def again(problem: ContractionProblem, tuning: Tuning) -> Built | None:
    """Builds the recipe that another program takes, if it is a fixed function of cuDNN's that takes
    these sizes; it is not tried, as it has run there."""
    recipe = tuning.taken.get(problem)
    if recipe is None or recipe.form.core != FIXED:
        return None
    form = recipe.form
    fixed = fixed_convolution(problem, recipe.engine, form.stages, target(problem, form))
    if isinstance(fixed, str) or room(problem, form, fixed.workspace) > tuning.limit(problem):
        return None
    return build(problem, recipe, fixed, tuning.machine, tuning.load)


def _runs(built: Built) -> bool:
    """Whether an executable runs without an error: cuDNN builds plans that then fail."""
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
    """Measures our kernels within the workspace limit; returns them from fast to slow."""
    forms = [form for form in forms_of(problem, tuning.machine) if form.kernel is not None]
    candidates = {form: _made(problem, form, tuning) for form in forms}
    return _raced(problem, _built(problem, candidates, tuning), tuning)


def certain(problem: ContractionProblem, tuning: Tuning) -> Ahead:
    """Builds cuDNN's candidates that :func:`everything` has, however fast our kernels are."""
    forms = _others(problem, tuning)
    own_forms = [form for form in forms_of(problem, tuning.machine) if form.kernel is not None]
    if own_forms and tuning.tune == "quick":
        own_least = min(least_milliseconds(problem, form, tuning.machine) for form in own_forms)
        forms = [
            form for form in forms if least_milliseconds(problem, form, tuning.machine) <= own_least
        ]
    return _by_cudnn(problem, forms, {}, not own_forms, tuning)


def everything(
    problem: ContractionProblem, own: Sequence[Built], ahead: Ahead, tuning: Tuning
) -> list[Built]:
    """Builds what is to be measured in one race: the fastest of our kernels, and the candidates of
    cuDNN's, of which some were built ahead."""
    forms = _others(problem, tuning)
    if own and tuning.tune == "quick":
        fastest = own[0].recipe.milliseconds or 0.0
        forms = [
            form for form in forms if least_milliseconds(problem, form, tuning.machine) < fastest
        ]
    executables = [
        *own[:_AGAIN],
        *_built(problem, _by_cudnn(problem, forms, ahead, not own, tuning), tuning),
    ]
    if not executables:
        others = _by_cudnn(problem, last_resort(problem), {}, True, tuning)
        executables = _built(problem, others, tuning)
    if not executables:
        raise _nothing(problem, tuning)
    return executables


def compiles(built: Built) -> bool:
    """Whether its core is an engine that cuDNN compiles at run time."""
    proposal = built.core.proposal if isinstance(built.core, Plan) else None
    return proposal is not None and proposal.compiles


def gain(problem: ContractionProblem, fastest: Built, tuning: Tuning) -> float:
    """Milliseconds that cuDNN's runtime-compiled engines may save, by their forms' memory traffic.

    It is 0 where they have raced in any case, or never won: they are made for fused and grouped
    convolutions, and saved 0.02 % of plain convolutions' and products' time at most.
    """
    is_plain = problem.groups == 1 and not problem.stages
    if tuning.tune != "quick" or problem.is_exact or is_plain:
        return 0.0
    least = [least_milliseconds(problem, form, tuning.machine) for form in _others(problem, tuning)]
    return max(0.0, (fastest.recipe.milliseconds or 0.0) - min(least, default=math.inf))


def with_compiled(
    problem: ContractionProblem, ranked: Sequence[Built], tuning: Tuning
) -> list[Built]:
    """Builds what is to be measured in a second race: the fastest of the first, and cuDNN's
    runtime-compiled engines for forms that may be faster."""
    fastest = ranked[0].recipe.milliseconds or 0.0
    candidates = {
        form: _made(problem, form, tuning, compiles=True)
        for form in _others(problem, tuning)
        if least_milliseconds(problem, form, tuning.machine) < fastest
    }
    return [*ranked[:_AGAIN], *_built(problem, candidates, tuning)]


def _by_cudnn(
    problem: ContractionProblem, forms: Sequence[Form], ahead: Ahead, needed: bool, tuning: Tuning
) -> Ahead:
    """The candidates of these forms, built where they were not built ahead.  If none is found but
    one is needed, as there is nothing else, runtime-compiled engines are built."""
    candidates = {
        form: ahead[form] if form in ahead else _made(problem, form, tuning) for form in forms
    }
    if needed and not any(candidates.values()) and tuning.tune == "quick":
        return {form: _made(problem, form, tuning, compiles=True) for form in forms}
    return candidates


def _others(problem: ContractionProblem, tuning: Tuning) -> list[Form]:
    """The forms whose cores are cuDNN's."""
    return [form for form in forms_of(problem, tuning.machine) if form.kernel is None]


def _built(problem: ContractionProblem, made: Ahead, tuning: Tuning) -> list[Built]:
    """Builds the executables of candidates."""
    return [
        build(problem, recipe, core, tuning.machine, tuning.load)
        for pairs in made.values()
        for recipe, core in pairs
    ]


def _made(
    problem: ContractionProblem, form: Form, tuning: Tuning, compiles: bool = False
) -> list[tuple[Recipe, Core]]:
    """Builds the candidates of a form that are measured: of cuDNN's, unless all are, either those
    with runtime-compiled engines or those with precompiled ones."""
    most = _PROPOSED_COMPILED if compiles else _most(problem, form, tuning.tune)
    return list(_candidates(problem, form, most, tuning, compiles))


def measured(problem: ContractionProblem, found: Sequence[Built], tuning: Tuning) -> list[Built]:
    """Measures executables; returns the fastest that run, from fast to slow, and among them the one
    that needs the least workspace."""
    if all(executable.recipe.milliseconds is not None for executable in found):
        return list(found)  # no executable of cuDNN's races
    ranked = _raced(problem, found, tuning)
    if not ranked:
        raise _nothing(problem, tuning)
    least = min(ranked, key=lambda executable: executable.recipe.workspace)
    kept = ranked[:_KEPT]
    return kept if any(executable is least for executable in kept) else [*kept[:-1], least]


def _raced(problem: ContractionProblem, found: Sequence[Built], tuning: Tuning) -> list[Built]:
    """Races executables within the workspace limit; returns those that ran, from fast to slow."""
    with turn(cupy().cuda.runtime.getDevice()):  # filling memory would disturb others too
        built, (at, workspace, kept) = _fitting(problem, found, tuning.limit(problem))
        times = race([Contestant(executable.bind(at, workspace)) for executable in built])
        del kept
    order = sorted((ms, i) for i, ms in enumerate(times) if ms is not None)
    return [replace(built[i], recipe=replace(built[i].recipe, milliseconds=ms)) for ms, i in order]


def _fitting(
    problem: ContractionProblem, built: Sequence[Built], limit: int
) -> tuple[list[Built], tuple[Addresses, int, object]]:
    """The executables within the limit for whose workspace there is memory, and scratch memory.

    When memory is short, those that take the largest workspace are left out, with a warning.
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
        order = [b for b in built if any(b is other for other in fitting)]
        return order, (at, workspace, kept)
    return [], (Addresses(0, 0, 0), 0, None)


def _most(problem: ContractionProblem, form: Form, tune: str) -> int | None:
    """How many of cuDNN's proposals for a form are measured; None for all: of our kernels, and of
    the fixed functions of gradients, of which the first may be the slowest."""
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
    """Builds candidates of a form within the workspace limit: of the first ``most`` choices,
    algorithms or proposals.

    ``compiles`` says whether cuDNN's engines are runtime-compiled; None for both kinds.
    """
    workspace_limit = tuning.limit(problem)
    if form.core == FIXED:
        yield from _fixed(problem, form, most, workspace_limit)
        return
    if form.kernel is not None:
        core_problem = form.of_core(problem)
        for choice in form.kernel.choices(core_problem, tuning.machine)[:most]:
            core = load_contraction(core_problem, form.kernel, choice, tuning.machine, tuning.load)
            size = room(problem, form, core.workspace)
            if size <= workspace_limit:
                yield Recipe(form, choice, (), size), core
        return
    core_limit = workspace_limit - room(problem, form, 0)
    if core_limit < 0:
        return
    graph = graph_of(problem, form.core, form.stages, target(problem, form))
    # The fastest engines for exact float32 are among those that no heuristic proposes, and few.
    all_engines = most is None or (problem.is_exact and tuning.tune == "quick")
    try:
        plans = graph.plans(
            defaults=all_engines,
            most=None if all_engines else most,
            most_compiled=_COMPILED if compiles is not None and not all_engines else None,
            compiles=None if all_engines else compiles,
            constraints=constraints_of(problem, core_limit),
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
    """The candidates among cuDNN's fixed functions."""
    output = target(problem, form)
    fixed_algorithms = list(algorithms_of(problem))
    if problem.any_size:
        fixed_algorithms = list(_FOR_ALL_SIZES)
    for fixed in fixed_algorithms[:most]:
        convolution = fixed_convolution(problem, int(fixed), form.stages, output)
        if isinstance(convolution, str):
            log.debug("%s: %s: %s", problem.describe(), fixed.name, convolution)
            continue
        size = room(problem, form, convolution.workspace)
        if size <= workspace_limit:
            yield Recipe(form, int(fixed), (), size), convolution


def _nothing(problem: ContractionProblem, tuning: Tuning) -> UnsupportedError:
    """The error for a problem that nothing computes within its workspace limit."""
    limit = tuning.limit(problem)
    reasons = refusals(problem, tuning.machine).items()
    return UnsupportedError(
        f"cuDNN has no way to compute {problem.describe()} within {limit} bytes of workspace; "
        f"of our kernels {'; '.join(f'not {name}: {reason}' for name, reason in reasons)}"
    )


def _key(problem: ContractionProblem, tuning: Tuning) -> str:
    """The key of a problem in the cache: all that the choice of a recipe depends on."""
    limit = tuning.limit(problem)
    return digest(
        "contraction", _VERSION, problem, tuning.tune, limit, tuning.device, library_name()
    )


def recall(problem: ContractionProblem, tuning: Tuning) -> RankedRecipes | None:
    """Returns what the cache remembers of a problem, if anything."""
    return _decode(_store.read(_key(problem, tuning)))


def remember(
    problem: ContractionProblem, tuning: Tuning, ranked: Sequence[Built], compiled: bool
) -> None:
    """Stores what was measured on disk, and what cuDNN has compiled for the fastest.

    compiled: whether cuDNN's runtime-compiled engines were among those that raced.
    """
    if isinstance(ranked[0].core, Plan):
        ranked[0].core.keep()
    recipes = [asdict(executable.recipe) for executable in ranked]
    entry = {"problem": problem.describe(), "ranked": recipes, "compiled": compiled}
    text = json.dumps(entry, indent=1).encode()
    _store.put(_key(problem, tuning), text, label="contraction")


def _decode(data: bytes | None) -> RankedRecipes | None:
    """Decodes an entry; None if it is missing or malformed, and the caller then measures."""
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
