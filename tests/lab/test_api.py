"""The laboratory from Python: a step of one's own among those of a ladder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from minidnn import lab
from minidnn.errors import UnsupportedError
from minidnn.lab.cuda.product import PRODUCT

from .emulated import Case, check

TEXT = """\
// Two rows a thread.
//
// A number of b is read once for two products.
//
// Expect: Fewer reads than coalesced.
extern "C" __global__ void two(const float *a, const float *b, float *y, int rows, int columns,
                               int depth) {
  const int column = blockIdx.x * BLOCK_X + threadIdx.x;
  const int first = (blockIdx.y * BLOCK_Y + threadIdx.y) * ROWS;
  if (column >= columns) return;
  for (int row = first; row < first + ROWS && row < rows; row++) {
    float sum = 0.0f;
    for (int k = 0; k < depth; k++) sum = fmaf(a[row * depth + k], b[k * columns + column], sum);
    y[row * columns + column] = sum;
  }
}
"""


def sizes(shape: Any, block: Any, parameters: Any) -> Any:
    rows = block[1] * parameters["ROWS"]
    return (-(-shape.columns // block[0]), -(-shape.rows // rows), 1), (*block, 1), 0


TWO = lab.CudaStep(name="two", source=TEXT, sizes=sizes, parameters={"ROWS": 2})


def test_a_step_of_ones_own_is_checked_predicted_and_explained(tmp_path: Path) -> None:
    ladder = PRODUCT.with_step(TWO, after="coalesced")
    assert [step.name for step in ladder.steps[:4]] == ["naive", "coalesced", "two", "tiled"]
    shape = {"rows": 7, "columns": 19, "depth": 5}
    check(ladder, TWO, [Case(replace(PRODUCT.shape, **shape), (8, 4))], tmp_path)

    study = lab.model(ladder, ["two"], blocks=[(32, 8), (64, 32)], parameters={"ROWS": [2, 4]})
    known, other, *refused = study["cells"]
    assert (known["parameters"], other["parameters"]) == ({"ROWS": 2}, {"ROWS": 4})
    assert [cell["why_not"][:25] for cell in refused] == ["a block of 2048 threads; "] * 2
    # Nothing is said of its reads, so that the least is taken.
    assert known["bytes"]["memory"] == 3 * 4 * 4096**2
    assert known["grid"] == [128, 256, 1] and other["grid"] == [128, 128, 1]
    known |= {"measured_seconds": 0.04, "variability": 0.0}
    other["failed"] = "it was not run"
    study["libraries"] = [{"failed": "nothing was asked"}]
    told = "\n".join(lab.table(study, ladder))
    assert "two 32x8 ROWS=2: latency: no part is busy" in told


def test_a_file_may_hold_it(tmp_path: Path) -> None:
    path = tmp_path / "two.cu"
    path.write_text(TEXT, encoding="utf-8")
    step = replace(TWO, source=path)
    assert step.text == TEXT and step.title == "Two rows a thread"
    assert step.expectation == "Fewer reads than coalesced."
    with pytest.raises(UnsupportedError, match=r"step two: .*none\.cu cannot be read"):
        _ = replace(TWO, source=tmp_path / "none.cu").text


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("void two(", "void three(", "step two: its text has no kernel of that name"),
        (
            "int depth",
            "int deep",
            r"'int deep'; valid names of such are columns, depth",
        ),
        ("float *a", "float *c", r"'const float \*c'; valid names of such are a, b, y"),
        ("//\n// Expect", "// Expect", "begins with 2 paragraphs of comment; valid are three"),
    ],
)
def test_mistakes_in_a_step(before: str, after: str, message: str) -> None:
    step = replace(TWO, source=TEXT.replace(before, after))
    with pytest.raises(UnsupportedError, match=message):
        step.calls(PRODUCT.shape, (8, 8)), step.title


def test_mistakes_in_what_is_asked() -> None:
    with pytest.raises(UnsupportedError, match="product has a step 'tiled': choose another name"):
        PRODUCT.with_step(replace(TWO, name="tiled"))
    with pytest.raises(UnsupportedError, match="product has no step 'fast'"):
        PRODUCT.with_step(TWO, after="fast")
    with pytest.raises(UnsupportedError, match="parameters: ROWS=0:2; valid are numbers from 1"):
        lab.model(PRODUCT.with_step(TWO), ["two"], parameters={"ROWS": [0, 2]})
    with pytest.raises(UnsupportedError, match="shapes: 'large' is none; shapes of product are"):
        lab.model("product", shapes=["large"])
    with pytest.raises(UnsupportedError, match="shapes: 'size' is no size; valid are"):
        lab.model("product", shapes=[{"size": 3}])
    with pytest.raises(UnsupportedError, match="limit=0; valid are seconds above 0"):
        lab.run("product", limit=0)
