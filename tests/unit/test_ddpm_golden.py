"""The published toy's tensors, reproduced: `ddpm/toy_golden.safetensors` of the reference data.

They were computed in float32. Its alpha_bar, a float32 product, is up to 2.5e-7 off; where 1 - alpha_bar is
small, at the first steps, that alone moves x_t by 1.4e-6. So x_t is compared to 1e-6 from the file's own
alpha_bar, and from ours to 1e-6 plus 1e-6 of the value.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from zoo.models.ddpm.convert import load_published
from zoo.models.ddpm.diffusion import Diffusion
from zoo.models.ddpm.model import DenoisingMLP
from zoo.models.ddpm.sampler import SamplerConfig, reverse_steps
from zoo.models.ddpm.schedule import Schedule, linear_schedule


def close(got: Tensor, wanted: Tensor, rtol: float = 0.0) -> None:
    torch.testing.assert_close(got.to(wanted.dtype), wanted, rtol=rtol, atol=1e-6)


@pytest.fixture(scope="module")
def golden(reference: Path) -> dict[str, Tensor]:
    return load_file(reference / "ddpm" / "toy_golden.safetensors")


@pytest.fixture(scope="module")
def diffusion() -> Diffusion:
    return Diffusion(linear_schedule(1000))


@pytest.fixture(scope="module")
def network(golden: dict[str, Tensor], tmp_path_factory: pytest.TempPathFactory) -> DenoisingMLP:
    """The published weights, by way of a checkpoint as the published toy saves it."""
    path = tmp_path_factory.mktemp("published") / "toy.pth"
    state = {
        name.removeprefix("model."): tensor for name, tensor in golden.items() if name.startswith("model.")
    }
    torch.save({"model": state}, path)
    return load_published(path)


def test_schedule(golden: dict[str, Tensor], diffusion: Diffusion) -> None:
    close(diffusion.schedule.beta, golden["beta"])
    close(diffusion.schedule.alpha_bar, golden["alpha_bar"])
    close(diffusion.posterior_variance("beta_tilde"), golden["posterior_variance"])


def test_noisy_vectors(golden: dict[str, Tensor], diffusion: Diffusion) -> None:
    inputs = golden["x0"], golden["t"], golden["noise"]
    close(diffusion.q_sample(*inputs), golden["x_t"], rtol=1e-6)
    alpha_bar = golden["alpha_bar"].double()
    before = torch.cat([torch.ones(1, dtype=torch.float64), alpha_bar[:-1]])
    close(Diffusion(Schedule(1 - alpha_bar / before)).q_sample(*inputs), golden["x_t"])


def test_predicted_noise(golden: dict[str, Tensor], network: DenoisingMLP) -> None:
    close(network(golden["x_t"], golden["t"]), golden["predicted_noise"])


@pytest.mark.parametrize("sampler", ["ddpm", "ddim"])
def test_one_reverse_step(
    golden: dict[str, Tensor], diffusion: Diffusion, network: DenoisingMLP, sampler: str
) -> None:
    steps = {step.t: step for step in reverse_steps(diffusion, SamplerConfig(sampler), 999)}  # type: ignore[arg-type]
    output = network(golden["x_t"], golden["t"])
    for row, t in enumerate(golden["t"].tolist()):
        step = steps[t]
        x = step.of_x_t * golden["x_t"][row] + step.of_output * output[row] + step.of_noise * golden["z"][row]
        close(x, golden[f"{sampler}_previous"][row])
