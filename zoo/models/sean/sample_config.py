"""SEAN's options of ``zoo sample``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from zoo.config import SampleConfig, require


@dataclass(frozen=True, kw_only=True)
class SeanSampleConfig(SampleConfig):
    """Held-out images from their own styles; or, with --style, one from the style of others."""

    output_suffix: ClassVar[str] = ".png"

    n: int = 10
    """held-out images to reconstruct"""
    output: Path = Path("samples.png")
    """PNG file to write: a row a sample, of label map, style and what was drawn"""
    style: Path | None = None
    """image whose style to draw in"""
    style_mask: Path | None = None
    """label map of --style, PNG"""
    mask: Path | None = None
    """label map of what to draw, PNG"""
    region: tuple[str, ...] = ()
    """NAME=IMAGE or NAME=IMAGE,MAP: draw the region NAME in the style of all of IMAGE, or of that region in it"""
    blend: float = 1.0
    """how far to go from the style of --style (0) to that of --region (1)"""

    def __post_init__(self) -> None:
        super().__post_init__()
        together = ("style", "style_mask", "mask")
        given = [name for name in together if getattr(self, name) is not None]
        for name in given:
            lacking = " and ".join(f"--{other.replace('_', '-')}" for other in together if other not in given)
            require(not lacking, name, f"needs {lacking} too")
        require(
            not given or self.n == type(self).n, "n", "counts held-out images; leave it out beside --mask"
        )
        require(not self.region or bool(given), "region", "needs --style, --style-mask and --mask")
        names = set()
        for text in self.region:
            name, equals, image = text.partition("=")
            require(bool(name and equals and image), "region", f"must be NAME=IMAGE, not {text!r}")
            first, comma, last = image.rpartition(",")
            good = not comma or bool(first and last)
            require(good, "region", f"must be NAME=IMAGE or NAME=IMAGE,MAP, not {text!r}")
            require(name not in names, "region", f"{text}: {name} is given twice")
            names.add(name)
        require(0 <= self.blend <= 1, "blend", f"must be from 0 to 1, not {self.blend:g}")
        require(self.blend == 1 or bool(self.region), "blend", "needs --region with the style to blend with")
