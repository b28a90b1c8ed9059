"""Draws docs/explanation/report-page.png and lab-page.png, the pictures of pages in the README.

minidnn report resnet18 --html resnet18.html --json > resnet18.json
python -m tools.page_pictures resnet18.json

The study is the recorded one of convolutions.  Chromium draws them.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from PIL import Image

from minidnn import lab
from minidnn.report.network_page import network_page
from tools.browser import find_browser, screenshot

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "explanation"
_WIDTH, _HEIGHT = 1280, 1520
_COLORS = 128
_WITHOUT_TABLES = "<style>.wide, .wide + p, h3 { display: none }</style></head>"


def pages(figures: Path) -> dict[str, str]:
    """Texts of the pages by the names of their pictures."""
    document = json.loads(figures.read_text(encoding="utf-8"))
    study = lab.load_study(lab.recorded_studies()["conv"])
    conv = lab.study_page(study, lab.ladder_of("conv"))
    # What is drawn stands below a table that is as high as the picture.
    return {
        "report-page": network_page(document),
        "lab-page": conv.replace("</head>", _WITHOUT_TABLES, 1),
    }


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit("usage: python -m tools.page_pictures REPORT.json")
    browser = find_browser()
    if browser is None:
        sys.exit("Chromium is not installed: apt-get install chromium")
    with tempfile.TemporaryDirectory() as folder:
        for name, text in pages(Path(sys.argv[1])).items():
            page, picture = Path(folder) / f"{name}.html", Path(folder) / f"{name}.png"
            page.write_text(text, encoding="utf-8")
            screenshot(browser, page, picture, _WIDTH, _HEIGHT)
            with Image.open(picture) as drawn:
                few = drawn.convert("RGB").quantize(_COLORS, Image.Quantize.FASTOCTREE)
                few.save(FOLDER / f"{name}.png", optimize=True)


if __name__ == "__main__":
    main()
