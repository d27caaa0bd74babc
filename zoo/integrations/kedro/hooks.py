"""What the zoo adds to a Kedro run: the defaults of conf/zoo.yml, and its messages in Kedro's logging."""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Any

from kedro.config import MissingConfigException, OmegaConfigLoader
from kedro.framework.hooks import hook_impl

from zoo.integrations.kedro.nodes import DEFAULTS_INPUT
from zoo.integrations.kedro.options import check_defaults

if TYPE_CHECKING:
    from kedro.framework.context import KedroContext
    from kedro.io import DataCatalog
    from kedro.pipeline import Pipeline

_PATTERNS = ["zoo*", "zoo*/**", "**/zoo*"]


class ZooHooks:
    """Reads conf/ENVIRONMENT/zoo.yml and hands it to the zoo's nodes as ``params:zoo``.

    ``zoo:`` in parameters.yml (or ``--params zoo.parallel=fsdp``) overrules the file; within a namespace its
    ``zoo:`` does. Two of them registered do what one does.
    """

    def __init__(self) -> None:
        self._defaults: dict[str, Any] = {}

    @hook_impl
    def after_context_created(self, context: KedroContext) -> None:
        loader = context.config_loader
        if isinstance(loader, OmegaConfigLoader):  # a project's own loader knows its files by itself
            loader.config_patterns.setdefault("zoo", _PATTERNS)
        try:
            self._defaults = loader["zoo"] or {}
        except (MissingConfigException, KeyError):
            self._defaults = {}
        check_defaults(self._defaults)

    @hook_impl
    def before_pipeline_run(self, pipeline: Pipeline, catalog: DataCatalog) -> None:
        own = DEFAULTS_INPUT.removeprefix("params:")
        for name in pipeline.inputs():
            if re.fullmatch(rf"params:(.+\.)?{own}", name):
                given = catalog[name].load() if name in catalog.keys() else None  # noqa: SIM118 - `in` tries patterns
                if given is not None:
                    check_defaults(given, name)  # here, for the node is told values of either source
                values = self._defaults | (given or {})
                if values != given:  # or Kedro warns of what it replaces
                    catalog[name] = values

    @hook_impl
    def before_node_run(self) -> None:
        _listen()  # here, for it is called in the processes of ParallelRunner too


def _listen() -> None:
    """Progress and metrics are INFO, which Kedro shows of its own loggers only; a logging.yml of the project's wins."""
    logger = logging.getLogger("zoo")
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.INFO)


hooks = (
    ZooHooks()
)  # for the entry point; a settings.py takes a ZooHooks() of its own, since pluggy registers no object twice
