"""Schedule, mixing, groups, metrics: each against its formula, timm or scikit-learn."""

from __future__ import annotations

import math

import numpy as np
import pytest
import timm
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as sk
from timm.optim import param_groups_layer_decay
from torch.nn import functional as F

from zoo.models.vit.arch import create_vit
from zoo.models.vit.groups import freeze, parameter_groups
from zoo.models.vit.metrics import accuracy, class_rows, confusion
from zoo.models.vit.mix import Mix, draw_mix
from zoo.models.vit.samples import PairSampler
from zoo.models.vit.schedule import warmup_cosine
from zoo_datasets.errors import InputError

SMALL = {
    "img_size": 8,
    "patch_size": 4,
    "in_chans": 1,
    "embed_dim": 16,
    "depth": 3,
    "num_heads": 2,
    "num_classes": 5,
}


def small(**args: object) -> torch.nn.Module:
    torch.manual_seed(0)
    return create_vit("vit_tiny_patch16_224", SMALL | args)


def test_the_learning_rate_rises_and_falls():
    factor = warmup_cosine(100, 0.2)
    curve = [factor(step) for step in range(100)]
    assert curve[:20] == pytest.approx([(step + 1) / 20 for step in range(20)])
    assert curve[20] == 1.0
    assert curve[60] == pytest.approx(0.5)
    assert curve[80] == pytest.approx(0.5 * (1 + math.cos(math.pi * 0.75)))
    assert factor(100) == pytest.approx(0.0)
    assert [warmup_cosine(1, 0.3)(0), warmup_cosine(2, 1.0)(1)] == [1.0, 1.0]


def test_mixup_is_the_papers_sum():
    x, partner = torch.rand(2, 3, 1, 4, 4)
    y, other = torch.tensor([0, 1, 2]), torch.tensor([2, 1, 0])
    mix = Mix(0.3)
    torch.testing.assert_close(mix.images(x, partner), 0.3 * x + 0.7 * partner)
    want = torch.tensor([[0.3, 0, 0.7], [0, 1.0, 0], [0.7, 0, 0.3]])
    torch.testing.assert_close(mix.targets(y, other, 3, torch.float32), want)


@settings(max_examples=100, deadline=None)
@given(st.integers(-(2**63), 2**63 - 1), st.integers(1, 16), st.integers(1, 16))
def test_cutmix_counts_the_pixels_it_takes(key, height, width):
    mix = draw_mix(key, 0.0, 1.0, height, width)
    mixed = mix.images(torch.zeros(1, 1, height, width), torch.ones(1, 1, height, width))
    assert mixed.mean().item() == pytest.approx(1 - mix.share)
    assert set(mixed.unique().tolist()) <= {0.0, 1.0}


def test_shares_come_from_the_beta_distribution():
    shares = np.array([draw_mix(key, 0.4, 0.0, 8, 8).share for key in range(4000)])
    # Beta(a, a): mean 1/2, variance 1 / (4 (2a + 1)).
    assert shares.mean() == pytest.approx(0.5, abs=0.02)
    assert shares.var() == pytest.approx(1 / (4 * 1.8), rel=0.05)
    taken = [draw_mix(key, 0.4, 1.0, 8, 8).box is not None for key in range(2000)]
    assert np.mean(taken) == pytest.approx(0.5, abs=0.04)


