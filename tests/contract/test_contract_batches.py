"""Guarantee 2: a global batch means the same on any number of ranks and parts, down to shares of no rows."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from contract_matrix import LAYOUTS, ONE_EACH, Layout
from pool import CaseError, Pool
from torch import Tensor, nn
from torch.nn import functional as F

from parallel.accounting import Traffic
from parallel.errors import ParallelError
from parallel.interface import Parallel
from parallel.plan import Plan
from parallel.testing import Trace, differences, nets, run_case

Reference = Callable[..., Trace]

# (case, batch size, parts): batches of fewer rows than there are ranks or parts, so that some shares are empty.
SMALL = [
    ("mlp", 1, 1),
    ("forwards", 1, 2),
    ("attention", 2, 2),
    ("dropout", 3, 2),
    ("gan", 2, 1),
    ("branch", 1, 2),
    ("conv-batchnorm", 2, 1),
]


@pytest.mark.parametrize("layout", ONE_EACH, ids=lambda layout: layout.spec)
def test_shares_of_no_rows(layout: Layout, ranks: Pool, reference_run: Reference) -> None:
    for case, rows, parts in SMALL:
        if case == "conv-batchnorm" and layout.spec == "dp":
            continue
        want = reference_run(case, "fp64", 2, rows)
        got = layout.with_parts(parts).run(ranks, run_case, case, 2, rows, precision="fp64")[0]
        assert not differences(want, got, "fp64"), (case, rows, parts)


@pytest.mark.parametrize("spec", sorted({layout.spec for layout in LAYOUTS if layout.ranks < 4}))
def test_one_rank_is_one_process(spec: str, ranks: Pool, reference_run: Reference) -> None:
    for case in ("mlp", "gan"):
        got = Layout(spec, 1).run(ranks, run_case, case, 4, precision="fp64")[0]
        assert not differences(reference_run(case, "fp64", 4), got, "fp64"), case


def test_ten_rows_in_every_layout_agree(ranks: Pool, reference_run: Reference) -> None:
    """1 x 10, 2 x 5, 1 x 5 twice, 2 ranks with 5 parts each (as many as rows), 3 ranks with 7 (more than rows)."""
    for case in ("mlp", "gan"):
        want = reference_run(case, steps=3)
        for layout in (Layout("ddp", 1), Layout("ddp", 2), Layout("single", 1, 2), Layout("ddp", 1, 2)):
            got = layout.run(ranks, run_case, case, 3, precision="fp64")[0]
            assert not differences(want, got, "fp64"), layout
        for layout in (Layout("ddp", 2, 5), Layout("fsdp", 3, 7)):
            got = layout.run(ranks, run_case, case, 3, precision="fp64")[0]
            assert not differences(want, got, "fp64"), layout


class _Normalised(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 12)
        self.norm = nn.BatchNorm1d(12)
        self.head = nn.Linear(12, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.norm(self.inner(x))))


def _epoch(p: Parallel, rows: int, batch_size: int, batchnorm: bool, drop_last: bool) -> list[float]:
    """The loss of each global batch of one epoch, or what was refused before its first."""
    torch.manual_seed(0)
    model = _Normalised() if batchnorm else nets.MLP()
    net = p.wrap(model, Plan(tensor={"head": "row", "inner": "column"}) if batchnorm else nets.MLP_PLAN)
    opt = p.optimizer(net, torch.optim.Adam, lr=0.01)
    x = torch.randn(rows, 6, dtype=torch.float64)
    losses = []
    for batch in p.loader((x, x[:, :1]), batch_size, drop_last=drop_last, shuffle=True):
        total = torch.zeros((), device=p.device)
        for part in p.parts(batch):
            loss = (net(part.x) - part.y).square().sum() / batch.size
            p.backward(loss, opt)
            total = total + loss.detach()
        p.step(opt)
        losses.append(float(p.sum(total)))
    return losses


@pytest.mark.parametrize("layout", ONE_EACH, ids=lambda layout: layout.spec)
def test_a_tail_of_one_row(layout: Layout, ranks: Pool) -> None:
    """65 rows in batches of 64: on the second batch all ranks but one have no rows."""
    want = ranks.run(_epoch, "single", 1, 65, 64, False, False, precision="fp64")[0]
    assert len(want) == 2
    for losses in layout.run(ranks, _epoch, 65, 64, False, False, precision="fp64"):
        assert losses == pytest.approx(want, rel=1e-9)


def _refused_epoch(p: Parallel, rows: int, batch_size: int) -> str:
    try:
        _epoch(p, rows, batch_size, True, False)
    except ParallelError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    "layout", [Layout("single", 1), Layout("ddp", 2), Layout("ddp", 3), Layout("fsdp", 3)], ids=str
)
def test_a_tail_of_one_row_for_a_batchnorm_is_refused_before_it_starts(layout: Layout, ranks: Pool) -> None:
    words = "the last batch of an epoch holds one row, over which BatchNorm (norm) has no variance: drop the last batch"
    for said in layout.run(ranks, _refused_epoch, 65, 64):
        assert said.startswith(words)
        assert "another batch size" in said
    for rows, batch_size, drop_last in ((65, 64, True), (65, 63, False)):
        want = ranks.run(_epoch, "single", 1, rows, batch_size, True, drop_last, precision="fp64")[0]
        got = layout.run(ranks, _epoch, rows, batch_size, True, drop_last, precision="fp64")[0]
        assert got == pytest.approx(want, rel=1e-9)


@pytest.mark.parametrize(
    "layout",
    [Layout("ddp", 2), Layout("fsdp", 3), Layout("dp", 2), Layout("single", 1, 2), Layout("ddp", 2, 2)],
    ids=str,
)
def test_one_row_for_a_local_batchnorm_is_refused_before_it_starts(layout: Layout, ranks: Pool) -> None:
    """Of each batch, or of the last, a share or part may hold one row; where none does, it trains."""
    shares = layout.ranks * layout.parts
    for rows, batch_size, words in (
        (2 * shares, shares, f"each batch of an epoch holds {shares} rows, one of them alone"),
        (
            5 * shares + 1,
            4 * shares,
            f"the last batch of an epoch holds {shares + 1} rows, one of them alone",
        ),
    ):
        for said in layout.run(ranks, _refused_epoch, rows, batch_size, local_batchnorm=True):
            assert said.startswith(words) and "another batch size" in said
    assert set(layout.run(ranks, _refused_epoch, 6 * shares, 4 * shares, local_batchnorm=True)) == {""}


def _one_value(p: Parallel) -> str:
    """A BatchNorm over images of one pixel, of which no loader can know."""
    net = p.wrap(nn.Sequential(nn.BatchNorm2d(3), nn.Flatten()))
    try:
        for batch in p.loader(torch.ones(1, 3, 1, 1), 1):
            for part in p.parts(batch):
                net(part.data)
    except ValueError as error:
        return str(error)
    return ""


def test_one_value_a_channel_has_no_variance(ranks: Pool) -> None:
    assert all("has no variance: drop the last batch" in said for said in ranks.run(_one_value, "ddp", 2))


def _two_steps(p: Parallel, rows: int) -> Traffic:
    """What the second of two steps sends."""
    torch.manual_seed(0)
    net = p.wrap(nets.MLP(), nets.MLP_PLAN)
    opt = p.optimizer(net, torch.optim.SGD, lr=0.01)
    x = torch.randn(2 * rows, 6)
    for batch in p.loader((x, x[:, :1]), rows):
        with p.traffic() as counted:
            for part in p.parts(batch):
                p.backward((net(part.x) - part.y).square().sum() / batch.size, opt)
            p.step(opt)
    return counted


def _sharded_bytes(ranks: int) -> int:
    """Bytes of the net in fp32, each tensor's first axis filled up to a multiple of the ranks."""
    return sum(4 * -(-w.shape[0] // ranks) * ranks * w[0].numel() for w in nets.MLP().parameters())


@pytest.mark.parametrize("layout", ONE_EACH, ids=lambda layout: layout.spec)
def test_one_gradient_reduction_an_optimizer_step(layout: Layout, ranks: Pool) -> None:
    """What is reduced is not more for more parts; gathering parameters for each part is FSDP's price."""
    one = layout.run(ranks, _two_steps, 24)[0]
    four = layout.with_parts(4).run(ranks, _two_steps, 24)[0]
    assert one.calls.get("reduce_scatter") == four.calls.get("reduce_scatter")
    for kind in ("all_reduce", "reduce_scatter", "broadcast"):
        assert one.bytes.get(kind) == four.bytes.get(kind), kind


def test_gradients_are_reduced_whole_and_once(ranks: Pool) -> None:
    """The counts above could agree on too much or on nothing: here they are predicted."""
    size = sum(w.nbytes for w in nets.MLP().parameters())
    ddp = Layout("ddp", 3, 4).run(ranks, _two_steps, 24)[0]
    assert ddp.calls == {"all_reduce": 1}
    assert ddp.bytes == {"all_reduce": size}
    for spec in ("fsdp", "zero2"):
        sharded = Layout(spec, 3, 4).run(ranks, _two_steps, 24)[0]
        assert sharded.calls["reduce_scatter"] == 3  # two blocks and the root
        assert sharded.bytes["reduce_scatter"] == _sharded_bytes(3)
        assert sharded.bytes["all_reduce"] == 4  # the norm
    assert Layout("dp", 3, 4).run(ranks, _two_steps, 24)[0].calls == {}
    assert "reduce_scatter" not in Layout("tp", 3, 4).run(ranks, _two_steps, 24)[0].calls


def _rates(p: Parallel) -> list[float]:
    return run_case(p, "mlp", 6).lrs


def test_the_learning_rate_curve_is_one_curve(ranks: Pool) -> None:
    want = [0.01 / (1 + step) for step in range(6)]
    for layout in (
        Layout("single", 1),
        Layout("ddp", 2),
        Layout("zero1", 3),
        Layout("fsdp", 3, 2),
        Layout("hsdp", 4),
    ):
        for got in layout.run(ranks, _rates):
            assert got == pytest.approx(want, rel=1e-15)


def _state(p: Parallel, built: bool) -> tuple[dict[str, Tensor], dict[str, Tensor], Tensor]:
    """Rank 0's weights before and after ``wrap``, and what this rank's net makes of ones."""
    torch.manual_seed(p.rank)
    model = nets.Transformer()
    before = {name: tensor.double() for name, tensor in model.state_dict().items()}
    torch.manual_seed(p.rank)
    net = p.wrap(nets.Transformer if built else model, nets.TRANSFORMER_PLAN)
    net.eval()
    with torch.no_grad():
        return before, p.state_dict(net), net(torch.ones(2, 5, 48, dtype=torch.float64))


@pytest.mark.parametrize("layout", [Layout("single", 1), *ONE_EACH], ids=lambda layout: layout.spec)
@pytest.mark.parametrize("built", [False, True], ids=["module", "factory"])
def test_all_start_from_rank_0s_weights(layout: Layout, built: bool, ranks: Pool) -> None:
    """Each rank's own seed differs; a factory is built where it is wrapped."""
    found = layout.run(ranks, _state, built, precision="fp64")
    before, after, _ = found[0]
    assert before.keys() == after.keys()
    for name, weight in before.items():
        assert after[name].equal(weight), name
    plain = nets.Transformer().double().eval()
    plain.load_state_dict(after)
    want = plain(torch.ones(2, 5, 48, dtype=torch.float64))
    for rank, (_, state, answer) in enumerate(found):
        assert F.mse_loss(answer, want) < 1e-28
        assert rank == 0 or not state


def test_a_share_that_fails_ends_the_case(ranks: Pool) -> None:
    """The pool passes a rank's error on: no test here passes because its ranks fell silent."""
    with pytest.raises(CaseError, match="KeyError: 'no such case'"):
        ranks.run(run_case, "ddp", 2, "no such case")
