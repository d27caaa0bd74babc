"""ViT's training loop against loops without the zoo, interleaved in one run, a thread a process.

raw         written by hand: torch's AdamW, clipping and schedule; under ``ddp`` torch's DistributedDataParallel.
fabric      the same loop through Lightning Fabric; accelerate: through Hugging Face Accelerate. With their loaders.

All train the default net on scikit-learn's digits, with the same global batches of 32 images. On a machine with a
GPU the same is done with ViT-B/16 on images of 224 pixels in bf16, with memory and the share of the card's peak.

    python benchmarks/vit.py [--part single|ddp] [--pairs 9] [--steps 45] [--peers fabric accelerate] [--json]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from torch.utils.flop_counter import FlopCounterMode

from parallel.interface import Parallel
from parallel.launcher import launch
from zoo.models.vit.arch import create_vit
from zoo.models.vit.config import ViTConfig
from zoo.models.vit.groups import parameter_groups
from zoo.models.vit.schedule import warmup_cosine
from zoo.models.vit.trainer import ViTTrainer
from zoo_datasets.images import ImageData, load_images
from zoo_datasets.images_types import ArrayImages

# Dense bf16 FLOP/s that NVIDIA's data sheets give, by a part of the card's name.
PEAKS = {"A100": 312e12, "H100 PCIe": 756e12, "H100": 989e12, "H200": 989e12, "B200": 2250e12, "L4": 121e12}


def settings() -> tuple[ViTConfig, ImageData | None]:
    """What is trained: small on a CPU, ViT-B/16 on a GPU, whose images are noise."""
    if not torch.cuda.is_available():
        return ViTConfig(), None
    generator = np.random.default_rng(0)
    images = ArrayImages(
        pixels=generator.integers(0, 256, (2048, 3, 224, 224), dtype=np.uint8),
        labels=generator.integers(0, 10, 2048),
        classes=[str(label) for label in range(10)],
        source="noise",
    )
    config = ViTConfig(arch="vit_base_patch16_224", batch_size=128, precision="bf16-mixed")
    return config, ImageData(images, images, images.classes)


class Plain:
    """What one would write: ``steps()`` yields after each step of training."""

    def __init__(self, start: ViTTrainer, rank: int, size: int) -> None:
        self.config, self.rank, self.size = start.config, rank, size
        data = start.images or load_images(start.config.data, start.config.seed)
        assert isinstance(data.train, ArrayImages)
        self.images, self.labels = torch.from_numpy(data.train.pixels), torch.from_numpy(data.train.labels)
        self.device = start.p.device
        self.net = create_vit(start.net_arguments["arch"], start.net_arguments["args"]).to(self.device)
        self.net.load_state_dict(start.models["net"].state_dict())
        options = parameter_groups(self.net, self.config.lr, self.config.weight_decay, 1.0)
        grouped: dict[str, dict[str, Any]] = {}
        for name, parameter in self.net.named_parameters():
            own = options(name, parameter)
            grouped.setdefault(repr(own), {**own, "params": []})["params"].append(parameter)
        self.optimizer: Any = torch.optim.AdamW(grouped.values())
        total = self.config.total_steps(len(start.train))
        self.schedule = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer, warmup_cosine(total, self.config.warmup)
        )
        self.half = self.config.precision == "bf16-mixed"
        self.prepare()

    def prepare(self) -> None:
        self.wrapped: Any = self.net
        if self.size > 1:
            self.wrapped = DistributedDataParallel(self.net)

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """In memory, indexed: what costs least."""
        images, labels = self.images.to(self.device), self.labels.to(self.device)
        share = self.config.batch_size // self.size
        while True:
            order = torch.randperm(len(labels)).to(self.device)
            for batch in order.split(self.config.batch_size):
                own = batch[self.rank * share : (self.rank + 1) * share]
                if len(own):
                    yield images[own], labels[own]

    def loader(self) -> DataLoader[Any]:
        data = TensorDataset(self.images, self.labels)
        share = self.config.batch_size // self.size
        if self.size > 1:
            sampler = DistributedSampler(data, self.size, self.rank, shuffle=True)
            return DataLoader(data, share, sampler=sampler)
        return DataLoader(data, share, shuffle=True)

    def autocast(self) -> Any:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.half)

    def backward(self, loss: Tensor) -> None:
        loss.backward()

    def clip(self) -> None:
        assert self.config.clip_norm is not None
        nn.utils.clip_grad_norm_(self.net.parameters(), self.config.clip_norm)

    def steps(self) -> Iterator[None]:
        for images, labels in self.batches():
            x = images.float().div_(127.5).sub_(1.0)
            with self.autocast():
                logits = self.wrapped(x)
            loss = F.cross_entropy(logits.float(), labels)
            self.backward(loss)
            self.clip()
            self.optimizer.step()
            self.schedule.step()
            self.optimizer.zero_grad()
            yield


class Fabric(Plain):
    """The same through Lightning Fabric."""

    def prepare(self) -> None:
        from lightning_fabric import Fabric as LightningFabric

        strategy = "ddp" if self.size > 1 else "auto"
        precision = "bf16-mixed" if self.half else "32-true"
        self.fabric = LightningFabric(
            accelerator=self.device.type, devices=self.size, strategy=strategy, precision=precision
        )
        self.fabric.launch()
        self.wrapped, self.optimizer = self.fabric.setup(self.net, self.optimizer)
        self.data = self.fabric.setup_dataloaders(self.loader(), use_distributed_sampler=False)

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        while True:
            yield from self.data

    def autocast(self) -> Any:
        return self.fabric.autocast()

    def backward(self, loss: Tensor) -> None:
        self.fabric.backward(loss)

    def clip(self) -> None:
        self.fabric.clip_gradients(
            self.wrapped, self.optimizer, max_norm=self.config.clip_norm, error_if_nonfinite=False
        )


class Accelerate(Plain):
    """The same through Hugging Face Accelerate."""

    def prepare(self) -> None:
        from accelerate import Accelerator

        self.accelerator = Accelerator(
            cpu=self.device.type == "cpu", mixed_precision="bf16" if self.half else "no"
        )
        share = self.config.batch_size // self.size
        data = DataLoader(TensorDataset(self.images, self.labels), share, shuffle=True)
        self.wrapped, self.optimizer, self.data = self.accelerator.prepare(self.net, self.optimizer, data)

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        while True:
            yield from self.data

    def autocast(self) -> Any:
        return self.accelerator.autocast()

    def backward(self, loss: Tensor) -> None:
        self.accelerator.backward(loss)

    def clip(self) -> None:
        self.accelerator.clip_grad_norm_(self.wrapped.parameters(), self.config.clip_norm)


PEERS: dict[str, type[Plain]] = {"raw": Plain, "fabric": Fabric, "accelerate": Accelerate}


def measure(p: Parallel, peers: list[str], pairs: int, steps: int) -> dict[str, Any]:
    """Images per second of ours and of each peer: all take ``steps`` steps in turn, ``pairs`` times."""
    if p.device.type == "cpu":
        torch.set_num_threads(1)
    config, images = settings()
    trainer = ViTTrainer(p, config, images)
    trainer.build()

    def ours() -> Iterator[None]:
        while True:
            for batch in trainer.train:
                trainer.step(batch)
                yield

    loops = {"ours": ours()} | {name: PEERS[name](trainer, p.rank, p.world_size).steps() for name in peers}

    def seconds(loop: Iterator[None]) -> float:
        p.barrier()
        synchronise(p.device)
        begun = time.perf_counter()
        for _ in range(steps):
            next(loop)
        synchronise(p.device)
        p.barrier()
        return time.perf_counter() - begun

    for loop in loops.values():  # to warm up
        seconds(loop)
    found: dict[str, list[float]] = {name: [] for name in loops}
    for number in range(pairs):
        names = list(loops) if number % 2 else list(reversed(loops))
        for name in names:
            found[name].append(seconds(loops[name]))
    rows = steps * config.batch_size
    result: dict[str, Any] = {
        "ranks": p.world_size,
        "device": torch.cuda.get_device_name() if p.device.type == "cuda" else "cpu",
        "images_per_second": {
            name: round(rows / statistics.median(times), 1) for name, times in found.items()
        },
        # Of each pair by itself, so that what else the machine does enters both.
        "times_of_ours": {
            name: round(statistics.median(b / a for a, b in zip(found["ours"], found[name], strict=True)), 3)
            for name in peers
        },
    }
    if p.device.type == "cuda":
        result |= card(trainer, rows / statistics.median(found["ours"]))
    return result


def card(trainer: ViTTrainer, rate: float) -> dict[str, Any]:
    """Memory, and the share of the card's bf16 peak: a backward is counted as two forwards."""
    name = torch.cuda.get_device_name()
    peak = next((flops for part, flops in PEAKS.items() if part in name), None)
    size = trainer.input["img_size"]
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        trainer.models["net"](torch.zeros(1, trainer.input["in_chans"], size, size, device=trainer.p.device))
    flops = 3 * counter.get_total_flops() * rate / trainer.p.world_size
    return {
        "peak_memory_GB": round(torch.cuda.max_memory_allocated() / 1e9, 2),
        "tflops_a_card": round(flops / 1e12, 1),
        "share_of_bf16_peak": round(flops / peak, 3) if peak else None,
    }


def synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--part", choices=("single", "ddp"), default="single")
    parser.add_argument("--nproc", type=int, default=2, help="ranks of the part ddp")
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--steps", type=int, default=45, help="of each loop in a pair")
    parser.add_argument("--peers", nargs="+", choices=tuple(PEERS), default=list(PEERS))
    parser.add_argument("--json", action="store_true", help="one line of JSON")
    options = parser.parse_args()
    if options.part == "ddp" and "RANK" not in os.environ:
        # Under torchrun, since that is where all four find their ranks.
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(options.nproc)]
        sys.exit(subprocess.call([sys.executable, *launcher, *sys.argv]))
    precision = settings()[0].precision
    work: Callable[..., Any] = measure
    result = launch(work, options.part, options.peers, options.pairs, options.steps, precision=precision)
    if result is None or int(os.environ.get("RANK", "0")) > 0:
        return
    result = {"part": options.part, **result}
    print(
        json.dumps(result)
        if options.json
        else "\n".join(f"{name}: {value}" for name, value in result.items())
    )


if __name__ == "__main__":
    main()
