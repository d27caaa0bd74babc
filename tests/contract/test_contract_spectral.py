"""Spectral norm, modulation and gathered layers under tensor parallelism: one process's numbers, buffers included."""

from __future__ import annotations

import pytest
import torch
from contract_matrix import Layout
from pool import CaseError, Pool
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, spectral_norm
from torch.nn.utils.parametrizations import weight_norm

from parallel.interface import Parallel
from parallel.plan import Plan
from parallel.testing import Trace, differences


class _Modulation(nn.Module):
    """Scales channels by numbers of their own, and by what a whole code says, blended."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(channels))
        self.blend = nn.Parameter(torch.randn(1))
        self.code = nn.Linear(3, 5)
        self.style = nn.Linear(5, channels)
        self.shift = nn.Linear(3, 7)
        self.mask = nn.Linear(7, channels)

    def forward(self, x: Tensor, mean: Tensor) -> Tensor:
        code = torch.relu(self.code(mean))
        shift = F.linear(torch.relu(self.shift(mean.detach())), self.mask.weight, self.mask.bias)
        styled = self.blend * F.linear(code, self.style.weight, self.style.bias) + self.scale + shift
        return x * styled[..., None, None]


class _Net(nn.Module):
    """Both of torch's spectral norms, each cut by row and by column."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 1)
        self.conv_0 = spectral_norm(nn.Conv2d(4, 12, 3, padding=1))
        self.norm = nn.BatchNorm2d(12, affine=False)
        self.modulation = _Modulation(12)
        self.conv_1 = spectral_norm(nn.Conv2d(12, 8, 3, padding=1))
        self.conv_2 = parametrizations.spectral_norm(nn.Conv2d(8, 12, 1))
        self.conv_3 = parametrizations.spectral_norm(nn.Conv2d(12, 8, 1), n_power_iterations=2)
        self.judge = nn.Sequential(spectral_norm(nn.Conv2d(8, 12, 2)), nn.InstanceNorm2d(12))
        self.up = spectral_norm(nn.Linear(12, 24))
        self.down = parametrizations.spectral_norm(nn.Linear(24, 2))

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean((2, 3))
        x = self.stem(x)
        y = self.modulation(self.norm(self.conv_0(x)), mean)
        y = self.conv_3(torch.relu(self.conv_2(self.conv_1(torch.relu(y)))))
        judged = self.judge(y)
        return self.down(torch.relu(self.up(judged.square().mean((2, 3)) + judged.amax((2, 3)))))


PLAN = Plan(
    units=("conv_1", "judge"),
    tensor={
        "conv_0": "conv_out",
        "norm": "channels",
        "modulation": "slice scale",
        "modulation.code": "entering",
        "modulation.style": "channels",
        "modulation.shift": "shared",
        "modulation.mask": "channels",
        "conv_1": "conv_in",
        "conv_2": "conv_out",
        "conv_3": "conv_in",
        "judge.0": "gathered",
        "up": "column",
        "down": "row",
    },
)


def _train(p: Parallel) -> Trace:
    """Four steps, two forwards before each backward; then the answers in evaluation."""
    torch.manual_seed(p.rank)
    net = p.wrap(_Net(), PLAN)
    opt = p.optimizer(net, torch.optim.Adam, lr=1e-2, clip_norm=1.0)
    trace = Trace()
    x = torch.randn(23, 3, 4, 4, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    for batch in p.loader(x, 6, shuffle=True, seed=2):
        for part in p.parts(batch):
            real = F.softplus(-net(part.data)).sum() / batch.size
            fake = F.softplus(net(part.noise("fake", (3, 4, 4)))).sum() / batch.size
            p.backward(real + fake, opt)
        trace.losses.append(float(p.sum((real + fake).detach())))
        trace.norms.append(float(p.step(opt).grad_norm))
    trace.weights = p.state_dict(net)
    net.eval()
    with torch.no_grad():
        trace.answers = {"answer": net(x[:3].to(p.device))}
    return trace


@pytest.fixture(scope="module")
def one_process(ranks: Pool) -> Trace:
    return ranks.run(_train, "single", 1, precision="fp64")[0]


@pytest.mark.parametrize(
    "layout",
    [Layout("tp", 2), Layout("tp", 3), Layout("tp", 4), Layout("ddp+tp", 4), Layout("fsdp+tp", 4)],
    ids=str,
)
def test_slices_give_one_processes_numbers(layout: Layout, one_process: Trace, ranks: Pool) -> None:
    trace, *others = layout.run(ranks, _train, precision="fp64")
    assert not differences(one_process, trace, "fp64")
    assert all(torch.equal(other.answers["answer"], trace.answers["answer"]) for other in others)


def test_plain_torch_answers_the_same(one_process: Trace, ranks: Pool) -> None:
    """With what was saved from slices, power iteration's vectors included."""
    trace = ranks.run(_train, "tp", 3, precision="fp64")[0]
    net = _Net().double().eval()
    net.load_state_dict(trace.weights)
    x = torch.randn(23, 3, 4, 4, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    with torch.no_grad():
        assert torch.allclose(net(x[:3]), trace.answers["answer"], rtol=1e-12, atol=1e-13)


class _Weird(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.normed = weight_norm(nn.Linear(4, 4))
        self.spectral = spectral_norm(nn.Linear(4, 6))
        self.scale = nn.Parameter(torch.zeros(6))


def _wrap(p: Parallel, plan: dict[str, str]) -> None:
    p.wrap(_Weird(), Plan(tensor=plan))


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        ({"normed": "column"}, r"weight of layer 'normed': cutting a weight that is computed from others"),
        (
            {"spectral": "column"},
            r"layer 'spectral': weight axis 0 is 6, which 4 .* allowed degrees: 1, 2, 3, 6",
        ),
        ({"spectral": "slice size"}, r"layer 'spectral' has no tensor 'size' to cut"),
        ({"spectral": "slice bias"}, r"layer 'spectral': bias axis 0 is 6, which 4 tensor-parallel ranks"),
    ],
)
def test_what_cannot_be_cut(plan: dict[str, str], said: str, ranks: Pool) -> None:
    with pytest.raises(CaseError, match=said):
        ranks.run(_wrap, "tp", 4, plan)
