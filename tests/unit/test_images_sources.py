"""Where images come from: names, folders, CIFAR's files; and what is wrong with them."""

from __future__ import annotations

import hashlib
import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from sklearn.datasets import load_digits

from zoo_datasets.errors import InputError
from zoo_datasets.images import load_images
from zoo_datasets.images_check import bad_rows, without_rows
from zoo_datasets.images_split import split_classes


def write(path: Path, value: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", (4, 4), value).save(path)


def folder_of(root: Path, sizes: dict[str, int], start: int = 0) -> Path:
    for number, (name, size) in enumerate(sizes.items()):
        for image in range(size):
            write(root / name / f"{image:02d}.png", start + 50 * number + image)
    return root


def test_digits_are_scikit_learns():
    data = load_images(seed=3)
    bunch = load_digits()
    known = {
        image.astype(int).tobytes(): target for image, target in zip(bunch.images, bunch.target, strict=True)
    }
    assert len(data.train) + len(data.eval) == len(bunch.target) == 1797
    assert len(data.eval) == pytest.approx(1797 / 5, abs=2)
    for images in (data.train, data.eval):
        for row in range(0, len(images), 50):
            greys = np.rint(images.read(row, 1)[0].astype(float) * (16 / 255)).astype(int)
            assert known[greys.tobytes()] == images.labels[row]


def test_some_classes_are_numbered_anew():
    whole, half = load_images("digits"), load_images("digits:5-9")
    assert half.classes == ["5", "6", "7", "8", "9"]
    counts = np.bincount(np.concatenate([whole.train.labels, whole.eval.labels]))[5:]
    assert np.array_equal(np.bincount(np.concatenate([half.train.labels, half.eval.labels])), counts)


@pytest.mark.parametrize("name", ["digits:5-10", "digits:4-4", "digits:6-2"])
def test_classes_that_are_not_there(name):
    with pytest.raises(InputError, match="give at least two of its classes, 0 to 9"):
        load_images(name)


def test_a_folder_is_split(tmp_path):
    data = load_images(folder_of(tmp_path / "pets", {"cat": 10, "ape": 5}), seed=1)
    assert data.classes == ["ape", "cat"]
    assert np.bincount(data.eval.labels).tolist() == [1, 2]
    values = sorted(
        int(part.read(row, 1)[0, 0, 0]) for part in (data.train, data.eval) for row in range(len(part))
    )
    assert values == [*range(10), *range(50, 55)]
    assert all(
        (data.train.read(row, 1)[0, 0, 0] < 50) == label for row, label in enumerate(data.train.labels)
    )


@pytest.mark.parametrize("name", ["eval", "val", "test"])
def test_a_folder_that_is_split_already(tmp_path, name):
    folder_of(tmp_path / "train", {"a": 3, "b": 3})
    folder_of(tmp_path / name, {"b": 2}, start=200)
    data = load_images(tmp_path)
    assert len(data.train) == 6
    assert data.eval.labels.tolist() == [1, 1]


def test_folders_below_a_class_and_other_files(tmp_path):
    folder_of(tmp_path, {"a": 2, "b": 2})
    write(tmp_path / "a" / "more" / "x.PNG", 7)
    (tmp_path / "a" / "notes.txt").write_text("no image")
    (tmp_path / ".hidden").mkdir()
    data = load_images(tmp_path)
    assert len(data.train) + len(data.eval) == 5


def test_what_is_wrong_with_a_folder(tmp_path):
    with pytest.raises(InputError, match=r"no data set or folder 'digit'; did you mean digits\?"):
        load_images("digit")
    with pytest.raises(
        InputError, match=r"'digits:3': give classes of digits by their first and last, as in"
    ):
        load_images("digits:3")
    with pytest.raises(
        InputError, match="needs two folders of images or more, one a class; it has no folders"
    ):
        load_images(tmp_path)
    folder_of(tmp_path, {"a": 2})
    with pytest.raises(InputError, match="it has only the class 'a'"):
        load_images(tmp_path)
    (tmp_path / "b").mkdir()
    with pytest.raises(InputError, match="the class 'b' holds no image"):
        load_images(tmp_path)
    write(tmp_path / "b" / "0.png", 1)
    with pytest.raises(InputError, match="the class 'b' needs two images or more"):
        load_images(tmp_path)
    with pytest.raises(InputError, match="is a file; give a folder"):
        load_images(tmp_path / "b" / "0.png")


def test_what_is_wrong_with_a_split_folder(tmp_path):
    folder_of(tmp_path / "train", {"a": 2, "b": 2})
    with pytest.raises(InputError, match="beside train it needs one folder of eval, val, test; it has none"):
        load_images(tmp_path)
    folder_of(tmp_path / "val", {"c": 1})
    with pytest.raises(InputError, match="'c' is no class of"):
        load_images(tmp_path)
    folder_of(tmp_path / "test", {"a": 1})
    with pytest.raises(InputError, match="it has val and test"):
        load_images(tmp_path)


def test_bad_images_are_counted_and_left_out(tmp_path):
    data = load_images(folder_of(tmp_path, {"a": 5, "b": 5}))
    Path(data.train.name(2)).write_bytes(b"no image")
    assert bad_rows(data.train) == [2]
    kept = without_rows(data.train, [2])
    assert kept.labels.tolist() == np.delete(data.train.labels, 2).tolist()
    assert kept.name(2) == data.train.name(3)
    with pytest.raises(InputError, match="no image of the class 'a' can be read"):
        without_rows(data.train, np.flatnonzero(data.train.labels == 0).tolist())


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(2, 9), min_size=2, max_size=5), st.floats(0.05, 0.95), st.integers(0, 2**31))
def test_a_split_takes_every_row_once_and_each_class_alike(counts, fraction, seed):
    labels = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(counts)), counts))
    names = [str(number) for number in range(len(counts))]
    train, evaluation = split_classes(labels, names, fraction, seed, "data")
    assert sorted([*train, *evaluation]) == list(range(len(labels)))
    for label, count in enumerate(counts):
        own = int((labels[evaluation] == label).sum())
        assert 1 <= own < count and abs(own - fraction * count) <= 1
    again = split_classes(labels, names, fraction, seed, "data")
    assert np.array_equal(again[0], train)


