"""Biases that a normalisation takes off again."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from zoo.models.sean.encoder import StyleEncoder
from zoo.models.sean.generator import Generator, SeanBlock


def freeze_dead_biases(generator: Generator) -> None:
    """Leaves out of training the biases that add the same number to all of a channel right before its mean is taken off.

    Their gradient is zero, computed as rounding, and Adam makes steps of full size of it: they would walk at random,
    another way on every number of ranks, and change no image.
    """
    for layer in _before_a_mean(generator):
        if layer.bias is not None:
            layer.bias.requires_grad_(False)


def _before_a_mean(generator: Generator) -> Iterator[nn.Conv2d | nn.ConvTranspose2d]:
    encoder: StyleEncoder = generator.Zencoder
    for layer, then in zip(encoder.model, encoder.model[1:], strict=False):
        if isinstance(then, nn.InstanceNorm2d):
            assert isinstance(layer, nn.Conv2d | nn.ConvTranspose2d)
            yield layer
    blocks = [block for block in generator.children() if isinstance(block, SeanBlock)]
    assert blocks[-1].has_shortcut  # so that all that reads the output of the blocks before normalises it
    yield generator.fc
    yield from (block.conv_0 for block in blocks)
    for block in blocks[:-1]:
        yield block.conv_1
        if block.has_shortcut:  # whose 1x1 convolution has no border: what is the same everywhere stays so
            yield block.ace_s.Spade.mlp_beta
            yield block.ace_s.conv_beta
