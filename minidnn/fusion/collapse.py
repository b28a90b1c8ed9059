"""Collapse: steps become sequences that fit the device (BrainSlug, section 3.3).

BrainSlug adds steps until a patch no longer fits.  Here cuts are chosen by predicted time:
over the runs of a stack's ordered steps, dynamic programming finds the cheapest way to cut.
On a chain that is exact.  On a directed acyclic graph the order of steps (by level) is a
heuristic; tests compare it with exhaustive search.  The paper's three strategies, with halos
recomputed, stay selectable.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from minidnn.errors import GraphError
from minidnn.fusion.device import Device
from minidnn.fusion.operations import Stack
from minidnn.fusion.sequence import Price, Schedule, Sequence
from minidnn.graph.ir import Value

#: "model": by predicted time.  "one", "five", "unrestricted": the paper's strategies of figure
#: 10, at most that many steps a sequence, as many as fit.  "contractions": only convolutions and
#: linear layers are fused, with point-wise operators around them.  "layers": no fusion at all.
#: "cudnn": none either, and every layer that cuDNN has a function for is computed by that.
Strategy = Literal["model", "one", "five", "unrestricted", "contractions", "layers", "cudnn"]
STRATEGIES: tuple[Strategy, ...] = (
    "model",
    "one",
    "five",
    "unrestricted",
    "contractions",
    "layers",
    "cudnn",
)
#: Strategies that every device has.
EVERYWHERE: tuple[Strategy, ...] = tuple(each for each in STRATEGIES if each != "cudnn")
#: Strategies under which nothing is fused.
UNFUSED: tuple[Strategy, ...] = ("layers", "cudnn")
#: Strategies under which nothing but contractions is fused: no stacks, concatenations are copied.
NO_STACKS: tuple[Strategy, ...] = ("contractions", *UNFUSED)


@dataclass(frozen=True)
class ScheduledSequence:
    """A sequence with the schedule chosen for it and its predicted cost."""

    sequence: Sequence
    schedule: Schedule
    price: Price


def check_strategy(strategy: str) -> Strategy:
    """Returns the strategy of that name; GraphError if there is none."""
    for valid in STRATEGIES:
        if strategy == valid:
            return valid
    raise GraphError(f"strategy={strategy!r}; valid are {', '.join(map(repr, STRATEGIES))}")


def cheapest(sequence: Sequence, device: Device, rolling: bool = True) -> ScheduledSequence | None:
    """Returns the sequence under its cheapest schedule; None if no patch of it fits the device."""
    best: ScheduledSequence | None = None
    for schedule in sequence.candidates(device, rolling):
        price = sequence.price(schedule, device)
        if price is not None and (best is None or price.seconds < best.price.seconds):
            best = ScheduledSequence(sequence, schedule, price)
    return best


def collapse(stack: Stack, device: Device, strategy: Strategy = "model") -> list[ScheduledSequence]:
    """Returns the sequences that a stack becomes, in the order in which they run.

    A single step always becomes a sequence: if no patch of it fits the device, with the smallest
    patch, one position.
    """
    if strategy == "model":
        return _by_price(stack, device)
    if device.register_bytes:
        # The paper's patches are in shared memory alone: no plane fits one byte of registers.
        device = replace(device, register_bytes=1, reuses_buffers=False)
    limit = {"five": 5, "unrestricted": len(stack.steps)}.get(strategy, 1)
    sequences: list[ScheduledSequence] = []
    first = 0
    while first < len(stack.steps):
        last = first
        choice = _single(stack, first, device, rolling=False)
        while last + 1 < len(stack.steps) and last + 1 - first < limit:
            longer = cheapest(Sequence.of(stack, first, last + 1), device, rolling=False)
            if longer is None:
                break
            choice, last = longer, last + 1
        sequences.append(choice)
        first = last + 1
    return sequences


def _by_price(stack: Stack, device: Device) -> list[ScheduledSequence]:
    kinds = _kinds(stack)
    known: dict[tuple[int, ...], ScheduledSequence | None] = {}
    priced: dict[tuple[object, ...], ScheduledSequence | None] = {}

    def choose(first: int, last: int) -> ScheduledSequence | None:
        run = tuple(kinds[first : last + 1])
        if run not in known:
            # Runs of other kinds may still have all in common that prices depend on.
            sequence = Sequence.of(stack, first, last)
            key = sequence.signature
            if key not in priced:
                priced[key] = _priced(stack, first, sequence, device)
            known[run] = priced[key]
        return known[run]

    first, chosen = 0, []
    for choice in cut(len(stack.steps), choose):
        after = first + len(choice.sequence.steps)
        chosen.append(replace(choice, sequence=Sequence.of(stack, first, after - 1)))
        first = after
    return chosen


_SHORT = 8
_MOST_KNOWN = 1 << 10
_known_prices: dict[tuple[object, ...], tuple[Schedule, Price] | None] = {}
"""The choices for short sequences, by all that they depend on: stacks of one network, and of what
passes make of it, have most of theirs in common."""


def _priced(
    stack: Stack, first: int, sequence: Sequence, device: Device
) -> ScheduledSequence | None:
    """A sequence that begins with step ``first`` of a stack, under its cheapest schedule."""
    key = (sequence.signature, device)
    if (found := _known_prices.get(key, ())) != ():
        return None if found is None else ScheduledSequence(sequence, *found)
    single = len(sequence.steps) == 1
    choice = _single(stack, first, device, True) if single else cheapest(sequence, device)
    if len(sequence.steps) <= _SHORT:
        if len(_known_prices) >= _MOST_KNOWN:
            _known_prices.clear()
        _known_prices[key] = None if choice is None else (choice.schedule, choice.price)
    return choice


def _kinds(stack: Stack) -> list[int]:
    """A number for each step, the same for steps that compute the same, read values that were
    computed as many steps before, and are read as many steps later.

    Runs of the same kinds have one price, which is all that blocks that repeat need to know: a
    chain of n steps has n (n + 1) / 2 runs, and looking at one takes as long as it is.
    """
    operations = [operation for step in stack.steps for operation in step.operations]
    positions = [stack.position[operation.output] for operation in operations]
    if positions != sorted(positions):
        return list(range(len(stack.steps)))  # what is needed outside has an order of its own
    home = {
        operation.output: (i, j)
        for i, step in enumerate(stack.steps)
        for j, operation in enumerate(step.operations)
    }
    stack_outputs = set(stack.outputs)

    def described(i: int) -> tuple[object, ...]:
        def operand(value: Value) -> object:
            step, place = home.get(value, (i, value))
            return value.type, i - step, place

        return tuple(
            (
                (o.window, o.operations, o.output.type, *map(operand, o.operands)),
                (
                    o.output in stack_outputs,
                    *(reader - i for reader in stack.readers.get(o.output, ())),
                ),
            )
            for o in stack.steps[i].operations
        )

    numbers: dict[tuple[object, ...], int] = {}
    return [numbers.setdefault(described(i), len(numbers)) for i in range(len(stack.steps))]


def cut(
    count: int, choose: Callable[[int, int], ScheduledSequence | None]
) -> list[ScheduledSequence]:
    """Returns the cheapest way to cut ``count`` steps into runs; ``choose(first, last)`` prices
    one."""
    best: list[tuple[float, list[ScheduledSequence]]] = [(0.0, [])]
    for last in range(count):
        options = []
        for first in range(last, -1, -1):
            choice = choose(first, last)
            if choice is not None:
                seconds, before = best[first]
                options.append((seconds + choice.price.seconds, [*before, choice]))
        best.append(min(options, key=lambda option: option[0]))
    return best[-1][1]


def _single(stack: Stack, index: int, device: Device, rolling: bool) -> ScheduledSequence:
    """A single step as a sequence, with the smallest patch if no other fits the device."""
    sequence = Sequence.of(stack, index, index)
    choice = cheapest(sequence, device, rolling)
    if choice is not None:
        return choice
    smallest = Schedule(1, 1, 1, device.stages_inputs and bool(sequence.staged))
    price = sequence.price(smallest, replace(device, local_bytes=1 << 62))
    assert price is not None
    return ScheduledSequence(sequence, smallest, price)
