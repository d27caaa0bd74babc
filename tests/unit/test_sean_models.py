"""SEAN's two networks: sizes, noise, batches of any number of rows and any labels."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from zoo.models.sean.config import SeanConfig
from zoo.models.sean.convert import to_official
from zoo.models.sean.discriminator import Discriminator
from zoo.models.sean.generator import Generator
from zoo.models.sean.labels import one_hot, windows
from zoo.models.sean.loss import discriminator_loss, feature_matching_loss, generator_loss
from zoo.models.sean.normalization import Regions, SeanNorm
from zoo_datasets.errors import InputError

TINY = SeanConfig(labels=4, image_size=64, filters=2, style_length=6, discriminator_filters=4)


def batch(rows: int, size: tuple[int, int] = (64, 64), labels: int = 4) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return (
        torch.randint(0, labels, (rows, *size), generator=generator),
        torch.rand(rows, 3, *size, generator=generator) * 2 - 1,
    )


def settled(network: type[nn.Module], config: SeanConfig = TINY) -> nn.Module:
    """A model each part of which shows in its output, with the statistics and spectral norms of some steps."""
    torch.manual_seed(0)
    model = network(config)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, SeanNorm):
                for parameter in module.parameters():
                    parameter.copy_(torch.randn_like(parameter) * 0.3)
        for _ in range(3):
            model(*batch(2, labels=config.labels))
    return model


@pytest.mark.parametrize("network", [Generator, Discriminator])
def test_full_size_has_the_official_names_and_shapes(network: type[nn.Module], reference: Path) -> None:
    official = json.loads((reference / "sean" / "official_state_dict_keys.json").read_text())
    with torch.device("meta"):
        model = network(SeanConfig())
    ours = {name: list(tensor.shape) for name, tensor in to_official(model.state_dict()).items()}
    assert ours == official[network.__name__.lower()]


def test_full_size_runs_without_looking_at_its_data() -> None:
    """On the meta device nothing has a value: a branch on data, or a loop over what a batch holds, raises."""
    with torch.device("meta"):
        generator, discriminator = Generator(SeanConfig()), Discriminator(SeanConfig())
        labels, image = torch.zeros(2, 256, 256, dtype=torch.int64), torch.zeros(2, 3, 256, 256)
        fake = generator(labels, image)
        assert fake.shape == image.shape
        features = discriminator(labels, fake)
        (generator_loss(features) + feature_matching_loss(features, features)).sum().backward()
    assert all(parameter.grad is not None for parameter in generator.parameters())


@pytest.mark.parametrize("upsampling", [5, 6, 7])
@pytest.mark.parametrize("size", [(128, 128), (128, 256)])
def test_depths_and_sizes(upsampling: int, size: tuple[int, int]) -> None:
    config = replace(TINY, image_size=128, upsampling=upsampling)
    generator = Generator(config)
    labels, image = batch(2, size)
    with torch.no_grad():
        assert generator(labels, image).shape == image.shape
    last = "up_4" if upsampling == 7 else "up_3"
    assert [name for name, module in generator.named_children() if not getattr(module, "styled", True)] == [
        last
    ]
    shapes = generator.noise_shapes(*size)
    assert shapes[f"{last}.ace_1"] == (1, *size)
    assert shapes["head_0.ace_0"] == (1, size[0] >> upsampling, size[1] >> upsampling)


def test_one_label_more_labels_and_labels_of_no_region() -> None:
    for count in (1, 30):
        generator = settled(Generator, replace(TINY, labels=count))
        labels, image = batch(2, labels=count)
        with torch.no_grad():
            assert generator(labels, image).isfinite().all()
            nothing = generator(torch.full_like(labels, 255), image)
        assert nothing.isfinite().all()


@pytest.mark.parametrize("rows", [0, 1])
def test_any_number_of_rows_gives_every_parameter_a_gradient(rows: int) -> None:
    generator, discriminator = settled(Generator), settled(Discriminator)
    labels, image = batch(rows)
    fake = generator(labels, image)
    assert fake.shape == image.shape
    with torch.no_grad():
        real = discriminator(labels, image)
    features = discriminator(labels, fake)
    losses = generator_loss(features) + feature_matching_loss(features, real)
    losses = losses + discriminator_loss(features, real=False)
    assert losses.shape == (rows,)
    losses.sum().backward()
    for model in (generator, discriminator):
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None, name
            assert parameter.grad.isfinite().all(), name
            assert rows or not parameter.grad.any(), name


def test_noise_is_an_argument() -> None:
    generator = settled(Generator).eval().double()
    labels, style = batch(2, (32, 32))[0], torch.randn(2, 4, 6, dtype=torch.float64)
    noise = {
        name: torch.randn(2, *shape, dtype=torch.float64)
        for name, shape in generator.noise_shapes(32, 32).items()
    }
    with torch.no_grad():
        before = torch.get_rng_state()
        first = generator(labels, style=style, noise=noise)
        assert torch.equal(torch.get_rng_state(), before)
        second = {name: value[1:] for name, value in noise.items()}
        torch.testing.assert_close(generator(labels[1:], style=style[1:], noise=second), first[1:])
        for name in noise:
            other = {**noise, name: torch.randn_like(noise[name])}
            assert not torch.allclose(generator(labels, style=style, noise=other), first), name
        torch.manual_seed(5)
        drawn = generator(labels, style=style)
        torch.manual_seed(5)
        assert torch.equal(generator(labels, style=style), drawn)


def test_styles_of_one_image_on_the_mask_of_another() -> None:
    generator = settled(Generator).eval()
    labels, image = batch(2)
    noise = {name: torch.randn(2, *shape) for name, shape in generator.noise_shapes(64, 64).items()}
    with torch.no_grad():
        codes = generator.encode(image, labels)
        assert torch.equal(generator(labels, style=codes, noise=noise), generator(labels, image, noise=noise))
        swapped = generator(labels, style=codes.flip(0), noise=noise)
    assert not torch.allclose(swapped, generator(labels, image, noise=noise))


def test_a_style_changes_pixels_near_its_region_only() -> None:
    """A style reaches the pixels of other regions through a 3x3 convolution alone."""
    norm = settled(Generator).get_submodule("up_2.ace_0")
    assert isinstance(norm, SeanNorm)
    labels = torch.zeros(1, 16, 16, dtype=torch.int64)
    labels[:, :, 8:] = 1
    hot = one_hot(labels, 4, torch.float32)
    regions = Regions(hot, windows(hot))
    style = torch.randn(1, 4, 6)
    other = style.clone()
    other[:, 0] += 1.0
    with torch.no_grad():
        difference = (
            (norm.modulation(regions, style)[0] - norm.modulation(regions, other)[0]).abs().amax((0, 1, 2))
        )
    assert bool((difference[:9] > 0).all())
    assert not difference[9:].any()


def test_two_forwards_before_one_backward() -> None:
    """Each forward in training advances the spectral norms; the first one's backward still finds its own vectors."""
    discriminator = settled(Discriminator)
    labels, image = batch(2)
    losses = [discriminator_loss(discriminator(labels, image * s), real=s > 0).sum() for s in (1.0, -1.0)]
    sum(losses).backward()  # type: ignore[union-attr]
    both = [parameter.grad.clone() for parameter in discriminator.parameters() if parameter.grad is not None]
    discriminator = settled(Discriminator)
    apart = [torch.zeros_like(parameter) for parameter in discriminator.parameters()]
    for s in (1.0, -1.0):
        discriminator.zero_grad()
        discriminator_loss(discriminator(labels, image * s), real=s > 0).sum().backward()
        for total, parameter in zip(apart, discriminator.parameters(), strict=True):
            assert parameter.grad is not None
            total += parameter.grad
    for one, two in zip(both, apart, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-6)


