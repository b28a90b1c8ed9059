"""Makes the CPU engines: minidnn and its peers, each in its best settings for exact float32.

Each function is a target of :class:`minidnn.bench.process.EngineProcess`.  ``inputs`` is the path
of an ``.npz`` file with the arrays in the order of the network's inputs.  Engines that can write
into preallocated outputs do so, and allocate nothing in a run.

The ``convert`` functions write files in an engine's own format, or in int8.  They run in separate
processes, so that neither their time nor their memory counts.
"""

from __future__ import annotations

import math
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

import minidnn as md
from minidnn.bench.worker import LoadedEngine, made_by
from minidnn.cache import forbid_builds

TORCH_MODES = ("eager", "channels_last", "compile")


def load_inputs(path: str) -> list[np.ndarray]:
    """The arrays of an ``.npz`` file, in the order in which they were saved."""
    with np.load(path) as arrays:
        return [arrays[name] for name in arrays.files]


def onnxruntime(
    model: str, inputs: str, threads: int, count_kernels: bool = True, precision: str = "f32"
) -> LoadedEngine:
    """Makes ONNX Runtime's engine of an ONNX file, with inputs and outputs bound once.

    ``precision``: what the file computes in, for the report.  ``count_kernels``: writes the
    optimized network to a file to count its nodes, which takes time.
    """
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    with tempfile.TemporaryDirectory() as folder:
        optimized = Path(folder) / "optimized.onnx"
        if count_kernels:
            options.optimized_model_filepath = str(optimized)
        options.log_severity_level = 3  # it warns that the optimized file suits this machine only
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
    """Makes OpenVINO's engine of an ONNX file, with the LATENCY hint: all threads work on one
    request.

    Its default precision is bf16 on processors that have it, so the precision hint is always given;
    "int8" means that the file has QDQ operators.  With ``streams`` the hint is THROUGHPUT, and the
    batch is divided over as many concurrent requests as threads and batch allow, one thread each.
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
    """Makes PyTorch's engine of the module that :func:`made_by` returns.

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

    # The mode of the first call: with another one, the module would be compiled again.
    without_gradients = torch.no_grad if mode == "compile" else torch.inference_mode

    def run() -> Any:
        with without_gradients():
            result = module(*(tensor.contiguous(memory_format=layout) for tensor in tensors))
            results = result if isinstance(result, tuple | list) else [result]
            return [tensor.contiguous() for tensor in results]

    return LoadedEngine(run, lambda results: [tensor.numpy() for tensor in results], about)


def _compiled(module: Any, tensors: list[Any], about: dict[str, Any]) -> Any:
    """Compiles the module, and records the number of generated kernels in ``about``."""
    import torch

    from minidnn._torch_internals import deferred

    deferred("torch._inductor.config").freezing = True
    compiled = torch.compile(module)
    with torch.no_grad():
        compiled(*tensors)
    about["kernels"] = deferred("torch._inductor.metrics").generated_kernel_count or None
    return compiled


def convert_to_int8(onnx: str, target: str, inputs: str, **_: Any) -> LoadedEngine:
    """Quantizes an ONNX file, calibrated on the inputs of the case; the engine does nothing.

    Activations are uint8 over their whole range, weights int8 with a scale for each output channel.
    """
    import onnxruntime as ort
    from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    from minidnn.bench.networks import write_whole

    session = ort.InferenceSession(onnx, providers=["CPUExecutionProvider"])
    names = [slot.name for slot in session.get_inputs()]
    samples: Iterator[Any] = iter([dict(zip(names, load_inputs(inputs), strict=True))])

    class Case(CalibrationDataReader):
        def get_next(self) -> Any:
            return next(samples, None)

    def write(path: Path) -> None:
        with tempfile.TemporaryDirectory() as folder:
            before = Path(folder) / "before.onnx"
            quant_pre_process(onnx, before)  # folds normalizations
            types = {"activation_type": QuantType.QUInt8, "weight_type": QuantType.QInt8}
            quantize_static(before, path, Case(), per_channel=True, **types)

    write_whole(Path(target), write)
    return LoadedEngine(lambda: None, about={"version": ort.__version__})


def mnn(model: str, inputs: str, threads: int) -> LoadedEngine:
    """Makes MNN's engine of a file that :func:`convert_to_mnn` wrote."""
    import MNN

    network = MNN.Interpreter(model)
    session = network.createSession({"backend": "CPU", "numThread": threads, "precision": "high"})
    (array,) = load_inputs(inputs)
    kind, layout = MNN.Halide_Type_Float, MNN.Tensor_DimensionType_Caffe
    source = MNN.Tensor(array.shape, kind, array, layout)
    entry, result = network.getSessionInput(session), network.getSessionOutput(session)
    shape = result.getShape()
    out = MNN.Tensor(shape, kind, np.zeros(shape, np.float32), layout)

    def run() -> Any:
        entry.copyFrom(source)
        network.runSession(session)
        result.copyToHostTensor(out)
        return out

    def outputs(tensor: Any) -> list[np.ndarray]:
        return [np.array(tensor.getNumpyData(), np.float32).reshape(shape)]

    return LoadedEngine(run, outputs, {"version": MNN.version(), "precision": "f32"})


