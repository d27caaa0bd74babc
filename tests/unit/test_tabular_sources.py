"""Where tabular data comes from: names, files, folders, downloads."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import numpy as np
import pytest
from scipy.spatial.distance import cdist
from sklearn.datasets import load_breast_cancer
from sklearn.preprocessing import MinMaxScaler

from zoo_datasets import NAMED, InputError, TabularData, load_tabular, sources
from zoo_datasets.download import fetch


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("ZOO_CACHE", str(folder))
    return folder


def counts(data: TabularData) -> tuple[int, int, int, int]:
    """Rows and anomalies of the training part, then of the evaluation part."""
    assert data.train.y is not None
    assert data.eval.y is not None
    return len(data.train), int(data.train.y.sum()), len(data.eval), int(data.eval.y.sum())


def test_default_is_breast_cancer_thinned_to_a_twentieth() -> None:
    data = load_tabular(None, seed=3)
    assert counts(data) == (301, 15, 75, 4)
    assert data.train.columns == data.eval.columns == load_breast_cancer().feature_names.tolist()
    assert data.train.x.dtype == data.eval.x.dtype == np.float32
    np.testing.assert_array_equal(data.train.x.min(axis=0), 0)
    np.testing.assert_array_equal(data.train.x.max(axis=0), 1)


def test_default_is_scikit_learns_data_by_class() -> None:
    """In scikit-learn's units, the rows are all its benign ones and some malignant ones."""
    bunch = load_breast_cancer()
    benign, malignant = bunch.data[bunch.target == 1], bunch.data[bunch.target == 0]
    data = load_tabular("breast-cancer", seed=1)
    x, y = np.concatenate([data.train.x, data.eval.x]), np.concatenate([data.train.y, data.eval.y])
    unscale = MinMaxScaler().fit(x[y == 0])  # both sides have all benign rows, so the same range of them
    units = MinMaxScaler().fit(benign)
    distances = cdist(unscale.transform(x), units.transform(np.concatenate([benign, malignant])))
    nearest = distances.argmin(axis=1)
    assert distances.min(axis=1).max() < 1e-4
    assert sorted(nearest[y == 0]) == list(range(357))
    assert len(set(nearest[y == 1])) == 19
    assert nearest[y == 1].min() >= 357


