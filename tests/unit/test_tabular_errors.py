"""Each thing that can be wrong with a table: one line that names the file, the row and the column."""

from __future__ import annotations

import builtins
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zoo_datasets import InputError, read_table
from zoo_datasets.libsvm_reader import MAX_FEATURES


def message_of(path: Path, **options: Any) -> str:
    """The one line of the error, without the folder."""
    with pytest.raises(InputError) as caught:
        read_table(path, **options)
    message = str(caught.value)
    assert "\n" not in message
    assert str(path) in message
    return message.replace(f"{path.parent}/", "")


HEAD = "a,b,class\n"
GOOD = "1,2,0\n"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "t.csv: the file is empty"),
        ("\n\n", "t.csv: the file holds only blank lines"),
        (HEAD, "t.csv: a header line, but no rows below it"),
        (HEAD + GOOD + "1,,0\n", "t.csv, row 2 (line 3), column 'b': the cell is empty; a number is needed"),
        (HEAD + GOOD + "\n1,nan,0\n", "t.csv, row 2 (line 4), column 'b': NaN; fill in or remove"),
        (HEAD + "inf,1,0\n" + GOOD, "t.csv, row 1 (line 2), column 'a': 'inf' is not finite"),
        (HEAD + GOOD * 6 + "-Infinity,1,0\n", "t.csv, row 7 (line 8), column 'a': '-Infinity' is not finite"),
        (HEAD + "1,1e39,0\n", "t.csv, row 1 (line 2), column 'b': '1e39' is beyond the range of 32-bit"),
        (HEAD + GOOD + "1,abc,0\n", "t.csv, row 2 (line 3), column 'b': 'abc' is not a number"),
        (HEAD + GOOD + "1,1_0,0\n", "t.csv, row 2 (line 3), column 'b': '1_0' is not a number"),
        (HEAD + GOOD + "1,NA,0\n", "t.csv, row 2 (line 3), column 'b': 'NA' is not a number"),
        (HEAD + "3,2,0\nTrue,2,0\n", "t.csv, row 2 (line 3), column 'a': 'True' is not a number"),
        (HEAD + "True,2,0\nTrue,x,0\n", "t.csv, row 2 (line 3), column 'b': 'x' is not a number"),
        (HEAD + '1,"x\ny",0\n', r"t.csv, row 1 (line 3), column 'b': 'x\ny' is not a number"),
        (
            HEAD + "1," + "z" * 99 + ",0\n",
            f"t.csv, row 1 (line 2), column 'b': '{'z' * 40}...' is not a number",
        ),
        (HEAD + GOOD + "1,2\n", "t.csv, row 2 (line 3): 2 cells, but there are 3 columns"),
        (HEAD + "1,2\n" + GOOD, "t.csv, row 1 (line 2): 2 cells, but there are 3 columns"),
        (HEAD + "1,2,0,9\n" + GOOD, "t.csv, row 1 (line 2): 4 cells, but there are 3 columns"),
        (HEAD + "1,2,0,9\n" * 3, "t.csv, row 1 (line 2): 4 cells, but there are 3 columns"),
        (HEAD + GOOD * 3 + "1,2,0,9\n", "t.csv, row 4 (line 5): 4 cells, but there are 3 columns"),
        (HEAD + GOOD + "1,2,\n", "t.csv, row 2, column 'class': the label is missing"),
        (HEAD + "1,2,0\n1,2,1\n1,2,2\n", "t.csv, column 'class': the labels are not two known classes"),
        ("a,a,class\n1,2,0\n", "t.csv: the column name 'a' occurs twice"),
        (",b,class\n1,2,0\n", "t.csv: column 1 has no name in the header line"),
        ("a,b\n1,2\n", "t.csv: no label column (class, label, target, y); the columns are 'a', 'b'; name"),
        ("a,b,Label,TARGET\n1,2,0,0\n", "t.csv: 'Label', 'TARGET' could each be the label; choose one"),
        ("a;class\n1;0\n", "the columns are 'a;class' (cells must be separated by commas); name the label"),
        ("class\n1\n0\n", "t.csv: no column beside the label; the columns are 'class'"),
        (
            "0.5,1.5,0\n1,2,1\n",
            "'0.5', '1.5', '0' (is the header line missing?); name the label with --label",
        ),
        (HEAD + '1,"2,0\n', "t.csv: not a CSV file (unexpected end of data)"),
        (
            HEAD.encode() + b"1,2,0\n1,\xe9,0\n",
            "t.csv, line 3: byte 0xe9 is not UTF-8; save the file as UTF-8",
        ),
        (b"a,b,cl\xe4ss\n1,2,0\n", "t.csv, line 1: byte 0xe4 is not UTF-8"),
        (HEAD.encode() + b"1,2,\xe9\n", "t.csv, line 2: byte 0xe9 is not UTF-8"),
        ("a,b,class\n1,2,0\n".encode("utf-16"), "t.csv, line 1: byte 0xff is not UTF-8"),
    ],
)
def test_csv(tmp_path: Path, content: str | bytes, message: str) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert message in message_of(path)


