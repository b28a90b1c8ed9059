"""Pages in a browser: Chromium without a window lays them out, and a script measures them.

A page has no script, so each is put into frames of a wrapper page, one for each width and colour
scheme, and the wrapper's script looks into them.  A frame's scheme is that of its element.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from html import escape, unescape
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
PHONE, DESKTOP = 390, 1280
SCHEMES = ("light", "dark")
_QUIET = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--disable-extensions", "--disable-dev-shm-usage", "--virtual-time-budget=60000"),
)
_FOUND = re.compile(r'<pre id="found">(.*?)</pre>', re.DOTALL)


def find_browser() -> str | None:
    """Where Chromium is; None if it is not installed."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


def measured(
    browser: str, pages: Mapping[str, str], folder: Path, widths: Sequence[int] = (PHONE, DESKTOP)
) -> dict[str, Any]:
    """What is wrong with each page in each frame, by "page width scheme".

    Args:
        browser: the program.
        pages: texts of pages by a name.
        folder: where a wrapper page and a profile may be written.
        widths: of frames, in pixels.

    Returns:
        For each frame its scheme's colours and lists of complaints, see ``measure.js``.
    """
    frames = [
        f'<iframe id="{name} {width} {scheme}" style="width:{width}px;height:900px;border:0;'
        f'color-scheme:{scheme}" srcdoc="{escape(text)}"></iframe>'
        for name, text in pages.items()
        for width in widths
        for scheme in SCHEMES
    ]
    script = Path(__file__).with_name("measure.js").read_text(encoding="utf-8")
    wrapper = folder / "wrapper.html"
    body = f'{"".join(frames)}<pre id="found"></pre><script>{script}</script>'
    wrapper.write_text(f"<!DOCTYPE html><meta charset=utf-8>{body}", encoding="utf-8")
    profile = f"--user-data-dir={folder / 'profile'}"
    command = [browser, *_QUIET, profile, "--dump-dom", wrapper.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    found = _FOUND.search(done.stdout)
    assert found is not None and found[1], f"the script told nothing: {done.stderr[-2000:]}"
    result: dict[str, Any] = json.loads(unescape(found[1]))
    return result
