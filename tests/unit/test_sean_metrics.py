"""Metrics of reconstruction against the papers' equations in numpy and scipy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.ndimage import gaussian_filter

from zoo.models.sean.metrics import reconstruction


def equations(output: np.ndarray, image: np.ndarray) -> dict[str, list[float]]:
    """One number a sample, on 0..1."""
    found: dict[str, list[float]] = {"psnr": [], "ssim": [], "rmse": []}
    for x, y in zip((output + 1) / 2, (image + 1) / 2, strict=True):
        error = ((x - y) ** 2).mean()
        found["psnr"].append(10 * np.log10(1 / error))
        found["rmse"].append(np.sqrt(error))

        def window(z: np.ndarray) -> np.ndarray:  # standard deviation 1.5, 11 taps
            return gaussian_filter(z, 1.5, mode="mirror", truncate=3.5, axes=(1, 2))

        mx, my = window(x), window(y)
        vx, vy, cov = window(x * x) - mx**2, window(y * y) - my**2, window(x * y) - mx * my
        c1, c2 = 0.01**2, 0.03**2
        ssim = (2 * mx * my + c1) * (2 * cov + c2) / ((mx**2 + my**2 + c1) * (vx + vy + c2))
        found["ssim"].append(ssim.mean())
    return found


@pytest.mark.parametrize("noise", [0.01, 0.3])
def test_each_sample_has_the_papers_numbers(noise):
    rng = np.random.default_rng(0)
    image = rng.uniform(-1, 1, (3, 3, 20, 24))
    output = (image + noise * rng.normal(size=image.shape) * np.arange(1, 4).reshape(3, 1, 1, 1)).clip(-1, 1)
    found = reconstruction(torch.from_numpy(output), torch.from_numpy(image))
    for name, values in equations(output, image).items():
        assert found[name].dtype == torch.float64
        assert found[name].numpy() == pytest.approx(values, rel=1e-9), name


def test_the_same_image_no_rows_and_single_precision():
    image = torch.rand(2, 3, 16, 16) * 2 - 1
    same = reconstruction(image, image)
    assert same["psnr"].isinf().all() and same["ssim"].tolist() == [1, 1] and same["rmse"].tolist() == [0, 0]
    none = reconstruction(image[:0], image[:0])
    assert {name: (value.shape, value.dtype) for name, value in none.items()} == dict.fromkeys(
        same, ((0,), torch.float64)
    )
    one = reconstruction(image[:1], -image[:1])
    assert all(value.shape == (1,) and value.isfinite().all() for value in one.values())
