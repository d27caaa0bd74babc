"""The one shape every tabular reader returns, and what models ask of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from zoo_datasets.errors import InputError, listed, place

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

__all__ = ["Table", "align_columns", "require_both_classes"]


@dataclass(frozen=True, eq=False)
class Table:
    """Rows of numbers with named columns, and their labels where asked for.

    Attributes:
        x: float32 [rows, columns], all finite; a ``scipy.sparse.csr_matrix`` when read from libsvm.
        y: int64 [rows], 1 for an anomaly and 0 for a normal row; None where no label was asked for.
        columns: the features' names, in the order of ``x``; for libsvm the indices of the file.
        source: the path or name it came from, for messages.
        label: the name of the label column, None for libsvm and where there is none. Hand it to
            ``read_table`` at prediction, so that the same column is left out of the features.
    """

    x: np.ndarray | csr_matrix
    y: np.ndarray | None
    columns: list[str]
    source: str
    label: str | None = None

    def __len__(self) -> int:
        return int(self.x.shape[0])

    @property
    def is_sparse(self) -> bool:
        return not isinstance(self.x, np.ndarray)

    def take(self, index: np.ndarray, source: str | None = None) -> Table:
        """The rows of ``index`` (int [n]), in its order."""
        return replace(
            self,
            x=self.x[index],
            y=None if self.y is None else self.y[index],
            source=self.source if source is None else source,
        )


def align_columns(table: Table, columns: Sequence[str]) -> Table:
    """Put the columns of ``table`` into the order a model was trained on, by name.

    A sparse table may lack columns: libsvm leaves out what is zero, so they are filled with zeros.

    Args:
        table: what was read.
        columns: the names the model was trained on, in its order.

    Raises:
        InputError: columns are missing (dense tables only), or there are columns the model does not know.
    """
    wanted = list(columns)
    if table.columns == wanted:
        return table
    position = {name: i for i, name in enumerate(table.columns)}
    known = set(wanted)
    extra = [name for name in table.columns if name not in known]
    missing = [] if table.is_sparse else [name for name in wanted if name not in position]
    if missing or extra:
        faults = [f"missing {listed(missing)}"] if missing else []
        faults += [f"unknown {listed(extra)}"] if extra else []
        raise InputError(
            f"{place(table.source)}: its columns are not the {len(wanted)} the model was trained on: "
            + "; ".join(faults)
        )
    if table.is_sparse:
        x = _spread(table.x, table.columns, wanted)
    else:
        x = np.ascontiguousarray(table.x[:, [position[name] for name in wanted]])
    return replace(table, x=x, columns=wanted)


def _spread(x: csr_matrix, names: list[str], wanted: list[str]) -> csr_matrix:
    """Move the columns ``names`` of a sparse matrix to their places among ``wanted``; the others are zero."""
    from scipy.sparse import csr_matrix

    target = {name: i for i, name in enumerate(wanted)}
    moved = np.array([target[name] for name in names], dtype=x.indices.dtype)
    # sort_indices works in place: on copies, not on the table's own arrays.
    result = csr_matrix((x.data.copy(), moved[x.indices], x.indptr), shape=(x.shape[0], len(wanted)))
    result.sort_indices()
    return result


def require_both_classes(y: np.ndarray, source: str) -> None:
    """Check that labels (0 normal, 1 anomaly) hold both classes, as training and evaluation need.

    Raises:
        InputError: no row, no anomaly, or only anomalies.
    """
    anomalies = int(np.count_nonzero(y))
    if len(y) == 0:
        raise InputError(f"{source}: no rows")
    if anomalies == 0:
        raise InputError(
            f"{source}: no anomaly among its {len(y)} rows; at least one must be labelled as anomaly (1)"
        )
    if anomalies == len(y):
        raise InputError(
            f"{source}: only anomalies, all {len(y)} rows; at least one must be labelled as normal (0)"
        )
