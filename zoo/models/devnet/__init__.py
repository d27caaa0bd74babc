"""DevNet: anomaly detection with few labelled anomalies (Pang, Shen, van den Hengel, KDD 2019).

The paper is arXiv:1911.08623.

model.py          the three networks
loss.py           the deviation loss
reference.py      the scores it compares with
sampler.py        batches half unlabelled rows, half anomalies
contamination.py  fewer known anomalies, some hidden among the unlabelled rows
features.py       dense and sparse rows for the network
threshold.py      from a confidence to a score
config.py         the options
plan.py           how the network may be cut over ranks
trainer.py        the training, over any strategy
report.py         metrics, tables and plots
detector.py       the same training as a scikit-learn estimator
convert.py        checkpoints of the published PyTorch port

Nothing heavy is imported here, so that listing models costs no import of torch.
"""

from __future__ import annotations

from zoo.registry import ModelEntry

MODEL = ModelEntry(
    name="devnet",
    summary="anomaly detection in tables with few labelled anomalies (Pang et al. 2019)",
    model="zoo.models.devnet.model:DevNet",
    config="zoo.models.devnet.config:DevNetConfig",
    trainer="zoo.models.devnet.trainer:DevNetTrainer",
    convert="zoo.models.devnet.convert:convert",
)
