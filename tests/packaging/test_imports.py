"""Imports go one way, and never in a circle."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gpu_proof.sources import UNRELATED, is_apart
from tests.packaging.imports import FACE, find_cycle, import_graph, imports_of, modules_of

# Part of minidnn -> the parts it may import; a new part needs a line.  All may import COMMON.
COMMON = {
    "errors",
    "_cached_property",
    "_forks",
    "_garbage_collection",
    "_habits",
    "_torch_internals",
    "_torch_streams",
    "_versions",
}
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "_cached_property": set(),
    "_forks": set(),
    "_garbage_collection": set(),
    "_habits": set(),
    "_torch_internals": set(),
    "_torch_streams": set(),
    "_versions": set(),
    "cache": set(),
    "third_parties": set(),
    "graph": set(),
    # Passes take what it gives like any other graph, and it knows none of them.
    "gradients": {"graph"},
    "layers": {"graph"},
    "fusion": {"graph"},
    # How values lie, which passes choose, plans carry and backends obey.
    "memory": {"graph"},
    # Passes find the gradients of layers by the rules that made them.
    "passes": {"graph", "fusion", "memory", "gradients"},
    "runtime": {"graph", "fusion", "memory", "passes", "cache"},
    # Kernels that are described once, and printed with what all backends print with.
    "kernels": {"graph", "fusion", "runtime", "backends.codegen"},
    # What a backend is, and the built-in ones, which do not know each other.
    "backends": set(),
    "backends.options": set(),
    "backends.codegen": {"graph", "cache"},
    "backends.reference": {"graph", "fusion", "memory", "runtime", "backends.options"},
    "backends.cpu": {
        *("graph", "fusion", "kernels", "memory", "runtime", "cache", "measure"),
        *("backends.options", "backends.codegen"),
    },
    "backends.cuda": {
        *("graph", "fusion", "kernels", "memory", "runtime", "cache", "cudnn", "gpu"),
        *("backends.options", "backends.codegen"),
    },
    "backends.backend": {
        *("graph", "fusion", "runtime", "cache", "third_parties"),
        *("backends.reference", "backends.cpu", "backends.cuda"),
    },
    # The doctor looks at all that is below it.
    "report": {
        FACE,
        "graph",
        "fusion",
        "passes",
        "runtime",
        "backends.backend",
        "backends.cpu",
        "backends.cuda",
        "cache",
        "cudnn",
        "gpu",
        "third_parties",
        "pages",
        # How many times as fast one is as another.
        "measure",
    },
    # What a size may be, which graphs for all sizes say, too.
    "dynamic.dim": {"graph", "runtime"},
    "sizes": {"graph", "passes", "runtime", "dynamic.dim"},
    # Graphs in files are taken like those of other formats.
    "frontends": {
        "graph",
        "sizes",
        "dynamic.dim",
        "third_parties",
        "storage",
        "layers",
        "models",
        "weights",
    },
    # What finds CuPy and a GPU, whichever library computes there.
    "gpu": set(),
    "cudnn": {"cache", "gpu"},
    "measure": set(),
    # It calculates for devices as the engine describes them, compiles with its compilers, and
    # measures beside cuDNN and the engine's own kernels.
    "lab": {
        *("backends.codegen", "backends.cpu", "backends.cuda", "cudnn", "gpu", "measure"),
        *("graph", "fusion", "pages", "cache"),
    },
    # What is done to pictures, and what files say of it.
    "preparation": set(),
    "prepared_files": {"preparation", "compiled_file", "frontends", "weights"},
    "weights": {"cache", "compiled_file", "preparation"},
    "pictures": {"preparation"},
    "pages": set(),
    "data": {"graph", "pictures"},
    # ONNX files are measured, too; it asks what machine it is on, and takes turns at the GPU.
    "bench": {
        *(FACE, "models", "cache", "graph", "frontends", "cudnn", "measure"),
        *("backends.backend", "backends.cpu", "layers"),
    },
    # It can read whatever regions the passes make.
    "storage": {"graph", "passes", "weights", "sizes"},
    "compiled_file": {FACE, "runtime"},
    "executable": {"graph", "report", "runtime", "compiled_file", "preparation"},
    # It holds executables, and is given what makes them.
    "dynamic": {
        *("graph", "report", "runtime", "executable", "sizes", "dynamic.dim", "compiled_file"),
        "preparation",
    },
    "loading": {
        *("graph", "runtime", "compiled_file", "executable", "dynamic", "dynamic.dim"),
        *("backends.backend", "backends.cpu", "backends.cuda"),
    },
    # Which precision a network is computed in: it is given what compiles it.
    "precision": {
        *("graph", "passes", "runtime", "executable", "backends.backend", "report", "measure"),
    },
    # From what users give as a network to graphs.
    "networks": {"graph", "layers", "frontends", "sizes", "dynamic.dim", "compiled_file"},
    "compiler": {
        "networks",
        "dynamic.dim",
        "graph",
        "layers",
        "frontends",
        "fusion",
        "passes",
        "runtime",
        "backends.backend",
        "backends.options",
        "precision",
        "executable",
        "dynamic",
        "compiled_file",
    },
    # A step is a graph, which is compiled, and explained, like any other.
    "training": {
        *("graph", "gradients", "layers", "runtime", "executable", "compiler", "weights"),
        *("report", "distributed", "backends.backend", "preparation", "networks", "frontends"),
    },
    # It adds up what a store has, and knows no networks.
    "distributed": {"graph", "runtime", "gpu"},
    # It saves whatever can be compiled.
    "saving": {
        *("graph", "networks", "frontends", "executable", "dynamic", "dynamic.dim", "storage"),
        *("sizes", "preparation"),
    },
    # It rewrites graphs after some passes, and compiles them to see which values they have.
    "quantization": {
        *("graph", "layers", "passes", "runtime", "compiler", "networks", "sizes", "dynamic.dim"),
    },
    # What joins front ends and the compiler: it runs parts of networks that others run.
    "comparison": {
        *("graph", "frontends", "runtime", "executable", "compiler", "quantization", "sizes"),
        "backends.backend",
    },
    "acceleration": {
        *("graph", "frontends", "executable", "dynamic", "compiler", "cache", "gradients"),
        "dynamic.dim",
        *("backends.backend", "backends.options", "backends.cpu", "backends.cuda"),
        # What it compiles apart, forwards and backwards, is in half precision at the same places.
        "passes",
        # It has programs of two halves work in the memory of what one keeps for the other.
        "runtime",
    },
    # It is given executables, and knows no files.
    "serving": {
        *(FACE, "runtime", "executable", "dynamic", "dynamic.dim", "measure", "pages"),
        *("pictures", "preparation"),
    },
    # It is given networks, or what opens them, and knows no options.
    "batch": {
        *(FACE, "graph", "runtime", "executable", "dynamic", "sizes", "pictures"),
        *("preparation", "backends.backend"),
    },
    # The zoo stands above: its scripts use the face, as a user does.
    "models": {FACE, "graph", "layers", "fusion", "passes", "weights", "pictures"},
}
# The command line may import everything.
ALLOWED["cli"] = {FACE, *ALLOWED}
ALLOWED["__main__"] = {"cli"}
# A script of the zoo that is one of the commands.
ALLOWED["models.train"] = {"cli"}


# Module -> a module that it may import although that one needs it, with the reason.  The face is
# left out of the graph: it finds what it offers by name, so whoever imports it imports no more
# than its exceptions.
CIRCLES: dict[tuple[str, str], str] = {}


@pytest.fixture(scope="module")
def graph(root: Path) -> dict[str, list[str]]:
    return import_graph(root)


def part_of(module: str) -> str:
    """``minidnn.graph.operators.join`` -> ``graph``, ``minidnn.backends.cpu.isa`` ->
    ``backends.cpu``; the face is ``minidnn`` itself."""
    _, *path = module.split(".")
    part = ".".join(path[:2])
    return part if part in ALLOWED else ".".join(path[:1]) or FACE


def test_imports_go_one_way(graph: dict[str, list[str]]) -> None:
    wrong = []
    for module, targets in graph.items():
        part = part_of(module)
        assert part in ALLOWED, f"say in {Path(__file__).name} what minidnn.{part} may import"
        for target in targets:
            if part_of(target) not in {part, *COMMON, *ALLOWED[part]}:
                valid = ", ".join(sorted({*COMMON, *ALLOWED[part]}))
                wrong.append(f"{module} imports {target}; {part} may import {valid}")
    assert not wrong, "\n".join(wrong)


def test_the_table_itself_has_no_circle() -> None:
    assert find_cycle({part: sorted(others) for part, others in ALLOWED.items()}) is None


def test_nothing_is_imported_in_a_circle_at_import_time(root: Path) -> None:
    cycle = find_cycle(import_graph(root, deferred=False))
    assert cycle is None, " -> ".join(cycle or [])


def test_nothing_is_imported_in_a_circle(graph: dict[str, list[str]]) -> None:
    """Imports within functions and for annotations alone count as well."""
    left = {module: list(targets) for module, targets in graph.items()}
    for module, target in CIRCLES:
        assert target in left[module], f"{module} no longer imports {target}: strike it out"
        left[module].remove(target)
    cycle = find_cycle(left)
    assert cycle is None, " -> ".join(cycle or [])


def test_what_no_proof_of_gpu_tests_covers_is_far_from_the_gpu(
    root: Path, graph: dict[str, list[str]]
) -> None:
    """Nothing that computes on a GPU imports it: the registry of devices does, and commands."""
    assert all((root / folder).is_dir() for folder in UNRELATED)
    apart = {name for name, path in modules_of(root).items() if is_apart(path, root)}
    importing = {part_of(name) for name in graph if name not in apart and apart & {*graph[name]}}
    assert importing <= {"backends.backend", "bench", "cli", "lab", "loading", "report"}


def test_every_module_of_minidnn_is_seen(root: Path, graph: dict[str, list[str]]) -> None:
    seen = modules_of(root)
    assert {"minidnn", "minidnn.errors", "minidnn.models"} <= set(seen)
    assert "minidnn.errors" in graph["minidnn.models"]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import minidnn.graph.ir", ["minidnn.graph.ir"]),
        ("import minidnn.graph.ir as x, numpy", ["minidnn.graph.ir"]),
        ("from minidnn.graph import ir", ["minidnn.graph.ir"]),
        ("from minidnn.graph.ir import Node", ["minidnn.graph.ir"]),
        ("from minidnn.graph import Node", ["minidnn.graph"]),
        ("from . import ir", ["minidnn.graph.ir"]),
        ("from .ir import Node", ["minidnn.graph.ir"]),
        ("from ..errors import GraphError", ["minidnn.errors"]),
        ("from .. import errors", ["minidnn.errors"]),
        ("def f():\n    from minidnn import errors", ["minidnn.errors"]),
        ("def f():\n    import_module('minidnn.graph.ir').Node()", ["minidnn.graph.ir"]),
        ("importlib.import_module('minidnn.graph')", ["minidnn.graph"]),
        ("importlib.import_module(name)", []),
        ("import minidnn as md", ["minidnn"]),
        ("import numpy", []),
    ],
)
def test_imports_are_read_from_source(source: str, expected: list[str]) -> None:
    known = {"minidnn", "minidnn.errors", "minidnn.graph", "minidnn.graph.ir", "minidnn.graph.spec"}
    assert imports_of("minidnn.graph.spec", source, is_package=False, known=known) == expected


def test_deferred_imports_can_be_left_out() -> None:
    source = (
        "if TYPE_CHECKING:\n    import d\nif other:\n    import b\n"
        "class C:\n    import a\n    def f(self):\n        import c\n"
    )
    known = {"a", "b", "c", "d"}
    assert imports_of("m", source, False, known) == ["a", "b", "c", "d"]
    assert imports_of("m", source, False, known, deferred=False) == ["a", "b"]


def test_relative_imports_of_a_package_start_at_itself() -> None:
    known = {"minidnn.graph", "minidnn.graph.ir"}
    assert imports_of("minidnn.graph", "from .ir import Node", True, known) == ["minidnn.graph.ir"]


@pytest.mark.parametrize(
    ("graph", "cycle"),
    [
        ({"a": ["b"], "b": ["c"], "c": []}, None),
        ({"a": ["b", "c"], "b": ["c"], "c": []}, None),
        ({"a": ["b"], "b": ["a"]}, ["a", "b", "a"]),
        ({"a": ["b"], "b": ["c"], "c": ["d"], "d": ["b"]}, ["b", "c", "d", "b"]),
        ({"a": [], "b": ["c"], "c": ["b"]}, ["b", "c", "b"]),
    ],
)
def test_find_cycle(graph: dict[str, list[str]], cycle: list[str] | None) -> None:
    assert find_cycle(graph) == cycle
