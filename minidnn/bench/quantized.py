"""Networks in int8 for the engines that read ONNX: written by ONNX Runtime's own quantizer, whose
files with QDQ are what people have."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from minidnn.bench.networks import write_whole
from minidnn.bench.peers import load_inputs
from minidnn.bench.worker import LoadedEngine


def convert_to_int8(onnx: str, target: str, inputs: str, **_: Any) -> LoadedEngine:
    """Quantizes an ONNX file, with the inputs of the case for its ranges; the engine does nothing.

    Inputs of layers are uint8 from their least number to the largest, weights int8 with a scale for
    each output.
    """
    import onnxruntime as ort
    from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    session = ort.InferenceSession(onnx, providers=["CPUExecutionProvider"])
    names = [slot.name for slot in session.get_inputs()]
    given: Iterator[Any] = iter([dict(zip(names, load_inputs(inputs), strict=True))])

    class Case(CalibrationDataReader):
        def get_next(self) -> Any:
            return next(given, None)

    def write(path: Path) -> None:
        with tempfile.TemporaryDirectory() as folder:
            before = Path(folder) / "before.onnx"
            quant_pre_process(onnx, before)  # folds normalizations
            types = {"activation_type": QuantType.QUInt8, "weight_type": QuantType.QInt8}
            quantize_static(before, path, Case(), per_channel=True, **types)

    write_whole(Path(target), write)
    return LoadedEngine(lambda: None, about={"version": ort.__version__})
