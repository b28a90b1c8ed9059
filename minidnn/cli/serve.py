"""``minidnn serve``: networks behind the Open Inference Protocol."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from minidnn.cli.arguments import add_device, count, count_from_0, positive, size
from minidnn.errors import DeviceError, MiniDNNError

HELP = "serve networks over REST and gRPC"
DESCRIPTION = """\
Serves models by the Open Inference Protocol (v2), with REST on --port and gRPC on --grpc-port.
MODEL is PATH, name=PATH or name:version=PATH, where PATH is a network of the zoo, an ONNX file, a
file that minidnn export compiled (.mdx), or one that save_graph wrote.

    minidnn serve resnet50.DEFAULT
    minidnn serve digits:1=old.mdx digits:2=new.onnx --max-batch 16 --max-delay-ms 2

Requests are gathered in batches. The page at / shows models, latency and queues. SIGTERM stops the
server once it has answered what it took."""

_TOKEN = "MINIDNN_SERVE_TOKEN"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("models", metavar="MODEL", nargs="+", help="PATH, name=PATH or name:version=PATH")
    add_device(parser)
    add("--threads", type=count, help="threads of the CPU (all usable cores)")
    add("--size", type=size, help="224 or 192x256, where a network leaves it open")
    batches = parser.add_argument_group("batches")
    add = batches.add_argument
    add("--max-batch", type=count, default=8, metavar="ROWS", help="rows of a batch (8)")
    add(
        "--max-delay-ms",
        type=positive,
        default=5.0,
        metavar="MS",
        help="how long a row waits for others (5)",
    )
    add(
        "--max-queue",
        type=count,
        metavar="ROWS",
        help="rows that wait for a model, beyond which requests are refused (8 batches)",
    )
    limits = parser.add_argument_group("limits")
    add = limits.add_argument
    add("--max-requests", type=count, default=64, help="requests in work, of each protocol (64)")
    add("--max-request-mb", type=count, default=32, metavar="MIB", help="of one request (32)")
    add(
        "--max-json-mb",
        type=count,
        default=4,
        metavar="MIB",
        help="of what is not binary in one request (4)",
    )
    add(
        "--read-seconds",
        type=positive,
        default=30.0,
        metavar="S",
        help="that a request may take to arrive (30)",
    )
    add(
        "--stop-seconds",
        type=positive,
        default=30.0,
        metavar="S",
        help="that requests may take when the server stops (30)",
    )
    access = parser.add_argument_group("access")
    add = access.add_argument
    add("--host", default="127.0.0.1", help="address to listen on (127.0.0.1)")
    add("--port", type=_port, default=8000, help="of REST (8000; 0 is any)")
    add("--grpc-port", type=_port, default=8001, help="of gRPC (8001; 0 is any)")
    add("--no-grpc", action="store_true", help="REST alone")
    add("--tls-certificate", metavar="FILE", help="PEM; with it, both protocols use TLS")
    add("--tls-key", metavar="FILE", help="PEM")
    add(
        "--token-file",
        type=Path,
        metavar="FILE",
        help=f"its text is what callers must show (the variable {_TOKEN}, or nothing)",
    )


def _port(text: str) -> int:
    number = count_from_0(text)
    if number > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is no port; valid are 0 to 65535")
    return number


def run(options: argparse.Namespace) -> int:
    try:
        from minidnn.serving.server import Server
        from minidnn.serving.settings import MEBIBYTE, Settings
    except ImportError as error:
        raise DeviceError(
            f"serving needs the package {error.name!r}: pip install 'minidnn[serve]'"
        ) from error
    from minidnn.cli.served import sources_of

    if (options.tls_certificate is None) != (options.tls_key is None):
        raise MiniDNNError("--tls-certificate and --tls-key: valid are both, or neither")
    settings = Settings(
        host=options.host,
        port=options.port,
        grpc_port=None if options.no_grpc else options.grpc_port,
        max_batch=options.max_batch,
        max_delay=options.max_delay_ms / 1000,
        max_queue=options.max_queue or 8 * options.max_batch,
        max_requests=options.max_requests,
        max_request_bytes=options.max_request_mb * MEBIBYTE,
        max_json_bytes=options.max_json_mb * MEBIBYTE,
        read_seconds=options.read_seconds,
        stop_seconds=options.stop_seconds,
        certificate=options.tls_certificate,
        key=options.tls_key,
        token=_token(options),
    )
    if not settings.is_local and settings.token is None:
        _say(f"--host {settings.host} lets others in, and no token is asked for (--token-file)")
    Server(sources_of(options, _say), settings, _say).run()
    return 0


def _token(options: argparse.Namespace) -> str | None:
    if options.token_file is None:
        return os.environ.get(_TOKEN) or None
    try:
        token: str = options.token_file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise MiniDNNError(f"--token-file {options.token_file} cannot be read: {error}") from error
    if not token:
        raise MiniDNNError(f"--token-file {options.token_file} is empty; valid is a token")
    return token


def _say(text: str) -> None:
    print(f"minidnn serve: {text}", file=sys.stderr, flush=True)
