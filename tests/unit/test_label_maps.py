"""Label map files as numbers, and folders of images and maps in their layouts; and what is wrong with them."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image

import parallel
from zoo_datasets.errors import InputError
from zoo_datasets.images_decode import BadImageError
from zoo_datasets.label_maps import load_label_maps
from zoo_datasets.label_maps_decode import read_label_map, read_pair, read_square, read_square_map
from zoo_datasets.label_maps_names import CITYSCAPES_IDS, CITYSCAPES_TRAIN_IDS
from zoo_datasets.segmented import MapFormat

FORMAT = MapFormat(19)


def save(path: Path, pixels, **options) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    image = pixels if isinstance(pixels, Image.Image) else Image.fromarray(np.asarray(pixels))
    image.save(path, **options)
    return path


def palette_image(labels: np.ndarray) -> Image.Image:
    """Places in a palette of any colours."""
    image = Image.new("P", labels.shape[::-1])
    image.putpalette(np.random.default_rng(0).integers(0, 256, 768, dtype=np.uint8).tobytes())
    image.putdata(labels.ravel().tolist())
    return image


def pair(folder: Path, name: str, labels, image_name: str | None = None) -> None:
    """An image that tells its place, and its label map."""
    labels = np.asarray(labels, dtype=np.uint8)
    save(folder / "labels" / f"{name}.png", labels)
    save(folder / "images" / (image_name or f"{name}.png"), np.repeat(labels[..., None] * 10, 3, axis=2))


# One file


@settings(max_examples=40)
@given(st.data(), st.integers(1, 9), st.integers(1, 9), st.sampled_from(["L", "P", "16 bits", "P2"]))
def test_labels_are_read_as_they_were_written(tmp_path_factory, data, height, width, mode):
    most = 1 if mode == "P2" else 18
    labels = np.array(
        data.draw(
            st.lists(st.integers(0, most), min_size=height * width, max_size=height * width), label="labels"
        )
    )
    labels = labels.reshape(height, width)
    path = tmp_path_factory.mktemp("maps") / "m.png"
    if mode == "16 bits":
        save(path, labels.astype(np.uint16))
    elif mode == "L":
        save(path, labels.astype(np.uint8))
    else:
        save(path, palette_image(labels), **({"bits": 1} if mode == "P2" else {}))
    found = read_label_map(path, FORMAT)
    assert found.dtype == np.int64
    assert np.array_equal(found, labels)


def test_a_black_and_white_map_and_a_map_of_one_label(tmp_path):
    labels = np.array([[True, False], [False, True]])
    assert np.array_equal(read_label_map(save(tmp_path / "bw.png", labels), MapFormat(2)), labels)
    one = read_label_map(save(tmp_path / "one.png", np.full((3, 4), 7, np.uint8)), FORMAT)
    assert np.array_equal(one, np.full((3, 4), 7))


def test_a_transparent_palette_is_read_by_its_places(tmp_path):
    labels = np.array([[0, 3], [2, 1]])
    path = save(tmp_path / "t.png", palette_image(labels), transparency=0)
    assert np.array_equal(read_label_map(path, FORMAT), labels)


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "LA"])
def test_colours_are_refused(tmp_path, mode):
    path = save(tmp_path / "c.png", Image.new(mode, (2, 2)))
    with pytest.raises(BadImageError, match=rf"c\.png: is an image of colours \(mode {mode}\), .* a palette"):
        read_label_map(path, FORMAT)


def test_a_format_that_changes_labels_is_refused(tmp_path):
    buffer = io.BytesIO()
    Image.new("L", (4, 4)).save(buffer, "JPEG")
    path = tmp_path / "j.png"
    path.write_bytes(buffer.getvalue())
    with pytest.raises(BadImageError, match=r"j\.png: is a JPEG file"):
        read_label_map(path, FORMAT)


@example(19, 255, False, 0)
@given(st.integers(1, 255), st.integers(0, 65535), st.booleans(), st.sampled_from([0, 1]))
@settings(max_examples=60)
def test_a_label_out_of_range_is_named_and_255_is_where_asked(
    tmp_path_factory, count, value, dont_care, first
):
    meaning = MapFormat(count, first, dont_care)
    path = save(tmp_path_factory.mktemp("maps") / "m.png", np.array([[first, value]], dtype=np.uint16))
    unlabelled = (value == 255 and dont_care) or (first == 1 and value == 0)
    if unlabelled:
        assert read_label_map(path, meaning).tolist() == [[0, 255]]
    elif first <= value < first + count:
        assert read_label_map(path, meaning).tolist() == [[0, value - first]]
    else:
        with pytest.raises(BadImageError) as caught:
            read_label_map(path, meaning)
        message = str(caught.value)
        assert message.startswith(f"{path}: holds the value {value}, but its {count} labels are {first} to ")
        assert ("or train with --dont-care" in message) == (value == 255)


@settings(max_examples=60)
@given(st.data())
def test_a_damaged_map_gives_labels_or_its_name(tmp_path_factory, data):
    buffer = io.BytesIO()
    palette_image(np.random.default_rng(1).integers(0, 19, (9, 9))).save(buffer, "PNG")
    content = bytearray(buffer.getvalue())
    if data.draw(st.booleans()):
        content = content[: data.draw(st.integers(0, len(content) - 1))]
    else:
        for _ in range(data.draw(st.integers(1, 5))):
            content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.mktemp("damaged") / "m.png"
    path.write_bytes(content)
    try:
        labels = read_label_map(path, FORMAT)
    except BadImageError as error:
        assert str(error).startswith(f"{path}: ") and "\n" not in str(error) and "skip-bad" not in str(error)
    else:
        assert labels.min() >= 0 and labels.max() <= 18


# One image with its map


@settings(max_examples=40)
@given(st.integers(1, 12), st.integers(1, 12), st.integers(1, 16))
def test_a_map_is_resized_by_the_nearest_pixel(tmp_path_factory, height, width, size):
    labels = np.random.default_rng(height * 13 + width).integers(0, 19, (height, width))
    path = save(tmp_path_factory.mktemp("maps") / "m.png", labels.astype(np.uint8))
    found = read_square_map(path, FORMAT, size)
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    square = Image.fromarray(labels[top : top + side, left : left + side].astype(np.uint8))
    pillows = np.asarray(square.resize((size, size), Image.Resampling.NEAREST))
    # Where a new centre lies between two pixels, either is the nearest, and Pillow's rounding decides.
    clear = (2 * np.arange(size) + 1) * side % (2 * size) != 0
    assert np.array_equal(found[clear][:, clear], pillows[clear][:, clear])
    assert set(found.ravel()) <= set(labels.ravel())


def test_image_and_map_stay_on_one_another(tmp_path):
    labels = np.zeros((40, 60), np.uint8)
    labels[10:30, 20:40] = 4  # in the middle square, a quarter from its edge
    pair(tmp_path, "a", labels)
    row = read_pair(tmp_path / "images" / "a.png", tmp_path / "labels" / "a.png", FORMAT, 16)
    assert row["image"].shape == (3, 16, 16) and row["labels"].shape == (16, 16)
    grey = (row["image"][0] + 1) * 127.5
    assert (row["labels"] == 4).sum() == 64
    assert grey[row["labels"] == 4].min() > 20 > grey[row["labels"] == 0].max()
    assert np.array_equal(read_square(tmp_path / "images" / "a.png", 16), row["image"])


def test_sizes_that_differ_are_named_with_both_files(tmp_path):
    image = save(tmp_path / "a.jpg", np.zeros((4, 6, 3), np.uint8))
    label_map = save(tmp_path / "a.png", np.zeros((4, 5), np.uint8))
    with pytest.raises(
        BadImageError, match=r"a\.jpg: is 6 x 4 pixels, and its label map .*a\.png is 5 x 4; make"
    ):
        read_pair(image, label_map, FORMAT, 4)


def test_modes_and_orientation_of_the_image(tmp_path):
    """As images elsewhere in the package are read; the map lies as the image is seen."""
    exif = Image.Exif()
    exif[0x0112] = 6
    image = Image.new("L", (3, 2))
    image.putpixel((0, 0), 255)
    path = save(tmp_path / "a.jpg", image, exif=exif, quality=100)
    label_map = save(tmp_path / "a.png", np.zeros((3, 2), np.uint8))
    row = read_pair(path, label_map, FORMAT, 2)
    assert row["image"].shape == (3, 2, 2)
    turned = save(tmp_path / "b.png", Image.new("L", (3, 2)), exif=exif)
    assert read_label_map(turned, FORMAT).shape == (3, 2)
    cmyk = save(tmp_path / "c.tif", Image.new("CMYK", (2, 3), (0, 255, 255, 0)))
    assert read_pair(cmyk, label_map, FORMAT, 1)["image"].ravel().tolist() == [1, -1, -1]


# Folders


def test_a_folder_of_pairs_is_split(tmp_path):
    for number in range(10):
        pair(tmp_path, f"{number:02d}", [[number]], f"{number:02d}.jpg" if number % 2 else None)
    data = load_label_maps(tmp_path, 2, labels=19)
    assert (len(data.train), len(data.eval)) == (8, 2)
    seen = [int(part[row]["labels"][0, 0]) for part in (data.train, data.eval) for row in range(len(part))]
    assert sorted(seen) == list(range(10))
    assert data.names[3] == "3"
    assert Path(data.train.name(0)).name.startswith("0")
    again = load_label_maps(tmp_path, 2, labels=19)
    assert [again.eval.name(row) for row in range(2)] == [data.eval.name(row) for row in range(2)]


def test_the_preparation_that_official_sean_trains_on(tmp_path):
    for number, split in enumerate(("train", "train", "test")):
        pair(tmp_path / split, str(number), [[number, 255]])
    (tmp_path / "labels.txt").write_text("background\nskin\nnose\n", encoding="utf-8")
    data = load_label_maps(str(tmp_path), 1, dont_care=True)
    assert data.names == ("background", "skin", "nose")
    assert (len(data.train), len(data.eval)) == (2, 1)
    assert data.eval[0]["labels"].tolist() == [[2]]


def test_ade20k(tmp_path):
    for split, name in (("training", "t"), ("validation", "v")):
        save(tmp_path / "images" / split / f"{name}.jpg", np.zeros((1, 1, 3), np.uint8))
        save(tmp_path / "annotations" / split / f"{name}.png", np.array([[150]], np.uint8))
    data = load_label_maps(tmp_path, 1)
    assert len(data.names) == 150
    assert data.eval[0]["labels"].tolist() == [[149]]
    save(tmp_path / "annotations" / "training" / "t.png", np.array([[0]], np.uint8))
    assert data.train[0]["labels"].tolist() == [[255]]
    save(tmp_path / "annotations" / "training" / "t.png", np.array([[151]], np.uint8))
    with pytest.raises(InputError, match="holds the value 151, but its 150 labels are 1 to 150"):
        data.train[0]


@pytest.mark.parametrize("kind", ["labelIds", "labelTrainIds"])
def test_cityscapes(tmp_path, kind):
    for split in ("train", "val"):
        name = f"{split}/ulm/ulm_000000_000019"
        save(tmp_path / "leftImg8bit" / f"{name}_leftImg8bit.png", np.zeros((1, 2, 3), np.uint8))
        for other in {"labelIds", kind}:
            save(tmp_path / "gtFine" / f"{name}_gtFine_{other}.png", np.array([[18, 255]], np.uint8))
        save(tmp_path / "gtFine" / f"{name}_gtFine_color.png", np.zeros((1, 2, 3), np.uint8))
    data = load_label_maps(tmp_path, 1)
    assert data.names == (CITYSCAPES_TRAIN_IDS if kind == "labelTrainIds" else CITYSCAPES_IDS)
    assert (len(data.train), len(data.eval)) == (1, 1)
    assert data.eval[0]["labels"].tolist() == [[18]]
    assert read_label_map(data.train.pairs[0][1], data.train.map_format).tolist() == [[18, 255]]


def test_names_that_are_known_of_cityscapes():
    assert (len(CITYSCAPES_IDS), len(CITYSCAPES_TRAIN_IDS)) == (34, 19)
    assert set(CITYSCAPES_TRAIN_IDS) < set(CITYSCAPES_IDS)
    assert [CITYSCAPES_IDS.index(name) for name in CITYSCAPES_TRAIN_IDS][:8] == [7, 8, 11, 12, 13, 17, 19, 20]


def test_generated_scenes_where_there_is_no_data():
    data = load_label_maps(None, 8, labels=10)
    assert data.names[7:] == ("ring", "8", "9")
    assert data.eval.names == data.names
    with pytest.raises(InputError, match="--labels 7: scenes has 8 labels"):
        load_label_maps(None, 8, labels=7)


def test_unpaired_files_are_named(tmp_path):
    pair(tmp_path, "a", [[0]])
    pair(tmp_path, "b", [[0]])
    (tmp_path / "labels" / "b.png").unlink()
    with pytest.raises(InputError, match=r"images: 'b\.png': no label map in .*labels of that name"):
        load_label_maps(tmp_path, 1, labels=2)
    (tmp_path / "images" / "b.png").unlink()
    save(tmp_path / "labels" / "deep" / "c.png", np.zeros((1, 1), np.uint8))
    with pytest.raises(InputError, match=r"labels: 'deep/c\.png': no image in .*images of that name"):
        load_label_maps(tmp_path, 1, labels=2)


def test_what_is_wrong_with_a_folder(tmp_path):
    with pytest.raises(InputError, match="no folder 'nowhere'"):
        load_label_maps("nowhere", 1)
    with pytest.raises(InputError, match="holds no images with label maps; they may lie as images/"):
        load_label_maps(tmp_path, 1)
    (tmp_path / "images").mkdir()
    (tmp_path / "labels").mkdir()
    with pytest.raises(InputError, match="images: holds no image"):
        load_label_maps(tmp_path, 1)
    pair(tmp_path, "a", [[0]])
    with pytest.raises(InputError, match="nothing says how many labels there are; give --labels N"):
        load_label_maps(tmp_path, 1)
    with pytest.raises(InputError, match="needs two images or more"):
        load_label_maps(tmp_path, 1, labels=2)
    with pytest.raises(InputError, match="--labels 256: may be 1 to 255"):
        load_label_maps(tmp_path, 1, labels=256)
    save(tmp_path / "images" / "a.jpg", np.zeros((1, 1, 3), np.uint8))
    with pytest.raises(InputError, match=r"images/a\.png: has the name of a\.jpg but for its ending"):
        load_label_maps(tmp_path, 1, labels=2)


def test_what_is_wrong_with_a_split_folder(tmp_path):
    pair(tmp_path / "train", "a", [[0]])
    with pytest.raises(InputError, match="beside train it needs one folder of eval, val, test; it has none"):
        load_label_maps(tmp_path, 1, labels=2)
    (tmp_path / "val" / "images").mkdir(parents=True)
    with pytest.raises(InputError, match="val/labels: no such folder"):
        load_label_maps(tmp_path, 1, labels=2)


def test_a_link_that_leads_nowhere_is_named(tmp_path):
    for name in "abc":
        pair(tmp_path, name, [[0]])
    (tmp_path / "images" / "deep.png").mkdir()  # no image
    assert len(load_label_maps(tmp_path, 1, labels=2).train) == 2
    for kind in ("images", "labels"):
        link = tmp_path / kind / "b.png"
        link.rename(tmp_path / "moved.png")
        link.symlink_to("nowhere.png")
        with pytest.raises(
            InputError, match=rf"{kind}/b\.png: is a link that leads nowhere; repair or remove it"
        ):
            load_label_maps(tmp_path, 1, labels=2)
        link.unlink()
        link.symlink_to(tmp_path / "moved.png")
        load_label_maps(tmp_path, 1, labels=2)
    (tmp_path / "labels.txt").symlink_to("nowhere.txt")
    with pytest.raises(InputError, match=r"labels\.txt: cannot be read \(No such file"):
        load_label_maps(tmp_path, 1, labels=2)


def test_names_after_a_byte_order_mark(tmp_path):
    pair(tmp_path, "a", [[0]])
    pair(tmp_path, "b", [[0]])
    (tmp_path / "labels.txt").write_text("sky\nground\n", encoding="utf-8-sig")
    assert load_label_maps(tmp_path, 1).names == ("sky", "ground")


@pytest.mark.parametrize(
    ("names", "known", "message"),
    [
        (None, ("sky", "tree"), ""),
        (("sky", "tree"), ("sky", "tree"), ""),
        (("sky", "1"), ("0", "tree"), ""),
        (("sky",), ("sky", "1"), ""),
        (
            ("tree", "sky"),
            ("sky", "tree"),
            "label 0 is 'tree', and the model's is 'sky'; number the labels, and",
        ),
        (("sky", "tree"), ("sky", "sea", "2"), "label 1 is 'tree', and the model's is 'sea'"),
        (("sky", "tree"), ("sky",), "has 2 labels, and the model 1"),
        (("sky",), ("sky", "tree"), "has 1 labels, and the model 2"),
    ],
)
def test_data_for_a_model_that_knows_its_labels(tmp_path, names, known, message):
    """Names are compared but for those that are made up; no option is asked for."""
    pair(tmp_path, "a", [[0]])
    pair(tmp_path, "b", [[0]])
    if names is not None:
        (tmp_path / "labels.txt").write_text("\n".join(names), encoding="utf-8")
    if not message:
        assert load_label_maps(tmp_path, 1, known=known).names == known
        return
    with pytest.raises(InputError, match=f"^{tmp_path}: {message}") as caught:
        load_label_maps(tmp_path, 1, known=known)
    assert "--" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a\n\nb\n", "line 2: is empty"),
        (b"a\nb\na\n", "line 3: the name 'a' is there twice"),
        (b"", "lists 0 labels"),
        ("\n".join(map(str, range(256))).encode(), "lists 256 labels"),
        (b"\xff\xfe\x00", "it is not UTF-8 text"),
    ],
)
def test_what_is_wrong_with_names(tmp_path, content, message):
    (tmp_path / "labels.txt").write_bytes(content)
    with pytest.raises(InputError, match=message):
        load_label_maps(tmp_path, 1)


def test_a_bad_file_is_named_wherever_a_loader_reads_it(tmp_path):
    pair(tmp_path / "train", "a", [[0]])
    pair(tmp_path / "train", "b", [[9]])
    pair(tmp_path / "test", "a", [[0]])
    data = load_label_maps(tmp_path, 1, labels=3)
    for workers in (0, 1):
        with pytest.raises(InputError) as caught:
            parallel.launch(_read_all, "single", data.train, workers)
        assert str(caught.value) == (
            f"{tmp_path}/train/labels/b.png: holds the value 9, but its 3 labels are 0 to 2"
        )


def _read_all(p, data, workers):
    return [len(batch) for batch in p.loader(data, 2, workers=workers)]
