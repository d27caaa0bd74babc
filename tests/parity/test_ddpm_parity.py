"""The toy DDPM under every strategy: the losses, weights and samples of one process."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from pool import Pool

from parallel.interface import Parallel
from parallel.testing import Trace, differences
from zoo.models.ddpm.config import DDPMConfig, DDPMSampleConfig
from zoo.models.ddpm.trainer import DDPMTrainer
from zoo.trainer import evaluating

LAYOUTS = [("dp", 1), ("ddp", 2), ("ddp", 3), ("ddp", 4), ("fsdp", 3), ("zero1", 2), ("zero2", 3)]
LAYOUTS += [("zero3", 2), ("zero3-offload", 2), ("tp", 2), ("ddp+tp", 4), ("fsdp+tp", 4), ("hsdp", 4)]

SMALL: dict[str, Any] = {"width": 24, "batch_size": 22, "diffusion_steps": 12, "steps": 20, "eval_samples": 0}


def train_and_sample(p: Parallel, options: dict[str, Any]) -> tuple[Trace, np.ndarray, np.ndarray]:
    """20 steps, then 21 samples from noise and 5 from a given vector: numbers that no number of ranks divides."""
    trainer = DDPMTrainer(p, DDPMConfig(**options))
    trainer.build()
    trace = Trace()
    for number, batch in enumerate(trainer.train, start=1):
        numbers = trainer.step(batch)
        info = numbers["optimizer"]
        trace.losses.append(float(p.sum(numbers["loss"])))
        trace.norms.append(float(info.grad_norm))
        trace.lrs.append(info.lr)
        if number == options["steps"]:
            break
    with evaluating(trainer):
        table = trainer.sample(DDPMSampleConfig(run="", n=21, seed=3))
        given = trainer.sample(DDPMSampleConfig(run="", n=5, seed=3, from_=(1, 2, 3, 4), start_step=5))
    trace.weights = p.state_dict(trainer.models["net"])
    return trace, np.array(list(table.values())), np.array(list(given.values()))


@pytest.fixture(scope="module")
def one_process(ranks: Pool) -> tuple[Trace, np.ndarray, np.ndarray]:
    return ranks.run(train_and_sample, "single", 1, SMALL, precision="fp64")[0]


@pytest.mark.parametrize(
    ("spec", "n"),
    LAYOUTS,
)
def test_losses_weights_and_samples_are_those_of_one_process(
    ranks: Pool, one_process: tuple[Trace, np.ndarray, np.ndarray], spec: str, n: int
) -> None:
    more = {"replicas": 3} if spec == "dp" else {}
    everyone = ranks.run(train_and_sample, spec, n, SMALL, precision="fp64", **more)
    trace, samples, given = everyone[0]
    assert not differences(one_process[0], trace, "fp64")
    for _, other, _ in everyone:
        np.testing.assert_array_equal(other, samples)
    np.testing.assert_allclose(samples, one_process[1], atol=1e-5)  # rows are float32 in data units
    np.testing.assert_allclose(given, one_process[2], atol=1e-5)


def test_parts_equal_the_batch(ranks: Pool, one_process: tuple[Trace, np.ndarray, np.ndarray]) -> None:
    trace, samples, _ = ranks.run(train_and_sample, "ddp", 2, SMALL, precision="fp64", accumulate=3)[0]
    assert not differences(one_process[0], trace, "fp64")
    np.testing.assert_allclose(samples, one_process[1], atol=1e-5)


def test_samples_depend_on_their_seed_and_place_alone(ranks: Pool) -> None:
    def run(n: int, seed: int) -> np.ndarray:
        return ranks.run(draw, "single", 1, n, seed)[0]

    few, many, other = run(4, 3), run(9, 3), run(4, 4)
    np.testing.assert_allclose(few, many[:, :4], atol=1e-5)
    assert np.abs(few - other).min(axis=1).max() > 1e-3


def draw(p: Parallel, n: int, seed: int) -> np.ndarray:
    trainer = DDPMTrainer(p, DDPMConfig(**SMALL))
    trainer.build()
    with torch.no_grad():
        return np.array(list(trainer.sample(DDPMSampleConfig(run="", n=n, seed=seed)).values()))
