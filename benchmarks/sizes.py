"""Named sizes: first results of new batches, and their own programs beside static ones.

python -m benchmarks.sizes resnet18 resnet50 --device cuda --precision bfloat16
python -m benchmarks.sizes densenet121 --batches 1 3 8 --threads 2
python -m benchmarks.sizes resnet50 --planes 224x224 160x256 333x200 --threads 2

A line of JSON for each network and batch: ``beyond`` is what the first call took beyond the median
of the static program, ``parts`` what a call in parts takes once all is made (both milliseconds),
``ratio`` the time of the batch's own program over that of a static one, in turn.  Then batches of
random sizes are compared with the static program of all rows, and what is kept is told.

With ``--planes`` pictures of these rows and columns are measured instead, one at a time:
``any_size`` is the time by kernels of any size, which give first results, over a static program's.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from typing import Any

import numpy as np

import minidnn as md
from minidnn import models
from minidnn.dynamic.executable import DynamicExecutable
from minidnn.measure import interleaved


class Arrays:
    """Batches where the device computes, and their end."""

    def __init__(self, device: str) -> None:
        self.on_gpu = device == "cuda"
        self.random = np.random.default_rng(0)

    def make(self, shape: Sequence[int]) -> Any:
        """Random numbers."""
        x = self.random.standard_normal(shape, dtype=np.float32)
        if not self.on_gpu:
            return x
        import cupy

        return cupy.asarray(x)

    def seconds(self, call: Callable[[], Any]) -> float:
        """What a call takes until its result is there."""
        self.wait()
        begin = time.perf_counter()
        call()
        self.wait()
        return time.perf_counter() - begin

    def wait(self) -> None:
        """Returns when the device is idle."""
        if self.on_gpu:
            import cupy

            cupy.cuda.get_current_stream().synchronize()


def compiled(
    name: str, batch: Any, given: argparse.Namespace, plane: Sequence[Any] = (), **more: Any
) -> Any:
    """A network of the zoo, with the same weights each time."""
    if given.threads is not None:
        more["threads"] = given.threads
    shape = (batch, 3, *(plane or (given.size, given.size)))
    net = getattr(models, name)()
    return md.compile(net, shape, device=given.device, precision=given.precision, **more)


def study(name: str, given: argparse.Namespace, late: Callable[[], bool]) -> None:
    """Measures a network."""
    arrays = Arrays(given.device)
    whole = partial(compiled, name, md.Dim("batch", 1, given.most), given, background=True)
    static = {}
    for rows in given.batches:
        if late():
            return
        static[rows] = compiled(name, rows, given)
    exe = whole(keep=len(given.batches) + 8)
    assert isinstance(exe, DynamicExecutable)
    arrays.seconds(partial(exe, arrays.make((1, 3, given.size, given.size))))
    for rows in given.batches:
        x = arrays.make((rows, 3, given.size, given.size))
        arrays.seconds(partial(static[rows], x))
        steady = median(arrays.seconds(partial(static[rows], x)) for _ in range(given.rounds))
        first = arrays.seconds(partial(exe, x))
        exe.wait()
        parts = None if rows == 1 else arrays.seconds(partial(exe, x))
        exe.wait()
        exe.warm([rows])
        own = partial(arrays.seconds, partial(exe, x))
        whole_run = partial(arrays.seconds, partial(static[rows], x))
        own(), whole_run()
        taken = interleaved({"own": own, "static": whole_run}, given.rounds)
        record = {
            "network": name,
            "batch": rows,
            "ms": 1e3 * steady,
            "beyond": 1e3 * (first - steady),
            "parts": parts and 1e3 * parts,
            "ratio": median(taken["own"]) / median(taken["static"]),
        }
        print(json.dumps(record), flush=True)
        if late():
            return
    many(exe, static, arrays, given, late)


def study_planes(name: str, given: argparse.Namespace, late: Callable[[], bool]) -> None:
    """Measures a network on pictures of several sizes."""
    arrays = Arrays(given.device)
    most = max(size for plane in given.planes for size in plane)
    dims = [md.Dim(axis, 32, max(512, most)) for axis in ("height", "width")]
    exe = compiled(name, 1, given, dims, keep=len(given.planes) + 2)
    exe(arrays.make((1, 3, 32, 32)))
    for plane in given.planes:
        if late():
            return
        x = arrays.make((1, 3, *plane))
        made = {"static": compiled(name, 1, given, plane)}
        if given.device == "cpu":
            alike = {"any_size": True, "strategy": "contractions"}
            made["any_size"] = compiled(name, 1, given, plane, **alike)
        calls = {how: partial(arrays.seconds, partial(each, x)) for how, each in made.items()}
        for call in calls.values():
            call()
        taken = {how: median(each) for how, each in interleaved(calls, given.rounds).items()}
        first = arrays.seconds(partial(exe, x))
        exe(x)
        exe.wait()
        own = interleaved({"own": partial(arrays.seconds, partial(exe, x)), **calls}, given.rounds)
        record = {
            "network": name,
            "plane": plane,
            "ms": 1e3 * taken["static"],
            "beyond": 1e3 * (first - taken["static"]),
            "any_size": taken.get("any_size", 0) / taken["static"] or None,
            "ratio": median(own["own"]) / median(own["static"]),
        }
        print(json.dumps(record), flush=True)


def plane_of(text: str) -> tuple[int, int]:
    """Rows and columns as in 224x160."""
    rows, columns = map(int, text.split("x"))
    return rows, columns


def many(
    exe: DynamicExecutable,
    static: dict[int, Any],
    arrays: Arrays,
    given: argparse.Namespace,
    late: Callable[[], bool],
) -> None:
    """Batches of random sizes: whether they are right, and what is kept after them."""
    most = max(static)
    x = arrays.make((most, 3, given.size, given.size))
    right = np.asarray(_on_host(static[most](x)))
    worst, done = 0.0, 0
    for rows in arrays.random.integers(1, most + 1, given.random).tolist():
        y = np.asarray(_on_host(exe(x[:rows])))
        worst = max(worst, float(np.abs(y - right[:rows]).max() / np.abs(right).max()))
        done += 1
        if late():
            break
    exe.wait()
    counts = exe.counts
    told = {"random": done, "worst": worst, "kept": counts.kept, "compiled": counts.compiled}
    told |= {"run_bytes": counts.run_bytes, "weight_bytes": counts.weight_bytes}
    print(json.dumps(told), flush=True)


def _on_host(array: Any) -> Any:
    return array.get() if hasattr(array, "get") else array


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("networks", nargs="+", help="of the zoo")
    add("--device", default="cpu", help="(cpu)")
    add("--precision", help="(the device's first)")
    add("--batches", type=int, nargs="+", default=[3, 5, 8, 16, 32], help="(3 5 8 16 32)")
    add("--most", type=int, default=64, help="the largest batch (64)")
    add("--size", type=int, default=224, help="rows and columns of pictures (224)")
    add("--planes", type=plane_of, nargs="+", help="rows x columns of pictures, such as 224x160")
    add("--threads", type=int, help="of the CPU")
    add("--rounds", type=int, default=15, help="of each comparison (15)")
    add("--random", type=int, default=1000, help="batches of random sizes in the end (1000)")
    add("--seconds", type=float, default=3600.0, help="after which nothing new begins (3600)")
    given = parser.parse_args()
    end = time.perf_counter() + given.seconds
    for name in given.networks:
        measured = study_planes if given.planes else study
        measured(name, given, lambda: time.perf_counter() > end)
    return 0


if __name__ == "__main__":
    sys.exit(main())
