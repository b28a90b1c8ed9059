"""Write down what cuDNN's headers declare, for the tests: functions' arguments, enumerations.

    python tests/cudnn/extract_declarations.py FOLDER_WITH_HEADERS

The headers come with the wheel nvidia-cudnn-cu13 (nvidia/cudnn/include), which is too large for
CI; so its facts are kept beside this script in ``declarations.json``, and the test compares with
the headers themselves wherever the wheel is installed.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

HEADERS = ("cudnn_graph_v9.h", "cudnn_ops_v9.h", "cudnn_cnn_v9.h")
SCALARS = {
    "int": "int",
    "unsigned": "unsigned",
    "uint32_t": "unsigned",
    "int64_t": "int64",
    "size_t": "size",
    "double": "double",
    "float": "float",
    "unsigned long long": "unsigned long long",
}


def declarations(folder: Path) -> dict[str, Any]:
    """Return {"version", "functions": name -> kinds, "enums": type -> {name: value}}."""
    text = ""
    for name in HEADERS:
        content = (folder / name).read_text()
        content = re.sub(r"/\*.*?\*/", "", content, flags=re.S)
        text += re.sub(r"//.*", "", content)
    version = (folder / "cudnn_version.h").read_text()
    numbers = re.findall(r"#define CUDNN_(?:MAJOR|MINOR|PATCHLEVEL) (\d+)", version)
    enums = {name: _members(body) for body, name in _enums(text)}
    pattern = r"CUDNNWINAPI\s+(\w+)\s*\((.*?)\)\s*;"
    functions = {
        name: [_kind(argument, enums) for argument in body.split(",") if argument.strip() != "void"]
        for name, body in re.findall(pattern, text, re.S)
    }
    return {"version": ".".join(numbers), "functions": functions, "enums": enums}


def _enums(text: str) -> list[tuple[str, str]]:
    return re.findall(r"typedef enum[^{;]*\{([^}]*)\}\s*(\w+)", text)


def _members(body: str) -> dict[str, int]:
    """Return name -> value; a value may be the name of another member."""
    found: dict[str, int] = {}
    for item in body.split(","):
        match = re.match(r"\s*(\w+)(?:\s+CUDNN_DEPRECATED_ENUM)?\s*=\s*(\w+)", item)
        if match:
            name, value = match.groups()
            number = value.rstrip("U")
            found[name] = int(number, 0) if number[0].isdigit() else found[value]
    return found


def _kind(argument: str, enums: dict[str, Any]) -> str:
    """Return what the machine passes: pointer, enum, or a kind of number."""
    argument = " ".join(argument.split())
    kind = re.sub(r"\w+(\[\])?$", "", argument).replace("const", "").strip()
    if "*" in kind or argument.endswith("]"):
        return "pointer"
    if kind in enums:
        return "enum"
    if kind in SCALARS:
        return SCALARS[kind]
    return "enum" if kind == "libraryPropertyType" else "pointer"  # handles and descriptors


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))
    from minidnn.cudnn import enums as ours
    from minidnn.cudnn.library import PROTOTYPES

    found = declarations(Path(sys.argv[1]))
    found["functions"] = {k: v for k, v in found["functions"].items() if k in PROTOTYPES}
    wanted = {f"cudnn{name}_t" for name in vars(ours)}
    found["enums"] = {k: v for k, v in found["enums"].items() if k in wanted}
    rows = [f'"version": "{found["version"]}"']
    for part in ("functions", "enums"):
        lines = (f'  "{k}": {json.dumps(v)}' for k, v in sorted(found[part].items()))
        rows.append(f'"{part}": {{\n' + ",\n".join(lines) + "\n}")
    Path(__file__).with_name("declarations.json").write_text("{\n" + ",\n".join(rows) + "\n}\n")
