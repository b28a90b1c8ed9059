"""What an injected fault is, and how it is put into a copy of the tree."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Fault:
    """A small change of minidnn's own source that makes it wrong, and the tests that notice.

    Attributes:
        name: what is wrong then, in a few words.
        file: that is changed, from the root of the tree.
        before: a piece of its text that stands there once.
        after: what takes its place.
        tests: test files, or single tests, of which at least one fails with the fault.
    """

    name: str
    file: str
    before: str
    after: str
    tests: tuple[str, ...]

    def changed(self, root: Path) -> str:
        """The text of the file with the fault.

        Raises:
            ValueError: the piece does not stand there exactly once.
        """
        text = (root / self.file).read_text(encoding="utf-8")
        if (found := text.count(self.before)) != 1:
            raise ValueError(
                f"fault {self.name!r}: {self.before!r} stands {found} times in {self.file}; valid "
                "is a piece of its text that stands there once"
            )
        return text.replace(self.before, self.after)

    @contextmanager
    def injected(self, root: Path) -> Iterator[None]:
        """Within it the tree at ``root`` has the fault."""
        path = root / self.file
        whole, wrong, status = path.read_bytes(), self.changed(root), path.stat()
        path.write_text(wrong, encoding="utf-8")
        try:
            yield
        finally:
            path.write_bytes(whole)
            # By its time Python knows whether what it compiled of a file is still right.
            os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