def test_everyone_is_a_partner_once_an_epoch():
    sampler = PairSampler(50, seed=3)
    rows, partners = (sampler(0) // 50).tolist(), (sampler(0) % 50).tolist()
    assert sorted(rows) == sorted(partners) == list(range(50))
    assert rows != partners
    assert not torch.equal(sampler(0), sampler(1))
    assert torch.equal(sampler(1), PairSampler(50, seed=3)(1))


@pytest.mark.parametrize("arch", ["vit_tiny_patch16_224", "deit_tiny_distilled_patch16_224"])
def test_groups_are_timms_layer_decay(arch):
    net = create_vit(arch, SMALL)
    groups = parameter_groups(net, lr=0.01, weight_decay=0.05, layer_decay=0.7)
    theirs = param_groups_layer_decay(net, 0.05, net.no_weight_decay(), layer_decay=0.7)
    seen = 0
    names = {id(parameter): name for name, parameter in net.named_parameters()}
    for group in theirs:
        for parameter in group["params"]:
            ours = groups(names[id(parameter)], parameter)
            assert ours["lr"] == pytest.approx(0.01 * group["lr_scale"])
            assert ours["weight_decay"] == group["weight_decay"]
            seen += 1
    assert seen == len(names)


def trainable(net: torch.nn.Module) -> set[str]:
    return {
        name.split(".")[0] + "." + name.split(".")[1]
        for name, p in net.named_parameters()
        if p.requires_grad and "." in name
    }


def test_freezing():
    net = small()
    freeze(net, "none")
    assert all(parameter.requires_grad for parameter in net.parameters())
    freeze(net, "blocks:2")
    assert trainable(net) == {"blocks.2", "norm.weight", "norm.bias", "head.weight", "head.bias"}
    assert not net.pos_embed.requires_grad
    net = small()
    freeze(net, "backbone")
    assert {name for name, p in net.named_parameters() if p.requires_grad} == {"head.weight", "head.bias"}
    with pytest.raises(InputError, match=r"--freeze blocks:4: the net has 3 blocks"):
        freeze(small(), "blocks:4")


def test_accuracy_is_scikit_learns():
    generator = np.random.default_rng(0)
    logits, labels = generator.normal(size=(200, 8)), generator.integers(0, 8, 200)
    found = accuracy(logits, labels)
    assert found["top1"] == pytest.approx(sk.accuracy_score(labels, logits.argmax(1)))
    assert found["top5"] == pytest.approx(sk.top_k_accuracy_score(labels, logits, k=5))
    want = F.cross_entropy(torch.from_numpy(logits), torch.from_numpy(labels)).item()
    assert found["loss"] == pytest.approx(want)
    assert accuracy(logits[:, :3], labels % 3).keys() == {"top1", "loss"}
    assert math.isfinite(accuracy(logits * 1e4, labels)["loss"])


def test_tables_are_scikit_learns():
    generator = np.random.default_rng(0)
    labels, predicted = (
        generator.integers(0, 5, 100),
        generator.integers(0, 4, 100),
    )  # class 4 is never predicted
    table = confusion(predicted, labels, 5)
    assert np.array_equal(table, sk.confusion_matrix(labels, predicted))
    want = sk.precision_recall_fscore_support(labels, predicted, zero_division=0)
    rows = class_rows(table, list("abcde"))
    for place, name in enumerate(("precision", "recall", "f1", "images")):
        assert [getattr(row, name) for row in rows] == pytest.approx(want[place].tolist())
    assert [row.predicted for row in rows] == np.bincount(predicted, minlength=5).tolist()


def test_the_net_is_timms():
    args = SMALL | {"qk_norm": True, "init_values": 0.1, "attn_drop_rate": 0.2}
    ours, theirs = small(**args), timm.create_model("vit_tiny_patch16_224", **args)
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(3, 1, 8, 8)
    torch.testing.assert_close(
        ours.eval()(x), theirs.eval()(x), rtol=0, atol=1e-6
    )  # ours without the fused kernel
    assert not ours.blocks[0].attn.fused_attn


@pytest.mark.parametrize(
    ("arch", "message"),
    [
        (
            "vit_tiny_patch16_24",
            "unknown architecture 'vit_tiny_patch16_24'; the nearest are vit_tiny_patch16_224",
        ),
        ("resnet50", "unknown architecture 'resnet50'"),
        ("vit_tiny_patch16_224.augreg", "unknown weights .*vit_tiny_patch16_224.augreg_in21k"),
    ],
)
def test_architectures_that_are_not_there(arch, message):
    with pytest.raises(InputError, match=message):
        create_vit(arch)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"widht": 3}, "widht"),
        ({"num_heads": 5}, "divisible by num_heads"),
        ({"patch_drop_rate": 0.5}, "patch_drop_rate: .*cannot follow the sample"),
    ],
)
def test_arguments_that_do_not_fit(args, message):
    with pytest.raises(InputError, match=message):
        small(**args)
