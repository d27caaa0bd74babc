"""ViT under every strategy: one process's numbers, whatever is drawn, and timm's weights."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from pool import CaseError, Pool
from safetensors.torch import load_file

from parallel import Parallel
from parallel.testing import TOLERANCES, Trace, differences, distances
from zoo.models.vit.config import ViTConfig
from zoo.models.vit.trainer import ViTTrainer
from zoo.parity import train
from zoo.trainer import evaluating
from zoo_datasets.images import load_images

NARROW = ("depth=2", "embed_dim=16", "num_heads=4", "qk_norm=true", "init_values=0.1")

# All that is drawn at random, at once. No number of ranks here divides the batch.
RANDOM = ViTConfig(
    steps=4,
    batch_size=10,
    model_args=NARROW,
    dropout=0.1,
    attn_dropout=0.1,
    drop_path=0.3,
    mixup=0.8,
    cutmix=1.0,
    randaugment=2,
    flip=True,
    crop=0.5,
    label_smoothing=0.1,
    ema=0.9,
    layer_decay=0.7,
)
LAYOUTS = [
    ("ddp", 2, 2),
    ("ddp", 3, 1),
    ("fsdp", 2, 1),
    pytest.param("fsdp", 3, 2, marks=pytest.mark.slow),
    ("zero1", 2, 1),
    ("zero2", 3, 1),
    ("zero3", 3, 1),
    ("zero3-offload", 2, 1),
    ("tp", 2, 1),
    pytest.param("tp", 4, 2, marks=pytest.mark.slow),
    ("ddp+tp", 4, 1),
    ("fsdp+tp", 4, 2),
    ("hsdp", 4, 1),
]


def traced(p: Parallel, config: ViTConfig) -> Trace:
    return train(ViTTrainer(p, config), "vit")[0]


@pytest.fixture(scope="module")
def one_process(ranks: Pool) -> Trace:
    trace = ranks.run(traced, "single", 1, RANDOM, precision="fp64")[0]
    assert abs(trace.losses[0] - trace.losses[-1]) > 1e-3
    return trace


@pytest.mark.parametrize(("spec", "n", "accumulate"), LAYOUTS)
def test_random_draws_belong_to_the_sample(ranks, one_process, spec, n, accumulate):
    got = ranks.run(traced, spec, n, RANDOM, precision="fp64", accumulate=accumulate)[0]
    assert not differences(one_process, got, "fp64")


def test_a_bias_of_all_keys_alike_is_noise_and_held_all_the_same(one_process):
    """It shifts a query's scores alike, which softmax does not see: Adam moves it by what is left of rounding."""
    name = "net.blocks.1.attn.k_norm.bias"
    assert one_process.gradients[name] < 1e-13 < one_process.gradients["net.blocks.1.attn.k_norm.weight"]
    moved = one_process.weights[name]
    assert not differences(one_process, with_weight(one_process, name, -moved), "fp64")
    step = torch.full_like(moved, 1e-6)  # a thousandth of what Adam does with a gradient
    assert differences(one_process, with_weight(one_process, name, step), "fp64")


def with_weight(trace: Trace, name: str, value: torch.Tensor) -> Trace:
    return replace(trace, weights=trace.weights | {name: value})


def test_replicas_in_one_process(ranks, one_process):
    got = ranks.run(traced, "dp", 1, RANDOM, precision="fp64", replicas=2)[0]
    assert not differences(one_process, got, "fp64")


@pytest.mark.parametrize(
    "without",
    [
        {"dropout": 0.0},
        {"attn_dropout": 0.0},
        {"drop_path": 0.0},
        {"mixup": 0.0, "cutmix": 0.0},
        {"randaugment": 0},
        {"flip": False},
        {"crop": 1.0},
        {"label_smoothing": 0.0},
    ],
    ids=lambda options: next(iter(options)),
)
def test_each_of_them_is_on(ranks, one_process, without):
    """Or the comparison above would say nothing of it."""
    other = ranks.run(
        traced, "single", 1, replace(RANDOM, steps=2, epochs=None, **without), precision="fp64"
    )[0]
    assert max(abs(a - b) for a, b in zip(one_process.losses, other.losses, strict=False)) > 1e-6


@pytest.mark.parametrize(
    "options", [{"freeze": "backbone"}, {"freeze": "blocks:1"}, {"recompute": True}], ids=str
)
@pytest.mark.parametrize(("spec", "n"), [("ddp", 2), ("fsdp", 2), ("fsdp+tp", 4)])
def test_frozen_and_recomputed_blocks(ranks, options, spec, n):
    config = replace(RANDOM, steps=3, epochs=None, randaugment=0, crop=1.0, **options)
    want = ranks.run(traced, "single", 1, config, precision="fp64")[0]
    got = ranks.run(traced, spec, n, config, precision="fp64")[0]
    assert not differences(want, got, "fp64")


# What differs from the plain block: a gated MLP, layer scale, pooling by attention, two heads, registers, norms around.
OTHERS = {
    "vit_giant_patch14_dinov2": ("depth=2", "embed_dim=24", "num_heads=4", "img_size=8", "patch_size=2"),
    "deit3_small_patch16_224": ("depth=2", "embed_dim=16", "num_heads=4"),
    "vit_base_patch16_siglip_224": ("depth=2", "embed_dim=16", "num_heads=4"),
    "deit_tiny_distilled_patch16_224": ("depth=2", "embed_dim=16", "num_heads=4"),
    "vit_betwixt_patch16_reg4_gap_256": ("depth=2", "embed_dim=16", "num_heads=4"),
    "vit_medium_patch16_rope_reg1_gap_256": ("depth=2", "embed_dim=16", "num_heads=4"),
}


