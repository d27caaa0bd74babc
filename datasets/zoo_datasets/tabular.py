"""A user's table from a file, whatever its format."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from zoo_datasets.csv_reader import check_names, first_line, read_cells
from zoo_datasets.errors import InputError, listed
from zoo_datasets.files import readable_file
from zoo_datasets.labels import binary_labels, label_column
from zoo_datasets.libsvm_reader import read_libsvm
from zoo_datasets.parquet_reader import ParquetFile
from zoo_datasets.table import Table, align_columns, require_both_classes

__all__ = ["SUFFIXES", "Table", "align_columns", "read_table", "require_both_classes"]


def read_table(path: str | Path, label: str | None = None, need_label: bool = True) -> Table:
    """Read a CSV (``.csv``), Parquet (``.parquet``, ``.pq``) or libsvm (``.svm``, ``.libsvm``) file.

    Values are taken as they are: nothing is scaled, filled in or left out. CSV is UTF-8, comma separated, and
    its first line names the columns. Rows in messages are rows of data, counted from 1. Of a Parquet file
    written by pandas, a row index stored along is left out.

    Args:
        path: the file.
        label: the label column; None takes the one called class, label, target or y in any case. libsvm has
            no names: its labels are the first number of each line.
        need_label: whether labels are wanted (training, evaluation). If not (prediction), the label column
            is left out of the features where there is one, unread, and ``y`` is None.

    Returns:
        The table; ``y`` holds 0 (normal) and 1 (anomaly), as ``binary_labels`` reads them.

    Raises:
        InputError: one line that names the file, and the row and column where there is one.
    """
    path = Path(path)
    reader = _READERS.get(path.suffix.lower())
    if reader is None and not path.is_dir():
        readable_file(path)
        raise InputError(f"{path}: the name must end in one of {', '.join(_READERS)}")
    readable_file(path)
    assert reader is not None
    return reader(path, label, need_label)


def _read_csv(path: Path, label: str | None, need_label: bool) -> Table:
    source = str(path)
    columns = first_line(path)
    check_names(columns, source)
    label = label_column(columns, label, source, need_label)
    features = _features(columns, label, source)
    x, texts = read_cells(path, columns, header=True, text_column=label)
    y = binary_labels(texts, source, label) if need_label and texts is not None else None
    return Table(x, y, features, source, label)


def _read_parquet(path: Path, label: str | None, need_label: bool) -> Table:
    source = str(path)
    file = ParquetFile(path)
    check_names(file.columns, source)
    label = label_column(file.columns, label, source, need_label)
    features = _features(file.columns, label, source)
    x = file.numbers(features)
    y = binary_labels(file.values(label), source, label) if need_label and label is not None else None
    return Table(x, y, features, source, label)


def _read_libsvm(path: Path, label: str | None, need_label: bool) -> Table:
    source = str(path)
    if label is not None:
        raise InputError(f"{source}: libsvm has no column names, so no label column {label!r}")
    x, labels, columns = read_libsvm(path)
    return Table(x, binary_labels(labels, source) if need_label else None, columns, source)


def _features(columns: list[str], label: str | None, source: str) -> list[str]:
    features = [name for name in columns if name != label]
    if not features:
        raise InputError(f"{source}: no column beside the label; the columns are {listed(columns)}")
    return features


_READERS: dict[str, Callable[[Path, str | None, bool], Table]] = {
    ".csv": _read_csv,
    ".parquet": _read_parquet,
    ".pq": _read_parquet,
    ".svm": _read_libsvm,
    ".libsvm": _read_libsvm,
}
SUFFIXES = tuple(_READERS)
