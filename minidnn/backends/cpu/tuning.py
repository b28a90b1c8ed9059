"""Autotuning: measures the candidates for all contractions of a network at once.

A candidate is an algorithm with a scheme.  The network is compiled several times: with the choices
by price (predicted time), then with the second candidate for every contraction, with the third, and
so on.  Runs of each of these variants alternate with runs of the first, and the fastest candidate
of each contraction is remembered in the cache folder, for each machine.  At last the network with
all of these runs against the first one again, and a choice that is not faster then is dropped.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from ...cache import CacheStore, digest
from ...graph.ir import Constant, Graph, Node
from ...graph.totals import with_bodies
from ...graph.types import numpy_dtype
from ...runtime.arrays import random_array
from ...runtime.plan import Plan
from .compilers.process import terminal_progress
from .compilers.toolchain import ispc_banners
from .contraction import Choice, Question, choose_by_price
from .contraction.algorithms import candidates, usable_algorithms
from .contraction.choose import nominal_speed
from .execution.bind import Task
from .isa import Isa
from .lower import lower_plan
from .machine import describe_machine

# Races: runs of two programs of one plan alternate, and each contraction is timed in both.
#
# Contractions are timed inside the network: weights come from memory where they do so in use, and
# inputs are in the caches as the layer before left them.


LEAST_ROUNDS = 5
MOST_ROUNDS = 25
SHORT_SECONDS = 0.05
"""After another program, a run that is shorter than this is repeated, and the repetition counts:
the caches must hold what stays in them from run to run."""


class Timed(Protocol):
    """A program that can be raced: it measures the seconds of its tasks."""

    @property
    def tasks(self) -> Sequence[Task]: ...

    def seconds(
        self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]
    ) -> np.ndarray: ...


Times = dict[Question, float]


def race(
    programs: Sequence[Timed],
    inputs: Sequence[np.ndarray],
    outputs: Sequence[np.ndarray],
    seconds: float,
) -> list[Times]:
    """The seconds of each program's contractions: the least of several alternating runs, since
    whatever else the machine does only makes them longer.

    ``seconds``: how long to go on, if that gives at least :data:`LEAST_ROUNDS`.
    """
    samples: list[list[Times]] = [[] for _ in programs]
    end = time.perf_counter() + seconds
    while len(samples[0]) < MOST_ROUNDS:
        for program, runs in zip(programs, samples, strict=True):
            start = time.perf_counter()
            result = program.seconds(inputs, outputs)
            if time.perf_counter() - start < SHORT_SECONDS:
                result = program.seconds(inputs, outputs)
            runs.append(_by_question(program.tasks, result))
        if len(samples[0]) >= LEAST_ROUNDS and time.perf_counter() > end:
            break
    return [
        {question: min(times[question] for times in runs) for question in runs[0]}
        for runs in samples
    ]


def _by_question(tasks: Sequence[Task], seconds: np.ndarray) -> Times:
    """The seconds of all contractions that ask the same question, added."""
    total: Times = {}
    for task, task_seconds in zip(tasks, seconds, strict=True):
        if task.question is not None:
            total[task.question] = total.get(task.question, 0.0) + float(task_seconds)
    return total


log = logging.getLogger("minidnn.cpu")

BUDGET_SECONDS = 110.0
"""A quick tuning ends within about two minutes; it warns of candidates that were not measured."""

RACE_SECONDS = 1.0
"""How long a race lasts, if that gives at least LEAST_ROUNDS rounds."""

MOST_CANDIDATES = {"quick": 8, "exhaustive": 24}
SHARES = ((0.02, 1.0), (0.005, 0.5), (0.0, 0.25))
"""Shares of the network's predicted time, and fractions: a contraction with at least that share
gets that fraction of the candidates."""

GAIN = 0.02
"""The fraction by which a candidate must be faster than the choice by price."""

P = TypeVar("P", bound=Timed)


class Build(Protocol[P]):
    """Makes a program of tasks; ``other`` is one whose kernels and constants may be shared."""

    def __call__(self, tasks: Sequence[Task], other: P | None = None) -> P: ...


def tuned_tasks(
    plan: Plan, isa: Isa, threads: int, accuracy: str, tune: str, build: Build[P]
) -> list[Task]:
    """The tasks of a plan as :func:`.lower.lower_plan` returns them, with the fastest choices.

    Choices that are not remembered are measured, and remembered.
    """
    memory = Choices(threads, is_near(plan))
    known: dict[Question, Choice] = {}
    missing: dict[Question, None] = {}

    def remembered(question: Question) -> Choice:
        if question not in known and question not in missing:
            if (choice := memory.read(question, tune)) is None:
                missing[question] = None
            else:
                known[question] = choice
        return known.get(question) or choose_by_price(question)

    tasks = lower_plan(plan, isa, threads, accuracy, remembered)
    if not missing:
        return tasks
    budget = None if tune == "exhaustive" else BUDGET_SECONDS
    tuning = Tuning(plan, isa, threads, accuracy, tasks, list(missing), build)
    results = tuning.measure(MOST_CANDIDATES[tune], budget)
    for question, result in results.items():
        memory.write(question, tune, result.choice, result.figures())
    return tuning.tasks_with({question: result.choice for question, result in results.items()})


@dataclass
class Measured:
    """A contraction's candidates, the first by price, and their measured times.

    Attributes:
        ratios: seconds of the measured candidates over those of the first, which has 1.0.
        chosen: the number of the fastest candidate.
        first_seconds, chosen_seconds: the seconds of the first and of the chosen candidate in the
            last race, added for all contractions of a run that ask the same question.
    """

    candidates: list[Choice]
    ratios: list[float] = field(default_factory=lambda: [1.0])
    chosen: int = 0
    first_seconds: float = 0.0
    chosen_seconds: float = 0.0

    @property
    def choice(self) -> Choice:
        return self.candidates[self.chosen]

    def figures(self) -> dict[str, Any]:
        measured = zip(self.candidates, self.ratios, strict=False)
        return {
            "seconds": self.chosen_seconds,
            "seconds_by_price": self.first_seconds,
            "measured": [
                {
                    "algorithm": choice.algorithm.name,
                    "scheme": choice.algorithm.describe(choice.scheme),
                    "ratio": round(ratio, 4),
                }
                for choice, ratio in measured
            ],
        }


class Tuning(Generic[P]):
    """Measures the candidates for questions in one network.

    Args:
        tasks: the network's tasks, with the choices by price where none is remembered.
        questions: those whose candidates are measured.
    """

    def __init__(
        self,
        plan: Plan,
        isa: Isa,
        threads: int,
        accuracy: str,
        tasks: Sequence[Task],
        questions: Sequence[Question],
        build: Build[P],
        race_seconds: float = RACE_SECONDS,
    ) -> None:
        self._plan = plan
        self._isa = isa
        self._threads = threads
        self._accuracy = accuracy
        self._tasks = list(tasks)
        self._questions = questions
        self._build = build
        self._watch = terminal_progress()
        self._race_seconds = race_seconds

    def measure(self, most: int, budget: float | None) -> dict[Question, Measured]:
        """Measures at most ``most`` candidates for each question, within ``budget`` seconds."""
        start = time.perf_counter()
        self._watch("tuning", 0, most + 1)
        results = {
            question: Measured(candidates(question, count))
            for question, count in self._counts(most).items()
        }
        inputs, outputs = _arrays(self._plan.graph)
        baseline = self._build(self._tasks)
        longest = 0.0
        most = max(len(result.candidates) for result in results.values())
        for number in range(1, most):
            begin = time.perf_counter()
            if budget is not None and begin - start + 2 * longest > budget:
                _tell_left_out(results, number, budget)
                break
            chosen = {
                question: result.candidates[number]
                for question, result in results.items()
                if number < len(result.candidates)
            }
            times = self._race(baseline, chosen, inputs, outputs)
            for question in chosen:
                results[question].ratios.append(times[1][question] / times[0][question])
            longest = max(longest, time.perf_counter() - begin)
            self._watch("tuning", number, most + 1)
        self._confirm(baseline, results, inputs, outputs)
        self._watch("tuning", 1, 1)
        return results

    def tasks_with(self, chosen: Mapping[Question, Choice]) -> list[Task]:
        """The network's tasks with other choices; tasks that do not change are the same objects."""
        current = {task.question: task.choice for task in self._tasks if task.question is not None}
        changed = {
            question for question, choice in chosen.items() if current.get(question) != choice
        }
        nodes = {task.node for task in self._tasks if task.question in changed}
        lowered = lower_plan(
            self._plan,
            self._isa,
            self._threads,
            self._accuracy,
            lambda question: chosen.get(question) or current[question] or choose_by_price(question),
            nodes,
        )
        lowered_by_node: dict[Node, list[Task]] = {}
        for task in lowered:
            lowered_by_node.setdefault(task.node, []).append(task)
        tasks: list[Task] = []
        for task in self._tasks:
            tasks += lowered_by_node.pop(task.node, []) if task.node in nodes else [task]
        return tasks

    def _counts(self, most: int) -> dict[Question, int]:
        """How many candidates each question gets; those of most predicted time come first."""
        seconds: dict[Question, float] = {}
        for task in self._tasks:
            if task.question is not None and task.choice is not None:
                speed = nominal_speed(self._isa, task.question.threads)
                predicted = task.choice.algorithm.seconds(task.choice.scheme, speed)
                predicted *= task.question.images * task.question.threads / self._threads
                seconds[task.question] = seconds.get(task.question, 0.0) + predicted
        total = sum(seconds.values())
        order = sorted(self._questions, key=lambda question: -seconds[question])
        return {
            question: max(
                2, int(most * next(p for s, p in SHARES if seconds[question] >= s * total))
            )
            for question in order
        }

    def _race(
        self,
        first: P,
        chosen: Mapping[Question, Choice],
        inputs: Sequence[np.ndarray],
        outputs: Sequence[np.ndarray],
    ) -> list[Times]:
        other = self._build(self.tasks_with(chosen), first)
        return race([first, other], inputs, outputs, self._race_seconds)

    def _confirm(
        self,
        first: P,
        results: Mapping[Question, Measured],
        inputs: Sequence[np.ndarray],
        outputs: Sequence[np.ndarray],
    ) -> None:
        """Chooses the fastest candidates that are still faster when they run together."""
        for result in results.values():
            best = int(np.argmin(result.ratios))
            result.chosen = best if result.ratios[best] < 1 - GAIN else 0
        chosen = {q: result.choice for q, result in results.items() if result.chosen}
        before, after = self._race(first, chosen, inputs, outputs)
        for question, result in results.items():
            result.first_seconds = result.chosen_seconds = before[question]
            if result.chosen and after[question] < (1 - GAIN / 2) * before[question]:
                result.chosen_seconds = after[question]
            else:
                result.chosen = 0
        log.info(
            "tuned %d contractions: %.3f ms by price, %.3f ms now",
            len(results),
            1e3 * sum(result.first_seconds for result in results.values()),
            1e3 * sum(result.chosen_seconds for result in results.values()),
        )


