"""What a rank holds and what a step sends, predicted from the shapes of a net's parameters: see accounting.py."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod

from torch import Tensor, nn
from torch.nn import functional as F

from parallel import Plan
from parallel.plan import match

ROWS = 16  # of the global batch
BYTES = 4  # of a number in fp32


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.gelu(self.up(x)))


class MLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(16, 64)
        self.blocks = nn.ModuleList(Block(64) for _ in range(4))
        self.head = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


@dataclass(frozen=True)
class Subject:
    """A net to measure, its plan, one sample's shape, and the activations of one sample that its blocks sum.

    Attributes:
        sums: all-reduces of activations that tensor parallelism makes in one block's forward, and in its backward.
        activation: numbers of one sample in each of them.
    """

    build: Callable[[], nn.Module]
    plan: Callable[[nn.Module], Plan]
    sample: tuple[int, ...]
    sums: int
    activation: int


def vit() -> nn.Module:
    from timm.models.vision_transformer import VisionTransformer

    return VisionTransformer(img_size=32, patch_size=8, embed_dim=64, depth=4, num_heads=4, num_classes=10)


def vit_plan(net: nn.Module) -> Plan:
    from zoo.models.vit.plan import plan_of

    return plan_of(net)


MLP_PLAN = Plan(units=("blocks.*",), tensor={"blocks.*.up": "column", "blocks.*.down": "row"})
SUBJECTS = {
    "mlp": Subject(MLP, lambda _: MLP_PLAN, (16,), 1, 64),
    "vit": Subject(vit, vit_plan, (3, 32, 32), 2, 17 * 64),
}


@dataclass
class Figures:
    """Bytes under one strategy.

    Attributes:
        held: parameters, gradients and Adam's states that each rank keeps.
        gathered: whole parameters beside them at the fullest moment of a step, on rank 0.
        sent: by kind of collective, in one step of rank 0.
    """

    held: list[int] = field(default_factory=list)
    gathered: int = 0
    sent: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Layout:
    """How many ranks hold copies, share each tensor's rows, and share layers; they multiply to all ranks."""

    replicate: int = 1
    shard: int = 1
    tensor: int = 1

    @classmethod
    def of(cls, spec: str, ranks: int) -> Layout:
        if spec in ("ddp", "zero1"):
            return cls(replicate=ranks)
        if spec == "hsdp":
            return cls(replicate=2, shard=ranks // 2)
        if spec == "tp":
            return cls(tensor=ranks)
        if spec == "ddp+tp":
            return cls(replicate=ranks // 2, tensor=2)
        return cls(shard=ranks // 2, tensor=2) if spec == "fsdp+tp" else cls(shard=ranks)

    def own(self, shape: Sequence[int], rank: int) -> int:
        """Bytes of a rank's rows of a tensor: its first axis in equal pieces, the last ranks' maybe short or empty."""
        piece = -(-shape[0] // self.shard)
        first = rank // self.tensor % self.shard * piece
        return max(0, min(piece, shape[0] - first)) * prod(shape[1:]) * BYTES

    def padded(self, shape: Sequence[int]) -> int:
        """Bytes of all ranks' pieces, each as long as the longest."""
        return -(-shape[0] // self.shard) * self.shard * prod(shape[1:]) * BYTES


def predict(name: str, spec: str, ranks: int) -> Figures:
    """The figures from shapes alone."""
    subject, layout = SUBJECTS[name], Layout.of(spec, ranks)
    net = subject.build()
    plan = subject.plan(net)
    units = [unit for unit, _ in match(net, *plan.units)]
    shapes = cut(net, plan, layout.tensor)
    pieces = [sum(layout.own(shape, rank) for shape in shapes.values()) for rank in range(ranks)]
    states = [2 * piece for piece in pieces]
    if spec == "zero1":
        states = [2 * share for share in dealt([prod(shape) * BYTES for shape in shapes.values()], ranks)]
    figures = Figures([2 * piece + state for piece, state in zip(pieces, states, strict=True)])
    whole = dict.fromkeys(("", *units), 0)  # "" is the root: what lies in no unit
    for key, shape in shapes.items():
        whole[next((unit for unit in units if key.startswith(f"{unit}.")), "")] += layout.padded(shape)
    total = sum(whole.values())
    reduced = norms = 0
    if layout.shard > 1:
        once = spec == "zero2"
        figures.gathered = total if once else whole[""] + max(whole[unit] for unit in units)
        figures.sent |= {"all_gather": total if once else 2 * total - whole[""], "reduce_scatter": total}
        norms += 1
    if layout.replicate > 1:
        reduced += total // layout.shard
    if layout.tensor > 1:
        rows = ROWS // (layout.replicate * layout.shard)
        reduced += 2 * subject.sums * len(units) * rows * subject.activation * BYTES
        norms += 2 if layout.shard > 1 else 1
    if reduced or norms:
        figures.sent["all_reduce"] = (
            reduced + norms * BYTES
        )  # the squares of the gradient's norm, one number each
    if spec == "zero1":
        figures.sent["broadcast"] = total
    return figures


_CUT = {  # style -> axis of each tensor
    "column": {"weight": 0, "bias": 0},
    "qkv": {"weight": 0, "bias": 0},
    "row": {"weight": 1},
}


def cut(net: nn.Module, plan: Plan, degree: int) -> dict[str, list[int]]:
    """The shape of a rank's piece of each parameter after tensor parallelism."""
    styles = {layer: words.split()[0] for glob, words in plan.tensor.items() for layer, _ in match(net, glob)}
    shapes = {}
    for name, parameter in net.named_parameters():
        layer, _, leaf = name.rpartition(".")
        shapes[name] = list(parameter.shape)
        axis = _CUT.get(styles.get(layer, ""), {}).get(leaf)
        if axis is not None:
            shapes[name][axis] //= degree
    return shapes


def dealt(sizes: Sequence[int], ranks: int) -> list[int]:
    """What each rank gets when whole tensors are dealt out, the largest first, each to whoever has least."""
    shares = [0] * ranks
    for size in sorted(sizes, reverse=True):
        shares[shares.index(min(shares))] += size
    return shares


def bound(sizes: Sequence[int], ranks: int) -> float:
    """What no rank's share exceeds: whoever ends with most had least, at most the mean of the rest, before its last."""
    return sum(sizes) / ranks + (1 - 1 / ranks) * max(sizes)
