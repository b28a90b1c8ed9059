"""The server: it listens, loads its models, serves until it is stopped, and finishes accepted
requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import uvicorn

from minidnn.errors import DeviceError
from minidnn.serving.access import check_certificate
from minidnn.serving.connections import Connection, Unfinished
from minidnn.serving.grpc_service import started_server
from minidnn.serving.model import Source
from minidnn.serving.repository import Repository
from minidnn.serving.rest import application
from minidnn.serving.settings import Settings

log = logging.getLogger(__name__)

#: The most connections of REST.
MOST_CONNECTIONS = 1000

_SWITCH_SECONDS = 5e-4
"""The interpreter's thread switch interval: cores idle while a parsing thread delays a batch."""


class _Uvicorn(uvicorn.Server):
    """uvicorn's server without its signal handlers, as :class:`Server` has its own."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Server:
    """Serves models from their sources, over REST and gRPC.

    Args:
        sources: the versions of all models.
        settings: limits, addresses and secrets.
        started: is called with a line of text for each address that the server listens on, and with
            "ready" once all models are.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        settings: Settings,
        started: Callable[[str], None] = lambda told: None,
    ) -> None:
        self._sources = sources
        self._settings = settings
        self._started = started
        self._stop = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self) -> None:
        """Serves until SIGTERM, SIGINT or :meth:`stop`.

        DeviceError if the server cannot listen on an address, or cannot use the certificate; Fault
        if a model cannot be loaded.
        """
        before = sys.getswitchinterval()
        sys.setswitchinterval(_SWITCH_SECONDS)
        try:
            asyncio.run(self.serve())
        finally:
            sys.setswitchinterval(before)

    def stop(self) -> None:
        """Ends :meth:`run`, from any thread, once accepted requests are answered."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._stop.set)

    async def serve(self) -> None:
        """Serves as :meth:`run` does, in the running event loop."""
        check_certificate(self._settings)
        loop = self._loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            with contextlib.suppress(ValueError, RuntimeError):  # not in the main thread
                loop.add_signal_handler(number, self._stop.set)
        settings, repository = self._settings, Repository(self._sources, self._settings)
        listener = listen(settings.host, settings.port)
        try:
            rpc = None if settings.grpc_port is None else await started_server(repository)
        except BaseException:
            listener.close()
            raise
        rest = self._rest(repository)
        serving = loop.create_task(rest.serve(sockets=[listener]))
        scheme = "https" if settings.certificate else "http"
        self._started(f"REST on {scheme}://{_address(listener)}")
        if rpc is not None:
            self._started(f"gRPC on {rpc.address}")
        loading = loop.create_task(repository.load_all())
        stopping = loop.create_task(self._stop.wait())
        try:
            await asyncio.wait((loading, stopping, serving), return_when=asyncio.FIRST_COMPLETED)
            if loading.done():
                loading.result()
                self._started("ready")
                await asyncio.wait((stopping, serving), return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
            loading.cancel()
            rest.should_exit = True
            leaving = [serving] if rpc is None else [serving, loop.create_task(rpc.stop())]
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(settings.stop_seconds):
                    await repository.close()
            await asyncio.gather(*leaving)

    def _rest(self, repository: Repository) -> uvicorn.Server:
        """The HTTP server of the REST application, with its limits."""
        settings = self._settings
        return _Uvicorn(
            uvicorn.Config(
                application(repository),
                http=partial(
                    Connection,
                    most=_most_connections(),
                    unread=Unfinished(settings.max_unfinished_bytes),
                ),
                ws="none",
                lifespan="off",
                log_config=None,
                log_level="error",  # garbage from clients would fill the log
                access_log=False,
                proxy_headers=False,
                server_header=False,
                timeout_keep_alive=max(1, round(settings.read_seconds)),
                timeout_graceful_shutdown=max(1, round(settings.stop_seconds)),
                ssl_certfile=settings.certificate,
                ssl_keyfile=settings.key,
            )
        )


def _most_connections() -> int:
    """The most connections of REST, which leaves file descriptors for models and for gRPC."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return min(MOST_CONNECTIONS, max(16, files // 2))


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; DeviceError if the address is not available."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.create_server((host, port), family=family, backlog=1024)
        # Connections inherit it; asyncio sets it only for sockets that name their protocol.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listener
    except OSError as error:
        raise DeviceError(f"{host}:{port} cannot be listened on: {error.strerror}") from error


def _address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
