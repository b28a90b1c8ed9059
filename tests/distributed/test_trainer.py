"""Two processes that train together on the CPU, and what each came to."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minidnn.backends.cpu.backend import CpuBackend
from minidnn.distributed import DistributedError, RankInfo
from minidnn.distributed.rank import ConsensusCheck
from minidnn.errors import MiniDNNError
from tests.sampling import only

from . import ranks

pytest.importorskip("torch.distributed", reason="Gloo comes with PyTorch")

States = dict[str, np.ndarray]
FAST = "reference" if CpuBackend().unavailable() else "cpu"


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the checkpoint that the ranks write before their disk is full."""
    return tmp_path_factory.mktemp("disk")


@pytest.fixture(scope="module")
def ended(
    root: Path, disk: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """Where both ranks left what they came to, and how they ended: on a full disk."""
    folder = tmp_path_factory.mktemp("ranks")
    command = [
        *(sys.executable, "-m", "minidnn", "launch", "--processes", "2"),
        *("tests/distributed/ranks.py", str(folder), FAST, str(disk / "kept.checkpoint")),
    ]
    environment = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=root, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.stdout.count("all is written") == 2, done.stderr
    return folder, done


@pytest.fixture(scope="module")
def found(
    ended: tuple[Path, subprocess.CompletedProcess[str]],
) -> Callable[[str], list[States]]:
    """What both ranks came to, by scenario."""
    folder, _ = ended

    def load(name: str) -> list[States]:
        return [dict(np.load(folder / f"{name}-{rank}.npz")) for rank in (0, 1)]

    return load


def equal(one: States, other: States, but: tuple[str, ...] = ()) -> None:
    assert one.keys() == other.keys()
    for name in one.keys() - set(but):
        np.testing.assert_array_equal(one[name], other[name], name)


def parameters(states: States) -> States:
    left = ("losses", "pending@", "sum@")
    return {name: array for name, array in states.items() if not name.startswith(left)}


SCENARIOS = [
    *("plain", "normed", "same", "parts", "clipped", "scaled", "fast", "NaN", "fit"),
    *("synchronized", "synchronized fast"),
]


#: Those that others of these tests start, too, and two that none does.
SCENARIOS_IN_CI = ("plain", "normed", "same", "scaled", "NaN", "synchronized fast")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", only(SCENARIOS_IN_CI, SCENARIOS))
def test_ranks_have_the_same_states(found: Callable[[str], list[States]], name: str) -> None:
    """And the same losses: the means of both."""
    one, other = found(name)
    equal(one, other)


def ranks_as_one() -> tuple[list[tuple[np.ndarray, np.ndarray]], tuple[int, ...]]:
    """The batches of both ranks as one batch each, and their shape."""
    both = zip(*(ranks.batches(rank) for rank in (0, 1)), strict=True)
    whole: Any = [tuple(np.concatenate(pair) for pair in zip(*each, strict=True)) for each in both]
    return whole, (2 * ranks.SHAPE[0], *ranks.SHAPE[1:])


def test_two_halves_are_one_batch(found: Callable[[str], list[States]]) -> None:
    """In float64, within its rounding: gradients are means, also for momentum and decay."""
    whole, shape = ranks_as_one()
    for name, more in (
        ("plain", {}),
        ("clipped", {"optimizer": ranks.md.optim.Adam(0.1, clip_norm=0.01)}),
    ):
        alone: Any = ranks.trainer("plain", False, shape=shape, precision="float64", **more)
        expected = ranks.trained(alone, whole)
        one, _ = found(name)
        for state in expected:
            np.testing.assert_allclose(one[state], expected[state], rtol=1e-9, atol=1e-12)


def test_synchronized_statistics_are_those_of_one_batch(
    found: Callable[[str], list[States]],
) -> None:
    """In float64, forwards and backwards: parameters, momenta and stored statistics of four steps
    are those of one process with the whole batch.  Without synchronizing they are not."""
    whole, shape = ranks_as_one()
    alone: Any = ranks.trainer("normed", False, shape=shape, precision="float64")
    expected = ranks.trained(alone, whole)
    one, fast = found("synchronized")[0], found("synchronized fast")[0]
    for name, array in expected.items():
        np.testing.assert_allclose(one[name], array, rtol=1e-9, atol=1e-12, err_msg=name)
        np.testing.assert_allclose(fast[name], array, rtol=2e-4, atol=1e-5, err_msg=name)
    apart = found("normed")[0]["1.running_var"] - expected["1.running_var"]
    assert np.abs(apart).max() > 1e-4


def test_synchronized_statistics_beside_sums_over_batches(
    found: Callable[[str], list[States]],
) -> None:
    whole, shape = ranks_as_one()
    alone: Any = ranks.trainer("normed", False, shape=shape, precision="float64", accumulate=2)
    expected = parameters(ranks.trained(alone, whole))
    one, other = found("synchronized parts")
    for name, array in expected.items():
        np.testing.assert_array_equal(one[name], other[name], name)
        np.testing.assert_allclose(one[name], array, rtol=1e-9, atol=1e-12, err_msg=name)


def test_states_of_several_ranks_are_those_of_one(found: Callable[[str], list[States]]) -> None:
    """So that a checkpoint goes on with any number of ranks."""
    alone = ranks.trainer("normed", False)
    assert {*found("normed")[0]} == {*alone.store, "losses"}


@pytest.mark.parametrize("given", [True, 1, "yes"])
def test_what_to_synchronize_is_checked(given: Any) -> None:
    with pytest.raises(MiniDNNError, match=rf"synchronized={given!r}, distributed=False; valid is"):
        ranks.trainer("normed", False, synchronized=given)


@pytest.mark.parametrize(
    ("name", "kind", "more"),
    [("same", "normed", {}), ("parts", "normed", {"accumulate": 2, "average": 0.5})],
)
def test_ranks_with_the_same_batches_are_one(
    found: Callable[[str], list[States]], name: str, kind: str, more: dict[str, Any]
) -> None:
    """To the last bit: the mean of two equal numbers is exact.  Statistics, counters, sums over
    several batches and averages included."""
    expected = ranks.trained(ranks.trainer(kind, False, **more), ranks.batches(0))
    one, _ = found(name)
    for state, array in parameters(expected).items():
        np.testing.assert_array_equal(one[state], array, state)
    np.testing.assert_array_equal(one["losses"][1::2], expected["losses"][1::2])


def test_the_same_ranks_give_the_same_bits(found: Callable[[str], list[States]]) -> None:
    equal(found("plain")[0], found("again")[0])


def test_statistics_are_means_of_ranks(found: Callable[[str], list[States]]) -> None:
    """After the first step, at least: later ones begin with other parameters than alone."""
    before, _ = found("before NaN")
    alone = []
    for rank in (0, 1):
        ours = ranks.trainer("normed", False)
        alone.append(ranks.trained(ours, ranks.batches(rank)[:1]))
    for name in ("1.running_mean", "1.running_var"):
        mean = (alone[0][name].astype(np.float64) + alone[1][name]) / 2
        np.testing.assert_allclose(before[name], mean, rtol=1e-6)
    assert before["1.num_batches_tracked"] == 1


def test_dropout_differs_between_ranks(found: Callable[[str], list[States]]) -> None:
    one, other = found("dropped")
    assert one["random.seed"] != other["random.seed"]
    equal(one, other, but=("random.seed",))
    alone = ranks.trained(ranks.trainer("dropped", False), ranks.batches(0))
    assert (one["4.weight"] != alone["4.weight"]).any()  # though both have its batches


def test_training_goes_on_with_the_same_bits(found: Callable[[str], list[States]]) -> None:
    for before, resumed in zip(found("went on"), found("resumed"), strict=True):
        equal(before, resumed)


def test_nan_on_one_rank_changes_nothing_on_any(found: Callable[[str], list[States]]) -> None:
    for before, after in zip(found("before NaN"), found("NaN"), strict=True):
        assert np.isnan(after["losses"]).all()
        equal(parameters(before), parameters(after))


def test_scaling_takes_no_part_in_results(found: Callable[[str], list[States]]) -> None:
    """A power of two: gradients are the same but for their last bits in float32."""
    scaled, plain = found("scaled")[0], found("plain")[0]
    for name, array in parameters(plain).items():
        np.testing.assert_allclose(scaled[name], array, rtol=2e-4, atol=2e-6)


def test_engines_agree(found: Callable[[str], list[States]]) -> None:
    fast, reference = found("fast")[0], found("normed")[0]
    np.testing.assert_allclose(fast["losses"], reference["losses"], rtol=1e-4)


def test_evaluation_is_over_the_samples_of_all(found: Callable[[str], list[States]]) -> None:
    one, other = found("evaluated")
    equal(one, other)
    alone = ranks.trainer("normed", False)
    before, _ = found("before NaN")
    for name in alone.store:
        alone.store[name] = before[name]
    data = [*ranks.batches(0)[:1], *ranks.batches(1)[:2]]
    np.testing.assert_allclose(one["means"], list(alone.evaluate(data).values()), rtol=1e-6)


def test_metrics_are_of_the_samples_of_all(found: Callable[[str], list[States]]) -> None:
    one, other = found("measured")
    equal(one, other)
    alone = ranks.measuring(False)
    names = ("loss", "accuracy", "f1_score", "auroc", "peak")
    for key, count, left in (
        *(("evaluated", (1, 2), names), ("of one rank", (0, 2), names[1:])),
        *(("epoch", (4, 4), names[2:]), ("went on", (4, 4), names[2:])),
    ):
        data = [batch for rank in (0, 1) for batch in ranks.batches(rank)[: count[rank]]]
        expected = alone.evaluate(data)
        np.testing.assert_allclose(one[key], [expected[name] for name in left], rtol=1e-6)


def test_sigterm_of_one_rank_ends_all_at_the_same_step(
    found: Callable[[str], list[States]],
) -> None:
    for states in found("ended"):
        np.testing.assert_array_equal(states["batches"], [16, True])


def test_without_a_starter_it_says_which_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("RANK", "OMPI_", "PMI_", "SLURM_")):
            monkeypatch.delenv(name)
    with pytest.raises(MiniDNNError, match="valid is to start it by torchrun, mpirun, srun"):
        ranks.trainer("plain")


