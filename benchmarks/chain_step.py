"""The paper's chain, trained: forward and backward, beside PyTorch's eager mode and torch.compile.

    python -m benchmarks.chain_step --blocks 1,5,20,40 --statistics frozen,batch
    python -m benchmarks.chain_step --device cpu --shape 2,16,56,56 --blocks 1,5 --threads 2

A step takes x and the gradient by the result, and gives the result and the gradients by x and by
every scale and shift.  Blocks are max pooling of 3x3 with stride 1, batch normalization, ReLU, with
the statistics of the batch, or frozen: then those that are stored are used, and scale and shift
have gradients all the same.  All sides hold the same numbers; steps are taken in turn, round after
round, and medians count.  On a GPU a round is a burst of steps between two events, and the greatest
memory that a step has in use is shown.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import minidnn as md
from benchmarks.chain_cases import with_minidnn, with_torch
from minidnn.errors import MiniDNNError
from minidnn.gradients.reverse import pullback
from minidnn.graph.ir import Graph
from minidnn.layers.build import to_graph
from minidnn.measure import interleaved

OWN = "minidnn"
STATISTICS = ("frozen", "batch")
PEERS = ("eager", "default", "reduce-overhead")
"""PyTorch, and modes of torch.compile."""
LAYOUTS = ("", " channels_last")

Shape = tuple[int, int, int, int]
Step = Callable[[], Any]


def graph_of(blocks: int, shape: Shape, statistics: str) -> Graph:
    """The step as a graph: (x, gradient by y) to (y, gradient by x, and by scales and shifts)."""
    network = with_minidnn("paper", blocks, shape[1])
    if statistics == "frozen":
        network.freeze()
    forward = to_graph(network, shape, mode="train", states=True)
    wanted = [state for state in forward.states if state.name.endswith((".weight", ".bias"))]
    back = pullback(
        Graph(forward.inputs, forward.outputs, forward.nodes), [*forward.inputs, *wanted]
    )
    outputs = (*forward.outputs, *back.outputs)
    return Graph(back.inputs, outputs, back.nodes, "chain", updates=forward.updates)


def of_torch(blocks: int, statistics: str, peer: str, x: Any, dy: Any) -> Step:
    """PyTorch's step on tensors that lie as theirs; the gradients are new with each."""
    import torch

    network = with_torch("paper", blocks, x.shape[1]).to(x.device)
    network.train(statistics == "batch")
    if x.is_contiguous(memory_format=torch.channels_last):
        network = network.to(memory_format=torch.channels_last)
    x = x.detach().requires_grad_()
    weights = list(network.parameters())
    forward = network if peer == "eager" else torch.compile(network, mode=peer)

    def step() -> Any:
        if peer == "reduce-overhead":
            torch.compiler.cudagraph_mark_step_begin()
        y = forward(x)
        return y, *torch.autograd.grad(y, [x, *weights], dy)

    return step


@dataclass(frozen=True)
class Side:
    """One of those that are compared: its step, its results when they were checked, in the order of
    the graph's, the bytes that a step has in use at most, and the seconds that making it took."""

    step: Step
    deviation: float
    bytes: int | None
    seconds: float


