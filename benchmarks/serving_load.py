"""Load on a server that ``minidnn serve`` runs: its capacity, a steady load, and too much of it.

    minidnn serve resnet50 --device cpu --max-batch 32
    python benchmarks/serving_load.py resnet50 --rows 32 --concurrency 3   # rows a second
    python benchmarks/serving_load.py resnet50 --bare --rows 32            # the executable alone
    python benchmarks/serving_load.py resnet50 --study 300                 # 80 %, 200 % and 80 %

Requests come at random times, whether or not those before were answered (an open loop), but for
the capacity, where ``--concurrency`` requests are under way at any time.  The body of a request is
made once.  The processor time of this client is told, as it is taken from the server where both
share cores.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np

from minidnn.serving.messages import SERVICE, message
from minidnn.serving.rest_infer import LENGTH

#: Sends one request and gives its status: "ok", or what it was refused with.
Send = Callable[[], Awaitable[str]]


@dataclass
class Figures:
    """What a load came to: times in milliseconds, ``client_cpu`` in processor seconds a second.

    ``busy`` is the part of the time in which the server computed: more than the part of the
    capacity that was asked for, where the machine was slower than when the capacity was measured.
    """

    what: str
    seconds: float
    statuses: dict[str, int]
    rows_a_second: float
    p50: float
    p90: float
    p99: float
    client_cpu: float
    busy: float
    rows_a_batch: float


#: Seconds in which a server computed, batches, and their rows.
Computed = Callable[[], Awaitable[np.ndarray]]


class Load:
    """Requests under way, and what became of those that were answered."""

    def __init__(self, send: Send, computed: Computed, rows: int) -> None:
        self._send, self._computed, self._rows = send, computed, rows
        self._statuses: Counter[str] = Counter()
        self._latencies: list[float] = []

    async def closed(self, concurrency: int, seconds: float) -> Figures:
        """So many requests at any time."""

        async def repeat(end: float) -> None:
            while time.monotonic() < end:
                await self._one(time.monotonic())

        return await self._timed(
            f"{concurrency} at a time",
            seconds,
            lambda end: asyncio.gather(*(repeat(end) for _ in range(concurrency))),
        )

    async def opened(self, rate: float, seconds: float) -> Figures:
        """Requests at random times, ``rate`` of them a second; each counts from its own time."""

        async def arrive(end: float) -> None:
            draws, due = random.Random(0), time.monotonic()
            async with asyncio.TaskGroup() as group:
                while (due := due + draws.expovariate(rate)) < end:
                    await asyncio.sleep(max(0.0, due - time.monotonic()))
                    group.create_task(self._one(due))

        return await self._timed(f"{rate * self._rows:.1f} rows a second", seconds, arrive)

    async def _timed(
        self, what: str, seconds: float, run: Callable[[float], Awaitable[Any]]
    ) -> Figures:
        self._statuses.clear()
        self._latencies.clear()
        before = await self._computed()
        begun, cpu = time.monotonic(), time.process_time()
        await run(begun + seconds)
        took, cpu = time.monotonic() - begun, time.process_time() - cpu
        busy, batches, rows = await self._computed() - before
        return Figures(
            what,
            round(took, 2),
            dict(self._statuses),
            round(self._statuses["ok"] * self._rows / took, 2),
            *_quantiles(self._latencies),
            round(cpu / took, 3),
            round(busy / took, 3),
            round(rows / max(batches, 1), 2),
        )

    async def _one(self, due: float) -> None:
        status = await self._send()
        self._statuses[status] += 1
        if status == "ok":
            self._latencies.append(time.monotonic() - due)


async def sender(options: argparse.Namespace, stack: AsyncExitStack) -> Send:
    """What sends a request of random rows over the protocol that was asked for."""
    found = await metadata(options)
    given = found["inputs"][0]
    shape = [options.rows, *map(int, given["shape"][1:])]
    x = np.random.default_rng(0).standard_normal(shape, np.float32)
    if options.protocol == "grpc":
        return await _over_grpc(options, stack, given["name"], x)
    return await _over_rest(options, stack, given["name"], x)


async def metadata(options: argparse.Namespace) -> Any:
    import aiohttp

    url = f"http://{options.rest}/v2/models/{options.model}"
    try:
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
            answer.raise_for_status()
            return await answer.json()
    except aiohttp.ClientError as error:
        raise SystemExit(
            f"{url} does not answer: {error}; valid is a server that serves it, which "
            f"'minidnn serve {options.model}' starts, at --rest"
        ) from error


async def computed(options: argparse.Namespace) -> np.ndarray:
    """Of all versions of the model, what the server's metrics say."""
    import aiohttp

    names = ("batch_seconds_sum", "batch_rows_count", "batch_rows_sum")
    found = dict.fromkeys(names, 0.0)
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://{options.rest}/metrics") as answer,
    ):
        text = await answer.text()
    for name, labels, value in re.findall(r"^minidnn_(\w+)\{(.*)\} (\S+)$", text, re.MULTILINE):
        if name in found and f'model="{options.model}"' in labels:
            found[name] += float(value)
    return np.array(list(found.values()))


