"""load_preparation: the preparation of pictures in a file's metadata, for every format."""

from __future__ import annotations

import os
from typing import Any

from minidnn.compiled_file import CompiledFile, check_path, is_compiled
from minidnn.errors import GraphError
from minidnn.frontends.onnx.model import is_model, read_model
from minidnn.preparation import Preparation, preparation_in
from minidnn.weights._file import MappedFile
from minidnn.weights.safetensors import looks_like_safetensors, read_metadata

__all__ = ["load_preparation"]


def load_preparation(path: str | os.PathLike[str]) -> Preparation | None:
    """How pictures are prepared for a network, as a file with it or with its weights says.

    Args:
        path: of a file that ``save_weights``, ``save_graph``, ``save_onnx`` or
            :meth:`Executable.save` wrote with ``preparation=``, or a command of minidnn.

    Returns:
        The preparation; None if the file says none, as one that ``torch.save`` wrote.

    Raises:
        WeightsError: there is no such file, or it or its preparation is damaged.
        GraphError: the same of an ONNX file.
        OSError: an ONNX file cannot be read.

    >>> preparation = md.Preparation(resize=32, crop=32)
    >>> md.save_graph(net, "net.safetensors", (2, 3, 32, 32), preparation=preparation)
    >>> assert md.load_preparation("net.safetensors") == preparation
    """
    check_path(path, "load_preparation")
    if is_model(path):
        return preparation_of_model(read_model(path))
    if is_compiled(path):
        compiled = CompiledFile(path)
        network = compiled.header.get("network")
        text = network.get("preparation") if isinstance(network, dict) else None
        return preparation_in(text or {}, compiled.damaged)
    file = MappedFile(path)
    if not looks_like_safetensors(file):
        return None
    return preparation_in(read_metadata(file), file.error)


def preparation_of_model(model: Any) -> Preparation | None:
    """Returns the preparation in the metadata of an ONNX model."""

    def fail(problem: str) -> GraphError:
        return GraphError(f"{model.title}: {problem}")

    return preparation_in({each.key: each.value for each in model.proto.metadata_props}, fail)
