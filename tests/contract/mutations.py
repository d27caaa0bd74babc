"""Breaks each strategy's way of keeping one process's numbers, and shows that the contract's cells notice.

Run by hand from the root of a checkout, some minutes on two cores: ``PYTHONPATH=tests python tests/contract/mutations.py``.
It prints a table of docs/contract.md, and ends with status 1 if a broken cell passed.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from contract_matrix import ONE_EACH, Cell, Layout
from pool import CaseError, Pool
from torch import Tensor, nn
from torch.distributed.fsdp._fully_shard import _fsdp_collectives
from torch.distributed.optim import ZeroRedundancyOptimizer

import parallel.batchnorm
import parallel.collectives
import parallel.crossings
import parallel.ddp
import parallel.dp
import parallel.gradients
import parallel.tensor
from parallel import rng
from parallel.batch import Batch
from parallel.dropout import KeyedDropout
from parallel.interface import Parallel
from parallel.loader import Loader
from parallel.spectral import SpectralNorms, _Norm
from parallel.strategy import Strategy
from parallel.testing import CASES, Trace, differences, distances, run_case

STEPS = 4
Break = Callable[[Parallel], AbstractContextManager[Any]]


class _Without:
    """A module of torch, some of whose functions are others."""

    def __init__(self, module: Any, **others: Any) -> None:
        self.__dict__.update(others)
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def _nothing(*args: Any, **options: Any) -> None:
    return None


def _first(value: Any, *others: Any) -> Any:
    return value


def _no_reducer(p: Parallel) -> AbstractContextManager[Any]:
    return mock.patch.object(parallel.ddp.DDP, "before_backward", _nothing)


def _mean_for_sum(p: Parallel) -> AbstractContextManager[Any]:
    return mock.patch.object(p, "_grad_factor", 1.0)


def _no_late_sum(p: Parallel) -> AbstractContextManager[Any]:
    return mock.patch.object(parallel.ddp.DDP, "reduce_late", _nothing)


def _no_reduce_scatter(p: Parallel) -> AbstractContextManager[Any]:
    def keep(*, output: Tensor, input: Tensor, group: Any, **options: Any) -> None:
        place, size = torch.distributed.get_rank(group), torch.distributed.get_world_size(group)
        output.copy_(input.chunk(size)[place])

    own = _Without(_fsdp_collectives.dist, reduce_scatter_single=keep)
    return mock.patch.object(_fsdp_collectives, "dist", own)


def _no_replica_sum(p: Parallel) -> AbstractContextManager[Any]:
    return mock.patch.object(_fsdp_collectives, "dist", _Without(_fsdp_collectives.dist, all_reduce=_nothing))


def _no_broadcast_of_updates(p: Parallel) -> AbstractContextManager[Any]:
    return mock.patch.object(ZeroRedundancyOptimizer, "_sync_params", _nothing)


def _lonely_replicas(p: Parallel) -> AbstractContextManager[Any]:
    share = parallel.dp._share

    def copied(module: nn.Module) -> nn.Module:
        replica = share(module)
        for part in replica.modules():
            for name, weight in part._parameters.items():
                part._parameters[name] = None if weight is None else copy.deepcopy(weight)
        return replica

    return mock.patch.object(parallel.dp, "_share", copied)


def _no_sum_out(p: Parallel) -> AbstractContextManager[Any]:
    return mock.patch.object(parallel.crossings, "dist", _Without(torch.distributed, all_reduce=_nothing))


def _no_sum_in(p: Parallel) -> AbstractContextManager[Any]:
    return mock.patch.object(
        parallel.crossings.Copy, "backward", staticmethod(lambda ctx, *grads: (grads[0], None))
    )


def _shared_is_plain(p: Parallel) -> AbstractContextManager[Any]:
    def plain(self: Any, *args: Any, **options: Any) -> Any:
        return self.original(*args, **options)

    return mock.patch.object(parallel.tensor._Shared, "__call__", plain)


def _masks_of_the_first_slice(p: Parallel) -> AbstractContextManager[Any]:
    forward = KeyedDropout.forward

    def broken(self: KeyedDropout, x: Tensor) -> Tensor:
        if self.cut is not None:
            self.cut = (self.cut[0], 0, self.cut[2])
        return forward(self, x)

    return mock.patch.object(KeyedDropout, "forward", broken)


def _local_norm(p: Parallel) -> AbstractContextManager[Any]:
    return mock.patch.object(parallel.gradients, "dist", _Without(torch.distributed, all_reduce=_nothing))


def _local_moments(p: Parallel) -> AbstractContextManager[Any]:
    return mock.patch.multiple(parallel.batchnorm, differentiable_sum=_first, all_reduce=_first)


def _local_gradient_of_moments(p: Parallel) -> AbstractContextManager[Any]:
    return mock.patch.object(
        parallel.collectives._Sum, "backward", staticmethod(lambda ctx, *grads: (grads[0], None))
    )


def _draws_keyed_by_rank(p: Parallel) -> AbstractContextManager[Any]:
    def key(self: Batch, name: str) -> int:
        return rng.make_key(self.seed, name, self.step, p.rank)

    return mock.patch.object(Batch, "key", key)


def _draws_by_place_in_the_share(p: Parallel) -> AbstractContextManager[Any]:
    make = Loader._batch

    def own(self: Loader, data: Any, order: Tensor, span: tuple[int, int, int, int]) -> Batch:
        batch = make(self, data, order, span)
        object.__setattr__(batch, "position", batch.position - batch.position[:1])
        return batch

    return mock.patch.object(Loader, "_batch", own)


def _own_start(p: Parallel) -> AbstractContextManager[Any]:
    return mock.patch.object(Strategy, "_same_start", _nothing)


def _iterations_a_forward(p: Parallel) -> AbstractContextManager[Any]:
    return mock.patch.object(_Norm, "done", _nothing)


def _iterations_a_replica(p: Parallel) -> AbstractContextManager[Any]:
    return mock.patch.object(SpectralNorms, "advance", _nothing)


@dataclass(frozen=True)
class Mutation:
    what: str
    broken: Break
    specs: tuple[str, ...]
    cases: tuple[str, ...] = tuple(CASES)
    parts: tuple[int, ...] = (1, 2)


REPLICATED = ("ddp", "zero1", "ddp+tp")
SHARDED = ("fsdp", "zero2", "zero3", "zero3-offload", "hsdp", "fsdp+tp")
TENSOR = ("tp", "ddp+tp", "fsdp+tp")
DATA = (*REPLICATED, *SHARDED)
CUT_MASKS = ("dropout", "attention")
RANDOM = ("dropout", "conv-batchnorm", "attention", "gan")

MUTATIONS = (
    Mutation("DDP's reducer is never armed: gradients stay local", _no_reducer, REPLICATED),
    Mutation("DDP's mean is left a mean", _mean_for_sum, REPLICATED),
    Mutation("a second backward's gradients stay local", _no_late_sum, REPLICATED, ("forwards",)),
    Mutation("FSDP2's reduce-scatter keeps the rank's own piece", _no_reduce_scatter, SHARDED),
    Mutation("HSDP's sum over replicas is left out", _no_replica_sum, ("hsdp",)),
    Mutation("ZeRO-1's updates stay on their owner", _no_broadcast_of_updates, ("zero1",)),
    Mutation("DP's replicas keep their gradients", _lonely_replicas, ("dp",)),
    Mutation("the sum that leaves a cut region is left out", _no_sum_out, TENSOR),
    Mutation("the gradient that enters a cut region stays local", _no_sum_in, TENSOR),
    Mutation("a norm over each head keeps local gradients", _shared_is_plain, TENSOR, ("attention",)),
    Mutation("all tensor ranks take the first slice of a mask", _masks_of_the_first_slice, TENSOR, CUT_MASKS),
    Mutation("the gradient norm is this rank's", _local_norm, (*SHARDED, "tp", "ddp+tp")),
    Mutation("BatchNorm's moments are this rank's", _local_moments, DATA, ("conv-batchnorm",)),
    Mutation("BatchNorm's gradient is this rank's", _local_gradient_of_moments, DATA, ("conv-batchnorm",)),
    Mutation("draws are keyed by rank", _draws_keyed_by_rank, (*DATA, "tp"), RANDOM),
    Mutation("draws are keyed by the place in the share", _draws_by_place_in_the_share, DATA, RANDOM),
    Mutation("each rank starts from its own weights", _own_start, (*DATA, "tp")),
    Mutation("power iterations run at each forward", _iterations_a_forward, (*DATA, "tp"), ("gan",)),
    Mutation("power iterations run in each replica", _iterations_a_replica, ("dp",), ("gan",)),
)  # fmt: skip


def run_broken(p: Parallel, number: int, case: str) -> Trace:
    with MUTATIONS[number].broken(p):
        return run_case(p, case, STEPS)


def main() -> int:
    pool = Pool()
    want = {case: pool.run(run_case, "single", 1, case, STEPS, precision="fp64")[0] for case in CASES}
    layouts = {layout.spec: layout for layout in ONE_EACH}
    survivors = 0
    print("| broken | strategies | cells | noticed | smallest distance |")
    print("|---|---|---|---|---|")
    for number, mutation in enumerate(MUTATIONS):
        cells = [
            Cell(layouts[spec].with_parts(parts), case, "fp64")
            for spec in mutation.specs
            for case in mutation.cases
            for parts in mutation.parts
        ]
        cells = [cell for cell in cells if not cell.refused]
        found = [(cell, _noticed(pool, want[cell.case], number, cell.layout, cell.case)) for cell in cells]
        missed = [f"{cell.layout} {cell.case}" for cell, distance in found if distance == 0.0]
        survivors += len(missed)
        noticed = f"{len(cells) - len(missed)}" + (f" (not: {', '.join(missed)})" if missed else "")
        smallest = min((distance for _, distance in found if distance), default=0.0)
        print(
            f"| {mutation.what} | {', '.join(mutation.specs)} | {len(cells)} | {noticed} | {smallest:.1e} |",
            flush=True,
        )
    pool.close()
    return 1 if survivors else 0


def _noticed(pool: Pool, want: Trace, number: int, layout: Layout, case: str) -> float:
    """The largest distance of a broken run that the contract sees; 0 where it sees nothing, infinity for an error."""
    try:
        got = layout.run(pool, run_broken, number, case, precision="fp64")[0]
    except CaseError:
        return float("inf")
    return max(distances(want, got).values()) if differences(want, got, "fp64") else 0.0


if __name__ == "__main__":
    sys.exit(main())
