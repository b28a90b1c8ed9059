"""The executor of a run: computes parts on a Ray cluster, or on this machine alone.

Ray Data maps parts over a pool of actors, each with its copy of the worker.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from typing import Any

from minidnn.batch.files import FilePart
from minidnn.batch.manifest import BatchError, Entry, Worker
from minidnn.errors import DeviceError

#: Bytes of Ray's object store.  Its objects have a few bytes per part here, since workers read and
#: write the files themselves.
_OBJECT_STORE = 128 << 20


@dataclass(frozen=True)
class WorkerResources:
    """The resources that workers run on.

    Attributes:
        address: the cluster's address, as ``ray.init`` takes it; None for this machine alone.
        cores: CPU cores of each worker.
        workers: the most workers; None for as many as cores or GPUs allow.
        device: "cuda" gives each worker a GPU of its own.
    """

    address: str | None
    cores: int
    workers: int | None
    device: str | None


@contextmanager
def started(resources: WorkerResources) -> Iterator[Any]:
    """Connects to a Ray cluster, or starts Ray here, and yields the module until the block ends.

    DeviceError if Ray is not installed or cannot be reached.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_DATA_DISABLE_PROGRESS_BARS", "1")
    if resources.address is None:
        # Makes Ray listen on the loopback alone, on Linux, too: no other machine shall join.
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    # Hides GPUs from workers that asked for none, as later versions of Ray do by default.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise DeviceError(
            f"minidnn batch needs the package {error.name!r}: pip install 'minidnn[batch]'"
        ) from error
    quiet: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    try:
        if resources.address is None:
            ray.init(
                address="local",
                num_cpus=len(os.sched_getaffinity(0)),
                include_dashboard=False,
                object_store_memory=_OBJECT_STORE,
                _node_ip_address="127.0.0.1",
                **quiet,
            )
        else:
            ray.init(address=resources.address, **quiet)
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        where = "here" if resources.address is None else f"at --address {resources.address}"
        text = " ".join(str(error).split())[:300]
        raise DeviceError(f"Ray cannot be used {where}: {text}") from error
    with redirect_stdout(sys.stderr):  # Ray prints messages about dead workers to stdout
        try:
            yield ray
        finally:
            ray.shutdown()


def run_on_ray(
    ray: Any, resources: WorkerResources, worker: Worker, parts: list[FilePart]
) -> Iterator[Entry]:
    """Computes parts on Ray and yields the entry of each, as workers finish them.

    Ray restarts a worker that was killed and computes its part again, without a limit; the worker
    itself counts attempts and gives up (:class:`minidnn.batch.manifest.Worker`).
    """
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.execution_options.verbose_progress = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    room = _room(ray, resources)
    rows = [{"number": p.number, "begin": p.begin, "end": p.end} for p in parts]
    # Ray computes a block again after a worker was killed, so a block is one part.
    dataset = ray.data.from_items(rows, override_num_blocks=len(rows)).map_batches(
        _Actor,
        fn_constructor_args=(worker,),
        batch_size=1,
        num_cpus=room.cores,
        num_gpus=1 if resources.device == "cuda" else 0,
        compute=ray.data.ActorPoolStrategy(
            min_size=1,
            max_size=min(room.workers or 1, len(parts)),
            # With more, Ray would queue parts at a busy worker while others are idle.
            max_tasks_in_flight_per_actor=1,
        ),
    )
    try:
        for batch in dataset.iter_batches(batch_size=None, prefetch_batches=0):
            yield from map(json.loads, batch["entry"])
    except ray.exceptions.RayError as error:
        cause = getattr(error, "cause", None) or error
        text = " ".join(str(cause).split())[-600:]
        raise BatchError(f"a worker failed: {type(cause).__name__}: {text}") from error


def _room(ray: Any, resources: WorkerResources) -> WorkerResources:
    """Returns the resources with the cores of each worker and the most workers that fit Ray's."""
    available = ray.cluster_resources()
    cores = int(available.get("CPU", 1))
    worker_cores = min(resources.cores, cores)
    most = cores // worker_cores
    if resources.device == "cuda":
        gpus = int(available.get("GPU", 0))
        if not gpus:
            raise DeviceError("--device cuda: Ray knows no GPU; ray.cluster_resources() tells all")
        worker_cores, most = min(worker_cores, max(1, cores // gpus)), gpus
    return WorkerResources(
        resources.address, worker_cores, min(most, resources.workers or most), resources.device
    )


class _Actor:
    """A Ray actor around a worker: maps a batch of parts to their entries as JSON."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[str]]:
        names = ("number", "begin", "end")
        rows = zip(*(batch[name].tolist() for name in names), strict=True)
        return {"entry": [json.dumps(self._worker(FilePart(*row))) for row in rows]}
