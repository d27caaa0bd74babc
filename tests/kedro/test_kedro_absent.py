"""Without Kedro everything else works, and the integration says what to install."""

from __future__ import annotations

import subprocess
import sys


def test_without_kedro_the_rest_works_and_the_integration_names_the_extra() -> None:
    code = """
import sys
sys.modules["kedro"] = None  # as if it were not installed
import zoo, parallel, zoo_datasets, zoo.integrations
from zoo.commands import main
assert main(["list"]) == 0
for name in ("", ".nodes", ".hooks", ".datasets", ".pipelines"):
    try:
        __import__(f"zoo.integrations.kedro{name}")
    except ImportError as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    hint = "zoo.integrations.kedro needs Kedro: pip install 'parallel-zoo[kedro]'"
    assert done.stdout.splitlines()[-5:] == [hint] * 5
