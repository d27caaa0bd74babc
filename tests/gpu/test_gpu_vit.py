"""What needs a card: which device is taken, NCCL, bf16, pinned memory, compiled blocks. Chosen with ``-m gpu``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist

import parallel
from parallel.testing import Trace, differences
from zoo.models.vit.config import ViTConfig
from zoo.models.vit.trainer import ViTTrainer
from zoo.parity import train

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device, and torch sees none"),
]

CONFIG = ViTConfig(steps=10, dropout=0.1, attn_dropout=0.1, drop_path=0.1, mixup=0.8, ema=0.9)


def traced(p: parallel.Parallel, config: ViTConfig) -> Trace:
    return train(ViTTrainer(p, config), "vit")[0]


def found(p: parallel.Parallel, config: ViTConfig) -> dict[str, Any]:
    trainer = ViTTrainer(p, config)
    trainer.build()
    batch = next(iter(trainer.train))
    return {
        "device": p.device.type,
        "backend": dist.get_backend() if dist.is_initialized() else None,
        "weights": {parameter.device.type for parameter in trainer.models["net"].parameters()},
        "dtype": {parameter.dtype for parameter in trainer.models["net"].parameters()},
        "batch": batch["image"].device.type,
        "loss": trainer.step(batch)["loss"].dtype,
    }


def devices() -> int:
    return torch.cuda.device_count()


def test_a_card_is_taken_where_there_is_one():
    got = parallel.launch(found, "single", CONFIG)
    assert got["device"] == got["batch"] == "cuda" and got["weights"] == {"cuda"} and got["backend"] is None


def test_ranks_on_cards_speak_nccl():
    got = parallel.launch(found, "ddp", CONFIG, nproc=devices())
    assert got["device"] == "cuda"
    assert got["backend"] == ("nccl" if devices() > 1 else got["backend"])


@pytest.mark.parametrize("spec", ["ddp", "fsdp", "tp"])
def test_the_cpu_is_kept_where_it_is_asked_for(spec):
    """FSDP2, for one, takes a card where it is handed no mesh."""
    got = parallel.launch(found, spec, CONFIG, nproc=2, device="cpu")
    assert got["device"] == got["batch"] == "cpu" and got["weights"] == {"cpu"} and got["backend"] == "gloo"


def test_a_card_gives_the_cpus_numbers():
    """In fp64; draws are keyed and computed in integers, so dropout's masks are the same too."""
    want = parallel.launch(traced, "single", CONFIG, precision="fp64", device="cpu")
    got = parallel.launch(traced, "single", CONFIG, precision="fp64")
    assert not differences(want, got, "fp64")


@pytest.mark.parametrize("spec", ["ddp", "fsdp", "zero1", "zero2", "zero3", "zero3-offload", "tp"])
def test_strategies_on_cards(spec):
    if devices() < 2:
        pytest.skip(f"needs two cards, there are {devices()}")
    want = parallel.launch(traced, "single", CONFIG, precision="fp64")
    got = parallel.launch(traced, spec, CONFIG, nproc=2, precision="fp64")
    assert not differences(want, got, "fp64")


def test_bf16_follows_fp32():
    config = replace(CONFIG, steps=20, dropout=0.0, attn_dropout=0.0, drop_path=0.0)
    want = parallel.launch(traced, "single", config)
    got = parallel.launch(traced, "single", config, precision="bf16-mixed")
    assert max(abs(a - b) / a for a, b in zip(want.losses, got.losses, strict=True)) < 0.05
    assert parallel.launch(found, "single", config, precision="bf16-mixed")["dtype"] == {torch.float32}


def test_batches_of_workers_come_through_pinned_memory(monkeypatch):
    config = replace(CONFIG, randaugment=1, workers=2)
    seen: list[bool] = []
    original = torch.Tensor.to

    def to(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if self.dtype == torch.uint8 and self.device.type == "cpu":
            seen.append(self.is_pinned())
        return original(self, *args, **kwargs)

    def main(p: parallel.Parallel) -> None:
        trainer = ViTTrainer(p, config)
        trainer.build()
        monkeypatch.setattr(torch.Tensor, "to", to)
        next(iter(trainer.train))

    parallel.launch(main, "single")
    assert seen and all(seen)


def test_compiled_blocks_give_the_losses_of_plain_ones():
    want = parallel.launch(traced, "single", CONFIG)
    got = parallel.launch(traced, "single", CONFIG, compile=True)
    assert max(abs(a - b) for a, b in zip(want.losses, got.losses, strict=True)) < 1e-4
