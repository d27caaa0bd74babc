"""Image files of every mode as pixels, and damaged ones by name."""

from __future__ import annotations

import io
import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from zoo_datasets.images_decode import BadImageError, read_image
from zoo_datasets.images_types import as_channels

RED, BLUE = (200, 30, 10), (0, 0, 250)


def save(path: Path, image: Image.Image, **options: object) -> Path:
    image.save(path, **options)
    return path


def test_rgb_and_grey(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    path = save(tmp_path / "a.png", Image.fromarray(pixels))
    assert np.array_equal(read_image(path, 3), pixels.transpose(2, 0, 1))
    luma = pixels @ np.array([0.299, 0.587, 0.114])
    assert np.abs(read_image(path, 1)[0] - luma).max() <= 0.51
    grey = save(tmp_path / "g.png", Image.fromarray(pixels[..., 0]))
    assert np.array_equal(read_image(grey, 1)[0], pixels[..., 0])
    assert np.array_equal(read_image(grey, 3), np.stack([pixels[..., 0]] * 3))


def test_arrays_become_grey_as_files_do(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (40, 50, 3), dtype=np.uint8)
    path = save(tmp_path / "a.png", Image.fromarray(pixels))
    assert np.array_equal(as_channels(pixels.transpose(2, 0, 1)[None], 1)[0], read_image(path, 1))


def test_transparency_lies_over_white(tmp_path):
    image = Image.new("RGBA", (3, 1), (*RED, 255))
    image.putpixel((1, 0), (*BLUE, 0))
    image.putpixel((2, 0), (0, 0, 0, 51))  # a fifth black
    got = read_image(save(tmp_path / "a.png", image), 3)[:, 0].T
    assert got.tolist() == [list(RED), [255, 255, 255], [204, 204, 204]]
    grey = save(
        tmp_path / "la.png", Image.merge("LA", [Image.new("L", (2, 1), 100), Image.new("L", (2, 1), 0)])
    )
    assert read_image(grey, 1).tolist() == [[[255, 255]]]


def test_palettes_are_looked_up(tmp_path):
    image = Image.new("P", (2, 1))
    image.putpalette([*RED, *BLUE])
    image.putpixel((1, 0), 1)
    path = save(tmp_path / "p.png", image)
    assert read_image(path, 3)[:, 0].T.tolist() == [list(RED), list(BLUE)]
    path = save(tmp_path / "t.png", image, transparency=1)
    assert read_image(path, 3)[:, 0].T.tolist() == [list(RED), [255, 255, 255]]


def test_cmyk(tmp_path):
    path = save(
        tmp_path / "c.tif", Image.new("CMYK", (2, 2), (0, 255, 255, 0))
    )  # magenta and yellow make red
    assert read_image(path, 3)[:, 0, 0].tolist() == [255, 0, 0]


def test_16_bits_become_8(tmp_path):
    values = np.array([[0, 257, 32896, 65535]], dtype=np.uint16)
    assert read_image(save(tmp_path / "i.png", Image.fromarray(values)), 1).tolist() == [[[0, 1, 128, 255]]]


def test_a_mode_without_a_range_is_refused(tmp_path):
    path = save(tmp_path / "f.tif", Image.fromarray(np.ones((2, 2), dtype=np.float32)))
    with pytest.raises(BadImageError, match=r"f\.tif: .*mode 'F' has no agreed range"):
        read_image(path, 3)


def test_the_orientation_tag_is_obeyed(tmp_path):
    image = Image.new("L", (3, 2))
    image.putpixel((0, 0), 255)
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned clockwise
    got = read_image(save(tmp_path / "o.png", image, exif=exif), 1)[0]
    assert got.shape == (3, 2)
    assert got[0, 1] == 255 and got.sum() == 255


def test_the_first_of_several_frames(tmp_path):
    frames = [Image.new("RGB", (2, 2), colour) for colour in (RED, BLUE)]
    frames[0].save(tmp_path / "a.tiff", save_all=True, append_images=frames[1:])
    assert read_image(tmp_path / "a.tiff", 3)[:, 0, 0].tolist() == list(RED)


@pytest.mark.parametrize("channels", [1, 3])
@settings(max_examples=60, deadline=None)
@given(st.sampled_from(["PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP"]), st.data())
def test_damage_gives_pixels_or_the_name_of_the_file(tmp_path_factory, channels, kind, data):
    image = Image.fromarray(np.random.default_rng(1).integers(0, 256, (9, 9, 3), dtype=np.uint8))
    buffer = io.BytesIO()
    image.save(buffer, kind)
    content = bytearray(buffer.getvalue())
    if data.draw(st.booleans()):
        content = content[: data.draw(st.integers(0, len(content) - 1))]
    else:
        for _ in range(data.draw(st.integers(1, 5))):
            content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.mktemp("damaged") / f"image.{kind.lower()}"
    path.write_bytes(content)
    try:
        pixels = read_image(path, channels)
    except BadImageError as error:
        assert str(error).startswith(f"{path}: ") and "\n" not in str(error)
    else:
        assert pixels.dtype == np.uint8 and pixels.shape[0] == channels


def test_a_file_is_named_once(tmp_path):
    (tmp_path / "x.png").write_bytes(b"nonsense")
    with pytest.raises(
        BadImageError, match=r"^\S*x\.png: no image that can be read \(of no known kind\); repair"
    ):
        read_image(tmp_path / "x.png", 3)


def test_an_empty_file_and_a_folder_are_called_so(tmp_path):
    (tmp_path / "x.png").touch()
    (tmp_path / "y.png").mkdir()
    for name, reason in (("x", "it is empty"), ("y", "Is a directory")):
        with pytest.raises(
            BadImageError, match=rf"^\S*{name}\.png: no image that can be read \({reason}\); repair"
        ):
            read_image(tmp_path / f"{name}.png", 3)


def test_a_worker_s_traceback_is_left_out_of_the_message():
    error = BadImageError("a.png: no image")
    assert str(pickle.loads(pickle.dumps(error))) == "a.png: no image"
    name = f"{BadImageError.__module__}.BadImageError"
    carried = f"Caught BadImageError in DataLoader worker process 0.\nOriginal Traceback ...\n{name}: a.png: no image\n"
    assert str(BadImageError(carried)) == "a.png: no image"
