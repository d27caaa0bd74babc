"""One image file as pixels, whatever its mode."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from zoo_datasets.errors import InputError, shown

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["SUFFIXES", "BadImageError", "opened_image", "read_image"]

SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")


class BadImageError(InputError):
    """A file that holds no image, or label map, that can be used."""

    def __init__(self, message: str) -> None:
        # A data loader hands over its worker's whole traceback: the message is its last line.
        last = message.strip().splitlines()[-1]
        super().__init__(last.removeprefix(f"{__name__}.{type(self).__qualname__}: "))


REMEDY = "repair or remove it"


def read_image(path: Path, channels: int, remedy: str = REMEDY) -> np.ndarray:
    """An image, uint8 [channels, height, width].

    Palettes are looked up, CMYK is converted, transparency is laid over white, 16 bits become 8, and a camera's
    orientation tag is obeyed. Of several frames the first is taken.

    Args:
        channels: 1 for grey, 3 for RGB.
        remedy: what the message says to do about a bad file.

    Raises:
        BadImageError: damaged, no image, or of a mode that has no agreed range; names the file.
    """
    from PIL import ImageOps

    with opened_image(path, remedy) as file:
        image = _as_8_bits(ImageOps.exif_transpose(file))
        pixels = np.array(image.convert("L" if channels == 1 else "RGB"))
    return np.ascontiguousarray(pixels[None] if channels == 1 else pixels.transpose(2, 0, 1))


@contextmanager
def opened_image(path: Path, remedy: str = REMEDY) -> Iterator[Image]:
    """An image file, not decoded yet; what goes wrong on the way becomes an error that names it.

    Raises:
        BadImageError: see :func:`read_image`.
    """
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(path) as file:
            yield file
    except BadImageError:
        raise
    except FileNotFoundError:
        raise BadImageError(f"{path}: no such file") from None
    except Exception as error:  # on garbage the decoders raise whatever comes up
        text = getattr(error, "strerror", None) or str(error)  # of the system, without its number and path
        if isinstance(error, UnidentifiedImageError):
            text = "of no known kind" if path.stat().st_size else "it is empty"
        reason = " ".join(text.split()) or type(error).__name__
        reason = reason.replace(repr(str(path)), "it").replace(str(path), "it")
        raise BadImageError(f"{path}: no image that can be read ({reason}); {remedy}") from None


def _as_8_bits(image: Image) -> Image:
    """The image in a mode of 8 bits without transparency."""
    from PIL import Image

    if image.mode.startswith("I;16"):
        return Image.fromarray((np.asarray(image) // 257).astype(np.uint8))
    if image.mode in ("I", "F"):
        raise ValueError(
            f"its mode {shown(image.mode)} has no agreed range of values; save it with 8 or 16 bits"
        )
    if "A" in image.mode or "a" in image.mode or "transparency" in image.info:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, "white")
        return Image.alpha_composite(white, image).convert("RGB")
    return image
