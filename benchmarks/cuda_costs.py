"""What minidnn costs on a GPU beside the kernels' time: compiling, memory, the host's part.

    python -m benchmarks.cuda_costs compile results.json --networks resnet50 densenet121 --runs 3
    python -m benchmarks.cuda_costs memory results.json
    python -m benchmarks.cuda_costs host results.json

``compile`` compiles with an empty cache, then ``--runs`` times with what that has left there, each
in a process of its own: seconds from the call of ``md.compile`` to an executable that runs, the
CUDA context made and the weights drawn before. Parts are seconds in which at least one thread was
in that part, so they may overlap; in ``engines`` stand the seconds of all threads in building
cuDNN's plans, engine by engine, and in ``problems`` what each configuration of each problem was
measured at, in the order in which it was tried.

``memory`` compares device memory with PyTorch's eager mode in both layouts: while running, and the
most at any time (for minidnn: with and without compiling).  ``host`` times the enqueueing of a
bound replay and of calls beside the bare launch of the CUDA graph, and each until it is done.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

from minidnn.measure import write_figures

HERE = Path(__file__).resolve()
BATCH = 128


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("compile", "memory", "host", "child"))
    parser.add_argument("results", type=Path)
    parser.add_argument("--networks", nargs="+", default=["resnet50"])
    parser.add_argument("--precision", default="float16")
    parser.add_argument("--batch", type=int, default=BATCH)
    parser.add_argument("--tune", default="quick")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--as", dest="part", default="")
    options = parser.parse_args()
    if options.what == "child":
        options.results.write_text(json.dumps(CHILDREN[options.part](options)))
        return
    data = json.loads(options.results.read_text()) if options.results.exists() else {}
    for name in options.networks:
        key = f"{name} {options.precision} {options.batch}"
        found = PARENTS[options.what](name, options)
        data.setdefault(options.what, {})[key] = found
        write_figures(options.results, data)
        for what, figures in found.items():
            print(key, what, shown(figures), flush=True)


def shown(figures: Any) -> str:
    if isinstance(figures, dict):
        few = {k: v for k, v in figures.items() if k not in ("problems", "engines")}
        return ", ".join(f"{k} {shown(v)}" for k, v in few.items())
    return f"{figures:.4g}" if isinstance(figures, float) else str(figures)


def child(part: str, name: str, options: argparse.Namespace, cache: str | None = None) -> Any:
    """What a part finds in a process of its own."""
    environment = dict(os.environ) | ({} if cache is None else {"MINIDNN_CACHE": cache})
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "results.json"
        command = [sys.executable, str(HERE), "child", str(results), "--as", part]
        command += ["--networks", name, "--precision", options.precision]
        command += ["--batch", str(options.batch), "--tune", options.tune]
        subprocess.run(command, env=environment, check=True)
        return json.loads(results.read_text())


# Compiling


def compile_times(name: str, options: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as cache:
        cold = child("compile", name, options, cache)
        warm = [child("compile", name, options, cache) for _ in range(options.runs)]
    for found in warm:
        del found["problems"]
    middle = sorted(warm, key=lambda found: float(found["seconds"]))[len(warm) // 2]
    return {"cold": cold, "warm": middle, "warm seconds": [found["seconds"] for found in warm]}


class Stopwatch:
    """Calls of some functions: from when to when, in any thread."""

    def __init__(self) -> None:
        self.spans: dict[str, list[tuple[float, float]]] = defaultdict(list)
        self._lock = threading.Lock()

    @contextmanager
    def span(self, label: str) -> Iterator[None]:
        begin = time.perf_counter()
        try:
            yield
        finally:
            with self._lock:
                self.spans[label].append((begin, time.perf_counter()))

    def wrap(self, owner: Any, name: str, label: Callable[..., str] | str) -> None:
        """Replaces a function of a module, or a class in it, by one that is timed."""
        inner = getattr(owner, name)

        def timed(*given: Any, **named: Any) -> Any:
            text = label if isinstance(label, str) else label(*given)
            with self.span(text):
                return inner(*given, **named)

        setattr(owner, name, timed)

    def seconds(self, label: str) -> float:
        """In which at least one call was under way."""
        total, until = 0.0, 0.0
        for begin, end in sorted(self.spans[label]):
            total += max(0.0, end - max(begin, until))
            until = max(until, end)
        return total


def child_compile(options: argparse.Namespace) -> dict[str, Any]:
    import cupy

    import minidnn as md
    from minidnn import compiler
    from minidnn.backends.cuda import backend, captured, constants, functions, lower, program
    from minidnn.backends.cuda.contraction import choice, tune
    from minidnn.cudnn import handle
    from minidnn.cudnn.graph import engines, planner

    cupy.zeros(1)
    cupy.cuda.get_current_stream().synchronize()
    net, shape = network(options)
    net.state_dict()  # draws the weights
    watch = Stopwatch()
    watch.wrap(compiler, "get_backend", "is there a device")
    watch.wrap(compiler, "graph_of", "graph")
    watch.wrap(compiler, "_precision", "precision")
    watch.wrap(backend.CudaBackend, "target", "figures of the device")
    watch.wrap(compiler, "make_plan", "plan")
    watch.wrap(compiler, "_check_supported", "what is supported")
    watch.wrap(compiler, "optimize", "passes")
    watch.wrap(lower, "lower_plan", "lowering")
    watch.wrap(constants, "_bits", "weights: folding, rounding, turning")
    watch.wrap(constants.Constants, "upload", "weights: waiting, copying")
    watch.wrap(functions, "compile_kernels", "NVRTC")
    watch.wrap(functions, "load", "loading NVRTC")
    watch.wrap(functions, "_module", "loading modules")
    watch.wrap(functions, "load_launches", "kernels")
    watch.wrap(choice.Choice, "launches", "texts of contractions")
    watch.wrap(program, "CudaProgram", "program")
    watch.wrap(program, "prepare", "preparing")
    watch.wrap(choice.Choice, "made", "choosing")
    watch.wrap(choice, "certain", "building ahead")
    watch.wrap(choice, "own", "measuring our kernels")
    watch.wrap(choice, "core_of", "building what is remembered")
    watch.wrap(handle, "Handle", "handles")
    watch.wrap(planner, "_try", "building plans")
    watch.wrap(engines, "execution_plan", lambda *given: f"engine {given[2].engine}")
    watch.wrap(engines, "_configs", "heuristics")
    watch.wrap(engines, "_default_proposals", "default proposals")
    watch.wrap(tune, "scratch_addresses", "scratch memory")
    watch.wrap(tune, "race", "measuring")
    watch.wrap(captured, "Instance", "capture")
    problems = record_problems(tune)
    begin = time.perf_counter()
    exe = md.compile(net, shape, device="cuda", precision=options.precision, tune=options.tune)
    cupy.cuda.Device().synchronize()
    total = time.perf_counter() - begin
    labels = [label for label in watch.spans if not label.startswith("engine ")]
    by_engine = {
        label: [len(spans), sum(e - b for b, e in spans), max(e - b for b, e in spans)]
        for label, spans in watch.spans.items()
        if label.startswith("engine ")
    }
    del exe
    return {
        "seconds": total,
        "parts": {label: watch.seconds(label) for label in labels},
        "plans": len(watch.spans["building plans"]),
        "engines": by_engine,
        "problems": problems,
    }


def record_problems(tune: Any) -> dict[str, list[Any]]:
    """What each configuration was measured at, by problem, in the order in which they were tried:
    our kernels first, then those that raced with cuDNN's; filled while problems are measured."""
    found: dict[str, list[Any]] = {}
    inner = tune._raced

    def raced(problem: Any, built: Any, tuning: Any) -> Any:
        ranked = inner(problem, built, tuning)
        times = {id(one.core): one.config.milliseconds for one in ranked}
        rows = [
            [
                str(one.config.algorithm),
                one.config.algorithm_name(problem),
                one.workspace,
                times.get(id(one.core)),
            ]
            for one in built
        ]
        found.setdefault(problem.describe(), []).append(rows)
        return ranked

    tune._raced = raced
    return found


