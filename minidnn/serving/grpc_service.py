"""The Open Inference Protocol over gRPC.

The number of calls whose messages are read at once is limited (:class:`CallSlots`); a call that
waits may take the slot of one that makes no progress.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from google.protobuf.message import DecodeError

from minidnn.errors import DeviceError
from minidnn.serving import protocol
from minidnn.serving.access import check_token
from minidnn.serving.messages import SERVICE, message, raw_tensors
from minidnn.serving.repository import INLINE_BYTES, InWork, Repository, call_now
from minidnn.serving.settings import Fault, Refusal, Settings, invalid
from minidnn.serving.tensors import RequestTensor

GRACE_SECONDS = 0.1
"""The time for which a call keeps its slot although others wait."""


class CallSlots:
    """Limits the number of calls whose messages are read at once.

    A call whose message does not arrive keeps its slot while nobody needs it; if others wait, it
    loses the slot after :data:`GRACE_SECONDS`.  So half-open calls block nobody.

    Args:
        most: the most calls that are read at once; four times as many may wait.
        seconds: the most seconds for which a call is read.
    """

    def __init__(self, most: int, seconds: float) -> None:
        self._most, self._seconds = most, seconds
        self._taken: dict[asyncio.Timeout, float] = {}  # when each began; the oldest first
        self._waiting = 0
        self._left = asyncio.Event()

    @asynccontextmanager
    async def one(self) -> AsyncIterator[None]:
        """A slot for the block; Fault if the block takes too long, or if others need the slot."""
        loop = asyncio.get_running_loop()
        if len(self._taken) >= self._most:
            await self._wait()
        try:
            async with asyncio.timeout(self._seconds) as timeout:
                self._taken[timeout] = loop.time()
                try:
                    yield
                finally:
                    self._taken.pop(timeout, None)
                    self._left.set()
        except TimeoutError as error:
            raise Fault(
                Refusal.SLOW,
                f"the message did not arrive within {self._seconds:g} seconds, or others needed "
                "its place",
            ) from error

    async def _wait(self) -> None:
        """Waits for a slot, or takes that of the oldest call after its grace period."""
        if self._waiting >= 4 * self._most:
            raise Fault(Refusal.FULL, "too many calls wait to be read: try again later")
        self._waiting += 1
        loop = asyncio.get_running_loop()
        try:
            while len(self._taken) >= self._most:
                oldest, since = next(iter(self._taken.items()))
                remaining = since + GRACE_SECONDS - loop.time()
                if remaining <= 0:
                    del self._taken[oldest]
                    oldest.reschedule(-1)
                    return
                self._left.clear()
                try:
                    async with asyncio.timeout(remaining):
                        await self._left.wait()
                except TimeoutError:
                    pass
        finally:
            self._waiting -= 1


log = logging.getLogger(__name__)


#: Methods that need no token: an orchestrator's probes.
_OPEN = ("ServerLive", "ServerReady")
_INFER = "ModelInfer"
#: Datatype -> the field of InferTensorContents that holds an input which is not raw.
_CONTENTS = {
    "BOOL": "bool_contents",
    "UINT8": "uint_contents",
    "INT8": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
}


class RpcServer:
    """A gRPC server that listens at ``address``."""

    def __init__(self, server: Any, address: str, settings: Settings) -> None:
        self.address = address
        self._server, self._settings = server, settings

    async def stop(self) -> None:
        """Accepts no more calls, and returns when accepted ones are answered or out of time."""
        await self._server.stop(self._settings.stop_seconds)


async def started_server(repository: Repository) -> RpcServer:
    """Starts a server; DeviceError if its address or its TLS files are not available."""
    settings = repository.settings
    server = grpc.aio.server(
        interceptors=[_Gate(settings)],
        options=[
            ("grpc.max_receive_message_length", settings.max_request_bytes),
            ("grpc.max_send_message_length", -1),
            ("grpc.so_reuseport", 0),
            ("grpc.max_concurrent_streams", 8 * settings.max_requests),
            ("grpc.server_handshake_timeout_ms", round(1000 * settings.read_seconds)),
        ],
    )
    service = _Service(repository)
    slots = {
        is_inference: CallSlots(settings.max_requests, settings.read_seconds)
        for is_inference in (False, True)
    }
    handlers = {
        name: grpc.stream_unary_rpc_method_handler(
            _method(name, answer, slots[name == _INFER]),
            response_serializer=lambda answer: answer.SerializeToString(),
        )
        for name, answer in service.methods.items()
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    address = f"{host}:{settings.grpc_port}"
    try:
        if settings.certificate is None or settings.key is None:
            port = server.add_insecure_port(address)
        else:
            pair = Path(settings.key).read_bytes(), Path(settings.certificate).read_bytes()
            port = server.add_secure_port(address, grpc.ssl_server_credentials([pair]))
    except (OSError, RuntimeError) as error:
        raise DeviceError(f"{address} cannot be listened on: {error}") from error
    await server.start()
    return RpcServer(server, f"{host}:{port}", settings)


def _method(
    name: str, answer: Callable[[bytes], Awaitable[Any]], places: CallSlots
) -> Callable[..., Awaitable[Any]]:
    """The handler of a method: it reads one message in a slot, and turns a fault into a status.

    Methods are registered as streams, since gRPC reads the message of a unary call without limits.
    """

    async def call(messages: Any, context: Any) -> Any:
        try:
            async with places.one():
                data = await context.read()
            if data is grpc.aio.EOF:
                raise invalid(f"the call has no message; valid is a {name}Request")
            return await answer(data)
        except Fault as fault:
            await _abort(context, fault)
        except Exception as error:
            log.exception("%s fails", name)
            await _abort(context, Fault(Refusal.FAILED, f"internal error: {type(error).__name__}"))

    return call


def _parsed(name: str, data: bytes) -> Any:
    """Parses the request of a method; Fault if the bytes are no such message."""
    try:
        return message(f"{name}Request").FromString(data)
    except DecodeError as error:
        raise invalid(f"the message is no {name}Request: {error}") from error


async def _abort(context: Any, fault: Fault) -> None:
    """Ends a call with the status of a fault."""
    await context.abort(getattr(grpc.StatusCode, fault.kind.code), str(fault))


class _Gate(grpc.aio.ServerInterceptor):
    """An interceptor that refuses calls without the token."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    async def intercept_service(self, continuation: Any, details: Any) -> Any:
        try:
            if details.method.rpartition("/")[2] not in _OPEN:
                check_token(self._settings, dict(details.invocation_metadata).get("authorization"))
        except Fault as fault:
            refused = fault

            async def refuse(messages: Any, context: Any) -> None:
                await _abort(context, refused)

            return grpc.stream_unary_rpc_method_handler(refuse)
        return await continuation(details)


