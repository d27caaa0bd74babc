"""Project settings."""

from __future__ import annotations

from zoo.integrations.kedro import ZooHooks

HOOKS = (ZooHooks(),)
CONFIG_LOADER_ARGS = {"base_env": "base", "default_run_env": "local"}
