"""Tables and plots of an evaluation."""

from __future__ import annotations

import csv
from dataclasses import asdict, fields
from pathlib import Path

import numpy as np

from zoo.models.vit.metrics import ClassRow, accuracy, class_rows, confusion
from zoo_datasets.images_types import Images

_SHOWN = 36  # misclassified images
_WRITTEN_IN = 20  # classes up to which a confusion matrix has room for numbers


def write_report(folder: Path, logits: np.ndarray, images: Images, title: str) -> list[Path]:
    """Writes report.md, classes.csv, confusion.csv, confusion.png and, where there are any, misclassified.png.

    Args:
        folder: made if it is not there.
        logits: [rows, classes], one row an image.
    """
    folder.mkdir(parents=True, exist_ok=True)
    predicted = logits.argmax(axis=1)
    table = confusion(predicted, images.labels, len(images.classes))
    rows = class_rows(table, images.classes)
    wrong = np.flatnonzero(predicted != images.labels)
    written = [folder / name for name in ("report.md", "classes.csv", "confusion.csv", "confusion.png")]
    written[0].write_text(
        _markdown(accuracy(logits, images.labels), rows, len(wrong), title), encoding="utf-8"
    )
    with open(written[1], "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(ClassRow)], lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(row) for row in rows)
    with open(written[2], "w", newline="", encoding="utf-8") as file:
        plain = csv.writer(file, lineterminator="\n")
        plain.writerow(["class", *images.classes])
        plain.writerows([name, *line] for name, line in zip(images.classes, table.tolist(), strict=True))
    _plot_confusion(written[3], table, images.classes, title)
    if len(wrong):
        written.append(folder / "misclassified.png")
        _plot_misclassified(written[4], images, predicted, logits, wrong)
    return written


def _markdown(metrics: dict[str, float], rows: list[ClassRow], wrong: int, title: str) -> str:
    images = sum(row.images for row in rows)
    lines = [f"# {title}", "", f"{images} images of {len(rows)} classes, {wrong} misclassified.", ""]
    lines += [
        "| metric | value |",
        "|---|---:|",
        *(f"| {name} | {value:.4f} |" for name, value in metrics.items()),
    ]
    lines += [
        "",
        "| class | images | predicted | precision | recall | F1 |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {row.name} | {row.images} | {row.predicted} | {row.precision:.4f} | {row.recall:.4f} | {row.f1:.4f} |"
        for row in rows
    ]
    lines += ["", "![confusion matrix](confusion.png)", ""]
    if wrong:
        lines += ["![misclassified images](misclassified.png)", ""]
    return "\n".join(lines)


def _plot_confusion(path: Path, table: np.ndarray, names: list[str], title: str) -> None:
    from matplotlib.figure import Figure

    side = min(4 + 0.3 * len(names), 20)
    figure = Figure(figsize=(side, side), layout="constrained")  # without pyplot: no global state, no display
    axes = figure.subplots()
    share = table / np.maximum(table.sum(axis=1, keepdims=True), 1)
    axes.imshow(share, cmap="Blues", vmin=0, vmax=1)
    axes.set(xlabel="predicted", ylabel="class", title=title)
    axes.set_xticks(range(len(names)), names, rotation=90, fontsize=7)
    axes.set_yticks(range(len(names)), names, fontsize=7)
    if len(names) <= _WRITTEN_IN:
        for row, column in np.argwhere(table).tolist():
            colour = "white" if share[row, column] > 0.5 else "black"
            axes.text(
                column, row, str(table[row, column]), ha="center", va="center", fontsize=7, color=colour
            )
    figure.savefig(path, dpi=150)


def _plot_misclassified(
    path: Path, images: Images, predicted: np.ndarray, logits: np.ndarray, wrong: np.ndarray
) -> None:
    """Those first that the model was surest of."""
    from matplotlib.figure import Figure

    margin = logits[wrong, predicted[wrong]] - logits[wrong, images.labels[wrong]]
    shown = wrong[np.argsort(-margin, kind="stable")][:_SHOWN].tolist()
    columns = min(len(shown), 6)
    lines = -(-len(shown) // columns)
    figure = Figure(figsize=(1.7 * columns, 2.0 * lines), layout="constrained")
    for axes in figure.subplots(lines, columns, squeeze=False).flat:
        axes.axis("off")
        if shown:
            row = shown.pop(0)
            axes.imshow(images.read(row, 3).transpose(1, 2, 0))
            own, other = images.classes[images.labels[row]], images.classes[predicted[row]]
            axes.set_title(f"{own} taken for {other}", fontsize=7)
    figure.savefig(path, dpi=100)
