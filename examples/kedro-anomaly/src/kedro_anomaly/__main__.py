"""Runs the project where it is installed as a package."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kedro.framework.cli.utils import find_run_command
from kedro.framework.project import configure_project


def main(*args: Any, **kwargs: Any) -> Any:
    package = Path(__file__).parent.name
    configure_project(package)
    return find_run_command(package)(*args, **kwargs)


if __name__ == "__main__":
    main()
