"""Documents lead to each other: nothing named in them is missing, and README.md leads to each."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md"))
DOCUMENTS = ["README.md", *PAGES]
#: Of the repository, with a slash before each.
FILES = [
    f"/{path.relative_to(ROOT)}"
    for top in ("benchmarks", "demo", "docs", "minidnn", "models", "tests", "tools")
    for path in (ROOT / top).rglob("*.*")
]
MODULE = re.compile(r"python -m ((?:benchmarks|minidnn|tests)[\w.]*\w)")


def links(document: str) -> list[str]:
    """Targets of links that stay in the tree."""
    text = (ROOT / document).read_text(encoding="utf-8")
    return [link for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link]


def anchors(path: Path) -> set[str]:
    """What a heading can be reached by, as hosts of Markdown call it."""
    headings = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", text.lower()).replace(" ", "-") for text in headings}


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_lead_somewhere(document: str) -> None:
    for link in links(document):
        name, _, anchor = link.partition("#")
        path = (ROOT / document).parent / name if name else ROOT / document
        assert path.is_file(), f"{document} links to {link}, which is missing"
        assert not anchor or anchor in anchors(path), f"{document}: {name} has no heading #{anchor}"


@pytest.mark.parametrize("document", DOCUMENTS)
def test_files_that_are_named_exist(document: str) -> None:
    text = (ROOT / document).read_text(encoding="utf-8")
    tops = "benchmarks|demo|docs|minidnn|models|tests|tools"
    named = re.findall(rf"\b((?:{tops})/[\w/.-]+\.(?:py|md|json|svg|cu|cuh|c|h|sh))\b", text)
    # NAME stands for any; the tests of CuPy are CuPy's.
    ours = [name for name in named if "NAME" not in name and not name.startswith("tests/cupy")]
    missing = [name for name in ours if not (ROOT / name).exists()]
    assert missing == [], f"{document} names files that are not there"


@pytest.mark.parametrize("document", DOCUMENTS)
def test_files_that_are_named_briefly_exist(document: str) -> None:
    """Pages about one part name its files by the ends of their paths."""
    text = (ROOT / document).read_text(encoding="utf-8")
    named = set(re.findall(r"`([\w/]+\.(?:py|cu|cuh|c|h|ispc))`", text))
    new = {name for name in named if f"write `{name}`" in text or "NAME" in name}
    missing = [name for name in named - new if not any(f.endswith(f"/{name}") for f in FILES)]
    assert missing == [], f"{document} names files that are not there"


@pytest.mark.parametrize("document", DOCUMENTS)
def test_modules_that_are_run_exist(document: str) -> None:
    text = (ROOT / document).read_text(encoding="utf-8")
    names = [name.replace("minidnn.models", "models") for name in MODULE.findall(text)]
    files = [ROOT / name.replace(".", "/") for name in names]
    missing = [f for f in files if not f.with_suffix(".py").exists() and not f.is_dir()]
    assert missing == [], f"{document} runs modules that are not there"


def test_the_readme_leads_to_every_document() -> None:
    reached, left = set[Path](), [ROOT / "README.md"]
    while left:
        page = left.pop()
        if page in reached or page.suffix != ".md":
            continue
        reached.add(page)
        targets = [link.partition("#")[0] for link in links(str(page.relative_to(ROOT)))]
        left += [(page.parent / target).resolve() for target in targets if target]
    missed = [name for name in DOCUMENTS if ROOT / name not in reached]
    assert missed == [], "no link leads there from README.md"


def test_the_site_leads_to_every_document() -> None:
    """Its navigation has the first link of each item of the two pages that list others."""
    with_contents = runpy.run_path(str(ROOT / "docs/conf.py"))["with_contents"]
    reached = {"README.md"}
    for name in ("README.md", "results/index.md"):
        text = with_contents((ROOT / "docs" / name).read_text(encoding="utf-8"))
        for block in re.findall(r"^```\{toctree\}\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
            entries = re.findall(r"^[^:\n].*$", block, re.MULTILINE)
            reached |= {str(Path(name).parent / f"{entry}.md") for entry in entries}
    assert [page for page in PAGES if str(Path(page).relative_to("docs")) not in reached] == []