class _Service:
    """The protocol's methods, each a function from the request to the response."""

    def __init__(self, repository: Repository) -> None:
        self._repository = repository
        self._in_work = InWork(repository.settings.max_requests)
        plain: Mapping[str, Callable[[Any], Awaitable[Any]]] = {
            "ServerLive": self._live,
            "ServerReady": self._ready,
            "ServerMetadata": self._server,
            "ModelReady": self._model_ready,
            "ModelMetadata": self._model,
            "RepositoryIndex": self._index,
            "RepositoryModelLoad": self._load,
            "RepositoryModelUnload": self._unload,
        }
        #: Method name -> function from the bytes of the request to the response.
        self.methods: Mapping[str, Callable[[bytes], Awaitable[Any]]] = {
            _INFER: self._infer,
            **{name: _small(name, answer) for name, answer in plain.items()},
        }

    async def _live(self, request: Any) -> Any:
        return message("ServerLiveResponse")(live=True)

    async def _ready(self, request: Any) -> Any:
        return message("ServerReadyResponse")(ready=self._repository.is_ready)

    async def _server(self, request: Any) -> Any:
        return message("ServerMetadataResponse")(**protocol.server_metadata())

    async def _model_ready(self, request: Any) -> Any:
        entry = self._repository.entry(request.name, request.version)
        return message("ModelReadyResponse")(ready=entry.batcher is not None)

    async def _model(self, request: Any) -> Any:
        metadata = protocol.model_metadata(self._repository, request.name, request.version)
        return message("ModelMetadataResponse")(**metadata)

    async def _index(self, request: Any) -> Any:
        models = protocol.index(self._repository, request.ready)
        return message("RepositoryIndexResponse")(models=models)

    async def _load(self, request: Any) -> Any:
        protocol.check_change(request.parameters)
        await self._repository.load(request.model_name)
        return message("RepositoryModelLoadResponse")()

    async def _unload(self, request: Any) -> Any:
        protocol.check_change(request.parameters)
        await self._repository.unload(request.model_name)
        return message("RepositoryModelUnloadResponse")()

    async def _infer(self, data: bytes) -> Any:
        with self._in_work.one_more():
            return await self._answer(data)

    async def _answer(self, data: bytes) -> Any:
        """Parses an inference request, serves it, and makes the response."""
        rest, raw = raw_tensors(data, self._repository.settings.max_json_bytes)
        interleaved = call_now if len(rest) <= INLINE_BYTES else self._repository.beside
        request = await interleaved(lambda: _parsed(_INFER, rest))
        answer = await protocol.infer(
            self._repository,
            "grpc",
            request.model_name,
            request.model_version,
            lambda: _request_of(request, raw),
            interleaved,
        )
        source = answer.model.source
        response = message("ModelInferResponse")(
            model_name=source.name, model_version=str(source.version), id=request.id
        )
        for spec, array in answer.outputs:
            response.outputs.add(name=spec.name, datatype=spec.datatype, shape=array.shape)
            response.raw_output_contents.append(np.ascontiguousarray(array).tobytes())
        return response


