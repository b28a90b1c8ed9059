"""``minidnn list``: lists networks, devices, file formats, and the arguments of commands."""

from __future__ import annotations

import argparse
import json
import textwrap
from typing import Any

from minidnn.cli.lab import LADDERS

NAME = "list"
HELP = "list networks, devices, formats, and what commands take"
DESCRIPTION = """\
Lists the networks of the zoo, the devices with what they compute in, or why they cannot be used
here, the files that can be read and written, and what each command takes."""

_WIDTH = 100
_NETWORKS = "a network's name, with random weights, or name.DEFAULT, with published ones"
#: The main arguments of commands.
_TAKES = {
    "classify": "pictures; --network a network's name, an ONNX file, a graph file or a compiled "
    "one (.mdx), --weights a file or a name",
    "train": "a network's name, --data a folder of classes, digits or fashion-mnist:FOLDER",
    "launch": "a Python script and its arguments",
    "explain": "NET: a network's name, an ONNX file, a graph file, a file of a front end",
    "report": "NET as explain does, and the page: --html FILE",
    "export": "NET as explain does, and the file to be written: .onnx, .safetensors or .mdx",
    "quantize": "as export does, and --data a folder of pictures, .npy, .npz, digits or "
    "fashion-mnist:FOLDER",
    "serve": "models: PATH, name=PATH or name:version=PATH, where PATH is as classify's --network",
    "batch": "a model as serve does, --input a pattern of pictures, --output a folder",
    "bench": "networks' names that torchvision has, ONNX files",
    "bisect": "NET as explain does",
    "compare": "an ONNX file, or package.module:name of a PyTorch module",
    "lab": f"an action, such as show, a ladder ({LADDERS}), and a step's name",
    "doctor": "nothing; --install-ispc installs ISPC",
    "cache": "list, size or clear; --kind a kind of entry",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace) -> int:
    document = _document()
    print(json.dumps(document, indent=1) if options.json else _text(document))
    return 0


def _document() -> dict[str, Any]:
    from minidnn.backends.backend import backend_names
    from minidnn.models import list_models
    from minidnn.weights import KNOWN_WEIGHTS

    published: dict[str, list[str]] = {name: [] for name in list_models()}
    for known in KNOWN_WEIGHTS:
        published[known.network].append(known.version)
    return {
        "networks": [{"name": n, "weights": versions} for n, versions in published.items()],
        "devices": [_device(name) for name in backend_names()],
        "files": _files(),
        "commands": _TAKES,
    }


def _device(name: str) -> dict[str, Any]:
    from minidnn.backends.backend import get_backend, why_not_in
    from minidnn.errors import DeviceError

    try:
        backend = get_backend(name)
    except DeviceError as error:
        return {"name": name, "usable": False, "reason": str(error).partition(": ")[2]}
    usable = [each for each in backend.precisions() if why_not_in(backend, each) is None]
    return {"name": name, "usable": True, "precisions": usable}


def _files() -> dict[str, str]:
    from minidnn.errors import UnsupportedError
    from minidnn.frontends.frontend import ask
    from minidnn.pictures import extensions

    try:
        known = extensions()
        common = sorted({".bmp", ".gif", ".jpg", ".png", ".tif", ".webp"} & known)
        pictures = f"what Pillow reads: {', '.join(common)} and {len(known) - len(common)} more"
    except UnsupportedError as error:
        pictures = f"none: {error}"
    return {
        "networks": "; ".join(ask(None).takes),
        "networks written": ".onnx, .safetensors, .mdx (minidnn export, minidnn quantize)",
        "weights": ".safetensors, .pth, .pt and others of torch.save",
        "pictures": pictures,
    }


def _text(document: dict[str, Any]) -> str:
    names = [entry["name"] for entry in document["networks"]]
    own_weights = [entry["name"] for entry in document["networks"] if not entry["weights"]]
    lines = ["networks", *_wrapped(", ".join(names))]
    lines += _wrapped(f"{_NETWORKS} (torchvision's; of {', '.join(own_weights)}, minidnn's)")
    lines += ["", "devices"]
    for device in document["devices"]:
        told = ", ".join(device["precisions"]) if device["usable"] else f"no: {device['reason']}"
        lines += _wrapped(f"{device['name']:<10} {told}", 13)
    for title in ("files", "commands"):
        lines += ["", title]
        for name, told in document[title].items():
            lines += _wrapped(f"{name:<17} {told}", 20)
    return "\n".join(lines)


def _wrapped(text: str, indent: int = 2) -> list[str]:
    return textwrap.wrap(
        text, _WIDTH, initial_indent="  ", subsequent_indent=" " * indent, break_on_hyphens=False
    )
