"""The toy model with a trainer to which things happen: at a step, once or always, on one rank."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from toy_config import MODEL, ToyConfig
from toy_trainer import ToyTrainer

from parallel.batch import Batch
from zoo.registry import ModelEntry
from zoo.trainer import Numbers

ENTRY = ModelEntry(
    name="toy",
    summary=MODEL.summary,
    model=MODEL.model,
    config=ToyConfig,
    trainer="unlucky:UnluckyTrainer",
    sample=MODEL.sample,
)


class UnluckyTrainer(ToyTrainer):
    """``config.data`` says what happens: "kill 7" and "raise 7" at step 7, once; "nan 7" and "sleep 7"
    always; "slow" takes 50 ms a step."""

    def step(self, batch: Batch) -> Numbers:
        how, _, where = (self.config.data or "").partition(" ")
        last = self.p.rank == self.p.world_size - 1
        if where and batch.step + 1 == int(where):
            if how == "sleep":
                time.sleep(60)
            elif how == "nan":
                batch.x[...] = float("nan")
            elif last and not (marker := Path(os.environ["UNLUCKY"])).exists():
                marker.touch()
                if how == "kill":
                    os.kill(os.getpid(), signal.SIGKILL)
                raise ArithmeticError(f"bad luck at step {where}")
        if how == "slow":
            time.sleep(0.05)
        return super().step(batch)
