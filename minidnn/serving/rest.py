"""The Open Inference Protocol over REST, as an ASGI application of Starlette."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from minidnn.serving import protocol
from minidnn.serving.access import Gate
from minidnn.serving.connections import LEAST_BYTES, Bodies, accepted, packed
from minidnn.serving.documents import document, page_of
from minidnn.serving.json_numbers import parsed
from minidnn.serving.repository import INLINE_BYTES, InWork, Repository, call_now
from minidnn.serving.rest_infer import LENGTH, RestRequest, written
from minidnn.serving.settings import Fault, Refusal

log = logging.getLogger(__name__)

#: Seconds after which a browser reloads the status page.
REFRESH = 5

_ACCEPT = "Accept-Encoding"


def application(repository: Repository) -> Starlette:
    """The ASGI application of a server with these models."""
    return _Rest(repository).application()


class _Rest:
    """The handlers of all routes."""

    def __init__(self, repository: Repository) -> None:
        self._repository = repository
        self._settings = repository.settings
        self._bodies = Bodies(repository)
        self._in_work = InWork(repository.settings.max_requests)

    def application(self) -> Starlette:
        """The application with its routes, access control and error handlers."""
        model = "/v2/models/{name}"
        version = f"{model}/versions/{{version}}"
        routes = [
            Route("/", self._page),
            Route("/metrics", self._metrics),
            Route("/openapi.json", self._openapi),
            Route("/v2", self._server),
            Route("/v2/health/live", self._live),
            Route("/v2/health/ready", self._ready),
            Route("/v2/repository/index", self._index, methods=["POST"]),
            Route("/v2/repository/models/{name}/load", self._load, methods=["POST"]),
            Route("/v2/repository/models/{name}/unload", self._unload, methods=["POST"]),
        ]
        for path in (model, version):
            routes += [
                Route(path, self._model),
                Route(f"{path}/ready", self._model_ready),
                Route(f"{path}/infer", self._infer, methods=["POST"]),
            ]
        return Starlette(
            routes=routes,
            middleware=[Middleware(Gate, settings=self._settings, refuse=refusal)],
            exception_handlers={
                Fault: _on_fault,
                HTTPException: _on_http_exception,
                ClientDisconnect: _on_disconnect,
                Exception: _on_error,
            },
        )

    async def _page(self, request: Request) -> Response:
        return HTMLResponse(page_of(self._repository), headers={"Refresh": str(REFRESH)})

    async def _metrics(self, request: Request) -> Response:
        metrics = self._repository.metrics
        return Response(metrics.text(), headers={"Content-Type": metrics.content_type})

    async def _openapi(self, request: Request) -> Response:
        return JSONResponse(document(self._repository, self._settings.token is not None))

    async def _server(self, request: Request) -> Response:
        return JSONResponse(protocol.server_metadata())

    async def _live(self, request: Request) -> Response:
        return JSONResponse({"live": True})

    async def _ready(self, request: Request) -> Response:
        ready = self._repository.is_ready
        return JSONResponse({"ready": ready}, 200 if ready else Refusal.UNAVAILABLE.status)

    async def _model(self, request: Request) -> Response:
        given = (self._repository, *_model_of(request))
        told = protocol.model_metadata(*given)
        return JSONResponse({**told, "parameters": protocol.model_parameters(*given)})

    async def _model_ready(self, request: Request) -> Response:
        name, version = _model_of(request)
        ready = self._repository.entry(name, version).batcher is not None
        return JSONResponse(
            {"name": name, "ready": ready}, 200 if ready else Refusal.UNAVAILABLE.status
        )

    async def _index(self, request: Request) -> Response:
        given = await self._document(request)
        ready = given.get("ready", False)
        if not isinstance(ready, bool):
            raise Fault(Refusal.INVALID, f"ready is {ready!r:.40}; valid are true and false")
        return JSONResponse(protocol.index(self._repository, ready))

    async def _load(self, request: Request) -> Response:
        return await self._change(request, self._repository.load)

    async def _unload(self, request: Request) -> Response:
        return await self._change(request, self._repository.unload)

    async def _change(self, request: Request, change: Callable[[str], Awaitable[None]]) -> Response:
        """Loads or unloads the model of a path."""
        given = await self._document(request)
        protocol.check_change(given.get("parameters", {}))
        with self._in_work.one_more():
            await change(request.path_params["name"])
        return JSONResponse({})

    async def _document(self, request: Request) -> dict[str, Any]:
        """The JSON object of a small body; an empty body is an empty object."""
        body = await self._bodies.read_small(request)
        return parsed(body) if body else {}

    async def _infer(self, request: Request) -> Response:
        body = await self._bodies.read(request)
        with self._in_work.one_more():
            return await _unless_gone(request, self._answer(request, body))

    async def _answer(self, request: Request, body: bytearray) -> Response:
        """Parses an inference request, serves it, and writes the response."""
        asked: list[RestRequest] = []

        def read() -> protocol.Request:
            length = request.headers.get(LENGTH)
            asked.append(RestRequest(body, length, self._settings.max_json_bytes))
            return asked[0].request

        async def interleaved(call: Callable[[], protocol.Parsed]) -> protocol.Parsed:
            return await (call_now if len(body) <= INLINE_BYTES else self._repository.beside)(call)

        name, version = _model_of(request)
        answer = await protocol.infer(self._repository, "rest", name, version, read, interleaved)
        return await self._written(asked[0], answer, accepted(request.headers.get(_ACCEPT)))

    async def _written(
        self, asked: RestRequest, answer: protocol.Answer, coding: str | None
    ) -> Response:
        """The response of an answer, written in a thread if it is large or compressed."""

        def write() -> Response:
            content, length = written(asked, answer)
            headers = {} if length is None else {LENGTH: str(length)}
            if coding is not None and len(content) >= LEAST_BYTES:
                content = packed(content, coding)
                headers |= {"Content-Encoding": coding, "Vary": _ACCEPT}
            media = "application/json" if length is None else "application/octet-stream"
            return Response(content, media_type=media, headers=headers)

        size = sum(array.nbytes for _, array in answer.outputs)
        is_small = size <= (INLINE_BYTES >> 2 if coding is None else LEAST_BYTES >> 3)
        return await (call_now if is_small else self._repository.beside)(write)


async def _unless_gone(request: Request, answer: Any) -> Response:
    """The response; if the client disconnects first, ``answer`` is cancelled: ClientDisconnect."""

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    tasks = asyncio.create_task(answer), asyncio.create_task(gone())
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if tasks[0].done():
            return tasks[0].result()
        raise ClientDisconnect
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


def _model_of(request: Request) -> tuple[str, str]:
    """The name and the version in a path; "" is no version."""
    return request.path_params["name"], request.path_params.get("version", "")


def refusal(fault: Fault) -> Response:
    """The response of a refused request, with the reason as JSON."""
    headers = {}
    if fault.kind is Refusal.UNAUTHORIZED:
        headers["WWW-Authenticate"] = 'Basic realm="minidnn: the password is the token"'
    if fault.kind in (Refusal.FULL, Refusal.UNAVAILABLE):
        headers["Retry-After"] = "1"
    if fault.kind in (Refusal.TOO_LARGE, Refusal.SLOW, Refusal.FULL, Refusal.ENCODED):
        headers["Connection"] = "close"  # the rest of the body is not read
    return JSONResponse({"error": str(fault)}, fault.kind.status, headers)


async def _on_fault(request: Request, error: Any) -> Response:
    return refusal(error)


async def _on_http_exception(request: Request, error: Any) -> Response:
    told = f"{request.method} {request.url.path!r:.200}: {error.detail}"
    return JSONResponse({"error": told}, error.status_code, dict(error.headers or {}))


async def _on_disconnect(request: Request, error: Any) -> Response:
    return Response(status_code=499)  # nobody reads it


async def _on_error(request: Request, error: Any) -> Response:
    log.error("a request fails", exc_info=error)
    return refusal(Fault(Refusal.FAILED, f"internal error: {type(error).__name__}"))