DYING = """
import os, signal, sys, threading, time
sys.path.insert(0, os.getcwd())
from tests.distributed import ranks
rank, sent, after = int(os.environ["RANK"]), int(sys.argv[1]), float(sys.argv[2])

def die():
    time.sleep(after)
    print("dies", time.time(), flush=True)
    os.kill(os.getpid(), sent)

ours = ranks.trainer("plain", device=sys.argv[3]) if after >= 0 else None
if rank == 1:
    threading.Thread(target=die, daemon=True).start() if after >= 0 else die()
ours = ours or ranks.trainer("plain", device=sys.argv[3])
ours.fit(ranks.batches(rank, 100), 10**6)
print("came to its end")
"""


@pytest.mark.full
@pytest.mark.parametrize("after", [-1.0, 0.0, 0.1, 0.5, 1.0])
@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_a_rank_that_dies_ends_the_training(
    root: Path, tmp_path: Path, sent: int, after: float
) -> None:
    """Within seconds, though the other one waits for its gradients; also before it has come
    (``after`` < 0), and by Ctrl-C for one alone."""
    script = tmp_path / "dying.py"
    script.write_text(DYING.replace("time.sleep(after)", "time.sleep(max(after, 0))"))
    command = [sys.executable, "-m", "minidnn", "launch", "--processes", "2", str(script)]
    environment = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, str(int(sent)), str(after), FAST],
        cwd=root,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    ended = time.time()
    assert done.returncode in (1, 130, 128 + sent), done.stderr
    assert "came to its end" not in done.stdout
    died = float(done.stdout.split("dies ")[1].split()[0])
    assert ended - died < 20, done.stderr
    if after >= 0:
        reason = "KeyboardInterrupt" if sent == signal.SIGINT else "it ended without a word"
        assert f"minidnn: rank 0 ends, since rank 1 failed: {reason}" in done.stderr, done.stderr


