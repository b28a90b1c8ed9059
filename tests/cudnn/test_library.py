"""Where cuDNN is looked for, that it is loaded once, and what is said when it is missing."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from minidnn.cudnn import driver, library
from minidnn.cudnn.library import FILE_NAME, Library
from minidnn.errors import DeviceError, MiniDNNWarning


class Dll:
    """What ctypes.CDLL returns, for a library of a chosen version without some functions."""

    def __init__(self, version: int = 91900, missing: tuple[str, ...] = ()) -> None:
        self.version = version
        self.missing = missing

    def __getattr__(self, name: str) -> Any:
        if name in self.missing:
            raise AttributeError(name)

        def function(*arguments: object) -> int:
            return self.version if name == "cudnnGetVersion" else 0

        setattr(self, name, function)
        return function


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """No library loaded, mapped, installed or named; ``opened`` lists what is tried."""
    state: dict[str, Any] = {"opened": [], "dlls": {}}

    def open_dll(place: str) -> Dll:
        state["opened"].append(place)
        if place not in state["dlls"]:
            raise OSError("no such file")
        dll: Dll = state["dlls"][place]
        return dll

    monkeypatch.setattr(library, "_library", None)
    monkeypatch.setattr(library, "already_mapped", lambda: None)
    monkeypatch.setattr(library, "_wheel_folders", lambda: [])
    monkeypatch.setattr(ctypes, "CDLL", open_dll)
    for name in (library.ENVIRONMENT, "CUDNN_PATH", "CUDA_PATH", "CUDA_HOME"):
        monkeypatch.delenv(name, raising=False)
    return state


def test_order_of_places(
    alone: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(library, "already_mapped", lambda: "/mapped/libcudnn.so.9")
    monkeypatch.setattr(library, "_wheel_folders", lambda: [Path("/wheel/lib")])
    monkeypatch.setenv("CUDNN_PATH", "/opt/cudnn")
    places = [place for _, place in library.candidates()]
    assert places[:3] == ["/mapped/libcudnn.so.9", f"/wheel/lib/{FILE_NAME}", FILE_NAME]
    assert places[3:] == [f"/opt/cudnn/{d}/{FILE_NAME}" for d in ("lib64", "lib", "bin", "lib/x64")]
    monkeypatch.setenv(library.ENVIRONMENT, str(tmp_path))
    assert [place for _, place in library.candidates()] == [str(tmp_path / FILE_NAME)]
    given = list(library.candidates("/given/libcudnn.so.9.1"))
    assert given == [("path", "/given/libcudnn.so.9.1")]


def test_loads_once(alone: dict[str, Any]) -> None:
    alone["dlls"][FILE_NAME] = Dll()
    first = library.load()
    assert library.load() is first is library.loaded()
    assert alone["opened"] == [FILE_NAME]
    assert (library.version(), library.path()) == (91900, FILE_NAME)
    assert "9.19.0" in repr(first)


def test_another_path_after_loading_is_refused(alone: dict[str, Any]) -> None:
    alone["dlls"][FILE_NAME] = Dll()
    library.load()
    with pytest.raises(DeviceError, match=r"already loaded from .*'/other/libcudnn.so.9'"):
        library.load("/other/libcudnn.so.9")


def test_missing_says_where_it_looked_and_how_to_install(alone: dict[str, Any]) -> None:
    with pytest.raises(DeviceError) as caught:
        library.load()
    text = str(caught.value)
    assert "pip install nvidia-cudnn-cu13" in text and "MINIDNN_CUDNN" in text
    assert f"system: {FILE_NAME} cannot be loaded (no such file)" in text


def test_a_path_that_does_not_exist(alone: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match=r"path: .*libcudnn.* does not exist"):
        library.load(tmp_path / "libcudnn.so.9")
    assert alone["opened"] == []


def test_too_old_is_named_with_its_version(alone: dict[str, Any]) -> None:
    alone["dlls"][FILE_NAME] = Dll(version=8907)
    with pytest.raises(DeviceError, match=r"is version 8\.9\.7"):
        library.load()


def test_two_copies_warn(
    alone: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    mine, theirs = tmp_path / FILE_NAME, tmp_path / "torch" / FILE_NAME
    theirs.parent.mkdir()
    mine.touch()
    theirs.touch()
    alone["dlls"][str(mine)] = Dll()
    monkeypatch.setattr(library, "already_mapped", lambda: str(theirs))
    with pytest.warns(MiniDNNWarning, match="beside"):
        assert library.load(mine).path == str(mine)


def test_prototypes_are_set_and_missing_functions_named() -> None:
    made = Library(Dll(missing=("cudnnSoftmaxForward",)), "/x/libcudnn.so.9")
    assert made.cudnnCreate.argtypes == (ctypes.c_void_p,)
    assert made.cudnnCreate.restype is ctypes.c_int
    assert made.cudnnGetErrorString.restype is ctypes.c_char_p
    assert made.has("cudnnCreate") and not made.has("cudnnSoftmaxForward")
    with pytest.raises(DeviceError, match="cudnnSoftmaxForward is missing in cuDNN at /x/"):
        _ = made.cudnnSoftmaxForward
    with pytest.raises(AttributeError, match="cudnnNothing"):
        _ = made.cudnnNothing


@pytest.mark.parametrize("number, text", [(91900, "9.19.0"), (90100, "9.1.0"), (8907, "8.9.7")])
def test_version_text(number: int, text: str) -> None:
    assert library.version_text(number) == text


def test_importing_touches_nothing_optional() -> None:
    """Every module of the binding imports without CuPy, NumPy, PyTorch, and loads no library."""
    program = """
