"""Readers and generators of the zoo's data. Importing this package imports nothing heavy."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zoo_datasets.errors import InputError
    from zoo_datasets.labels import binary_labels
    from zoo_datasets.sources import NAMED, TabularData, load_tabular
    from zoo_datasets.splits import stratified_split
    from zoo_datasets.tabular import Table, align_columns, read_table, require_both_classes
    from zoo_datasets.vectors import Normaliser, ascending_descending, read_vectors, toy_vectors

__all__ = [
    "NAMED",
    "InputError",
    "Normaliser",
    "Table",
    "TabularData",
    "align_columns",
    "ascending_descending",
    "binary_labels",
    "load_tabular",
    "read_table",
    "read_vectors",
    "require_both_classes",
    "stratified_split",
    "toy_vectors",
]

_MODULES = {
    "errors": ["InputError"],
    "labels": ["binary_labels"],
    "sources": ["NAMED", "TabularData", "load_tabular"],
    "splits": ["stratified_split"],
    "tabular": ["Table", "align_columns", "read_table", "require_both_classes"],
    "vectors": ["Normaliser", "ascending_descending", "read_vectors", "toy_vectors"],
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
