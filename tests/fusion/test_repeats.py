"""Blocks that repeat: what is known of one is not found out again of the next."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from minidnn.fusion import collapse, geometry
from minidnn.fusion.device import H200, Device
from minidnn.fusion.operations import Stack, lower
from minidnn.fusion.sequence import Sequence
from minidnn.graph import operators as ops
from minidnn.graph.ir import Graph, Value
from minidnn.graph.trace import apply, tracing
from minidnn.graph.types import TensorType
from tests.fusion.test_collapse import DEVICES, stack_of
from tests.sampling import IS_FULL, some

pytestmark = pytest.mark.early

KINDS = ("pool", "wide pool", "add", "add input", "branch", "relu")


def block(kind: str, x: Value, first: Value) -> Value:
    match kind:
        case "pool":
            return apply(ops.MaxPool2d((3, 3), (1, 1), (1, 1)), x)
        case "wide pool":
            return apply(ops.MaxPool2d((3, 5), (1, 1), (1, 2)), x)
        case "add":
            return apply(ops.Add(), apply(ops.MaxPool2d((3, 3), (1, 1), (1, 1)), x), x)
        case "add input":
            return apply(ops.Add(), apply(ops.MaxPool2d((3, 3), (1, 1), (1, 1)), x), first)
        case "branch":
            left = apply(ops.MaxPool2d((3, 1), (1, 1), (1, 0)), x)
            right = apply(ops.MaxPool2d((1, 3), (1, 1), (0, 1)), x)
            return apply(ops.Add(), left, right)
        case _:
            return apply(ops.ReLU(), x)


def repeated(seed: int) -> Graph:
    """A block of one to three kinds, time after time, at times with another in the middle, at
    times with results of the middle needed outside."""
    random = np.random.default_rng(seed)
    kinds = [str(kind) for kind in random.choice(KINDS, random.integers(1, 4))]
    row = kinds * int(random.integers(2, 5))
    if random.random() < 0.4:
        row[int(random.integers(len(row)))] = str(random.choice(KINDS))
    size = (int(random.integers(6, 40)), int(random.integers(6, 40)))
    with tracing("g") as trace:
        first = trace.input(TensorType((1, 2, *size)), "x")
        values = [first]
        for kind in row:
            values.append(block(kind, values[-1], first))
        middle = [value for value in values[1:-1] if random.random() < 0.1]
        if random.random() < 0.3:
            middle = values[1:-1]
    return trace.graph(list(dict.fromkeys([values[-1], *middle])))


def described(choices: list[collapse.ScheduledSequence]) -> list[tuple[Any, ...]]:
    return [
        (
            [step.operations for step in choice.sequence.steps],
            choice.sequence.inputs,
            choice.sequence.outputs,
            choice.schedule,
            choice.price,
        )
        for choice in choices
    ]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("device", DEVICES, ids=lambda device: device.name)
def test_the_same_cuts_as_without(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    repeats = 0
    for seed in some(range(25), 2):
        stack = stack_of(repeated(seed))
        repeats += len(stack.steps) - len(set(collapse._kinds(stack)))
        found = described(collapse.collapse(stack, device))
        with monkeypatch.context() as patched:
            patched.setattr(collapse, "_kinds", lambda stack: list(range(len(stack.steps))))
            assert described(collapse.collapse(stack, device)) == found, seed
    assert repeats > (40 if IS_FULL else 20)


def test_a_long_chain_is_not_looked_at_run_by_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of its n (n + 1) / 2 runs those from the first, from the second and to the last step."""
    with tracing("g") as trace:
        x = trace.input(TensorType((1, 2, 12, 12)), "x")
        for _ in range(50):
            x = block("pool", x, x)
    graph = trace.graph([x])
    looks = []
    inner = Sequence.of.__func__  # type: ignore[attr-defined]

    def counting(*given: Any) -> Sequence:
        looks.append(given[-2:])
        return inner(Sequence, *given)  # type: ignore[no-any-return]

    monkeypatch.setattr(Sequence, "of", counting)
    choices = collapse.collapse(lower(graph.nodes, graph.outputs), H200)
    assert sum(len(choice.sequence.steps) for choice in choices) == 50
    assert 50 <= len(looks) <= 200


@pytest.mark.parametrize("device", DEVICES, ids=lambda device: device.name)
def test_short_sequences_of_another_stack_are_not_priced_again(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    def short() -> Stack:
        with tracing("g") as trace:
            x = trace.input(TensorType((1, 3, 11, 13)), "x")
            for _ in range(3):
                x = block("pool", x, x)
        graph = trace.graph([x])
        return lower(graph.nodes, graph.outputs)

    def chosen(stack: Stack) -> list[tuple[Any, ...]]:
        choices = collapse.collapse(stack, device)
        assert [step for c in choices for step in c.sequence.steps] == list(stack.steps)
        return [(len(c.sequence.steps), c.schedule, c.price) for c in choices]

    monkeypatch.setattr(collapse, "_known_prices", {})
    found = chosen(short())
    monkeypatch.setattr(Sequence, "price", None)
    assert chosen(short()) == found
    monkeypatch.setattr(collapse, "_known_prices", {})
    with pytest.raises(TypeError):
        chosen(short())


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", range(40))
def test_what_lies_in_buffers_at_once(seed: int) -> None:
    """Beside the definition, counted step by step."""
    graph = repeated(seed)
    stack = stack_of(graph)
    sequence = Sequence(stack.steps, graph.outputs, stack.batch, stack.channels)
    random = np.random.default_rng(seed)
    sizes = {v: int(random.integers(1, 100)) for v in (*sequence.staged, *sequence.buffered)}
    made = {o.output: i for i, step in enumerate(stack.steps) for o in step.operations}
    last = {v: i for i, step in enumerate(stack.steps) for o in step.operations for v in o.operands}
    during = [
        sum(size for v, size in sizes.items() if made.get(v, -1) <= i <= last[v])
        for i in range(-1, len(stack.steps))
    ]
    between = [
        sum(made[v] <= i < last[v] for v in sequence.buffered) for i in range(len(stack.steps))
    ]
    assert geometry.peak(stack.steps, sizes) == max(during)
    assert geometry.peak_live_planes(stack.steps, sequence.buffered) == max(1, *between, 0)
