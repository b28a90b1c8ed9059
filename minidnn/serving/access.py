"""Access control: a token and, without one, refusal of requests from pages of other sites."""

from __future__ import annotations

import base64
import binascii
import hmac
import ssl
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers

from minidnn.errors import DeviceError
from minidnn.serving.settings import Fault, Refusal, Settings

#: Paths that need no token: an orchestrator's probes.
OPEN = ("/v2/health/live", "/v2/health/ready")


def check_token(settings: Settings, authorization: str | None) -> None:
    """Fault unless an Authorization header has the server's token, if the server has one.

    The token is a bearer token, or the password of basic authentication, which browsers send.
    """
    if settings.token is None:
        return
    scheme, _, token = (authorization or "").partition(" ")
    if scheme.lower() == "basic":
        try:
            token = base64.b64decode(token, validate=True).decode().partition(":")[2]
        except (binascii.Error, UnicodeDecodeError):
            token = ""
    elif scheme.lower() != "bearer":
        token = ""
    if not hmac.compare_digest(token.encode(), settings.token.encode()):
        raise Fault(
            Refusal.UNAUTHORIZED,
            "the token is missing or wrong; valid is the header 'Authorization: Bearer TOKEN'",
        )


def check_certificate(settings: Settings) -> None:
    """DeviceError if TLS is on and its files are not a certificate and the certificate's key.

    It is checked here because errors of the server libraries name no file, and one of these
    libraries asks the terminal for a password.
    """
    if settings.certificate is None or settings.key is None:
        return
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(settings.certificate, settings.key, password=lambda: "")
    except (OSError, ValueError) as error:
        raise DeviceError(
            f"certificate {settings.certificate} and key {settings.key} cannot be used: {error}; "
            "valid are PEM files of a certificate and of its own key, which has no password"
        ) from error


def check_site(settings: Settings, headers: Headers) -> None:
    """Fault for requests that a page of another site makes a browser send.

    Without a token, nothing else protects a server on this machine from them.
    """
    if settings.token is not None:
        return
    host, origin = headers.get("host", ""), headers.get("origin")
    if origin is not None and urlsplit(origin).netloc != host:
        raise Fault(Refusal.FORBIDDEN, f"origin {origin!r:.100} is another site")
    name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
    valid = name in ("localhost", "[::1]", "") or name.startswith("127.")
    if settings.is_local and not valid:
        raise Fault(
            Refusal.FORBIDDEN,
            f"host {name!r:.100} is no name of this machine's loopback; valid is localhost, or a "
            "token",
        )


class Gate:
    """ASGI middleware that passes on allowed requests; ``refuse`` answers the others.

    Args:
        app: the application behind it.
        settings: have the token and the host.
        refuse: makes the response of a fault.
    """

    def __init__(
        self,
        app: Callable[..., Awaitable[None]],
        settings: Settings,
        refuse: Callable[[Fault], Any],
    ) -> None:
        self._app, self._settings, self._refuse = app, settings, refuse

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            try:
                check_site(self._settings, headers)
                if scope["path"] not in OPEN:
                    check_token(self._settings, headers.get("authorization"))
            except Fault as fault:
                await self._refuse(fault)(scope, receive, send)
                return
        await self._app(scope, receive, send)
