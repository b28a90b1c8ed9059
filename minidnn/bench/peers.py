"""The other engines, in the settings that suit them best for exact float32 on a CPU.

Each function is a target of :class:`minidnn.bench.process.EngineProcess`.  ``inputs`` names an
``.npz`` file with the arrays in the order of the network's inputs.  Where an engine can write into
memory that is there already, it does: outputs are not allocated again for every run.
"""

from __future__ import annotations

import importlib
import math
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from minidnn.bench.worker import LoadedEngine

TORCH_MODES = ("eager", "channels_last", "compile")


def load_inputs(path: str) -> list[np.ndarray]:
    """The arrays of an ``.npz`` file, in the order in which they were saved."""
    with np.load(path) as arrays:
        return [arrays[name] for name in arrays.files]


def made_by(network: str, options: Mapping[str, Any]) -> Any:
    """What ``network``, ``"package.module:function"``, makes of options."""
    module, _, function = network.partition(":")
    return getattr(importlib.import_module(module), function)(**options)


def onnxruntime(
    model: str, inputs: str, threads: int, count_kernels: bool = True, precision: str = "f32"
) -> LoadedEngine:
    """ONNX Runtime on an ONNX file, which ``precision`` says of; inputs and outputs bound once.

    To count kernels the optimized network is written to a file, which takes time.
    """
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    with tempfile.TemporaryDirectory() as folder:
        optimized = Path(folder) / "optimized.onnx"
        if count_kernels:
            options.optimized_model_filepath = str(optimized)
        options.log_severity_level = 3  # it warns that such a file suits this machine only
        session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        kernels = _nodes(optimized) if count_kernels else None
    binding = session.io_binding()
    held = [np.ascontiguousarray(array) for array in load_inputs(inputs)]
    for slot, array in zip(session.get_inputs(), held, strict=True):
        binding.bind_cpu_input(slot.name, array)
    results = []
    for slot in session.get_outputs():
        value = ort.OrtValue.ortvalue_from_shape_and_type(slot.shape, np.float32, "cpu")
        binding.bind_ortvalue_output(slot.name, value)
        results.append(value)

    def run() -> list[np.ndarray]:
        session.run_with_iobinding(binding)
        return results

    about = {"version": ort.__version__, "kernels": kernels, "precision": precision}
    return LoadedEngine(run, lambda values: [value.numpy() for value in values], about)


def _nodes(model: Path) -> int | None:
    """How many nodes an ONNX file has; None where the package that reads it is missing."""
    try:
        import onnx
    except ImportError:
        return None
    return len(onnx.load(str(model), load_external_data=False).graph.node)


def openvino(
    model: str, inputs: str, threads: int, precision: str = "f32", streams: bool = False
) -> LoadedEngine:
    """OpenVINO on an ONNX file, with the LATENCY hint: all threads work on one request.

    Its own default precision on processors that have bf16 is bf16, so the precision is a hint
    that must be given; "int8" says that the file has QDQ.  With ``streams`` the hint is
    THROUGHPUT and the batch is divided over as many requests as threads and batch allow, which
    run at once, one thread each.
    """
    import openvino as ov

    held = [np.ascontiguousarray(array) for array in load_inputs(inputs)]
    count = math.gcd(threads, *(len(array) for array in held)) if streams else 1
    settings = {
        "PERFORMANCE_HINT": "THROUGHPUT" if streams else "LATENCY",
        "INFERENCE_NUM_THREADS": threads,
        "INFERENCE_PRECISION_HINT": "f32" if precision == "int8" else precision,
    }
    if streams:
        settings["NUM_STREAMS"] = count
    network = ov.Core().read_model(model)
    parts = [np.split(array, count) for array in held]
    if count > 1:
        network.reshape({i: part[0].shape for i, part in enumerate(parts)})
    compiled = ov.Core().compile_model(network, "CPU", settings)
    requests = [compiled.create_infer_request() for _ in range(count)]
    for number, request in enumerate(requests):
        for i, part in enumerate(parts):
            request.set_input_tensor(i, ov.Tensor(part[number], shared_memory=True))

    def run() -> Any:
        if count == 1:
            requests[0].infer()
        else:
            for request in requests:
                request.start_async()
            for request in requests:
                request.wait()
        return requests, parts

    def outputs(_: Any) -> list[np.ndarray]:
        each = zip(*(request.output_tensors for request in requests), strict=True)
        return [np.concatenate([tensor.data for tensor in tensors]) for tensors in each]

    kinds = [
        op.get_rt_info()["layerType"].astype(str) for op in compiled.get_runtime_model().get_ops()
    ]
    kernels = sum(kind not in ("Input", "Output", "Const") for kind in kinds)
    about = {"version": ov.__version__, "kernels": kernels, "precision": precision}
    return LoadedEngine(run, outputs, about)


def torch(
    network: str, options: Mapping[str, Any], inputs: str, threads: int, mode: str = "eager"
) -> LoadedEngine:
    """PyTorch on the module that ``network``, ``"package.module:function"``, makes of options.

    ``mode`` is "eager", "channels_last" or "compile", the last with TorchInductor's freezing of
    parameters.  Inputs and outputs are NCHW in all of them, so "channels_last" converts both.
    """
    import torch

    if mode not in TORCH_MODES:
        raise ValueError(f"mode={mode!r}; valid are {', '.join(map(repr, TORCH_MODES))}")
    torch.set_num_threads(threads)
    module = made_by(network, options).eval()
    tensors = [torch.from_numpy(array) for array in load_inputs(inputs)]
    about: dict[str, Any] = {"version": torch.__version__, "precision": "f32"}
    layout = torch.channels_last if mode == "channels_last" else torch.contiguous_format
    module = module.to(memory_format=layout)
    if mode == "compile":
        module = _compiled(module, tensors, about)

    # The mode of the first call, or it is compiled once more.
    without_gradients = torch.no_grad if mode == "compile" else torch.inference_mode

    def run() -> Any:
        with without_gradients():
            result = module(*(tensor.contiguous(memory_format=layout) for tensor in tensors))
            results = result if isinstance(result, tuple | list) else [result]
            return [tensor.contiguous() for tensor in results]

    return LoadedEngine(run, lambda results: [tensor.numpy() for tensor in results], about)


def _compiled(module: Any, tensors: list[Any], about: dict[str, Any]) -> Any:
    """The compiled module; notes how many kernels were made of it."""
    import torch

    from minidnn._torch_internals import deferred

    deferred("torch._inductor.config").freezing = True
    compiled = torch.compile(module)
    with torch.no_grad():
        compiled(*tensors)
    about["kernels"] = deferred("torch._inductor.metrics").generated_kernel_count or None
    return compiled
