"""All files of programs: importing this fills ``harness.PROGRAMS``."""

from tests.torch.programs import codebooks, writes

__all__ = ["codebooks", "writes"]
