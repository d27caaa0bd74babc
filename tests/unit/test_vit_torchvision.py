"""torchvision's Vision Transformers, converted, answer as torchvision's do."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torchvision

import zoo
from zoo.commands import main
from zoo.models.vit.torchvision import convert
from zoo_datasets.errors import InputError

# Narrower models than the published ones have no name; two of their twelve blocks are enough.
WIDTHS = {16: (768, 12), 32: (768, 12), 14: (1280, 16)}


@pytest.fixture(params=[16, 32, 14])
def theirs(request) -> torch.nn.Module:
    width, heads = WIDTHS[request.param]
    torch.manual_seed(0)
    net = torchvision.models.VisionTransformer(
        image_size=2 * request.param,
        patch_size=request.param,
        num_layers=1,
        num_heads=heads,
        hidden_dim=width,
        mlp_dim=4 * width,
        num_classes=7,
        norm_layer=partial(torch.nn.LayerNorm, eps=1e-6),
    )
    torch.nn.init.normal_(net.heads.head.weight, std=0.02)
    return net.eval()


def test_converted_weights_give_torchvisions_logits(theirs, tmp_path, capsys):
    torch.save(theirs.state_dict(), tmp_path / "w.pth")
    assert main(["convert", str(tmp_path / "w.pth"), "--model", "vit", "--to", str(tmp_path / "run")]) == 0
    net = zoo.load(tmp_path / "run")
    x = torch.randn(2, 3, theirs.image_size, theirs.image_size)
    with torch.no_grad():
        torch.testing.assert_close(net(x), theirs(x), rtol=0, atol=2e-6)


def test_what_is_not_torchvisions(tmp_path):
    torch.save({"a": torch.zeros(2)}, tmp_path / "w.pth")
    with pytest.raises(InputError, match="not a Vision Transformer of torchvision"):
        convert(tmp_path / "w.pth")
    net = torchvision.models.VisionTransformer(32, 16, 1, 2, 32, 64)
    torch.save(net.state_dict(), tmp_path / "narrow.pth")
    with pytest.raises(InputError, match="no Vision Transformer of width 32 with 16-pixel patches"):
        convert(tmp_path / "narrow.pth")
