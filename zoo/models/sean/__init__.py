"""SEAN: images from label maps, with a style code for each region (Zhu et al., CVPR 2020, arXiv 1911.12861).

encoder.py        an image to a style code for each region
normalization.py  the SEAN normalisation, and the algebra that makes it fast
generator.py      label map and styles to an image; discriminator.py  judges both at two scales
layers.py labels.py    what both networks are made of; label maps as tensors
loss.py perceptual.py  the losses, one number a sample
biases.py         biases that are left out of training
plan.py           how the networks may be cut over ranks
schedule.py       the learning rate
config.py         the options
trainer.py        the training, over any strategy
metrics.py        how near a reconstruction is; report.py  pictures of it
styles.py sampling.py sample_config.py    style transfer, and the options of `zoo sample`; pictures.py  grids
convert.py        official checkpoints, in and out

Nothing heavy is imported here, so that listing models costs no import of torch.
"""

from __future__ import annotations

from zoo.registry import ModelEntry

MODEL = ModelEntry(
    name="sean",
    summary="images from label maps, a style for each region; a GAN (Zhu et al. 2020)",
    model="zoo.models.sean.generator:create_generator",
    config="zoo.models.sean.config:SeanTrainConfig",
    trainer="zoo.models.sean.trainer:SeanTrainer",
    sample="zoo.models.sean.sample_config:SeanSampleConfig",
    convert="zoo.models.sean.convert:convert",
    layouts={"official": "zoo.models.sean.convert:export_official"},
    parity_steps=10,  # each step of both networks makes what rounding left some 5 times larger
)
