"""From measurements to features between 0 and 1, which a DevNet wants."""

from __future__ import annotations

import pandas as pd
from kedro.pipeline import Pipeline, node


def feature_ranges(biopsies: pd.DataFrame, label: str) -> dict[str, list[float]]:
    """The lowest and highest value of each feature; the labels are not looked at."""
    features = biopsies.drop(columns=label)
    return {name: [float(features[name].min()), float(features[name].max())] for name in features}


def scale(rows: pd.DataFrame, ranges: dict[str, list[float]]) -> pd.DataFrame:
    """Features by their ranges; other columns stay."""
    scaled = {name: (rows[name] - low) / (high - low) for name, (low, high) in ranges.items()}
    return rows.assign(**scaled)


def preparation() -> Pipeline:
    return Pipeline(
        [
            node(feature_ranges, ["biopsies", "params:training.label"], "ranges", name="feature_ranges"),
            node(scale, ["biopsies", "ranges"], "table", name="scale"),
            node(scale, ["new_biopsies", "ranges"], "new_rows", name="scale_new"),
        ]
    )
