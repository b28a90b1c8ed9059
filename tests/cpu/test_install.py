"""The private copy of ISPC: from packages, atomic, one installation at a time, clear refusals."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from minidnn.backends.cpu.compilers import install
from minidnn.backends.cpu.compilers.install import install_ispc
from minidnn.backends.cpu.compilers.toolchain import find_ispc
from minidnn.errors import DeviceError

from .conftest import FAKE_HEAD, ROOT, run_python

needs_dpkg = pytest.mark.skipif(not shutil.which("dpkg-deb"), reason="dpkg-deb is not in PATH")

FAKE_LOADER = '#!/bin/sh\n[ "$1" = --library-path ] || exit 9\nshift 2\nexec "$@"\n'
FAKE_ISPC = FAKE_HEAD.format(version="1.26.0") + 'while [ "$1" != -o ]; do shift; done; : > "$2"\n'


@pytest.fixture(autouse=True)
def no_ispc(cold_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MINIDNN_ISPC")
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    if shutil.which("ispc"):
        pytest.skip("this system has an ispc in /usr/bin")


def deb(folder: Path, name: str, files: dict[str, str]) -> None:
    tree = folder / "build" / name
    for path, text in files.items():
        target = tree / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
        target.chmod(0o755)
    (tree / "DEBIAN").mkdir(parents=True)
    package, version, _ = name.split("_")
    (tree / "DEBIAN" / "control").write_text(
        f"Package: {package}\nVersion: {version}\nArchitecture: all\nMaintainer: x <x@x>\n"
        "Description: x\n"
    )
    (folder / "debs").mkdir(exist_ok=True)
    target = folder / "debs" / f"{name}.deb"
    subprocess.run(["dpkg-deb", "-b", str(tree), str(target)], check=True, capture_output=True)


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """A folder of two packages with a fake ispc, and a fake loader that simply starts it."""
    deb(tmp_path, "ispc_1.26.0-1_all", {"usr/bin/ispc": FAKE_ISPC, "usr/share/doc/x": "x"})
    deb(
        tmp_path,
        "libc6_2.41-1_all",
        {"usr/lib64/ld-linux-x86-64.so.2": FAKE_LOADER, "usr/lib/x86_64-linux-gnu/libc.so.6": ""},
    )
    return tmp_path / "debs"


def installed(cache: Path) -> list[str]:
    return sorted(p.name for p in (cache / "ispc-toolchain").iterdir() if p.name != ".lock")


@needs_dpkg
def test_from_a_folder_of_packages(packages: Path, cold_cache: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    found = install_ispc(lambda *now: seen.append(now), packages)
    assert found == find_ispc() and found.source == "the cache folder"
    assert found.version == (1, 26, 0)
    version, current = installed(cold_cache)
    assert version.startswith("1.26.0-1-") and current == "current"
    assert not (cold_cache / "ispc-toolchain" / version / "usr/share").exists()
    assert seen == [("unpacking ISPC", i, 2) for i in range(3)]
    # A second installation replaces the first, and what a killed one left is removed.
    (cold_cache / "ispc-toolchain" / ".work-1-abc" / "tree").mkdir(parents=True)
    assert install_ispc(packages=packages).version == (1, 26, 0)
    assert installed(cold_cache) == [version, current]


@needs_dpkg
def test_the_copy_may_be_moved(packages: Path, cold_cache: Path, tmp_path: Path) -> None:
    install_ispc(packages=packages)
    moved = tmp_path / "moved with space"
    (cold_cache / "ispc-toolchain").rename(moved)
    out = subprocess.run([moved / "current" / "ispc", "--version"], capture_output=True, text=True)
    assert "1.26.0" in out.stdout, out.stderr


@needs_dpkg
def test_there_already(packages: Path, cold_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_ispc(packages=packages)

    def never(*_: object) -> None:
        raise AssertionError("installed although one is there")

    monkeypatch.setattr(install, "_install", never)
    assert install_ispc().source == "the cache folder"


@needs_dpkg
def test_many_processes_at_once(packages: Path, cold_cache: Path) -> None:
    code = f"""
        from minidnn.backends.cpu.compilers.install import install_ispc
        print(install_ispc(packages={str(packages)!r}).version)
        """
    children = [run_python(code) for _ in range(6)]
    ended = [child.communicate(timeout=60) for child in children]
    assert [out for out, _ in ended] == ["(1, 26, 0)\n"] * 6, [err for _, err in ended]
    assert len(installed(cold_cache)) == 2


@needs_dpkg
def test_broken_packages_leave_nothing(packages: Path, cold_cache: Path) -> None:
    (packages / "libc6_2.41-1_all.deb").write_bytes(b"garbage")
    with pytest.raises(DeviceError, match=r"unpacking libc6_2.41-1_all.deb failed with exit st"):
        install_ispc(packages=packages)
    (packages / "libc6_2.41-1_all.deb").unlink()
    with pytest.raises(DeviceError, match="the packages lack the C library's loader"):
        install_ispc(packages=packages)
    assert installed(cold_cache) == []


@needs_dpkg
def test_program_that_does_not_work(tmp_path: Path, packages: Path, cold_cache: Path) -> None:
    shutil.rmtree(tmp_path / "build")
    deb(tmp_path, "ispc_1.26.0-1_all", {"usr/bin/ispc": "#!/bin/sh\necho bad lib; exit 4\n"})
    with pytest.raises(DeviceError, match="the installed ISPC failed with exit status 4: bad lib"):
        install_ispc(packages=packages)
    assert installed(cold_cache) == []


def test_folder_without_ispc(tmp_path: Path) -> None:
    (tmp_path / "libc6_1.deb").write_text("")
    with pytest.raises(DeviceError, match=r"there is no ispc_\*\.deb among its 1 \.deb files"):
        install_ispc(packages=tmp_path)


def test_elsewhere_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install.sys, "platform", "darwin")
    with pytest.raises(DeviceError) as caught:
        install_ispc()
    message = str(caught.value)
    for part in (
        "darwin, not Linux",
        "brew install ispc",
        "conda-forge ispc",
        "apt-get install",
        "pacman -S ispc",
        "apk add ispc",
        "github.com/ispc/ispc",
        "--packages DIR",
    ):
        assert part in message, part


def test_without_apt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(DeviceError, match="apt-get, apt-cache, dpkg-deb not found in PATH"):
        install_ispc()


def test_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MINIDNN_CACHE", str(tmp_path / "file"))
    with pytest.raises(DeviceError, match="set MINIDNN_CACHE to a folder with 500 MB"):
        install_ispc()


def test_apt_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cold_cache: Path) -> None:
    """An apt that cannot verify its lists: its words are quoted, nothing is left."""
    tools = tmp_path / "tools"
    tools.mkdir()
    scripts = {
        "apt-get": 'case "$*" in *--print-uris*update) echo "\'http://m/d/dists/bookworm/InRelease'
        "' x 0\";; *) echo 'E: The repository is not signed.'; exit 100;; esac",
        "apt-cache": "echo 'Candidate: (none)'",
        "apt-config": "echo \"LISTS='/var/lib/apt/lists/'\"",
        "dpkg-deb": "exit 1",
    }
    for name, body in scripts.items():
        (tools / name).write_text(f"#!/bin/sh\n{body}\n")
        (tools / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:/usr/bin:/bin")
    here = install.Distribution("debian", (), 12, "bookworm", "Debian 12")
    monkeypatch.setattr(install, "distribution", lambda: here)
    monkeypatch.setattr(install, "KEYRING", tools / "apt-get")
    with pytest.raises(DeviceError) as caught:
        install_ispc()
    assert "E: The repository is not signed." in str(caught.value)
    assert "github.com/ispc/ispc" in str(caught.value)
    assert installed(cold_cache) == []
    monkeypatch.setattr(install, "KEYRING", tools / "missing")
    with pytest.raises(DeviceError, match="install the package debian-archive-keyring"):
        install_ispc()
    other = install.Distribution("ubuntu", ("debian",), 24, "noble", "Ubuntu 24.04")
    monkeypatch.setattr(install, "distribution", lambda: other)
    with pytest.raises(
        DeviceError, match=r"Ubuntu 24\.04 offers no package ispc; run 'apt-get upd"
    ):
        install_ispc()


def test_mirror_is_the_machines_own() -> None:
    printed = """\
