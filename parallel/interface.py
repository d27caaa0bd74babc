"""``Parallel``: what a training loop may ask of the ranks it runs on, and nothing else.

The same loop gives the same numbers under every strategy, on every number of ranks::

    def main(p):
        net = p.wrap(model, plan)
        opt = p.optimizer(net, torch.optim.AdamW, lr=3e-4, clip_norm=1.0)
        for batch in p.loader(dataset, batch_size=512, shuffle=True):    # batch_size is global
            for part in p.parts(batch):                                  # micro-batches
                with p.autocast():
                    losses = criterion(net(part.x), part.y)              # one number a sample
                p.backward(losses.sum() / batch.size, opt)               # gradients sum over ranks and parts
            info = p.step(opt)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from parallel.accounting import Memory, Traffic
    from parallel.batch import Batch, Nest
    from parallel.ema import EMA
    from parallel.loader import Loader
    from parallel.optimizer import Optimizer
    from parallel.plan import Plan
    from parallel.signals import Notice

Precision = str  # one of PRECISIONS
PRECISIONS = ("fp64", "fp32", "bf16-mixed", "fp16-mixed")


@dataclass(frozen=True, slots=True)
class StepInfo:
    """What an optimizer step did.

    Attributes:
        grad_norm: 0-d tensor, the norm of the whole gradient before clipping, the same on every rank.
        lr: the learning rate of the first group at this step.
        skipped: gradients overflowed under fp16-mixed, and the weights stayed as they were.
    """

    grad_norm: Tensor
    lr: float
    skipped: bool


class Parallel(ABC):
    """One rank's view of a run."""

    spec: str  # the strategy's name, such as "ddp" or "fsdp+tp"
    rank: int
    world_size: int
    local_rank: int
    data_rank: int  # which share of the global batch is this rank's; ranks that split one model have the same
    data_size: int  # into how many shares a global batch is cut
    device: torch.device
    precision: Precision
    accumulate: int  # parts a global batch is cut into

    @property
    def is_main(self) -> bool:
        """True on the one rank that writes files and prints."""
        return self.rank == 0

    # Building

    @abstractmethod
    def wrap(self, model: nn.Module | Callable[[], nn.Module], plan: Plan | None = None) -> nn.Module:
        """Places a module on the ranks; all start from rank 0's weights.

        The module that comes back has the class, the methods and the parameter names of the one given.
        Dropout is keyed by sample and BatchNorm synchronised. A factory is called where that saves memory or
        time.
        """

    @abstractmethod
    def optimizer(
        self,
        nets: nn.Module | Sequence[nn.Module],
        cls: type[torch.optim.Optimizer],
        *,
        lr: float,
        groups: Callable[[str, nn.Parameter], Mapping[str, Any] | None] | None = None,
        schedule: Callable[[int], float] | None = None,
        clip_norm: float | None = None,
        **options: Any,
    ) -> Optimizer:
        """A ``torch.optim`` optimizer over the trainable parameters of wrapped nets.

        Args:
            groups: options of a parameter by its plain name, such as ``{"weight_decay": 0.0}``;
                ``l2`` adds the gradient of ``l2 * ||w||**2`` before the norm is taken, unlike ``weight_decay``.
            schedule: the factor of every learning rate, a pure function of the optimizer's step (0, 1, ...).
            clip_norm: the whole gradient is scaled down to this norm.
        """

    @abstractmethod
    def ema(self, net: nn.Module, decay: float) -> EMA:
        """An exponential moving average of a wrapped net's weights, updated by each step of its optimizer."""

    @abstractmethod
    def loader(
        self,
        dataset: Any,
        batch_size: int,
        *,
        shuffle: bool = False,
        seed: int = 0,
        sampler: Callable[[int], Tensor] | None = None,
        drop_last: bool = False,
        workers: int = 0,
    ) -> Loader:
        """Global batches, of which each rank gets its own rows.

        Args:
            dataset: a tensor, tuples or dicts of tensors with one row a sample, or a map-style ``Dataset``.
            batch_size: rows of a global batch, whatever the number of ranks and parts.
            sampler: ``epoch -> int64 indices``, a pure function; in place of ``shuffle``.

        Raises:
            ParallelError: on every rank, if the ranks' data sets or samplers differ in their number of rows.
        """

    @abstractmethod
    def normalised_together(self, rows: int) -> list[int]:
        """A global batch's rows as BatchNorm sees them: all together, or under ``local_batchnorm`` piece by piece."""

    # One step

    @abstractmethod
    def parts(self, batch: Batch) -> Iterator[Batch]:
        """This rank's micro-batches, the same number on every rank; some may be empty, and run all the same."""

    @abstractmethod
    def autocast(self) -> AbstractContextManager[None]:
        """The precision of the forward pass."""

    @abstractmethod
    def backward(self, loss: Tensor, opt: Optimizer) -> None:
        """Adds this loss's gradients to those of ``opt``'s nets, and of no others; sums over ranks on the last part."""

    @abstractmethod
    def step(self, opt: Optimizer) -> StepInfo:
        """Clips, steps the optimizer and the averages of its nets, and clears the gradients. Every call counts."""

    @abstractmethod
    def notice(self) -> Notice:
        """What signals ask of the run, agreed by all ranks; to be called once a step, after it.

        From the first call on SIGTERM and SIGINT (``stop``) and SIGUSR1 (``save``) are heard and no longer end the
        process; a second one to stop does. The ranks ask one another about twice a second.
        """

    @abstractmethod
    def interruptible(self) -> AbstractContextManager[None]:
        """Within it a loader raises ``StoppedError``, on all ranks after the same batch, once a signal asks to stop.

        For an evaluation, whose rows may be many more than a step's; the next :meth:`notice` says which signal it was.
        Nothing is heard, so nothing raised, before the first :meth:`notice`.
        """

    @abstractmethod
    def frozen(self, *nets: nn.Module) -> AbstractContextManager[None]:
        """Within it these nets pass gradients through, and get none."""

    # Values over ranks

    @abstractmethod
    def gather(self, values: Nest, index: Tensor) -> Nest:
        """Rows of every rank, in data-set order, each once: on every rank.

        Args:
            values: a tensor [rows, ...] or a nest of them, of as many rows as the rank has, or none.
            index: int64 [rows], the rows' positions in the data set (``batch.index``).
        """

    @abstractmethod
    def sum(self, value: Tensor) -> Tensor:
        """The sum over the shares of the global batch, on every rank."""

    @abstractmethod
    def mean(self, value: Tensor) -> Tensor:
        """The mean over the shares of the global batch, on every rank."""

    @abstractmethod
    def broadcast(self, value: Any) -> Any:
        """Rank 0's value (anything that pickles), on every rank."""

    @abstractmethod
    def barrier(self) -> None:
        """Returns once every rank has called it."""

    # State

    @abstractmethod
    def state_dict(self, net: nn.Module) -> dict[str, Tensor]:
        """The whole net's weights and buffers under plain names, on CPU: on rank 0, and empty elsewhere."""

    @abstractmethod
    def load_state_dict(self, net: nn.Module, state: Mapping[str, Tensor]) -> None:
        """Loads whole tensors under plain names, strictly; rank 0's mapping counts, others may give an empty one."""

    @abstractmethod
    def save(
        self,
        folder: Path | str,
        models: Mapping[str, nn.Module],
        emas: Mapping[str, EMA] | None = None,
        optimizers: Mapping[str, Optimizer] | None = None,
        loaders: Mapping[str, Loader] | None = None,
        extra: Mapping[str, Any] | None = None,
        background: bool = False,
    ) -> None:
        """Writes a checkpoint that any strategy on any number of ranks can load.

        The folder is a checkpoint from the moment its ``manifest.json`` is there, and not before; what an interrupted
        save left in it is cleared. ``weights/NAME.safetensors`` holds a model under its plain names.

        Args:
            folder: on a file system that all ranks share.
            models: wrapped modules by a name that is good for a file.
            emas: averages by the name of their model.
            optimizers: by name; the models they step must be among ``models``.
            extra: anything that JSON can hold; ``load`` gives it back.
            background: return once the state is copied, and write while training goes on.

        Raises:
            CheckpointError: the folder holds a checkpoint already.
            OSError: a file cannot be written, on any rank; the folder is no checkpoint then.
        """

    @abstractmethod
    def wait_for_saves(self) -> None:
        """Returns once a save in the background is on the disk; raises what it would have raised."""

    @abstractmethod
    def load(
        self,
        folder: Path | str,
        models: Mapping[str, nn.Module],
        emas: Mapping[str, EMA] | None = None,
        optimizers: Mapping[str, Optimizer] | None = None,
        loaders: Mapping[str, Loader] | None = None,
    ) -> dict[str, Any]:
        """Reads a checkpoint that ``save`` wrote, under whatever strategy, into what is given; returns its ``extra``.

        Every file that is read is checked against its checksum; nothing is unpickled.

        Raises:
            CheckpointError: on every rank, if the checkpoint is damaged or does not fit; says what and where.
        """

    # Accounting

    @abstractmethod
    def memory_per_rank(self) -> list[Memory]:
        """Bytes of parameters, gradients and optimizer states that each rank holds, in rank order."""

    @abstractmethod
    def traffic(self) -> AbstractContextManager[Traffic]:
        """``with p.traffic() as counted:`` counts this rank's collectives and their bytes, by kind."""

    @abstractmethod
    def close(self) -> None:
        """Leaves the process group; called by ``launch``."""
