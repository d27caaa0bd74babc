"""Style transfer and reconstruction, against the generator called by hand; the same picture on two ranks."""

from __future__ import annotations

import logging
from copy import deepcopy
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import parallel
from parallel import rng
from zoo.config import OptionError
from zoo.flags import from_flags
from zoo.models.sean.config import SeanConfig
from zoo.models.sean.generator import Generator
from zoo.models.sean.pictures import as_pixels, coloured, grid
from zoo.models.sean.sample_config import SeanSampleConfig
from zoo.models.sean.sampling import Sampler, mean_styles_over
from zoo.models.sean.styles import regions_seen
from zoo.picture import Picture
from zoo.table import check_output
from zoo_datasets.errors import InputError
from zoo_datasets.scenes import SCENE_LABELS, generated_scenes
from zoo_datasets.segmented import MapFormat

SIZE = 64
CONFIG = SeanConfig(
    labels=len(SCENE_LABELS), image_size=SIZE, filters=2, style_length=4, discriminator_filters=2
)
# Held-out scene 1 has a region that 0 lacks, and 2 lacks one too.
DATA = generated_scenes(SIZE, seed=11, train=5, evaluation=3)


@cache
def network() -> Generator:
    """One in which styles show, and noise too."""
    torch.manual_seed(0)
    net = Generator(CONFIG)
    for name, parameter in net.named_parameters():
        if "fc_mu" in name:
            nn.init.normal_(parameter, std=5.0)
        elif parameter.dim() > 1:
            nn.init.xavier_normal_(parameter)
        elif "noise" in name:
            nn.init.constant_(parameter, 0.1)
    rows = [DATA.train[row] for row in range(2)]
    image, labels = (torch.from_numpy(np.stack([row[key] for row in rows])) for key in ("image", "labels"))
    with torch.no_grad():
        for _ in range(5):  # spectral norms and running statistics settle
            net(labels, image)
    return net.eval()


def noise(seed: int, row: int = 0) -> dict[str, torch.Tensor]:
    at = torch.tensor([row])
    shapes = network().noise_shapes(SIZE, SIZE).items()
    return {name: rng.normal(rng.make_key(seed, name), at, shape) for name, shape in shapes}


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Path:
    """Images and maps of held-out scenes: 0.png, 0-map.png and so on."""
    folder = tmp_path_factory.mktemp("scenes")
    for number in range(3):
        row = DATA.eval[number]
        Image.fromarray(as_pixels(row["image"])).save(folder / f"{number}.png")
        Image.fromarray(row["labels"].astype(np.uint8)).save(folder / f"{number}-map.png")
    return folder


def drawn(p, options: SeanSampleConfig, with_means: bool = True) -> Picture:
    net = p.wrap(deepcopy(network())).eval()
    with torch.no_grad():
        means = mean_styles_over(p, net, DATA.train, torch.float32) if with_means else None
        sampler = Sampler(p, net, SCENE_LABELS, MapFormat(len(SCENE_LABELS)), means, torch.float32)
        return sampler.draw(options, DATA.eval)


def options(files: Path | None = None, **more) -> SeanSampleConfig:
    if files is not None:
        more |= {"style": files / "0.png", "style_mask": files / "0-map.png", "mask": files / "1-map.png"}
    return SeanSampleConfig(run=Path("run"), **more)


def read(files: Path, number: int) -> tuple[torch.Tensor, torch.Tensor]:
    pixels = np.asarray(Image.open(files / f"{number}.png")).astype(np.float32)
    labels = np.asarray(Image.open(files / f"{number}-map.png")).astype(np.int64)
    return torch.from_numpy(pixels / 127.5 - 1).permute(2, 0, 1)[None], torch.from_numpy(labels)[None]


