"""Networks in int8 beside OpenVINO and ONNX Runtime, on the CPU, all on one file with QDQ.

    python -m benchmarks.int8 [--networks resnet50 mobilenet_v2] [--batch 1 16] [--threads 2]

``md.quantize`` makes the file, from random weights whose normalizations are calibrated on noise; it
is kept in ``--folder``, and so are kernels in the cache: a second run only measures.  The three
take turns in one process, in bursts with a rest before each, in which threads of the one before
stop spinning.  A ratio is a peer's time over minidnn's, the median over rounds: above 1 minidnn is
faster.  On one thread a burst takes what the process used of a processor, else what a clock tells.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import minidnn as md
from minidnn import models
from minidnn.bench.networks import noise, write_whole
from minidnn.cache import root
from minidnn.measure.turns import orders

ZOO = (
    *("alexnet", "densenet121", "inception_v3", "resnet18", "resnet50", "squeezenet1_1"),
    "vgg16_bn",
)
TODAY = (
    *("efficientnet_b0", "mobilenet_v2", "mobilenet_v3_large", "resnext50_32x4d"),
    "shufflenet_v2_x1_0",
)
PEERS = ("openvino", "onnxruntime")
ROUNDS = 9
BURST_SECONDS, REST_SECONDS = 0.12, 0.03


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--networks", nargs="+", default=[*ZOO, *TODAY])
    parser.add_argument("--batch", nargs="+", type=int, default=[1, 16])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--folder", type=Path, default=root() / "bench" / "int8")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    lines = [measured(n, b, options) for b in options.batch for n in options.networks]
    print()
    print("| network | batch | minidnn, ms | OpenVINO | ONNX Runtime | deviation |")
    print("|---|---|---|---|---|---|")
    for line in lines:
        print(
            f"| {line['network']} | {line['batch']} | {line['minidnn'] * 1e3:.2f} | "
            f"{line['openvino']:.2f} | {line['onnxruntime']:.2f} | {line['deviation']:.1e} |"
        )
    for peer in PEERS:
        ratios = [line[peer] for line in lines]
        mean = statistics.geometric_mean(ratios)
        print(
            f"over {peer}: geometric mean {mean:.2f}, least {min(ratios):.2f}, {len(ratios)} cells"
        )
    if options.json is not None:
        options.json.write_text(json.dumps(lines, indent=1) + "\n")


def measured(name: str, batch: int, options: argparse.Namespace) -> dict[str, Any]:
    """One cell: seconds of minidnn, and the ratios of the peers."""
    path = quantized(name, batch, options.folder)
    x = noise((batch, 3, *[side_of(name)] * 2), 1)
    engines: dict[str, tuple[Callable[[], Any], Callable[[], np.ndarray]]] = {
        "minidnn": _minidnn(path, x, options.threads),
        "openvino": _openvino(path, x, options.threads),
        "onnxruntime": _onnxruntime(path, x, options.threads),
    }
    counts = {each: _runs(run) for each, (run, _) in engines.items()}
    clock = time.process_time if options.threads == 1 else time.perf_counter
    seconds: dict[str, list[float]] = {each: [] for each in engines}
    for _, order in zip(range(options.rounds), orders(list(engines), 0), strict=False):
        for each in order:
            time.sleep(REST_SECONDS)
            run = engines[each][0]
            run()
            found = []
            for _ in range(counts[each]):
                begin = clock()
                run()
                found.append(clock() - begin)
            seconds[each].append(statistics.median(found))
    ours, theirs = engines["minidnn"][1](), engines["onnxruntime"][1]()
    line: dict[str, Any] = {"network": name, "batch": batch, "threads": options.threads}
    line["minidnn"] = statistics.median(seconds["minidnn"])
    for peer in PEERS:
        pairs = zip(seconds[peer], seconds["minidnn"], strict=True)
        line[peer] = statistics.median(a / b for a, b in pairs)
    line["deviation"] = float(np.abs(ours - theirs).max() / np.abs(theirs).max())
    print(
        f"{name:20s} batch {batch:2d}: {line['minidnn'] * 1e3:8.2f} ms, "
        + ", ".join(f"{peer} {line[peer]:.2f}" for peer in PEERS),
        flush=True,
    )
    engines.clear()
    gc.collect()
    return line


def _runs(run: Callable[[], Any]) -> int:
    """How many make a burst."""
    run()
    begin = time.perf_counter()
    run()
    return max(1, round(BURST_SECONDS / (time.perf_counter() - begin)))


def side_of(name: str) -> int:
    return models.get_model(name).input_shape[1] if name in models.list_models() else 224


def quantized(name: str, batch: int, folder: Path) -> Path:
    """The file with QDQ, made if it is not there."""
    path = folder / f"{name}_{batch}.onnx"
    if not path.exists():
        side = side_of(name)
        net = _zoo(name, side) if name in models.list_models() else _torchvision(name, side)
        graph = md.quantize(net, noise((batch, 3, side, side), 1), ranges="minmax", device="cpu")
        write_whole(path, lambda file: md.save_onnx(graph, file))
    return path


def _zoo(name: str, side: int) -> Any:
    net = models.get_model(name)
    md.calibrate(net, noise((4, 3, side // 2, side // 2), 0))
    return net


def _torchvision(name: str, side: int) -> Any:
    """A module with random weights, whose normalizations have the statistics of noise."""
    import torch

    from minidnn.bench.torchvision_models import models as torchvision_models

    torch.manual_seed(0)
    module = getattr(torchvision_models, name)(weights=None).train()
    for each in module.modules():
        if isinstance(each, torch.nn.BatchNorm2d):
            each.momentum = 1.0
        if isinstance(each, torch.nn.Dropout):
            each.p = 0.0
    with torch.no_grad():
        module(torch.from_numpy(noise((4, 3, side // 2, side // 2), 0)))
    return module.eval()


def _minidnn(path: Path, x: np.ndarray, threads: int) -> Any:
    exe = md.compile(str(path), device="cpu", threads=threads)
    out = exe(x)
    return lambda: exe(x, out=out), lambda: np.asarray(out)


def _openvino(path: Path, x: np.ndarray, threads: int) -> Any:
    import openvino

    settings = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": threads}
    settings["INFERENCE_PRECISION_HINT"] = "f32"
    request = openvino.Core().compile_model(path, "CPU", settings).create_infer_request()
    request.set_input_tensor(0, openvino.Tensor(x, shared_memory=True))
    return request.infer, lambda: request.get_output_tensor(0).data


def _onnxruntime(path: Path, x: np.ndarray, threads: int) -> Any:
    import onnxruntime

    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads, settings.inter_op_num_threads = threads, 1
    settings.log_severity_level = 3
    session = onnxruntime.InferenceSession(path, settings, providers=["CPUExecutionProvider"])
    given, made = session.get_inputs()[0], session.get_outputs()[0]
    binding = session.io_binding()
    binding.bind_cpu_input(given.name, x)
    value = onnxruntime.OrtValue.ortvalue_from_shape_and_type(made.shape, np.float32, "cpu")
    binding.bind_ortvalue_output(made.name, value)
    return lambda: session.run_with_iobinding(binding), value.numpy


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