def test_bfloat16_is_near_float32_and_losses_stay_float32() -> None:
    generator, discriminator = settled(Generator).eval(), settled(Discriminator).eval()
    labels, image = batch(2)
    noise = {name: torch.randn(2, *shape) for name, shape in generator.noise_shapes(64, 64).items()}
    exact = generator(labels, image, noise=noise)
    with torch.autocast("cpu", torch.bfloat16):
        fake = generator(labels, image, noise=noise)
        loss = generator_loss(discriminator(labels, fake))
    assert fake.dtype == torch.bfloat16
    assert loss.dtype == torch.float32
    assert (fake - exact).norm() < 0.1 * exact.norm()
    loss.sum().backward()
    assert all(parameter.grad is not None for parameter in generator.parameters())


def test_discriminator_judges_each_sample_by_itself() -> None:
    discriminator = settled(Discriminator).double().eval()
    labels, image = batch(3)
    image = image.double()
    together = discriminator(labels, image)
    for row in range(3):
        alone = discriminator(labels[row : row + 1], image[row : row + 1])
        for ones, others in zip(alone, together, strict=True):
            for one, other in zip(ones, others, strict=True):
                torch.testing.assert_close(one, other[row : row + 1], rtol=1e-12, atol=1e-12)


def test_start_is_glorots() -> None:
    """Weights: normal, std sqrt(2 / (inputs + outputs)), counted with the kernel's pixels; the rest 0."""
    torch.manual_seed(0)
    generator = Generator(replace(TINY, filters=8, style_length=64))
    for name, parameter in generator.named_parameters():
        if parameter.dim() < 2 or ".fc_mu.bias" in name:
            assert not parameter.any(), name
            continue
        outputs, inputs = parameter.shape[-2:] if parameter.dim() == 3 else parameter.shape[:2]
        pixels = parameter[0, 0].numel() if parameter.dim() == 4 else 1
        expected = (2.0 / (pixels * (inputs + outputs))) ** 0.5
        assert parameter.std().item() == pytest.approx(expected, rel=4 / parameter.numel() ** 0.5), name


def test_wrong_use_is_one_line() -> None:
    generator = Generator(TINY)
    labels, image = batch(1)
    with pytest.raises(InputError, match=r"label maps of 48 x 64 pixels: give multiples of 32"):
        generator(labels[:, :48], image[:, :, :48])
    with pytest.raises(InputError, match="no style"):
        generator(labels)
    with pytest.raises(InputError, match="two styles"):
        generator(labels, image, style=torch.zeros(1, 4, 6))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"labels": 0}, "labels is 0"),
        ({"filters": 1.5}, r"filters is 1\.5"),
        ({"upsampling": 4}, r"upsampling is 4: give one of \(5, 6, 7\)"),
        ({"upsampling": 7, "filters": 3}, "filters is 3"),
        ({"image_size": 100}, "image_size is 100: give a multiple of 32"),
    ],
)
def test_sizes_that_cannot_be(options: dict[str, int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        SeanConfig(**options)
