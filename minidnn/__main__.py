"""``python -m minidnn`` is the command ``minidnn``."""

import sys

from minidnn.cli import main

if __name__ == "__main__":
    sys.exit(main())
