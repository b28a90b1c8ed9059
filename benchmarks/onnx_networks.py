"""ONNX files beside OpenVINO and ONNX Runtime, on the CPU: float32, bfloat16 and int8.

    python -m benchmarks.onnx_networks [--precisions float32 bfloat16 int8] [--batch 1 16]
        [--threads 2] [--networks resnet50 mobilenet_v2] [--jsonl FILE]

Networks have random weights, and normalizations that are calibrated on noise.  All engines read one
file: of float32, which OpenVINO computes in bfloat16 where that is asked for, or one with QDQ which
``md.quantize`` makes.  ONNX Runtime has no bfloat16 and is no peer there.  timm is installed apart,
``pip install --no-deps timm huggingface_hub httpcore2 pyyaml tqdm``; only networks of float32 come
from it.  Files are kept in ``--folder``, and so are kernels in the cache: a second run only
measures.

Engines take turns in one process, in bursts with a rest before each, in which threads of the one
before stop spinning.  A ratio is a peer's time over minidnn's, the median over rounds: above 1
minidnn is faster.  On one thread a burst takes what the process used of a processor, else what a
clock tells.  An error is what differs most from ONNX Runtime, by its largest number; in bfloat16
the root of the mean square of what differs from OpenVINO in float32, by that of its result.
``--jsonl`` adds each cell to a file of results as soon as it is measured.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
import warnings
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

import minidnn as md
from minidnn import models
from minidnn.backends.cpu.machine import describe_machine
from minidnn.bench.networks import noise, write_whole
from minidnn.bench.results import commit
from minidnn.cache import root
from minidnn.layers.calibration import calibrate_on_noise
from minidnn.measure import orders

ZOO = (
    *("alexnet", "densenet121", "inception_v3", "resnet18", "resnet50", "squeezenet1_1"),
    "vgg16_bn",
)
#: Chosen before anything was measured.
NETWORKS = {
    "float32": (
        *("mobilenet_v2", "mobilenet_v3_large", "mnasnet1_0", "efficientnet_b0"),
        *("shufflenet_v2_x1_0", "regnet_y_400mf", "regnet_x_800mf", "resnext50_32x4d"),
        *("convnext_tiny", "ghostnet_100", "tf_efficientnetv2_b0", "mobilenetv4_conv_small"),
    ),
    "bfloat16": (
        *ZOO,
        *("convnext_tiny", "efficientnet_b0", "mobilenet_v2", "regnet_y_400mf"),
        "resnext50_32x4d",
    ),
    "int8": (
        *ZOO,
        *("efficientnet_b0", "mobilenet_v2", "mobilenet_v3_large", "resnext50_32x4d"),
        "shufflenet_v2_x1_0",
    ),
}
PEERS = {
    "float32": ("openvino", "onnxruntime"),
    "bfloat16": ("openvino",),
    "int8": ("openvino", "onnxruntime"),
}
ROUNDS = 9
BURST_SECONDS, REST_SECONDS = 0.12, 0.03

#: What runs an engine, and what gives its result.
Engine = tuple[Callable[[], Any], Callable[[], np.ndarray]]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--precisions", nargs="+", choices=PEERS, default=[*PEERS])
    parser.add_argument("--networks", nargs="+")
    parser.add_argument("--batch", nargs="+", type=int, default=[1, 16])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--folder", type=Path, default=root() / "bench")
    parser.add_argument("--jsonl", type=Path)
    options = parser.parse_args(arguments)
    for precision in options.precisions:
        lines = []
        for batch in options.batch:
            for name in options.networks or NETWORKS[precision]:
                lines.append(measured(name, precision, batch, options))
                if options.jsonl is not None:
                    with options.jsonl.open("a", encoding="utf-8") as file:
                        file.write(json.dumps(described(precision) | lines[-1]) + "\n")
        for peer in PEERS[precision]:
            ratios = [line["ratios"][peer] for line in lines]
            mean = statistics.geometric_mean(ratios)
            print(
                f"{precision} over {peer}: geometric mean {mean:.2f}, least {min(ratios):.2f}, "
                f"{len(ratios)} cells"
            )


def described(precision: str) -> dict[str, Any]:
    """Where a cell was measured."""
    versions = {peer: {"version": version(peer)} for peer in PEERS[precision]}
    return {"machine": describe_machine().line(), "commit": commit(), "peers": versions}


def measured(name: str, precision: str, batch: int, options: argparse.Namespace) -> dict[str, Any]:
    """One cell: milliseconds of minidnn, the ratios of the peers, and errors."""
    path = written(name, precision, batch, options.folder)
    x = noise((batch, 3, *[side_of(name)] * 2), 1)
    line: dict[str, Any] = {"precision": precision, "network": name, "batch": batch}
    line["threads"] = options.threads
    low = precision == "bfloat16"
    exact = _openvino(path, x, options.threads, "f32")[1]() if low else None
    engines: dict[str, Engine] = {"minidnn": _minidnn(path, x, options.threads, precision)}
    engines["openvino"] = _openvino(path, x, options.threads, "bf16" if low else "f32")
    if "onnxruntime" in PEERS[precision]:
        engines["onnxruntime"] = _onnxruntime(path, x, options.threads)
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
    line["minidnn"] = round(1e3 * statistics.median(seconds["minidnn"]), 4)
    line["ratios"] = {}
    for peer in PEERS[precision]:
        pairs = zip(seconds[peer], seconds["minidnn"], strict=True)
        line["ratios"][peer] = round(statistics.median(a / b for a, b in pairs), 4)
    if exact is None:
        line["error"] = _largest(engines["minidnn"][1](), engines["onnxruntime"][1]())
    else:
        line["error"], line["error of openvino"] = (
            _mean(engines[each][1](), exact) for each in ("minidnn", "openvino")
        )
    print(
        f"{precision} {name:20s} batch {batch:2d}: {line['minidnn']:8.2f} ms, "
        + ", ".join(f"{peer} {ratio:.2f}" for peer, ratio in line["ratios"].items())
        + f", error {line['error']:.1e}"
        + (f" ({line['error of openvino']:.1e})" if exact is not None else ""),
        flush=True,
    )
    engines.clear()
    gc.collect()
    return line


def _largest(found: np.ndarray, exact: np.ndarray) -> float:
    return float(f"{np.abs(found - exact).max() / np.abs(exact).max():.3g}")


def _mean(found: np.ndarray, exact: np.ndarray) -> float:
    return float(f"{np.sqrt(np.square(found - exact).mean() / np.square(exact).mean()):.3g}")


def _runs(run: Callable[[], Any]) -> int:
    """How many make a burst."""
    run()
    begin = time.perf_counter()
    run()
    return max(1, round(BURST_SECONDS / (time.perf_counter() - begin)))


def side_of(name: str) -> int:
    return models.get_model(name).input_shape[1] if name in models.list_models() else 224


def written(name: str, precision: str, batch: int, folder: Path) -> Path:
    """The file that all engines read, made if it is not there."""
    path = folder / ("int8" if precision == "int8" else "float32") / f"{name}_{batch}.onnx"
    if not path.exists():
        side = side_of(name)
        shape = (batch, 3, side, side)
        is_classic = name in models.CLASSIC
        net = calibrate_on_noise(models.get_model(name)) if is_classic else _module(name, side)
        if precision == "int8":
            net = md.quantize(net, noise(shape, 1), ranges="minmax", device="cpu")
        given = None if precision == "int8" else shape
        write_whole(path, lambda file: md.save_onnx(net, file, given))
    return path


def _module(name: str, side: int) -> Any:
    """torchvision's or timm's, with random weights and the statistics of noise."""
    import torch

    from minidnn.bench.torchvision_models import models as torchvision_models

    torch.manual_seed(0)
    if hasattr(torchvision_models, name):
        module = getattr(torchvision_models, name)(weights=None).train()
    else:
        import timm

        module = timm.create_model(name).train()
    for each in module.modules():
        if isinstance(each, torch.nn.BatchNorm2d):
            each.momentum = 1.0
        if isinstance(each, torch.nn.Dropout):
            each.p = 0.0
    with torch.no_grad():
        module(torch.from_numpy(noise((4, 3, side // 2, side // 2), 0)))
    return module.eval()


def _minidnn(path: Path, x: np.ndarray, threads: int, precision: str) -> Engine:
    # A file with QDQ says itself what is in bytes.
    asked = "float32" if precision == "int8" else precision
    exe = md.compile(str(path), x.shape, device="cpu", threads=threads, precision=asked)
    out = exe(x)
    return lambda: exe(x, out=out), lambda: np.asarray(out)


def _openvino(path: Path, x: np.ndarray, threads: int, precision: str) -> Engine:
    import openvino

    settings = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": threads}
    settings["INFERENCE_PRECISION_HINT"] = precision
    request = openvino.Core().compile_model(path, "CPU", settings).create_infer_request()
    request.set_input_tensor(0, openvino.Tensor(x, shared_memory=True))
    request.infer()
    return request.infer, lambda: np.array(request.get_output_tensor(0).data)


def _onnxruntime(path: Path, x: np.ndarray, threads: int) -> Engine:
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
