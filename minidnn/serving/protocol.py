"""The Open Inference Protocol apart from its transports: metadata, and how a request is served.

REST and gRPC both call these functions, and translate their own messages to and from them.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from math import prod
from typing import Any

import numpy as np

import minidnn
from minidnn.serving.model import ServedModel
from minidnn.serving.repository import Repository
from minidnn.serving.settings import Fault, Refusal, invalid
from minidnn.serving.tensors import RequestTensor, Spec, are_encoded, arrays_of, with_pictures

EXTENSIONS = ("binary_tensor_data", "model_repository")
#: Parameters that change the meaning of a result, and are not supported.
REFUSED_PARAMETERS = ("classification", "shared_memory_region", "sequence_id", "sequence_start")


@dataclass(frozen=True)
class Request:
    """An inference request of either protocol.

    Attributes:
        inputs: the tensors of the request.
        outputs: the names of the requested outputs; all if empty.
        id: the caller's name of the request, which the answer repeats.
    """

    inputs: Sequence[RequestTensor]
    outputs: Sequence[str] = ()
    id: str = ""


@dataclass(frozen=True)
class Answer:
    """The requested outputs, and the model that computed them."""

    model: ServedModel
    outputs: list[tuple[Spec, np.ndarray]] = field(default_factory=list)


#: A request, its inputs as arrays, and their number of rows.
Parsed = tuple[Request, list[np.ndarray], int]


def server_metadata() -> dict[str, Any]:
    """The server's name, version and protocol extensions."""
    return {
        "name": "minidnn",
        "version": minidnn.__version__,
        "extensions": list(EXTENSIONS),
    }


def model_metadata(repository: Repository, name: str, version: str) -> dict[str, Any]:
    """A model's inputs and outputs; Fault if it is not ready."""
    model = repository.batcher(name, version).model

    def tensors(specs: Sequence[Spec]) -> list[dict[str, Any]]:
        return [
            {"name": spec.name, "datatype": spec.datatype, "shape": spec.declared} for spec in specs
        ]

    return {
        "name": name,
        "versions": [str(entry.source.version) for entry in repository.versions(name)],
        "platform": model.source.platform,
        "inputs": tensors(model.inputs),
        "outputs": tensors(model.outputs),
    }


def model_parameters(repository: Repository, name: str, version: str) -> dict[str, Any]:
    """The valid numbers of rows of a request, if the model takes batches, and the preparation of
    pictures for it, as "preparation", if that is known; Fault if the model is not ready."""
    model = repository.batcher(name, version).model
    found: dict[str, Any] = {}
    if model.inputs[0].batched:
        rows = model.batch
        found = {"min_rows": rows.least, "max_rows": rows.most, "multiple_of_rows": rows.multiple}
    if model.preparation is not None:
        found["preparation"] = asdict(model.preparation)
    return found


def index(repository: Repository, ready_only: bool) -> list[dict[str, str]]:
    """All versions of all models with their states."""
    return [
        {
            "name": entry.source.name,
            "version": str(entry.source.version),
            "state": entry.state,
            "reason": entry.reason,
        }
        for entry in repository
        if entry.state == "READY" or not ready_only
    ]


def check_parameters(where: str, names: Sequence[str]) -> None:
    """Fault for a parameter that would change the meaning of a request."""
    for name in names:
        if name in REFUSED_PARAMETERS:
            raise invalid(f"{where} has the parameter {name!r}, which is not supported here")


async def infer(
    repository: Repository,
    protocol: str,
    name: str,
    version: str,
    read: Callable[[], Request],
    interleaved: Callable[[Callable[[], Parsed]], Awaitable[Parsed]],
) -> Answer:
    """Serves a request: parses it, waits for its batch, and counts it in the metrics.

    Args:
        repository: has the model.
        protocol: "rest" or "grpc", for the metrics.
        name, version: of the model; "" is the newest version.
        read: parses the request.
        interleaved: calls a parser: in the event loop or, for a long request, in a thread.
    """
    batcher = repository.batcher(name, version)
    begun, status = time.monotonic(), "cancelled"
    try:

        def parsed() -> Parsed:
            request, model = read(), batcher.model
            _check_outputs(model, request)
            if are_encoded(request.inputs):
                return request, [], 0
            return request, *arrays_of(model.inputs, request.inputs, model.batch)

        request, arrays, rows = await interleaved(parsed)
        if not arrays:
            limit = repository.settings.max_request_bytes
            read_pictures = partial(_of_pictures, batcher.model, request, limit)
            arrays, rows = await repository.beside(read_pictures)
        results = await batcher.infer(arrays, rows)
        answer = _answer(batcher.model, request, results)
        status = "ok"
        return answer
    except Fault as fault:
        status = fault.kind.name.lower()
        raise
    except MemoryError as error:
        status = "failed"
        raise Fault(Refusal.FAILED, "not enough memory for this request") from error
    finally:
        batcher.meter.request(protocol, status, time.monotonic() - begun)


def _of_pictures(model: ServedModel, request: Request, limit: int) -> tuple[list[np.ndarray], int]:
    """The inputs of a request with encoded pictures as arrays, and their number of rows.

    ``limit`` bounds the decoded bytes of a request that is larger than a shared batch, since a
    million encoded pictures may be small.
    """
    row = sum(prod(spec.shape) * spec.dtype.itemsize for spec in model.inputs)
    most = model.batch.up_to(max(model.max_rows, limit // row))
    batch = replace(model.batch, most=most)
    given = with_pictures(model.preparation, model.inputs, request.inputs, batch)
    return arrays_of(model.inputs, given, model.batch)


def _check_outputs(model: ServedModel, request: Request) -> None:
    """Fault if a request asks for an output that the model does not have."""
    names = [spec.name for spec in model.outputs]
    if unknown := [name for name in request.outputs if name not in names]:
        raise invalid(f"outputs {unknown!r:.300} are asked for; valid are {names}")


def _answer(model: ServedModel, request: Request, results: Sequence[np.ndarray]) -> Answer:
    """The requested outputs, in the order of the request."""
    known = {spec.name: (spec, result) for spec, result in zip(model.outputs, results, strict=True)}
    return Answer(model, [known[name] for name in dict.fromkeys(request.outputs) or known])


def check_change(parameters: Any) -> None:
    """Fault for parameters of loading a model: models are set when the server starts."""
    if not isinstance(parameters, Mapping):
        raise invalid(f"parameters is {parameters!r:.100}; valid is a JSON object")
    if given := [name for name in parameters if name != "unload_dependents"]:
        raise invalid(
            f"parameters {given!r:.200} are given; valid is none: models are loaded from where the "
            "server was told to"
        )
