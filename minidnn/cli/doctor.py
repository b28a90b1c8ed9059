"""``minidnn doctor``: examines this machine, and says how to install what is missing."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from minidnn.errors import MiniDNNError

HELP = "show what minidnn finds on this machine, and what is missing"
DESCRIPTION = """\
Prints what minidnn needs or can use, where it is, its version, and what to do where something is
missing.

Exit code: 0 if nothing is broken (what is only missing has advice); 1 if something is; 2 if
ISPC could not be installed."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--install-ispc", action="store_true", help="first install ISPC into the cache folder"
    )
    parser.add_argument(
        "--packages", metavar="DIR", help="install from the .deb files in this folder instead"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace) -> int:
    from minidnn.report.doctor import BROKEN, examine, report

    if options.install_ispc:
        from minidnn.backends.cpu.compilers.install import install_ispc

        install_ispc(packages=options.packages)
    elif options.packages is not None:
        raise MiniDNNError(f"--packages {options.packages} goes with --install-ispc")
    findings = examine()
    if options.json:
        print(json.dumps([asdict(finding) for finding in findings], indent=1))
    else:
        print(report(findings))
    return 1 if any(finding.state == BROKEN for finding in findings) else 0