import importlib, pkgutil, sys
for name in ("cupy", "torch", "numpy", "ml_dtypes"):
    sys.modules[name] = None
from minidnn import cudnn
for found in pkgutil.walk_packages(cudnn.__path__, "minidnn.cudnn."):
    if not found.name.startswith("minidnn.cudnn.graph"):
        importlib.import_module(found.name)
assert cudnn.library.loaded() is None
ours = {n.split(".")[1] for n in sys.modules if n.startswith("minidnn.")}
assert ours <= {"_forks", "cache", "cudnn", "gpu", "errors"}, ours
reason = cudnn.why_unavailable()
assert "pip install cupy-cuda13x" in reason, reason
assert cudnn.constants.available is False
try:
    cudnn.convolution.forward(None, None)
except Exception as error:
    assert type(error).__name__ == "DeviceError", error
else:
    raise AssertionError("no error")
"""
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True)


@pytest.mark.parametrize("platform, name", [("linux", "libcuda.so.1"), ("win32", "nvcuda.dll")])
def test_the_driver_is_loaded_by_its_name_on_the_system(
    alone: dict[str, Any], monkeypatch: pytest.MonkeyPatch, platform: str, name: str
) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(driver, "driver", driver.driver.__wrapped__)  # without its cache
    with pytest.raises(DeviceError, match=rf"{name} cannot be loaded \(no such file\); 'nvidia"):
        driver.call("cuInit", 0)
    alone["dlls"][name] = Dll()
    assert driver.driver() is alone["dlls"][name]
    alone["dlls"][name] = Dll(missing=("cuStreamGetCaptureInfo_v3",))
    assert driver.driver() is None
    assert set(alone["opened"]) == {name}


def test_no_gpu_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    from types import SimpleNamespace

    from minidnn.gpu import cupy

    class CUDARuntimeError(RuntimeError):
        pass

    def count() -> int:
        raise CUDARuntimeError("cudaErrorInsufficientDriver")

    runtime = SimpleNamespace(getDeviceCount=count, CUDARuntimeError=CUDARuntimeError)
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=SimpleNamespace(runtime=runtime)))
    monkeypatch.setattr("minidnn.gpu._module", None)
    with pytest.raises(DeviceError, match="nvidia-smi"):
        cupy()
    runtime.getDeviceCount = lambda: 0
    with pytest.raises(DeviceError, match="sees none"):
        cupy()
