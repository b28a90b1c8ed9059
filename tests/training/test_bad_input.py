"""What goes wrong while one trains: a clear error, nothing lost, and no process left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import minidnn as md
from minidnn import layers as L
from minidnn.errors import GraphError, WeightsError
from tests.data.test_faults import are_gone

random = np.random.default_rng(0)
X, T = random.standard_normal((8, 16)).astype(np.float32), random.integers(0, 3, 8)


class Forked(L.Layer):
    """A loss may reach one of its outputs only, or one of its layers."""

    def __init__(self, calls: bool) -> None:
        self.first, self.second, self.calls = L.Linear(16, 3), L.Linear(16, 3), calls

    def forward(self, x: Any) -> Any:
        return (self.first(x), self.second(x)) if self.calls else self.first(x)


def no_batches(kind: str) -> Any:
    return {"arrays": [X], "three": [(X, T, T)], "number": 3, "nothing": None}[kind]


def normalized() -> L.Sequential:
    return L.Sequential(L.Linear(16, 4), L.BatchNorm1d(4), L.Linear(4, 3))


def trainer(network: L.Layer | None = None, **options: Any) -> md.Trainer:
    given: dict[str, Any] = {"loss": md.losses.CrossEntropy(), "shape": (8, 16)} | options
    optimizer = md.optim.SGD(0.1, momentum=0.9)
    return md.Trainer(network or L.Linear(16, 3), optimizer=optimizer, device="reference", **given)


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda: trainer().step(X, T - 1), r"target\[\d\] is -1; valid are indices from 0 to 2"),
        (
            lambda: trainer().step(X, T > 0),
            r"target is bool of shape \(8,\); valid is an int",
        ),
        (
            lambda: trainer(loss=lambda y, t: (y - t) ** 2),
            r"loss has shape \(8, 3\); valid is one element, such as the mean: x.mean\(\)",
        ),
        (lambda: trainer(loss=lambda y, t: 3.0), "loss is 3.0 .float.; valid is a symbolic value"),
        (
            lambda: trainer(L.Linear(16, 3).freeze()),
            "Linear has no trainable parameter; valid is a network with at least one",
        ),
        (
            lambda: trainer(Forked(False)),
            "the loss does not depend on 'second.weight', 'second.bias', which no layer uses",
        ),
        (
            lambda: trainer(
                Forked(True), loss=lambda y, t: (y[0] - t).mean(), targets=[((8, 3), "float32")]
            ),
            "the loss '.*' does not depend on 'second.weight', 'second.bias'; valid are values",
        ),
        (
            lambda: trainer(normalized(), shape=(1, 16)),
            r"node '1': BatchNorm1d: input has shape \(1, 4\), which is one value for each stat",
        ),
        (lambda: trainer(normalized()).step(X[:1], T[:1]), "valid in training are several"),
        (
            lambda: trainer().fit(no_batches("arrays"), 1),
            "fit: batch 1 is a ndarray; valid is an iterable of pairs",
        ),
        (
            lambda: trainer().evaluate(no_batches("three")),
            "evaluate: batch 1 is a tuple of 3; valid is an",
        ),
        (
            lambda: trainer().fit(no_batches("number"), 1),
            "fit: batches=3 is a int; valid is an iterable of pairs",
        ),
        (
            lambda: trainer().evaluate(no_batches("nothing")),
            "evaluate: batches=None is a NoneType; valid is an",
        ),
        (lambda: trainer(seed=2**63), "Trainer: seed=9223372036854775808; valid is an int from 0"),
        (
            lambda: trainer(loss=[(md.losses.CrossEntropy(), -1.0)]),
            "^the factor of loss.'0'.=-1.0; valid is a number of at least 0",
        ),
        (lambda: trainer().fit([(X, T)], -1), "Trainer: epochs=-1; valid is an int of at least 0"),
        (
            lambda: trainer().step(X.astype(np.int64), T),
            "has dtype int64; valid is float32, or another floating-point dtype",
        ),
    ],
)
def test_what_does_not_fit_is_told(use: Callable[[], Any], message: str) -> None:
    with pytest.raises(GraphError, match=message):
        use()


def changed(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Writes another header into a checkpoint."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    known = json.loads(header["__metadata__"]["minidnn.trainer"])
    change(known)
    header["__metadata__"]["minidnn.trainer"] = json.dumps(known)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + size :])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda known: known.update(format=9), "a checkpoint of format 9; valid are 2 and 3"),
        (lambda known: known.pop("format"), "a checkpoint of format None; valid are 2 and 3"),
        (lambda known: known["progress"].update(steps=7), "not those that were saved: it is dam"),
        (lambda known: known.pop("progress"), "says progress=None; valid is how far training had"),
        (lambda known: known["progress"].update(steps=-1), "says progress=.*; valid is how far"),
        (lambda known: known.update(loader=[1]), r"says loader=\[1\]; valid is the place of a"),
        (lambda known: known.update(history={}), r"says history=\{\}; valid is a list of records"),
        (lambda known: known.update(accumulate=2), "not those that were saved: it is damaged"),
    ],
)
def test_a_header_that_was_tampered_with(
    change: Callable[[dict[str, Any]], Any], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "run.checkpoint"
    saved = trainer()
    saved.step(X, T)
    saved.save(path)
    changed(path, lambda known: None)
    trainer().restore(path)  # the same words in another form are no change
    changed(path, change)
    ours = trainer()
    with pytest.raises(WeightsError, match=message):
        ours.restore(path)
    assert ours.progress.steps == 0


def test_a_checkpoint_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="gone': cannot be read: No such file or directory"):
        trainer().restore(tmp_path / "gone")


FULL = """
import resource, signal
import numpy as np
import minidnn as md
from minidnn import layers as L

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
ours = md.Trainer(
    L.Linear(100, 100), (4, 100), md.losses.MSE(), md.optim.SGD(0.1), device="reference"
)
x = np.ones((4, 100), np.float32)
ours.step(x, x)
ours.save("run")
ours.step(x, x)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
try:
    ours.save("run")
