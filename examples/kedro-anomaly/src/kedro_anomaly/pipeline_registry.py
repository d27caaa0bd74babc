"""Project pipelines."""

from __future__ import annotations

from kedro.pipeline import Pipeline

from kedro_anomaly.preparation import preparation
from zoo.integrations.kedro.pipelines import anomaly_detection


def register_pipelines() -> dict[str, Pipeline]:
    """``kedro run`` does everything; ``kedro run --pipelines scoring`` asks the last model about new biopsies."""
    whole = preparation() + anomaly_detection()
    return {"__default__": whole, "scoring": whole.only_nodes("scale_new", "predict")}
