"""Convolutions, linear layers and their gradients by cuDNN's functions: which algorithm."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, replace

from ....cudnn.convolution.choose import candidates_for, constrained
from ....cudnn.convolution.key import ConvolutionKey
from ....cudnn.convolution.plan import Candidate, Problem, no_algorithm
from ....cudnn.enums import is_coarse_winograd
from ....cudnn.errors import CuDNNError
from ....cudnn.gpu_turn import turn
from ....gpu import cupy
from ..contraction.fixed import FixedConvolution

#: The order of a node's operands and results, as image, filter and output of the convolution.
ORDERS = {"forward": (0, 1, 2), "backward_data": (2, 1, 0), "backward_filter": (0, 2, 1)}


@dataclass(frozen=True)
class LayerConvolution:
    """A convolution or one of its gradients; ``exactly``: no algorithm that goes through Winograd
    or FFT."""

    key: ConvolutionKey
    exactly: bool = False

    @property
    def order(self) -> tuple[int, int, int]:
        """Where image, filter and output stand among operands and result."""
        return ORDERS[self.key.operation]


def chosen(layer: LayerConvolution, tune: str, workspace_limit: int) -> FixedConvolution:
    """The algorithm that cuDNN guesses to be the fastest, or has measured to be, on the current
    device.

    NoAlgorithmError if none fits.
    """
    measures = tune != "heuristic"
    key = replace(
        layer.key,
        search="find" if measures else "heuristic",
        workspace_limit=workspace_limit,
        device=cupy().cuda.runtime.getDevice(),
    )
    with turn(key.device) if measures else nullcontext():
        candidates = candidates_for(Problem(key))
    fitting, skipped = constrained(key, candidates)
    refused = list(skipped)
    for one in fitting:
        reason = _why_not(layer, one)
        if reason is None:
            found = _made(key, one)
            if isinstance(found, FixedConvolution):
                return found
            reason = found
        refused.append(f"{one.name} {reason}")
    raise no_algorithm(key, tuple(refused))


def _why_not(layer: LayerConvolution, one: Candidate) -> str | None:
    if layer.exactly and ("FFT" in one.name or "WINO" in one.name):
        return "computes through Winograd or FFT"
    if is_coarse_winograd(one.name, layer.key.w.shape[2:]):
        return "is less accurate with windows over 3"
    return None


def _made(key: ConvolutionKey, one: Candidate) -> FixedConvolution | str:
    """The algorithm with the workspace that it takes; or why it cannot run."""
    problem = Problem(replace(key, math=one.math, search=str(one.algorithm)))
    try:
        workspace = problem.workspace(one.algorithm)
    except CuDNNError as error:
        if not error.unsupported:
            raise
        return str(error).partition("\n")[0]
    if workspace > key.workspace_limit:
        return f"wants {workspace} bytes of workspace, over {key.workspace_limit}"
    return FixedConvolution.of(problem, one.algorithm, workspace)
