"""What is said to be sharded is: local bytes are less than full ones, counted from the real local tensors."""

from __future__ import annotations

import pytest
import torch
from contract_matrix import ONE_EACH, Layout, sharding
from pool import Pool

from parallel.accounting import Memory
from parallel.interface import Parallel
from parallel.testing import nets

KINDS = ("parameters", "gradients", "optimizer")


def _hold(p: Parallel) -> list[Memory]:
    """What each rank holds after two steps of Adam on the transformer."""
    torch.manual_seed(0)
    net = p.wrap(nets.Transformer(), nets.TRANSFORMER_PLAN)
    opt = p.optimizer(net, torch.optim.Adam, lr=0.01)
    for batch in p.loader(torch.ones(24, 5, 48), 12):
        for part in p.parts(batch):
            p.backward(net(part.data).square().sum() / batch.size, opt)
        p.step(opt)
    return p.memory_per_rank()


FULL = sum(weight.nbytes for weight in nets.Transformer().parameters())


def test_one_process_holds_all(ranks: Pool) -> None:
    (held,) = ranks.run(_hold, "single", 1)[0]
    assert (held.parameters, held.gradients, held.optimizer) == (FULL, FULL, 2 * FULL)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layout", ONE_EACH, ids=lambda layout: layout.spec)
def test_what_is_sharded_is_less_on_every_rank(layout: Layout, kind: str, ranks: Pool) -> None:
    full = 2 * FULL if kind == "optimizer" else FULL
    found = layout.run(ranks, _hold)
    assert all(each == found[0] for each in found), "every rank is told the same"
    held = [getattr(memory, kind) for memory in found[0]]
    assert len(held) == (1 if layout.spec == "dp" else layout.ranks)
    if layout.spec in sharding(kind):
        assert max(held) < full
        assert sum(held) >= full  # nothing is lost
    else:
        assert held == [full] * len(held)


@pytest.mark.parametrize("spec", ["fsdp", "zero2", "zero3", "zero3-offload"])
def test_shards_add_up_to_the_whole(spec: str, ranks: Pool) -> None:
    held = Layout(spec, 3).run(ranks, _hold)[0]
    assert sum(memory.parameters for memory in held) == FULL
    assert sum(memory.gradients for memory in held) == FULL
    assert sum(memory.optimizer for memory in held) == 2 * FULL


def test_zero1_deals_out_whole_tensors(ranks: Pool) -> None:
    held = Layout("zero1", 3).run(ranks, _hold)[0]
    assert sum(memory.optimizer for memory in held) == 2 * FULL
    assert sorted(memory.optimizer for memory in held)[0] > 0
