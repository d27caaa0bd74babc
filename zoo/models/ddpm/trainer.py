"""The toy DDPM's training (Ho, Jain, Abbeel 2020, Algorithm 1) and sampling, over any strategy."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from parallel.batch import Batch
from parallel.loader import share
from parallel.plan import Plan
from parallel.rng import make_key
from zoo.models.ddpm.config import DDPMConfig, DDPMSampleConfig
from zoo.models.ddpm.data import Rounds, load_vectors
from zoo.models.ddpm.diffusion import Diffusion
from zoo.models.ddpm.metrics import pattern_metrics
from zoo.models.ddpm.model import DenoisingMLP, he_initialise
from zoo.models.ddpm.plan import PLAN
from zoo.models.ddpm.report import write_report
from zoo.models.ddpm.sampler import OnStep, SamplerConfig, reverse_steps, sample
from zoo.models.ddpm.schedule import make_schedule
from zoo.pretrained import begin_from
from zoo.progress import stage
from zoo.trainer import Evaluation, Numbers, Rows, Trainer
from zoo_datasets import InputError, Normaliser

log = logging.getLogger("zoo")

_SHOWN = 10  # trajectories in the report
_ROWS_AT_ONCE = 8192  # samples of a global batch


class DDPMTrainer(Trainer[DDPMConfig]):
    """Noise and time of a training vector, and all noise of a sample, are keyed by its global position."""

    best_metric = None

    def build(self) -> None:
        config = self.config
        vectors = load_vectors(config)
        self.normaliser, self.columns, self.patterns = vectors.normaliser, vectors.columns, vectors.patterns
        self.diffusion = Diffusion(make_schedule(config.schedule, config.diffusion_steps), config.prediction)
        log.info("%d vectors of %d numbers", len(vectors.x), len(self.columns))
        self.model_options = {
            "features": len(self.columns),
            "steps": config.diffusion_steps,
            "width": config.width,
            "time_embedding": config.time_embedding,
        }
        net = self._fresh()
        self.models["net"] = self.p.wrap(net, self.plan(net))
        begin_from(self.p, config.pretrained, "ddpm", self.models)
        self.optimizers["net"] = self.p.optimizer(self.models["net"], torch.optim.Adam, lr=config.lr)
        if config.ema:
            self.emas["net"] = self.p.ema(self.models["net"], config.ema)
        x = torch.from_numpy(self.normaliser.normalise(vectors.x))
        draws = config.batches_per_epoch * config.batch_size
        self.train = self.p.loader(
            x, config.batch_size, seed=config.seed, sampler=Rounds(len(x), draws, config.seed)
        )

    def step(self, batch: Batch) -> Numbers:
        opt = self.optimizers["net"]
        total = torch.zeros((), dtype=batch.data.dtype, device=self.p.device)
        for part in self.p.parts(batch):
            x0 = part.data
            t = part.randint("t", 0, self.config.diffusion_steps)
            noise = part.noise("noise", x0.shape[1:])
            with self.p.autocast():
                losses = self.diffusion.simple_loss(self.models["net"], x0, t, noise)
            loss = losses.sum() / batch.size
            self.p.backward(loss, opt)
            total += loss.detach()
        return {"loss": total, "optimizer": self.p.step(opt)}

    def describe(self) -> dict[str, Any]:
        patterns = None if self.patterns is None else self.patterns.tolist()
        return {
            "model": self.model_options,
            "columns": self.columns,
            "normaliser": asdict(self.normaliser),
            "patterns": patterns,
            "schedule": self.config.schedule,
            "prediction": self.config.prediction,
        }

    def restore(self, net: nn.Module, description: Mapping[str, Any]) -> None:
        super().restore(net, description)
        self.columns = description["columns"]
        self.normaliser = Normaliser(**{end: tuple(v) for end, v in description["normaliser"].items()})
        patterns = description["patterns"]
        self.patterns = None if patterns is None else np.asarray(patterns, dtype=np.float32)
        schedule = make_schedule(description["schedule"], description["model"]["steps"])
        self.diffusion = Diffusion(schedule, description["prediction"])

    def plan(self, net: nn.Module) -> Plan:
        return PLAN

    def evaluate(self) -> Evaluation | None:
        """Draws samples and, where the data is generated, holds them against the patterns."""
        config = self.config
        if not config.eval_samples:
            return None
        few = config.eval_sampling_steps
        how = SamplerConfig("ddim", few) if few is not None else SamplerConfig()
        samples = self._draw(config.eval_samples, config.seed, how)
        metrics = {} if self.patterns is None else pattern_metrics(samples, self.patterns)
        steps: list[int] = []
        path: list[Tensor] = []

        def keep(t: int, x: Tensor) -> None:
            steps.append(t)
            path.append(x)

        self._draw(_SHOWN, config.seed, how, on_step=keep)
        own = torch.stack(path, 1)  # [rows of this rank, steps, features]
        start, _ = share(_SHOWN, self.p.data_rank, self.p.data_size)
        whole = self.p.gather(own, torch.arange(start, start + len(own))).cpu().numpy()
        trajectories = self.normaliser.restore(whole).tolist()
        return Evaluation(
            metrics, {"samples": samples.tolist(), "steps": steps, "trajectories": trajectories}
        )

    def probe(self) -> Rows:
        """Samples, few and by few steps."""
        steps = min(10, self.diffusion.schedule.steps)
        return self._columns(self._draw(64, self.config.seed, SamplerConfig("ddim", steps, eta=1.0)))

    def report(self, folder: Path, evaluation: Evaluation) -> None:
        steps, trajectories = evaluation.rows["steps"], evaluation.rows["trajectories"]
        write_report(folder, steps, np.asarray(trajectories), self.columns)

    def sample(self, options: Any) -> Rows:
        assert isinstance(options, DDPMSampleConfig)
        how = SamplerConfig(options.sampler, options.sampling_steps, options.variance, options.eta)
        start, features = options.from_, len(self.columns)
        if start and len(start) != features:
            raise InputError(f"--from: {len(start)} numbers, where the model's vectors have {features}")
        given = self.normaliser.normalise(np.asarray(start)) if start else None
        return self._columns(self._draw(options.n, options.seed, how, given, options.start_step))

    def _columns(self, samples: np.ndarray) -> Rows:
        return {name: samples[:, column].tolist() for column, name in enumerate(self.columns)}

    def _draw(
        self,
        count: int,
        seed: int,
        how: SamplerConfig,
        given: np.ndarray | None = None,
        start_step: int | None = None,
        on_step: OnStep | None = None,
    ) -> np.ndarray:
        """``count`` vectors in data units, [count, features], in order and equal on any number of ranks.

        Args:
            given: a normalised vector that all start from, at ``start_step``; pure noise unless given.
        """
        shape = (len(self.columns),)
        dtype = torch.float64 if self.p.precision == "fp64" else torch.float32
        drawn, index = [], []
        for batch in self.p.loader(torch.arange(count), min(count, _ROWS_AT_ONCE), seed=seed):
            if given is None:
                x = batch.noise("x_T", shape, dtype)
            else:
                x = torch.from_numpy(given).to(self.p.device, dtype).expand(len(batch), *shape)
            noise = partial(_keyed, batch, dtype)
            steps = len(reverse_steps(self.diffusion, how, self._start(start_step)))
            with stage("sampling", steps) as tick, self.p.autocast():
                watched = _Watched(tick, on_step)
                x = sample(
                    self.models["net"],
                    self.diffusion,
                    x,
                    how,
                    noise=noise,
                    start_step=start_step,
                    on_step=watched,
                )
            drawn.append(x.to(dtype))
            index.append(batch.index)
        return self.normaliser.restore(self.p.gather(torch.cat(drawn), torch.cat(index)).cpu().numpy())

    def _start(self, start_step: int | None) -> int:
        return self.diffusion.schedule.steps - 1 if start_step is None else start_step

    def _fresh(self) -> DenoisingMLP:
        """The network with weights that depend on the seed alone."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(make_key(self.config.seed, "weights") & 0x7FFFFFFFFFFFFFFF)
            net = DenoisingMLP(**self.model_options)
            if self.config.initial_weights == "he":
                he_initialise(net)
        return net


class _Watched:
    """Counts the steps for the progress bar and hands them on."""

    def __init__(self, tick: Callable[[int], None], then: OnStep | None) -> None:
        self.tick, self.then, self.done = tick, then, 0

    def __call__(self, t: int, x: Tensor) -> None:
        self.done += 1
        self.tick(self.done)
        if self.then is not None:
            self.then(t, x)


def _keyed(batch: Batch, dtype: torch.dtype, name: str, t: int, shape: torch.Size) -> Tensor:
    """The noise of step t, which follows the sample."""
    return batch.noise(f"{name}/{t}", shape[1:], dtype)
