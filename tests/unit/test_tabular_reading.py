"""What is read back is what was written, in every format."""

from __future__ import annotations

import csv
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.sparse import csr_matrix
from sklearn.datasets import dump_svmlight_file

from zoo_datasets import InputError, Table, align_columns, binary_labels, read_table, require_both_classes

finite = st.floats(width=32, allow_nan=False, allow_infinity=False)
names = st.text(
    st.characters(codec="utf-8", exclude_categories=["Cc", "Cs", "Zs", "Zl", "Zp"]), min_size=1, max_size=8
).filter(lambda name: name.casefold() not in {"class", "label", "target", "y"})


@st.composite
def tables(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """x float32 [rows, columns], y 0/1 [rows], names of the columns."""
    x = draw(hnp.arrays(np.float32, hnp.array_shapes(min_dims=2, max_dims=2, max_side=6), elements=finite))
    y = draw(hnp.arrays(np.int64, len(x), elements=st.integers(0, 1)))
    columns = draw(st.lists(names, min_size=x.shape[1], max_size=x.shape[1], unique=True))
    return x, y, columns


def assert_same(table: Table, x: np.ndarray, y: np.ndarray, columns: list[str]) -> None:
    dense = table.x.toarray() if table.is_sparse else table.x
    assert dense.dtype == np.float32
    np.testing.assert_array_equal(dense, x)
    assert table.y is not None
    assert table.y.dtype == np.int64
    np.testing.assert_array_equal(table.y, y)
    assert table.columns == columns
    assert len(table) == len(x)


@settings(deadline=None)
@given(tables(), st.data())
def test_csv_reads_back_as_written(written: tuple, data: st.DataObject) -> None:
    x, y, columns = written
    at = data.draw(st.integers(0, len(columns)))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "t.csv")
        with open(path, "w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator=data.draw(st.sampled_from(["\n", "\r\n"])))
            writer.writerow([*columns[:at], "Class", *columns[at:]])
            for row, value in zip(x, y, strict=True):
                # 17 digits: that the reader is exact is tested apart from the shortest form NumPy prints.
                cells = [f"{number:.17g}" for number in row]
                writer.writerow([*cells[:at], value, *cells[at:]])
        assert_same(read_table(path), x, y, columns)
        left_out = read_table(path, need_label=False)
        assert left_out.y is None
        assert left_out.columns == columns


@settings(deadline=None)
@given(tables(), st.sampled_from(["float32", "float64"]))
def test_parquet_reads_back_as_written(written: tuple, dtype: str) -> None:
    x, y, columns = written
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "t.parquet")
        frame = pd.DataFrame(x.astype(dtype), columns=columns)
        frame["target"] = y
        frame.index = pd.Index([7 * i % 11 for i in range(len(x))])  # stored along; it is no feature
        frame.to_parquet(path)
        assert_same(read_table(path), x, y, columns)


@settings(deadline=None)
@given(tables(), st.booleans())
def test_libsvm_reads_back_as_written(written: tuple, zero_based: bool) -> None:
    x, y, _ = written
    x = np.where(x == 0, np.float32(0), x)
    x[0, [0, -1]] = 1  # so that the file shows its first and last index
    first = 0 if zero_based else 1
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "t.svm")
        dump_svmlight_file(csr_matrix(x.astype(np.float64)), y, str(path), zero_based=zero_based)
        table = read_table(path)
    assert table.is_sparse
    assert_same(table, x, y, [str(first + i) for i in range(x.shape[1])])


def test_parquet_integers_booleans_and_categories(tmp_path: Path) -> None:
    frame = pd.DataFrame({"i": [1, 2, 3], "b": [True, False, True], "f": np.float64([0.5, 1, 2])})
    frame["label"] = pd.Categorical(["normal", "anomaly", "normal"])
    frame.to_parquet(tmp_path / "t.pq")
    table = read_table(tmp_path / "t.pq")
    assert_same(table, np.float32([[1, 1, 0.5], [2, 0, 1], [3, 1, 2]]), np.array([0, 1, 0]), ["i", "b", "f"])


