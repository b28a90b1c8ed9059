"""``load_weights``: one function for every file and name."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import DownloadError, WeightsError
from . import pytorch, safetensors, trained
from ._file import Array, MappedFile, Unread
from ._zip import looks_like_zip
from .pytorch import Key
from .zoo import find_known, rename_old


def load_weights(
    source: str | os.PathLike[str],
    *,
    key: str | Sequence[str] | None = None,
    copy: bool = False,
    progress: bool | None = None,
) -> dict[str, Array]:
    """Reads weights from a file, or torchvision's from the cache or the network.

    For example::

        net.load_state_dict(md.load_weights("resnet50"))
        net.load_state_dict(md.load_weights("checkpoint.pth", key="state_dict"))

    The format is told from the content: safetensors, or what ``torch.save`` writes, now (zip) and
    before PyTorch 1.6.  Nothing in a file is ever executed.

    Args:
        source: a path, or a name of torchvision's ImageNet weights: ``"resnet50"`` (its default,
            the newest), ``"resnet50.IMAGENET1K_V1"`` or ``"ResNet50_Weights.IMAGENET1K_V2"``.
            A string without folder and extension is a name; ``"./resnet50"`` is a path.
        key: the entry that holds the state dict, in a checkpoint that is a dict of several things;
            several of them for a dict within a dict.  Other entries may hold anything: they are
            not read.  Of a checkpoint of :class:`~minidnn.Trainer` parameters alone are given:
            "parameters" are the last ones, and "average" their moving averages, which None gives
            with a warning that says so, if there are any.
        copy: gives writable arrays with memory of their own.  Otherwise they are read-only views
            of the mapped file, read when they are used; such a file must not be changed in place.
        progress: shows a bar while downloading; None means: when there is a terminal.

    Returns:
        The tensors by name, in the file's order: float64, float32, float16, int64, int32, int16,
        int8, uint8 or bool; bfloat16 as float32, which holds each of its values exactly.  Old names
        of DenseNet's parameters are replaced by torchvision's.  In the place of a tensor of another
        dtype (float8, complex, ...) or kind (sparse, quantized) stands an
        :class:`~minidnn.weights.Unread`, which has its dtype and shape and becomes a WeightsError
        where an array is made of it.

    Raises:
        WeightsError: neither a path nor a known name; a file that is missing, damaged, hostile
            or of another kind.
        DownloadError: the file could not be fetched, or is not what was announced.

    >>> md.save_weights(net.state_dict(), "weights.safetensors")
    >>> net.load_state_dict(md.load_weights("weights.safetensors"))
    """
    if not isinstance(source, (str, os.PathLike)):
        raise WeightsError(
            f"source={source!r:.80} is a {type(source).__name__}; valid are a path and a name of "
            "published weights"
        )
    path = Path(source)
    known = find_known(source) if isinstance(source, str) else None
    if known is not None:
        from .download import fetch  # brings HTTP and TLS, which files do not need

        try:
            path = fetch(known.url, known.hash_prefix, progress=progress)
        except DownloadError as error:
            raise DownloadError(
                f"{error}\n  (instead of {source!r}, the path of a file with weights is valid, too)"
            ) from error
    tensors = rename_old(_read(MappedFile(path), key))
    if copy:
        return {name: _copied(tensor) for name, tensor in tensors.items()}
    return tensors


def _copied(tensor: Any) -> Any:
    return tensor if isinstance(tensor, Unread) else np.array(tensor)


def _read(file: MappedFile, key: Key) -> dict[str, Any]:
    if looks_like_zip(file):
        return pytorch.read_zip(file, key)
    if pytorch.looks_like_legacy(file):
        return pytorch.read_legacy(file, key)
    if safetensors.looks_like_safetensors(file):
        if trained.KEY in safetensors.read_metadata(file):
            return trained.parameters_in(file.path, safetensors.read_safetensors(file), key)
        if key is not None:
            raise file.error(f"is a safetensors file, which has no entry key={key!r}")
        return safetensors.read_safetensors(file)
    begin = file.data[:512]
    what = other_format(begin) or f"begins with {begin[:8]!r}, which is no format that is known"
    raise file.error(f"{what}; valid are safetensors files and what torch.save writes")


def other_format(begin: bytes) -> str | None:
    """What a file that begins so seems to be instead of what it should be."""
    if not begin:
        return "is empty"
    if begin[257:262] == b"ustar":
        return "is a tar archive of PyTorch before 0.1.10: save it again with a newer torch.save"
    if begin.lstrip()[:1] == b"<":
        return "is an HTML or XML page, perhaps an error message of the server it came from"
    if begin.startswith(b"version https://git-lfs"):
        return "is a Git LFS pointer: fetch the file itself with 'git lfs pull'"
    if begin.startswith(b"\x89HDF"):
        return "is an HDF5 file"
    if begin[:1] == b"\x80":
        return "is a pickle that torch.save did not write"
    return None
