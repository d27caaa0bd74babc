"""The nets of the contract's cases, each with its plan."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, spectral_norm

from parallel.plan import Plan


class MLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(6, 24)
        self.blocks = nn.ModuleList(Block(24, 48) for _ in range(2))
        self.head = nn.Linear(24, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)

    def score(self, x: Tensor) -> Tensor:
        """A forward by another name."""
        return self.head(self.blocks[0](self.stem(x)))


class Block(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)))


MLP_PLAN = Plan(
    units=("blocks.*",),
    tensor={"blocks.*.up": "column", "blocks.*.down": "row"},
    checkpoint=("blocks.1",),
    compile=("blocks.*",),
)


class ShortBias(nn.Module):
    """Biases of length 1, which most ranks hold an empty shard of."""

    def __init__(self) -> None:
        super().__init__()
        self.narrow = nn.Linear(6, 1)
        self.wide = nn.Linear(1, 12)
        self.back = nn.Linear(12, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.back(torch.tanh(self.wide(self.narrow(x))))


SHORT_BIAS_PLAN = Plan(units=("narrow",), tensor={"wide": "column", "back": "row"})


class Dropped(nn.Module):
    """Dropout on whole activations and on those that tensor parallelism cuts."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(6, 6)
        self.first = nn.Linear(6, 36)
        self.drop = nn.Dropout(0.3)
        self.second = nn.Linear(36, 12)
        self.drop_whole = nn.Dropout(0.1)
        self.head = nn.Linear(12, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.second(self.drop(torch.relu(self.first(self.stem(x)))))
        return self.head(self.drop_whole(x))


DROPPED_PLAN = Plan(
    units=("first", "second"), tensor={"first": "column", "drop": "features", "second": "row"}
)


class ConvNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 1)  # whole, so that the cut conv1 has a gradient to hand on
        self.conv1 = nn.Conv2d(4, 12, 3, padding=1)
        self.norm1 = nn.BatchNorm2d(12)
        self.conv2 = nn.Conv2d(12, 8, 3, padding=1)
        self.norm2 = nn.BatchNorm2d(8)
        self.drop = nn.Dropout2d(0.2)
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm1(self.conv1(self.stem(x))))
        x = self.drop(torch.relu(self.norm2(self.conv2(x))))
        return self.head(x.mean((2, 3)))


CONV_PLAN = Plan(
    units=("conv1", "conv2"), tensor={"conv1": "conv_out", "norm1": "channels", "conv2": "conv_in"}
)


class Tied(nn.Module):
    """An embedding and an output layer that are one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(16, 12)
        self.block = Block(12, 24)
        self.head = nn.Linear(12, 16, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        return self.head(x + self.block(x))


TIED_PLAN = Plan(units=("block",), tensor={"block.up": "column", "block.down": "row"})


class Attention(nn.Module):
    """Fused queries, keys and values, a norm over each head, dropout on the attention."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.per_head = heads, width // heads
        self.qkv = nn.Linear(width, 3 * width)
        self.norm = nn.LayerNorm(self.per_head)
        self.drop = nn.Dropout(0.1)
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        rows, length, _ = x.shape
        q, k, v = (
            self.qkv(x).view(rows, length, 3, self.heads, self.per_head).permute(2, 0, 3, 1, 4).unbind(0)
        )
        weights = (self.norm(q) @ self.norm(k).transpose(-2, -1) / self.per_head**0.5).softmax(-1)
        mixed = self.drop(weights) @ v
        return self.proj(mixed.transpose(1, 2).flatten(2))


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = Attention(
            48, 12
        )  # a norm over heads of 2 would give signs, with next to no gradient
        self.norm = nn.LayerNorm(48)
        self.mlp = Block(48, 48)
        self.head = nn.Linear(48, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(x)
        x = x + self.mlp(self.norm(x))
        return self.head(x.mean(1))


TRANSFORMER_PLAN = Plan(
    units=("attention", "mlp"),
    tensor={
        "attention.qkv": "qkv heads",
        "attention.norm": "shared",
        "attention.drop": "heads",
        "attention.proj": "row",
        "mlp.up": "column",
        "mlp.down": "row",
    },
    checkpoint=("attention",),
    compile=("attention", "mlp"),
)


class Branched(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(6, 12)
        self.extra = nn.Linear(12, 12)
        self.block = Block(12, 24)
        self.head = nn.Linear(12, 1)

    def forward(self, x: Tensor, branch: bool) -> Tensor:
        x = torch.tanh(self.stem(x))
        if branch:
            x = x + self.extra(x)
        return self.head(x + self.block(x))


BRANCHED_PLAN = Plan(
    units=("extra", "block"), tensor={"block.up": "column", "block.down": "row"}, optional=("extra",)
)


class Generator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 24)
        self.block = Block(24, 48)
        self.last = spectral_norm(nn.Linear(24, 8))

    def forward(self, z: Tensor) -> Tensor:
        return self.last(self.block(torch.tanh(self.first(z))))


GENERATOR_PLAN = Plan(units=("block",), tensor={"block.up": "column", "block.down": "row"})


class Discriminator(nn.Module):
    """Both of torch's spectral norms."""

    def __init__(self) -> None:
        super().__init__()
        self.first = spectral_norm(nn.Linear(8, 24))
        self.block = Block(24, 48)
        self.last = parametrizations.spectral_norm(nn.Linear(24, 1))

    def forward(self, x: Tensor) -> Tensor:
        x = F.leaky_relu(self.first(x), 0.2)
        return self.last(F.leaky_relu(self.block(x), 0.2))


DISCRIMINATOR_PLAN = Plan(units=("block",), tensor={"block.up": "column", "block.down": "row"})