async def _over_grpc(
    options: argparse.Namespace, stack: AsyncExitStack, name: str, x: np.ndarray
) -> Send:
    import grpc

    request = message("ModelInferRequest")(model_name=options.model)
    request.inputs.add(name=name, datatype="FP32", shape=x.shape)
    request.raw_input_contents.append(x.tobytes())
    body = request.SerializeToString()
    unlimited = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    channel = await stack.enter_async_context(grpc.aio.insecure_channel(options.grpc, unlimited))
    call = channel.unary_unary(f"/{SERVICE}/ModelInfer")

    async def send() -> str:
        try:
            await call(body)
            return "ok"
        except grpc.RpcError as error:
            return str(error.code().name)

    return send


async def _over_rest(
    options: argparse.Namespace, stack: AsyncExitStack, name: str, x: np.ndarray
) -> Send:
    import aiohttp

    given: dict[str, Any] = {"name": name, "datatype": "FP32", "shape": x.shape}
    headers = {"Content-Type": "application/json"}
    if options.protocol == "json":
        body = json.dumps({"inputs": [{**given, "data": x.ravel().tolist()}]}).encode()
    else:
        given["parameters"] = {"binary_data_size": x.nbytes}
        document = {"inputs": [given], "parameters": {"binary_data_output": True}}
        head = json.dumps(document).encode()
        headers = {LENGTH: str(len(head))}
        body = head + x.tobytes()
    connector = aiohttp.TCPConnector(limit=0)
    session = await stack.enter_async_context(aiohttp.ClientSession(connector=connector))
    url = f"http://{options.rest}/v2/models/{options.model}/infer"

    async def send() -> str:
        try:
            async with session.post(url, data=body, headers=headers) as answer:
                await answer.read()
                return "ok" if answer.status == 200 else str(answer.status)
        except aiohttp.ClientError as error:
            return type(error).__name__

    return send


async def run(options: argparse.Namespace) -> list[Figures]:
    async with AsyncExitStack() as stack:
        send = await sender(options, stack)
        load = Load(send, partial(computed, options), options.rows)
        await load.closed(1, 1.0)  # the first requests are slower
        found = [_told(await load.closed(options.concurrency, options.seconds))]
        if options.study:
            rate = found[0].rows_a_second / options.rows
            for part, seconds in ((0.8, options.study), (2.0, 20.0), (0.8, 20.0)):
                found.append(_told(await load.opened(part * rate, seconds)))
        return found


def bare(options: argparse.Namespace) -> Figures:
    """The executable by itself, as the server calls it."""
    import minidnn
    from minidnn.frontends.zoo import network_of

    network = network_of(options.model)
    shape = (options.rows, *network.input_shape)
    executable = minidnn.compile(network, shape, device=options.device)
    inputs = executable.random_inputs()
    for _ in range(3):
        executable(*inputs)
    times, begun, cpu = [], time.monotonic(), time.process_time()
    while time.monotonic() - begun < options.seconds:
        before = time.monotonic()
        executable(*inputs)
        times.append(time.monotonic() - before)
    took = time.monotonic() - begun
    return Figures(
        "the executable alone",
        round(took, 2),
        {"ok": len(times)},
        round(len(times) * options.rows / took, 2),
        *_quantiles(times),
        round((time.process_time() - cpu) / took, 3),
        round(sum(times) / took, 3),
        options.rows,
    )


def _quantiles(seconds: Sequence[float]) -> tuple[float, float, float]:
    """p50, p90 and p99 in milliseconds."""
    p50, p90, p99 = np.quantile(seconds or [np.nan], [0.5, 0.9, 0.99]) * 1000
    return round(float(p50), 2), round(float(p90), 2), round(float(p99), 2)


def _told(figures: Figures) -> Figures:
    print(json.dumps(asdict(figures)), flush=True)
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("model", help="its name on the server; with --bare a network of the zoo")
    add("--rest", default="127.0.0.1:8000", help="the server's address (127.0.0.1:8000)")
    add("--grpc", default="127.0.0.1:8001", help="the server's address (127.0.0.1:8001)")
    add("--protocol", choices=("grpc", "binary", "json"), default="grpc", help="(grpc)")
    add("--rows", type=int, default=1, help="of a request (1)")
    add("--concurrency", type=int, default=16, help="requests at any time, for the capacity (16)")
    add("--seconds", type=float, default=10.0, help="for the capacity (10)")
    add("--study", type=float, metavar="SECONDS", help="of 80 %% of the capacity; then 200 %%")
    add("--bare", action="store_true", help="no server: the executable in this process")
    add("--device", default="cpu", help="of --bare (cpu)")
    options = parser.parse_args()
    if options.bare:
        _told(bare(options))
    else:
        asyncio.run(run(options))
    return 0


if __name__ == "__main__":
    sys.exit(main())
