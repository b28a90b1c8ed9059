"""Which requests share a batch, and when it begins."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tritonclient import grpc as triton_grpc

from minidnn.serving.metrics import Meter, Metrics
from minidnn.serving.model import evened, load, sizes_of
from minidnn.serving.repository import Batcher
from minidnn.serving.settings import Settings

from .conftest import Running, Weights, linear, running
from .test_clients import ask, rows
from .test_page import get


def ask_at_once(server: Running, known: Weights, counts: list[int]) -> float:
    """Requests of so many rows, all at once, whose results must be their own; the seconds."""

    def one(seed: int) -> None:
        with triton_grpc.InferenceServerClient(server.grpc) as client:
            client.module = triton_grpc
            x = rows(counts[seed], seed)
            np.testing.assert_allclose(ask(client, x).as_numpy("output"), known(x), rtol=1e-4)

    begun = time.monotonic()
    with ThreadPoolExecutor(len(counts)) as pool:
        list(pool.map(one, range(len(counts))))
    return time.monotonic() - begun


def batches(server: Running) -> tuple[float, float]:
    """How many batches ran, and how many rows they had."""
    found: dict[str, Any] = {
        sample.name: sample.value
        for family in text_string_to_metric_families(get(server.rest, "/metrics")[1])
        for sample in family.samples
    }
    return found["minidnn_batch_rows_count"], found["minidnn_batch_rows_sum"]


def test_a_full_batch_waits_for_nobody(known: Weights) -> None:
    with running(linear(known), max_batch=4, max_delay=60.0) as server:
        assert ask_at_once(server, known, [1, 2, 1]) < 30.0
        assert batches(server) == (1, 4)


def test_a_batch_begins_when_its_first_row_has_waited(known: Weights) -> None:
    with running(linear(known), max_batch=8, max_delay=0.5) as server:
        assert ask_at_once(server, known, [3]) >= 0.5
        assert batches(server) == (1, 3)


def test_what_does_not_fit_comes_next(known: Weights) -> None:
    with running(linear(known), max_batch=4, max_delay=0.2) as server:
        ask_at_once(server, known, [3, 3, 3])
        assert batches(server) == (3, 9)


@pytest.mark.parametrize(
    ("most", "sizes"), [(1, [1]), (2, [1, 2]), (6, [1, 2, 4, 6]), (8, [1, 2, 4, 8])]
)
def test_sizes_of_batches(known: Weights, most: int, sizes: list[int]) -> None:
    assert sizes_of(most) == sizes
    model = load(linear(known), most)
    x = rows(most)
    for total in range(1, most + 1):
        parts = [x[i : i + 1] for i in range(total)]
        found = model.run([[part] for part in parts], [1] * total)
        for part, (y,) in zip(parts, found, strict=True):
            np.testing.assert_allclose(y, known(part), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        ({1: 1.0, 2: 2.0, 4: 4.0, 8: 8.0}, [(0, 4), (4, 2), (6, 1)]),
        ({1: 1.0, 2: 1.1, 4: 1.2, 8: 1.3}, [(0, 8)]),
        ({1: 9.0, 2: 2.0, 4: 3.0, 8: 9.0}, [(0, 4), (3, 4)]),
    ],
)
def test_batches_between_sizes_take_the_faster_way(
    known: Weights, seconds: dict[int, float], expected: list[tuple[int, int]]
) -> None:
    model = load(linear(known), 8)
    model._seconds = seconds
    assert [(part.begin, part.rows) for part in model.parts_of(7)] == expected
    x = rows(7)
    for requests in ([x], [x[:3], x[3:]]):
        found = model.run([[each] for each in requests], [len(each) for each in requests])
        given = np.concatenate([y for (y,) in found])
        np.testing.assert_allclose(given, known(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        ({1: 1.0, 2: 2.2, 4: 4.0, 8: 8.3}, {1: 1.0, 2: 2.0, 4: 4.0, 8: 8.0}),
        ({1: 1.0, 2: 1.5, 4: 2.9, 8: 6.0}, {1: 1.0, 2: 1.5, 4: 2.9, 8: 5.8}),
        ({1: 1.0, 2: 3.0, 3: 2.0}, {1: 1.0, 2: 3.0, 3: 2.0}),  # not by noise alone
        ({4: 1.0}, {4: 1.0}),
    ],
)
def test_executables_about_as_fast_as_smaller_ones_are_no_slower(
    seconds: dict[int, float], expected: dict[int, float]
) -> None:
    assert evened(seconds) == expected


class Slow:
    """A model that computes a batch when it is told to, by executables for 1, 2 and 4 rows."""

    max_rows = 4
    source = SimpleNamespace(name="slow")

    def __init__(self) -> None:
        self.may_run = threading.Semaphore(0)
        self.batches: list[list[int]] = []

    def parts_of(self, rows: int) -> tuple[int, ...]:
        return {3: (2, 1)}.get(rows, (rows,))

    def run(self, requests: Any, rows: list[int]) -> list[list[np.ndarray]]:
        self.batches.append(rows)
        assert self.may_run.acquire(timeout=30)
        return [[np.asarray(each[0])] for each in requests]


async def batched(first: list[int], then: list[int]) -> list[list[int]]:
    """The rows of the requests of each batch: ``then`` come while the first batch is computed, and
    the last of them when the next was due already."""
    model, none = Slow(), Meter(Metrics(), "slow", 1)
    with ThreadPoolExecutor(1) as compute:
        batcher = Batcher(cast(Any, model), Settings(max_delay=0.01), compute, none)

        async def ask(rows: list[int]) -> list[asyncio.Task[list[np.ndarray]]]:
            asked = [asyncio.create_task(batcher.infer([np.array(n)], n)) for n in rows]
            await asyncio.sleep(0.1)
            return asked

        asked = await ask(first)
        for each in (then[:-1], then[-1:]):
            asked += await ask(each)
        for _ in range(len(first) + len(then)):
            model.may_run.release()
        answers = await asyncio.gather(*asked)
        await batcher.close()
    assert [int(y) for (y,) in answers] == [*first, *then]
    assert batcher.waiting_rows == 0
    return model.batches


@pytest.mark.parametrize(
    ("first", "then", "expected"),
    [
        ([1], [1, 2, 1], [[1], [1, 2, 1]]),  # the last, too
        ([1], [1, 1, 1], [[1], [1, 1], [1]]),  # by one executable
        ([3], [3, 3], [[3], [3], [3]]),  # but what comes together is answered together
        ([1, 1, 1], [2], [[1, 1], [1], [2]]),
        ([4], [], [[4]]),
    ],
)
def test_what_is_in_a_batch(first: list[int], then: list[int], expected: list[list[int]]) -> None:
    assert asyncio.run(batched(first, then)) == expected


def test_who_leaves_is_in_no_batch() -> None:
    async def left() -> list[list[int]]:
        model, none = Slow(), Meter(Metrics(), "slow", 1)
        with ThreadPoolExecutor(1) as compute:
            batcher = Batcher(cast(Any, model), Settings(max_delay=0.01), compute, none)
            asked = []
            for rows in (1, 2, 4):
                asked.append(asyncio.create_task(batcher.infer([np.array(rows)], rows)))
                await asyncio.sleep(0.1)
            asked[1].cancel()
            await asyncio.sleep(0.1)
            for _ in asked:
                model.may_run.release()
            found = await asyncio.gather(*asked, return_exceptions=True)
            assert isinstance(found[1], asyncio.CancelledError) and batcher.waiting_rows == 0
            await batcher.close()
        return model.batches

    assert asyncio.run(left()) == [[1], [4]]
