"""The laboratory's Python interface: ladders by name, studies, tuning, and shapes of networks.

The command line calls the same functions.  GPUs that this machine lacks are modelled from the
device properties that CUDA reports of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from ..backends.cuda.machine import Machine
from ..errors import UnsupportedError
from ..graph.ir import Graph, Node
from ..graph.operators import Conv2d, Linear
from .cpu.ladders import CONVOLUTION_CPU, MEMORY_CPU
from .cuda.arrays import MEMORY, REVERSE, TRANSPOSE
from .cuda.convolution import CONVOLUTION
from .cuda.gradients import INPUT_GRADIENT, WEIGHT_GRADIENT
from .cuda.product import PRODUCT
from .isolated_jobs import LIMIT_SECONDS, IsolatedJobs
from .operands import ConvolutionShape, ProductShape
from .step import Block, Choices, Ladder
from .studies import DEVICES, measured_study, study
from .tuner import StepTuning, tune_step

LADDERS = {
    ladder.name: ladder
    for ladder in (
        *(CONVOLUTION, INPUT_GRADIENT, WEIGHT_GRADIENT),
        *(PRODUCT, MEMORY, REVERSE, TRANSPOSE),
        *(CONVOLUTION_CPU, MEMORY_CPU),
    )
}


def ladder_of(name: str) -> Ladder:
    """The ladder of that name.

    >>> from minidnn import lab
    >>> [step.name for step in lab.ladder_of("product").steps][:3]
    ['naive', 'coalesced', 'tiled']

    Args:
        name: "conv", "input-gradient", "weight-gradient", "product", "memory", "reverse",
            "transpose", "conv-cpu" or "memory-cpu".

    Returns:
        The ladder.

    Raises:
        UnsupportedError: there is none; all names are told.
    """
    if name not in LADDERS:
        raise UnsupportedError(f"no ladder is called {name!r}; there are {', '.join(LADDERS)}")
    return LADDERS[name]


def network_shapes(ladder: Ladder, graph: Graph) -> list[Any]:
    """The shapes of a network's layers that a ladder computes, each once.

    >>> from minidnn.layers.build import to_graph
    >>> from minidnn import lab, layers
    >>> graph = to_graph(layers.Conv2d(3, 8, 3), (1, 3, 10, 10))
    >>> (shape,) = lab.network_shapes(lab.ladder_of("conv"), graph)
    >>> shape.filters, shape.out_height
    (8, 8)

    Args:
        ladder: of convolutions, of their gradients, or of products.
        graph: of the network.

    Returns:
        Shapes for :func:`model` and :func:`run`, in the order of the layers.  Convolutions with
        groups, or whose axes differ in stride, padding or dilation, are left out.

    Raises:
        UnsupportedError: the ladder computes no layers, or the network has none that it can.
    """
    kind = type(ladder.shape)
    if not issubclass(kind, (ConvolutionShape, ProductShape)):
        raise UnsupportedError(f"network: {ladder.name} computes no layers of networks")
    shape_of: Callable[[Node], dict[str, int] | None] = (
        _of_product if issubclass(kind, ProductShape) else _of_convolution
    )
    shapes = [kind(**sizes) for node in graph.nodes if (sizes := shape_of(node)) is not None]
    if not shapes:
        raise UnsupportedError(
            f"network: none of its {len(graph.nodes)} layers is one that {ladder.name} computes"
        )
    return list(dict.fromkeys(shapes))


def _of_convolution(node: Node) -> dict[str, int] | None:
    op = node.op
    if not isinstance(op, Conv2d) or op.groups != 1:
        return None
    edges = {edge for pair in op.padding for edge in pair}
    if len(edges) > 1 or len({*op.stride}) > 1 or len({*op.dilation}) > 1:
        return None
    (batch, channels, height, width), weight = node.inputs[0].shape, node.inputs[1].shape
    return {
        "batch": batch,
        "channels": channels,
        "height": height,
        "width": width,
        "filters": weight[0],
        "window_height": weight[2],
        "window_width": weight[3],
        "stride": op.stride[0],
        "padding": edges.pop(),
        "dilation": op.dilation[0],
    }


def _of_product(node: Node) -> dict[str, int] | None:
    if not isinstance(node.op, Linear):
        return None
    x, y = node.inputs[0].type, node.output.type
    depth = x.shape[-1]
    return {"rows": x.size // depth, "columns": y.shape[-1], "depth": depth}


A100 = Machine("NVIDIA A100", (8, 0), 108, 1.35e12, 163 << 10, 40 << 20, 1.41e9)
RTX_3090 = Machine("NVIDIA GeForce RTX 3090", (8, 6), 82, 8.1e11, 99 << 10, 6 << 20, 1.70e9)
RTX_4090 = Machine("NVIDIA GeForce RTX 4090", (8, 9), 128, 8.8e11, 99 << 10, 72 << 20, 2.52e9)
H100 = Machine("NVIDIA H100", (9, 0), 132, 2.9e12, 227 << 10, 50 << 20, 1.98e9)
H200 = Machine("NVIDIA H200", (9, 0), 132, 4.3e12, 227 << 10, 60 << 20, 1.98e9)

CARDS = {"A100": A100, "RTX3090": RTX_3090, "RTX4090": RTX_4090, "H100": H100, "H200": H200}
"""The described GPUs, by the names that ``--gpu`` takes."""


def card_of(name: str) -> Machine:
    """The GPU of that name; UnsupportedError, which names all, if it is not described."""
    if name not in CARDS:
        raise UnsupportedError(f"gpu: {name!r} is not described; {', '.join(CARDS)} are")
    return CARDS[name]


_BLOCKS: Sequence[Block] = ((16, 16),)
TUNED_BLOCKS: Sequence[Block] = ((8, 8), (16, 8), (16, 16), (32, 4), (32, 8), (32, 16))


def model(
    ladder: str | Ladder,
    steps: Sequence[str] = (),
    *,
    blocks: Sequence[Block] = (),
    shapes: Sequence[Any] = (),
    parameters: Choices | None = None,
    gpu: str | None = None,
) -> dict[str, Any]:
    """What each step of a ladder should cost; nothing is run, and no GPU is needed.

    >>> from minidnn import lab
    >>> study = lab.model("conv", ["tiled"], blocks=[(8, 8), (32, 8)], shapes=["64-64@56,3/1"])
    >>> study["cells"][0]["predicted_limit"]
    'issue'

    Args:
        ladder: its name, or one of your own (:meth:`Ladder.with_step`).
        steps: names of those that are asked for; all by default.
        blocks: threads of a block, across and down; (16, 16) by default.  Steps on a CPU have
            none.
        shapes: names of the ladder's shapes, shapes, or mappings with sizes that differ from its
            default one; the default by default.
        parameters: numbers for the parameters of steps, or several of them to be tried.
        gpu: "A100", "RTX3090", "RTX4090", "H100" (default) or "H200"; ladders of a CPU are
            calculated for this computer's.

    Returns:
        A study: see ``docs/explanation/laboratory.md``.

    Raises:
        UnsupportedError: there is no such ladder, step, shape, parameter or GPU.
        DeviceError: there is no NVRTC.
    """
    ladder = _ladder(ladder)
    chosen, sizes = _steps(ladder, steps), shapes_of(ladder, shapes)
    check_parameters(ladder, parameters)
    all_blocks = _blocks(ladder, blocks)
    return study(ladder, chosen, all_blocks, sizes, _described(ladder, gpu), parameters)


def run(
    ladder: str | Ladder,
    steps: Sequence[str] = (),
    *,
    blocks: Sequence[Block] = (),
    shapes: Sequence[Any] = (),
    parameters: Choices | None = None,
    limit: float = LIMIT_SECONDS,
    counters: bool = False,
    tell: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """What each step of a ladder costs on this machine: predicted, checked, and measured.

    A step is checked against the ladder's reference before it is timed, in a process of its own: a
    script that calls this needs ``if __name__ == "__main__":``.

    >>> from minidnn import lab
    >>> study = lab.run("memory-cpu", ["vectors"], shapes=["L2"])
    >>> lab.save_study("vectors.json", study)

    Args:
        ladder: its name, or one of your own (:meth:`Ladder.with_step`).
        steps: names of those that are asked for; all by default.
        blocks: as of :func:`model`.  One step with several, or with several numbers for its
            parameters, is a sweep.
        shapes: as of :func:`model`.
        parameters: numbers for the parameters of steps, or several of them to be tried.
        limit: seconds that one measurement may take.
        counters: whether Nsight Compute also reads hardware counters.  Where they are forbidden,
            the study says why, and what would allow them, and has all other figures.
        tell: called with lines that report progress.

    Returns:
        A study, with times in its cells or the reason why there are none.

    Raises:
        UnsupportedError: there is no such ladder, step, shape or parameter.
        DeviceError: this machine has no such device, or no compiler for it.
    """
    ladder = _ladder(ladder)
    chosen, sizes = _steps(ladder, steps), shapes_of(ladder, shapes)
    check_parameters(ladder, parameters)
    if not limit > 0:
        raise UnsupportedError(f"limit={limit:g}; valid are seconds above 0")
    if counters and DEVICES[ladder.device].count is None:
        raise UnsupportedError(
            f"counters=True; {ladder.name} is for this computer's CPU, whose counters are not read"
        )
    return measured_study(
        ladder,
        chosen,
        _blocks(ladder, blocks),
        sizes,
        parameters,
        limit=limit,
        counters=counters,
        tell=tell,
    )


def shapes_of(ladder: Ladder, shapes: Sequence[Any]) -> list[Any]:
    """Resolves ``shapes``, as :func:`model` takes them, and drops duplicates."""
    resolved = []
    for one in shapes or ({},):
        if isinstance(one, str):
            if one not in ladder.shapes:
                known = f"shapes of {ladder.name} are {', '.join(ladder.shapes)}"
                raise UnsupportedError(f"shapes: {one!r} is none; {known}")
            resolved.append(ladder.shapes[one])
        elif isinstance(one, type(ladder.shape)):
            resolved.append(one)
        else:
            names = list(vars(ladder.shape))
            for name in one:
                if name not in names:
                    raise UnsupportedError(f"shapes: {name!r} is no size; valid are {names}")
            resolved.append(replace(ladder.shape, **one))
    return list(dict.fromkeys(resolved))


def check_parameters(ladder: Ladder, parameters: Choices | None) -> None:
    """Raises UnsupportedError if no step has a parameter, or a number for it is below 1."""
    own = sorted({name for step in ladder.steps for name in step.parameters})
    for name, numbers in (parameters or {}).items():
        several = (numbers,) if isinstance(numbers, int) else tuple(numbers)
        if name not in own or not several or min(several) < 1:
            valid = ", ".join(own) or "none"
            told = ":".join(map(str, several))
            raise UnsupportedError(
                f"parameters: {name}={told}; valid are numbers from 1 on of {valid}"
            )


def _described(ladder: Ladder, gpu: str | None) -> Any:
    if ladder.device == "cuda":
        return card_of(gpu or "H100")
    if gpu is not None:
        raise UnsupportedError(f"gpu={gpu!r}; {ladder.name} is for this computer's CPU")
    return DEVICES[ladder.device].machine()


def _blocks(ladder: Ladder, blocks: Sequence[Block]) -> Sequence[Any]:
    if ladder.device == "cuda":
        return blocks or _BLOCKS
    if blocks:
        told = ", ".join("x".join(map(str, block)) for block in blocks)
        raise UnsupportedError(
            f"blocks: {told}; steps of {ladder.name} have none, their sizes are parameters"
        )
    return ((),)


def _ladder(ladder: str | Ladder) -> Ladder:
    return ladder_of(ladder) if isinstance(ladder, str) else ladder


def _steps(ladder: Ladder, names: Sequence[str]) -> tuple[Any, ...]:
    return tuple(ladder.step(name) for name in names) if names else ladder.steps


def tune(
    ladder: str | Ladder,
    step: str,
    *,
    blocks: Sequence[Block] = (),
    shape: Any = None,
    parameters: Choices | None = None,
    method: str = "guided",
    most: int = 16,
    limit: float = LIMIT_SECONDS,
) -> StepTuning:
    """Searches the block and the parameters with which a step is fastest on this machine.

    The result is kept in the cache folder, for this machine, the step's text, and the search.

    >>> from minidnn import lab
    >>> found = lab.tune("memory-cpu", "apart", shape="L2", parameters={"STRIDE": [8, 16]})
    >>> found.best["parameters"]["STRIDE"] in (8, 16), found.loss >= 1
    (True, True)

    Args:
        ladder: its name, or one of your own.
        step: the step's name.
        blocks: that are tried on a GPU; six usual ones by default.
        shape: one shape, as of :func:`model`.
        parameters: several numbers for each; by default a quarter to four times the step's own.
        method: "guided" by the model and by what was measured, "random", or "exhaustive".
        most: points that are measured, unless all are.
        limit: seconds that one measurement may take.

    Returns:
        What was tried, the best of it, and how far off the model's own choice is.

    Raises:
        UnsupportedError: there is no such ladder, step, shape, parameter or method.
        DeviceError: this machine has no such device, or no compiler for it.
    """
    ladder = _ladder(ladder)
    check_parameters(ladder, parameters)
    (size,) = shapes_of(ladder, () if shape is None else (shape,))
    device = DEVICES[ladder.device]
    tried = blocks or (TUNED_BLOCKS if ladder.device == "cuda" else ())
    return tune_step(
        ladder,
        ladder.step(step),
        _blocks(ladder, tried),
        size,
        parameters,
        device,
        lambda jobs: IsolatedJobs(device.measure, limit).run(jobs),
        method=method,
        most=most,
    )
