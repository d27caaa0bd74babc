"""SEAN normalisation against the paper's formulation: broadcast each region's style into a map, and convolve that."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from zoo.models.sean.encoder import region_mean
from zoo.models.sean.labels import one_hot, shrink, windows
from zoo.models.sean.normalization import Regions, SeanNorm, style_kernels

LABELS, STYLE, CHANNELS = 5, 7, 6


def some_labels(batch: int, height: int, width: int, seed: int = 0) -> Tensor:
    """Each sample has other labels; some are absent, and some pixels belong to no region."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, LABELS + 1, (batch, height, width), generator=generator)
    for sample in range(batch):
        labels[sample][labels[sample] == sample % LABELS] = 255
    return labels


def broadcast(mu: Tensor, labels: Tensor) -> Tensor:
    """The style map, pixel by pixel: [batch, style length, height, width]."""
    batch, height, width = labels.shape
    rows = [
        mu[b, int(labels[b, i, j])] if labels[b, i, j] < LABELS else torch.zeros_like(mu[b, 0])
        for b in range(batch)
        for i in range(height)
        for j in range(width)
    ]
    return torch.stack(rows).view(batch, height, width, -1).permute(0, 3, 1, 2)


def make_norm(dtype: torch.dtype, styled: bool = True) -> SeanNorm:
    torch.manual_seed(1)
    norm = SeanNorm(CHANNELS, LABELS, STYLE, styled=styled).to(dtype)
    with torch.no_grad():
        for parameter in norm.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.3)
    return norm


def regions_of(labels: Tensor, dtype: torch.dtype) -> Regions:
    hot = one_hot(labels, LABELS, dtype)
    return Regions(hot, windows(hot))


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_modulation_is_the_literal_one(dtype: torch.dtype, bound: float) -> None:
    """Equations of section 3.2: alpha blends the convolved style map with SPADE's; outputs and all gradients."""
    norm = make_norm(dtype)
    labels = some_labels(3, 6, 9)
    regions = regions_of(labels, dtype)
    style = torch.randn(3, LABELS, STYLE, dtype=dtype, requires_grad=True)

    def literal() -> tuple[Tensor, Tensor]:
        rows = [F.relu(style[:, j] @ norm.fc_mu.weight[j].mT + norm.fc_mu.bias[j]) for j in range(LABELS)]
        styles = broadcast(torch.stack(rows, 1), labels)
        hidden = F.relu(norm.Spade.mlp_shared[0](regions.one_hot))
        alpha, beta = torch.sigmoid(norm.blending_gamma), torch.sigmoid(norm.blending_beta)
        return (
            alpha * norm.conv_gamma(styles) + (1 - alpha) * norm.Spade.mlp_gamma(hidden),
            beta * norm.conv_beta(styles) + (1 - beta) * norm.Spade.mlp_beta(hidden),
        )

    results = []
    for formulation in (lambda: norm.modulation(regions, style), literal):
        norm.zero_grad()
        style.grad = None
        gamma, beta = formulation()
        (gamma.square().sum() + beta.pow(3).sum()).backward()
        grads = [p.grad for name, p in norm.named_parameters() if name != "noise_var"]
        results.append([gamma.detach(), beta.detach(), style.grad, *grads])
    for ours, theirs in zip(*results, strict=True):
        assert ours is not None
        assert theirs is not None
        assert (ours - theirs).norm() <= bound * theirs.norm()


@given(
    batch=st.integers(1, 3),
    height=st.integers(1, 7),
    width=st.integers(1, 7),
    seed=st.integers(0, 1000),
)
@settings(max_examples=25, deadline=None)
def test_style_kernels_convolve_any_map(batch: int, height: int, width: int, seed: int) -> None:
    labels = some_labels(batch, height, width, seed)
    mu = torch.randn(batch, LABELS, STYLE, dtype=torch.float64)
    weight = torch.randn(CHANNELS, STYLE, 3, 3, dtype=torch.float64)
    ours = style_kernels(weight, mu) @ windows(one_hot(labels, LABELS, torch.float64))
    theirs = F.conv2d(broadcast(mu, labels), weight, padding=1)
    torch.testing.assert_close(ours.view_as(theirs), theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("styled", [True, False])
def test_norm_scales_and_shifts_noisy_normalised_activations(styled: bool) -> None:
    norm = make_norm(torch.float64, styled)
    regions = regions_of(some_labels(2, 4, 4), torch.float64)
    x, noise = (torch.randn(2, c, 4, 4, dtype=torch.float64) for c in (CHANNELS, 1))
    style = torch.randn(2, LABELS, STYLE, dtype=torch.float64)
    noisy = x + noise * norm.noise_var.view(1, -1, 1, 1)
    mean, variance = noisy.mean((0, 2, 3), keepdim=True), noisy.var((0, 2, 3), unbiased=False, keepdim=True)
    gamma, beta = norm.modulation(regions, style)
    expected = (noisy - mean) / (variance + 1e-5).sqrt() * (1 + gamma) + beta
    torch.testing.assert_close(norm(x, regions, style, noise), expected, rtol=1e-12, atol=1e-12)


def test_absent_labels_get_zero_gradients() -> None:
    norm = make_norm(torch.float64)
    labels = torch.full((2, 4, 4), 3)
    style = torch.randn(2, LABELS, STYLE, dtype=torch.float64, requires_grad=True)
    gamma, beta = norm.modulation(regions_of(labels, torch.float64), style)
    (gamma.square() + beta).sum().backward()
    assert style.grad is not None
    assert norm.fc_mu.weight.grad is not None
    for label in range(LABELS):
        for grad in (style.grad[:, label], norm.fc_mu.weight.grad[label]):
            assert bool(grad.any()) == (label == 3)


def test_region_mean_is_the_mean_over_each_region() -> None:
    labels, features = some_labels(3, 5, 4), torch.randn(3, 8, 5, 4, dtype=torch.float64)
    ours = region_mean(features, one_hot(labels, LABELS, torch.float64))
    assert ours.shape == (3, LABELS, 8)
    for sample in range(3):
        for label in range(LABELS):
            inside = features[sample][:, labels[sample] == label]
            expected = inside.mean(1) if inside.shape[1] else torch.zeros(8, dtype=torch.float64)
            torch.testing.assert_close(ours[sample, label], expected, rtol=1e-13, atol=1e-13)


def test_shrink_is_nearest_neighbour() -> None:
    labels = some_labels(2, 8, 12)
    expected = F.interpolate(labels[:, None].double(), scale_factor=0.25, mode="nearest")[:, 0].long()
    assert torch.equal(shrink(labels, 4), expected)


def test_windows_are_the_neighbourhoods_in_the_order_of_a_kernel() -> None:
    hot = one_hot(some_labels(2, 3, 4), LABELS, torch.float64)
    weight = torch.randn(CHANNELS, LABELS, 3, 3, dtype=torch.float64)
    product = weight.flatten(1) @ windows(hot)
    torch.testing.assert_close(product.view(2, CHANNELS, 3, 4), F.conv2d(hot, weight, padding=1))