@torch.no_grad()
def by_hand(files: Path, regions: dict[str, tuple[torch.Tensor, float]]) -> np.ndarray:
    """The style of 0 on the map of 1, label by label; means where 0 lacks a region."""
    net = network()
    image, labels = read(files, 0)
    codes, seen = net.encode(image, labels)[0], regions_seen(labels, 8)[0]
    for label in range(8):
        if not seen[label]:
            having = [row for row in range(5) if (DATA.train[row]["labels"][::2, ::2] == label).any()]
            found = [
                net.encode(*(torch.from_numpy(DATA.train[row][key])[None] for key in ("image", "labels")))[
                    0, label
                ]
                for row in having
            ]
            codes[label] = torch.stack(found).mean(0)
    for name, (code, amount) in regions.items():
        label = SCENE_LABELS.index(name)
        codes[label] += amount * (code - codes[label])
    target = read(files, 1)[1]
    return as_pixels(net(target, style=codes[None], noise=noise(0))[0].numpy())


def test_the_style_of_a_picture_on_the_map_of_another(files):
    picture = parallel.launch(drawn, "single", options(files))
    assert (picture.samples, picture.pixels.shape) == (1, (64, 3 * 64 + 4, 3))
    (image, _), (_, labels) = read(files, 0), read(files, 1)
    expected = grid([[coloured(labels[0].numpy(), 8), as_pixels(image[0].numpy()), by_hand(files, {})]])
    assert abs(picture.pixels.astype(int) - expected).max() <= 1


@pytest.mark.parametrize("blend", [1.0, 0.3])
def test_regions_of_other_pictures(files, blend):
    """All of 2.png for the sky, and its ground for the ground."""
    text = (f"sky={files / '2.png'}", f"ground={files / '2.png'},{files / '2-map.png'}")
    picture = parallel.launch(drawn, "single", options(files, region=text, blend=blend))
    assert picture.pixels.shape == (64, 5 * 64 + 8, 3)
    net, (image, labels) = network(), read(files, 2)
    with torch.no_grad():
        sky = net.encode(image, torch.zeros_like(labels))[0, 0]
        ground = net.encode(image, labels)[0, SCENE_LABELS.index("ground")]
    expected = by_hand(files, {"sky": (sky, blend), "ground": (ground, blend)})
    assert abs(picture.pixels[:, -64:].astype(int) - expected).max() <= 1
    assert abs(expected.astype(int) - by_hand(files, {})).max() > 10  # it shows


def test_reconstructions(files):
    picture = parallel.launch(drawn, "single", options(n=2, seed=4))
    assert (picture.samples, picture.pixels.shape) == (2, (130, 196, 3))
    net, row = network(), DATA.eval[1]
    image, labels = torch.from_numpy(row["image"]), torch.from_numpy(row["labels"])
    with torch.no_grad():
        output = net(labels[None], image[None], noise=_batch_noise(4, 1))[0]
    expected = grid([[coloured(labels.numpy(), 8), as_pixels(image.numpy()), as_pixels(output.numpy())]])
    assert abs(picture.pixels[66:].astype(int) - expected).max() <= 1


def _batch_noise(seed: int, row: int) -> dict[str, torch.Tensor]:
    """As a loader's first batch draws it: at step 0, keyed by the row."""
    at = torch.tensor([row])
    shapes = network().noise_shapes(SIZE, SIZE).items()
    return {name: rng.normal(rng.make_key(seed, name, 0), at, shape) for name, shape in shapes}


def test_the_same_pictures_on_two_ranks(ranks, files):
    """Three images over two ranks, and a transfer that both draw."""
    text = (f"sky={files / '2.png'}",)
    for asked in (options(n=3), options(files, region=text, blend=0.5)):
        alone = parallel.launch(drawn, "single", asked)
        for picture in ranks.run(drawn, "fsdp", 2, asked, precision="fp32"):
            assert abs(picture.pixels.astype(int) - alone.pixels).max() <= 1


