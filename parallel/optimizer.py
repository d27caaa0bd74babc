"""One ``torch.optim`` optimizer over the local shards of one or several nets, and what surrounds its step."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from parallel.errors import NonFiniteError, ParallelError
from parallel.flat import Flat
from parallel.gradients import GradNorm
from parallel.interface import StepInfo
from parallel.refusals import WHOLE_TENSOR_OPTIMIZER
from parallel.splits import Split
from parallel.tensors import local, local_grad

if TYPE_CHECKING:
    from parallel.net import Net

log = logging.getLogger("parallel")

Groups = Callable[[str, nn.Parameter], Mapping[str, Any] | None]
Factory = Callable[[type[torch.optim.Optimizer], list[dict[str, Any]], dict[str, Any]], torch.optim.Optimizer]

# Optimizers that treat each number by itself give a shard what they would give it within the whole.
ELEMENTWISE = frozenset(
    ["SGD", "Adam", "AdamW", "NAdam", "RAdam", "Adamax", "Adagrad", "Adadelta", "RMSprop", "Rprop", "ASGD"]
)


@dataclass
class Scaler:
    """The loss scale of fp16-mixed (Micikevicius et al. 2018, section 3.2): halved on overflow, doubled in time."""

    scale: float = 65536.0
    good_steps: int = 0
    interval: int = 2000

    def update(self, overflow: bool) -> None:
        if overflow:
            self.scale, self.good_steps = self.scale / 2.0, 0
            return
        self.good_steps += 1
        if self.good_steps == self.interval:
            self.scale, self.good_steps = self.scale * 2.0, 0


@dataclass(slots=True)
class Slot:
    """A parameter as the optimizer sees it: ``shard`` shares memory with this rank's piece of ``parameter``."""

    name: str
    parameter: nn.Parameter
    shard: nn.Parameter
    split: Split | None
    net: Net
    flat: Flat | None = None


@dataclass
class _Group:
    """Slots with the same options; ``l2`` is ours, the rest are torch's."""

    l2: float
    options: dict[str, Any]
    slots: list[Slot] = field(default_factory=list)