def is_near(plan: Plan) -> bool:
    """Whether the network's weights and values stay in the L3 cache from run to run."""
    operands = {value for node in with_bodies(plan.graph.nodes) for value in node.inputs}
    size = sum(value.type.bytes for value in operands if isinstance(value, Constant))
    return plan.arena.bytes + size <= describe_machine().caches.l3


def _arrays(graph: Graph) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Normally distributed inputs, and arrays for outputs."""
    rng = np.random.default_rng(0)
    inputs = [random_array(rng, v.shape, numpy_dtype(v.dtype)) for v in graph.inputs]
    return inputs, [np.empty(v.shape, numpy_dtype(v.dtype)) for v in graph.outputs]


def _tell_left_out(results: Mapping[Question, Measured], number: int, budget: float) -> None:
    unmeasured = [len(result.candidates) - number for result in results.values()]
    count = sum(1 for n in unmeasured if n > 0)
    log.warning(
        "tuning ends after its %d seconds: %d candidates for %d of %d contractions were not "
        "measured, those of least promise by their price",
        budget,
        sum(n for n in unmeasured if n > 0),
        count,
        len(results),
    )


VERSION = 1
"""The version of remembered choices, a part of their keys."""


class Choices:
    """The remembered choices of this machine, which were measured to be the fastest.

    An entry is named by the question, the processor with its caches and cores, the compiler, and
    the text of the modules that make kernels of contractions: when one of these changes, choices
    are measured again.

    Args:
        threads: of the whole network; a question's are those that compute it together.
        near: whether the network's weights and values stay in the L3 cache from run to run.
            It changes which candidate is fastest, so it is a part of an entry's name as well.
    """

    def __init__(self, threads: int, near: bool) -> None:
        self._store = CacheStore("cpu_choices", ".json", 32 << 20)
        machine = describe_machine()
        self._of = (VERSION, threads, near, machine)
        self._banners = ispc_banners()

    def read(self, question: Question, tune: str) -> Choice | None:
        """The choice that ``tune``, or a more thorough tuning, has made; None if there is none."""
        for thoroughness in ("exhaustive",) if tune == "exhaustive" else ("exhaustive", "quick"):
            for banner in self._banners:
                data = self._store.read(self._key(question, thoroughness, banner))
                if data is None:
                    continue
                choice = _decode(data, question)
                if choice is not None:
                    return choice
                log.warning("a remembered choice of kernels is of no use; it is measured again")
        return None

    def write(
        self, question: Question, tune: str, choice: Choice, measured: Mapping[str, Any]
    ) -> None:
        """Remembers a choice; the figures in ``measured`` are for people who read the cache."""
        problem = question.problem
        shape = f"{problem.in_channels}>{problem.out_channels} {problem.kernel} @{problem.out_size}"
        entry = {
            "problem": f"{shape}, batch {problem.batch * question.images}",
            "algorithm": choice.algorithm.name,
            "scheme": choice.algorithm.describe(choice.scheme),
            **measured,
        }
        text = json.dumps(entry, indent=1).encode()
        self._store.put(self._key(question, tune, self._banners[0]), text, label="contraction")

    def _key(self, question: Question, tune: str, banner: str) -> str:
        return digest("cpu contraction", (*self._of, banner, _kernels()), tune, question)


def _decode(data: bytes, question: Question) -> Choice | None:
    """The choice that an entry names, if the question still allows it."""
    try:
        entry = json.loads(data)
        name, described = entry["algorithm"], entry["scheme"]
    except (ValueError, KeyError, TypeError):
        return None
    problem, isa = question.problem, question.isa
    for algorithm in usable_algorithms(problem, question.has_prologue, isa, question.accuracy):
        if algorithm.name == name:
            schemes = algorithm.schemes(problem, question.has_prologue, isa, question.threads)
            for scheme in schemes:
                if algorithm.describe(scheme) == described:
                    return Choice(algorithm, scheme)
    return None


@cache
def _kernels() -> str:
    """A digest of the modules that make the kernels of contractions."""
    folder = Path(__file__).resolve().parent / "contraction"
    parts = [(str(p.relative_to(folder)), p.read_bytes()) for p in sorted(folder.rglob("*.py"))]
    return digest(*((name, hashlib.sha256(data).hexdigest()) for name, data in parts))
