"""The examples of README.md and of the pages run as they stand there, a page's in order."""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path

import pytest
from PIL import Image

from minidnn.backends.backend import default_device

ROOT = Path(__file__).resolve().parents[2]
KINDS = ("tutorials", "how-to", "reference", "explanation")
#: Pages whose blocks are parts of files, have an output, or need a GPU, and what runs them.
ELSEWHERE = {
    "explanation/cuda-engine.md": "cuda/test_gpu_documentation.py",
    "explanation/depth-first-fusion.md": "fusion/test_documentation.py",
    "how-to/add-a-backend-or-front-end.md": "extending/test_extending.py",
    "how-to/add-a-contraction-kernel.md": "cuda/test_kernel_recipe.py",
    "how-to/add-a-fused-kernel.md": "passes/test_fused_kernel_recipe.py",
    "how-to/add-an-operator.md": "operators/test_recipe.py",
    "how-to/fine-tune-torchvision.md": "torch/test_documentation.py",
    "how-to/serve.md": "serving/test_command.py",
    "how-to/train-on-several-gpus.md": "distributed/test_ray.py",
    "reference/cudnn.md": "cuda/test_gpu_documentation.py",
}


def blocks_of(page: Path) -> list[str]:
    text = page.read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


def pages() -> list[object]:
    docs = ROOT / "docs"
    found = sorted(path for kind in KINDS for path in (docs / kind).rglob("*.md"))
    names = {str(path.relative_to(docs)): path for path in found}
    return [
        pytest.param(path, id=name)
        for name, path in {"README.md": ROOT / "README.md", **names}.items()
        if name not in ELSEWHERE and blocks_of(path)
    ]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("page", pages())
def test_examples_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if default_device()[0] == "reference":
        pytest.skip("the reference does not time regions")
    module = types.ModuleType(f"examples_of_{page.stem}")  # dataclasses look up their module
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.chdir(tmp_path)
    for folder in ("train", "test"):  # which pages read pictures from
        for name in ("cat", "dog"):
            (tmp_path / folder / name).mkdir(parents=True)
            for i in range(64):
                Image.new("RGB", (32, 40)).save(tmp_path / folder / name / f"{i}.png")
    for block in blocks_of(page):
        exec(compile(block, page.name, "exec"), module.__dict__)


@pytest.mark.parametrize("page", ELSEWHERE)
def test_what_runs_other_pages_names_them(page: str) -> None:
    assert page in (ROOT / "tests" / ELSEWHERE[page]).read_text(encoding="utf-8")
