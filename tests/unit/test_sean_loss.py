"""SEAN's losses against their formulas, written out in NumPy, and VGG-19 against torchvision's own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from torchvision.models.vgg import cfgs, make_layers

from zoo.models.sean import perceptual
from zoo.models.sean.discriminator import Features
from zoo.models.sean.loss import discriminator_loss, feature_matching_loss, generator_loss
from zoo.models.sean.perceptual import PerceptualLoss
from zoo_datasets.errors import InputError

ROWS = 3


def features(seed: int, rows: int = ROWS) -> Features:
    """Two scales of three layers, of other sizes each."""
    generator = torch.Generator().manual_seed(seed)

    def layer(*shape: int) -> Tensor:
        return torch.randn(rows, *shape, dtype=torch.float64, generator=generator, requires_grad=True)

    return [
        [layer(4, 6, 6), layer(8, 3, 3), layer(1, 4, 4)],
        [layer(4, 3, 3), layer(8, 2, 2), layer(1, 3, 3)],
    ]


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1.0 / (1.0 + np.exp(-x))


FORMULAS = {  # what a patch costs: the discriminator on a real one, on a generated one, the generator
    "hinge": (lambda x: np.maximum(0, 1 - x), lambda x: np.maximum(0, 1 + x), lambda x: -x),
    "least-squares": (lambda x: (x - 1) ** 2, lambda x: x**2, lambda x: (x - 1) ** 2),
    "original": (
        lambda x: -np.log(sigmoid(x)),
        lambda x: -np.log(1 - sigmoid(x)),
        lambda x: -np.log(sigmoid(x)),
    ),
}


@pytest.mark.parametrize("mode", FORMULAS)
def test_gan_losses(mode: str) -> None:
    judged = features(0)
    patches = [scale[-1].detach().numpy() for scale in judged]
    ours = (
        discriminator_loss(judged, real=True, mode=mode),
        discriminator_loss(judged, real=False, mode=mode),
        generator_loss(judged, mode=mode),
    )
    for losses, formula in zip(ours, FORMULAS[mode], strict=True):
        expected = np.mean([formula(scale).mean((1, 2, 3)) for scale in patches], axis=0)
        assert losses.shape == (ROWS,)
        np.testing.assert_allclose(losses.detach().numpy(), expected, rtol=1e-12)


def test_an_unknown_gan_loss_is_named() -> None:
    with pytest.raises(InputError, match="GAN loss 'wgan': give one of hinge, least-squares, original"):
        discriminator_loss(features(0), real=True, mode="wgan")


def test_feature_matching() -> None:
    fake, real = features(0), features(1)
    losses = feature_matching_loss(fake, real)
    expected = np.zeros(ROWS)
    for fakes, reals in zip(fake, real, strict=True):
        for f, r in zip(fakes[:-1], reals[:-1], strict=True):
            expected += np.abs(f.detach().numpy() - r.detach().numpy()).mean((1, 2, 3)) / len(fake)
    np.testing.assert_allclose(losses.detach().numpy(), expected, rtol=1e-12)
    losses.sum().backward()
    assert all(layer.grad is None for scale in real for layer in scale)
    assert all((scale[-1].grad is None) and (scale[0].grad is not None) for scale in fake)


def test_no_rows_cost_nothing() -> None:
    fake, real = features(0, rows=0), features(1, rows=0)
    total = (
        discriminator_loss(fake, real=False) + generator_loss(fake) + feature_matching_loss(fake, real)
    ).sum()
    total.backward()
    assert total.item() == 0.0


@pytest.fixture(scope="module")
def weights() -> dict[str, Tensor]:
    torch.manual_seed(0)
    return {f"features.{n}": t for n, t in make_layers(cfgs["E"], batch_norm=False).state_dict().items()}


def test_perceptual_loss(weights: dict[str, Tensor], tmp_path: Path) -> None:
    """The five ReLUs, relu1_1 to relu5_1, of torchvision's network with the file's weights."""
    file = tmp_path / "vgg19.safetensors"
    save_file(weights, file)
    loss = PerceptualLoss(file)
    fake, real = (torch.rand(2, 3, 32, 32, requires_grad=True) for _ in range(2))
    ours = loss(fake, real)

    network = make_layers(cfgs["E"], batch_norm=False)
    network.load_state_dict({name.removeprefix("features."): tensor for name, tensor in weights.items()})
    expected = torch.zeros(2)
    x, y = fake.detach().clone(), real.detach().clone()
    convolutions = {0: 1 / 32, 5: 1 / 16, 10: 1 / 8, 19: 1 / 4, 28: 1.0}  # the first of each stage
    with torch.no_grad():
        for index, layer in enumerate(network):
            x, y = layer(x), layer(y)
            if index in convolutions:
                expected += convolutions[index] * (x.relu() - y.relu()).abs().mean((1, 2, 3))
    torch.testing.assert_close(ours.detach(), expected, rtol=1e-5, atol=0)

    ours.sum().backward()
    assert fake.grad is not None
    assert fake.grad.any()
    assert real.grad is None
    assert not any(parameter.requires_grad for parameter in loss.parameters())
    assert loss(fake[:0], real[:0]).shape == (0,)


def test_perceptual_weights_of_either_kind(weights: dict[str, Tensor], tmp_path: Path) -> None:
    torch.save(weights, tmp_path / "vgg19.pth")
    bare = {name.removeprefix("features."): tensor for name, tensor in weights.items()}
    save_file(bare, tmp_path / "features.safetensors")
    for name in ("vgg19.pth", "features.safetensors"):
        loaded = PerceptualLoss(tmp_path / name)
        for ours, theirs in zip(loaded.parameters(), weights.values(), strict=False):
            assert torch.equal(ours, theirs)


class Unpickled:
    """Leaves a file behind where a loader runs what it unpickles."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Callable[[Path], None], tuple[Path]]:
        return Path.touch, (self.trace,)


def test_perceptual_weights_that_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(source: Path | str, message: str) -> None:
        with pytest.raises(InputError, match=message) as caught:
            PerceptualLoss(source)
        assert "\n" not in str(caught.value)

    refused(tmp_path / "none.pth", "no such file")
    torch.save({"features.0.weight": Unpickled(tmp_path / "trace")}, tmp_path / "evil.pth")
    refused(tmp_path / "evil.pth", "not a torch checkpoint of tensors alone")
    assert not (tmp_path / "trace").exists()
    (tmp_path / "text.safetensors").write_text("not weights")
    refused(tmp_path / "text.safetensors", "cannot be read as safetensors")
    torch.save([torch.zeros(1)], tmp_path / "list.pth")
    refused(tmp_path / "list.pth", "holds no weights by name")
    torch.save({"features.0.weight": torch.zeros(2, 3, 3, 3)}, tmp_path / "small.pth")
    refused(tmp_path / "small.pth", r"features\.0\.weight is of shape \(2, 3, 3, 3\), not \(64, 3, 3, 3\)")
    save_file({"other": torch.zeros(1)}, tmp_path / "other.safetensors")
    refused(tmp_path / "other.safetensors", r"features\.0\.weight is missing")

    from torchvision.models import VGG19_Weights

    def unreachable(*args: object, **kwargs: object) -> None:
        raise OSError("no route")

    monkeypatch.setattr(VGG19_Weights, "get_state_dict", unreachable)
    refused(perceptual.HUB, r"cannot be fetched \(no route\): give a file")
