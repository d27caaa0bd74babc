"""SEAN under every strategy: both networks' losses, gradients and weights are those of one process."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from pool import CaseError, Pool
from torch import nn

from parallel import Parallel
from parallel.testing import Trace, differences, distances
from zoo.models.sean.config import SeanTrainConfig
from zoo.models.sean.normalization import SeanNorm
from zoo.models.sean.trainer import SeanTrainer
from zoo.parity import train
from zoo_datasets.segmented import Segmented, SegmentedData, SegmentedRow

# No number of ranks here divides the batch, and the last of an epoch has one image.
SMALL = SeanTrainConfig(
    steps=3, image_size=32, filters=2, style_length=4, discriminator_filters=4, batch_size=5, lr=1e-2
)
EACH = [("ddp", 4), ("fsdp", 3), ("zero1", 2), ("zero2", 3), ("zero3", 2), ("zero3-offload", 2), ("tp", 2)]
EACH += [("ddp+tp", 4), ("fsdp+tp", 4), ("hsdp", 4)]
QUICK = [("ddp", 3), ("fsdp", 2), ("tp", 2), ("fsdp+tp", 4)]


@dataclass(frozen=True, eq=False, kw_only=True)
class Patches(Segmented):
    """Noise on label maps of which no two neighbours share a label, and which hold "don't care" too."""

    names: tuple[str, ...] = tuple("abcdef")
    source: str = "patches"
    rows: int = 17
    few: int = 2  # labels a map

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, row: int) -> SegmentedRow:
        draw = np.random.default_rng(row)
        labels = (draw.integers(0, self.few, (self.size, self.size)) + self.few * row) % len(self.names)
        labels[0, : row % 4] = 255
        return {"image": draw.uniform(-1, 1, (3, self.size, self.size)).astype(np.float32), "labels": labels}

    def take(self, rows: np.ndarray) -> Patches:
        assert np.array_equal(rows, np.arange(len(rows)))
        return replace(self, rows=len(rows))

    def name(self, row: int) -> str:
        return f"patch {row}"


class Lively(SeanTrainer):
    """Each part of a normalisation shows from the first step on, the noise too."""

    def _fresh(self, network: Any) -> nn.Module:
        net = super()._fresh(network)
        draw = torch.Generator().manual_seed(0)
        for module in net.modules():
            if isinstance(module, SeanNorm):
                for parameter in (module.noise_var, module.blending_gamma, module.blending_beta):
                    parameter.data = torch.randn(parameter.shape, generator=draw)
        return net


def traced(p: Parallel, config: SeanTrainConfig, few: int = 2) -> Trace:
    size = config.image_size
    data = SegmentedData(Patches(size=size, few=few), Patches(size=size, rows=7, few=few))
    with mock.patch("zoo.models.sean.normalization._HIDDEN", 8):
        return train(Lively(p, config, data), "sean")[0]


def trained(trace: Trace) -> Trace:
    """Without running statistics, of which each rank has its own where it normalises by its own rows."""
    weights = {name: tensor for name, tensor in trace.weights.items() if "param_free_norm" not in name}
    return replace(trace, weights=weights, answers={})


@pytest.fixture(scope="module")
def one_process(ranks: Pool) -> Trace:
    trace = ranks.run(traced, "single", 1, SMALL, precision="fp64")[0]
    assert len(trace.losses) == 4 * SMALL.steps
    assert len(trace.norms) == 2 * SMALL.steps
    assert {name.split(".")[0] for name in trace.weights} == {"net", "discriminator"}
    return trace


@pytest.mark.parametrize(("spec", "n"), QUICK)
def test_both_networks(ranks: Pool, one_process: Trace, spec: str, n: int) -> None:
    got = ranks.run(traced, spec, n, SMALL, precision="fp64")[0]
    assert not differences(one_process, got, "fp64")


def test_parts_on_ranks_are_parts_of_one_process(ranks: Pool) -> None:
    """2 on each of 2 ranks normalise by the rows that 4 of one process do: shares and parts are neighbours."""
    config = replace(SMALL, batch_size=8, steps=2, epochs=None, image_size=64, local_batchnorm=True)
    how = {"precision": "fp64", "local_batchnorm": True}
    want = ranks.run(traced, "single", 1, config, accumulate=4, **how)[0]
    got = ranks.run(traced, "ddp", 2, config, accumulate=2, **how)[0]
    assert not differences(trained(want), trained(got), "fp64")


@pytest.mark.slow
def test_replicas_are_parts_of_one_process_and_differ_from_the_batch(ranks: Pool) -> None:
    config = replace(SMALL, batch_size=8, steps=2, epochs=None, image_size=64, local_batchnorm=True)
    whole = ranks.run(traced, "single", 1, config, precision="fp64")[0]
    want = ranks.run(traced, "single", 1, config, precision="fp64", accumulate=2, local_batchnorm=True)[0]
    got = ranks.run(traced, "dp", 1, config, precision="fp64", replicas=2, local_batchnorm=True)[0]
    assert not differences(trained(want), trained(got), "fp64")
    assert distances(whole, got)["loss"] > 1e-4


def test_what_batchnorm_cannot_do_is_refused(ranks: Pool) -> None:
    with pytest.raises(CaseError, match="Generator: BatchNorm is refused"):
        ranks.run(traced, "dp", 1, SMALL, replicas=2)
    with pytest.raises(CaseError, match="Generator: BatchNorm with accumulate over 1 is refused"):
        ranks.run(traced, "ddp", 2, SMALL, accumulate=2)


def test_widths_that_the_ranks_do_not_divide(ranks: Pool) -> None:
    message = r"layer 'up_3.conv_0': weight axis 0 is 2, which 4 tensor-parallel ranks do not divide; allowed degrees: 1, 2"
    with pytest.raises(CaseError, match=message):
        ranks.run(traced, "tp", 4, SMALL)


LONG = replace(SMALL, steps=10, epochs=None, filters=4, flip=True)


@pytest.fixture(scope="module", params=[1, 2, 6])
def ten_steps(ranks: Pool, request: pytest.FixtureRequest) -> tuple[int, Trace]:
    return request.param, ranks.run(traced, "single", 1, LONG, request.param, precision="fp64")[0]


@pytest.mark.slow
@pytest.mark.parametrize(("spec", "n"), [*EACH, ("tp", 4), ("ddp", 3)])
def test_every_strategy_for_ten_steps(ranks: Pool, ten_steps: tuple[int, Trace], spec: str, n: int) -> None:
    few, want = ten_steps
    got = ranks.run(traced, spec, n, LONG, few, precision="fp64")[0]
    assert not differences(want, got, "fp64")


PARTS = replace(LONG, steps=4, batch_size=8, image_size=64, local_batchnorm=True)
BY_PARTS: dict[str, Any] = {"precision": "fp64", "local_batchnorm": True}


@pytest.fixture(scope="module")
def in_parts(ranks: Pool) -> dict[int, Trace]:
    """One process's run in 2, 4 and 8 parts."""
    return {
        parts: ranks.run(traced, "single", 1, PARTS, accumulate=parts, **BY_PARTS)[0] for parts in (2, 4, 8)
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spec", "n"), [(spec, 2 if n == 3 else n) for spec, n in EACH]
)  # which divides the batch
def test_every_strategy_in_two_parts(ranks: Pool, in_parts: dict[int, Trace], spec: str, n: int) -> None:
    shares = {"tp": 1, "ddp+tp": 2, "fsdp+tp": 2}.get(spec, n)
    got = ranks.run(traced, spec, n, PARTS, accumulate=2, **BY_PARTS)[0]
    assert not differences(trained(in_parts[2 * shares]), trained(got), "fp64")


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"gan_loss": "least-squares"}, {"gan_loss": "original"}])
def test_other_losses(ranks: Pool, options: dict[str, Any]) -> None:
    config = replace(SMALL, **options)
    want = ranks.run(traced, "single", 1, config, precision="fp64")[0]
    for spec, n in QUICK[:3]:
        got = ranks.run(traced, spec, n, config, precision="fp64")[0]
        assert not differences(want, got, "fp64"), spec