class Optimizer:
    """Made by ``p.optimizer``, stepped by ``p.step``."""

    def __init__(
        self,
        nets: Sequence[Net],
        cls: type[torch.optim.Optimizer],
        *,
        lr: float,
        groups: Groups | None,
        schedule: Callable[[int], float] | None,
        clip_norm: float | None,
        scaler: Scaler | None,
        on_nan: str | None,
        options: dict[str, Any],
        factory: Factory,
    ) -> None:
        self.nets = list(nets)
        self.name = cls.__name__
        self.schedule = schedule
        self.clip_norm = clip_norm
        self.scaler = scaler
        self.on_nan = on_nan
        self._held: list[int] = []  # the slots that had a gradient at the last step
        self.steps = 0  # steps taken, skipped ones included: the argument of ``schedule``
        self.slots, grouped = _group(self.nets, groups)
        if not self.slots:
            raise ParallelError("the optimizer has no parameter that requires a gradient")
        cut = any(net.splits for net in self.nets) or any(
            slot.shard is not slot.parameter for slot in self.slots
        )
        if cut and cls.__name__ not in ELEMENTWISE:
            raise WHOLE_TENSOR_OPTIMIZER.error(cls.__name__)
        self._penalised = [group for group in grouped if group.l2]
        torch_groups = [
            {"params": [slot.shard for slot in group.slots], **group.options} for group in grouped
        ]
        self.torch = factory(cls, torch_groups, {"lr": lr, **options})
        self._base_lr = [group["lr"] for group in self.torch.param_groups]
        self._sharded = [slot for slot in self.slots if slot.shard is not slot.parameter]
        self._norm = GradNorm([(slot.parameter, slot.split, slot.flat) for slot in self.slots])

    @torch.no_grad()
    def step(self) -> StepInfo:
        """Unscales, adds ``l2``, takes the norm, clips, steps and clears the gradients."""
        for slot in self._sharded:
            slot.shard.grad = local_grad(slot.parameter) if slot.flat is None else slot.flat.grad
        self._held.clear()
        grads: list[Tensor] = []
        for index, slot in enumerate(self.slots):
            grad = slot.shard.grad
            if grad is not None:
                self._held.append(index)
                grads.append(grad)
        if self.scaler is not None and grads:
            torch._foreach_mul_(grads, 1.0 / self.scaler.scale)
        self._add_l2()
        norm = self._norm(self._held, grads)
        skipped = self._overflowed(norm)
        if self.clip_norm is not None and grads:
            torch._foreach_mul_(grads, (self.clip_norm / (norm + 1e-6)).clamp_(max=1.0))
        lr = self._set_lr()
        if not skipped:
            self.torch.step()
        if self.scaler is not None:
            self.scaler.update(skipped)
        self.zero_grad()
        self.steps += 1
        return StepInfo(norm, lr, skipped)

    def zero_grad(self) -> None:
        for slot in self.slots:
            slot.parameter.grad = None
        for slot in self._sharded:
            slot.shard.grad = None
            if slot.flat is not None:
                slot.flat.grad = None

    @property
    def grad_bytes(self) -> int:
        """Of this rank's gradients at the last step; whole ones, where they lie so until they are summed."""
        slots = (self.slots[index] for index in self._held)
        return sum(slot.shard.nbytes if slot.flat is None else slot.flat.whole_bytes for slot in slots)

    @property
    def inner(self) -> torch.optim.Optimizer:
        """The optimizer that holds this rank's states: ZeroRedundancyOptimizer keeps one for its share."""
        return getattr(self.torch, "optim", self.torch)

    def local_states(self) -> list[dict[str, Any]]:
        """The torch optimizer's state of each parameter, where this rank holds one."""
        return list(self.inner.state.values())

    def _overflowed(self, norm: Tensor) -> bool:
        """Whether the step is to be left out; the norm, and so the answer, is the same on every rank."""
        if (self.scaler is None and self.on_nan is None) or bool(torch.isfinite(norm)):
            return False
        scale = 1.0 if self.scaler is None else self.scaler.scale
        if self.on_nan is not None and scale <= 1.0:  # above, a smaller loss scale may help
            found = f"step {self.steps + 1}: {first_non_finite(self.slots)} (gradient norm {norm.item()})"
            if self.on_nan == "stop":
                raise NonFiniteError(found)
            if not dist.is_initialized() or dist.get_rank() == 0:
                log.warning("%s; the step is left out", found)
        return True

    def _add_l2(self) -> None:
        for group in self._penalised:
            grads: list[Tensor] = []
            weights: list[Tensor] = []
            for slot in group.slots:
                if slot.shard.grad is not None:
                    grads.append(slot.shard.grad)
                    weights.append(slot.shard)
            if grads:  # the gradient of l2 * ||w||**2
                torch._foreach_add_(grads, weights, alpha=2.0 * group.l2)

    def _set_lr(self) -> float:
        if self.schedule is not None:
            factor = self.schedule(self.steps)
            for group, base in zip(self.torch.param_groups, self._base_lr, strict=True):
                group["lr"] = base * factor
        return float(self.torch.param_groups[0]["lr"])


def first_non_finite(slots: Sequence[Slot]) -> str:
    """The first parameter with a gradient that is NaN or infinite on any rank, in words; a collective."""
    own = next(
        (
            place
            for place, slot in enumerate(slots)
            if slot.shard.grad is not None and not bool(torch.isfinite(slot.shard.grad).all())
        ),
        len(slots),
    )
    first = torch.tensor(own, device=slots[0].shard.device)
    if dist.is_initialized():
        dist.all_reduce(first, dist.ReduceOp.MIN)
    if int(first) == len(slots):
        return "the gradients are finite, and the sum of their squares is not"
    slot = slots[int(first)]
    return f"the gradient of {slot.name} of {slot.net.name} is NaN or infinite"


def _group(nets: Sequence[Net], groups: Groups | None) -> tuple[list[Slot], list[_Group]]:
    """The slots in the nets' order, and the same by equal options."""
    slots: list[Slot] = []
    grouped: dict[str, _Group] = {}
    for net in nets:
        for name, parameter in net.module.named_parameters():
            if not parameter.requires_grad:
                continue
            flat = net.stepped.get(name)
            piece = local(parameter) if flat is None else flat.tensor
            shard = parameter if piece is parameter else nn.Parameter(piece.detach())
            slot = Slot(name, parameter, shard, net.splits.get(name), net, flat)
            slots.append(slot)
            options = dict((groups(name, parameter) if groups else None) or {})
            l2 = float(options.pop("l2", 0.0))
            key = repr((l2, sorted(options.items())))
            grouped.setdefault(key, _Group(l2, options)).slots.append(slot)
    return slots, list(grouped.values())
