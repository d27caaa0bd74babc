"""SEAN's style branch and generator against the literal formulation of the paper, with the same weights, in one run.

Literal (Zhu et al. 2020, section 3.2): each region's mapped style is broadcast into a map of ``style length`` channels
at full resolution, which two 3x3 convolutions turn into the styles' gamma and beta; they are blended with the label
map's. It is given more than it asks for: the broadcast is one matrix product, without a loop over samples or labels.

Full size (style length 512, 19 labels), float32, one thread, forward and backward, each pair measured back to back:

    python benchmarks/sean.py [--pairs 5] [--sizes 128 256] [--json]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.models.sean.config import SeanConfig
from zoo.models.sean.generator import Generator
from zoo.models.sean.labels import one_hot, windows
from zoo.models.sean.normalization import Regions, SeanNorm, style_kernels

LABELS, STYLE_LENGTH = 19, 512
CHANNELS = 256  # of the style branch measured alone: up_2's, the block of the highest resolution with styles


def label_map(size: int) -> Tensor:
    """[1, size, size]: blocks of random labels, with whole regions at every resolution of the generator."""
    blocks = torch.randint(LABELS, (1, 8, 8), generator=torch.Generator().manual_seed(0))
    return blocks.repeat_interleave(size // 8, 1).repeat_interleave(size // 8, 2)


def style_map(mu: Tensor, regions: Tensor) -> Tensor:
    """Every pixel's mapped style, [batch, style length, height, width]: the paper's broadcast."""
    return (mu.mT @ regions.flatten(2)).unflatten(2, regions.shape[2:])


def literal_modulation(norm: SeanNorm, regions: Regions, style: Tensor) -> tuple[Tensor, Tensor]:
    """What ``SeanNorm.modulation`` computes, as the paper writes it."""
    hidden = norm.Spade.mlp_shared(regions.one_hot)
    gamma, beta = norm.Spade.mlp_gamma(hidden), norm.Spade.mlp_beta(hidden)
    if not norm.styled:
        return gamma, beta
    styles = style_map(F.relu(norm.fc_mu(style)), regions.one_hot)
    a, b = torch.sigmoid(norm.blending_gamma), torch.sigmoid(norm.blending_beta)
    return a * norm.conv_gamma(styles) + (1 - a) * gamma, b * norm.conv_beta(styles) + (1 - b) * beta


def strengthen(model: nn.Module) -> None:
    """Weights at which the modulation shows in the output, as after training; at SEAN's start it hardly does."""
    for module in model.modules():
        if isinstance(module, SeanNorm):
            for name, parameter in module.named_parameters():
                nn.init.normal_(parameter, std=1.0 if "blending" in name else 0.1)
                if parameter.dim() > 1:
                    nn.init.xavier_normal_(parameter)


def make_literal(generator: Generator, literal: bool) -> None:
    """Switches all normalisations of a generator between the two formulations."""
    for module in generator.modules():
        if isinstance(module, SeanNorm):
            if literal:
                module.modulation = MethodType(literal_modulation, module)  # type: ignore[method-assign]
            else:
                module.__dict__.pop("modulation", None)


def seconds(run: Callable[[], Any]) -> float:
    start = (
        time.process_time()
    )  # of one thread: other processes on the machine disturb it less than the clock's
    run()
    return time.process_time() - start


def compare(ours: Callable[[], Any], literal: Callable[[], Any], pairs: int) -> dict[str, float]:
    """Medians over interleaved pairs, after one pair that does not count."""
    ours(), literal()
    times = [(seconds(ours), seconds(literal)) for _ in range(pairs)]
    return {
        "ours_s": statistics.median(a for a, _ in times),
        "literal_s": statistics.median(b for _, b in times),
        "ratio": statistics.median(b / a for a, b in times),
    }


def difference(ours: Tensor, literal: Tensor) -> float:
    return ((ours - literal).norm() / literal.norm()).item()


