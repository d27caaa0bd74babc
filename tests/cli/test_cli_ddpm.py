"""``zoo train ddpm``, ``zoo sample`` and ``zoo convert`` as a person uses them, and what they say of bad input."""

from __future__ import annotations

import csv
import json
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import zoo
from zoo.commands import main

SMALL = ("--width", 16, "--batch-size", 20, "--diffusion-steps", 12, "--steps", 6, "--eval-samples", 20)


def run(*argv: object) -> Any:
    with redirect_stdout(out := StringIO()):
        assert main([*map(str, argv), "--json"]) == 0
    return json.loads(out.getvalue().splitlines()[-1])


def refused(*argv: object) -> str:
    """The one line on stderr of a command that exits with 2."""
    with redirect_stderr(err := StringIO()):
        assert main([*map(str, argv)]) == 2
    lines = err.getvalue().strip().splitlines()
    return lines[-1]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(run("train", "ddpm", *SMALL, "--out", tmp_path_factory.mktemp("ddpm") / "run")["run"])


def test_a_run_has_figures_plots_and_a_model_to_load(trained: Path) -> None:
    lines = [json.loads(line) for line in (trained / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "loss" in line] == [1, 2, 3, 4, 5, 6]
    assert {"eval_valid", "eval_patterns", "eval_largest_share", "eval_distance"} <= lines[-1].keys()
    for plot in ("reverse.png", "loss.png"):
        assert (trained / "report" / plot).read_bytes().startswith(b"\x89PNG")
    net = zoo.load(trained)
    average = load_file(trained / "checkpoints" / "step-00000006" / "weights" / "net.ema.safetensors")
    assert net.state_dict()["fc2.weight"].equal(average["fc2.weight"])


@pytest.mark.parametrize("how", [(), ("--sampler", "ddim", "--sampling-steps", 5), ("--variance", "beta")])
def test_the_seed_decides_the_samples(trained: Path, how: tuple[object, ...]) -> None:
    first = run("sample", trained, "-n", 5, "--seed", 1, *how)
    assert first["samples"] == 5 and list(first["rows"]) == ["x1", "x2", "x3", "x4"]
    assert np.isfinite(list(first["rows"].values())).all()
    assert first["rows"] == run("sample", trained, "-n", 5, "--seed", 1, *how)["rows"]
    assert first["rows"] != run("sample", trained, "-n", 5, "--seed", 2, *how)["rows"]


def test_samples_go_to_a_table(trained: Path, tmp_path: Path) -> None:
    run("sample", trained, "-n", 3, "--output", tmp_path / "samples.csv")
    rows = list(csv.reader((tmp_path / "samples.csv").read_text().splitlines()))
    assert rows[0] == ["x1", "x2", "x3", "x4"] and len(rows) == 4


def test_a_vector_is_denoised_from_a_step(trained: Path) -> None:
    near = run("sample", trained, "-n", 2, "--from", 1, 2, 3, 4, "--start-step", 0)["rows"]
    far = run("sample", trained, "-n", 2, "--from", 1, 2, 3, 4, "--start-step", 11)["rows"]
    move = {
        name: [abs(np.array(list(rows.values())).T - [1, 2, 3, 4]).max() for rows in (near, far)]
        for name in near
    }
    assert all(near_move < far_move for near_move, far_move in move.values())


def test_a_users_own_vectors_come_back_in_their_units(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("height,weight\n" + "".join(f"{150 + i},{1000 + 10 * i}\n" for i in range(20)))
    result = run("train", "ddpm", *SMALL, "--data", path, "--out", tmp_path / "run")
    rows = run("sample", result["run"], "-n", 50)["rows"]
    assert list(rows) == ["height", "weight"]
    assert 100 < np.mean(rows["height"]) < 220 and 500 < np.mean(rows["weight"]) < 1700


def test_the_published_checkpoint_becomes_a_run_that_samples(tmp_path: Path) -> None:
    net = zoo.create_model("ddpm", features=4, steps=1000, width=400)
    torch.save({"model": net.state_dict()}, tmp_path / "toy.pth")
    result = run("convert", tmp_path / "toy.pth", "--model", "ddpm", "--to", tmp_path / "converted")
    loaded = zoo.load(tmp_path / "converted")
    assert all(tensor.equal(net.state_dict()[name]) for name, tensor in loaded.state_dict().items()), result
    few = run("sample", tmp_path / "converted", "-n", 2, "--sampler", "ddim", "--sampling-steps", 3)
    assert few["samples"] == 2


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("--from", 1, 2, 3, 4, "--start-step", 12), ("start", "0..11", "12")),
        (("--from", 1, 2, 3, 4, "--start-step", -1), ("start", "-1")),
        (("--from", 1, 2, 3, "--start-step", 3), ("--from", "3 numbers", "4")),
        (("--start-step", 3), ("--start-step", "--from")),
        (("--sampling-steps", 13), ("1..12", "13")),
        (("--sampler", "dpm"), ("--sampler", "dpm")),
        (("--eta", 2), ("--eta", "2")),
        (("-n", 0), ("-n", "0")),
    ],
)
def test_what_cannot_be_sampled_is_one_line(
    trained: Path, argv: tuple[object, ...], words: tuple[str, ...]
) -> None:
    line = refused("sample", trained, *argv)
    assert all(word in line for word in words), line


def test_a_checkpoint_of_another_shape_is_one_line(tmp_path: Path) -> None:
    torch.save(
        {"model": {"fc4.weight": torch.zeros(4, 8), "fc1.weight": torch.zeros(3, 3)}}, tmp_path / "bad.pth"
    )
    line = refused("convert", tmp_path / "bad.pth", "--model", "ddpm", "--to", tmp_path / "out")
    assert "fc1" in line and "bad.pth" in line
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("--data", "nowhere.csv"), ("nowhere.csv",)),
        (("--length", 9), ("length 9",)),
        (("--diffusion-steps", 0), ("--diffusion-steps", "0")),
        (("--ema", 1), ("--ema", "1")),
        (("--time-embedding", 3), ("--time-embedding", "3")),
    ],
)
def test_what_cannot_be_trained_is_one_line(
    tmp_path: Path, argv: tuple[object, ...], words: tuple[str, ...]
) -> None:
    line = refused("train", "ddpm", *argv, "--out", tmp_path / "run")
    assert all(word in line for word in words), line
    assert not (tmp_path / "run").exists()
