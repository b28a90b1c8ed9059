"""The summary of a kernel's machine code."""

from __future__ import annotations

from pathlib import Path

import pytest

from minidnn.lab.measure import instructions, machine_code

LISTING = """
		Function : probe
	.headerflags	@"EF_CUDA_TEXMODE_UNIFIED EF_CUDA_64BIT_ADDRESS EF_CUDA_SM90"
        /*0000*/                   LDC R1, c[0x0][0x28] ;                /* 0x00000a00ff017b82 */
                                                                         /* 0x000fe20000000800 */
        /*0010*/              @!P0 LDG.E.128.CONSTANT R4, desc[UR4][R2.64] ;
        /*0020*/                   LDS.64 R8, [R0+0x40] ;
        /*0030*/                   FFMA R6, R4, R5, R6 ;
        /*0040*/              @UP0 FFMA.FTZ R6, R4, R5, R6 ;
        /*0050*/                   STG.E desc[UR4][R2.64], R6 ;
        /*0060*/                   BRA 0x60;
        /*0070*/                   NOP;
"""


def test_instructions_are_counted_by_name_and_width() -> None:
    counted = {"LDC": 1, "LDG.128": 1, "LDS.64": 1, "FFMA": 2, "STG": 1, "BRA": 1, "all": 7}
    assert instructions(LISTING) == counted
    assert instructions("cuobjdump fatal: no such file") == {}


def test_no_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert machine_code(b"") == {}
