"""Every kernel of the zoo's networks compiles for sm_80 and sm_90 within its budget; those of
contractions with all that they may be asked to compute, and of each network in the full run.

No GPU is needed.  A budget is what lets enough threads run side by side: no spills, registers
that fit a multiprocessor's, shared memory that a block can have.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from minidnn import layers as L
from minidnn import models
from minidnn.backends.cuda.contraction.algorithms import launches_of as contraction_launches
from minidnn.backends.cuda.contraction.problem import ContractionProblem
from minidnn.backends.cuda.contraction.tile_choice import DIVISIONS, PARTS, TILES
from minidnn.backends.cuda.functions import compile_kernels
from minidnn.backends.cuda.kernels import Launch
from minidnn.backends.cuda.lower import lower_plan
from minidnn.backends.cuda.machine import Machine
from minidnn.backends.cuda.target import CudaTarget
from minidnn.layers.build import to_graph
from minidnn.passes.infrastructure import Context
from minidnn.passes.pipeline import optimize
from minidnn.runtime.plan import make_plan
from minidnn.training.losses import CrossEntropy
from minidnn.training.optim import SGD
from minidnn.training.step import Objective, step_graph
from tests.cuda.cards import A100, H200
from tests.sampling import some

from .contractions import HALO, TILE, dense, residual
from .lowered import planned_graph, problems_of

REGISTERS = 65536
SPILLS = 0
MACHINES = (A100, H200)
PRECISIONS = ("float32", "tf32", "float16", "bfloat16")
ALL = [(name, p) for name in models.list_models() for p in PRECISIONS]


def launches_of(
    name: str, precision: str, machine: Machine, batch: int = 8, contractions: bool = True
) -> list[Launch]:
    """The kernels of a network of the zoo, cuDNN's left out, and those that its
    ``contractions`` may take left out or not."""
    network = getattr(models, name)()
    graph = to_graph(network, (batch, *network.input_shape))
    context = Context(CudaTarget(machine.device(precision), precision))
    plan = make_plan(optimize(graph, context), context)
    launches: list[Launch] = []
    for task in lower_plan(plan, machine, precision == "tf32"):
        if isinstance(task.work, Launch):
            launches.append(task.work)
        elif contractions and isinstance(task.work, ContractionProblem):
            launches += contraction_launches(task.work, machine)
    return list({launch.source: launch for launch in launches}.values())


def check(launches: list[Launch], machine: Machine) -> None:
    kernels = compile_kernels([launch.source for launch in launches], machine.arch)
    for launch, kernel in zip(launches, kernels, strict=True):
        taken = kernel.resources
        threads = launch.block[0] * launch.block[1] * launch.block[2]
        where = f"{machine.arch}: {taken} of {threads} threads\n{launch.source.text}"
        assert taken.spill_bytes <= SPILLS and taken.stack_bytes == 0, where
        assert taken.registers * threads <= REGISTERS, where
        assert taken.registers <= 255 and threads <= 1024, where
        assert launch.shared_bytes + taken.shared_bytes <= machine.shared_bytes, where


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("precision", "machine"),
    [
        ("float32", A100),
        ("float16", H200),
        # Those of other precisions are the same but for types.
        pytest.param("tf32", H200, marks=pytest.mark.full),
        pytest.param("bfloat16", A100, marks=pytest.mark.full),
    ],
)
def test_kernels_of_the_zoo_keep_to_the_budget(
    precision: str, machine: Machine, warm_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part of all but contractions', of all networks at one batch, as networks have most in
    common."""
    monkeypatch.setenv("MINIDNN_CACHE", str(warm_cache))
    found: dict[tuple[str, tuple[int, ...], int], Launch] = {}
    for name in ("digits", *models.CLASSIC):
        for one in launches_of(name, precision, machine, contractions=False):
            found[one.source.name, one.block, one.shared_bytes] = one
    assert sum(name.startswith("seq_") for name, _, _ in found) > 20
    # In every second place alone of what float32 has too, whose kernels differ but in their types.
    step = 12 if precision == "float32" else 16
    check(some([found[key] for key in sorted(found)], step), machine)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("precision", "machine"),
    [("bfloat16", H200), pytest.param("float32", A100, marks=pytest.mark.full)],
)
def test_kernels_of_a_training_step_keep_to_the_budget(
    precision: str, machine: Machine, warm_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sums of statistics and of gradients, what is element-wise on parameters, and sequences whose
    vectors are computed."""
    monkeypatch.setenv("MINIDNN_CACHE", str(warm_cache))
    net = L.Sequential(
        *(L.Conv2d(3, 160, 3, bias=False), L.BatchNorm2d(160), L.ReLU(), L.MaxPool2d(3, 2)),
        *(L.Conv2d(160, 64, 3, bias=False), L.BatchNorm2d(64), L.ReLU()),
        *(L.AdaptiveAvgPool2d((1, 1)), L.Flatten(), L.Linear(64, 10)),
    ).initialize(0)
    objective = Objective(CrossEntropy(), {})
    graph = step_graph(net, ((64, 3, 40, 40),), objective, SGD(0.1, momentum=0.9))
    tasks = lower_plan(planned_graph(graph, precision, True), machine, False)
    launches = {task.work.source: task.work for task in tasks if isinstance(task.work, Launch)}
    names = " ".join(source.name for source in launches)
    assert all(f"{kind}_" in names for kind in ("sums", "sum_parts", "elements", "seq"))
    check(list(launches.values()), machine)


#: What the zoo has after a contraction, or before it.
EPILOGUES = {
    "bias": (lambda: L.Conv2d(64, 64, 3, padding=1), (32, 64, 14, 14)),
    "residual": (lambda: residual(64, 3), (32, 64, 14, 14)),
    "residual-1x1": (lambda: residual(64, 1), (32, 64, 14, 14)),
    "normalized": (lambda: dense(32), (32, 32, 14, 14)),
}


def tiles_of(problem: ContractionProblem, machine: Machine, every: bool = False) -> list[Launch]:
    """The kernels of tiles: every one, and with sums in parts where there are clusters, or those
    whose threads have the fewest registers beside their sums."""
    assert TILE.why_not(problem, H200) is None
    spare = [t.spare_registers(1, machine) for t in TILES]
    choices = [i for i, one in enumerate(spare) if every or one == min(spare)]
    if every and machine.has_clusters:
        divided = [(i, p) for i, t in enumerate(TILES) for p in PARTS[1:] if t.divides(p)]
        choices += [DIVISIONS.number(*one) for one in divided]
    return [TILE.launches(problem, choice, machine)[0] for choice in choices]


def passing(problem: ContractionProblem) -> list[Launch]:
    """The kernels through whose shared memory pixels pass, of windows."""
    launches = []
    if HALO.why_not(problem, H200) is None:
        for width in HALO.choices(problem, H200):
            launches.append(HALO.launches(problem, width, H200)[0])
    return launches


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", EPILOGUES)
def test_contractions_keep_to_the_budget(
    name: str, warm_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Streams, strips, rows and Winograd have budgets beside their other tests."""
    monkeypatch.setenv("MINIDNN_CACHE", str(warm_cache))
    make, shape = EPILOGUES[name]
    dtype = ("float16", "bfloat16")[list(EPILOGUES).index(name) % 2]
    problem = problems_of(make(), shape, dtype)[0]
    tiles = tiles_of(problem, H200, every=name == "residual")
    check(some(tiles[:: 3 if name == "residual" else 1] + passing(problem), 5), H200)
    check(some(tiles_of(problem, A100), 8), A100)


@pytest.mark.full
def test_all_tiles_keep_to_the_budget() -> None:
    make, shape = EPILOGUES["residual"]
    check(tiles_of(problems_of(make(), shape, "bfloat16")[0], H200, every=True), H200)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "precision",
    ["float16", *(pytest.param(one, marks=pytest.mark.full) for one in ("float32", "bfloat16"))],
)
def test_normalizations_in_front_keep_to_the_budget(
    precision: str, warm_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With them everything that may stand around a contraction is compiled, cuDNN's too."""
    monkeypatch.setenv("MINIDNN_CACHE", str(warm_cache))
    problems = problems_of(dense(32), (2, 32, 14, 14), precision)
    assert any(problem.before for problem in problems)
    for machine in (A100, H200):
        launches = [one for p in problems for one in contraction_launches(p, machine)]
        check(some(launches, 4 if machine is H200 else 8), machine)


@pytest.mark.full
@pytest.mark.parametrize("batch", [1, 128])
@pytest.mark.parametrize(("name", "precision"), ALL)
def test_all_networks_keep_to_the_budget(name: str, precision: str, batch: int) -> None:
    for machine in MACHINES:
        check(launches_of(name, precision, machine, batch), machine)
