"""The public face: every advertised name resolves, and importing it costs next to nothing."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import minidnn
from minidnn import errors

# Runs in a fresh interpreter: everything but the standard library, NumPy and minidnn is refused.
NUMPY_ALONE = """
import sys
from importlib.abc import MetaPathFinder

class NumpyAlone(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top in sys.stdlib_module_names or top in {"numpy", "minidnn", "models"}:
            return None
        if sys._getframe(1).f_globals.get("__name__", "").startswith("numpy"):
            return None  # NumPy's own optional imports are its business
        raise ImportError(f"minidnn must not import {name}")

sys.meta_path.insert(0, NumpyAlone())
"""


def run_python(code: str, root: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=root,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_public_name_resolves() -> None:
    for name in minidnn.__all__:
        assert getattr(minidnn, name) is not None, name
        assert name in dir(minidnn)


def test_type_checkers_are_told_the_same_names(root: Path) -> None:
    tree = ast.parse((root / "minidnn" / "__init__.py").read_text(encoding="utf-8"))
    (block,) = [
        node
        for node in tree.body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    ]
    told: dict[str, str] = {}
    for node in block.body:
        assert isinstance(node, ast.Import | ast.ImportFrom), ast.unparse(node)
        for alias in node.names:
            within = f"{node.module}:" if isinstance(node, ast.ImportFrom) else ""
            home = f"{within}{alias.name}"
            told[alias.asname or alias.name] = home
    assert told == minidnn._LAZY


def test_all_lists_every_public_name() -> None:
    eager = [name for name in vars(errors) if name[0].isupper()]
    assert sorted(minidnn.__all__) == sorted([*minidnn._LAZY, *eager, "__version__"])


def test_no_public_name_is_hidden_by_a_submodule(root: Path) -> None:
    """Importing ``minidnn/compile.py`` would replace a function ``minidnn.compile``."""
    submodules = {path.stem for path in (root / "minidnn").iterdir()}
    hidden = [n for n, home in minidnn._LAZY.items() if n in submodules and home != f"minidnn.{n}"]
    assert hidden == []


def test_unknown_name_says_what_there_is() -> None:
    with pytest.raises(AttributeError, match=r"no attribute 'resnet'; it has: .*\bmodels\b"):
        getattr(minidnn, "resnet")  # noqa: B009 (a type checker would refuse minidnn.resnet)


def test_import_touches_nothing_but_the_exceptions(root: Path) -> None:
    code = "import sys, minidnn; print(*[m for m in sys.modules if m.startswith('minidnn')])"
    assert sorted(run_python(code, root).split()) == ["minidnn", "minidnn._forks", "minidnn.errors"]


@pytest.mark.parametrize(
    "parts", [["cpu.execution.stored"], ["cuda.stored", "cuda.backend"]], ids=str
)
def test_what_loads_a_compiled_file_can_compile_nothing(parts: list[str], root: Path) -> None:
    modules = [f"minidnn.backends.{part}" for part in parts]
    code = f"import sys, minidnn.loading, {', '.join(modules)}\nprint(*sys.modules)"
    loaded = run_python(code, root).split()
    assert {*modules} <= {*loaded}
    assert [name for name in loaded if name.endswith(("cpu.lower", "cuda.lower"))] == []


NEED_TORCH = {"minidnn.frontends.torch.aten"}  # it has no __getattr__: Ruff checks its list


def listing_names(root: Path) -> list[str]:
    """The packages, and modules with a ``__getattr__``, that list public names."""
    found = []
    for path in sorted((root / "minidnn").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        is_open = path.name == "__init__.py" or "\ndef __getattr__(" in text
        if is_open and "\n__all__" in text:
            place = path.parent if path.name == "__init__.py" else path.with_suffix("")
            found.append(".".join(place.relative_to(root).parts))
    return found


def test_every_listed_name_can_be_imported_with_numpy_alone(root: Path) -> None:
    listing = listing_names(root)
    assert {"minidnn", "minidnn.cudnn", "minidnn.distributed", *NEED_TORCH} <= {*listing}
    lines = [f"from {name} import *" for name in listing if name not in NEED_TORCH]
    run_python(NUMPY_ALONE + "\n".join(lines), root)


def test_the_guard_of_the_test_above_bites(root: Path) -> None:
    code = NUMPY_ALONE + "try:\n    import pytest\nexcept ImportError as e:\n    print(e)\n"
    assert run_python(code, root).strip() == "minidnn must not import pytest"


def cheapest_start(code: str, root: Path) -> float:
    """The fewest seconds of processor time that ``code`` and processes it started took in several
    fresh interpreters.

    On a busy machine each of them waits, which is not counted, and may share a core with another
    process, which slows it: hence several.
    """
    timed = (
        f"import numpy, os\nstart = sum(os.times()[:4])\n{code}\nprint(sum(os.times()[:4]) - start)"
    )
    return min(float(run_python(timed, root)) for _ in range(5))


@pytest.mark.alone
def test_import_takes_under_200_ms_over_numpy(root: Path) -> None:
    assert cheapest_start("import minidnn", root) < 0.2


@pytest.mark.alone
def test_all_public_names_load_in_a_second(root: Path) -> None:
    code = "import minidnn\nfor name in minidnn.__all__: getattr(minidnn, name)"
    assert cheapest_start(code, root) < 1.0
