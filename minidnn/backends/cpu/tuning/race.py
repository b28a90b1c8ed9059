"""Two programs for one plan in turn, and what each contraction takes in them.

Contractions are timed where they stand in the network: weights come from memory where the network
finds them there, inputs lie in the caches as the layer before left them.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from ..contraction import Question
from ..task import Task

LEAST_ROUNDS = 5
MOST_ROUNDS = 25
SHORT_SECONDS = 0.05
"""After another program, a run that is shorter than this is made once more before it counts: what
stays in the caches from run to run must be there."""


class Timed(Protocol):
    """What is raced: a program that tells the seconds of its tasks."""

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
    """What the contractions of each program take: the least of several runs in turn, since
    whatever else the machine does only makes them longer.

    ``seconds``: how long to go on, if that gives at least :data:`LEAST_ROUNDS`.
    """
    samples: list[list[Times]] = [[] for _ in programs]
    end = time.perf_counter() + seconds
    while len(samples[0]) < MOST_ROUNDS:
        for program, taken in zip(programs, samples, strict=True):
            start = time.perf_counter()
            result = program.seconds(inputs, outputs)
            if time.perf_counter() - start < SHORT_SECONDS:
                result = program.seconds(inputs, outputs)
            taken.append(_by_question(program.tasks, result))
        if len(samples[0]) >= LEAST_ROUNDS and time.perf_counter() > end:
            break
    return [
        {question: min(times[question] for times in taken) for question in taken[0]}
        for taken in samples
    ]


def _by_question(tasks: Sequence[Task], seconds: np.ndarray) -> Times:
    total: Times = {}
    for task, each in zip(tasks, seconds, strict=True):
        if task.question is not None:
            total[task.question] = total.get(task.question, 0.0) + float(each)
    return total
