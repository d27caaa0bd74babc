"""The commands on a trained toy: the same answers from 1 rank and from 2, and files that others can read."""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import zoo
from zoo.commands import main
from zoo_datasets.scenes import Scenes
from zoo_datasets.segmented import SegmentedData

ROOT = Path(__file__).resolve().parents[2]
TOY_PACKAGE = ROOT / "tests" / "toy_package"


@pytest.fixture(scope="module", autouse=True)
def toy_package() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(TOY_PACKAGE))
        yield


def run(*argv: object) -> Any:
    """What a command prints on the last line under --json."""
    with redirect_stdout(out := StringIO()):
        assert main([*map(str, argv), "--json"]) == 0
    return json.loads(out.getvalue().splitlines()[-1])


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return run("train", "toy", "--precision", "fp64", "--out", tmp_path_factory.mktemp("toy") / "one")


@pytest.fixture(scope="module")
def trained_by_two(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    out = tmp_path_factory.mktemp("toy") / "two"
    return run("train", "toy", "--precision", "fp64", "--parallel", "ddp", "--nproc", 2, "--out", out)


@pytest.fixture
def points(tmp_path: Path) -> Path:
    path = tmp_path / "points.txt"
    np.savetxt(path, np.linspace(-3, 4, 7))
    return path


def read(path: Path) -> list[dict[str, float]]:
    with path.open() as file:
        return [{name: float(cell) for name, cell in row.items()} for row in csv.DictReader(file)]


def test_one_word_changes_and_the_numbers_stay(
    trained: dict[str, Any], trained_by_two: dict[str, Any]
) -> None:
    one, two = (
        [json.loads(line) for line in (Path(result["run"]) / "metrics.jsonl").read_text().splitlines()]
        for result in (trained, trained_by_two)
    )
    assert len(one) == len(two) == 13
    for ours, theirs in zip(one, two, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-9, abs=1e-12)
    assert trained["metrics"] == pytest.approx(trained_by_two["metrics"], rel=1e-9)
    weights, same = (
        load_file(Path(result["checkpoint"]) / "weights/net.safetensors")
        for result in (trained, trained_by_two)
    )
    for name, tensor in weights.items():
        assert torch.allclose(tensor, same[name], rtol=1e-8)


def test_evaluate_gives_what_training_gave(trained: dict[str, Any]) -> None:
    assert run("evaluate", trained["run"]) == {
        "model": "toy",
        "checkpoint": trained["checkpoint"],
        "metrics": trained["metrics"],
    }
    assert run("evaluate", trained["checkpoint"])["metrics"] == trained["metrics"]


def test_predictions_are_the_same_rows_in_the_same_order_from_two_ranks(
    trained: dict[str, Any], points: Path, tmp_path: Path
) -> None:
    one, two = tmp_path / "one.csv", tmp_path / "two.csv"
    assert run("predict", trained["run"], "--input", points, "--output", one)["rows"] == 7
    run("predict", trained["run"], "--input", points, "--output", two, "--parallel", "ddp", "--nproc", 2)
    x = np.loadtxt(points)
    weights = load_file(Path(trained["checkpoint"]) / "weights/net.safetensors")
    answers = x * weights["line.weight"].item() + weights["line.bias"].item()
    for table in (read(one), read(two)):
        assert [row["x"] for row in table] == x.tolist()  # every digit is written
        assert [row["answer"] for row in table] == pytest.approx(answers.tolist(), rel=1e-12)


def test_samples_are_printed_or_written(
    trained: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["sample", trained["run"], "-n", "3", "--seed", "4", "--from", "1.5"]
    assert main(argv) == 0
    printed = capsys.readouterr().out
    assert printed.splitlines()[:2] == ["number", "1.5"]
    assert len(printed.splitlines()) == 4
    assert main([*argv, "--output", str(tmp_path / "new.csv")]) == 0
    assert (tmp_path / "new.csv").read_text() == printed
    found = run(*argv)
    assert (found["samples"], found["rows"]["number"][0]) == (3, 1.5)
    capsys.readouterr()
    assert main([*argv, "--output", str(tmp_path / "new.csv")]) == 2
    assert "exists already" in capsys.readouterr().err


def test_load_gives_the_plain_module_in_its_precision(trained: dict[str, Any]) -> None:
    for path in (trained["run"], Path(trained["checkpoint"])):
        net = zoo.load(path)
        assert type(net).__name__ == "ToyLine"
        assert not net.training
        x = torch.tensor([[2.0]], dtype=torch.float64)
        weights = load_file(Path(trained["checkpoint"]) / "weights/net.safetensors")
        expected = 2.0 * weights["line.weight"].item() + weights["line.bias"].item()
        assert net(x).item() == pytest.approx(expected, rel=1e-14)
    assert not torch.distributed.is_initialized()


def test_export_is_a_file_that_plain_torch_loads(trained: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "net.safetensors"
    assert run("export", trained["run"], "--to", file)["parameters"] == 2
    net = zoo.create_model("toy", slopes=1).double()
    net.load_state_dict(load_file(file), strict=True)
    assert torch.equal(net.state_dict()["line.weight"], zoo.load(trained["run"]).state_dict()["line.weight"])
    with safe_open(file, "pt") as opened:
        assert opened.metadata() == {"format": "pt", "model": "toy", "arguments": '{"slopes": 1}'}


def test_a_converted_checkpoint_is_one_of_the_zoos(
    tmp_path: Path, points: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    save_file({"w": torch.tensor([[3.0]])}, tmp_path / "published.safetensors")
    folder = run("convert", "published.safetensors", "--model", "toy")["checkpoint"]
    assert folder == "runs/toy/published"
    assert zoo.load(folder)(torch.tensor([[2.0]])).item() == 6.0
    run("predict", folder, "--input", points, "--output", "out.csv")
    assert [row["answer"] for row in read(Path("out.csv"))] == pytest.approx(
        (3 * np.loadtxt(points)).tolist(), rel=1e-6
    )
    x = np.linspace(-1, 1, 13)
    assert run("evaluate", folder)["metrics"]["mse"] == pytest.approx(
        np.mean((3 * x - (2 * x + 1)) ** 2), rel=1e-6
    )
    assert main(["convert", "published.safetensors", "--model", "toy"]) == 2  # it is there already


# Options other than the defaults: what a checkpoint does not carry with it would be taken from these.
ODD_SIZES = {
    "toy": "--rows 7 --kind flat",
    "devnet": "--network-depth 1",
    "ddpm": "--width 12 --diffusion-steps 17 --eval-samples 40",
    "vit": "--model-args depth=1 embed_dim=16 num_heads=2",
    "sean": "--image-size 64 --filters 2 --style-length 4 --discriminator-filters 4 --batch-size 2",
}


@pytest.mark.parametrize("model", ODD_SIZES)
def test_a_checkpoint_moved_away_from_its_run_is_whole(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It carries its own options, so that it is evaluated as it was trained though the run is gone."""
    few = SegmentedData(*(Scenes(size=64, rows=np.arange(2), split=split) for split in (0, 1)))
    monkeypatch.setattr("zoo_datasets.label_maps.generated_scenes", lambda size, seed: few)
    monkeypatch.setattr("zoo.models.sean.normalization._HIDDEN", 8)
    result = run("train", model, *ODD_SIZES[model].split(), "--steps", 1, "--out", tmp_path / "run")
    kept = tmp_path / "elsewhere" / "kept"
    kept.parent.mkdir()
    Path(result["checkpoint"]).rename(kept)
    shutil.rmtree(tmp_path / "run")
    assert run("evaluate", kept)["metrics"] == result["metrics"] != {}


def test_every_model_has_odd_sizes() -> None:
    """One that is new is to be moved about too."""
    assert set(ODD_SIZES) == set(zoo.list_models())


def test_a_run_starts_again_from_its_own_config(trained: dict[str, Any], tmp_path: Path) -> None:
    file = Path(trained["run"]) / "config.yaml"
    again = run("train", "toy", "--config", file, "--out", tmp_path / "again")
    assert again["metrics"] == trained["metrics"]
    assert main(["train", "toy", "--config", str(file)]) == 2  # its folder is taken


def environment(**more: str) -> dict[str, str]:
    path = os.pathsep.join(map(str, [ROOT, ROOT / "datasets", TOY_PACKAGE, os.environ.get("PYTHONPATH", "")]))
    return os.environ | {"PYTHONPATH": path} | more


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_ctrl_c_saves_and_ends_the_run_and_its_ranks_without_a_traceback(tmp_path: Path) -> None:
    line = "train toy --parallel ddp --nproc 2 --steps 100000000 --out out"
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "cli.py"), *line.split()],
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    assert "toy: ddp on 2 ranks" in process.stderr.readline()
    process.stderr.readline()  # a first line of numbers: steps are under way
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 75
    assert "stopped" in out + err
    assert list((tmp_path / "out" / "checkpoints").glob("step-*/manifest.json"))
    assert "Traceback" not in err
    assert len(children) == 2
    assert not any(Path(f"/proc/{child}").exists() for child in children)


def test_under_torchrun_one_rank_writes_and_prints(tmp_path: Path, trained: dict[str, Any]) -> None:
    line = "train toy --precision fp64 --parallel ddp --json"
    torchrun = "-m torch.distributed.run --standalone --nproc-per-node 2"
    done = subprocess.run(
        [sys.executable, *torchrun.split(), str(ROOT / "cli.py"), *line.split()],
        cwd=tmp_path,
        env=environment(OMP_NUM_THREADS="1"),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 1
    result = json.loads(done.stdout)
    assert [str(path.relative_to(tmp_path)) for path in (tmp_path / "runs/toy").iterdir()] == [result["run"]]
    said = "2 ranks were started by torchrun"
    assert done.stderr.count(said) == (tmp_path / result["run"] / "log.txt").read_text().count(said) == 1
    assert result["metrics"] == pytest.approx(trained["metrics"], rel=1e-9)


def test_a_launchers_stray_variables_change_nothing_and_are_named(
    tmp_path: Path,
    trained: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, value in {"RANK": "7", "WORLD_SIZE": "9", "SLURM_NTASKS": "4"}.items():
        monkeypatch.setenv(name, value)
    result = run("train", "toy", "--precision", "fp64", "--out", tmp_path / "out")
    assert result["metrics"] == trained["metrics"]
    said = "so left aside: RANK=7, WORLD_SIZE=9, SLURM_NTASKS=4\n"
    assert capsys.readouterr().err.count(said) == (tmp_path / "out/log.txt").read_text().count(said) == 1
    assert "left aside" not in (Path(trained["run"]) / "log.txt").read_text()
