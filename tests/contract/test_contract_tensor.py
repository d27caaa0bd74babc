"""Tensor parallelism: what cannot be cut is refused before training, and what is not cut stays equal on all ranks."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
import torch
from contract_matrix import Layout
from pool import Pool
from torch import Tensor, nn
from torch.nn import functional as F

from parallel.errors import ParallelError
from parallel.interface import Parallel
from parallel.plan import Plan
from parallel.tensors import local
from parallel.testing import nets


class _Normed(nn.Module):
    """Dropout, and buffers that each forward moves: a BatchNorm's statistics, a spectral norm's vectors."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.utils.parametrizations.spectral_norm(nn.Linear(6, 12))
        self.norm = nn.BatchNorm1d(12)
        self.drop = nn.Dropout(0.3)
        self.head = nn.Linear(12, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.drop(torch.relu(self.norm(self.stem(x)))))


def _hashes(p: Parallel, name: str) -> tuple[int, dict[str, str]]:
    """The data share, and a hash of what this rank holds of each parameter and buffer after 50 steps with dropout."""
    torch.manual_seed(p.rank)
    model: nn.Module
    if name == "dropout":
        model, plan, data = nets.Dropped(), nets.DROPPED_PLAN, torch.randn(37, 6)
    elif name == "buffers":
        model, plan, data = _Normed(), Plan(units=("head",)), torch.randn(37, 6)
    else:
        model, plan, data = nets.Transformer(), nets.TRANSFORMER_PLAN, torch.randn(37, 5, 48)
    data = p.broadcast(data)
    net = p.wrap(model, plan)
    opt = p.optimizer(net, torch.optim.AdamW, lr=1e-2, clip_norm=1.0)
    steps = 0
    while steps < 50:
        for batch in p.loader(data, 10, shuffle=True):
            for part in p.parts(batch):
                p.backward(net(part.data).square().sum() / batch.size, opt)
            p.step(opt)
            steps += 1
    held = {key: local(w.detach()).contiguous() for key, w in (*net.named_parameters(), *net.named_buffers())}
    return p.data_rank, {key: hashlib.sha256(w.numpy().tobytes()).hexdigest() for key, w in held.items()}


def _whole(name: str) -> set[str]:
    """What tensor parallelism does not cut."""
    if name == "dropout":
        cut = ("first.weight", "first.bias", "second.weight")
        return {key for key, _ in nets.Dropped().named_parameters()} - set(cut)
    ends = ("qkv.weight", "qkv.bias", "proj.weight", "up.weight", "up.bias", "down.weight")
    return {key for key, _ in nets.Transformer().named_parameters() if not key.endswith(ends)}


@pytest.mark.parametrize(
    "layout", [Layout("tp", 2), Layout("tp", 3), Layout("ddp+tp", 4), Layout("fsdp+tp", 4)], ids=str
)
@pytest.mark.parametrize("name", ["dropout", "attention"])
def test_what_is_not_cut_is_equal_on_all_tensor_ranks(layout: Layout, name: str, ranks: Pool) -> None:
    """To the last bit, in fp32: the smallest difference would grow. Under ddp over both groups of tensor ranks."""
    by_share: dict[int, list[dict[str, str]]] = {}
    for share, digests in layout.run(ranks, _hashes, name):
        kept = {key: digests[key] for key in _whole(name)}
        by_share.setdefault(0 if layout.spec == "ddp+tp" else share, []).append(kept)
    for found in by_share.values():
        assert len(found) == (2 if layout.spec == "fsdp+tp" else layout.ranks)
        assert all(digests == found[0] for digests in found)


@pytest.mark.parametrize(
    ("layout", "replicas"),
    [
        (Layout("ddp", 3), [(0, 1, 2)]),
        (Layout("zero1", 3), [(0, 1, 2)]),
        (Layout("hsdp", 4), [(0, 2), (1, 3)]),
    ],
    ids=lambda it: str(it) if isinstance(it, Layout) else "",
)
@pytest.mark.parametrize("name", ["dropout", "buffers"])
def test_replicas_are_equal_to_the_last_bit(
    layout: Layout, replicas: list[tuple[int, ...]], name: str, ranks: Pool
) -> None:
    found = [digests for _, digests in layout.run(ranks, _hashes, name)]
    assert name == "dropout" or {"norm.running_var", "norm.running_mean"} < found[0].keys()
    for group in replicas:
        assert all(found[rank] == found[group[0]] for rank in group)


def test_cut_parts_are_not_equal(ranks: Pool) -> None:
    """So that the hashes can tell ranks apart."""
    found = [digests for _, digests in ranks.run(_hashes, "hsdp", 4, "dropout")]
    assert found[0] != found[1]


