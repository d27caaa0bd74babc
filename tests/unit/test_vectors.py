"""Toy vectors, their normalisation, and a user's own."""

from __future__ import annotations

import json
import tempfile
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from zoo_datasets import InputError, Normaliser, ascending_descending, read_vectors, toy_vectors

finite = st.floats(width=32, allow_nan=False, allow_infinity=False)
matrices = hnp.arrays(np.float32, hnp.array_shapes(min_dims=2, max_dims=2, max_side=5), elements=finite)


def test_the_published_ten_patterns() -> None:
    patterns = ascending_descending()
    assert patterns.dtype == np.float32
    assert patterns.tolist() == [
        [0, 1, 2, 3], [1, 2, 3, 4], [2, 3, 4, 5], [3, 4, 5, 6], [4, 5, 6, 7],
        [3, 2, 1, 0], [4, 3, 2, 1], [5, 4, 3, 2], [6, 5, 4, 3], [7, 6, 5, 4],
    ]  # fmt: skip


@settings(deadline=None)
@given(length=st.integers(2, 6), low=st.integers(-5, 5), room=st.integers(0, 6))
def test_every_pattern_once(length: int, low: int, room: int) -> None:
    high = low + length - 1 + room
    patterns = ascending_descending(length, low, high)
    expected = {
        tuple(start + sign * i for i in range(length))
        for start in range(low, high + 1)
        for sign in (1, -1)
        if low <= start + sign * (length - 1) <= high
    }
    assert {tuple(row) for row in patterns.tolist()} == expected
    assert patterns.shape == (len(expected), length)


def test_toy_vectors_are_uniform_and_a_prefix_of_more() -> None:
    x = toy_vectors(10_000, seed=0)
    assert x.dtype == np.float32
    patterns, counts = np.unique(x, axis=0, return_counts=True)
    assert patterns.tolist() == sorted(ascending_descending().tolist())
    # Binomial(10,000, 0.1): 1,000 expected, standard deviation 30.
    assert counts.min() > 850
    assert counts.max() < 1150
    np.testing.assert_array_equal(toy_vectors(50, seed=0), x[:50])
    assert not np.array_equal(toy_vectors(50, seed=1), x[:50])
    assert toy_vectors(0, seed=0).shape == (0, 4)
    assert toy_vectors(3, seed=0, length=6, low=-9, high=9).shape == (3, 6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length": 1}, "length 1: a vector that rises or falls has at least 2 numbers"),
        ({"length": 9}, "low 0, high 7: the range holds fewer than length 9 numbers"),
        ({"count": -1}, "count -1, seed 0: neither may be negative"),
        ({"seed": -1}, "count 1, seed -1: neither may be negative"),
    ],
)
def test_toy_errors(options: dict[str, int], message: str) -> None:
    with pytest.raises(InputError) as caught:
        toy_vectors(**{"count": 1, "seed": 0, **options})
    assert str(caught.value) == message


def test_normalising_a_range() -> None:
    normaliser = Normaliser.of_range(3, 0, 7)
    x = np.float32([[0, 3.5, 7]])
    assert normaliser.normalise(x).tolist() == [[-1, 0, 1]]
    assert normaliser.normalise(x).dtype == np.float32
    assert normaliser.restore(np.float32([-1, 0, 1])).tolist() == [0, 3.5, 7]


@settings(deadline=None)
@given(matrices)
def test_normalising_inverts(x: np.ndarray) -> None:
    normaliser = Normaliser(**json.loads(json.dumps(asdict(Normaliser.fit(x)))))
    z = normaliser.normalise(x)
    low, high = x.min(axis=0), x.max(axis=0)
    assert np.all(np.abs(z) <= 1)
    assert np.all(z[:, low == high] == 0)
    assert np.all(z[x.argmax(axis=0), range(x.shape[1])] == np.where(low == high, 0, 1))
    assert np.all(z[x.argmin(axis=0), range(x.shape[1])] == np.where(low == high, 0, -1))
    # 2^-24 of the range for the rounding of z to 32 bits, as much of the value for that of x.
    tolerance = 2.0**-24 * (high.astype(float) - low.astype(float) + np.abs(x)) + 2.0**-149
    assert np.all(np.abs(normaliser.restore(z).astype(float) - x) <= tolerance)


def test_normalising_another_width() -> None:
    normaliser = Normaliser.of_range(4, 0, 7)
    for method in (normaliser.normalise, normaliser.restore):
        with pytest.raises(InputError, match=r"^vectors of 3 numbers, but the model was trained on 4$"):
            method(np.zeros((2, 3), np.float32))


@settings(deadline=None)
@given(matrices, st.booleans())
def test_vectors_read_back_as_written(x: np.ndarray, header: bool) -> None:
    names = [f"v{i}" for i in range(x.shape[1])]
    lines = [",".join(names)] if header else []
    lines += [",".join(f"{number:.9g}" for number in row) for row in x]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "v.csv")
        path.write_text("\n".join(lines) + "\n")
        table = read_vectors(path)
    np.testing.assert_array_equal(table.x, x)
    assert table.x.dtype == np.float32
    assert table.y is None
    assert table.columns == (names if header else [str(i + 1) for i in range(x.shape[1])])


def test_the_largest_32_bit_number(tmp_path: Path) -> None:
    path = tmp_path / "v.csv"
    path.write_text("3.4028235677973362e38\n")  # rounds down to it
    assert read_vectors(path).x.tolist() == [[float(np.finfo(np.float32).max)]]
    path.write_text("3.4028235677973362e38\nx\n")
    with pytest.raises(InputError, match=r"row 2 \(line 2\), column '1': 'x' is not a number$"):
        read_vectors(path)
    path.write_text("-3.4028235677973366e38\n")  # a tie, rounds to infinity
    with pytest.raises(InputError, match=r"'-3\.4028235677973366e38' is beyond the range of 32-bit numbers$"):
        read_vectors(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", ": the file is empty"),
        ("a,b\n", ": a header line, but no rows below it"),
        ("a,b\n1,2\n3,x\n", ", row 2 (line 3), column 'b': 'x' is not a number"),
        ("1,2\n3,x\n", ", row 2 (line 2), column '2': 'x' is not a number"),
        ("1,x\n3,4\n", ", row 1 (line 1), column '2': 'x' is not a number"),
        ("1,2\n\n3\n", ", row 2 (line 3): 1 cells, but there are 2 columns"),
        ("1,2\n3,4,5\n", ", row 2 (line 2): 3 cells, but there are 2 columns"),
        ("nan,2\n", ", row 1 (line 1), column '1': NaN; fill in or remove missing values first"),
        ("1,2\n3,inf\n", ", row 2 (line 2), column '2': 'inf' is not finite"),
        ("1,2\n3,\n", ", row 2 (line 2), column '2': the cell is empty; a number is needed"),
        ("a,a\n3,4\n", ": the column name 'a' occurs twice"),
        (b"1,2\n3,\xff\n", ", line 2: byte 0xff is not UTF-8; save the file as UTF-8"),
    ],
)
def test_reading_errors(tmp_path: Path, content: str | bytes, message: str) -> None:
    path = tmp_path / "v.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError) as caught:
        read_vectors(path)
    assert str(caught.value) == f"{path}{message}"


def test_no_vectors_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"/v\.csv: no such file$"):
        read_vectors(tmp_path / "v.csv")
    (tmp_path / "v.txt").write_text("1\n")
    with pytest.raises(InputError, match=r"/v\.txt: vectors are read from a \.csv file$"):
        read_vectors(tmp_path / "v.txt")
