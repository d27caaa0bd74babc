"""The `zoo` command, from a checkout that is not installed: `python cli.py train devnet`."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(1, str(Path(__file__).resolve().parent / "datasets"))

from zoo.commands import main

if __name__ == "__main__":
    sys.exit(main())
