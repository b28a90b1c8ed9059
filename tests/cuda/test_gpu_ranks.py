"""Two GPUs that train together over NCCL."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.distributed import ranks

pytestmark = pytest.mark.gpu

States = dict[str, np.ndarray]


@pytest.fixture(scope="module", autouse=True)
def _two_gpus() -> None:
    cupy = pytest.importorskip("cupy")
    if (count := cupy.cuda.runtime.getDeviceCount()) < 2:
        pytest.skip(f"two GPUs are needed, and there are {count}")
    nccl = pytest.importorskip("cupy.cuda.nccl")
    if not nccl.available:
        pytest.skip("CuPy finds no NCCL (pip install nvidia-nccl-cu13)")


def launch(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "minidnn", "launch", "--processes", "2", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    return subprocess.run(
        command, cwd=root, env=environment, capture_output=True, text=True, timeout=300
    )


@pytest.fixture(scope="module")
def found(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list[States]]:
    folder = tmp_path_factory.mktemp("ranks")
    done = launch(root, "tests/distributed/ranks.py", str(folder), "cuda")
    assert done.returncode == 0, done.stderr
    return lambda name: [dict(np.load(folder / f"{name}-{rank}.npz")) for rank in (0, 1)]


PRECISIONS = ["float32", "bfloat16", "float16"]


def equal(one: States, other: States) -> None:
    for name in one:
        if name != "random.seed":
            np.testing.assert_array_equal(one[name], other[name], name)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_ranks_and_runs_have_the_same_bits(
    found: Callable[[str], list[States]], precision: str
) -> None:
    one, other = found(precision)
    equal(one, other)
    equal(one, found(f"{precision} again")[0])


@pytest.mark.parametrize(("precision", "bound"), [("float32", 1e-3), ("bfloat16", 0.05)])
def test_losses_are_those_of_both_ranks_batches(
    found: Callable[[str], list[States]], precision: str, bound: float
) -> None:
    """The first loss is the mean of what each rank's batch gives alone on the reference."""
    both = [ranks.batches(rank, 8) for rank in (0, 1)]
    alone = [ranks.trainer("normed", False, optimizer=ranks.md.optim.SGD(0.0)) for _ in both]
    first = [float(ours.step(*data[0])) for ours, data in zip(alone, both, strict=True)]
    losses = found(precision)[0]["losses"]
    np.testing.assert_allclose(losses[0], np.mean(first), rtol=bound)
    assert np.isfinite(losses).all()


@pytest.mark.parametrize(("precision", "bound"), [("float32", 1e-3), ("bfloat16", 0.05)])
def test_synchronized_statistics_are_those_of_one_batch(
    found: Callable[[str], list[States]], precision: str, bound: float
) -> None:
    """The loss of the first step, and statistics behind it that no parameter has changed."""
    one, other = found(f"synchronized {precision}")
    equal(one, other)
    both = zip(*(ranks.batches(rank, 1) for rank in (0, 1)), strict=True)
    whole = [tuple(np.concatenate(pair) for pair in zip(*each, strict=True)) for each in both]
    shape = (2 * ranks.SHAPE[0], *ranks.SHAPE[1:])
    alone = ranks.trainer("normed", False, shape=shape)
    expected = ranks.trained(alone, whole)  # type: ignore[arg-type]
    np.testing.assert_allclose(one["losses"][0], expected["losses"][0], rtol=bound)


def test_training_goes_on_with_the_same_bits(found: Callable[[str], list[States]]) -> None:
    for before, resumed in zip(found("went on"), found("resumed"), strict=True):
        equal(before, resumed)


def test_evaluation_is_over_all(found: Callable[[str], list[States]]) -> None:
    equal(*found("evaluated"))


DYING = """
import os, signal, sys
sys.path.insert(0, os.getcwd())
from tests.distributed import ranks
rank = int(os.environ["RANK"])
ours = ranks.trainer("normed", device="cuda", precision="float32")
for step, (x, target) in enumerate(ranks.batches(rank, 1000)):
    if step == 50 and rank == 1:
        print("dies", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    ours.step(x, target)
print("came to its end")
"""


def test_a_rank_that_dies_ends_the_training(root: Path, tmp_path: Path) -> None:
    """Though the other one's GPU waits in a collective operation that never ends."""
    script = tmp_path / "dying.py"
    script.write_text(DYING)
    begin = time.monotonic()
    done = launch(root, str(script))
    assert time.monotonic() - begin < 120
    assert done.returncode in (1, 137)
    assert "dies" in done.stdout and "came to its end" not in done.stdout
    assert "minidnn: rank 0 ends, since rank 1 failed: it ended without a word" in done.stderr
