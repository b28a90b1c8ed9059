"""Chromium without a window: it lays pages out, for tests and for pictures of them."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome")
_QUIET = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--disable-extensions", "--disable-dev-shm-usage", "--hide-scrollbars"),
)
_SECONDS = 120


def find_browser() -> str | None:
    """Where Chromium is; None if it is not installed."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


def open_page(browser: str, page: Path, *options: str) -> str:
    """Opens a file with a profile of its own, which is thrown away; what the browser printed."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [browser, *_QUIET, f"--user-data-dir={profile}", *options, page.as_uri()]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS)
    if done.returncode:
        raise RuntimeError(f"{browser} failed: {done.stderr[-2000:]}")
    return done.stdout


def dump(browser: str, page: Path) -> str:
    """The document after its script has run."""
    return open_page(browser, page, "--virtual-time-budget=60000", "--dump-dom")


def screenshot(browser: str, page: Path, picture: Path, width: int, height: int) -> None:
    """Writes the upper part of a page as a PNG of so many pixels."""
    open_page(browser, page, f"--window-size={width},{height}", f"--screenshot={picture}")
