"""ViT's training, over any strategy."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from parallel.batch import Batch
from parallel.interface import Parallel
from parallel.plan import Plan
from zoo.config import resolved
from zoo.models.vit.arch import input_of, resolve_arch, statistics_of
from zoo.models.vit.config import ViTConfig
from zoo.models.vit.groups import freeze, parameter_groups
from zoo.models.vit.metrics import accuracy
from zoo.models.vit.mix import draw_mix
from zoo.models.vit.plan import plan_of
from zoo.models.vit.pretrained import pretrained_net
from zoo.models.vit.report import write_report
from zoo.models.vit.samples import PairSampler, evaluation_rows, training_rows
from zoo.models.vit.schedule import warmup_cosine
from zoo.trainer import Evaluation, Numbers, Rows, Trainer
from zoo_datasets.images import ImageData, load_images
from zoo_datasets.images_check import bad_rows, without_rows
from zoo_datasets.images_folder import image_files
from zoo_datasets.images_types import FileImages, Images

log = logging.getLogger("zoo")

AnyImages = TypeVar("AnyImages", bound=Images)


class ViTTrainer(Trainer[ViTConfig]):
    """Trains a Vision Transformer of timm with AdamW.

    Args:
        images: to train and evaluate on, in place of ``config.data``.
    """

    best_metric = "top1"

    def __init__(self, p: Parallel, config: ViTConfig, images: ImageData | None = None) -> None:
        super().__init__(p, config)
        self.images = images
        self.dtype = torch.float64 if p.precision == "fp64" else torch.float32

    def build(self) -> None:
        p, config = self.p, self.config
        data = self.images or load_images(config.data, config.seed, keep=self._readable)
        self.classes, self.eval_images, train = data.classes, data.eval, data.train
        arch, args = resolve_arch(config.arch, config.arch_args())
        args["num_classes"] = len(data.classes)
        with torch.device("meta"):
            shape = pretrained_net(arch, args, data.classes, "none", config.seed)
        self._take_input(shape)
        args |= self.input
        self.net_arguments = {"arch": arch, "args": args}

        def make() -> nn.Module:
            net = pretrained_net(arch, args, data.classes, config.pretrained, config.seed)
            freeze(net, config.freeze)
            return net

        net = self.models["net"] = p.wrap(make, self.plan(shape))
        if config.ema:
            self.emas["net"] = p.ema(net, config.ema)
        rows = training_rows(train, self.input["img_size"], self.input["in_chans"], config)
        order: dict[str, Any] = {"shuffle": True}
        if config.mixup or config.cutmix:
            order = {"sampler": PairSampler(len(train), config.seed)}
        self.train = p.loader(rows, config.batch_size, seed=config.seed, workers=config.workers, **order)
        self.optimizers["net"] = p.optimizer(
            net,
            torch.optim.AdamW,
            lr=config.lr,
            groups=parameter_groups(shape, config.lr, config.weight_decay, config.layer_decay),
            schedule=warmup_cosine(config.total_steps(len(self.train)), config.warmup),
            clip_norm=config.clip_norm,
        )
        trainable = sum(parameter.numel() for parameter in shape.parameters())
        log.info(
            "%s: %d images of %d classes; %s, %d numbers",
            train.source,
            len(train),
            len(data.classes),
            arch,
            trainable,
        )

    def step(self, batch: Batch) -> Numbers:
        opt, config = self.optimizers["net"], self.config
        mix = None
        if config.mixup or config.cutmix:
            size = self.input["img_size"]
            mix = draw_mix(batch.key("mix"), config.mixup, config.cutmix, size, size)
        total = torch.zeros((), dtype=self.dtype, device=self.p.device)
        for part in self.p.parts(batch):
            x, target = self.normalised(part["image"]), part["label"]
            if mix is not None:
                x = mix.images(x, self.normalised(part["partner_image"]))
                target = mix.targets(target, part["partner_label"], len(self.classes), self.dtype)
            with self.p.autocast():
                logits = self.models["net"](x)
            losses = F.cross_entropy(
                logits.to(self.dtype), target, reduction="none", label_smoothing=config.label_smoothing
            )
            loss = losses.sum() / batch.size
            self.p.backward(loss, opt)
            total += loss.detach()
        return {"loss": total, "optimizer": self.p.step(opt)}

    def describe(self) -> dict[str, Any]:
        return {"model": self.net_arguments, "classes": self.classes, "data": resolved(self.config.data)}

    def plan(self, net: nn.Module) -> Plan:
        return plan_of(net, self.config.recompute)

    def restore(self, net: nn.Module, description: Mapping[str, Any]) -> None:
        super().restore(net, description)
        self.classes = description["classes"]
        self._take_input(net)

    def evaluate(self) -> Evaluation | None:
        images = self.evaluation_images()
        if images is None:
            return None
        logits = self.logits(images)
        rows: dict[str, Any] = {"label": images.labels, "logits": logits}
        return Evaluation(accuracy(logits, images.labels), rows)

    def report(self, folder: Path, evaluation: Evaluation) -> None:
        images = self.evaluation_images()
        assert images is not None
        write_report(
            folder, np.asarray(evaluation.rows["logits"]), images, f"ViT, {self.net_arguments['arch']}"
        )

    def predict(self, path: Path) -> Rows:
        images = self._images_below(path)
        logits = self.logits(images)
        predicted = logits.argmax(axis=1)
        wide = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
        return {
            "image": [images.name(row) for row in range(len(images))],
            "label": [self.classes[label] for label in predicted],
            "probability": (wide.max(axis=1) / wide.sum(axis=1)).tolist(),
        }

    def features(self, path: Path) -> np.ndarray:
        return self._computed(self._images_below(path), self._embed)

    def logits(self, images: Images) -> np.ndarray:
        """[rows, classes], in the images' order and the same on every rank."""
        return self._computed(images, self.models["net"])

    def _embed(self, x: Tensor) -> Tensor:
        """[rows, width], what the head is given."""
        net: Any = self.models["net"]
        return net.forward_head(net.forward_features(x), pre_logits=True)

    def _computed(self, images: Images, function: Callable[[Tensor], Tensor]) -> np.ndarray:
        rows = evaluation_rows(images, self.input["img_size"], self.input["in_chans"])
        found, index = [], []
        for batch in self.p.loader(rows, self.config.batch_size, workers=self.config.workers):
            with self.p.autocast():
                found.append(function(self.normalised(batch["image"])).to(self.dtype))
            index.append(batch.index)
        return self.p.gather(torch.cat(found), torch.cat(index)).cpu().numpy()

    def normalised(self, image: Tensor) -> Tensor:
        """uint8 [rows, channels, height, width] -> numbers, shifted and scaled as timm does for the architecture."""
        return image.to(self.dtype).mul_(self.scale).add_(self.shift)

    def _images_below(self, path: Path) -> FileImages:
        paths = [path] if path.is_file() else image_files(path)
        return self._readable(
            FileImages(
                paths=paths, labels=np.zeros(len(paths), np.int64), classes=self.classes, source=str(path)
            )
        )

    def evaluation_images(self) -> Images | None:
        """The images that are kept for evaluation, of ``config.data`` or of what was trained on."""
        if not hasattr(self, "description"):
            return self.eval_images
        data = self.config.data if self.config.data is not None else self.description["data"]
        return None if data is None else load_images(data, self.config.seed, keep=self._readable).eval

    def _take_input(self, net: nn.Module) -> None:
        """What the net takes, and the line from a pixel's 0 to 255 to it."""
        self.input = input_of(net)
        mean, std = (
            torch.tensor(values, dtype=self.dtype, device=self.p.device).view(-1, 1, 1)
            for values in statistics_of(net)
        )
        self.scale, self.shift = 1 / (255 * std), -mean / std

    def _readable(self, images: AnyImages) -> AnyImages:
        """With ``--skip-bad``, the images that can be read; looked for on one rank."""
        if not self.config.skip_bad:
            return images
        bad = self.p.broadcast(bad_rows(images) if self.p.is_main else None)
        if bad:
            log.warning(
                "%s: %d images cannot be read and are left out, the first is %s",
                images.source,
                len(bad),
                images.name(bad[0]),
            )
        return without_rows(images, bad)
