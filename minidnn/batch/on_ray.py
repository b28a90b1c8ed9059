"""Parts on the machines of a Ray cluster, or on this one alone."""

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

#: Objects that Ray keeps are a few bytes a part here: files are read and written by workers.
_OBJECT_STORE = 128 << 20


@dataclass(frozen=True)
class WorkerResources:
    """What workers run on.

    Attributes:
        address: of a cluster, as ``ray.init`` takes it; None for this machine alone.
        cores: that each worker has.
        workers: at most; None for as many as there is room for.
        device: "cuda" gives each worker a GPU.
    """

    address: str | None
    cores: int
    workers: int | None
    device: str | None


@contextmanager
def started(resources: WorkerResources) -> Iterator[Any]:
    """Ray, connected or started, until the block ends.

    DeviceError if it is not installed or cannot be reached.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_DATA_DISABLE_PROGRESS_BARS", "1")
    if resources.address is None:
        # On Linux, too, it has Ray listen on the loopback alone, as nobody else shall join.
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    # GPUs are hidden from workers that asked for none, as it will be in Ray itself.
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
    with redirect_stdout(sys.stderr):  # where Ray tells of workers that died
        try:
            yield ray
        finally:
            ray.shutdown()


def run_on_ray(
    ray: Any, resources: WorkerResources, worker: Worker, parts: list[FilePart]
) -> Iterator[Entry]:
    """What became of the parts, as workers finish them.

    Ray starts a worker that is killed anew, and has its part computed again, as often as it takes;
    the worker itself says when that is enough.
    """
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.execution_options.verbose_progress = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    room = _room(ray, resources)
    rows = [{"number": p.number, "begin": p.begin, "end": p.end} for p in parts]
    # A block is what Ray computes again after a worker was killed: one part.
    dataset = ray.data.from_items(rows, override_num_blocks=len(rows)).map_batches(
        _Actor,
        fn_constructor_args=(worker,),
        batch_size=1,
        num_cpus=room.cores,
        num_gpus=1 if resources.device == "cuda" else 0,
        compute=ray.data.ActorPoolStrategy(
            min_size=1,
            max_size=min(room.workers or 1, len(parts)),
            # Ray would queue parts at a worker that others could compute.
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
    """How many cores a worker gets, and how many workers there may be at most."""
    have = ray.cluster_resources()
    cores = int(have.get("CPU", 1))
    each = min(resources.cores, cores)
    most = cores // each
    if resources.device == "cuda":
        gpus = int(have.get("GPU", 0))
        if not gpus:
            raise DeviceError("--device cuda: Ray knows no GPU; ray.cluster_resources() tells all")
        each, most = min(each, max(1, cores // gpus)), gpus
    return WorkerResources(
        resources.address, each, min(most, resources.workers or most), resources.device
    )


class _Actor:
    """What Ray starts in each of its processes."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[str]]:
        names = ("number", "begin", "end")
        rows = zip(*(batch[name].tolist() for name in names), strict=True)
        return {"entry": [json.dumps(self._worker(FilePart(*row))) for row in rows]}
