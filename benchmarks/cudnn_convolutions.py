"""Convolutions of ResNet-50 and DenseNet-121: what we pick, the best of everything, PyTorch.

    python -m benchmarks.cudnn_convolutions FOLDER [--seconds 500] [--batches 1,128] ...

For every distinct convolution all plans of cuDNN's graph API and all fixed-function algorithms
are timed as ``minidnn.cudnn.choice`` does it, and the fastest is picked.  Then the pick, the next
best, the best of the fixed functions and PyTorch with ``cudnn.benchmark`` are timed again in
turn: in that second measurement the pick is compared with the best.  All are captured into CUDA
graphs where they are short, so that Python's launch time does not count for anybody.

One JSON file per case goes to FOLDER; cases that are there already are not measured again.  With
``--summary FILE`` everything in FOLDER is put into one file and a table is printed.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

FINALISTS = 5
ROUNDS = 7
BUILDERS = 3
AHEAD = 6


@dataclass(frozen=True)
class Layer:
    """Input channels and height, filters, window, stride, padding."""

    channels: int
    size: int
    filters: int
    window: int
    stride: int
    padding: int


@dataclass(frozen=True)
class Setting:
    """``name`` of the precision and layout."""

    name: str
    dtype: str
    layout: str
    tf32: bool


SETTINGS = (
    Setting("fp16-nhwc", "float16", "NHWC", False),
    Setting("tf32-nhwc", "float32", "NHWC", True),
    Setting("fp32-nhwc", "float32", "NHWC", False),
    Setting("fp32-nchw", "float32", "NCHW", False),
)


def resnet50() -> Iterator[Layer]:
    """The convolutions in order (torchvision's v1.5: the stride is in the 3x3)."""
    yield Layer(3, 224, 64, 7, 2, 3)
    channels, size = 64, 56
    for width, blocks, first in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for block in range(blocks):
            stride = first if block == 0 else 1
            yield Layer(channels, size, width, 1, 1, 0)
            yield Layer(width, size, width, 3, stride, 1)
            if block == 0:
                yield Layer(channels, size, 4 * width, 1, stride, 0)
            size //= stride
            yield Layer(width, size, 4 * width, 1, 1, 0)
            channels = 4 * width


def densenet121() -> Iterator[Layer]:
    """The convolutions in order."""
    yield Layer(3, 224, 64, 7, 2, 3)
    channels, size = 64, 56
    for number, layers in enumerate((6, 12, 24, 16)):
        for _ in range(layers):
            yield Layer(channels, size, 128, 1, 1, 0)
            yield Layer(128, size, 32, 3, 1, 1)
            channels += 32
        if number < 3:
            yield Layer(channels, size, channels // 2, 1, 1, 0)
            channels, size = channels // 2, size // 2


NETS: dict[str, Callable[[], Iterator[Layer]]] = {"resnet50": resnet50, "densenet121": densenet121}


def name_of(layer: Layer, setting: Setting, batch: int) -> str:
    sizes = "_".join(str(value) for value in asdict(layer).values())
    return f"{setting.name}_b{batch}_{sizes}"


def arrays_of(layer: Layer, setting: Setting, batch: int) -> tuple[Any, Any, Any]:
    """Random images and filters, and room for the output, as CuPy arrays in NCHW order."""
    import cupy

    out = (layer.size + 2 * layer.padding - layer.window) // layer.stride + 1

    def array(shape: tuple[int, int, int, int]) -> Any:
        n, c, h, w = shape
        memory = (n, h, w, c) if setting.layout == "NHWC" else shape
        values = cupy.random.standard_normal(math.prod(shape), dtype=cupy.float32) * 0.1
        made = values.astype(setting.dtype).reshape(memory)
        return made.transpose(0, 3, 1, 2) if setting.layout == "NHWC" else made

    x = array((batch, layer.channels, layer.size, layer.size))
    w = array((layer.filters, layer.channels, layer.window, layer.window))
    return x, w, array((batch, layer.filters, out, out))


def torch_contestant(x: Any, w: Any, layer: Layer, setting: Setting) -> Any:
    """PyTorch on the same memory, captured by PyTorch's own means."""
    import cupy
    import torch

    from minidnn.cudnn.graph.timing import Contestant

    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = setting.tf32
    pointer = cupy.cuda.get_current_stream().ptr
    images, filters = torch.from_dlpack(x), torch.from_dlpack(w)

    def on_our_stream() -> Any:
        return torch.cuda.stream(torch.cuda.ExternalStream(pointer))

    def run() -> None:
        with on_our_stream(), torch.inference_mode():
            torch.nn.functional.conv2d(images, filters, None, layer.stride, layer.padding)

    def repeat(count: int) -> Callable[[], object]:
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        # Other threads build plans meanwhile, which must not spoil the capture.
        with torch.inference_mode(), torch.cuda.graph(graph, capture_error_mode="thread_local"):
            for _ in range(count):
                torch.nn.functional.conv2d(images, filters, None, layer.stride, layer.padding)

        def start() -> None:
            with on_our_stream():
                graph.replay()

        return start

    return Contestant(run, repeat)


def build(layer: Layer, setting: Setting, batch: int) -> tuple[Any, Any, list[Any]]:
    """Images, filters, and everything that can compute their convolution."""
    import cupy

    from minidnn.cudnn import choice
    from minidnn.cudnn.graph import Constraints

    x, w, y = arrays_of(layer, setting, batch)
    problem = choice.Problem(
        "forward",
        x,
        w,
        y,
        padding=layer.padding,
        stride=layer.stride,
        constraints=Constraints(tf32=setting.tf32),
    )
    found = choice.candidates(problem)
    cupy.cuda.get_current_stream().synchronize()
    return x, w, found


def measure(layer: Layer, setting: Setting, batch: int, built: Any) -> dict[str, Any]:
    """One case: the pick, the best and PyTorch in milliseconds, and what they are."""
    from minidnn.cudnn import workspace
    from minidnn.cudnn.graph.timing import Contestant, race, timing_stream

    x, w, found = built
    begin = time.perf_counter()
    times = race([Contestant(one.run) for one in found])
    order = sorted((t, i) for i, t in enumerate(times) if t is not None)
    fixed = [i for _, i in order if found[i].alternative.family == "fixed"][:1]
    finalists = list(dict.fromkeys([i for _, i in order[:FINALISTS]] + fixed))
    raced = time.perf_counter()
    contestants = [Contestant(found[i].run) for i in finalists]
    with timing_stream():
        contestants.append(torch_contestant(x, w, layer, setting))
    again = race(contestants, rounds=ROUNDS, margin=math.inf, finalists=len(contestants))
    ours = [(t, i) for t, i in zip(again[:-1], finalists, strict=True) if t is not None]
    best_time, best = min(ours)
    workspace.release()
    return {
        "layer": asdict(layer),
        "setting": setting.name,
        "batch": batch,
        "pick_ms": ours[0][0],
        "best_ms": best_time,
        "torch_ms": again[-1],
        "first_heuristic_ms": times[0],
        "pick": found[finalists[0]].alternative.name("forward"),
        "pick_workspace": found[finalists[0]].alternative.workspace,
        "best": found[best].alternative.name("forward"),
        "best_fixed_ms": next((t for t, i in ours if i in fixed), None),
        "candidates": len(order),
        "finalists": [(found[i].alternative.name("forward"), t) for t, i in ours],
        "seconds": {
            "race": raced - begin,
            "verify": time.perf_counter() - raced,
        },
    }


def machine() -> dict[str, str]:
    import cupy
    import torch

    from minidnn.cudnn import library

    properties = cupy.cuda.runtime.getDeviceProperties(0)
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "-i", "0"]
    driver = subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip()
    return {
        "card": properties["name"].decode(),
        "driver": driver,
        "driver_cuda": str(cupy.cuda.runtime.driverGetVersion()),
        "runtime_cuda": str(cupy.cuda.runtime.runtimeGetVersion()),
        "cudnn": library.version_text(library.version()),
        "torch_cudnn": str(torch.backends.cudnn.version()),
        "cupy": cupy.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def run(
    folder: Path, nets: list[str], settings: list[Setting], batches: list[int], end: float
) -> int:
    """Measures what is missing until time is up; returns how many cases are left."""
    import cupy

    folder.mkdir(parents=True, exist_ok=True)
    # The threads that build give way to the one that measures.
    sys.setswitchinterval(2e-4)
    (folder / "machine.json").write_text(json.dumps(machine(), indent=1))
    wanted = [
        (layer, setting, batch)
        for net in nets
        for setting in settings
        for batch in batches
        for layer in dict.fromkeys(NETS[net]())
    ]
    missing = [
        case for case in dict.fromkeys(wanted) if not (folder / f"{name_of(*case)}.json").exists()
    ]
    # Plans of the next cases are built on other threads while one is timed.
    ahead: deque[Future[Any]] = deque()
    pool = ThreadPoolExecutor(BUILDERS)
    for number, case in enumerate(missing):
        if time.monotonic() > end:
            pool.shutdown(cancel_futures=True)
            return len(missing) - number
        for later in missing[number + len(ahead) : number + AHEAD]:
            ahead.append(pool.submit(build, *later))
        result = measure(*case, ahead.popleft().result())
        (folder / f"{name_of(*case)}.json").write_text(json.dumps(result))
        print(
            f"{number + 1}/{len(missing)} {name_of(*case)}: pick {result['pick_ms']:.4f} "
            f"best {result['best_ms']:.4f} torch {result['torch_ms']:.4f} ms, {result['pick']}, "
            f"{sum(result['seconds'].values()):.2f} s",
            flush=True,
        )
        if number % 20 == 19:
            cupy.get_default_memory_pool().free_all_blocks()
    pool.shutdown()
    return 0


def summarise(folder: Path, target: Path | None) -> None:
    """Prints sums over the layers of each net, and writes all cases into one file."""
    cases = {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*_b*.json"))}
    rows = []
    for net, layers in NETS.items():
        for setting in SETTINGS:
            for batch in sorted({case["batch"] for case in cases.values()}):
                names = [name_of(layer, setting, batch) for layer in layers()]
                if not all(name in cases for name in names):
                    continue
                total = {
                    key: sum(cases[name][key] for name in names)
                    for key in ("pick_ms", "best_ms", "torch_ms", "first_heuristic_ms")
                }
                rows.append({"net": net, "setting": setting.name, "batch": batch, **total})
    if target is not None:
        about = json.loads((folder / "machine.json").read_text())
        for case in cases.values():
            for detail in ("layer", "setting", "batch", "finalists", "seconds"):
                del case[detail]  # part of the name, or only of interest in FOLDER
        lines = [f"{json.dumps(name)}: {json.dumps(case)}" for name, case in cases.items()]
        head = f'"machine": {json.dumps(about)},\n"sums": {json.dumps(rows)}'
        target.write_text("{" + head + ',\n"cases": {\n' + ",\n".join(lines) + "\n}}\n")
    print("| net | setting | batch | pick | best of all | pick / best | PyTorch | pick / PyTorch |")
    print("|---|---|---|---|---|---|---|---|")
    for row in rows:
        pick, best, torch = row["pick_ms"], row["best_ms"], row["torch_ms"]
        print(
            f"| {row['net']} | {row['setting']} | {row['batch']} | {pick:.3f} | {best:.3f} | "
            f"{pick / best:.3f} | {torch:.3f} | {pick / torch:.3f} |"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--nets", default=",".join(NETS))
    parser.add_argument("--settings", default=",".join(s.name for s in SETTINGS))
    parser.add_argument("--batches", default="1,128")
    parser.add_argument("--seconds", type=float, default=math.inf)
    parser.add_argument("--summary", type=Path)
    given = parser.parse_args()
    settings = [s for s in SETTINGS if s.name in given.settings.split(",")]
    batches = [int(value) for value in given.batches.split(",")]
    if given.seconds > 0:
        end = time.monotonic() + given.seconds
        left = run(given.folder, given.nets.split(","), settings, batches, end)
        if left:
            print(f"{left} cases are left: run the same command again", file=sys.stderr)
    summarise(given.folder, given.summary)
    return 0


if __name__ == "__main__":
    sys.exit(main())
