"""Jobs in a process of their own: faults, limits and errors are findings; results are checked."""

from __future__ import annotations

import os
import pickle
import time

import numpy as np
import pytest

from minidnn.lab.apart import Apart, Failure, FaultError
from minidnn.lab.ladders import LADDERS
from minidnn.lab.operands import OperandFolder, first_wrong
from minidnn.lab.product.ladder import PRODUCT
from minidnn.lab.product.shape import ProductShape


def act(job: str) -> tuple[str, int]:
    if job == "die":
        os._exit(3)
    if job == "hang":
        time.sleep(600)
    if job == "raise":
        raise ValueError("no such thing")
    if job == "fault":
        raise FaultError("an illegal address")
    return job, os.getpid()


@pytest.mark.parametrize("name", LADDERS)
def test_steps_reach_another_process(name: str) -> None:
    for step in LADDERS[name].steps:
        assert pickle.loads(pickle.dumps(step)).name == step.name


def test_the_study_goes_on() -> None:
    jobs = ["one", "raise", "two", "hang", "fault", "die", "three"]
    one, raised, two, hung, fault, died, three = Apart(act, 1.0).run(jobs)
    assert isinstance(one, tuple) and isinstance(two, tuple) and isinstance(three, tuple)
    assert one[0] == "one" and one[1] == two[1] != os.getpid()
    assert raised == Failure("error", "ValueError: no such thing")
    assert fault == Failure("fault", "an illegal address")
    assert hung == Failure("limit", "no result within 1 s")
    assert died == Failure("fault", "its process ended with status 3")
    assert three[0] == "three" and three[1] != one[1]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, None),
        ({3: 3.0 + 1e-6}, None),
        ({4: 5.0}, "y[1, 1] is 5 and should be 4; 1 of 6 elements are wrong"),
        ({1: np.nan, 5: 9.0}, "y[0, 1] is nan and should be 1; 2 of 6 elements are wrong"),
    ],
)
def test_the_first_wrong_element(changes: dict[int, float], reason: str | None) -> None:
    found = np.arange(6, dtype=np.float32)
    for at, number in changes.items():
        found[at] = number
    assert first_wrong(found, np.arange(6, dtype=np.float32).reshape(2, 3), 1e-6) == reason


def test_operands_are_made_once_and_removed() -> None:
    shape = ProductShape(3, 4, 5)
    with OperandFolder(PRODUCT) as folder:
        one = folder.of(["a", "b", "y"], shape)
        assert folder.of(["b", "a", "y"], shape) is one
        a, b = (np.load(one.files[name]) for name in "ab")
        np.testing.assert_allclose(np.load(one.expected), a.reshape(3, 5) @ b.reshape(5, 4), 1e-5)
    assert not one.expected.exists()
