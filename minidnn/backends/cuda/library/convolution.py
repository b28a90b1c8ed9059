"""The choice of cuDNN's algorithm for convolutions, linear layers and their gradients.

Serves the strategy "cudnn", where each of these is a call of its own with nothing fused.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, replace

from ....cudnn.convolution.choose import candidates_for, constrained
from ....cudnn.convolution.key import ConvolutionKey
from ....cudnn.convolution.plan import Candidate, Problem, no_algorithm
from ....cudnn.enums import is_coarse_winograd
from ....cudnn.errors import CuDNNError
from ....cudnn.gpu_lock import gpu_lock
from ....gpu import cupy
from ..contraction.fixed_function import FixedConvolution

#: For each operation the indices of image, filter and output of the forward convolution among the
#: node's operands and result.
ORDERS = {"forward": (0, 1, 2), "backward_data": (2, 1, 0), "backward_filter": (0, 2, 1)}


@dataclass(frozen=True)
class LayerConvolution:
    """A convolution or one of its gradients, without an algorithm; ``exactly`` excludes algorithms
    that compute through Winograd or FFT."""

    key: ConvolutionKey
    exactly: bool = False

    @property
    def order(self) -> tuple[int, int, int]:
        """The indices of image, filter and output among operands and result."""
        return ORDERS[self.key.operation]


def chosen(layer: LayerConvolution, tune: str, workspace_limit: int) -> FixedConvolution:
    """The fastest algorithm of cuDNN on the current device: by its heuristic if ``tune`` is
    "heuristic", otherwise by its measurement.

    NoAlgorithmError if none fits ``workspace_limit`` (bytes) and the other constraints.
    """
    measures = tune != "heuristic"
    key = replace(
        layer.key,
        search="find" if measures else "heuristic",
        workspace_limit=workspace_limit,
        device=cupy().cuda.runtime.getDevice(),
    )
    with gpu_lock(key.device) if measures else nullcontext():
        candidates = candidates_for(Problem(key))
    fitting, skipped = constrained(key, candidates)
    refused = list(skipped)
    for candidate in fitting:
        reason = _why_not(layer, candidate)
        if reason is None:
            fixed = _made(key, candidate)
            if isinstance(fixed, FixedConvolution):
                return fixed
            reason = fixed
        refused.append(f"{candidate.name} {reason}")
    raise no_algorithm(key, tuple(refused))


def _why_not(layer: LayerConvolution, candidate: Candidate) -> str | None:
    if layer.exactly and ("FFT" in candidate.name or "WINO" in candidate.name):
        return "computes through Winograd or FFT"
    if is_coarse_winograd(candidate.name, layer.key.w.shape[2:]):
        return "is less accurate with windows over 3"
    return None


def _made(key: ConvolutionKey, candidate: Candidate) -> FixedConvolution | str:
    """The algorithm with the workspace that it takes, or why it cannot run."""
    problem = Problem(replace(key, math=candidate.math, search=str(candidate.algorithm)))
    try:
        workspace = problem.workspace(candidate.algorithm)
    except CuDNNError as error:
        if not error.unsupported:
            raise
        return str(error).partition("\n")[0]
    if workspace > key.workspace_limit:
        return f"wants {workspace} bytes of workspace, over {key.workspace_limit}"
    return FixedConvolution.of(problem, candidate.algorithm, workspace)
