"""``minidnn launch``: runs a script in several processes that train together."""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
import time
from typing import Any

from minidnn.cli.arguments import count
from minidnn.errors import MiniDNNError

HELP = "run a script in several processes that train together"
DESCRIPTION = """\
Starts a Python script once for each GPU of this machine, or --processes times, for training with
md.Trainer(..., distributed=True). When one process fails, all end.

    minidnn launch train.py --epochs 20
    minidnn launch --processes 2 train.py

torchrun, mpirun and srun start it on several machines. Exit code: that of the first process that
failed; 0 if none did."""

#: Seconds for which the other processes may run on once one has failed.
_SECONDS = 10.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--processes", type=count, help="how many (one for each GPU)")
    add("script", metavar="SCRIPT", help="a Python file")
    add("arguments", nargs=argparse.REMAINDER, metavar="ARGUMENT", help="of the script")


def run(options: argparse.Namespace) -> int:
    if not os.path.isfile(options.script):
        raise MiniDNNError(f"SCRIPT {options.script}: there is no such file")
    size = options.processes or _gpus()
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    command = [sys.executable, options.script, *options.arguments]
    processes: list[subprocess.Popen[Any]] = []
    try:
        for rank in range(size):
            variables = {
                **{"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size},
                **{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port - 1},
            }
            environment = {**os.environ, **{name: str(value) for name, value in variables.items()}}
            processes.append(subprocess.Popen(command, env=environment))
        return _wait(processes)
    finally:
        _end(processes)


def _gpus() -> int:
    from minidnn.backends.cuda.backend import CudaBackend

    if (reason := CudaBackend().unavailable()) is not None:
        raise MiniDNNError(f"there is no GPU ({reason}); --processes says how many there shall be")
    from minidnn.gpu import cupy

    return int(cupy().cuda.runtime.getDeviceCount())


def _wait(processes: list[subprocess.Popen[Any]]) -> int:
    """Waits for all processes; returns the exit code of the first that fails, after the others have
    ended or exceeded their time."""
    while True:
        codes = [each.poll() for each in processes]
        failed = [code for code in codes if code]
        if failed:
            deadline = time.monotonic() + _SECONDS
            while time.monotonic() < deadline and any(p.poll() is None for p in processes):
                time.sleep(0.05)
            return failed[0] if failed[0] > 0 else 128 - failed[0]
        if None not in codes:
            return 0
        time.sleep(0.05)


def _end(processes: list[subprocess.Popen[Any]]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        running = [each for each in processes if each.poll() is None]
        for each in running:
            each.send_signal(number)
        deadline = time.monotonic() + _SECONDS / 2
        while time.monotonic() < deadline and any(p.poll() is None for p in running):
            time.sleep(0.05)