def network(options: argparse.Namespace) -> tuple[Any, tuple[int, ...]]:
    from minidnn import models

    (name,) = options.networks
    size = 299 if name == "inception_v3" else 224
    return models.get_model(name), (options.batch, 3, size, size)


# Memory


def memory(name: str, options: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as cache:
        found = {
            "minidnn, compiling": child("memory", name, options, cache),
            "minidnn": child("memory", name, options, cache),
        }
    for part in ("eager", "eager-last"):
        found[part] = child(part, name, options)
    least = min(found[part]["most MB"] for part in ("eager", "eager-last"))
    found["of eager"] = {k: v["most MB"] / least for k, v in found.items() if "minidnn" in k}
    return found


class Watched:
    """Bytes of device memory in use over those at the beginning, asked for again and again."""

    def __init__(self) -> None:
        import cupy

        self._free = cupy.cuda.runtime.memGetInfo
        self._begin = self._free()[0]
        self.most = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def now(self) -> int:
        return int(self._begin - self._free()[0])

    def _watch(self) -> None:
        while not self._ended.wait(0.002):
            self.most = max(self.most, self.now())

    def end(self) -> dict[str, float]:
        now = self.now()
        self._ended.set()
        self._thread.join()
        return {"most MB": max(self.most, now) / 1e6, "at the end MB": now / 1e6}


def child_memory(options: argparse.Namespace) -> dict[str, Any]:
    """Memory with the input and output of a bound program, once it has run."""
    import cupy

    import minidnn as md

    cupy.zeros(1)
    net, shape = network(options)
    watched = Watched()
    dtype = {"float16": cupy.float16}.get(options.precision, cupy.float32)
    x = cupy.zeros(shape, dtype)
    exe = md.compile(net, shape, device="cuda", precision=options.precision, tune=options.tune)
    y = exe(x)
    cupy.cuda.Device().synchronize()
    del y
    cupy.get_default_memory_pool().free_all_blocks()
    found: dict[str, Any] = watched.end()
    program: Any = exe.program
    found["held MB"] = program.bytes / 1e6
    return found


def eager(options: argparse.Namespace, last: bool) -> dict[str, Any]:
    import torch
    import torchvision

    torch.backends.cudnn.benchmark = True
    (name,) = options.networks
    _, shape = network(options)
    torch.zeros(1, device="cuda")
    watched = Watched()
    dtype = {"float16": torch.float16}.get(options.precision, torch.float32)
    layout = torch.channels_last if last else torch.contiguous_format
    net = getattr(torchvision.models, name)(weights=None).eval()
    net = net.to("cuda", dtype).to(memory_format=layout)
    x = torch.zeros(shape, device="cuda", dtype=dtype).to(memory_format=layout)
    with torch.inference_mode():
        net(x)  # measures algorithms, in workspaces of any size
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        net(x)
        torch.cuda.synchronize()
    found: dict[str, Any] = watched.end()
    found["measuring MB"] = found["most MB"]
    found["most MB"] = torch.cuda.max_memory_reserved() / 1e6
    found["allocated MB"] = torch.cuda.max_memory_allocated() / 1e6
    return found


# The host's part


def host(name: str, options: argparse.Namespace) -> dict[str, Any]:
    return {"microseconds": child("host", name, options)}


def child_host(options: argparse.Namespace) -> dict[str, Any]:
    import cupy
    import torch

    import minidnn as md

    net, shape = network(options)
    exe = md.compile(net, shape, device="cuda", precision=options.precision, tune=options.tune)
    dtype = {"float16": cupy.float16}.get(options.precision, cupy.float32)
    x = cupy.zeros(shape, dtype)
    run = exe.bind(x)
    launch, executable = cupy.cuda.runtime.graphLaunch, run._executable
    stream = cupy.cuda.get_current_stream()
    tensor = torch.as_tensor(x, device="cuda")

    def bare() -> None:
        launch(executable, stream.ptr)

    def each(call: Callable[[], object], count: int = 50) -> float:
        stream.synchronize()
        begin = time.perf_counter()
        for _ in range(count):
            call()
        taken = time.perf_counter() - begin
        stream.synchronize()
        return 1e6 * taken / count

    def waited(call: Callable[[], object], count: int = 50) -> float:
        def one() -> None:
            call()
            stream.synchronize()

        return each(one, count)

    def elsewhere(arrays: Sequence[Any]) -> Callable[[], None]:
        """Calls with one array after the other, whose results live on for a while."""
        given, kept = cycle(arrays), deque[Any](maxlen=7)
        return lambda: kept.append(exe(next(given)))

    calls = {
        "bound": run,
        "bare launch": bare,
        "call": lambda: exe(x),
        "call, arrays elsewhere each time": elsewhere([x.copy() for _ in range(3)]),
        "call on a tensor": lambda: exe(tensor),
        "call on a tensor, elsewhere each time": elsewhere([tensor.clone() for _ in range(3)]),
    }
    times: dict[str, list[float]] = defaultdict(list)
    for _ in range(30):
        for what, call in calls.items():
            times[what].append(each(call))
            times[f"{what}, waited for"].append(waited(call))
    return {what: statistics.median(found) for what, found in times.items()}


PARENTS = {"compile": compile_times, "memory": memory, "host": host}
CHILDREN: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "compile": child_compile,
    "memory": child_memory,
    "eager": partial(eager, last=False),
    "eager-last": partial(eager, last=True),
    "host": child_host,
}

if __name__ == "__main__":
    main()