@settings(deadline=None)
@given(
    rows=st.integers(1, 5),
    columns=st.integers(1, 4),
    data=st.data(),
    bad=st.sampled_from(["", "x", "nan", "NaN", "inf", "1e99", "1 2", "--1", "0x1", "1_0", "None", "1;2"]),
)
def test_any_bad_cell_of_a_csv_is_named(rows: int, columns: int, data: st.DataObject, bad: str) -> None:
    row = data.draw(st.integers(0, rows - 1))
    column = data.draw(st.integers(0, columns - 1))
    cells = [["1.5"] * columns for _ in range(rows)]
    cells[row][column] = bad
    names = [f"c{i}" for i in range(columns)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "t.csv")
        path.write_text("\n".join(",".join(line) for line in [[*names, "y"], *([*c, "0"] for c in cells)]))
        assert f"t.csv, row {row + 1} (line {row + 2}), column 'c{column}': " in message_of(path)


@settings(deadline=None)
@given(rows=st.integers(1, 5), columns=st.integers(1, 4), data=st.data())
def test_any_row_of_another_length_is_named(rows: int, columns: int, data: st.DataObject) -> None:
    row = data.draw(st.integers(0, rows - 1))
    length = data.draw(st.integers(1, columns + 3).filter(lambda n: n != columns + 1))
    lines = [["1"] * (length if i == row else columns + 1) for i in range(rows)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "t.csv")
        header = [f"c{i}" for i in range(columns)] + ["y"]
        path.write_text("\n".join(",".join(line) for line in [header, *lines]))
        expected = (
            f"t.csv, row {row + 1} (line {row + 2}): {length} cells, but there are {columns + 1} columns"
        )
        assert message_of(path) == expected


