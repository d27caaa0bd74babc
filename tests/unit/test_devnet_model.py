"""The three networks: sizes, first weights, scores."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from parallel.rng import shared_generator
from zoo.models.devnet.model import HIDDEN_UNITS, DevNet
from zoo.models.devnet.plan import plan_of
from zoo_datasets import InputError

DEPTHS = sorted(HIDDEN_UNITS)


def network(columns: int, depth: int, seed: int = 0) -> DevNet:
    return DevNet(columns, depth, shared_generator(seed, "weights"))


@pytest.mark.parametrize(
    ("depth", "widths"), [(1, [21, 1]), (2, [21, 20, 1]), (4, [21, 1000, 250, 20, 1])], ids=str
)
def test_layers_are_the_papers(depth, widths):
    shapes = [tuple(p.shape) for name, p in network(21, depth).named_parameters() if name.endswith("weight")]
    assert shapes == [(units, width) for width, units in itertools.pairwise(widths)]


@pytest.mark.parametrize("depth", DEPTHS)
def test_scores_equal_the_formula_in_numpy(depth):
    net = network(5, depth).double()
    x = np.random.default_rng(0).normal(size=(7, 5))
    hidden = x
    for layer in net.hidden:
        hidden = np.maximum(hidden @ layer.weight.detach().numpy().T + layer.bias.detach().numpy(), 0)
    want = hidden @ net.score.weight.detach().numpy()[0] + net.score.bias.item()
    np.testing.assert_allclose(net(torch.from_numpy(x)).detach().numpy(), want, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("depth", DEPTHS)
def test_no_rows_give_no_scores(depth):
    assert network(5, depth)(torch.empty(0, 5)).shape == (0,)


def test_first_weights_are_glorot_uniform_and_biases_zero():
    for layer in network(30, 4).hidden:
        units, width = layer.weight.shape
        limit = math.sqrt(6 / (units + width))
        assert layer.weight.abs().max() <= limit
        # The variance of a uniform distribution; 5 % is over 5 standard errors of the smallest layer's.
        assert layer.weight.var().item() == pytest.approx(limit**2 / 3, rel=0.05)
        assert not layer.bias.any()


def test_the_generator_alone_decides_the_weights():
    torch.manual_seed(1)
    first = network(5, 2).state_dict()
    torch.manual_seed(2)
    again, other = network(5, 2).state_dict(), network(5, 2, seed=1).state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["score.weight"], other["score.weight"])


def test_other_depths_and_widths_are_refused():
    with pytest.raises(InputError, match="one of 1, 2 and 4, not 3"):
        DevNet(21, 3)
    with pytest.raises(InputError, match="at least one column"):
        DevNet(0)
    with pytest.raises(InputError, match=r"rows of 21 columns, got shape \(4, 20\)"):
        network(21, 2)(torch.zeros(4, 20))


@pytest.mark.parametrize("depth", DEPTHS)
def test_the_plan_fits_the_network(depth):
    plan = plan_of(depth)
    plan.check(network(21, depth))
    assert bool(plan.units) == (depth > 1)
