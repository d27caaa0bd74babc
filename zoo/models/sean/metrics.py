"""How near a reconstruction is to its image: one number a sample, so that means over all ranks are exact."""

from __future__ import annotations

import torch
from torch import Tensor


def reconstruction(output: Tensor, image: Tensor) -> dict[str, Tensor]:
    """psnr (dB), ssim and rmse of each sample, float64 [rows], of values brought to 0..1, as the paper's table 1.

    psnr: -10 log10 of the mean squared error, infinite where there is none. ssim: Wang et al. 2004, IEEE TIP 13,
    equation 13, with its 11 x 11 Gaussian window, mirrored at the border. rmse: root of the mean squared error.

    Args:
        output, image: [rows, 3, height, width] in [-1, 1], of at least 6 pixels a side; there may be no rows.
    """
    if not output.shape[0]:  # an empty share of a batch, of which torchmetrics makes no windows
        return {name: output.new_zeros(0, dtype=torch.float64) for name in ("psnr", "ssim", "rmse")}
    # Imported here, for it takes longer than torch. Its PSNR is rounded to float32 on the way.
    from torchmetrics.functional.image import structural_similarity_index_measure

    ours, theirs = ((x.double() + 1.0) / 2.0 for x in (output, image))
    ssim = structural_similarity_index_measure(ours, theirs, data_range=1.0, reduction="none")
    assert isinstance(ssim, Tensor)
    rmse = (ours - theirs).square().flatten(1).mean(1).sqrt()
    return {"psnr": -20.0 * rmse.log10(), "ssim": ssim, "rmse": rmse}
