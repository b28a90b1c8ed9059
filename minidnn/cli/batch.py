"""``minidnn batch``: predicts the classes of any number of pictures, on this machine or on Ray."""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minidnn.cli.arguments import add_device, count, count_from_0
from minidnn.cli.preparing import add_crop, add_preparation, add_weights

if TYPE_CHECKING:
    from minidnn.batch import Predictor
    from minidnn.batch.driver import Summary
    from minidnn.preparation import Preparation

HELP = "predict what is in a folder of pictures, of any number"
DESCRIPTION = """\
Predicts what is in all pictures that --input means, on this machine or on a Ray cluster, and writes
to --output a file for every --part of them.

    minidnn batch resnet50 --input 'pictures/**' --output predictions
    minidnn batch net.onnx --input 's3://bucket/*/*.jpg' --output scores --scores --format jsonl

MODEL is a network of the zoo, an ONNX file, a file that minidnn export compiled (.mdx), or one that
save_graph wrote. A run that ended early goes on by the same command: each picture is in the output
once. Pictures that cannot be read are named in bad.jsonl, with the reason.

Exit code: 0; 1 if some pictures could not be read or some parts are missing; 2 for other errors."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("network", metavar="MODEL", help="a network of the zoo, or a file")
    add(
        "--input",
        required=True,
        metavar="PATTERN",
        help="a folder, or a pattern in quotes: ** is any number of folders. One that ends in * or "
        "** means files named as pictures. s3://bucket/… and other URLs are read by pyarrow",
    )
    add("--output", required=True, type=Path, metavar="FOLDER", help="which all machines share")
    add("--format", choices=("parquet", "jsonl"), default="parquet", help="(parquet)")
    add("--top", type=count, default=5, help="classes per picture (5)")
    add("--scores", action="store_true", help="the network's outputs instead of classes")
    add("--part", type=count, default=1000, metavar="FILES", help="in one file (1000)")
    model = parser.add_argument_group("model")
    add_weights(model, "default")
    add_preparation(model)
    add_crop(model)
    model.add_argument("--batch", type=count, default=32, help="pictures at once (32)")
    add_device(parser)
    workers = parser.add_argument_group("workers")
    add = workers.add_argument
    add("--address", help="of a Ray cluster: auto, host:port or ray://… (this machine alone)")
    add("--cores", type=count, default=4, help="of each worker, to read and compute (4)")
    add("--workers", type=count, help="at most (as many as there is room for)")
    add(
        "--retries",
        type=count_from_0,
        default=3,
        help="times that a part is tried again whose worker was killed (3)",
    )


def run(options: argparse.Namespace) -> int:
    from minidnn.backends.backend import default_device
    from minidnn.batch.driver import BAD, Run
    from minidnn.batch.files import is_remote
    from minidnn.batch.on_ray import WorkerResources, run_on_ray, started

    _absolute(options)
    device = options.device
    if device is None and options.address is None:
        device = default_device()[0]
    # Absolute paths: workers, and readers of the column "file", may have other current folders.
    is_url = is_remote(options.input)
    pattern = options.input if is_url else os.path.join(os.getcwd(), options.input)
    batch_run = Run(
        predictor_of(options, device, min(options.cores, len(os.sched_getaffinity(0)))),
        pattern,
        Path(os.path.abspath(options.output)),
        _model(options, device),
        options.format,
        options.part,
        options.retries,
    )
    resources = WorkerResources(options.address, options.cores, options.workers, device)

    def execute(worker: Any, parts: Any) -> Any:
        with started(resources) as ray:
            yield from run_on_ray(ray, resources, worker, parts)

    summary = batch_run(execute, _say)
    print(_told(summary, batch_run.folder / BAD))
    return 1 if summary.bad or summary.failed else 0


def _say(text: str) -> None:
    print(f"minidnn batch: {text}", file=sys.stderr, flush=True)


def _told(summary: Summary, bad: Path) -> str:
    lines = [f"{summary.good:,} of {summary.files:,} pictures predicted"]
    if summary.computed:
        rate = summary.computed / summary.seconds
        lines[0] += f"; {summary.computed:,} in {summary.seconds:.1f} s, {rate:,.1f} a second"
    if summary.bad:
        lines.append(f"{summary.bad:,} could not be read: {bad} names them")
    if summary.failed:
        rest = summary.files - summary.good - summary.bad
        lines += summary.failed[:8]
        lines.append(
            f"{rest:,} pictures are left, of {len(summary.failed):,} parts; the same command tries "
            "them again"
        )
    return "\n".join(lines)


def predictor_of(options: argparse.Namespace, device: str | None, threads: int) -> Predictor:
    """The predictor that the options describe.  Each worker loads the weights when it uses it.

    Raises MiniDNNError as ``minidnn classify`` does.
    """
    from minidnn.batch import Predictor
    from minidnn.cli.classify import make_classifier
    from minidnn.compiled_file import is_compiled

    common: dict[str, Any] = {
        "top": None if options.scores else options.top,
        "batch": options.batch,
        "threads": threads,
        "device": device,
        "precision": options.precision,
    }
    if is_compiled(options.network):
        return _of_compiled(options, common)
    classifier = make_classifier(options)
    if classifier.told:
        _say(classifier.told)
    return Predictor(
        partial(_graph, options),
        _named(options, classifier.preparation),
        are_probabilities=classifier.probabilities,
        **common,
    )


def _graph(options: argparse.Namespace, batch: int) -> Any:
    from minidnn.cli.classify import make_classifier
    from minidnn.cli.networks import batches_of_file
    from minidnn.frontends.zoo import is_path

    classifier = make_classifier(options)
    if is_path(options.network):
        crop = classifier.preparation.crop
        if (graph := batches_of_file(options.network, batch, (crop, crop))) is not None:
            return graph
    return classifier.graph(batch)


def _of_compiled(options: argparse.Namespace, common: dict[str, Any]) -> Predictor:
    from minidnn.batch import Predictor
    from minidnn.batch.predictor import interface_of
    from minidnn.cli.opening import prepared_for

    opened = partial(_load, options.network, common["device"], common["threads"])
    own = ("precision", "key", "size")
    preparation, told = prepared_for(options, interface_of(opened(0)), own)
    if told:
        _say(told)
    return Predictor(opened, _named(options, preparation), **common)


def _named(options: argparse.Namespace, preparation: Preparation) -> Preparation:
    """The preparation, without class names if ``--scores`` asks for outputs."""
    return replace(preparation, classes=None) if options.scores else preparation


def _load(path: str, device: str | None, threads: int, batch: int) -> Any:
    import minidnn

    return minidnn.load(path, device=device, threads=threads)


def _absolute(options: argparse.Namespace) -> None:
    """Makes the paths of files absolute, for workers with another current folder."""
    for name in ("network", "weights", "labels"):
        value = getattr(options, name)
        if value is not None and os.path.isfile(value):
            setattr(options, name, os.path.abspath(value))


def _model(options: argparse.Namespace, device: str | None) -> dict[str, Any]:
    """The key of these predictions: all options that change them, with hashes of files'
    contents."""
    from minidnn import __version__

    names = ["weights", "key", "prefix", "labels", "resize", "size", "mean", "std"]
    names += ["batch", "precision", "scores"]
    key: dict[str, Any] = {"minidnn": __version__, "model": _content(options.network)}
    key |= {name: _content(getattr(options, name)) for name in names}
    return {**key, "top": None if options.scores else options.top, "device": device}


def _content(value: Any) -> Any:
    """A value as JSON would restore it; for the path of a file, its name and a hash of its
    content."""
    if isinstance(value, tuple):
        return list(value)
    if not isinstance(value, str) or not os.path.isfile(value):
        return value
    with open(value, "rb") as file:
        return f"{os.path.basename(value)} ({hashlib.file_digest(file, 'sha256').hexdigest()[:16]})"
