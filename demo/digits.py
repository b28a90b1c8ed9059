"""Train a network on scikit-learn's handwritten digits, classify with it, and draw what it saw.

    python demo/digits.py [--device cpu] [--output out]

Trains ``minidnn.models.digits`` from random weights on the first 1,437 images, reads the last 360,
which training never saw, and prints the accuracy.  Writes digits.png, a contact sheet of every
image with its prediction, wrong ones in red, and digits-training.svg, loss and accuracy by epoch.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # this checkout's minidnn, installed or not

import minidnn as md  # noqa: E402
from minidnn import models  # noqa: E402
from minidnn.training.plots import draw_curves  # noqa: E402

BATCH, EPOCHS, RATE = 64, 25, 0.01
COLUMNS, ZOOM, GAP, LABEL, HEADER = 24, 5, 10, 20, 48
PAPER, INK, RIGHT, WRONG = "#ffffff", "#202124", "#5f6368", "#d93025"


def noise(x: np.ndarray, draws: md.data.Draws) -> np.ndarray:
    """A step of augmentation: ink that is a little off everywhere."""
    return (x + 0.05 * draws.normal(*x.shape[1:])).clip(0, 1)


def train(network: md.Layer, epochs: int, device: str | None) -> md.Trainer:
    """Trains a network; returns its trainer, which has the weights and what each epoch measured."""
    augment: list[Callable[..., np.ndarray]] = [
        md.data.Affine(degrees=15, shift=0.1, scale=0.15, shear=0.15),
        noise,
    ]
    loader = md.data.Loader(
        md.data.digits(train=True, augment=augment), BATCH, shuffle=True, drop_last=True
    )
    held_out = md.data.digits(train=False)
    trainer = md.Trainer(
        network,
        (BATCH, 1, 8, 8),
        md.losses.CrossEntropy(label_smoothing=0.1),
        md.optim.AdamW(md.optim.OneCycle(RATE, steps=epochs * len(loader)), weight_decay=1e-3),
        device=device,
    )
    trainer.fit(
        loader,
        epochs,
        validate=md.data.Loader(held_out, len(held_out)),
        callbacks=[md.callbacks.ProgressBar()],
    )
    return trainer


def contact_sheet(
    images: np.ndarray, predicted: np.ndarray, labels: np.ndarray, title: str
) -> Image.Image:
    """Draw every image enlarged above its prediction; a wrong one shows the true digit as well."""
    tile = 8 * ZOOM
    width, height = tile + GAP, tile + LABEL + GAP
    rows = -(-len(images) // COLUMNS)
    sheet = Image.new("RGB", (COLUMNS * width + GAP, HEADER + rows * height), PAPER)
    draw = ImageDraw.Draw(sheet)
    draw.text((GAP, HEADER / 2), title, fill=INK, font=ImageFont.load_default(20), anchor="lm")
    font = ImageFont.load_default(15)
    for i, (image, guess, label) in enumerate(zip(images, predicted, labels, strict=True)):
        left, top = GAP + i % COLUMNS * width, HEADER + i // COLUMNS * height
        pixels = Image.fromarray((255 - 255 * image[0]).round().astype(np.uint8))
        sheet.paste(pixels.resize((tile, tile), Image.Resampling.NEAREST), (left, top))
        right = guess == label
        frame = (left - 1, top - 1, left + tile, top + tile)
        draw.rectangle(frame, outline="#dadce0" if right else WRONG, width=1 if right else 3)
        text = str(guess) if right else f"{guess} not {label}"
        middle = (left + tile / 2, top + tile + LABEL / 2)
        draw.text(middle, text, fill=RIGHT if right else WRONG, font=font, anchor="mm")
    return sheet


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--device", help="cpu or reference; by default the best usable one")
    parser.add_argument("--epochs", type=int, default=EPOCHS, help=f"epochs ({EPOCHS})")
    parser.add_argument("--output", type=Path, default=ROOT / "out", help="a folder (out)")
    parser.add_argument("--weights", type=Path, help="a file to write the weights to (none)")
    arguments = parser.parse_args()

    network = models.digits()
    start = time.perf_counter()
    trainer = train(network, arguments.epochs, arguments.device)
    print(f"trained on {trainer.step_program.device} in {time.perf_counter() - start:.0f} s")
    network.load_state_dict(trainer.state_dict())

    held_out = md.data.digits(train=False)
    images, labels = held_out.x, held_out.y
    exe = md.compile(network, images.shape, device=arguments.device)
    predicted = exe(images).argmax(axis=1)

    right = int((predicted == labels).sum())
    accuracy = f"{100 * right / len(labels):.1f} %"
    title = (
        f"minidnn reads {len(labels)} held-out digits, {right} right ({accuracy}); mistakes in red"
    )
    arguments.output.mkdir(parents=True, exist_ok=True)
    sheet, curves = arguments.output / "digits.png", arguments.output / "digits-training.svg"
    contact_sheet(images, predicted, labels, title).save(sheet)
    draw_curves(
        curves,
        {
            measure: {
                "training": [epoch[measure] for epoch in trainer.history],
                "held out": [epoch[f"validation_{measure}"] for epoch in trainer.history],
            }
            for measure in ("loss", "accuracy")
        },
    )
    if arguments.weights:
        md.save_weights(network.state_dict(), arguments.weights)
    print(f"accuracy: {accuracy}")
    print(f"contact sheet: {sheet}")
    print(f"loss and accuracy: {curves}")


if __name__ == "__main__":
    main()
