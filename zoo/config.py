"""Options: one dataclass a command, and one a model, which inherits :class:`TrainConfig`.

A string below a field is its help text::

    @dataclass(frozen=True, kw_only=True)
    class MyConfig(TrainConfig):
        width: int = 64
        "units of the hidden layer"

        def __post_init__(self) -> None:
            super().__post_init__()
            require(self.width >= 1, "width", f"must be at least 1, not {self.width}")

:mod:`zoo.fill` and :mod:`zoo.flags` fill them from dicts, YAML and flags. A field ``known_outliers`` is the
flag ``--known-outliers`` and the key ``known_outliers`` (or with a dash). A tuple takes several values
(``--from 1 2 3``), a field ``n`` is ``-n``, and ``from_`` is ``--from``.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

from zoo_datasets.errors import InputError

NO_WEIGHTS = "none"  # given for ``pretrained``: a training begins with weights drawn anew


class OptionError(InputError):
    """A value that an option cannot have; whoever knows where the value came from says so in its place.

    Args:
        option: the field's name.
        message: what is wrong and what would be right, such as "must be at least 1, not 0".
    """

    def __init__(self, option: str, message: str) -> None:
        super().__init__(f"{option} {message}")
        self.option = option
        self.message = message

    def __reduce__(self) -> tuple[type[OptionError], tuple[str, str]]:
        return type(self), (self.option, self.message)  # it crosses from a rank to its parent


def require(condition: bool, option: str, message: str) -> None:
    """Raises an :class:`OptionError` unless the condition holds; for ``__post_init__``."""
    if not condition:
        raise OptionError(option, message)


def resolved(data: str | None) -> str | None:
    """A path from the root, so that a run finds its data from any folder; a name as it is."""
    return str(Path(data).resolve()) if data is not None and Path(data).exists() else data


@dataclass(frozen=True, kw_only=True)
class LaunchConfig:
    """Where a command runs; the results do not depend on it."""

    parallel: str = "single"
    """how the work is spread over ranks; `zoo list` shows the ways"""
    nproc: int | None = None
    """ranks; every GPU unless given, and 2 on a machine without"""
    tp: int | None = None
    """ranks that share one model, where the strategy splits layers"""
    engine_config: Path | None = None
    """configuration of the engine behind the strategy: DeepSpeed's JSON or Accelerate's YAML"""

    def __post_init__(self) -> None:
        for name in ("nproc", "tp"):
            value = getattr(self, name)
            require(value is None or value >= 1, name, f"must be at least 1, not {value}")

    def launch_options(self) -> dict[str, Any]:
        """Keyword arguments of ``parallel.launch``."""
        return {"nproc": self.nproc, "tp": self.tp, "engine_config": self.engine_config}


@dataclass(frozen=True, kw_only=True)
class RunConfig(LaunchConfig):
    """The options of a command that uses a trained model."""

    run: Path
    """a run directory, or a checkpoint in it"""


@dataclass(frozen=True, kw_only=True)
class SampleConfig(RunConfig):
    """The options of ``zoo sample``; a model's own dataclass inherits them and adds its own."""

    output_suffix: ClassVar[str] = ".csv"  # .png where the samples are pictures

    n: int = 10
    """samples to draw"""
    seed: int = 0
    """of the samples' noise"""
    output: Path | None = None
    """CSV file to write; the samples are printed unless given"""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.n >= 1, "n", f"must be at least 1, not {self.n}")
        require(0 <= self.seed < 2**63, "seed", f"must be from 0 to 2**63 - 1, not {self.seed}")