class _Cut(nn.Module):
    """What a degree may fail to divide: 10 features, 6 heads of 36, 12 channels."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Linear(6, 10)
        self.attention = nets.Attention(36, 6)
        self.conv = nn.Conv2d(3, 12, 1)
        self.num_heads = 6

    def forward(self, x: Tensor) -> Tensor:
        return self.wide(x)


def _wrapped(p: Parallel, tensor: dict[str, str]) -> str:
    try:
        p.wrap(_Cut(), Plan(tensor=tensor))
    except ParallelError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("degree", "tensor", "said"),
    [
        (3, {"wide": "column"}, "layer 'wide': weight axis 0 is 10, which 3 tensor-parallel ranks do not divide; "
            "allowed degrees: 1, 2, 5, 10"),
        (4, {"wide": "row"}, "layer 'wide': weight axis 1 is 6, which 4 tensor-parallel ranks do not divide; "
            "allowed degrees: 1, 2, 3, 6"),
        (4, {"attention.qkv": "qkv heads", "attention.norm": "shared"}, "layer 'attention.qkv': heads is 6, which 4 "
            "tensor-parallel ranks do not divide; allowed degrees: 1, 2, 3, 6"),
        (2, {"conv": "conv_in"}, "layer 'conv': weight axis 1 is 3, which 2 tensor-parallel ranks do not divide; "
            "allowed degrees: 1, 3"),
        (2, {"wide": "column", "wider": "row"}, "Plan.tensor: 'wider' matches no module of _Cut; its children are: "
            "wide, attention, conv"),
        (2, {"wide": "columns"}, "Plan.tensor: style 'columns' of layer 'wide' is unknown; it is one of column, row, "),
        (2, {"attention.qkv": "qkv head"}, "Plan.tensor: the parent of layer 'attention.qkv' has no number 'head'"),
        (2, {"wide": "features"}, "layer 'wide': style 'features' is for dropout layers"),
    ],
)  # fmt: skip
def test_what_cannot_be_cut_is_refused_before_training(
    degree: int, tensor: dict[str, str], said: str, ranks: Pool
) -> None:
    for found in ranks.run(_wrapped, "tp", degree, tensor):
        assert found.startswith(said)
        assert "\n" not in found


def _saved_after_refusal(p: Parallel) -> dict[str, Any]:
    """A refusal leaves the model as it was."""
    model = _Cut()
    try:
        p.wrap(model, Plan(tensor={"conv": "conv_out", "wide": "column"}))
    except ParallelError:
        return {name: tuple(weight.shape) for name, weight in model.state_dict().items()}
    return {}


def test_a_refused_model_is_left_whole(ranks: Pool) -> None:
    want = {name: tuple(weight.shape) for name, weight in _Cut().state_dict().items()}
    assert ranks.run(_saved_after_refusal, "tp", 3) == [want] * 3


def _weights(p: Parallel) -> dict[str, Tensor]:
    return p.state_dict(p.wrap(nets.Transformer(), nets.TRANSFORMER_PLAN))


def test_saved_weights_are_whole_and_unpadded(ranks: Pool) -> None:
    """The fused qkv comes back in the model's own order of heads: plain attention computes the same with it."""
    for n in (2, 3, 4):
        state = ranks.run(_weights, "tp", n)[0]
        model = nets.Transformer()
        assert {k: v.shape for k, v in state.items()} == {k: v.shape for k, v in model.state_dict().items()}
    answers = ranks.run(_answer, "tp", 3, precision="fp64")
    plain = nets.Transformer().double().eval()
    plain.load_state_dict(answers[0][0])
    want = plain(torch.ones(2, 5, 48, dtype=torch.float64))
    assert all(F.mse_loss(answer, want) < 1e-28 for _, answer in answers)


def _answer(p: Parallel) -> tuple[dict[str, Tensor], Tensor]:
    torch.manual_seed(p.rank)
    net = p.wrap(nets.Transformer(), nets.TRANSFORMER_PLAN).eval()
    with torch.no_grad():
        return p.state_dict(net), net(torch.ones(2, 5, 48, dtype=torch.float64))


def test_degrees_beside_the_default(ranks: Pool) -> None:
    """--tp sets how many ranks split a model; what it leaves cuts the batch."""
    from parallel.testing import differences, run_case

    want = ranks.run(run_case, "single", 1, "mlp", 4, precision="fp64")[0]
    for spec, tp, shares in (("ddp+tp", 4, 1), ("ddp+tp", 1, 4), ("fsdp+tp", 4, 1), ("tp", 4, 1)):
        got = ranks.run(run_case, spec, 4, "mlp", 4, precision="fp64", tp=tp)[0]
        assert not differences(want, got, "fp64"), (spec, tp)
        assert ranks.run(_shares, spec, 4, tp=tp) == [shares] * 4


def _shares(p: Parallel) -> int:
    return p.data_size
