"""Plots of a training: how vectors come out of noise, and how the loss went down."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np


def write_report(
    folder: Path, steps: Sequence[int], trajectories: np.ndarray, columns: Sequence[str]
) -> None:
    """Writes reverse.png and loss.png into ``folder``, which lies in a run directory.

    Args:
        steps: the steps that were undone, T - 1 first.
        trajectories: [samples, steps, features] in data units, after each of them.
    """
    plot_reverse(folder / "reverse.png", steps, trajectories, columns)
    lines = (folder.parent / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    records = [json.loads(line) for line in lines]
    losses = [(record["step"], record["loss"]) for record in records if "loss" in record]
    plot_loss(folder / "loss.png", losses)


def plot_reverse(path: Path, steps: Sequence[int], trajectories: np.ndarray, columns: Sequence[str]) -> None:
    """Each number of the first samples against t, from noise on the left to data on the right."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4 * min(len(columns), 4), 3.2 * -(-len(columns) // 4)), layout="constrained")
    axes = figure.subplots(
        -(-len(columns) // 4), min(len(columns), 4), sharex=True, sharey=True, squeeze=False
    )
    for number, axis in enumerate(axes.flat):
        if number >= len(columns):
            axis.set_axis_off()
            continue
        axis.plot(steps, trajectories[:, :, number].T, linewidth=0.8)
        axis.set_title(columns[number])
        axis.set_xlabel("t")
        axis.grid(alpha=0.3)
    axes.flat[0].invert_xaxis()  # shared by all
    axes.flat[0].set_ylabel("value")
    figure.suptitle("The reverse process")
    figure.savefig(path, dpi=120)


def plot_loss(path: Path, losses: Sequence[tuple[int, float | None]]) -> None:
    """The loss of each step, and its mean over windows."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axis = figure.subplots()
    step = np.array([number for number, _ in losses])
    loss = np.array([np.nan if value is None else value for _, value in losses], dtype=float)
    axis.plot(step, loss, color="#4477aa", alpha=0.35, linewidth=0.8, label="a step")
    window = max(1, len(loss) // 50)
    if window > 1:
        whole = len(loss) // window * window
        means = loss[:whole].reshape(-1, window).mean(axis=1)
        axis.plot(
            step[:whole].reshape(-1, window).mean(axis=1), means, color="#cc3311", label=f"mean of {window}"
        )
    axis.set_xlabel("step")
    axis.set_ylabel("loss (mean squared error)")
    axis.set_yscale("log")
    axis.grid(alpha=0.3)
    axis.legend()
    figure.savefig(path, dpi=120)