'http://sec.example/debian-security/dists/bookworm-security/InRelease' sec_InRelease 0
'https://user@mirror.example/path/debian/dists/bookworm-updates/InRelease' b 0
'https://user@mirror.example/path/debian/dists/bookworm/InRelease' c 0
'http://other.example/debian/dists/bookworm/InRelease' d 0
"""
    assert install.mirror_of(printed, "bookworm") == "https://user@mirror.example/path/debian"
    assert install.mirror_of(printed, "trixie") is None


def test_distribution(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    release = tmp_path / "os-release"
    release.write_text(
        'ID=debian\nVERSION_ID="12"\nVERSION_CODENAME=bookworm\nPRETTY_NAME="D 12"\n'
    )
    monkeypatch.setattr(install, "OS_RELEASE", release)
    assert install.distribution() == install.Distribution("debian", (), 12, "bookworm", "D 12")
    release.write_text('ID=ubuntu\nID_LIKE="debian x"\nVERSION_ID="24.04"\n')
    assert install.distribution() == install.Distribution(
        "ubuntu", ("debian", "x"), 24, "", "ubuntu"
    )
    monkeypatch.setattr(install, "OS_RELEASE", tmp_path / "none")
    assert install.distribution() == install.Distribution("", (), 0, "", "")


@pytest.mark.full
def test_real_download(cold_cache: Path) -> None:
    """Needs a network and an apt that reaches a Debian mirror."""
    if reason := install.why_cannot_install():
        pytest.skip(reason)
    found = install_ispc()
    assert found.version >= (1, 24) and found.source == "the cache folder"


def test_no_mirror_in_the_repository() -> None:
    for path in [*ROOT.glob("minidnn/backends/cpu/**/*.py"), *ROOT.glob("docs/*/*.md")]:
        assert "debian.org" not in path.read_text(), path
