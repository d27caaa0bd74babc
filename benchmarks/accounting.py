"""Writes docs/accounting.md: what a rank holds and what a step sends under each strategy, counted and predicted.

python benchmarks/accounting.py        # starts four ranks; a minute or two
"""

from __future__ import annotations

from pathlib import Path

import torch
from accounting_predicted import ROWS, SUBJECTS, Figures, bound, dealt, predict
from torch import Tensor, nn
from torch.nn import functional as F

from parallel import Parallel, launch_each

RANKS = 4
SPECS = ("ddp", "zero1", "zero2", "zero3", "zero3-offload", "fsdp", "hsdp", "tp", "ddp+tp", "fsdp+tp")
PAGE = Path(__file__).resolve().parents[1] / "docs" / "accounting.md"


def count(p: Parallel, name: str) -> Figures:
    """Trains three steps: looks into the second, and counts what the third sends."""
    subject = SUBJECTS[name]
    torch.manual_seed(0)
    bare = subject.build()
    net = p.wrap(bare, subject.plan(bare))
    opt = p.optimizer(net, torch.optim.Adam, lr=1e-3)
    data = p.loader((torch.randn(3 * ROWS, *subject.sample), torch.arange(3 * ROWS) % 10), ROWS)
    figures = Figures()
    looking = False

    def look(*_: object) -> None:
        if looking:
            figures.gathered = max(figures.gathered, p.memory_per_rank()[p.rank].gathered)

    def look_now_and_in_backward(module: nn.Module, args: object, output: Tensor) -> None:
        look()
        if output.requires_grad:
            output.register_hook(look)

    for module in net.modules():
        if not list(module.children()):
            module.register_forward_hook(look_now_and_in_backward)
    for batch in data:
        looking = batch.step == 1
        with p.traffic() as traffic:
            for part in p.parts(batch):
                losses = F.cross_entropy(net(part.x), part.y, reduction="none")
                p.backward(losses.sum() / batch.size, opt)
            p.step(opt)
    figures.held = [own.parameters + own.gradients + own.optimizer for own in p.memory_per_rank()]
    figures.sent = dict(traffic.bytes)
    return figures


KEPT = {
    "ddp": "4 P",
    "zero1": "2 P + dealt share of 2 P",
    "zero2": "4 P / N",
    "zero3": "4 P / N",
    "zero3-offload": "4 P / N, in host memory",
    "fsdp": "4 P / N",
    "hsdp": "4 P / (N / 2)",
    "tp": "4 (C / N + W)",
    "ddp+tp": "4 (C / 2 + W)",
    "fsdp+tp": "4 (C / 2 + W) / (N / 2)",
}
SENT = {
    "ddp": "all-reduces P",
    "zero1": "all-reduces P, broadcasts P",
    "zero2": "gathers P once, reduce-scatters P",
    "zero3": "gathers P twice, the root once; reduce-scatters P",
    "zero3-offload": "as zero3",
    "fsdp": "as zero3",
    "hsdp": "as zero3, and all-reduces a shard, P / (N / 2)",
    "tp": "all-reduces a block's activations, forward and backward",
    "ddp+tp": "as tp for its own rows, and all-reduces C / 2 + W",
    "fsdp+tp": "as tp for its own rows, and as zero3 for C / 2 + W",
}
KINDS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast")

HEAD = """# What a rank holds, what a step sends

Written by `python benchmarks/accounting.py`: {ranks} ranks, fp32, Adam, a global batch of {rows} rows. Everything is
counted: memory from the tensors that a rank really has (`p.memory_per_rank()`), traffic from the collectives that
torch really starts (`p.traffic()`), the ones in the C++ of DDP's reducer too. Everything is also predicted, from the
shapes of the parameters alone; `tests/parity/test_accounting.py` holds the two equal, to the byte.

N is the number of ranks and P the bytes of the parameters. Tensor parallelism cuts some of them, C, and leaves the
others, W, whole on every rank. FSDP2 cuts a tensor along its first axis into N equal pieces, of which the last ranks'
are short or empty: so the fullest rank keeps somewhat more than 1/N, and what is gathered is padded.
"""

MEMORY = """## Memory

Parameters, gradients and Adam's two states on the fullest rank. `gathered` is what it has beside them at the fullest
moment of a step: whole parameters, under zero2 all, else the root's and one unit's.
"""

