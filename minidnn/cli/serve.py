"""``minidnn serve``: serves networks by the Open Inference Protocol.

Each MODEL is parsed to a source: a name, a version, and a function that opens the network.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minidnn.cli.arguments import add_device, count, count_from_0, positive, size
from minidnn.errors import DeviceError, GraphError, MiniDNNError

if TYPE_CHECKING:
    from minidnn.dynamic.loaded import BatchExecutable
    from minidnn.executable import Executable
    from minidnn.preparation import Preparation
    from minidnn.serving.model import Opened, Source


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


_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", re.ASCII)


def sources_of(options: argparse.Namespace, say: Callable[[str], None]) -> list[Source]:
    """The sources of all models; MiniDNNError if a MODEL is malformed, or a version is given twice.

    ``say`` receives a message about the preparation of pictures when a file with one is opened.
    """
    sources: dict[tuple[str, int], Source] = {}
    for text in options.models:
        source = _source(text, options, say)
        if (key := (source.name, source.version)) in sources:
            raise MiniDNNError(
                f"MODEL {text!r}: version {source.version} of {source.name!r} is given twice; "
                "valid is name:version=path with another version"
            )
        sources[key] = source
    return list(sources.values())


def _source(text: str, options: argparse.Namespace, say: Callable[[str], None]) -> Source:
    from minidnn.cli import preparing
    from minidnn.frontends.zoo import is_path
    from minidnn.serving.model import Source

    head, equals, path = text.partition("=")
    if not equals:
        head, path = "", text
    name, colon, version = head.partition(":")
    if not equals:
        name = os.path.splitext(os.path.basename(path))[0] if is_path(path) else path
    valid_version = re.fullmatch(r"[1-9]\d{0,8}", version, re.ASCII) if colon else True
    if not path or not _NAME.fullmatch(name) or not valid_version:
        raise MiniDNNError(
            f"MODEL {text!r}: valid are PATH, name=PATH and name:version=PATH, with a name of "
            "letters, digits, '.', '_' and '-', and a version from 1 on"
        )
    number = int(version) if colon else 1

    def opened() -> Opened:
        network = _open(path, options)
        if network.preparation is not None and is_path(path):
            told = preparing.told(options, network.preparation)
            say(f"model {name!r} takes pictures that are {told}")
        return network

    return Source(name, number, _platform(path), opened)


def _platform(path: str) -> str:
    ending = os.path.splitext(path)[1].lower()
    return {".onnx": "minidnn_onnx", ".mdx": "minidnn_compiled"}.get(ending, "minidnn")


def _open(path: str, options: argparse.Namespace) -> Opened:
    """Opens a network: a compiled file, an ONNX file, a graph file, or a name of the zoo."""
    import minidnn
    from minidnn.backends.backend import check_not_automatic
    from minidnn.cli import preparing
    from minidnn.cli.networks import is_onnx
    from minidnn.compiled_file import is_compiled
    from minidnn.frontends.zoo import is_path, network_of
    from minidnn.serving.model import Opened

    if is_compiled(path):
        asked = {"device": options.device, "threads": options.threads}
        arguments = {name: value for name, value in asked.items() if value is not None}
        return _compiled(minidnn.load(path, **arguments), preparing.file_says(path))
    arguments = {
        name: value
        for name in ("device", "precision", "threads")
        if (value := getattr(options, name)) is not None
    }
    # With "auto", each batch size would get its own precision.
    check_not_automatic(options.precision, "serving, which compiles several sizes of batches")
    if is_onnx(path):
        return _onnx(path, options, arguments)
    if is_path(path):
        return _saved(path, options, arguments)
    network = network_of(path)
    channels, *own_size = network.input_shape
    size = options.size or own_size
    known = preparing.fitted(preparing.of_zoo(path), [(None, channels, *size)])
    return Opened(
        lambda rows: minidnn.compile(network, (rows or 1, channels, *size), **arguments),
        True,
        known,
    )


def _compiled(network: Executable | BatchExecutable, known: Preparation | None) -> Opened:
    """Opens a compiled network, for one size or for a range of batches."""
    from minidnn.dynamic.loaded import BatchExecutable
    from minidnn.serving.model import Opened

    if not isinstance(network, BatchExecutable):
        return Opened(lambda rows: network, False, known)
    programs, (batch,) = network.programs, network.dims
    return Opened(lambda rows: programs[rows or batch.least], True, known, batch, sorted(programs))


def _saved(path: str, options: argparse.Namespace, own: dict[str, Any]) -> Opened:
    """Opens a graph file, for one size or for ranges of sizes."""
    import minidnn
    from minidnn.cli import preparing
    from minidnn.cli.networks import batch_of, sized_at
    from minidnn.serving.model import Opened
    from minidnn.sizes.sized_graph import SizedGraph

    graph, known = minidnn.load_graph(path), preparing.file_says(path)
    if not isinstance(graph, SizedGraph):
        return Opened(lambda rows: minidnn.compile(graph, **own), False, known)
    batch = batch_of(graph.templates)
    size = preparing.size_of(known, graph.templates, options.size)
    if known is not None and size is not None:
        known = preparing.fitted(known, [(None, known.channels, *size)])
    return Opened(
        lambda rows: minidnn.compile(sized_at(graph, rows, size), **own),
        batch is not None,
        known,
        batch,
    )


def _onnx(path: str, options: argparse.Namespace, own: dict[str, Any]) -> Opened:
    """Opens an ONNX file, which is read once for all batch sizes."""
    import minidnn
    from minidnn.cli import preparing
    from minidnn.cli.networks import batch_of, onnx_graph, onnx_sizes
    from minidnn.frontends.onnx.model import read_model
    from minidnn.frontends.onnx.shapes import named_shapes
    from minidnn.prepared_files import preparation_of_model
    from minidnn.serving.model import Opened

    model = read_model(path)
    known = preparation_of_model(model)
    sizes = onnx_sizes(model)
    size = preparing.size_of(known, sizes, options.size)
    is_open = bool(sizes) and all(each and not isinstance(each[0], int) for each in sizes)
    if not is_open and options.size is not None:
        raise GraphError(f"--size {options.size}: {path!r} says its sizes")
    if known is not None and size is not None:
        known = preparing.fitted(known, [(None, known.channels, *size)])
    return Opened(
        lambda rows: minidnn.compile(onnx_graph(model, rows, size), **own),
        is_open,
        known,
        batch_of((named_shapes(model) or {}).values()) if is_open else None,
    )