def test_a_full_disk_ends_all_and_leaves_the_checkpoint_before(
    ended: tuple[Path, subprocess.CompletedProcess[str]], disk: Path
) -> None:
    _, done = ended
    assert done.returncode == 1, done.stderr
    assert "came to its end" not in done.stdout
    assert "minidnn: rank 1 ends, since rank 0 failed: OSError" in done.stderr, done.stderr
    assert [path.name for path in disk.iterdir()] == ["kept.checkpoint"]
    alone = ranks.trainer("plain", False)  # any number of ranks goes on from it
    alone.restore(disk / "kept.checkpoint")
    assert alone.progress.steps == 1


class Asked(ConsensusCheck):
    """Ranks that add up what each of them says."""

    def __init__(self, place: RankInfo, texts: list[str]) -> None:
        super().__init__()
        self.place = place
        self.others = [text for rank, text in enumerate(texts) if rank != place.rank]
        self.asked = 0

    def sum_of(self, numbers: Sequence[float]) -> list[float]:
        self.asked += 1
        said = [hashlib.sha256(text.encode()).digest() for text in self.others]
        parts = [[int.from_bytes(each[i : i + 3]) for i in range(0, 30, 3)] for each in said]
        return [float(sum(each)) for each in zip(numbers, *parts, strict=True)]


def test_ranks_of_other_programs_are_told_apart() -> None:
    texts = ["sum of a", "sum of a", "sum of b"]
    for rank, text in enumerate(texts):
        group = Asked(RankInfo(rank, 3, 0, "", 0), texts)
        with pytest.raises(DistributedError, match=rf"rank {rank} trains by another program"):
            group.agree(text)
    same = Asked(RankInfo(0, 3, 0, "", 0), texts[:2])
    same.place = RankInfo(0, 2, 0, "", 0)
    for _ in range(3):
        same.agree("sum of a")
    assert same.asked == 1
