"""``zoo parity`` passes what is right, fails what is wrong, and says what cannot be compared."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any, ClassVar

import pytest

from parallel import registry
from parallel.engine import Engine
from parallel.registry import StrategyEntry
from zoo.commands import main
from zoo.commands.parity import shown_bytes

ROOT = Path(__file__).resolve().parents[2]
TOY_PACKAGE = ROOT / "tests" / "toy_package"
ALL = "dp,ddp,fsdp,zero1,zero2,zero3,zero3-offload,tp,fsdp+tp,ddp+tp,hsdp"


class Forgets(Engine):
    """Each rank keeps to its own gradients: the mistake that parity is there to find."""

    axes: ClassVar[tuple[str, ...]] = ("replicate",)


@pytest.fixture(autouse=True)
def toy_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(TOY_PACKAGE))


@pytest.fixture(scope="module")
def devnet() -> Iterator[dict[str, Any]]:
    """DevNet's parity under every strategy, on four ranks."""
    with redirect_stdout(out := StringIO()):
        assert main(["parity", "devnet", "--parallel", ALL, "--nproc", "4", "--json"]) == 0
    yield json.loads(out.getvalue().splitlines()[-1])


def test_devnet_passes_under_every_strategy(devnet: dict[str, Any]) -> None:
    assert devnet["passed"]
    assert (devnet["model"], devnet["steps"], devnet["precision"]) == ("devnet", 20, "fp64")
    assert [row["strategy"] for row in devnet["strategies"]] == ALL.split(",")
    for row in devnet["strategies"]:
        assert row["passed"], row
        assert row["distances"].keys() == {"loss", "grad_norm", "lr", "weights", "answers"}
        assert max(row["distances"].values()) < 1e-12
        assert row["ranks"] == len(row["memory"]) == (1 if row["strategy"] == "dp" else 4)


def test_bytes_are_those_of_the_layout(devnet: dict[str, Any]) -> None:
    """30 columns, 20 hidden units: 641 numbers of 8 bytes."""
    rows = {row["strategy"]: row for row in devnet["strategies"]}
    size = 8 * (30 * 20 + 20 + 20 + 1)
    for spec in ("dp", "ddp", "zero1"):
        assert {rank["parameters"] for rank in rows[spec]["memory"]} == {size}
    for spec in ("fsdp", "zero2", "zero3", "zero3-offload"):
        for kind in ("parameters", "gradients", "optimizer"):
            assert sum(rank[kind] for rank in rows[spec]["memory"]) == size
    assert sum(rank["optimizer"] for rank in rows["zero1"]["memory"]) == size
    assert rows["ddp"]["traffic"] == {"all_reduce": {"calls": 1, "bytes": size}}
    assert rows["dp"]["traffic"] == {}
    assert rows["zero1"]["traffic"]["broadcast"]["bytes"] == size
    assert rows["fsdp"]["traffic"].keys() == {"all_gather", "reduce_scatter", "all_reduce"}


def test_a_strategy_that_forgets_to_sum_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(registry._ENTRIES, "forgets", StrategyEntry("forgets", "", Forgets))
    assert main(["parity", "toy", "--parallel", "ddp,forgets", "--nproc", "2", "--steps", "5"]) == 1
    lines = capsys.readouterr().out.splitlines()
    good, bad = (next(line for line in lines if line.startswith(spec)) for spec in ("ddp ", "forgets "))
    assert good.endswith("pass")
    assert bad.endswith("FAIL")
    assert any(line.startswith("forgets: loss: ") and line.endswith("1e-09 allowed") for line in lines)
    assert any(line.startswith("forgets: weights: ") for line in lines)


def test_what_a_model_cannot_do_is_said_and_the_rest_compared(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["parity", "toy", "--parallel", "tp,ddp", "--nproc", "2", "--steps", "2"]) == 2
    shown = capsys.readouterr()
    tp, ddp = (next(line for line in shown.out.splitlines() if line.startswith(s)) for s in ("tp", "ddp"))
    assert tp.endswith("refused")
    assert ddp.endswith("pass")
    (said,) = [line for line in shown.err.splitlines() if line.startswith("zoo:")]
    assert said.startswith("zoo: tp: ToyLine")


def test_fp32_holds_losses_and_norms_to_its_own_tolerance(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["--parallel", "dp", "--nproc", "2", "--precision", "fp32", "--rows", "9", "--json"]
    assert main(["parity", "toy", *argv]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["precision"] == "fp32"
    assert found["strategies"][0]["memory"][0]["parameters"] == 2 * 4


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("parity", "name a model: "),
        ("parity --nproc 2 toy", "the model comes first, as in `zoo parity "),
        ("parity toy", "name strategies: zoo parity toy --parallel ddp,fsdp --nproc 2"),
        ("parity toy --parallel , --nproc 2", "name strategies: "),
        ("parity toy --parallel ddp,fdsp", "unknown strategy 'fdsp'; did you mean fsdp"),
        ("parity toy --parallel ddp,hsdp --nproc 2", "strategy 'hsdp' needs at least 4 ranks"),
        ("parity toy --parallel ddp --nproc 0", "--nproc must be at least 1, not 0"),
        ("parity toy --parallel ddp --steps 0", "--steps must be at least 1, not 0"),
        ("parity toy --parallel ddp --out here", "unknown option --out"),
        ("parity toy --parallel ddp --epochs 3", "unknown option --epochs"),
        ("parity toy --parallel dp --data bad", "bad: row 3 is not a point"),
    ],
)
def test_one_line_and_exit_code_2(line: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(line.split()) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.splitlines()[-1].startswith(f"zoo: {said}")


def test_help_shows_the_defaults_of_parity(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["parity", "toy", "--help"])
    assert ended.value.code == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "(default: 20)" in shown
    assert "(default: fp64)" in shown
    assert "--rows" in shown
    assert "--out" not in shown


@pytest.mark.slow  # tests/cli/test_cli_commands.py has a training under torchrun
def test_under_torchrun_one_rank_prints(tmp_path: Path) -> None:
    path = os.pathsep.join(map(str, [ROOT, ROOT / "datasets", TOY_PACKAGE]))
    line = "parity toy --parallel ddp,fsdp --steps 3 --json"
    torchrun = "-m torch.distributed.run --standalone --nproc-per-node 2"
    done = subprocess.run(
        [sys.executable, *torchrun.split(), str(ROOT / "cli.py"), *line.split()],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    (printed,) = done.stdout.splitlines()
    found = json.loads(printed)
    assert found["passed"]
    assert [row["ranks"] for row in found["strategies"]] == [2, 2]


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (2_345_678, "2.35 MB"), (4 * 10**9, "4 GB")],
)
def test_bytes_for_people(size: int, text: str) -> None:
    assert shown_bytes(size) == text
