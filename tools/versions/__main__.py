"""Makes environments with other versions, and runs tests in them.

    python -m tools.versions                 # all but "quick"
    python -m tools.versions oldest newest   # these
    python -m tools.versions quick           # what CI runs: the oldest of all, the tests' essence

An environment is kept in ``build/versions`` until what is to be in it changes.  Where the Python of
an environment is not there, one line says so, and another one of its minor version stands in for
it; without any, the environment is skipped.  Exit code: 0 if all tests passed that ran.
"""

from __future__ import annotations

import argparse
import glob
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from tools.versions.environments import ENVIRONMENTS, Environment
from tools.versions.stubs import make_stubs

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "versions"


def find_python(version: str) -> tuple[str, str] | None:
    """The interpreter of a version, or of the same minor version, and which version it is."""
    minor = ".".join(version.split(".")[:2])
    named = [shutil.which(f"python{minor}"), shutil.which("python3"), "/usr/bin/python3"]
    found: dict[str, str] = {}
    for path in [*named, *glob.glob(f"{Path.home()}/.pyenv/versions/{minor}.*/bin/python")]:
        if path and Path(path).exists():
            code = "import platform, venv; print(platform.python_version())"
            done = subprocess.run([path, "-c", code], capture_output=True, text=True, check=False)
            if done.returncode == 0 and done.stdout.startswith(f"{minor}."):
                found.setdefault(done.stdout.strip(), path)
    oldest = min(found, key=lambda each: int(each.split(".")[2]), default="")
    wanted = version if version in found else oldest
    return (found[wanted], wanted) if wanted else None


def make(environment: Environment, python: str) -> Path:
    """The interpreter of an environment, which is made unless it is there as it should be."""
    folder = FOLDER / environment.name
    made, own = folder / "made", folder / "bin" / "python"
    wanted = "\n".join([python, *environment.alone(), *environment.requirements()])
    if made.is_file() and made.read_text(encoding="utf-8") == wanted:
        return own
    shutil.rmtree(folder, ignore_errors=True)
    run([python, "-m", "venv", "--without-pip", str(folder)])
    install(own, "--no-deps", *environment.alone())
    install(own, *environment.requirements())
    (libraries,) = folder.glob("lib/python*/site-packages/torch/lib")
    if (libraries / "libtorch_cuda.so").exists():  # else it is a build for CPUs
        make_stubs(libraries)
    made.write_text(wanted, encoding="utf-8")
    return own


def install(python: Path, *what: str) -> None:
    """With this interpreter's pip, which is newer than what the oldest Python brings."""
    pip = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check"]
    run([*pip, "install", "--quiet", "--no-compile", *what])


def run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")


def test(environment: Environment, python: Path, more: list[str]) -> bool:
    """Whether the tests pass in an environment."""
    options = ["-q", "--timeout", "900", "-p", "no:cacheprovider", *more]
    tests = environment.tests
    # Warnings of other versions of packages, beyond those that setup.cfg knows, are theirs.
    command = [str(python), "-m", "pytest", "-W", "default", *options, *tests]
    variables = {**os.environ, "OMP_NUM_THREADS": "1"}
    return not subprocess.run(command, cwd=ROOT, env=variables, check=False).returncode


def main(arguments: list[str] | None = None) -> int:
    known = {each.name: each for each in ENVIRONMENTS}
    parser = argparse.ArgumentParser(prog="python -m tools.versions", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(known)}")
    parser.add_argument("--make", action="store_true", help="make the environments, run nothing")
    options, more = parser.parse_known_args(arguments)
    if unknown := [name for name in options.names if name not in known]:
        parser.error(f"no environment {unknown[0]!r}; valid are {', '.join(known)}")
    failed = []
    for name in options.names or [name for name in known if name != "quick"]:
        environment, start = known[name], time.monotonic()
        found = find_python(environment.python)
        if found is None:
            print(f"versions: {name} is skipped: no Python {environment.python} is installed")
            continue
        if not found[1].startswith(environment.python):
            print(f"versions: Python {environment.python} is not installed; {found[1]} stands in")
        python = make(environment, found[0])
        pins = ", ".join(f"{package} {v}" for package, v in environment.pins().items())
        spent = f"made in {time.monotonic() - start:.0f} s"
        print(f"versions: {name} is Python {found[1]}, {pins} ({spent})", flush=True)
        if not options.make and not test(environment, python, more):
            failed.append(name)
    print(f"versions: failed in {', '.join(failed)}" if failed else "versions: nothing failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
