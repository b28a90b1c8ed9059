"""``minidnn bench`` with engines that only sum, and once with real ones."""

from __future__ import annotations

import json
import math
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from minidnn.bench import devices, engines, networks
from minidnn.bench.engines import KINDS, OWN, Kind
from minidnn.bench.networks import Case, Prepared
from minidnn.cli import main
from tests.cli.benching import bench, entries
from tests.sampling import only

LITTLE = ("--rounds", "6", "--burst", "0.004")


def kind(name: str, log: Path, **settings: Any) -> Kind:
    options = {"log": str(log), "name": name, **settings}
    return Kind(name, "tests.bench.engines:summing", "onnx", (), (), options)


@pytest.fixture(autouse=True)
def machines_may_be_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    for place in ("minidnn.measure", "minidnn.bench.measure"):
        monkeypatch.setattr(f"{place}.DISTURBED", math.inf)


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The names of engines as they are started; all are replaced by ones that sum."""
    log = tmp_path / "log"
    log.write_text("")
    monkeypatch.setattr(engines, "NEEDED", ())
    fakes = [
        kind(OWN, log),
        kind("openvino", log, sleep=0.02),
        kind("torch", log, factor=1.5),
        replace(kind("mnn", log), target="tests.bench.engines:broken"),
    ]
    for name in [name for name in KINDS if name not in {fake.name for fake in fakes}]:
        monkeypatch.setitem(KINDS, name, replace(KINDS[name], packages=("no_such_package",)))  # type: ignore[index]
    for fake in fakes:
        monkeypatch.setitem(KINDS, fake.name, fake)  # type: ignore[index]

    def prepare(case: Case, folder: Path) -> Prepared:
        folder.mkdir(exist_ok=True)
        prepared = Prepared(case, folder)
        x = np.random.default_rng(0).random((case.batch, 3, 4, 4), np.float32)
        np.savez(prepared.inputs, x=x)
        np.save(prepared.expected, x.sum(axis=(1, 2, 3)))
        return prepared

    monkeypatch.setattr(networks, "prepare", prepare)
    return log


def started(log: Path) -> list[str]:
    names = log.read_text().split()
    log.write_text("")
    return names


def test_results_are_printed_and_kept(
    capsys: pytest.CaptureFixture[str], log: Path, tmp_path: Path
) -> None:
    path = tmp_path / "r.json"
    lines, err = bench(
        capsys, "alexnet", "--batch", "1,3", "--threads", 2, "--against", "openvino,torch",
        "--json", path, *LITTLE,
    )  # fmt: skip
    assert err == ""
    assert lines[0] == "alexnet, batch 1, 224x224, float32, 2 threads"
    assert [line.split()[0] for line in lines[1:5]] == ["engine", OWN, "torch", "openvino"]
    assert "f32" in lines[2] and lines[2].endswith("1.2")
    cases = entries(path)
    assert list(cases) == [f"alexnet, batch {n}, 224x224, float32, 2 threads" for n in (1, 3)]
    for case in cases.values():
        own, openvino, torch = (case["engines"][name] for name in (OWN, "openvino", "torch"))
        assert own["deviation"] == 0 and abs(torch["deviation"] - 0.5) < 1e-6
        assert own["seconds"]["low"] <= own["seconds"]["value"] <= own["seconds"]["high"]
        assert openvino["seconds"]["value"] >= 0.02 and len(openvino["rounds"]) == 6
        ratio = np.median(np.array(openvino["rounds"]) / own["rounds"])
        assert openvino["ratio"]["value"] == pytest.approx(ratio, rel=1e-4) and "ratio" not in own
        assert own["memory_bytes"] > 1 << 20 and own["compile_seconds"] >= 0.001
        assert own["version"] == "1.2+x"


def test_own_precisions_are_cases_of_their_own(
    capsys: pytest.CaptureFixture[str], log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Any] = []
    make = engines.EngineProcess

    def noted(name: str, target: str, options: dict[str, Any], *rest: Any, **more: Any) -> Any:
        given.append(options.get("precision"))
        return make(name, target, options, *rest, **more)

    monkeypatch.setattr(engines, "EngineProcess", noted)
    lines, _ = bench(
        capsys, "alexnet", "--precision", "float32,bfloat16", "--threads", 1,
        "--against", "openvino", *LITTLE,
    )  # fmt: skip
    names = [line for line in lines if line.startswith("alexnet")]
    assert names == [f"alexnet, batch 1, 224x224, {d}, 1 thread" for d in ("float32", "bfloat16")]
    assert given == [None, None, "bfloat16", None]  # the peer has its own


def test_what_is_there_is_not_measured_again(
    capsys: pytest.CaptureFixture[str], log: Path, tmp_path: Path
) -> None:
    arguments = ["alexnet", "--json", tmp_path / "r.json", *LITTLE, "--against"]
    first, _ = bench(capsys, *arguments, "openvino")
    assert started(log) == [OWN, "openvino"]
    again, _ = bench(capsys, *arguments, "openvino")
    assert started(log) == [] and again == first
    bench(capsys, *arguments, "openvino,torch")
    assert started(log) == [OWN, "torch"]  # a ratio needs both in the same rounds
    bench(capsys, *arguments, "openvino,torch", "--again")
    assert started(log) == [OWN, "openvino", "torch"]
    bench(capsys, *arguments, "openvino", "--batch", 2)
    assert started(log) == [OWN, "openvino"]


def test_preparing_compiles_and_measures_nothing(
    capsys: pytest.CaptureFixture[str], log: Path, tmp_path: Path
) -> None:
    path, folder = tmp_path / "r.json", tmp_path / "prepared"
    options = ["--batch", "1,2", "--folder", folder, "--against", "openvino", "--json", path]
    assert bench(capsys, "alexnet", *options, "--prepare") == ([], "")
    assert started(log) == [OWN, OWN] and len(list(folder.glob("*-inputs.npz"))) == 2
    assert not path.exists()


def test_a_run_that_must_end_goes_on_with_its_rounds(
    capsys: pytest.CaptureFixture[str], log: Path, tmp_path: Path
) -> None:
    path = tmp_path / "r.json"
    arguments = ["alexnet", "--json", path, "--burst", "0.004", "--seconds", "0.001"]
    arguments += ["--rounds", 3, "--against", "openvino"]
    kept: list[float] = []
    for count in (1, 2, 3):
        bench(capsys, *arguments)
        assert started(log) == [OWN, "openvino"]
        (case,) = entries(path).values()
        own, openvino = (case["engines"][name] for name in (OWN, "openvino"))
        assert len(own["rounds"]) == len(openvino["rounds"]) == count
        assert own["rounds"][:-1] == kept
        ratio = np.median(np.array(openvino["rounds"]) / own["rounds"])
        assert openvino["ratio"]["value"] == pytest.approx(ratio, rel=1e-4)
        kept = own["rounds"]
    bench(capsys, *arguments)
    assert started(log) == []
    bench(capsys, *arguments, "--seconds", 60, "--rounds", 5)
    assert started(log) == [OWN, "openvino"]
    (case,) = entries(path).values()
    assert case["engines"][OWN]["rounds"][:3] == kept and len(case["engines"][OWN]["rounds"]) == 5


def test_rounds_of_different_runs_are_not_mixed(
    capsys: pytest.CaptureFixture[str], log: Path, tmp_path: Path
) -> None:
    path = tmp_path / "r.json"
    arguments = ["alexnet", "--json", path, "--burst", "0.004", "--rounds", 3]
    bench(capsys, *arguments, "--seconds", 0.001, "--against", "openvino")
    (case,) = entries(path).values()
    first = case["engines"][OWN]["rounds"]
    bench(capsys, *arguments, "--against", "openvino,torch")
    (case,) = entries(path).values()
    for name in (OWN, "openvino", "torch"):
        assert len(case["engines"][name]["rounds"]) == 3
    assert case["engines"][OWN]["rounds"][:1] != first


def test_an_engine_that_fails_does_not_stop_the_others(
    capsys: pytest.CaptureFixture[str], log: Path, tmp_path: Path
) -> None:
    path = tmp_path / "r.json"
    arguments = ["alexnet", "--against", "mnn,openvino", "--json", path, *LITTLE]
    lines, _ = bench(capsys, *arguments, code=1)
    assert "mnn" in lines[-1] and "failed" in lines[-1] and "no such model" in lines[-1]
    (case,) = entries(path).values()
    assert "ValueError: no such model" in case["engines"]["mnn"]["error"]
    assert "ratio" in case["engines"]["openvino"]
    started(log)
    bench(capsys, *arguments, code=1)
    assert started(log) == [OWN]  # it is tried again, and what succeeded is not


def test_minidnn_itself_must_work(
    capsys: pytest.CaptureFixture[str], log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(KINDS, OWN, replace(KINDS["mnn"], name=OWN))  # type: ignore[index]
    _, err = bench(capsys, "alexnet", "--against", "openvino", code=2)
    assert "minidnn bench: engine 'minidnn': could not make: ValueError: no such model" in err


def test_files_merge_and_are_drawn(
    capsys: pytest.CaptureFixture[str], log: Path, tmp_path: Path
) -> None:
    one, two, svg = tmp_path / "1.json", tmp_path / "2.json", tmp_path / "a.svg"
    bench(capsys, "alexnet", "--against", "torch", "--json", one, *LITTLE)
    bench(capsys, "resnet18", "--against", "openvino,torch", "--json", two, *LITTLE)
    lines, _ = bench(capsys, "--merge", one, "--json", two, "--markdown", "--plot", svg)
    assert [name.split(",")[0] for name in entries(two)] == ["resnet18", "alexnet"]
    assert lines[0] == "| case | minidnn, ms | openvino | torch | deviation |"
    assert lines[2].startswith("| resnet18, batch 1") and "| - |" in lines[3]
    root = ElementTree.parse(svg).getroot()
    texts = [element.text or "" for element in root.iter() if element.tag.endswith("text")]
    assert sum(text.startswith("torch ") for text in texts) == 2
    assert sum(text.startswith("openvino ") for text in texts) == 1
    assert "1" in texts and any(text.startswith("alexnet, batch 1") for text in texts)
    boxes = [float(e.get("cx", "nan")) for e in root.iter() if e.tag.endswith("circle")]
    assert len(boxes) == 3 and all(0 < x < float(root.get("width", "0")) for x in boxes)


def test_cases_of_two_machines_stand_side_by_side(
    capsys: pytest.CaptureFixture[str], log: Path, tmp_path: Path
) -> None:
    one, two = tmp_path / "1.json", tmp_path / "2.json"
    bench(capsys, "alexnet", "--against", "torch", "--json", one, *LITTLE)
    document = json.loads(one.read_text())
    ((commit, ((machine, cases),)),) = [(c, m.items()) for c, m in document["runs"].items()]
    two.write_text(json.dumps(document | {"runs": {commit: {"another": cases}}}))
    lines, _ = bench(capsys, "--merge", one, two, "--markdown")
    names = [line.split(" | ")[0] for line in lines[2:]]
    assert len(names) == 2
    assert names[0].endswith(f"; {machine}; {commit}") and names[1].endswith(f"; another; {commit}")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["alexnet", "--against", "tvm"],
            "--against 'tvm': valid are openvino, openvino-streams, ",
        ),
        (["alexnet", "--against", "ncnn"], "--against 'ncnn' needs no_such_package, which is not "),
        (["alexnet", "--precision", "int8"], "--precision 'int8': valid are float32, bfloat16"),
        (["alexnet", "--isa", "mmx"], "isa='mmx'; valid are 'avx512', 'avx2'"),
        (["resnet19"], "resnet19"),
        (["digits"], "network 'digits' is minidnn's own; valid are those that torchvision has"),
        ([], "NET: name a network of the zoo, or results with --merge"),
        (["--merge", "/nonexistent.json"], "--merge /nonexistent.json: there is no such file"),
        (["alexnet", "--json", "/nonexistent/r.json"], "/nonexistent/r.json cannot be written"),
        (
            ["alexnet", "--plot", "/nonexistent/r.svg"],
            "--plot /nonexistent/r.svg cannot be",
        ),
    ],
)
def test_wrong_arguments_are_named(
    capsys: pytest.CaptureFixture[str], log: Path, arguments: list[str], message: str
) -> None:
    more = [] if "--against" in arguments else ["--against", "torch", *LITTLE]
    _, err = bench(capsys, *arguments, *more, code=2)
    assert message in err
    assert started(log) == []  # nothing is measured for that


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--batch", "0"], "argument --batch: '0' is not an integer of at least 1"),
        (["--batch", "1,x"], "argument --batch: 'x' is not an integer of at least 1"),
        (["--size", "7x"], "argument --size: '7x' is no size; valid are 224 and 192x256"),
        (["--size", "0"], "argument --size: '0' is no size; valid are 224 and 192x256"),
        (["--rounds", "0"], "argument --rounds: '0' is not an integer of at least 1"),
        (["--burst", "-1"], "argument --burst: '-1' is not a number above 0"),
    ],
)
def test_what_argparse_refuses(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["bench", "alexnet", *arguments])
    assert message in capsys.readouterr().err


def test_without_names_all_that_are_installed_are_peers(
    capsys: pytest.CaptureFixture[str], log: Path
) -> None:
    lines, _ = bench(capsys, "alexnet", *LITTLE, code=1)
    assert {line.split()[0] for line in lines[2:]} == {OWN, "openvino", "torch", "mnn"}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("is_file", only([True], [False, True]))
def test_without_other_engines_minidnn_runs_alone_and_says_so(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    is_file: bool,
) -> None:
    """It needs neither PyTorch nor ONNX Runtime then: its own reference is what it is compared
    with."""
    from minidnn.backends.cpu.compilers.toolchain import why_unusable
    from tests.onnx.models import network, save

    monkeypatch.delenv("MINIDNN_CACHE")  # where ISPC is
    if (reason := why_unusable()) is not None:
        pytest.skip(reason)
    monkeypatch.setattr(engines, "NEEDED", ("no_such_package",))
    monkeypatch.setattr(devices, "NEEDED", ("no_such_package",))
    hidden = {name: tmp_path / "hidden" / name for name in ("torch", "torchvision", "onnxruntime")}
    for folder in hidden.values():  # what engines' processes find before what is installed
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text("raise ImportError('hidden')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "hidden"), prepend=os.pathsep)
    given = save(network(), tmp_path / "net.onnx") if is_file else "squeezenet1_1"
    size = () if is_file else ("--size", "64")
    results = tmp_path / "r.json"
    lines, err = bench(
        capsys, given, *size, "--json", results, "--threads", 1, "--rounds", 2, "--burst", 0.02
    )
    assert err == (
        "minidnn bench: minidnn runs alone (no_such_package not installed; pip install "
        "'minidnn[bench]' brings other engines), and is compared with its reference\n"
    )
    assert [line.split()[0] for line in lines[1:]] == ["engine", OWN]
    (case,) = entries(results).values()
    assert 0 < case["engines"][OWN]["deviation"] < 1e-4
    error = bench(capsys, given, *size, "--against", "torch", code=2)[1]
    assert "needs no_such_package, which is not installed: pip install 'minidnn[bench]'" in error


def test_progress_on_a_terminal(
    capsys: pytest.CaptureFixture[str], log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    _, err = bench(capsys, "alexnet", "--against", "torch", *LITTLE)
    drawn = err.split("\r")
    assert any("alexnet 1: starting torch" in line for line in drawn)
    assert any("alexnet 1: running minidnn" in line for line in drawn)
    assert drawn[-1] == "\033[K"


REAL = [
    pytest.param(name, marks=[] if name == "onnxruntime" else [pytest.mark.full])
    for name in engines.PEERS
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", REAL)
def test_real_engines_agree(
    capsys: pytest.CaptureFixture[str],
    name: str,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A network at 64x64; the prepared files and kernels are shared by all of them."""
    from minidnn.backends.cpu.compilers.toolchain import why_unusable

    shared = tmp_path_factory.getbasetemp() / "bench"
    shared.mkdir(exist_ok=True)
    monkeypatch.delenv("MINIDNN_CACHE")  # where ISPC is
    if (reason := why_unusable()) is not None:
        pytest.skip(reason)
    if missing := KINDS[name].missing():
        pytest.skip(f"{', '.join(missing)} not installed (extra: bench)")
    path = shared / f"{name}.json"
    bench(
        capsys, "squeezenet1_1", "--size", "64", "--batch", "2", "--against", name,
        "--json", path, "--folder", shared, "--rounds", 2, "--burst", 0.02,
    )  # fmt: skip
    (case,) = entries(path).values()
    for engine, record in case["engines"].items():
        assert record["deviation"] < (0.05 if engine.endswith("bf16") else 1e-5), engine
        assert record["precision"] == ("bf16" if engine.endswith("bf16") else "f32")
        assert record["version"] and record["memory_bytes"] > 1e7