def test_csv_as_spreadsheets_write_it(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(b'\xef\xbb\xbfa, "b",class\r\n\r\n1, 2 ,0\r\n"3",+4e0,1\r\n\r\n')
    assert_same(read_table(path), np.float32([[1, 2], [3, 4]]), np.array([0, 1]), ["a", "b"])


def test_csv_booleans_are_1_and_0(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", "a,b,class\n1,True,no\n2,FALSE,yes\n")
    assert_same(read_table(path), np.float32([[1, 1], [2, 0]]), np.array([0, 1]), ["a", "b"])


def test_annthyroid_split(reference: Path) -> None:
    for name, rows, anomalies in (("train", 5760, 427), ("eval", 1440, 107)):
        table = read_table(reference / "devnet" / "split" / f"{name}.csv")
        assert table.y is not None
        assert table.x.shape == (rows, 21)
        assert table.y.sum() == anomalies
        assert (table.label, table.columns[0], table.columns[1]) == ("class", "Dim_0", "Dim_1=0")
        assert table.x.min() >= 0
        assert table.x.max() <= 1


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_label_by_name(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", "a,fraud,y\n1,0,5\n2,1,6\n")
    table = read_table(path, label="fraud")
    assert_same(table, np.float32([[1, 5], [2, 6]]), np.array([0, 1]), ["a", "y"])
    assert table.label == "fraud"


def test_prediction_leaves_the_named_label_out_unread(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", "a,fraud,y\n1,?,5\n2,,6\n")
    table = read_table(path, label="fraud", need_label=False)
    assert table.y is None
    assert table.columns == ["a", "y"]
    path = write(tmp_path / "u.csv", "a,y\n1,5\n")
    assert read_table(path, label="fraud", need_label=False).columns == ["a", "y"]


@pytest.mark.parametrize(
    "values",
    [
        np.array([0, 1, 1]),
        np.array([-1, 1, 1]),
        np.array([0.0, 1.0, 1.0]),
        np.array([False, True, True]),
        np.array([0, 1, 1], dtype=np.uint8),
        *(
            np.array(words, dtype=object)
            for words in (
                [False, True, True],
                ["0", "1", "1.0"],
                ["-1", "+1", "1"],
                ["normal", "anomaly", " Anomaly "],
                ["normal", "outlier", "outlier"],
                ["inlier", "outlier", "outlier"],
                ["nominal", "anomaly", "anomaly"],
                ["False", "TRUE", "true"],
                ["no", "Yes", "yes"],
            )
        ),
    ],
    ids=str,
)
def test_labels_of_two_classes(values: np.ndarray) -> None:
    y = binary_labels(values, "here")
    assert y.dtype == np.int64
    assert y.tolist() == [0, 1, 1]


@pytest.mark.parametrize(
    ("values", "seen"),
    [
        ([0, 1, 2], "'0', '1', '2'"),
        ([-1, 0, 1], "'-1', '0', '1'"),
        ([1, 2, 2], "'1', '2'"),
        ([0.5, 1.0], "'0.5', '1'"),
        (["o", "n"], "'n', 'o'"),
        (["anomaly", "outlier"], "'anomaly', 'outlier'"),
        (["normal", "anomaly", "Other"], "'Other', 'anomaly', 'normal'"),
        (["0", "1", "anomaly"], "'0', '1', 'anomaly'"),
        (list(range(900)), "'0', '1', '2', '3', '4', '5', ... (900 in all)"),
    ],
)
def test_labels_of_other_classes_are_listed(values: list, seen: str) -> None:
    array = np.array(values, dtype=object if isinstance(values[0], str) else None)
    with pytest.raises(InputError) as caught:
        binary_labels(array, "t.csv", "kind")
    message = str(caught.value)
    assert message.startswith("t.csv, column 'kind': the labels are not two known classes")
    assert message.endswith(f"and are {seen}")


@pytest.mark.parametrize(
    "values", [[0, 1, np.nan], ["0", "1", ""], ["no", "yes", None], ["no", "yes", "NaN"]]
)
def test_a_missing_label_is_named(values: list) -> None:
    array = np.array(values, dtype=object if isinstance(values[0], str) else None)
    with pytest.raises(InputError, match=r"^t\.csv, row 3, column 'kind': the label is missing$"):
        binary_labels(array, "t.csv", "kind")


def test_both_classes_are_required() -> None:
    require_both_classes(np.array([0, 1]), "t.csv")
    with pytest.raises(InputError, match=r"^t\.csv: no anomaly among its 2 rows"):
        require_both_classes(np.array([0, 0]), "t.csv")
    with pytest.raises(InputError, match=r"^t\.csv: only anomalies, all 3 rows"):
        require_both_classes(np.array([1, 1, 1]), "t.csv")
    with pytest.raises(InputError, match=r"^t\.csv: no rows"):
        require_both_classes(np.array([], dtype=np.int64), "t.csv")


def test_columns_are_reordered_by_name() -> None:
    table = Table(np.float32([[1, 2, 3], [4, 5, 6]]), np.array([0, 1]), ["a", "b", "c"], "t.csv")
    aligned = align_columns(table, ("c", "a", "b"))
    assert_same(aligned, np.float32([[3, 1, 2], [6, 4, 5]]), np.array([0, 1]), ["c", "a", "b"])
    with pytest.raises(InputError, match=r"^t\.csv: .* 3 .*: missing 'd', 'e'; unknown 'b', 'c'$"):
        align_columns(table, ["d", "a", "e"])


def test_libsvm_lines_up_with_more_trained_features(tmp_path: Path) -> None:
    table = read_table(write(tmp_path / "t.svm", "1 1:2 3:4\n0 2:5 # a comment\n0\n"))
    aligned = align_columns(table, [str(i) for i in range(1, 6)])
    expected = np.float32([[2, 0, 4, 0, 0], [0, 5, 0, 0, 0], [0, 0, 0, 0, 0]])
    assert_same(aligned, expected, np.array([1, 0, 0]), ["1", "2", "3", "4", "5"])
    np.testing.assert_array_equal(align_columns(table, ["3", "2", "1"]).x.toarray(), expected[:, 2::-1])
    np.testing.assert_array_equal(table.x.toarray(), expected[:, :3])
    with pytest.raises(InputError, match=r"unknown '3'$"):
        align_columns(table, ["1", "2"])


def test_libsvm_without_index_0_lines_up_with_a_model_that_has_it(tmp_path: Path) -> None:
    table = read_table(write(tmp_path / "t.svm", "1 1:2 2:4\n"))
    aligned = align_columns(table, ["0", "1", "2"])
    np.testing.assert_array_equal(aligned.x.toarray(), [[0, 2, 4]])


def test_importing_the_package_imports_nothing_heavy() -> None:
    heavy = "{'torch', 'pandas', 'sklearn', 'scipy', 'pyarrow'}"
    code = f"import sys, zoo_datasets; print(sorted({heavy} & set(sys.modules)), zoo_datasets.Table.__name__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[] Table"
