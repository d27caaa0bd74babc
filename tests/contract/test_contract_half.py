"""Half precision: an overflow is every rank's, and what must stay fp32 does."""

from __future__ import annotations

from functools import partial
from unittest import mock

import pytest
import torch
from contract_matrix import ONE_EACH, Layout
from pool import Pool

from parallel.interface import Parallel
from parallel.optimizer import Scaler
from parallel.testing import nets

EACH = pytest.mark.parametrize("layout", ONE_EACH, ids=lambda layout: layout.spec)
SHARED = [layout for layout in ONE_EACH if layout.spec != "dp"]  # those whose BatchNorm equals one process's


def _one_overflows(p: Parallel) -> tuple[list[float], list[bool], list[bool]]:
    """Two nets, two optimizers; in the second step the last row of the batch overflows the first net only."""
    torch.manual_seed(0)
    with mock.patch("parallel.strategy.Scaler", partial(Scaler, scale=64.0)):
        first, second = p.wrap(nets.MLP(), nets.MLP_PLAN), p.wrap(nets.MLP(), nets.MLP_PLAN)
        opts = [p.optimizer(net, torch.optim.SGD, lr=0.01) for net in (first, second)]
    skipped: list[bool] = []
    moved: list[bool] = []
    for number, batch in enumerate(p.loader(torch.ones(36, 6), 12)):
        before = [p.state_dict(net) for net in (first, second)]
        for net, opt in zip((first, second), opts, strict=True):
            for part in p.parts(batch):
                with p.autocast():
                    out = net(part.data)
                weight = torch.ones(len(part), 1)
                if number == 1 and net is first:
                    weight[part.position == batch.size - 1] = 1e36
                p.backward((out.float() * weight).sum() / batch.size, opt)
            skipped.append(p.step(opt).skipped)
        after = [p.state_dict(net) for net in (first, second)]
        for old, new in zip(before, after, strict=True):
            moved.append(any(not weight.equal(new[name]) for name, weight in old.items()))
    return [opt.scaler.scale for opt in opts if opt.scaler is not None], skipped, moved


@pytest.mark.parametrize("layout", [Layout("single", 1), *ONE_EACH], ids=lambda layout: layout.spec)
def test_an_overflow_on_one_rank_skips_that_optimizer_on_all(layout: Layout, ranks: Pool) -> None:
    for rank, (scales, skipped, moved) in enumerate(
        layout.run(ranks, _one_overflows, precision="fp16-mixed")
    ):
        assert scales == [32.0, 64.0]
        assert skipped == [False, False, True, False, False, False]
        if rank == 0:  # which has the whole weights
            assert moved == [not skip for skip in skipped]


def _statistics(p: Parallel) -> dict[str, torch.dtype]:
    """What a net holds after two steps; its running statistics stay finite and in fp32."""
    net = p.wrap(nets.ConvNet(), nets.CONV_PLAN)
    opt = p.optimizer(net, torch.optim.SGD, lr=0.01)
    x = torch.full((20, 3, 4, 4), 300.0) + torch.arange(20.0).view(20, 1, 1, 1)
    for batch in p.loader(x, 10):
        for part in p.parts(batch):
            with p.autocast():
                loss = net(part.data).float().square().sum() / batch.size
            p.backward(loss, opt)
        p.step(opt)
    for name, buffer in net.named_buffers():
        assert buffer.isfinite().all(), name
    state = p.state_dict(net)
    return {
        name: value.dtype for name, value in (*net.named_parameters(), *net.named_buffers(), *state.items())
    }


@pytest.mark.parametrize("precision", ["bf16-mixed", "fp16-mixed"])
@pytest.mark.parametrize("layout", SHARED, ids=lambda layout: layout.spec)
def test_weights_and_batchnorm_statistics_stay_fp32(layout: Layout, precision: str, ranks: Pool) -> None:
    for held in layout.run(ranks, _statistics, precision=precision):
        counters = {name for name in held if name.endswith("num_batches_tracked")}
        assert len(counters) == 2
        assert {dtype for name, dtype in held.items() if name not in counters} == {torch.float32}
