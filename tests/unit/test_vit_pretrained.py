"""Weights from files of all kinds, fitted to another net as timm does."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import save_file
from timm.layers import resample_abs_pos_embed, resample_patch_embed

from zoo.models.vit.pretrained import fresh_net, pretrained_net
from zoo.weights_file import read_weights
from zoo_datasets.errors import InputError

ARCH = "vit_tiny_patch16_224"
ARGS = {
    "img_size": 8,
    "patch_size": 4,
    "in_chans": 3,
    "embed_dim": 16,
    "depth": 2,
    "num_heads": 2,
    "num_classes": 4,
}
CLASSES = list("abcd")


@pytest.fixture
def source() -> dict[str, torch.Tensor]:
    return fresh_net(ARCH, ARGS, seed=5).state_dict()


def begun(path: Path, **args: Any) -> torch.nn.Module:
    args = ARGS | args
    return pretrained_net(ARCH, args, [str(n) for n in range(args["num_classes"])], str(path), seed=1)


@pytest.mark.parametrize(
    "nesting", [(), ("state_dict",), ("model",), ("model", "state_dict"), ("state_dict_ema",)]
)
@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod.", "module._orig_mod."])
def test_nested_keys_and_prefixes(tmp_path, source, nesting, prefix):
    content: dict[str, Any] = {prefix + name: tensor for name, tensor in source.items()}
    for key in nesting:
        content = {key: content, "epoch": 3}
    torch.save(content, tmp_path / "w.pth")
    net = begun(tmp_path / "w.pth")
    assert all(torch.equal(tensor, source[name]) for name, tensor in net.state_dict().items())


def test_safetensors(tmp_path, source):
    save_file(source, tmp_path / "w.safetensors")
    assert read_weights(tmp_path / "w.safetensors").keys() == source.keys()


def test_another_number_of_classes_gets_a_fresh_head(tmp_path, source):
    torch.save(source, tmp_path / "w.pth")
    net = begun(tmp_path / "w.pth", num_classes=7)
    fresh = fresh_net(ARCH, ARGS | {"num_classes": 7}, seed=1)
    assert torch.equal(net.head.weight, fresh.head.weight)
    assert torch.equal(net.norm.weight, source["norm.weight"])
    assert torch.equal(net.blocks[1].mlp.fc1.weight, source["blocks.1.mlp.fc1.weight"])


def test_another_size_resamples_as_timm(tmp_path, source):
    torch.save(source, tmp_path / "w.pth")
    net = begun(tmp_path / "w.pth", img_size=24, patch_size=6)
    want = resample_abs_pos_embed(source["pos_embed"], new_size=[4, 4], num_prefix_tokens=1)
    torch.testing.assert_close(net.pos_embed, want)
    torch.testing.assert_close(
        net.patch_embed.proj.weight, resample_patch_embed(source["patch_embed.proj.weight"], [6, 6])
    )


def test_grey_images_take_the_sum_of_the_colours_filters(tmp_path, source):
    torch.save(source, tmp_path / "w.pth")
    net = begun(tmp_path / "w.pth", in_chans=1)
    torch.testing.assert_close(
        net.patch_embed.proj.weight, source["patch_embed.proj.weight"].sum(1, keepdim=True)
    )


def test_weights_of_grey_images_stay(tmp_path):
    grey = fresh_net(ARCH, ARGS | {"in_chans": 1}, seed=5).state_dict()
    torch.save(grey, tmp_path / "w.pth")
    net = begun(tmp_path / "w.pth", in_chans=1)
    assert torch.equal(net.patch_embed.proj.weight, grey["patch_embed.proj.weight"])


def test_two_heads(tmp_path):
    arch = "deit_tiny_distilled_patch16_224"
    torch.save(fresh_net(arch, ARGS, seed=5).state_dict(), tmp_path / "w.pth")
    net = pretrained_net(arch, ARGS | {"num_classes": 7}, [], str(tmp_path / "w.pth"), seed=1)
    assert net.head_dist.weight.shape == (7, 16)


def test_the_seed_decides_fresh_weights_and_nothing_else():
    before = torch.random.get_rng_state()
    first, again, other = (fresh_net(ARCH, ARGS, seed) for seed in (0, 0, 1))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(first.head.weight, again.head.weight)
    assert not torch.equal(first.head.weight, other.head.weight)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: state | {"extra": torch.zeros(2)}, "extra"),
        (lambda state: {name: t for name, t in state.items() if name != "norm.bias"}, "norm.bias"),
        (lambda state: state | {"norm.bias": torch.zeros(3)}, r"norm.bias.*\[3\].*\[16\]"),
        (lambda state: {"fc.weight": torch.zeros(2, 2)}, "not weights of vit_tiny_patch16_224"),
    ],
)
def test_weights_of_another_net(tmp_path, source, change, message):
    path = tmp_path / "w.pth"
    torch.save(change(source), path)
    with pytest.raises(InputError, match=message) as caught:
        begun(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_files_that_hold_no_weights(tmp_path):
    with pytest.raises(InputError, match="no such file of weights"):
        read_weights(tmp_path / "absent.pth")
    torch.save({"epoch": 3}, tmp_path / "none.pth")
    with pytest.raises(InputError, match="holds no weights; its keys are 'epoch'"):
        read_weights(tmp_path / "none.pth")
    (tmp_path / "bad.safetensors").write_bytes(b"nonsense")
    with pytest.raises(InputError, match="cannot be read as safetensors"):
        read_weights(tmp_path / "bad.safetensors")


def test_nothing_is_unpickled(tmp_path):
    marker = tmp_path / "ran"

    class Crafted:
        def __reduce__(self) -> Any:
            return Path.touch, (marker,)

    (tmp_path / "w.pth").write_bytes(pickle.dumps({"model": Crafted()}))
    with pytest.raises(InputError, match="not a torch checkpoint of tensors alone"):
        read_weights(tmp_path / "w.pth")
    torch.save({"model": Crafted()}, tmp_path / "v.pth")
    with pytest.raises(InputError, match="not a torch checkpoint of tensors alone"):
        read_weights(tmp_path / "v.pth")
    assert not marker.exists()


def test_the_hub_is_asked_for_timms_weights(monkeypatch):
    asked: list[tuple[str, bool]] = []
    original = timm.create_model

    def create_model(name: str, pretrained: bool = False, **args: Any) -> torch.nn.Module:
        asked.append((name, pretrained))
        if pretrained:
            raise OSError("no network\nat all")
        return original(name, **args)

    monkeypatch.setattr(timm, "create_model", create_model)
    with pytest.raises(
        InputError, match=r"--pretrained hub: cannot load timm's weights of .* \(no network at all\)"
    ):
        pretrained_net(ARCH, ARGS, CLASSES, "hub", seed=0)
    assert asked[-1] == (ARCH, True)
