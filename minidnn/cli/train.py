"""``minidnn train``: trains a network of the zoo on pictures, and evaluates it."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minidnn.cli.arguments import add_device, count, count_from_0, positive
from minidnn.cli.datasets import AUGMENTATIONS, DATA_HELP, held_out_and_train
from minidnn.cli.preparing import DEFAULT, RANDOM, WEIGHTS_HELP
from minidnn.errors import MiniDNNError

if TYPE_CHECKING:
    import numpy as np

    from minidnn.data import Loader
    from minidnn.preparation import Preparation
    from minidnn.training.trainer import Trainer

HELP = "train a network on pictures"
DESCRIPTION = """\
Trains a network of the zoo, or goes on with weights that are there, and evaluates it after each
epoch on pictures that are held out. The learning rate rises to --lr and falls again.

A folder that has a folder "train" and one of "val", "validation" and "test" is taken so; of any
other folder of classes, a fifth of each class is held out, or --validate names a second one.

Writes to --output: weights.safetensors, those of the epoch with the best accuracy, which say how
pictures are prepared and what the classes are; classes.txt, the names of these;
checkpoint.safetensors, from which --resume goes on with the same bits; history.csv; curves.svg,
loss and accuracy by epoch; confusions.svg, what was taken for what.
Ctrl-C and SIGTERM save a checkpoint as well, and end with 130; SIGUSR1 saves and goes on."""

WEIGHTS, CLASSES, CHECKPOINT = "weights.safetensors", "classes.txt", "checkpoint.safetensors"

#: Optimizers by name: class in minidnn.optim, default learning rate, and other arguments.
OPTIMIZERS: dict[str, tuple[str, float, dict[str, Any]]] = {
    "sgd": ("SGD", 0.05, {"momentum": 0.9, "nesterov": True, "weight_decay": 5e-4}),
    "adam": ("Adam", 1e-3, {}),
    "adamw": ("AdamW", 1e-3, {"weight_decay": 0.01}),
    "rmsprop": ("RMSprop", 1e-3, {}),
    "lars": ("LARS", 1.0, {"weight_decay": 1e-4}),
    "lamb": ("LAMB", 5e-3, {"weight_decay": 0.01}),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("network", metavar="NET", help="a network of the zoo")
    add("--data", required=True, help=DATA_HELP)
    add("--validate", metavar="FOLDER", help="pictures to evaluate on, in folders of the classes")
    add("--output", type=Path, default=Path("trained"), help="a folder for all files (trained)")
    add("--weights", default=RANDOM, help=f"what to begin with: {WEIGHTS_HELP} (random)")
    add("--epochs", type=count, default=20, help="epochs in all (20)")
    add("--batch", type=count, default=32, help="pictures in each step (32)")
    names = ", ".join(OPTIMIZERS)
    rates = ", ".join(f"{name} {rate:g}" for name, (_, rate, _) in OPTIMIZERS.items())
    add("--optimizer", metavar="NAME", choices=OPTIMIZERS, default="adamw", help=f"{names} (adamw)")
    add("--lr", type=positive, help=f"the highest learning rate ({rates})")
    add("--size", type=count, help="rows and columns of pictures (what the network was made for)")
    add(
        "--augment",
        choices=AUGMENTATIONS,
        help="how pictures are changed at random: cut out at any size, or shifted, and mirrored; "
        "turned and sheared (photos for folders, shifts for fashion-mnist, affine for digits)",
    )
    add(
        "--steps-per-launch",
        metavar="STEPS",
        type=count,
        default=1,
        help="steps that a GPU takes at once, for small networks (1)",
    )
    add("--seed", type=count_from_0, default=0, help="of weights, order and augmentation (0)")
    add("--workers", type=count_from_0, default=2, help="threads that read pictures (2)")
    add("--skip-corrupt", action="store_true", help="leave out pictures that cannot be read")
    add("--resume", action="store_true", help="go on from the checkpoint in --output")
    add_device(parser, precision="float32")


def run(options: argparse.Namespace) -> int:
    import minidnn as md
    from minidnn.data import Loader
    from minidnn.models import get_model

    channels, own_size, _ = get_model(options.network).input_shape
    known = _preparation_of_weights(options, channels)
    held_out, train, preparation = held_out_and_train(options, channels, own_size, known)
    size = preparation.crop
    network = _network(options, len(train.classes))
    batch = min(options.batch, len(train))
    loader = Loader(
        train, batch, shuffle=True, seed=options.seed, workers=options.workers, drop_last=True
    )
    validation = Loader(held_out, batch, workers=options.workers)
    trainer = md.Trainer(
        network,
        (batch, channels, size, size),
        md.losses.CrossEntropy(),
        _optimizer(options, options.epochs * len(loader)),
        seed=options.seed,
        steps_per_launch=options.steps_per_launch,
        device=options.device,
        precision=options.precision,
    )
    files = _open(options, trainer, preparation)
    _say(
        f"{len(train):,} pictures of {len(train.classes)} classes, {len(held_out):,} held out, "
        f"on {trainer.step_program.device}"
    )
    bar = md.callbacks.ProgressBar(every=0.2 if sys.stderr.isatty() else 1e9)
    saves = md.callbacks.Checkpoint(options.output / CHECKPOINT, preparation=preparation)
    table = md.callbacks.CSV(options.output / "history.csv")
    try:
        trainer.fit(
            loader, options.epochs, validate=validation, callbacks=[bar, table, files, saves]
        )
    finally:
        loader.close()
    if trainer.interrupted:
        _say(f"saved to {options.output}; --resume goes on")
        raise KeyboardInterrupt
    network.load_state_dict(md.load_weights(os.fspath(options.output / WEIGHTS)))
    _evaluate(options, network, validation, trainer, train.classes)
    return 0


def _say(text: str) -> None:
    print(f"minidnn train: {text}", file=sys.stderr, flush=True)


def _network(options: argparse.Namespace, classes: int) -> Any:
    """The network for ``classes`` classes, with those of the initial weights whose shapes fit."""
    from minidnn.cli.preparing import known_of, load, source_of
    from minidnn.models import get_model

    name = options.network
    # As ``minidnn classify`` makes it for weights from a file, such as those that are trained here.
    more = {"transform_input": True} if name == "inception_v3" else {}
    network = get_model(name, num_classes=classes, seed=options.seed, **more)
    source = source_of(name, options.weights)
    if source == RANDOM:
        return network
    if source == DEFAULT and known_of(name, source) is None:
        initial = get_model(name, weights=DEFAULT)  # its weights came with minidnn
    else:
        initial = load(get_model(name), name, source, None, _say)
    state, initial_state = network.state_dict(), initial.state_dict()
    fits = {
        name: array for name, array in initial_state.items() if array.shape == state[name].shape
    }
    network.load_state_dict({**state, **fits})
    if new := [name for name in state if name not in fits]:
        _say(f"for {classes} classes, {', '.join(new)} begin at random")
    return network


def _preparation_of_weights(options: argparse.Namespace, channels: int) -> Preparation | None:
    """The preparation in the file of the initial weights; None if they are no file, or it has
    none."""
    from minidnn.cli.preparing import file_says, known_of, source_of, told

    source = source_of(options.network, options.weights)
    if source in (RANDOM, DEFAULT) or known_of(options.network, source) is not None:
        return None
    known = file_says(source)
    if known is None:
        return None
    if known.channels != channels:
        raise MiniDNNError(
            f"--weights {source} are prepared for {known.channels} channels, and "
            f"{options.network} takes {channels}"
        )
    known = replace(known, classes=None)
    _say(told(options, known if options.size is None else known.resized(options.size)))
    return known


def _optimizer(options: argparse.Namespace, steps: int) -> Any:
    from minidnn import optim

    kind, rate, more = OPTIMIZERS[options.optimizer]
    cycle = optim.OneCycle(options.lr or rate, steps=max(steps, 2))
    return getattr(optim, kind)(cycle, decay="weights", **more)


def _open(options: argparse.Namespace, trainer: Trainer, preparation: Preparation) -> Any:
    """The callback that writes to ``--output``.  Restores the checkpoint for ``--resume``;
    otherwise the folder must have none."""
    from minidnn.training.callbacks import Callback

    folder: Path = options.output
    checkpoint = folder / CHECKPOINT
    if options.resume:
        trainer.restore(checkpoint)
    elif checkpoint.exists():
        raise MiniDNNError(
            f"--output {folder} has the {CHECKPOINT} of other training: --resume goes on from it, "
            "and another folder begins anew"
        )
    folder.mkdir(parents=True, exist_ok=True)
    text = "".join(f"{name}\n" for name in preparation.classes or ())
    (folder / CLASSES).write_text(text, encoding="utf-8")

    class Files(Callback):
        def after_epoch(self, trainer: Any, record: dict[str, Any]) -> None:
            from minidnn.weights import save_weights

            if record is _best(trainer.history):
                state = trainer.state_dict()
                save_weights(state, folder / WEIGHTS, preparation=preparation)
            _draw(folder / "curves.svg", trainer.history)

    return Files()


def _best(history: list[dict[str, Any]]) -> dict[str, Any]:
    """The record of the epoch with the best accuracy; of several, the first."""
    return max(history, key=lambda record: record["validation_accuracy"])


def _draw(path: Path, history: list[dict[str, Any]]) -> None:
    from minidnn.training.plots import draw_curves

    def lines(name: str) -> Mapping[str, list[float]]:
        return {
            "training": [record[name] for record in history],
            "held out": [record[f"validation_{name}"] for record in history],
        }

    draw_curves(path, {name: lines(name) for name in ("loss", "accuracy")})


def _evaluate(
    options: argparse.Namespace,
    network: Any,
    loader: Loader,
    trainer: Trainer,
    classes: tuple[str, ...],
) -> None:
    """Draws the confusion matrix, and prints the accuracy and the path of the weights."""
    import numpy as np

    from minidnn.training.plots import confusions, draw_confusions

    with_targets = [(x, target) for x, target in loader]
    predicted = _predict(options, network, [x for x, _ in with_targets], loader.batch)
    target = np.concatenate([target for _, target in with_targets])
    counts = confusions(target, predicted, len(classes))
    draw_confusions(options.output / "confusions.svg", counts, classes)
    right, epoch = int(np.trace(counts)), _best(trainer.history)["epoch"]
    print(
        f"accuracy: {100 * right / len(target):.1f} % of {len(target):,} held-out pictures, after "
        f"epoch {epoch}"
    )
    print(f"weights: {options.output / WEIGHTS}")


def _predict(
    options: argparse.Namespace, network: Any, batches: list[np.ndarray], batch: int
) -> np.ndarray:
    import numpy as np

    import minidnn as md

    shape = (batch, *batches[0].shape[1:])
    program = md.compile(network, shape, device=options.device, precision=options.precision)
    classes = []
    for x in batches:
        full = np.zeros(shape, np.float32)  # the last batch may have fewer pictures
        full[: len(x)] = x
        classes.append(np.asarray(program(full))[: len(x)].argmax(axis=1))
    return np.concatenate(classes)