def cifar(root: Path, monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    """CIFAR-10's files in small, with their own checksums in torchvision's list."""
    from torchvision.datasets import CIFAR10

    pixels = np.random.default_rng(0).integers(0, 256, (12, 3072), dtype=np.uint8)
    base = root / CIFAR10.base_folder
    base.mkdir(parents=True)
    names = [f"data_batch_{number}" for number in range(1, 6)]

    def dump(name: str, content: object) -> list[str]:
        (base / name).write_bytes(pickle.dumps(content))
        return [name, hashlib.md5((base / name).read_bytes()).hexdigest()]

    parts = [
        dump(name, {"data": pixels[2 * n : 2 * n + 2], "labels": [n, 9 - n]}) for n, name in enumerate(names)
    ]
    monkeypatch.setattr(CIFAR10, "train_list", parts)
    monkeypatch.setattr(CIFAR10, "test_list", [dump("test_batch", {"data": pixels[10:], "labels": [3, 4]})])
    meta = dump("batches.meta", {"label_names": [f"class {n}" for n in range(10)]})
    monkeypatch.setattr(CIFAR10, "meta", {"filename": meta[0], "key": "label_names", "md5": meta[1]})
    return pixels


@pytest.mark.parametrize("below", [True, False])
def test_cifar_where_it_lies(tmp_path, monkeypatch, below):
    pixels = cifar(tmp_path, monkeypatch)
    data = load_images(tmp_path if below else tmp_path / "cifar-10-batches-py")
    assert data.train.labels.tolist() == [0, 9, 1, 8, 2, 7, 3, 6, 4, 5]
    assert data.eval.labels.tolist() == [3, 4]
    assert data.classes[9] == "class 9"
    assert np.array_equal(data.train.read(3, 3), pixels[3].reshape(3, 32, 32))


def test_cifar_is_not_unpickled_when_its_checksum_is_another(tmp_path, monkeypatch):
    cifar(tmp_path, monkeypatch)
    marker = tmp_path / "ran"

    class Crafted:
        def __reduce__(self) -> object:
            return Path.touch, (marker,)

    (tmp_path / "cifar-10-batches-py" / "data_batch_3").write_bytes(pickle.dumps(Crafted()))
    with pytest.raises(InputError, match="are not those that were published"):
        load_images(tmp_path)
    assert not marker.exists()


def test_cifar_that_cannot_be_downloaded(tmp_path, monkeypatch):
    from torchvision.datasets import CIFAR10

    monkeypatch.setenv("ZOO_CACHE", str(tmp_path))
    monkeypatch.setattr(CIFAR10, "url", "http://127.0.0.1:9/cifar.tar.gz")
    with pytest.raises(InputError, match=r"cifar10: cannot be downloaded into .*give its folder as --data"):
        load_images("cifar10")


def test_hidden_files_are_passed_over_and_a_link_that_leads_nowhere_is_named(tmp_path):
    folder = folder_of(tmp_path, {"a": 3, "b": 3})
    (folder / "a" / "._00.png").write_text("of a file system")
    (folder / "a" / "x.png").mkdir()
    data = load_images(str(folder))
    assert len(data.train) + len(data.eval) == 6
    (folder / "b" / "03.png").symlink_to("nowhere.png")
    with pytest.raises(InputError, match=r"b/03\.png: is a link that leads nowhere; repair or remove it"):
        load_images(str(folder))
