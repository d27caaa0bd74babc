"""What strategies refuse rather than do wrong or in silence, each with the fact that makes it so. Imports no torch.

``python -m parallel.refusals`` prints the table of docs/refusals.md.
"""

from __future__ import annotations

from dataclasses import dataclass

from parallel.errors import ParallelError

ALL = ("*",)
BY_REDUCER = (
    "ddp",
    "zero1",
    "ddp+tp",
    "accelerate-ddp",
    "fabric-ddp",
)  # gradients are summed by DDP's reducer
FULLY_SHARDED = (
    "fsdp",
    "zero2",
    "zero3",
    "zero3-offload",
    "hsdp",
    "fsdp+tp",
    "accelerate-fsdp",
    "fabric-fsdp",
)
DEEPSPEED = tuple(f"deepspeed-zero{stage}{where}" for stage in (1, 2, 3) for where in ("", "-offload"))
TENSOR_PARALLEL = ("tp", "ddp+tp", "fsdp+tp")
SPREAD = (*BY_REDUCER, *FULLY_SHARDED, "tp", *DEEPSPEED)  # all but one process


@dataclass(frozen=True)
class Refusal:
    """One thing that is refused when a model is wrapped or an optimizer made, or else by the first backward.

    Attributes:
        strategies: who refuses it; "*" is every one.
        what: the thing. because: the fact or the line of torch behind it. instead: what to do.
    """

    strategies: tuple[str, ...]
    what: str
    because: str
    instead: str

    def error(self, where: str) -> ParallelError:
        """The error to raise; ``where`` names the layer or the model."""
        return ParallelError(f"{where}: {self.what} is refused: {self.because}; {self.instead}")


BATCHNORM_OVER_PARTS = Refusal(
    ALL,
    "BatchNorm with accumulate over 1",
    "the moments of a part are not those of the global batch, and a part's forward cannot wait for the next",
    "use accumulate 1, or --local-batchnorm to let each part normalise by its own rows",
)
BATCHNORM_IN_REPLICAS = Refusal(
    ("dp",),
    "BatchNorm",
    "each of DataParallel's replicas normalises by its own rows, and only the first keeps its running statistics",
    "take ddp, or --local-batchnorm to accept that it differs",
)
DRAWS_INSIDE_TORCH = Refusal(
    ALL,
    "dropout inside nn.MultiheadAttention and RNNs, AlphaDropout, FeatureAlphaDropout, RReLU",
    "they draw inside torch's kernels from the process's generator, where numbers cannot follow the sample",
    "set its dropout to 0 and put an nn.Dropout beside it",
)
DROPS_BY_BATCH = Refusal(
    ALL,
    "StochasticDepth(mode='batch')",
    "it drops a whole batch of whatever rows the rank holds",
    "use mode='row'",
)
RECOMPUTED_STATE = Refusal(
    ALL,
    "recomputing (Plan.checkpoint) a block with BatchNorm or spectral norm",
    "its forward changes buffers and runs twice a step: gradients came out 0.5-30 % wrong",
    "leave the block out of Plan.checkpoint",
)
RECOMPUTED_REPLICAS = Refusal(
    ("dp",),
    "recomputing (Plan.checkpoint) on GPUs",
    "DataParallel's replicas are copies, and a recomputed block would run the original's weights",
    "take ddp",
)
COMPILED_REPLICAS = Refusal(
    ("dp",),
    "compiling",
    "DataParallel's replicas are copies that threads run at once, and a compiled block would run the original",
    "take ddp, or leave out --compile",
)
TIES_ACROSS_UNITS = Refusal(
    FULLY_SHARDED,
    "one tensor in two wrap units",
    "fully_shard gathers and frees each unit by itself",
    "leave one of the units out of Plan.units, so that both are gathered with the root",
)
SHARED_WEIGHT = Refusal(
    SPREAD,
    "one weight in two wrapped nets",
    "each net has a reducer or shards of its own, which know of no other net",
    "wrap one module that holds both nets, and call them as its parts",
)
PIECE_IN_LOSS = Refusal(
    FULLY_SHARDED,
    "a loss of a parameter by itself, taken while it is cut",
    "it is a rank's piece there, whose gradient nothing sums",
    "use the parameter in the net's forward or in a method of the net",
)
NOTHING_TO_CUT = Refusal(
    TENSOR_PARALLEL,
    "a model without Plan.tensor",
    "no layer would be split, and every rank would do the whole work",
    "take a strategy without tp",
)
GROUPED_CONVOLUTION = Refusal(
    TENSOR_PARALLEL,
    "a grouped convolution",
    "its input channels belong to groups, which a cut by channel would part",
    "leave it out of Plan.tensor",
)
COMPUTED_WEIGHT = Refusal(
    ("tp", "ddp+tp", "fsdp+tp"),
    "cutting a weight that is computed from others (weight_norm, a parametrization), but for spectral norm",
    "a slice of it is not computed from slices of them",
    "leave the layer out of Plan.tensor",
)
CUT_TIE = Refusal(
    TENSOR_PARALLEL,
    "cutting one of two tied weights",
    "each rank would hold a slice and the whole, which are no longer one tensor",
    "leave the layer out of Plan.tensor",
)
WHOLE_TENSOR_OPTIMIZER = Refusal(
    (*FULLY_SHARDED, "tp", "ddp+tp", *DEEPSPEED),
    "an optimizer that is not elementwise (LBFGS, Adafactor, Muon)",
    "what it computes of a shard is not a shard of what it computes of the whole tensor",
    "use SGD or one of Adam's family, or a strategy that does not shard",
)
NO_GRADIENT = Refusal(
    BY_REDUCER,
    "a trainable parameter that a step does not use",
    "DDP's reducer waits for every parameter of a bucket before it sums it",
    "name its module in Plan(optional=...) if some steps skip it on all ranks, else freeze it with requires_grad_(False)",
)

ACCELERATE_FSDP_ON_CPU = Refusal(
    ("accelerate-fsdp",),
    "training on a CPU",
    "Accelerate leaves its FSDP plugin out there without a word, and every rank would hold the whole model",
    "take fsdp, which shards on a CPU too",
)
STEPPED_TWICE = Refusal(
    DEEPSPEED,
    "a net in two optimizers",
    "its parameters are moved into the flat tensors of one DeepSpeed engine",
    "give both parts of the net to one optimizer, with groups",
)

REFUSALS = tuple(value for value in list(globals().values()) if isinstance(value, Refusal))


def table() -> str:
    """Every refusal as a Markdown table."""
    rows = ["| strategy | refuses | because | instead |", "|---|---|---|---|"]
    for refusal in REFUSALS:
        who = "every one" if refusal.strategies == ALL else ", ".join(refusal.strategies)
        rows.append(f"| {who} | {refusal.what} | {refusal.because} | {refusal.instead} |")
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    print(table(), end="")
