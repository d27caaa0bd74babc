"""What a user handed over and cannot be used: one line that says what, where, and what to do."""

from __future__ import annotations

__all__ = ["InputError", "listed", "place", "shown"]

_SHOWN_CHARACTERS = 40


class InputError(ValueError):
    """Bad input of a user. The message is one line; the command line prints it and exits with 2."""


def place(source: str, row: int | None = None, column: str | None = None, line: int | None = None) -> str:
    """Name a place in a file: ``data.csv, row 7 (line 8), column 'age'``.

    Args:
        source: the path as the user wrote it, or the name of a data set.
        row: the row of data, counted from 1; the header and blank lines do not count.
        column: the column's name.
        line: the line of the file as an editor shows it, counted from 1.
    """
    parts = [source]
    if row is not None:
        parts.append(f"row {row}" + (f" (line {line})" if line is not None else ""))
    if column is not None:
        parts.append(f"column {shown(column)}")
    return ", ".join(parts)


def shown(text: object) -> str:
    """Quote a user's text for a message: escaped, so that it stays on one line, and cut when long."""
    plain = str(text)
    return repr(plain if len(plain) <= _SHOWN_CHARACTERS else plain[:_SHOWN_CHARACTERS] + "...")


def listed(names: list[str], most: int = 12) -> str:
    """Names for a message, comma separated; a long list is cut and says how many there are."""
    head = ", ".join(shown(name) for name in names[:most])
    return head if len(names) <= most else f"{head}, ... ({len(names)} in all)"