def _small(name: str, answer: Callable[[Any], Awaitable[Any]]) -> Callable[[bytes], Awaitable[Any]]:
    """A method whose requests have no tensors; longer ones than these need are refused."""

    async def call(data: bytes) -> Any:
        if len(data) > INLINE_BYTES:
            raise Fault(
                Refusal.TOO_LARGE,
                f"the message has {len(data)} bytes; valid are at most {INLINE_BYTES} for a "
                f"{name}Request",
            )
        return await answer(_parsed(name, data))

    return call


def _request_of(request: Any, raw: Sequence[memoryview]) -> protocol.Request:
    """The request of a message and its raw tensors; Fault if these contradict each other."""
    protocol.check_parameters("the request", list(request.parameters))
    for tensor in (*request.inputs, *request.outputs):
        protocol.check_parameters(f"{tensor.name!r:.100}", list(tensor.parameters))
    if raw and len(raw) != len(request.inputs):
        raise invalid(
            f"raw_input_contents has {len(raw)} parts; valid are {len(request.inputs)}, one for "
            "each input, or none"
        )
    inputs = [
        RequestTensor(
            tensor.name, tensor.datatype, tuple(tensor.shape), raw[i] if raw else _contents(tensor)
        )
        for i, tensor in enumerate(request.inputs)
    ]
    if raw and any(tensor.HasField("contents") for tensor in request.inputs):
        raise invalid("inputs have contents beside raw_input_contents; valid is one of both")
    return protocol.Request(inputs, [tensor.name for tensor in request.outputs], request.id)


def _contents(given: Any) -> Sequence[Any]:
    """The numbers of an input that is not raw, from the field for its datatype."""
    field = _CONTENTS.get(given.datatype)
    if field is None:
        raise invalid(
            f"input {given.name!r:.100} has datatype {given.datatype!r:.40} in contents; valid are "
            f"{', '.join(_CONTENTS)}, and others in raw_input_contents"
        )
    numbers: Sequence[Any] = getattr(given.contents, field)
    return numbers