@dataclass(frozen=True, kw_only=True)
class TrainConfig(LaunchConfig):
    """The options that every model has; a model's own dataclass inherits them and may change defaults."""

    default_epochs: ClassVar[int] = 10  # where neither epochs nor steps are given

    data: str | None = None
    """name of a data set, or a file or folder; the model's default data unless given"""
    epochs: int | None = None
    """passes over the training data"""
    steps: int | None = None
    """global batches to train on, in place of --epochs"""
    batch_size: int = 64
    """rows of a global batch, whatever the number of ranks"""
    precision: Literal["fp64", "fp32", "bf16-mixed", "fp16-mixed"] = "fp32"
    """precision of the computation"""
    accumulate: int = 1
    """parts that a global batch is cut into, to save memory; the numbers stay"""
    compile: bool = False
    """compile the model with torch.compile"""
    local_batchnorm: bool = False
    """let each rank normalise by its own rows; faster, but not what one process computes"""
    seed: int = 0
    """of initial weights, order of the data and all noise"""
    eval_every: int | None = None
    """epochs between evaluations; only at the end unless given"""
    log_every: int = 50
    """steps between two writes of numbers, to metrics.jsonl and the terminal (a pipe gets one line a second at most)"""
    out: Path | None = None
    """run directory to create; runs/MODEL/DATE-TIME unless given"""
    resume: str | None = field(default=None, metadata={"alone": ""})
    """go on with a run: with the one in --out, if there is one, or with the run directory or checkpoint given here"""
    save_every: tuple[str, ...] = ()
    """when to save a checkpoint, beside the end: N epochs, N steps or N minutes"""
    keep: int = 2
    """checkpoints to keep: the latest"""
    keep_best: bool = False
    """save and keep the best evaluation's too"""
    async_save: bool = False
    """write checkpoints while training goes on"""
    on_nan: Literal["stop", "skip"] = "stop"
    """what a gradient that is not finite does: stop the run, or leave its step out"""
    timeout: float = 1800.0
    """seconds that a rank waits for the others before the run ends"""
    max_restarts: int = 0
    """times to go on from the last checkpoint after a crash"""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("epochs", "steps", "batch_size", "accumulate", "eval_every", "log_every", "keep"):
            value = getattr(self, name)
            require(value is None or value >= 1, name, f"must be at least 1, not {value}")
        require(self.max_restarts >= 0, "max_restarts", f"must be at least 0, not {self.max_restarts}")
        require(self.timeout > 0, "timeout", f"must be more than 0, not {self.timeout}")
        self.save_interval()
        require(0 <= self.seed < 2**63, "seed", f"must be from 0 to 2**63 - 1, not {self.seed}")
        require(self.epochs is None or self.steps is None, "steps", "excludes epochs: give one of the two")
        if self.epochs is None and self.steps is None:
            object.__setattr__(self, "epochs", self.default_epochs)

    def launch_options(self) -> dict[str, Any]:
        names = ("precision", "accumulate", "compile", "local_batchnorm", "on_nan", "timeout")
        return super().launch_options() | {name: getattr(self, name) for name in names}

    def going_on(self) -> TrainConfig:
        """The options of a training that goes on from its own checkpoint."""
        return self

    def save_interval(self) -> tuple[int, str]:
        """How often to save: a number and "epochs", "steps" or "minutes"; (0, "") for at the end only."""
        if not self.save_every:
            return 0, ""
        number, _, unit = " ".join(self.save_every).partition(" ")
        unit = unit if unit.endswith("s") else f"{unit}s"
        good = number.isdecimal() and int(number) > 0 and unit in ("epochs", "steps", "minutes")
        given = " ".join(self.save_every)
        require(good, "save_every", f"must be N epochs, N steps or N minutes, not {given!r}")
        return int(number), unit

    def total_steps(self, steps_per_epoch: int) -> int:
        """Global batches of the whole run; ``steps_per_epoch`` is ``len(loader)``."""
        if self.steps is not None:
            return self.steps
        assert self.epochs is not None
        return self.epochs * steps_per_epoch


@dataclass(frozen=True, kw_only=True)
class PretrainedConfig(TrainConfig):
    """The options of a model whose training may begin with weights; see :func:`zoo.pretrained.begin_from`."""

    pretrained: str = NO_WEIGHTS
    """weights to begin from: none, a run or checkpoint, or a file of weights (in a GAN the generator's)"""

    def going_on(self) -> TrainConfig:
        return replace(self, pretrained=NO_WEIGHTS)
