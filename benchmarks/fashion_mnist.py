"""How well, and how soon, a small ResNet learns Fashion-MNIST.

python -m benchmarks.fashion_mnist FOLDER
python -m benchmarks.fashion_mnist FOLDER --device cuda --precision bfloat16 --width 64 --epochs 20

The folder has the dataset's four files.  One line of JSON tells what part of the 10,000 pictures
that training never saw is classified right, and the seconds of it all, compilation included.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

import minidnn as md
from minidnn import layers as L
from models.resnet import BasicBlock


def network(width: int, classes: int = len(md.data.FASHION_CLASSES)) -> L.Layer:
    """A ResNet of 8 layers for (N, 1, 28, 28): stages of ``width``, twice and four times as many
    channels."""
    return L.Sequential(
        *(L.Conv2d(1, width, 3, padding=1, bias=False), L.BatchNorm2d(width), L.ReLU()),
        *(BasicBlock(width, width), BasicBlock(width, 2 * width, 2)),
        *(BasicBlock(2 * width, 4 * width, 2), L.AdaptiveAvgPool2d((1, 1)), L.Flatten()),
        L.Linear(4 * width, classes),
    )


def learned(given: argparse.Namespace) -> dict[str, Any]:
    """What a network that was trained so is worth."""
    begin = time.perf_counter()
    augment = md.data.Flip(), md.data.RandomCrop(28, padding=2)
    train = md.data.Loader(
        md.data.fashion_mnist(given.folder, train=True, augment=augment),
        given.batch,
        shuffle=True,
        seed=given.seed,
        drop_last=True,
    )
    held_out = md.data.Loader(md.data.fashion_mnist(given.folder, train=False), 500)
    rate = md.optim.OneCycle(given.rate, steps=given.epochs * len(train))
    net = network(given.width).initialize(given.seed)
    trainer = md.Trainer(
        net,
        (given.batch, 1, 28, 28),
        md.losses.CrossEntropy(label_smoothing=0.05),
        md.optim.AdamW(rate, weight_decay=0.02),
        device=given.device,
        precision=given.precision,
    )
    trainer.fit(train, given.epochs, callbacks=[md.callbacks.ProgressBar()])
    found = trainer.evaluate(held_out)
    return {
        **{name: getattr(given, name) for name in ("device", "precision", "width", "epochs")},
        "accuracy": found["accuracy"],
        "seconds": time.perf_counter() - begin,
        **({"accuracy in int8": in_int8(net, trainer, given)} if given.int8 else {}),
    }


def in_int8(net: md.Layer, trainer: md.Trainer, given: argparse.Namespace) -> float:
    """What part is classified right by bytes, with ranges from 500 pictures of training."""
    net.load_state_dict(trainer.state_dict())
    seen = next(iter(md.data.Loader(md.data.fashion_mnist(given.folder, train=True), 500)))
    exe = md.compile(md.quantize(net, np.asarray(seen[0], np.float32), device="cpu"), device="cpu")
    right = total = 0
    for x, y in md.data.Loader(md.data.fashion_mnist(given.folder, train=False), 500):
        right += int((np.asarray(exe(np.asarray(x, np.float32))).argmax(1) == y).sum())
        total += len(y)
    return right / total


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("folder")
    add("--device", default="cpu")
    add("--precision", default="float32")
    add("--width", type=int, default=16, help="channels of the first stage (16)")
    add("--epochs", type=int, default=12)
    add("--batch", type=int, default=128)
    add("--rate", type=float, default=0.01, help="the largest (0.01)")
    add("--seed", type=int, default=0)
    add("--int8", action="store_true", help="the accuracy of the quantized network, too")
    print(json.dumps(learned(parser.parse_args(given))))


if __name__ == "__main__":
    main()