def test_what_cannot_be_drawn(files):
    def fails(message: str, with_means: bool = True, **more) -> None:
        with pytest.raises(InputError, match=message):
            parallel.launch(drawn, "single", options(files, **more), with_means)

    first, second, third = (set(DATA.eval[row]["labels"].ravel().tolist()) for row in range(3))
    lacking = SCENE_LABELS[min(second - first)]
    fails(rf"--mask .*1-map\.png: has '{lacking}', for which", with_means=False)
    fails("--region sea=x.png: no region 'sea'; ", region=("sea=x.png",))
    fails(r"^--region nothing\.png: no such file$", region=("sky=nothing.png",))
    fails(r"^--region no-map\.png: no such file$", region=(f"sky={files / '2.png'},no-map.png",))
    absent = SCENE_LABELS[min(set(range(8)) - third)]
    text = f"{absent}={files / '2.png'},{files / '2-map.png'}"
    fails(f"has no region '{absent}' to take the style of", region=(text,))


def without_a_network() -> Sampler:
    """For what is said before anything is drawn."""
    net = SimpleNamespace(config=CONFIG)
    return Sampler(None, net, SCENE_LABELS, MapFormat(len(SCENE_LABELS)), None, torch.float32)


def test_files_that_are_not_there_are_named_with_their_flag(files):
    there = {"style": files / "0.png", "style_mask": files / "0-map.png", "mask": files / "0-map.png"}
    for name in GIVEN:
        given = SeanSampleConfig(run=Path("run"), **(there | {name: Path("gone.png")}))
        with pytest.raises(InputError, match=rf"^--{name.replace('_', '-')} gone\.png: no such file$"):
            without_a_network().draw(given, DATA.eval)


def test_fewer_images_than_asked_for_are_said(monkeypatch, caplog):
    monkeypatch.setattr(Sampler, "reconstructed", lambda self, images, seed: len(images))
    with caplog.at_level(logging.INFO, "zoo"):
        assert without_a_network().draw(options(n=3), DATA.eval) == 3
        assert not caplog.messages
        assert without_a_network().draw(options(n=4), DATA.eval) == 3
    assert caplog.messages == ["scenes holds out 3 images: -n 4 draws them all"]


GIVEN = ("style", "style_mask", "mask")


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"style": Path("a.png")}, "style needs --style-mask and --mask too"),
        ({"mask": Path("a.png"), "style": Path("b.png")}, "needs --style-mask too"),
        ({"region": ("sky=a.png",)}, "region needs --style, --style-mask and --mask"),
        ({"blend": 0.5}, "blend needs --region"),
        ({"blend": 2.0}, "blend must be from 0 to 1"),
        ({"n": 0}, "n must be at least 1"),
        ({name: Path("a.png") for name in GIVEN} | {"n": 2}, "n counts held-out images; leave it out"),
    ],
)
def test_options_that_do_not_go_together(more, message):
    with pytest.raises(OptionError, match=message):
        options(**more)


def test_a_region_that_is_not_a_pair(files):
    with pytest.raises(OptionError, match=r"region must be NAME=IMAGE, not 'sky'"):
        options(files, region=("sky",))
    for text in ("sky=a.png,", "sky=,a.png", "sky=,"):
        with pytest.raises(OptionError, match=f"region must be NAME=IMAGE or NAME=IMAGE,MAP, not '{text}'"):
            options(files, region=(text,))


def test_a_region_given_twice():
    argv = ["run", "--style", "a.png", "--style-mask", "b.png", "--mask", "c.png", "--region"]
    with pytest.raises(InputError, match=r"^--region sky=b\.png: sky is given twice$"):
        from_flags(
            SeanSampleConfig, [*argv, "sky=a.png", "sky=b.png"], prog="zoo", positionals={"run": "RUN"}
        )


def test_a_picture_is_written_as_png_once(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (4, 6, 3), dtype=np.uint8)
    path = tmp_path / "a.png"
    check_output(path, suffix=".png")
    Picture(pixels, 1).write(path)
    assert np.array_equal(np.asarray(Image.open(path)), pixels)
    with pytest.raises(FileExistsError):
        Picture(pixels, 1).write(path)
    with pytest.raises(InputError, match=r"pictures are written as PNG; give a name that ends in \.png"):
        check_output(tmp_path / "a.csv", suffix=".png")
