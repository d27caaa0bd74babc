"""BatchNorm over the global batch, on any device (``torch.nn.SyncBatchNorm`` is for GPUs only)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from parallel.collectives import Group, all_reduce, differentiable_sum
from parallel.errors import ParallelError
from parallel.loader import Loader, shares_of


class SyncBatchNorm(_BatchNorm):
    """BatchNorm whose moments are those of all ranks' rows (Ioffe and Szegedy 2015, algorithm 1); empty shares are fine.

    Moments are taken in two passes, mean then squared deviations, since their difference in one pass loses
    digits.

    Input: [rows, channels, ...].
    """

    group: Group = None
    of_vectors: bool = False  # was a BatchNorm1d: a row is one value a channel

    def _check_input_dim(self, input: Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"BatchNorm expects [rows, channels, ...], got {input.dim()} axes")

    def forward(self, input: Tensor) -> Tensor:
        self._check_input_dim(input)
        if not self.training and self.running_mean is not None:
            return F.batch_norm(
                input, self.running_mean, self.running_var, self.weight, self.bias, False, 0.0, self.eps
            )
        x = input.float() if input.dtype in (torch.float16, torch.bfloat16) else input
        axes = [axis for axis in range(x.dim()) if axis != 1]
        shape = (1, -1, *(1,) * (x.dim() - 2))
        count = all_reduce(x.new_full((), x.numel() // max(x.shape[1], 1), dtype=torch.float64), self.group)
        if count <= 1:
            raise ValueError(
                f"BatchNorm over {int(count)} value a channel has no variance: drop the last batch or change the batch size"
            )
        mean = differentiable_sum(x.sum(axes), self.group) / count.to(x.dtype)
        centred = x - mean.view(shape)
        variance = differentiable_sum(centred.square().sum(axes), self.group) / count.to(x.dtype)
        if self.training and self.track_running_stats:
            self._track(mean.detach(), variance.detach() * (count / (count - 1)).to(x.dtype))
        y = centred * torch.rsqrt(variance + self.eps).view(shape)
        if self.weight is not None:
            y = y * self.weight.view(shape) + self.bias.view(shape)
        return y.to(input.dtype)

    @torch.no_grad()
    def _track(self, mean: Tensor, unbiased: Tensor) -> None:
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        momentum = 1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        for running, new in ((self.running_mean, mean), (self.running_var, unbiased)):
            assert running is not None
            running.lerp_(new.to(running.dtype), momentum)


def synchronise_batchnorm(model: nn.Module, group: Group) -> None:
    """Replaces every BatchNorm below ``model`` by one over ``group``, with the same parameters, buffers and names."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, _BatchNorm) and not isinstance(child, SyncBatchNorm):
                setattr(parent, name, _synchronised(child, group))


def has_batchnorm(model: nn.Module) -> bool:
    return any(isinstance(module, _BatchNorm) for module in model.modules())


def needs_two_rows(module: nn.Module) -> bool:
    """Whether one row alone has no variance."""
    vectors = isinstance(module, nn.BatchNorm1d) or (isinstance(module, SyncBatchNorm) and module.of_vectors)
    return vectors and module.training


def refuse_single_rows(
    models: Sequence[nn.Module], loader: Loader, last: int, together: Callable[[int], list[int]]
) -> None:
    """Raises before an epoch in which a BatchNorm would see one row, which has no variance.

    Args:
        last: rows of the epoch's last global batch.
        together: see :meth:`parallel.Parallel.normalised_together`.

    Raises:
        ParallelError: names the BatchNorm, and what to change.
    """
    if loader.batch_size == 1 and not loader.shuffle:
        return
    each = loader.samples >= loader.batch_size and 1 in together(loader.batch_size)
    if not each and 1 not in together(last):
        return
    held = loader.batch_size if each else last
    alone = "one row" if held == 1 else f"{held} rows, one of them alone on its rank or in its part"
    other = "choose another" if each else "drop the last batch (drop_last) or choose another"
    for model in models:
        for name, module in model.named_modules():
            if needs_two_rows(module):
                raise ParallelError(
                    f"{'each' if each else 'the last'} batch of an epoch holds {alone}, over which "
                    f"BatchNorm ({name}) has no variance: {other} batch size"
                )


def cut(rows: int, pieces: Sequence[int]) -> list[int]:
    """How many rows lie in each piece of so many shares, parts of these and so on."""
    found = [rows]
    for count in pieces:
        found = [piece for whole in found for piece in shares_of(whole, count)]
    return found


def _synchronised(old: _BatchNorm, group: Group) -> SyncBatchNorm:
    new = SyncBatchNorm(
        old.num_features, old.eps, old.momentum, affine=False, track_running_stats=old.track_running_stats
    )
    new.affine = old.affine
    new.weight, new.bias = old.weight, old.bias
    for name, buffer in old.named_buffers(recurse=False):
        setattr(new, name, buffer)
    new.group = group
    new.of_vectors = isinstance(old, nn.BatchNorm1d)
    return new.train(old.training)
