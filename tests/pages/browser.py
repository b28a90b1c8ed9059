"""Pages in a browser: Chromium lays them out, and a script measures them.

A page has no script, so each is put into frames of a wrapper page, one for each width and colour
scheme, and the wrapper's script looks into them.  A frame's scheme is that of its element.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from html import escape, unescape
from pathlib import Path
from typing import Any

from tools.browser import dump

PHONE, DESKTOP = 390, 1280
SCHEMES = ("light", "dark")
_FOUND = re.compile(r'<pre id="found">(.*?)</pre>', re.DOTALL)


def measured(browser: str, pages: Mapping[str, str], folder: Path) -> dict[str, Any]:
    """What is wrong with each page in each frame, by "page width scheme".

    Args:
        browser: the program.
        pages: texts of pages by a name.
        folder: where the wrapper page may be written.

    Returns:
        For each frame its colour, its pictures and lists of complaints, see ``measure.js``.
    """
    frames = [
        f'<iframe id="{name} {width} {scheme}" style="width:{width}px;height:900px;border:0;'
        f'color-scheme:{scheme}" srcdoc="{escape(text)}"></iframe>'
        for name, text in pages.items()
        for width in (PHONE, DESKTOP)
        for scheme in SCHEMES
    ]
    script = Path(__file__).with_name("measure.js").read_text(encoding="utf-8")
    wrapper = folder / "wrapper.html"
    body = f'{"".join(frames)}<pre id="found"></pre><script>{script}</script>'
    wrapper.write_text(f"<!DOCTYPE html><meta charset=utf-8>{body}", encoding="utf-8")
    found = _FOUND.search(dump(browser, wrapper))
    assert found is not None and found[1], "the script told nothing"
    result: dict[str, Any] = json.loads(unescape(found[1]))
    return result