except OSError as error:
    print(type(error).__name__, error)
ours.restore("run")
print(ours.progress.steps)
"""


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def test_a_disk_that_is_full_leaves_the_old_checkpoint(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FULL],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    told, steps = done.stdout.splitlines()
    assert "File too large" in told and steps == "1"
    assert os.listdir(tmp_path) == ["run"]


INTERRUPTED = """
import sys, time
import numpy as np
import minidnn as md
from minidnn import layers as L

class Told(md.callbacks.Callback):
    def after_step(self, trainer):
        print(trainer.progress.batches, flush=True)
        time.sleep(0.05)

def main():
    x, t = np.ones((4000, 16), np.float32), np.zeros(4000, np.int64)
    loader = md.data.Loader(md.data.Arrays(x, t), 8, workers=2, processes=True)
    ours = md.Trainer(
        L.Linear(16, 3), (8, 16), md.losses.CrossEntropy(), md.optim.SGD(0.1), device="reference"
    )
    ours.fit(loader, 1, callbacks=[Told(), md.callbacks.Checkpoint("run")])
    print("interrupted" if ours.interrupted else "done", ours.progress.batches, flush=True)

if __name__ == "__main__":
    main()
"""


def test_ctrl_c_saves_and_ends_all_processes(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(INTERRUPTED)
    started = subprocess.Popen(
        [sys.executable, "script.py"],
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with started:
        try:
            assert started.stdout is not None
            assert started.stdout.readline() == "1\n"
            os.killpg(started.pid, signal.SIGINT)  # as a terminal does
            out, errors = started.communicate(timeout=60)
        finally:
            if started.poll() is None:
                os.killpg(started.pid, signal.SIGKILL)
        word, batches = out.splitlines()[-1].split()
        assert (started.returncode, errors, word) == (0, "", "interrupted")
        assert are_gone(started.pid)
    ours = trainer()
    path = tmp_path / "run"
    with pytest.raises(WeightsError, match="missing: momentum"):
        ours.restore(path)  # of an optimizer with momentum
    other = md.Trainer.load(
        *(path, L.Linear(16, 3), (8, 16), md.losses.CrossEntropy(), md.optim.SGD(0.1)),
        device="reference",
    )
    assert other.progress.batches == other.progress.position == int(batches)
    assert other.loader_state["position"] == int(batches)


class Broken:
    """A step of a dataset that raises at one of its samples."""

    def __call__(self, x: np.ndarray, draws: md.data.Draws) -> np.ndarray:
        if (x == 5).any():
            raise ZeroDivisionError("the step is broken")
        return x


@pytest.mark.parametrize("processes", [False, True])
def test_a_worker_that_raises_loses_nothing(processes: bool, tmp_path: Path) -> None:
    x = np.repeat(np.arange(8, dtype=np.float32), 16).reshape(8, 16)
    loader = md.data.Loader(md.data.Arrays(x, T, [Broken()]), 2, workers=1, processes=processes)
    ours, alone = trainer(), trainer()
    with pytest.raises(md.data.DataError, match="samples 4, 5: ZeroDivisionError: the step is bro"):
        ours.fit(loader, 1, callbacks=[md.callbacks.Checkpoint(tmp_path / "run")])
    for first in (0, 2):
        alone.step(x[first : first + 2], T[first : first + 2])
    assert ours.progress.batches == 2
    ours.save(tmp_path / "after")  # it is whole, and can be saved
    for name in alone.store:
        np.testing.assert_array_equal(ours.store[name], alone.store[name])
    loader.close()


def test_values_of_targets_with_types_of_their_own_are_checked() -> None:
    """A loss of two outputs has its targets' types from ``targets=``."""
    made = trainer(
        Forked(True), loss=md.losses.CosineEmbedding(), targets=[((8,), "float32")], metrics={}
    )
    match = r"CosineEmbedding: target\[0\] is 0.5; valid are 1 and -1"
    with pytest.raises(GraphError, match=match):
        made.step(X, np.full(8, 0.5, np.float32))
    made.step(X, np.ones(8, np.float32))