BESIDE = """FSDP2 has two things more while a unit passes by: the unit's whole gradients, and the buffer of a gather or a
reduction, as large as a unit. With `accumulate` above 1 whole gradients stay until the last part, under every
strategy: P more where they are sharded, which is the price of one reduction a step.
"""

DEALT = """### ZeRO-1 deals out whole tensors

ZeroRedundancyOptimizer gives each tensor, the largest first, to the rank that has least. A rank then has at most
S/N + (1 - 1/N) L, where S is the bytes of all states and L those of the largest tensor's: before its last tensor it
had least of all, so at most the mean of the rest. Where one tensor is most of a model that is far from S/N; zero2
cuts tensors and has no such rank. Adam's states of the fullest of {ranks} ranks:
"""

TRAFFIC = """## Traffic

Bytes that one step sends, counted as the whole tensor that a collective is about. A ring moves 2 (N - 1) / N of that
through every rank in an all-reduce, (N - 1) / N in a gather or a reduction to pieces. The rest of an all-reduce's
bytes is the norm of the gradient: one number where all is cut alike, three under fsdp+tp.
"""


def page(counted: dict[str, dict[str, Figures]]) -> str:
    """The whole page, from counts by subject and spec."""
    sizes = {
        name: sum(parameter.nbytes for parameter in SUBJECTS[name].build().parameters()) for name in counted
    }
    titles = {name: f"{name}, P = {size:,}" for name, size in sizes.items()}
    memory = [["strategy", "keeps", *(cell for title in titles.values() for cell in (title, "gathered"))]]
    traffic = [["net", "strategy", *(kind.replace("_", "-") for kind in KINDS), "that is"]]
    for spec in SPECS:
        figures = {name: counted[name][spec] for name in counted}
        cells = [
            cell
            for name, found in figures.items()
            for cell in (shown(max(found.held), sizes[name]), shown(found.gathered, sizes[name]))
        ]
        memory.append([spec, KEPT[spec], *cells])
    for name in counted:
        for spec in SPECS:
            sent = counted[name][spec].sent
            traffic.append(
                [name, spec, *(shown(sent.get(kind, 0), sizes[name]) for kind in KINDS), SENT[spec]]
            )
    head = HEAD.format(ranks=RANKS, rows=ROWS)
    dealing = DEALT.format(ranks=RANKS) + "\n" + table(dealings())
    parts = [head, MEMORY + "\n" + table(memory), BESIDE, dealing, TRAFFIC + "\n" + table(traffic)]
    return "\n".join(parts)


def dealings() -> list[list[str]]:
    """Rows about the optimizer states of nets, those of real size too."""
    from timm import create_model as create_timm_model

    from zoo import create_model

    nets = {
        **{name: subject.build() for name, subject in SUBJECTS.items()},
        "DevNet, 21 columns, depth 2": create_model("devnet", in_features=21, depth=2),
        "DevNet, 21 columns, depth 4": create_model("devnet", in_features=21, depth=4),
        "ViT-tiny, 224 pixels": create_timm_model("vit_tiny_patch16_224"),
    }
    rows = [["net", "S", "S / N", "dealt", "of S / N", "at most"]]
    for name, net in nets.items():
        states = [2 * parameter.nbytes for parameter in net.parameters()]
        mean, most = sum(states) / RANKS, max(dealt(states, RANKS))
        numbers = (sum(states), round(mean), most, f"{most / mean:.2f}", round(bound(states, RANKS)))
        rows.append([name, *(f"{number:,}" if isinstance(number, int) else number for number in numbers)])
    return rows


def shown(size: int, whole: int) -> str:
    return f"{size:,} ({size / whole:.3f} P)" if size else "0"


def table(rows: list[list[str]]) -> str:
    """Markdown."""
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([lines[0], "|---" * len(rows[0]) + "|", *lines[1:]]) + "\n"


def main() -> None:
    counted = {}
    for name in SUBJECTS:
        counted[name] = dict(zip(SPECS, launch_each(count, SPECS, name, nproc=RANKS), strict=True))
        for spec, figures in counted[name].items():
            assert figures == predict(name, spec, RANKS), (name, spec, figures)
    PAGE.write_text(page(counted), encoding="utf-8")
    print(f"written: {PAGE}")


if __name__ == "__main__":
    main()
