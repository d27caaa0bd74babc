"""The toy DDPM: a diffusion model (Ho, Jain, Abbeel 2020) for short vectors of numbers, small enough to read.

schedule.py   how fast the data turns into noise
diffusion.py  the forward process, its posterior, the loss
sampler.py    back from noise to data: DDPM, DDIM
model.py      the network
data.py       the vectors and their order
plan.py       how the network may be cut over ranks
config.py     the options
trainer.py    training and sampling, over any strategy
metrics.py    how good samples are; report.py plots
convert.py    checkpoints of the published toy

Nothing heavy is imported here, so that listing models costs no import of torch.
"""

from __future__ import annotations

from zoo.registry import ModelEntry

MODEL = ModelEntry(
    name="ddpm",
    summary="toy diffusion model of short vectors (Ho, Jain, Abbeel 2020)",
    model="zoo.models.ddpm.model:DenoisingMLP",
    config="zoo.models.ddpm.config:DDPMConfig",
    trainer="zoo.models.ddpm.trainer:DDPMTrainer",
    sample="zoo.models.ddpm.config:DDPMSampleConfig",
    convert="zoo.models.ddpm.convert:convert",
)
