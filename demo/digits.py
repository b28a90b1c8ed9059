"""Classify scikit-learn's handwritten digits with minidnn, and draw what it saw.

    python demo/digits.py [--device reference] [--output out/digits.png]

Runs the network of ``minidnn.models.digits`` on the last 360 images, which its training never saw,
prints the accuracy and writes a contact sheet: every image with its prediction, wrong ones in red.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont
from sklearn.datasets import load_digits

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # this checkout's minidnn, installed or not

import minidnn as md  # noqa: E402
from minidnn import models  # noqa: E402

HELD_OUT = 360
COLUMNS, ZOOM, GAP, LABEL, HEADER = 24, 5, 10, 20, 48
PAPER, INK, RIGHT, WRONG = "#ffffff", "#202124", "#5f6368", "#d93025"


def held_out() -> tuple[np.ndarray, np.ndarray]:
    """Return the images (360, 1, 8, 8), float32 from 0 to 1, and their labels (360,)."""
    data = load_digits()
    images = (data.images[-HELD_OUT:, None] / 16).astype(np.float32)
    return images, data.target[-HELD_OUT:]


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
    parser.add_argument("--device", help="cpu, cuda or reference; by default the best usable one")
    parser.add_argument("--output", type=Path, default=ROOT / "out" / "digits.png")
    arguments = parser.parse_args()

    images, labels = held_out()
    net = models.digits(weights="DEFAULT")
    exe = md.compile(net, images.shape, device=arguments.device)
    predicted = exe(images).argmax(axis=1)

    right = int((predicted == labels).sum())
    accuracy = f"{100 * right / len(labels):.1f} %"
    title = (
        f"minidnn reads {len(labels)} held-out digits, {right} right ({accuracy}); mistakes in red"
    )
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    contact_sheet(images, predicted, labels, title).save(arguments.output)
    print(f"accuracy: {accuracy}")
    print(f"contact sheet: {arguments.output}")


if __name__ == "__main__":
    main()
