"""SEAN's training: two networks and two optimizers, over any strategy."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from parallel.batch import Batch
from parallel.interface import Parallel
from parallel.plan import Plan
from parallel.rng import make_key
from zoo.config import resolved
from zoo.models.sean.biases import freeze_dead_biases
from zoo.models.sean.config import SCENES, SeanConfig, SeanTrainConfig
from zoo.models.sean.discriminator import Discriminator
from zoo.models.sean.flip import flipped, mirror_table
from zoo.models.sean.generator import Generator
from zoo.models.sean.loss import discriminator_loss, feature_matching_loss, generator_loss
from zoo.models.sean.metrics import reconstruction
from zoo.models.sean.perceptual import PerceptualLoss
from zoo.models.sean.plan import DISCRIMINATOR, GENERATOR
from zoo.models.sean.report import write_report
from zoo.models.sean.sample_config import SeanSampleConfig
from zoo.models.sean.sampling import Sampler, mean_styles_over
from zoo.models.sean.schedule import linear_decay
from zoo.models.sean.styles import Styles
from zoo.picture import Picture
from zoo.pretrained import begin_from
from zoo.trainer import Evaluation, Numbers, Trainer, evaluating
from zoo_datasets.errors import InputError
from zoo_datasets.label_maps import load_label_maps
from zoo_datasets.segmented import MapFormat, Segmented, SegmentedData

log = logging.getLogger("zoo")

_SHOWN = 8  # reconstructions in the report
_AVERAGED = 256  # training images that mean styles are taken over


class SeanTrainer(Trainer[SeanTrainConfig]):
    """Learns to reconstruct images from their label maps and the style of each of their regions.

    Zhu et al. 2020, section 3.3. The report shows the first images that are held out.

    Args:
        data: to train and evaluate on, in place of ``config.data``.
    """

    best_metric = "psnr"
    evaluates_start = True

    def __init__(self, p: Parallel, config: SeanTrainConfig, data: SegmentedData | None = None) -> None:
        super().__init__(p, config)
        self.data = data
        self.dtype = torch.float64 if p.precision == "fp64" else torch.float32

    def build(self) -> None:
        p, config = self.p, self.config
        data = self.data = self.data or self._load(config.data, config.dont_care)
        self.names, self.mirror = data.names, mirror_table(data.names)
        self._take_sizes(config.sizes(len(data.names)))
        self._check_rows(len(data.train))
        generator = self.models["net"] = p.wrap(lambda: self._fresh(Generator), GENERATOR)
        discriminator = self.models["discriminator"] = p.wrap(
            lambda: self._fresh(Discriminator), DISCRIMINATOR
        )
        begin_from(p, config.pretrained, "sean", self.models)
        self.perceptual = self._perceptual()
        self.train = p.loader(
            data.train, config.batch_size, shuffle=True, seed=config.seed, workers=config.workers
        )
        schedule = linear_decay(config.total_steps(len(self.train)))
        # Two time scales (Heusel et al. 2017, arXiv 1706.08500): the discriminator learns faster.
        for name, net, factor in (("net", generator, 0.5), ("discriminator", discriminator, 2.0)):
            self.optimizers[name] = p.optimizer(
                net, torch.optim.Adam, lr=factor * config.lr, betas=(0.0, 0.9), schedule=schedule
            )
        log.info("%s: %d images of %d labels", data.train.source, len(data.train), len(data.names))
        if config.local_batchnorm:
            log.info("--local-batchnorm: ranks and parts normalise by their own rows, unlike one process")

    def step(self, batch: Batch) -> Numbers:
        return self._train_generator(batch) | self._train_discriminator(batch)

    def _train_generator(self, batch: Batch) -> dict[str, Any]:
        p, config = self.p, self.config
        generator, discriminator = self.models["net"], self.models["discriminator"]
        sums = _Sums(batch, self.dtype)
        with p.frozen(discriminator):
            for part in p.parts(batch):
                image, labels = self._seen(part)
                with p.autocast():
                    fake = generator(labels, image, noise=self._noise(part, "generator"))
                    judged = discriminator(labels, fake)
                    with torch.no_grad():
                        real = discriminator(labels, image)
                    losses = {
                        "gan": generator_loss(judged, mode=config.gan_loss),
                        "feature_matching": config.feature_matching * feature_matching_loss(judged, real),
                    }
                    if self.perceptual is not None:
                        losses["perceptual"] = config.perceptual * self.perceptual(fake, image)
                p.backward(sums.add(losses), self.optimizers["net"])
        return {**sums.totals, "generator": p.step(self.optimizers["net"])}

    def _train_discriminator(self, batch: Batch) -> dict[str, Any]:
        p, mode = self.p, self.config.gan_loss
        generator, discriminator = self.models["net"], self.models["discriminator"]
        sums = _Sums(batch, self.dtype)
        for part in p.parts(batch):
            image, labels = self._seen(part)
            with p.autocast():
                with torch.no_grad():
                    fake = generator(labels, image, noise=self._noise(part, "discriminator"))
                losses = {
                    "fake": discriminator_loss(discriminator(labels, fake), real=False, mode=mode),
                    "real": discriminator_loss(discriminator(labels, image), real=True, mode=mode),
                }
            p.backward(sums.add(losses), self.optimizers["discriminator"])
        return {**sums.totals, "discriminator": p.step(self.optimizers["discriminator"])}

    def describe(self) -> dict[str, Any]:
        """Also the mean style of each label, for regions that a style picture lacks."""
        assert self.data is not None
        train = self.data.train
        with evaluating(self):
            few = train.take(np.arange(min(len(train), _AVERAGED)))
            styles = mean_styles_over(self.p, self._generator, few, self.dtype)
        return {
            "model": asdict(self.sizes),
            "names": list(self.names),
            "data": resolved(self.config.data),
            "map_format": asdict(train.map_format),
            "styles": styles.to_json(),
        }

    def plan(self, net: nn.Module) -> Plan:
        return GENERATOR

    def restore(self, net: nn.Module, description: Mapping[str, Any]) -> None:
        super().restore(net, description)
        self.names = tuple(description["names"])
        self._take_sizes(SeanConfig(**description["model"]))

    def evaluate(self) -> Evaluation | None:
        """How near reconstructions of the images held out come to them."""
        rows: dict[str, list[Tensor]] = defaultdict(list)
        shown: dict[str, list[Tensor]] = defaultdict(list)
        index: list[Tensor] = []
        data = self._held_out(self.config.data)
        if data is None:
            return None
        for batch in self.p.loader(data, self.config.batch_size, seed=self.config.seed):
            labels, image = batch["labels"], batch["image"]
            with self.p.autocast():
                fake = self.models["net"](labels, image, noise=self._noise(batch, "evaluation"))
            fake = fake.to(self.dtype)
            for name, values in reconstruction(fake, image).items():
                rows[name].append(values)
            few = batch.index < _SHOWN
            for name, tensor in (("labels", labels), ("image", image), ("output", fake)):
                shown[name].append(tensor[few.to(tensor.device)])
            index.append(batch.index)
        places = torch.cat(index)
        found = self.p.gather({name: torch.cat(parts) for name, parts in rows.items()}, places)
        pictures = self.p.gather(
            {name: torch.cat(parts) for name, parts in shown.items()}, places[places < _SHOWN]
        )
        return Evaluation(
            {name: float(values.mean()) for name, values in found.items()},
            {name: values.cpu().numpy() for name, values in (found | pictures).items()},
        )

    def sample(self, options: Any) -> Picture:
        assert isinstance(options, SeanSampleConfig)
        rows = self.description["styles"]
        means = None if rows is None else Styles.from_json(rows, self.sizes.style_length)
        map_format = MapFormat(**self.description["map_format"])
        sampler = Sampler(self.p, self._generator, self.names, map_format, means, self.dtype)
        if options.mask is not None:
            return sampler.transferred(options)
        held_out = self._held_out(None)  # the training's own: its config holds a path from where that began
        if held_out is None:
            raise InputError(
                "zoo sample: the run knows no images to reconstruct; give --style, --style-mask and --mask"
            )
        return sampler.draw(options, held_out)

    def report(self, folder: Path, evaluation: Evaluation) -> None:
        labels, image, output = (np.asarray(evaluation.rows[name]) for name in ("labels", "image", "output"))
        write_report(folder, labels, image, output, count=len(self.names))

    @property
    def _generator(self) -> Generator:
        generator = self.models["net"]
        assert isinstance(generator, Generator)
        return generator

    def _held_out(self, data: str | None) -> Segmented | None:
        """The images held out of the data, or of what was trained on if that is None."""
        if self.data is None:
            data = self.description["data"] if data is None else data
            if data is None:
                return None
            dont_care = self.config.dont_care or self.description["map_format"]["dont_care"]
            self.data = self._load(data, dont_care, self.names)
        return self.data.eval

    def _load(self, data: str | None, dont_care: bool, known: tuple[str, ...] | None = None) -> SegmentedData:
        config, folder = self.config, None if data == SCENES else data
        return load_label_maps(folder, config.image_size, config.labels, config.seed, dont_care, known=known)

    def _check_rows(self, rows: int) -> None:
        """Raises where one image of one pixel in the first block would be all there is to normalise by."""
        config, sizes = self.config, self.sizes

        def fewest(batch_size: int) -> int:
            batches = {min(rows, batch_size), rows % batch_size or batch_size}
            return min(piece for batch in batches for piece in self.p.normalised_together(batch) if piece)

        if sizes.image_size != sizes.coarsest or fewest(config.batch_size) > 1:
            return
        others = sorted(range(2, rows + 1), key=lambda size: abs(size - config.batch_size))
        other = next((size for size in others if fewest(size) > 1), None)
        where = "on a rank or in a part" if config.local_batchnorm else "in a batch"
        raise InputError(
            f"--image-size {sizes.image_size}: the generator begins with one pixel, and BatchNorm over a single image "
            f"of it, as there is {where}, has no variance; give "
            + (f"--batch-size {other}, or " if other else "")
            + f"{2 * sizes.coarsest} pixels"
        )

    def _seen(self, part: Batch) -> tuple[Tensor, Tensor]:
        """Images and label maps, mirrored by chance where ``--flip`` is given."""
        image, labels = part["image"], part["labels"]
        if not self.config.flip:
            return image, labels
        return flipped(image, labels, part.randint("flip", 0, 2), self.mirror)

    def _noise(self, batch: Batch, name: str) -> dict[str, Tensor]:
        """What each normalisation adds: draws that follow the sample."""
        return {
            norm: batch.noise(f"{name}/{norm}", shape, self.dtype)
            for norm, shape in self.noise_shapes.items()
        }

    def _perceptual(self) -> PerceptualLoss | None:
        if self.config.vgg_weights is None:
            log.info("the perceptual loss is off; --vgg-weights hub or FILE switches it on")
            return None
        return PerceptualLoss(self.config.vgg_weights).to(self.p.device, self.dtype)

    def _take_sizes(self, sizes: SeanConfig) -> None:
        self.sizes = sizes
        with torch.device("meta"):
            self.noise_shapes = Generator(sizes).noise_shapes(sizes.image_size, sizes.image_size)

    def _fresh(self, network: type[Generator] | type[Discriminator]) -> nn.Module:
        """A network with weights that depend on the seed alone."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(make_key(self.config.seed, network.__name__) & 0x7FFFFFFFFFFFFFFF)
            net = network(self.sizes)
        if isinstance(net, Generator):
            freeze_dead_biases(net)
        return net


class _Sums:
    """A step's losses, each summed over the parts and divided by the rows of the global batch."""

    def __init__(self, batch: Batch, dtype: torch.dtype) -> None:
        self.size, self.dtype = batch.size, dtype
        self.totals: dict[str, Tensor] = {}

    def add(self, losses: Mapping[str, Tensor]) -> Tensor:
        """Takes a part's losses, [rows] each by name; their sum is what goes backward."""
        shares = {name: loss.to(self.dtype).sum() / self.size for name, loss in losses.items()}
        for name, share in shares.items():
            self.totals[name] = self.totals.get(name, torch.zeros_like(share)) + share.detach()
        return torch.stack(list(shares.values())).sum()