def style_branch(size: int, pairs: int) -> dict[str, float]:
    """The styles' gamma and beta alone: from style codes and label map to both maps, and back."""
    torch.manual_seed(0)
    norm = SeanNorm(CHANNELS, LABELS, STYLE_LENGTH, styled=True)
    strengthen(norm)
    regions = one_hot(label_map(size), LABELS, torch.float32)
    style = torch.rand(1, LABELS, STYLE_LENGTH, requires_grad=True)
    convolutions = (norm.conv_gamma, norm.conv_beta)
    upstream = torch.randn(1, CHANNELS, size, size)

    def ours() -> list[Tensor]:
        mu, neighbours = F.relu(norm.fc_mu(style)), windows(regions)
        maps = []
        for conv in convolutions:
            assert conv.bias is not None
            bias = conv.bias.view(1, -1, 1)
            maps.append(torch.baddbmm(bias, style_kernels(conv.weight, mu), neighbours).view_as(upstream))
        return maps

    def literal() -> list[Tensor]:
        styles = style_map(F.relu(norm.fc_mu(style)), regions)
        return [conv(styles) for conv in convolutions]

    def both_ways(forward: Callable[[], list[Tensor]]) -> Callable[[], None]:
        def run() -> None:
            norm.zero_grad()
            torch.autograd.backward(forward(), [upstream, upstream])

        return run

    with torch.no_grad():
        error = max(map(difference, ours(), literal()))
    return {**compare(both_ways(ours), both_ways(literal), pairs), "difference": error}


def whole_generator(size: int, pairs: int) -> dict[str, float]:
    """The generator with its encoder, batch 1: the same seed draws the same noise for both."""
    run, output = generator_run(size)

    def formulated(literal: bool) -> Callable[[], None]:
        return lambda: run(literal)

    with torch.no_grad():
        error = difference(output(False), output(True))
    return {**compare(formulated(False), formulated(True), pairs), "difference": error}


def generator_run(size: int) -> tuple[Callable[[bool], None], Callable[[bool], Tensor]]:
    torch.manual_seed(0)
    generator = Generator(SeanConfig(labels=LABELS, style_length=STYLE_LENGTH, image_size=size))
    strengthen(generator)
    with torch.no_grad():
        for _ in range(5):  # on a small image: spectral norms settle
            generator(label_map(64), torch.rand(1, 3, 64, 64) * 2 - 1)
    labels, image = label_map(size), torch.rand(1, 3, size, size) * 2 - 1

    def output(literal: bool) -> Tensor:
        make_literal(generator, literal)
        torch.manual_seed(1)
        result: Tensor = generator.eval()(labels, image)
        return result

    def run(literal: bool) -> None:
        make_literal(generator, literal)
        generator.train().zero_grad()
        generator(labels, image).square().mean().backward()

    return run, output


def peak_memory(size: int, literal: bool) -> float:
    """Peak resident memory, in GiB, of a process that runs the generator forward and backward once."""
    command = [sys.executable, __file__, "--peak", "literal" if literal else "ours", "--sizes", str(size)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def print_peak(size: int, literal: bool) -> None:
    import resource

    generator_run(size)[0](literal)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=5, help="measured pairs of the style branch (default 5)")
    parser.add_argument("--generator-pairs", type=int, default=3, help="of the generator (default 3)")
    parser.add_argument("--sizes", type=int, nargs="+", default=[128, 256], help="pixels (default 128 256)")
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    parser.add_argument("--peak", choices=("ours", "literal"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.peak:
        print_peak(arguments.sizes[0], arguments.peak == "literal")
        return
    results: dict[str, dict[int, dict[str, float]]] = {"style branch": {}, "generator": {}}
    print(
        f"{'':14}{'pixels':>8}{'literal s':>12}{'ours s':>10}{'ratio':>8}{'difference':>12}{'peak GiB':>16}"
    )
    for size in arguments.sizes:
        found = results["style branch"][size] = style_branch(size, arguments.pairs)
        print(_row("style branch", size, found), flush=True)
    for size in arguments.sizes:
        found = results["generator"][size] = whole_generator(size, arguments.generator_pairs)
        found |= {"peak_ours_gib": peak_memory(size, False), "peak_literal_gib": peak_memory(size, True)}
        print(_row("generator", size, found), flush=True)
    if arguments.json:
        print(json.dumps(results))


def _row(name: str, size: int, found: dict[str, float]) -> str:
    row = f"{name:14}{size:8}{found['literal_s']:12.3f}{found['ours_s']:10.3f}{found['ratio']:8.1f}"
    row += f"{found['difference']:12.1e}"
    if "peak_ours_gib" in found:
        row += f"{found['peak_literal_gib']:8.2f} ->{found['peak_ours_gib']:5.2f}"
    return row


if __name__ == "__main__":
    main()
