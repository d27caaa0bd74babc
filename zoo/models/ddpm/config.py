"""The toy DDPM's options."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from zoo.config import PretrainedConfig, SampleConfig, require


@dataclass(frozen=True, kw_only=True)
class DDPMConfig(PretrainedConfig):
    """3,000 steps of 1,024 vectors. The published toy is ``--lr 1e-4 --ema 0 --initial-weights torch``."""

    default_epochs: ClassVar[int] = 30

    data: str | None = None
    """CSV file of vectors, one a row; vectors that rise or fall by 1 unless given"""
    length: int = 4
    """numbers of a generated vector"""
    low: int = 0
    """lowest number of a generated vector"""
    high: int = 7
    """highest number of a generated vector"""
    batch_size: int = 1024
    """rows of a global batch, whatever the number of ranks"""
    batches_per_epoch: int = 100
    """global batches that count as an epoch: the rows are gone through as often as that takes"""
    lr: float = 2e-3
    """learning rate of Adam"""
    ema: float = 0.995
    """decay of the average of the weights, which samples are drawn from; 0 keeps none"""
    width: int = 400
    """units of a hidden layer"""
    initial_weights: Literal["he", "torch"] = "he"
    """he draws for ReLU layers (He et al. 2015), torch leaves nn.Linear's own"""
    time_embedding: int = 0
    """sines and cosines that tell the network the time; 0 gives it t / T as a number"""
    diffusion_steps: int = 1000
    """T, the steps from data to noise"""
    schedule: Literal["linear", "cosine"] = "linear"
    """how fast data turns into noise"""
    prediction: Literal["noise", "x0", "v"] = "noise"
    """what the network predicts"""
    eval_samples: int = 2000
    """samples drawn to evaluate; 0 evaluates nothing"""
    eval_sampling_steps: int | None = None
    """steps that the evaluation's samples take, by DDIM; all of DDPM's unless given"""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("batches_per_epoch", "width", "diffusion_steps"):
            value = getattr(self, name)
            require(value >= 1, name, f"must be at least 1, not {value}")
        require(self.lr > 0, "lr", f"must be above 0, not {self.lr:g}")
        require(0 <= self.ema < 1, "ema", f"must be from 0 to below 1, not {self.ema:g}")
        require(self.eval_samples >= 0, "eval_samples", f"must be at least 0, not {self.eval_samples}")
        even = self.time_embedding >= 0 and self.time_embedding % 2 == 0
        require(even, "time_embedding", f"must be even and at least 0, not {self.time_embedding}")
        steps = self.eval_sampling_steps
        require(
            steps is None or 1 <= steps <= self.diffusion_steps,
            "eval_sampling_steps",
            f"must be from 1 to diffusion_steps ({self.diffusion_steps}), not {steps}",
        )


@dataclass(frozen=True, kw_only=True)
class DDPMSampleConfig(SampleConfig):
    """How to draw samples."""

    from_: tuple[float, ...] = ()
    """a vector in data units to start from, together with --start-step"""
    start_step: int | None = None
    """step that the vector is taken to be at, from 0 to T - 1; the last unless given"""
    sampler: Literal["ddpm", "ddim"] = "ddpm"
    """ddpm adds noise on the way (Ho et al. 2020), ddim need not (Song et al. 2020)"""
    sampling_steps: int | None = None
    """steps to take, evenly spaced; all unless given"""
    variance: Literal["beta", "beta_tilde"] = "beta_tilde"
    """of DDPM's noise: beta suits scattered data, beta_tilde data of few values"""
    eta: float = 0.0
    """of DDIM's noise, from 0 (none) to 1 (as much as DDPM)"""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 <= self.eta <= 1, "eta", f"must be from 0 to 1, not {self.eta:g}")
        steps = self.sampling_steps
        require(steps is None or steps >= 1, "sampling_steps", f"must be at least 1, not {steps}")
        require(
            self.start_step is None or bool(self.from_),
            "start_step",
            "needs --from with the vector to start from",
        )
