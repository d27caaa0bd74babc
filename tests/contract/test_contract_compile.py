"""``compile`` changes no number: what is drawn included, which compiled code is handed and does not draw by itself."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from unittest import mock

import pytest
import torch
from contract_matrix import Layout
from pool import Pool
from safetensors.torch import load_file
from test_contract_numbers import Reference

from parallel.interface import Parallel
from parallel.plan import Plan
from parallel.testing import Trace, differences, nets, run_case

STEPS = 5  # four batches of 10 rows and one of 7
CASES = ("dropout", "attention")  # the whole net; blocks with dropout, one of them recomputed


def traced(p: Parallel, case: str) -> Trace:
    """Captured as for Inductor, forward and backward, and run operation by operation; each block in one piece.

    Not so a whole net, since what FSDP2 does between its units cannot be captured; nor what tensor parallelism does
    with a norm over each head.
    """
    whole = case == "attention" and not p.spec.endswith("tp")
    captured = partial(torch.compile, backend="aot_eager", fullgraph=whole)
    with mock.patch("torch.compile", captured):
        return run_case(p, case, STEPS)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(
    "layout",
    [Layout("ddp", 2), Layout("fsdp", 2, 2), pytest.param(Layout("fsdp+tp", 4), marks=pytest.mark.slow)],
    ids=str,
)
def test_captured_blocks_give_the_numbers_of_plain_ones(
    case: str, layout: Layout, ranks: Pool, reference_run: Reference
) -> None:
    got = layout.run(ranks, traced, case, precision="fp64", compile=True)[0]
    assert not differences(reference_run(case, "fp64", STEPS), got, "fp64")


def test_compiled_dropout_is_the_plain_one(ranks: Pool, reference_run: Reference) -> None:
    got = ranks.run(run_case, "single", 1, "dropout", STEPS, precision="fp64", compile=True)[0]
    assert not differences(reference_run("dropout", "fp64", STEPS), got, "fp64")


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(
    "layout", [Layout("single", 1, 2), Layout("ddp", 2), Layout("fsdp", 2), Layout("tp", 2)], ids=str
)
def test_compiled_blocks_give_the_numbers_of_plain_ones(
    case: str, layout: Layout, ranks: Pool, reference_run: Reference
) -> None:
    got = layout.run(ranks, run_case, case, STEPS, precision="fp64", compile=True)[0]
    assert not differences(reference_run(case, "fp64", STEPS), got, "fp64")


class Twice(torch.nn.Module):
    """One layer that draws twice in one forward, and must not draw the same."""

    def __init__(self) -> None:
        super().__init__()
        self.up = torch.nn.Linear(6, 6)
        self.drop = torch.nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.drop(self.up(x)) - self.drop(self.up(x))


def answers(p: Parallel) -> list[torch.Tensor]:
    """Of two forwards for one part."""
    torch.manual_seed(0)
    with mock.patch("torch.compile", partial(torch.compile, backend="aot_eager", fullgraph=True)):
        net = p.wrap(Twice(), Plan())
    (batch,) = p.loader(torch.ones(8, 6), 8)
    for part in p.parts(batch):
        found = [net(part.x).detach() for _ in range(2)]
    return found


def test_calls_of_a_layer_are_counted_in_compiled_code(ranks: Pool) -> None:
    plain, compiled = (ranks.run(answers, "single", 1, compile=flag)[0] for flag in (False, True))
    for want, got in zip(plain, compiled, strict=True):
        torch.testing.assert_close(got, want)
        assert want.abs().max() > 0
    assert not plain[0].equal(plain[1])


def saved_names(p: Parallel, folder: Path) -> None:
    """A checkpoint of a net and its average, compiled where that is asked for."""
    with mock.patch("torch.compile", partial(torch.compile, backend="aot_eager")):
        net = p.wrap(nets.MLP(), nets.MLP_PLAN)
        opt = p.optimizer(net, torch.optim.Adam, lr=1e-2)
        ema = p.ema(net, decay=0.9)
        for batch in p.loader((torch.ones(8, 6), torch.ones(8, 1)), 4):
            for part in p.parts(batch):
                p.backward((net(part.x) - part.y).square().sum() / batch.size, opt)
            p.step(opt)
        p.save(folder, {"net": net}, {"net": ema}, {"net": opt})


@pytest.mark.parametrize(
    ("layout", "compiled"),
    [(Layout("dp", 2), False), (Layout("ddp", 2), True), (Layout("fsdp", 2), True)],
    ids=str,
)
def test_saved_weights_have_plain_names(layout: Layout, compiled: bool, ranks: Pool, tmp_path: Path) -> None:
    """Neither ``module.`` nor ``_orig_mod.``: plain torch loads the files strictly, the average's too."""
    layout.run(ranks, saved_names, tmp_path / "saved", compile=compiled)
    files = sorted((tmp_path / "saved/weights").iterdir())
    assert [file.name for file in files] == ["net.ema.safetensors", "net.safetensors"]
    average, net = ({k: v.clone() for k, v in load_file(file).items()} for file in files)
    for state in (average, net):
        nets.MLP().load_state_dict(state, strict=True)
    assert not any(average[name].equal(net[name]) for name in net)
    for file in (tmp_path / "saved/state").glob("*.safetensors"):
        assert not [name for name in load_file(file) if "module." in name or "_orig_mod" in name]