@pytest.mark.parametrize("arch", OTHERS)
def test_other_architectures(ranks, arch):
    args = tuple(argument for argument in OTHERS[arch] if not argument.startswith(("img_size", "patch_size")))
    config = ViTConfig(
        steps=2,
        batch_size=6,
        arch=arch,
        img_size=8,
        in_chans=1,
        model_args=(*args, "patch_size=2"),
        dropout=0.1,
    )
    want = ranks.run(traced, "single", 1, config, precision="fp64")[0]
    got = ranks.run(traced, "fsdp+tp", 4, config, precision="fp64")[0]
    assert not differences(want, got, "fp64")


def test_half_precision_follows_one_process(ranks, record_property):
    config = replace(RANDOM, randaugment=0, crop=1.0)
    want = ranks.run(traced, "single", 1, config, precision="bf16-mixed")[0]
    for spec, n in (("ddp", 2), ("fsdp", 2)):
        got = ranks.run(traced, spec, n, config, precision="bf16-mixed")[0]
        record_property(spec, distances(want, got))
        assert not differences(want, got, "bf16-mixed"), spec
    assert TOLERANCES["bf16-mixed"][0] < 0.1


@pytest.mark.slow
@pytest.mark.parametrize("recompute", [False, True], ids=["kept", "recomputed"])
@pytest.mark.parametrize(("spec", "n"), [("single", 1), ("ddp", 2), ("fsdp", 2)])
def test_compiled_blocks_give_the_losses_of_plain_ones(ranks, spec, n, recompute):
    """By Inductor, with dropout, attention dropout and drop path; the last batch has fewer rows."""
    config = ViTConfig(
        steps=5, batch_size=290, model_args=NARROW, dropout=0.1, attn_dropout=0.1, drop_path=0.3
    )
    want = ranks.run(traced, "single", 1, config)[0]
    got = ranks.run(traced, spec, n, replace(config, recompute=recompute), compile=True)[0]
    assert distances(want, got)["loss"] < 1e-4


def saved(
    p: Parallel, config: ViTConfig, folder: Path, images: Path
) -> tuple[np.ndarray, dict[str, Any], Any, Any]:
    """Trains, saves and answers: logits of the evaluation images, the net's description, and answers on a folder."""
    trainer = ViTTrainer(p, config)
    trainer.build()
    for _, batch in zip(range(config.steps), trainer.train, strict=False):
        trainer.step(batch)
    p.save(folder, models=trainer.models)
    with evaluating(trainer):
        logits = trainer.logits(trainer.eval_images)
        return logits, trainer.describe()["model"], trainer.predict(images), trainer.features(images)


@pytest.fixture(scope="module")
def some_images(tmp_path_factory) -> Path:
    from PIL import Image

    folder = tmp_path_factory.mktemp("images")
    images = load_images().eval
    for row in range(7):
        Image.fromarray(images.read(row, 1)[0]).resize((9 + row, 11)).save(folder / f"{row}.png")
    return folder


@pytest.mark.parametrize(
    ("spec", "n", "tp"),
    [("tp", 2, 2), ("tp", 4, 4), ("ddp+tp", 2, 1), ("ddp+tp", 4, 2), ("fsdp+tp", 4, 2), ("zero3", 3, None)],
)
def test_saved_weights_are_timms(ranks, tmp_path, some_images, spec, n, tp):
    config = ViTConfig(steps=2, batch_size=16, model_args=NARROW)
    found = ranks.run(saved, spec, n, config, tmp_path / "run", some_images, tp=tp)
    logits, model, rows, features = found[0]
    net = timm.create_model(model["arch"], **model["args"])
    net.load_state_dict(load_file(tmp_path / "run" / "weights" / "net.safetensors"), strict=True)
    images = load_images().eval
    pixels = torch.from_numpy(np.stack([images.read(row, 1) for row in range(len(images))]))
    with torch.no_grad():
        want = net.eval()((pixels / 255 - 0.5) / 0.5)
    assert np.abs(logits - want.numpy()).max() < 1e-6
    assert [Path(name).name for name in rows["image"]] == [f"{row}.png" for row in range(7)]
    assert features.shape == (7, 16)
    for other in found[1:]:
        assert np.array_equal(other[0], logits) and np.array_equal(other[3], features)


def test_answers_do_not_depend_on_the_ranks(ranks, tmp_path, some_images):
    config = ViTConfig(steps=1, batch_size=3, model_args=NARROW)
    want = ranks.run(saved, "single", 1, config, tmp_path / "one", some_images, precision="fp64")[0]
    for number, (spec, n) in enumerate([("ddp", 3), ("fsdp", 2), ("zero2", 2)]):
        got = ranks.run(saved, spec, n, config, tmp_path / str(number), some_images, precision="fp64")[0]
        assert got[2]["image"] == want[2]["image"] and got[2]["label"] == want[2]["label"]
        np.testing.assert_allclose(got[2]["probability"], want[2]["probability"], rtol=1e-10)
        np.testing.assert_allclose(got[3], want[3], rtol=1e-8, atol=1e-10)


def test_heads_that_the_ranks_do_not_divide(ranks):
    config = ViTConfig(steps=1, model_args=("depth=2", "embed_dim=18", "num_heads=3"))
    with pytest.raises(
        CaseError, match=r"num_heads is 3, which 2 tensor-parallel ranks do not divide; allowed degrees: 1, 3"
    ):
        ranks.run(traced, "tp", 2, config)


def test_an_architecture_with_nothing_to_cut(ranks):
    config = ViTConfig(
        steps=1,
        arch="vit_base_patch16_xp_224",
        img_size=8,
        in_chans=1,
        model_args=(*NARROW[:3], "patch_size=2"),
    )
    with pytest.raises(CaseError, match=r"without Plan\.tensor is refused"):
        ranks.run(traced, "tp", 2, config)