def convert_to_mnn(onnx: str, target: str, **_: Any) -> LoadedEngine:
    """Converts an ONNX file to MNN's format; the engine does nothing.

    It calls MNN's extension module, since the command ``mnnconvert`` installs packages and reports
    its use over the network.
    """
    code = "import sys, _tools; _tools.mnnconvert(sys.argv)"
    arguments = ["-f", "ONNX", "--modelFile", onnx, "--MNNModel", target, "--bizCode", "MNN"]
    _convert([sys.executable, "-c", code, *arguments], Path(target))
    return LoadedEngine(lambda: None)


def ncnn(model: str, inputs: str, threads: int) -> LoadedEngine:
    """Makes ncnn's engine of files that :func:`convert_to_ncnn` wrote; it runs image by image, as
    ncnn has no batches."""
    import ncnn as library

    network = library.Net()
    option = network.opt
    option.num_threads, option.use_packing_layout = threads, True
    for reduced in ("fp16_packed", "fp16_storage", "fp16_arithmetic", "bf16_storage"):
        setattr(option, f"use_{reduced}", False)
    for file, load in ((model, network.load_param), (_beside(model), network.load_model)):
        if load(file) != 0:
            raise RuntimeError(f"ncnn cannot read {file}")
    (array,) = load_inputs(inputs)
    entry, result = network.input_names()[0], network.output_names()[0]
    images = [library.Mat(image).clone() for image in array]  # a copy has the alignment of ncnn

    def run() -> Any:
        rows = []
        for image in images:
            extractor = network.create_extractor()
            extractor.input(entry, image)
            rows.append(np.array(extractor.extract(result)[1]))
        return [np.stack(rows)]

    about = {"version": version("ncnn"), "precision": "f32"}
    return LoadedEngine(run, lambda arrays: arrays, about)


def convert_to_ncnn(
    network: str, options: Mapping[str, Any], shape: Sequence[int], target: str, **_: Any
) -> LoadedEngine:
    """Traces PyTorch's module and converts it by pnnx; the engine does nothing."""
    import torch

    spec = find_spec("pnnx")
    assert spec is not None and spec.origin is not None
    module = made_by(network, options).eval()
    with tempfile.TemporaryDirectory() as folder:
        traced = Path(folder) / "network.pt"
        with torch.no_grad():
            torch.jit.trace(module, torch.zeros(1, *shape[1:])).save(str(traced))
        sizes = ",".join(map(str, (1, *shape[1:])))
        command = [str(Path(spec.origin).parent / "pnnx"), str(traced)]
        command += [f"inputshape=[{sizes}]", "fp16=0"]
        command += [f"ncnnparam={target}", f"ncnnbin={_beside(target)}"]
        _convert(command, Path(target), Path(folder))
    return LoadedEngine(lambda: None)


def _beside(model: str) -> str:
    """The path of the weights of an ncnn network, next to its structure."""
    return f"{model}.bin"


def _convert(command: list[str], target: Path, folder: Path | None = None) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != 0 or not target.exists():
        output = (done.stdout + done.stderr).strip()[-1500:]
        raise RuntimeError(f"converting to {target.name} failed:\n{output}")


def minidnn(
    network: str, options: Mapping[str, Any], inputs: str, threads: int, **settings: Any
) -> LoadedEngine:
    """Makes minidnn's engine of the layer that :func:`made_by` returns, compiled for the CPU with
    ``settings`` as further arguments of :func:`minidnn.compile`.

    The report says whether the cache had all of its kernels ("warm") or not ("cold").
    """
    layer = made_by(network, options)
    arrays = load_inputs(inputs)
    shapes = [array.shape for array in arrays]
    shape = shapes[0] if len(shapes) == 1 else shapes
    settings |= {"device": "cpu", "threads": threads}
    try:
        with forbid_builds():
            compiled = md.compile(layer, shape, **settings)
        cache = "warm"
    except (md.CompileError, md.DeviceError):  # the cache may lack the runner of kernels, too
        compiled = md.compile(layer, shape, **settings)
        cache = "cold"
    del layer  # frees the weights, of which the program has packed copies
    out = compiled(*arrays)
    several = isinstance(out, tuple)

    def run() -> Any:
        return compiled(*arrays, out=out)

    about = {
        "version": md.__version__,
        "kernels": len(compiled.plan.graph.nodes),
        "precision": {"bfloat16": "bf16", "int8": "int8"}.get(compiled.precision, "f32"),
        "cache": cache,
    }
    return LoadedEngine(
        run, lambda result: list(result) if several else [np.asarray(result)], about
    )