class Comparison:
    """All sides of one chain."""

    def __init__(self, blocks: int, statistics: str, given: argparse.Namespace) -> None:
        import torch

        self.blocks, self.statistics, self.given = blocks, statistics, given
        self.on_gpu = given.device == "cuda"
        torch.manual_seed(0)
        self.x, self.dy = (torch.randn(given.shape, device=given.device) for _ in range(2))
        self.expected: list[Any] = []
        self.sides: dict[str, Side] = {}

    def run(self) -> dict[str, Any]:
        """Makes all sides and times them; what was found, for JSON."""
        import torch

        given = self.given
        for layout in LAYOUTS:
            for peer in (peer for peer in PEERS if peer == "eager" or peer in given.compiled):
                torch._dynamo.reset()
                self._add(f"{peer}{layout}", partial(self._peer, peer, layout))
        for strategy in given.strategies:
            self._add(
                OWN if strategy == "model" else f"{OWN} {strategy}", partial(self._own, strategy)
            )
        steps = {name: side.step for name, side in self.sides.items()}
        times = {name: median(found) for name, found in self._timed(steps).items()}
        best = min(taken for name, taken in times.items() if not name.startswith(OWN))
        rows = {
            name: {
                "ms": round(times[name], 4),
                "best peer's / own": round(best / times[name], 3),
                "MB": None if side.bytes is None else round(side.bytes / 1e6, 1),
                "deviation": side.deviation,
                "seconds to make": round(side.seconds, 2),
            }
            for name, side in self.sides.items()
        }
        return {"blocks": self.blocks, "statistics": self.statistics, "sides": rows}

    def _timed(self, steps: dict[str, Step]) -> dict[str, list[float]]:
        if self.on_gpu:
            from minidnn.bench import gpu_timing as timing

            return timing.interleaved(steps, self.given.rounds)

        def milliseconds(step: Step) -> float:
            begin = time.perf_counter()
            step()
            return 1e3 * (time.perf_counter() - begin)

        return interleaved(
            {n: partial(milliseconds, s) for n, s in steps.items()}, self.given.rounds
        )

    def _add(self, name: str, make: Callable[[], tuple[Step, Callable[[], int] | None]]) -> None:
        """Makes a side and checks it; one that cannot be made is told, and left out."""
        begin = time.perf_counter()
        try:
            before = self._in_use()
            step, own_bytes = make()
            for _ in range(3):
                results = step()
            self._wait()
        except (MiniDNNError, RuntimeError) as error:
            print(
                f"{name}, {self.blocks} blocks, {self.statistics}: left out: {str(error)[:300]}",
                flush=True,
            )
            return
        seconds = time.perf_counter() - begin
        found = [result.detach() for result in results]
        if not self.expected:
            self.expected = [result.double().cpu() for result in found]
        deviation = max(map(_deviation, found, self.expected))
        del results, found
        used = self._peak(step, before) if own_bytes is None else own_bytes()
        self.sides[name] = Side(step, deviation, used, seconds)

    def _in_use(self) -> int:
        import torch

        return torch.cuda.memory_allocated() if self.on_gpu else 0

    def _wait(self) -> None:
        import torch

        if self.on_gpu:
            torch.cuda.synchronize()

    def _peak(self, step: Step, before: int) -> int | None:
        """The most bytes in use within a step, x and the gradient included, of what was allocated
        since ``before``."""
        import torch

        if not self.on_gpu:
            return None
        torch.cuda.reset_peak_memory_stats()
        step()
        self._wait()
        return torch.cuda.max_memory_allocated() - before + _bytes(self.x) + _bytes(self.dy)

    def _own(self, strategy: str) -> tuple[Step, Callable[[], int]]:
        import torch

        given = self.given
        options = {"device": given.device} | (
            {} if given.threads is None else {"threads": given.threads}
        )
        graph = graph_of(self.blocks, given.shape, self.statistics)
        executable = md.compile(graph, strategy=strategy, store=md.Store(), **options)
        given_and_made = (*graph.inputs, *graph.outputs, *graph.states)

        def used() -> int:
            return executable.plan.arena.bytes + sum(v.type.bytes for v in given_and_made)

        if self.on_gpu:
            bound = executable.bind(self.x, self.dy)

            def replay() -> Any:
                bound()
                return bound.outputs

            return replay, used
        arrays = [tensor.numpy() for tensor in (self.x, self.dy)]
        results = executable(*arrays)

        def step() -> Any:
            executable(*arrays, out=results)
            return [torch.from_numpy(array) for array in results]

        return step, used

    def _peer(self, peer: str, layout: str) -> tuple[Step, None]:
        import torch

        x, dy = self.x, self.dy
        if layout:
            x, dy = (each.to(memory_format=torch.channels_last) for each in (x, dy))
        return of_torch(self.blocks, self.statistics, peer, x, dy), None


def _bytes(tensor: Any) -> int:
    return int(tensor.nbytes)


def _deviation(found: Any, expected: Any) -> float:
    """The largest distance, as a part of the largest number."""
    return float((found.double().cpu() - expected).abs().max() / expected.abs().max())


def table(found: dict[str, Any]) -> str:
    """What was found of one chain, a line for each side."""
    lines = [f"{found['blocks']} blocks, {found['statistics']} statistics"]
    lines.append(
        f"  {'':<32}{'ms':>10}{'best peer / it':>16}{'MB':>9}{'deviation':>11}{'made in s':>11}"
    )
    for name, row in found["sides"].items():
        ms, ratio, mb, deviation, seconds = row.values()
        memory = "" if mb is None else f"{mb:.0f}"
        lines.append(
            f"  {name:<32}{ms:>10.3f}{ratio:>16.2f}{memory:>9}{deviation:>11.1e}{seconds:>11.1f}"
        )
    return "\n".join(lines)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(one) for one in text.split(","))


def _statistics(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--blocks", type=_numbers, default=(1, 5, 20, 40), help="of each chain: 1,5,20,40")
    add("--statistics", type=_statistics, default=STATISTICS, help="frozen,batch")
    add("--device", choices=("cuda", "cpu"), default="cuda")
    add("--shape", type=_numbers, default=(128, 64, 56, 56), help="of x: 128,64,56,56")
    add("--threads", type=int, help="on the CPU (all usable cores)")
    add("--rounds", type=int, default=11)
    add("--strategies", nargs="+", default=["model", "layers"], help="of minidnn")
    modes = ("default", "reduce-overhead")
    add("--compiled", nargs="*", choices=modes, default=modes, help="modes of torch.compile")
    add("--json", action="store_true", help="a line of JSON for each chain, too")
    given = parser.parse_args(arguments)
    if given.device == "cpu" and given.threads is not None:
        import torch

        torch.set_num_threads(given.threads)
    for blocks in given.blocks:
        for statistics in given.statistics:
            found = Comparison(blocks, statistics, given).run()
            print(table(found), flush=True)
            if given.json:
                print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
