"""The ``zoo`` command. Each subcommand is a module with ``SUMMARY`` and ``run(argv) -> Outcome | None``."""

from __future__ import annotations

from zoo.commands.dispatch import COMMANDS, main

__all__ = ["COMMANDS", "main"]
