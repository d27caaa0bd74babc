"""The toy DDPM's network."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest
import torch
from torch import Tensor

from zoo.models.ddpm.model import DenoisingMLP, he_initialise, sinusoidal_embedding
from zoo_datasets.errors import InputError


def by_hand(net: DenoisingMLP, hidden: Tensor) -> Tensor:
    for layer in (net.fc1, net.fc2, net.fc3):
        hidden = (hidden @ layer.weight.T + layer.bias).clamp(min=0)
    return hidden @ net.fc4.weight.T + net.fc4.bias


def test_the_published_sizes_are_the_defaults() -> None:
    shapes = {name: list(tensor.shape) for name, tensor in DenoisingMLP().state_dict().items()}
    assert shapes == {
        "fc1.weight": [400, 5],
        "fc1.bias": [400],
        "fc2.weight": [400, 400],
        "fc2.bias": [400],
        "fc3.weight": [400, 400],
        "fc3.bias": [400],
        "fc4.weight": [4, 400],
        "fc4.bias": [4],
    }


def test_the_signal_keeps_its_size_through_the_layers() -> None:
    torch.manual_seed(0)
    net = DenoisingMLP()
    he_initialise(net)
    hidden = torch.randn(200, 5)
    for layer in (net.fc1, net.fc2, net.fc3):
        before, hidden = hidden, torch.relu(hidden @ layer.weight.T)
        # Half of it passes a ReLU, and weights of variance 2 / inputs make up for that.
        assert hidden.square().mean().item() == pytest.approx(before.square().mean().item(), rel=0.25)


@pytest.mark.parametrize("features", [1, 4, 7])
def test_time_enters_as_the_last_input_from_0_to_1(features: int) -> None:
    net = DenoisingMLP(features, steps=10, width=16).double()
    x, t = torch.randn(3, features, dtype=torch.float64), torch.tensor([0, 7, 9])
    time = torch.tensor([[0.0], [0.7], [0.9]], dtype=torch.float64)
    torch.testing.assert_close(net(x, t), by_hand(net, torch.cat([x, time], 1)), rtol=1e-12, atol=1e-12)


def test_time_may_enter_as_sines_and_cosines() -> None:
    net = DenoisingMLP(4, steps=1000, width=16, time_embedding=6).double()
    x, t = torch.randn(3, 4, dtype=torch.float64), torch.tensor([0, 7, 999])
    frequencies = [1.0, 10_000 ** (-1 / 3), 10_000 ** (-2 / 3)]
    rows = [[f(step * w) for f in (math.sin, math.cos) for w in frequencies] for step in t.tolist()]
    time = torch.tensor(rows, dtype=torch.float64)
    torch.testing.assert_close(sinusoidal_embedding(t.double(), 6), time, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(net(x, t), by_hand(net, torch.cat([x, time], 1)), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("embedding", [0, 8])
def test_any_dtype(dtype: torch.dtype, embedding: int) -> None:
    torch.manual_seed(0)
    net = DenoisingMLP(4, 1000, 16, embedding)
    x, t = torch.randn(5, 4), torch.tensor([0, 1, 2, 3, 4])
    exact = net.double()(x.double(), t)
    got = net.to(dtype)(x.to(dtype), t)
    assert got.dtype == dtype
    torch.testing.assert_close(got.double(), exact, rtol=0, atol=max(8 * torch.finfo(dtype).eps, 1e-12))


def test_half_precision_still_tells_the_last_steps_apart() -> None:
    torch.manual_seed(0)
    net = DenoisingMLP(4, 1000, 16, time_embedding=8).bfloat16()
    before, last = net(torch.zeros(2, 4, dtype=torch.bfloat16), torch.tensor([998, 999]))
    assert not torch.equal(before, last)  # as bfloat16 numbers, both steps are 1000


@pytest.mark.parametrize("embedding", [0, 8])
def test_built_on_meta_nothing_is_lost(embedding: int) -> None:
    net = DenoisingMLP(4, 100, 16, embedding)
    with torch.device("meta"):
        other = DenoisingMLP(4, 100, 16, embedding)
    other.to_empty(device="cpu").load_state_dict(net.state_dict())
    x, t = torch.randn(3, 4), torch.tensor([0, 50, 99])
    assert torch.equal(other(x, t), net(x, t))


def test_no_rows_are_no_rows() -> None:
    net = DenoisingMLP(width=8)
    out = net(torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64))
    out.sum().backward()
    assert out.shape == (0, 4)
    assert net.fc1.weight.grad is not None


@pytest.mark.parametrize("shape", [(3, 5), (3, 3), (4,), (2, 3, 4)])
def test_vectors_of_another_width_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(
        InputError, match=r"^ddpm: this model takes vectors of 4 numbers, got shape \[[\d, ]+\]$"
    ):
        DenoisingMLP(width=8)(torch.zeros(shape), torch.zeros(shape[0], dtype=torch.int64))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"features": 0}, "ddpm: features must be at least 1, got 0"),
        ({"steps": 0}, "ddpm: steps must be at least 1, got 0"),
        ({"width": -1}, "ddpm: width must be at least 1, got -1"),
        ({"time_embedding": 7}, "ddpm: time_embedding must be even, or 0 for t / T, got 7"),
        ({"time_embedding": -2}, "ddpm: time_embedding must be even, or 0 for t / T, got -2"),
    ],
)
def test_sizes_that_make_no_network_are_refused(options: dict[str, int], message: str) -> None:
    with pytest.raises(InputError, match=f"^{message}$"):
        DenoisingMLP(**options)


def test_importing_the_package_does_not_import_torch() -> None:
    code = "import sys, zoo.models.ddpm; print('torch' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "False"
