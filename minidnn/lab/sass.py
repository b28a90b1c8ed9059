"""The machine code of a kernel in a few numbers, as ``cuobjdump`` lists it."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

_LINE = re.compile(
    r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z]\w*)((?:\.\w+)*)", re.MULTILINE
)
_ACCESSES = ("LDG", "STG", "LDS", "STS", "LDL", "STL")
_MOST = 10


def machine_code(cubin: bytes) -> dict[str, int]:
    """How often each of the most frequent instructions stands in a compiled file, and all of them
    as "all"; empty where there is no ``cuobjdump``, which comes with the CUDA toolkit."""
    if (tool := shutil.which("cuobjdump")) is None:
        return {}
    with TemporaryDirectory(prefix="minidnn-lab-") as folder:
        path = Path(folder) / "step.cubin"
        path.write_bytes(cubin)
        command = [tool, "--dump-sass", str(path)]
        ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    return instructions(ended.stdout)


def instructions(text: str) -> dict[str, int]:
    """The same of a listing.  Accesses to memory are told apart by their width, in bits."""
    found: Counter[str] = Counter()
    for name, suffixes in _LINE.findall(text):
        if name != "NOP":
            width = re.search(r"\.(64|128)\b", suffixes) if name in _ACCESSES else None
            found[name + (width[0] if width else "")] += 1
    if not found:
        return {}
    return {**dict(found.most_common(_MOST)), "all": found.total()}