def test_same_seed_same_rows_and_same_anomalies_for_any_seed() -> None:
    one, again, other = (load_tabular(None, seed=seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(one.train.x, again.train.x)
    np.testing.assert_array_equal(one.eval.y, again.eval.y)
    assert one.train.x.shape == other.train.x.shape
    assert not np.array_equal(one.train.x, other.train.x)


def test_file_is_split_each_class_alike(reference: Path) -> None:
    path = reference / "devnet" / "annthyroid_21feat_normalised.csv"
    data = load_tabular(path, seed=5)
    assert counts(data) == (5760, 427, 1440, 107)
    assert data.train.source == f"{path} (training rows)"


def test_folder(reference: Path) -> None:
    data = load_tabular(str(reference / "devnet" / "split"))
    assert counts(data) == (5760, 427, 1440, 107)


def test_folder_lines_up_columns(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("a,b,kind\n1,2,0\n3,4,1\n")
    (tmp_path / "eval.csv").write_text("kind,b,a\n1,6,5\n0,8,7\n")
    data = load_tabular(tmp_path, label="kind")
    assert data.train.x.tolist() == [[1, 2], [3, 4]]
    assert data.eval.x.tolist() == [[5, 6], [7, 8]]
    (tmp_path / "eval.csv").write_text("kind,b,c\n1,6,5\n0,8,7\n")
    with pytest.raises(InputError, match=r"eval\.csv: .*: missing 'a'; unknown 'c'$"):
        load_tabular(tmp_path, label="kind")


def test_folder_of_libsvm_files_of_different_width(tmp_path: Path) -> None:
    (tmp_path / "train.svm").write_text("1 1:1 10:4\n-1 2:3\n")
    (tmp_path / "eval.svm").write_text("1 2:5\n-1 12:7\n")
    data = load_tabular(tmp_path)
    assert data.train.columns == data.eval.columns == [str(i) for i in range(1, 13)]
    assert data.train.x.toarray()[0].tolist() == [1, *[0] * 8, 4, 0, 0]
    assert data.eval.x.toarray()[1].tolist() == [*[0] * 11, 7]


def test_folder_errors(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"needs one train file of \.csv, .*; it has none$"):
        load_tabular(tmp_path)
    (tmp_path / "train.csv").write_text("a,class\n1,0\n2,1\n")
    with pytest.raises(InputError, match=r"needs one eval file of \.csv, .*; it has none$"):
        load_tabular(tmp_path)
    (tmp_path / "eval.csv").write_text("a,class\n1,0\n2,0\n")
    with pytest.raises(InputError, match=r"eval\.csv: no anomaly among its 2 rows"):
        load_tabular(tmp_path)
    (tmp_path / "train.svm").write_text("1 1:2\n")
    with pytest.raises(InputError, match=r"it has train\.csv, train\.svm$"):
        load_tabular(tmp_path)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("1,0\n2,0\n", "no anomaly among its 2 rows"),
        ("1,1\n2,1\n", "only anomalies, all 2 rows"),
        (
            "1,0\n2,0\n3,1\n",
            "the split needs at least 2 anomalies, one for each part; there are 1",
        ),
    ],
)
def test_classes_of_a_file(tmp_path: Path, rows: str, message: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text("a,class\n" + rows)
    with pytest.raises(InputError) as caught:
        load_tabular(path)
    assert str(caught.value).startswith(f"{path}: {message}")


def test_names() -> None:
    assert list(NAMED) == ["breast-cancer", "annthyroid"]
    near = (
        r"^no data set, file or folder 'anthyroid'; did you mean annthyroid\? \(names: breast-cancer, annth"
    )
    with pytest.raises(InputError, match=near):
        load_tabular("anthyroid")
    with pytest.raises(InputError, match=r"^no data set, file or folder 'zzz' \(names"):
        load_tabular("zzz")
    with pytest.raises(InputError, match=r"^some/where\.csv: no such file$"):
        load_tabular("some/where.csv")
    with pytest.raises(InputError, match=r"^annthyroid has its own labels; leave out --label kind$"):
        load_tabular("annthyroid", label="kind")


def test_annthyroid_put_there_by_hand(reference: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "ANNTHYROID_URL", "file:///nowhere")
    cache.mkdir()
    shutil.copy(reference / "devnet" / "annthyroid_21feat_normalised.csv", cache)
    data = load_tabular("annthyroid", seed=0)
    assert counts(data) == (5760, 427, 1440, 107)
    assert data.train.x.shape == (5760, 21)


def test_annthyroid_is_downloaded_once(
    reference: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    published = tmp_path / "published.csv"
    shutil.copy(reference / "devnet" / "annthyroid_21feat_normalised.csv", published)
    monkeypatch.setattr(sources, "ANNTHYROID_URL", published.as_uri())
    first = load_tabular("annthyroid")
    assert [path.name for path in cache.iterdir()] == ["annthyroid_21feat_normalised.csv"]
    published.unlink()
    np.testing.assert_array_equal(load_tabular("annthyroid").train.x, first.train.x)


def test_annthyroid_offline_says_where_to_put_it(
    cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sources, "ANNTHYROID_URL", (tmp_path / "absent").as_uri())
    with pytest.raises(InputError) as caught:
        load_tabular("annthyroid")
    message = str(caught.value)
    assert message.startswith(f"cannot download file://{tmp_path}/absent (")
    assert message.endswith(f"; fetch it elsewhere and put it at {cache}/annthyroid_21feat_normalised.csv")
    assert "\n" not in message
    assert list(cache.iterdir()) == []


def test_published_address() -> None:
    assert sources.ANNTHYROID_URL.startswith("https://raw.githubusercontent.com/GuansongPang/ADRepository-")


def test_wrong_checksums(tmp_path: Path, cache: Path) -> None:
    published = tmp_path / "published"
    published.write_bytes(b"content")
    good = hashlib.sha256(b"content").hexdigest()
    with pytest.raises(InputError, match=r"^file://.* is no longer the published file \(SHA-256 ed7002b4"):
        fetch(published.as_uri(), "0" * 64, cache / "file")
    assert list(cache.iterdir()) == []
    assert fetch(published.as_uri(), good, cache / "file").read_bytes() == b"content"
    (cache / "file").write_bytes(b"altered")
    with pytest.raises(InputError, match=r"/cache/file is not the published file; remove it to download it"):
        fetch(published.as_uri(), good, cache / "file")


def test_cache_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "taken").write_bytes(b"")
    with pytest.raises(InputError, match=r"/taken: cannot keep the download there .*ZOO_CACHE$"):
        fetch("file:///nowhere", "", tmp_path / "taken" / "file")
