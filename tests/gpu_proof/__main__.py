"""Runs all GPU tests and keeps the proof that they passed.

python -m tests.gpu_proof                       is this tree the proven one?
python -m tests.gpu_proof run [--shard K/N]     run them on this machine, write the proof
python -m tests.gpu_proof merge FILE...         keep a proof, or one of those of all shards
python -m tests.gpu_proof slow FOLDER           what took long, by file
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from minidnn.runtime.cores import usable_cores
from tests.gpu_proof.record import PROOF, Refused, merged, read, state, told, write
from tests.gpu_proof.slow import table
from tests.gpu_proof.sources import ROOT, gpu_test_files


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    commands = parser.add_subparsers(dest="command")
    run = commands.add_parser("run", help="run all GPU tests on this machine")
    run.add_argument("--proof-out", type=Path, default=PROOF)
    run.add_argument("--durations-out", type=Path)
    run.add_argument("--shard", default="1/1", help="K/N: every N-th test, from the K-th on")
    run.add_argument("--workers", type=int, default=usable_cores())
    run.add_argument("rest", nargs="*", help="arguments of pytest, behind --")
    merge = commands.add_parser("merge", help="make one proof of those of all shards")
    merge.add_argument("files", type=Path, nargs="+")
    merge.add_argument("--proof-out", type=Path, default=PROOF)
    slow = commands.add_parser("slow", help="what took long, by file")
    slow.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    if arguments.command == "run":
        return run_tests(arguments)
    if arguments.command == "merge":
        return keep(arguments.files, arguments.proof_out)
    print(state() if arguments.command is None else table(arguments.folder))
    return 0


def run_tests(arguments: argparse.Namespace) -> int:
    """Runs the tests in as many workers as there are cores; returns pytest's exit status."""
    plugins = ["-p", "tests.cuda.turns", "-p", "tests.gpu_proof.plugin", "-p", "no:benchmark"]
    command = [sys.executable, "-m", "pytest", *plugins, "-q", "-m", "gpu"]
    command += ["-n", str(arguments.workers), "--dist", "worksteal"]
    command += ["--proof-out", str(arguments.proof_out.resolve()), "--shard", arguments.shard]
    if arguments.durations_out is not None:
        command += ["--durations-out", str(arguments.durations_out.resolve())]
    # A worker has one core; libraries whose threads spin would keep it from others.
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    command += [*arguments.rest, *gpu_test_files()]
    return subprocess.call(command, cwd=ROOT, env=environment)


def keep(files: list[Path], out: Path) -> int:
    """Writes one proof of those of all shards; returns the command's exit status."""
    try:
        proof = merged([read(file) for file in files])
    except Refused as why:
        print(f"No proof of the GPU tests is written: {why}.", file=sys.stderr)
        return 1
    write(proof, out)
    print(f"{told(proof)}.\nNow run python -m benchmarks.report")
    return 0


if __name__ == "__main__":
    sys.exit(main())