def test_an_onnx_file(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its open sizes bound, on the real engines that read such files."""
    from minidnn.backends.cpu.compilers.toolchain import why_unusable
    from tests.onnx.models import network, save

    monkeypatch.delenv("MINIDNN_CACHE")  # where ISPC is
    if (reason := why_unusable()) is not None:
        pytest.skip(reason)
    file, results = save(network(), tmp_path / "net.onnx"), tmp_path / "r.json"
    common = ("--against", "onnxruntime", "--rounds", 2, "--burst", 0.02, "--json", results)
    lines, _ = bench(capsys, file, "--batch", 3, "--threads", 1, *common)
    ((name, case),) = entries(results).items()
    assert lines[0] == name and name.startswith("net.onnx@")
    assert name.endswith(", batch 3, 16x16, float32, 1 thread")
    for record in case["engines"].values():
        assert record["deviation"] < 1e-6 and record["seconds"]["value"] > 0


def test_onnx_files_that_cannot_be_measured(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.onnx.models import model, network, node, save

    monkeypatch.setattr(engines, "NEEDED", ())
    monkeypatch.setitem(KINDS, "torch", replace(KINDS["torch"], packages=()))  # type: ignore[index]
    net = save(network(), tmp_path / "net.onnx")
    flat = save(model([node("Relu", "x")], [("x", [2, 3])]), tmp_path / "flat.onnx")
    for arguments, text in (
        ((net, "--against", "torch"), "it takes modules of PyTorch, and net.onnx@"),
        ((net, "--size", 9), "shape (1, 3, 9, 9) for input 'x'; valid is (N, 3, 16, 16)"),
        ((flat,), "has inputs float32[2, 3] and 1 outputs; valid are one input of images"),
        ((tmp_path / "missing.onnx",), "missing.onnx"),
    ):
        _, err = bench(capsys, *arguments, code=2)
        assert text in err
