"""What each worker of Ray Train runs in ``test_ray.py``; the last one dies once, if asked to.

Started with a folder, to which every rank writes what it came to, and the batch before which the
worker dies.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np

import minidnn as md
from minidnn.distributed import find_rank
from tests.distributed import ranks


class Dies(md.callbacks.Callback):
    """Ends the process as the system does that is out of memory."""

    def __init__(self, folder: Path, before: int) -> None:
        self.mark, self.before = folder / "died", before

    def after_step(self, trainer: Any) -> None:
        if trainer.rank == 1 and trainer.progress.batches == self.before and not self.mark.exists():
            self.mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)


def train(config: dict[str, Any]) -> None:
    folder = Path(config["folder"])
    ours = ranks.trainer("dropped")
    callbacks = [md.callbacks.RayReport(every=3), Dies(folder, config["dies"])]
    begun = folder / f"begun-{find_rank().rank}"
    begun.write_text(f"{begun.read_text() if begun.exists() else ''}.")
    ours.fit(ranks.batches(ours.rank), epochs=3, callbacks=callbacks)
    states: dict[str, Any] = dict(ours.store)
    np.savez(folder / f"states-{ours.rank}.npz", **states)


def main() -> None:
    import ray
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    folder, dies = sys.argv[1:]
    ray.init(
        address="local",
        num_cpus=2,
        include_dashboard=False,
        object_store_memory=128 << 20,
        _node_ip_address="127.0.0.1",
        runtime_env={"env_vars": {"PYTHONPATH": os.environ["PYTHONPATH"]}},
    )
    found = TorchTrainer(
        train,
        train_loop_config={"folder": folder, "dies": int(dies)},
        torch_config=TorchConfig(backend="gloo"),
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(
            storage_path=f"{folder}/ray", failure_config=FailureConfig(max_failures=2)
        ),
    ).fit()
    assert found.metrics is not None and found.metrics["epoch"] == 3, found


if __name__ == "__main__":
    main()