def test_no_label_column_of_that_name(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("a,class\n1,0\n")
    message = "t.csv: no label column 'fraud'; the columns are 'a', 'class'; name the label with --label"
    assert message_of(path, label="fraud") == message


@pytest.mark.parametrize("name", ["t.csv", "t.parquet", "t.svm"])
def test_no_such_file_and_a_folder(tmp_path: Path, name: str) -> None:
    assert message_of(tmp_path / name) == f"{name}: no such file"
    (tmp_path / name).mkdir()
    assert message_of(tmp_path / name) == f"{name}: is a directory, a file is needed"


def test_no_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t.csv"
    path.write_text("a,class\n1,0\n")

    def refuse(file: Any, *arguments: Any, **options: Any) -> Any:  # file modes do not bind root
        raise PermissionError(13, "Permission denied", str(file))

    monkeypatch.setattr(builtins, "open", refuse)
    assert message_of(path) == "t.csv: no permission to read it"


def test_unknown_suffix(tmp_path: Path) -> None:
    path = tmp_path / "t.xlsx"
    path.write_bytes(b"PK")
    assert message_of(path) == "t.xlsx: the name must end in one of .csv, .parquet, .pq, .svm, .libsvm"


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"a": [1.0, None, 3.0]}, "t.parquet, row 2, column 'a': NaN; fill in or remove missing values"),
        ({"a": [1.0, 2.0, float("-inf")]}, "t.parquet, row 3, column 'a': '-inf' is not finite"),
        ({"a": [1e39, 2.0, 3.0]}, "t.parquet, row 1, column 'a': '1e+39' is beyond the range of 32-bit"),
        ({"a": [None, "x", "y"]}, "t.parquet, row 2, column 'a': 'x' is not a number (type "),
        (
            {"a": pd.Categorical(["x", "y", "x"])},
            "t.parquet, row 1, column 'a': 'x' is not a number (type dict",
        ),
        (
            {"a": pd.to_datetime(["2020-01-01"] * 3)},
            "row 1, column 'a': '2020-01-01 00:00:00' is not a number",
        ),
        ({"a": [None, None, None]}, "t.parquet, row 1, column 'a': 'None' is not a number (type null)"),
        ({"a": [1, 2, 3], "class": [0, None, 1]}, "t.parquet, row 2, column 'class': the label is missing"),
        (
            {"a": [1, 2, 3], "class": ["0", None, "1"]},
            "t.parquet, row 2, column 'class': the label is missing",
        ),
        ({"a": [1, 2, 3], "class": [0, 1, 2]}, "t.parquet, column 'class': the labels are not two known"),
        ({"a": [], "class": []}, "t.parquet: columns, but no rows"),
    ],
)
def test_parquet(tmp_path: Path, columns: dict, message: str) -> None:
    path = tmp_path / "t.parquet"
    pd.DataFrame({"class": [0, 1, 0], **columns} if "class" not in columns else columns).to_parquet(path)
    assert message in message_of(path)


def test_parquet_that_is_none(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    path.write_text("a,class\n1,0\n")
    assert message_of(path).startswith("t.parquet: not a readable Parquet file (")


def test_parquet_without_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t.parquet"
    path.write_text("any")
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    assert message_of(path) == "t.parquet: reading Parquet needs pyarrow: pip install 'parallel-zoo[parquet]'"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "t.svm: the file is empty"),
        ("# only a comment\n", "t.svm: no rows"),
        ("1\n0\n", "t.svm: no row has a feature (index:value)"),
        ("1 1:2\n# note\n0 2:nan\n", "t.svm, row 2 (line 3), column '2': NaN; fill in or remove missing"),
        ("1 1:2\n0 1:1 2:-inf\n", "t.svm, row 2 (line 2), column '2': '-inf' is not finite"),
        ("1 1:1e39\n", "t.svm, row 1 (line 1), column '1': '1e39' is beyond the range of 32-bit numbers"),
        ("1 1:2\n0 1:abc\n", "t.svm, row 2 (line 2), column '1': 'abc' is not a number"),
        ("1 1:2\n0 word\n", "t.svm, row 2 (line 2): 'word' is not index:value"),
        ("1 1:2\n0 x:1\n", "t.svm, row 2 (line 2), column 'x': 'x:1' is not index:value"),
        ("1 2:2 1:1\n", "t.svm, row 1 (line 1), column '1': index 1 after 2; indices must rise"),
        ("1 2:2 2:1\n", "t.svm, row 1 (line 1), column '2': index 2 after 2; indices must rise"),
        ("1:2 2:3\n", "t.svm, row 1 (line 1): the label '1:2' is not a number"),
        ("1 1:2\nyes 1:3\n", "t.svm, row 2 (line 2): the label 'yes' is not a number"),
        (f"1 {MAX_FEATURES + 1}:2\n", f"column '{MAX_FEATURES + 1}': the index is above {MAX_FEATURES}"),
        ("1 99999999999999999999:2\n", f"the index is above {MAX_FEATURES}"),
        ("1 1:2\n2 1:3\n", "t.svm: the labels are not two known classes"),
        ("nan 1:2\n", "t.svm, row 1: the label is missing"),
    ],
)
def test_libsvm(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "t.svm"
    path.write_text(content)
    assert message in message_of(path)


def test_libsvm_knows_no_label_column(tmp_path: Path) -> None:
    path = tmp_path / "t.svm"
    path.write_text("1 1:2\n")
    assert re.match(r"t\.svm: libsvm has no column names", message_of(path, label="fraud"))
