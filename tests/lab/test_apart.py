"""Jobs in a process of their own: faults, limits and errors are findings; results are checked."""

from __future__ import annotations

import os
import pickle
import time
from pathlib import Path

import numpy as np
import pytest

from minidnn.lab.api import H100
from minidnn.lab.cuda.product import PRODUCT
from minidnn.lab.cuda.step import CudaStep
from minidnn.lab.isolated_jobs import Failure, FaultError, IsolatedJobs
from minidnn.lab.operands import (
    ConvolutionShape,
    OperandFolder,
    Operands,
    ProductShape,
    draw,
    first_wrong,
    tolerance,
)
from minidnn.lab.step import Point
from minidnn.lab.studies import DEVICES


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


def test_jobs_reach_another_process_whatever_a_step_is_made_of() -> None:
    step = CudaStep(
        name="mine",
        source="// A\n//\n// B\n//\n// C\n__global__ void mine(float *y, int rows) {}",
        sizes=lambda shape, block, parameters: ((1, 1, 1), (32, 1, 1), 0),
    )
    operands = Operands({}, Path("y.npy"), 1e-6)
    point = Point(step, (32, 1), {})
    job = DEVICES["cuda"].job(point, ProductShape(3, 4, 5), H100, operands)
    again = pickle.loads(pickle.dumps(job))
    assert again == job and again.calls[0].arguments == ("y", 3) and again.size == 12


def test_the_study_goes_on() -> None:
    jobs = ["one", "raise", "two", "hang", "fault", "die", "three"]
    one, raised, two, hung, fault, died, three = IsolatedJobs(act, 1.0).run(jobs)
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


def test_a_sum_in_order_is_within_the_tolerance() -> None:
    """Of a million and a half elements that one which float32 rounds worst, whatever the kernel:
    products are added one after the other, each sum rounded once."""
    shape = ConvolutionShape(32, 160, 12, 12, 320, padding=1)
    drawn = draw(["w", "x"], shape)
    image = np.pad(drawn["x"].reshape(32, 160, 12, 12)[10], [(0, 0), (1, 1), (1, 1)])
    window = image[:, 8:11, 2:5].ravel().astype(np.float64)
    weights = drawn["w"].reshape(320, -1)[167].astype(np.float64)
    found = np.float32(0)
    for a, b in zip(window, weights, strict=True):
        found = np.float32(np.float64(found) + a * b)
    largest = 180.577  # of all elements
    off = abs(float(found) - float(window @ weights)) / largest
    assert 2.0**-23 * (2 + shape.terms**0.5 / 2) < off < tolerance(shape)
