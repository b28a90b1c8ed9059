"""What ``--weights`` means: a file, published weights by name, or random ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from minidnn.errors import DownloadError, MiniDNNError

if TYPE_CHECKING:
    import numpy as np

    from minidnn.weights import KnownWeights

#: What ``--weights`` can be beside files and names.
RANDOM, DEFAULT = "random", "DEFAULT"
WEIGHTS_HELP = (
    "a file (.safetensors, .pth); torchvision's name of published weights, fetched once; "
    "default: the network's published ones; random"
)
PREFIX_HELP = "what the names of the weights begin with (module.)"


def source_of(network: str, weights: str) -> str:
    """``--weights`` as ``load_weights`` takes it, RANDOM or DEFAULT."""
    if weights.lower() in ("random", "default"):
        return RANDOM if weights.lower() == "random" else DEFAULT
    if weights.startswith("IMAGENET1K_"):
        return f"{network}.{weights}"
    return weights


def known_of(network: str, source: str) -> KnownWeights | None:
    """The published weights that a source means, or None if it is a file, or random."""
    from minidnn.weights import KNOWN_WEIGHTS, find_known

    if source == RANDOM:
        return None
    if source == DEFAULT:
        own = [known for known in KNOWN_WEIGHTS if known.network == network]
        return own[-1] if own else None
    known = find_known(source)
    if known is not None and known.network != network:
        raise MiniDNNError(
            f"--weights {source} are those of {known.network}, not of --network {network}"
        )
    return known


def load(
    network: Any,
    name: str,
    source: str,
    key: str | None,
    say: Callable[[str], None],
    prefix: str = "",
) -> Any:
    """The network with weights from a file; it gets as many classes as they have."""
    from minidnn.layers.state import below
    from minidnn.models import get_model

    state = below(prefix, _weights(name, source, key, say))
    *_, (last, parameter) = network.named_parameters()
    options: dict[str, Any] = {}
    if last in state and state[last].shape != parameter.type.shape and state[last].ndim == 1:
        options["num_classes"] = len(state[last])
    if name == "inception_v3":  # as in torchvision, whenever weights are given
        options["transform_input"] = True
    if options:
        network = get_model(name, **options)
    network.load_state_dict(state)
    return network


def _weights(
    name: str, source: str, key: str | None, say: Callable[[str], None]
) -> Mapping[str, np.ndarray]:
    """Weights from a file, or published ones, whose first use is said: they must be fetched."""
    from minidnn.weights import load_weights
    from minidnn.weights.download import is_fetched

    known = known_of(name, source)
    if known is not None and not is_fetched(known.url, known.hash_prefix):
        say(f"fetching the weights {known.name} ({known.megabytes:.0f} MiB) from {known.url}, once")
    try:
        return load_weights(name if source == DEFAULT else source, key=key)
    except DownloadError as error:
        raise DownloadError(
            f"{error.__cause__ or error}\n  --weights FILE takes weights that are on this machine,"
            " --weights random takes none; --network digits has weights that came with minidnn"
        ) from error
