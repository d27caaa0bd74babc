"""How far apart two runs are: relative where there is something to be relative to, and never blind."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from parallel.testing import Trace, differences, distances, note_gradients


def trace(gradients: dict[str, float] | None = None, **weights: Tensor) -> Trace:
    return Trace([1.0], [2.0], [0.1], weights, {}, gradients or {})


BIG = torch.tensor([3.0, 4.0], dtype=torch.float64)


def test_a_difference_is_relative_to_its_own_tensor():
    """However large the others are."""
    want = trace(big=1e6 * BIG, small=1e-6 * BIG)
    assert distances(want, trace(big=1e6 * BIG, small=1.001e-6 * BIG))["weights"] > 0.9e-3
    assert differences(want, trace(big=1e6 * BIG, small=1e-6 * (1 + 2e-8) * BIG), "fp64")
    assert not differences(want, trace(big=1e6 * BIG, small=1e-6 * (1 + 0.5e-8) * BIG), "fp64")


def test_noise_is_relative_to_the_whole():
    """Where one process's gradient never rose above rounding, and only there."""
    silent, small = {"big": 1.0, "bias": 1e-16}, {"big": 1.0, "bias": 1e-9}
    want, other = trace(silent, big=BIG, bias=1e-15 * BIG), trace(big=BIG, bias=-1e-15 * BIG)
    assert not differences(want, other, "fp64")
    assert differences(trace(small, **want.weights), other, "fp64")
    assert differences(trace(**want.weights), other, "fp64")  # nothing is known of its gradient


def test_what_should_have_been_noise_is_noticed():
    want = trace({"big": 1.0, "bias": 1e-16}, big=BIG, bias=1e-15 * BIG)
    assert differences(want, trace(big=BIG, bias=1e-7 * BIG), "fp64")
    assert differences(want, trace(big=(1 + 2e-8) * BIG, bias=1e-15 * BIG), "fp64")
    assert differences(want, trace(big=BIG, bias=torch.tensor([float("nan"), 0.0])), "fp64")
    assert differences(want, trace(big=BIG, bias=torch.zeros(3)), "fp64")


def test_single_numbers_are_one_vector():
    """One of them may be passing zero; each is noticed all the same, and other tensors are no part of it."""

    def numbers(one: float, other: float) -> Trace:
        one, other = (torch.tensor([value], dtype=torch.float64) for value in (one, other))
        return trace(one=one, other=other, big=1e6 * BIG, count=torch.tensor(10))

    want = numbers(3e-3, -4e-9)
    assert not differences(want, numbers(3e-3, -4e-9 + 2e-11), "fp64")
    assert differences(want, numbers(3e-3, -4e-9 + 4e-11), "fp64")
    assert differences(want, numbers(3e-3 + 4e-11, -4e-9), "fp64")
    assert differences(want, numbers(3e-3, float("nan")), "fp64")


def test_the_largest_gradients_are_noted():
    net = nn.Linear(2, 1).double()
    net.bias.requires_grad_(False)
    norms = note_gradients(net)
    for factor in (1.0, 3.0, 2.0):
        net.zero_grad()
        (factor * net(BIG)).backward()
    assert norms == {"weight": 15.0}
