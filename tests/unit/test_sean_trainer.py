"""SEAN's training, its options, and what a run leaves, in one process."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor, nn

import parallel
import zoo
from zoo.checkpoint import read_checkpoint
from zoo.commands import main
from zoo.config import OptionError
from zoo.fill import from_dict
from zoo.models.sean.biases import freeze_dead_biases
from zoo.models.sean.config import SeanConfig, SeanTrainConfig
from zoo.models.sean.generator import Generator
from zoo.models.sean.pictures import as_pixels
from zoo.models.sean.sample_config import SeanSampleConfig
from zoo.models.sean.schedule import linear_decay
from zoo.models.sean.trainer import SeanTrainer
from zoo.trainer import evaluating
from zoo_datasets.errors import InputError
from zoo_datasets.scenes import SCENE_LABELS, Scenes
from zoo_datasets.segmented import SegmentedData

SMALL: dict[str, Any] = {
    "image_size": 32,
    "filters": 2,
    "style_length": 4,
    "discriminator_filters": 4,
    "batch_size": 3,
}
FLAGS = [word for name, value in SMALL.items() for word in (f"--{name.replace('_', '-')}", str(value))]


def scenes(size: int, train: int, evaluation: int = 3) -> SegmentedData:
    return SegmentedData(
        Scenes(size=size, rows=np.arange(train)), Scenes(size=size, rows=np.arange(evaluation), split=1)
    )


def run_cli(capsys: pytest.CaptureFixture[str], *argv: object) -> dict[str, Any]:
    assert main([str(word) for word in (*argv, "--json")]) == 0
    return json.loads(capsys.readouterr().out.splitlines()[-1])


@pytest.fixture(autouse=True)
def few_scenes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zoo_datasets.label_maps.generated_scenes", lambda size, seed: scenes(size, 12, 3))
    monkeypatch.setattr("zoo.models.sean.normalization._HIDDEN", 8)


# Options


def test_the_learning_rate_stays_then_falls_to_nothing() -> None:
    factor = linear_decay(10)
    assert [round(factor(step), 12) for step in range(11)] == [1, 1, 1, 1, 1, 1, 0.8, 0.6, 0.4, 0.2, 0]
    assert [linear_decay(1)(0), linear_decay(2)(1), linear_decay(3)(2)] == [1, 1, 1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"image_size": 48}, "image_size must be a multiple of 2.*, 32, not 48"),
        ({"image_size": 0}, "image_size must be a multiple"),
        ({"upsampling": 7, "filters": 3, "image_size": 128}, "filters must be even for upsampling 7, not 3"),
        ({"filters": 0}, "filters must be at least 1, not 0"),
        ({"labels": 0}, "labels must be at least 1, not 0"),
        ({"lr": 0.0}, "lr must be above 0, not 0"),
        ({"feature_matching": -1.0}, "feature_matching must not be negative, not -1"),
        ({"workers": -1}, "workers must not be negative, not -1"),
    ],
)
def test_options_that_cannot_be(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        SeanTrainConfig(**options)


def test_an_unknown_loss_is_named() -> None:
    with pytest.raises(InputError, match="gan_loss"):
        from_dict(SeanTrainConfig, {"gan_loss": "wasserstein"}, source="here")


# Training


def trained(steps: int, data: SegmentedData, **options: Any) -> tuple[SeanTrainer, list[dict[str, float]]]:
    def work(p: parallel.Parallel) -> tuple[SeanTrainer, list[dict[str, float]]]:
        trainer = SeanTrainer(p, SeanTrainConfig(**(SMALL | {"steps": steps} | options)), data)
        trainer.build()
        found = []
        for _, batch in zip(range(steps), trainer.train, strict=False):
            numbers = trainer.step(batch)
            found.append({name: float(value) for name, value in numbers.items() if isinstance(value, Tensor)})
        return trainer, found

    return parallel.launch(work, "single")


def test_a_batch_of_one_and_a_map_of_one_label() -> None:
    class OneLabel(Scenes):
        def __getitem__(self, row: int) -> Any:
            found = super().__getitem__(row)
            return {**found, "labels": np.zeros_like(found["labels"])}

    one = OneLabel(size=64, rows=np.arange(2))
    _, found = trained(2, SegmentedData(one, one), batch_size=1, image_size=64)
    assert all(np.isfinite(list(numbers.values())).all() for numbers in found)


def test_one_pixel_to_normalise_by_is_refused_before_it_starts() -> None:
    for options in ({"batch_size": 1}, {"batch_size": 4}):  # 5 images: one is left over
        with pytest.raises(InputError, match=r"--image-size 32: the generator begins with one pixel.*or 64"):
            trained(1, scenes(32, 5), **options)
    trained(1, scenes(32, 5), batch_size=5)


@pytest.mark.parametrize(
    ("strategy", "rows", "batch_size", "accumulate", "other"),
    [
        ("single", 8, 4, 1, 0),
        ("single", 8, 4, 2, 0),
        ("single", 8, 4, 4, 8),  # each part holds one
        ("single", 6, 4, 2, 6),  # each part of the last batch does; of 5, one image is left over
        ("single", 3, 3, 2, None),  # no batch size does
        ("dp", 8, 4, 1, 0),
        ("dp", 8, 2, 1, 4),
    ],
)
def test_with_local_batchnorm_what_a_part_holds_counts(
    strategy: str, rows: int, batch_size: int, accumulate: int, other: int | None
) -> None:
    def work(p: parallel.Parallel) -> None:
        config = SeanTrainConfig(**(SMALL | {"batch_size": batch_size}), local_batchnorm=True)
        SeanTrainer(p, config, scenes(32, rows)).build()

    options = {"local_batchnorm": True, "accumulate": accumulate, "nproc": 2 if strategy == "dp" else None}
    if other == 0:
        parallel.launch(work, strategy, **options)
        return
    remedy = "64 pixels" if other is None else f"--batch-size {other}, or 64 pixels"
    with pytest.raises(
        InputError, match=f"single image of it, as there is on a rank or in a part.*; give {remedy}$"
    ):
        parallel.launch(work, strategy, **options)


def test_dead_biases_are_those_whose_gradient_is_zero() -> None:
    torch.manual_seed(0)
    net = Generator(SeanConfig(labels=4, image_size=64, filters=2, style_length=4)).double()
    for parameter in net.parameters():
        parameter.data += 0.05 * torch.randn_like(parameter)
    labels = torch.randint(0, 4, (3, 64, 64))
    image = torch.rand(3, 3, 64, 64, dtype=torch.float64) * 2 - 1
    (net(labels, image) * torch.randn(3, 3, 64, 64, dtype=torch.float64)).sum().backward()
    size = {name: parameter.grad.norm() for name, parameter in net.named_parameters()}  # type: ignore[union-attr]
    freeze_dead_biases(net)
    frozen = {name for name, parameter in net.named_parameters() if not parameter.requires_grad}
    assert len(frozen) == 4 + 1 + 7 + 6 + 3 * 2
    assert {name for name, norm in size.items() if norm < 1e-9 * max(size.values())} == frozen


def test_the_perceptual_loss_is_weighed_in_where_it_is_asked_for() -> None:
    class Distance(nn.Module):
        def __init__(self, source: str) -> None:
            super().__init__()
            assert source == "hub"

        def forward(self, fake: Tensor, real: Tensor) -> Tensor:
            return (fake - real).abs().flatten(1).mean(1)

    with mock.patch("zoo.models.sean.trainer.PerceptualLoss", Distance):
        _, with_it = trained(2, scenes(32, 6), vgg_weights="hub", perceptual=3.0)
    _, without = trained(2, scenes(32, 6))
    assert set(with_it[0]) - set(without[0]) == {"perceptual"}
    assert 0.5 < with_it[0]["perceptual"] < 3.0
    assert with_it[0]["gan"] == without[0]["gan"]  # from the same start
    assert with_it[1]["feature_matching"] != without[1]["feature_matching"]


def test_two_time_scales() -> None:
    trainer, _ = trained(1, scenes(32, 6), lr=1e-3)
    rates = {name: opt.torch.param_groups[0] for name, opt in trainer.optimizers.items()}
    assert {name: group["lr"] for name, group in rates.items()} == {"net": 5e-4, "discriminator": 2e-3}
    assert all(group["betas"] == (0.0, 0.9) for group in rates.values())


# A run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sean") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("zoo_datasets.label_maps.generated_scenes", lambda size, seed: scenes(size, 12, 3))
        patch.setattr("zoo.models.sean.normalization._HIDDEN", 8)
        argv = ["train", "sean", *FLAGS, "--steps", "3", "--save-every", "2", "steps", "--out", str(folder)]
        assert main(argv) == 0
    return folder


def test_a_run_measures_its_start_and_its_end(run: Path) -> None:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [0, 1, 2, 3, 3]
    assert lines[0].keys() == lines[-1].keys() == {"step", "epoch", "eval_psnr", "eval_ssim", "eval_rmse"}
    assert {"gan", "feature_matching", "fake", "real", "generator_lr", "discriminator_grad_norm"} < set(
        lines[1]
    )
    assert (run / "report" / "reconstructions.png").is_file()
    log = (run / "log.txt").read_text()
    assert "the perceptual loss is off; --vgg-weights hub or FILE switches it on" in log


def test_evaluation_says_the_same_again(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    last = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    metrics = run_cli(capsys, "evaluate", run)["metrics"]
    assert metrics == pytest.approx({name: last[f"eval_{name}"] for name in metrics}, rel=1e-5)


def folder_of_scenes(folder: Path, value: int = 0) -> Path:
    """Two pairs that name no label, with one pixel of another value."""
    for number in range(2):
        row = scenes(32, 2).train[number]
        labels = row["labels"].astype(np.uint8)
        labels[0, 0] = value
        for kind, pixels in (("images", as_pixels(row["image"])), ("labels", labels)):
            (folder / kind).mkdir(exist_ok=True)
            Image.fromarray(pixels).save(folder / kind / f"{number}.png")
    return folder


def test_evaluation_on_a_folder_knows_the_labels(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = folder_of_scenes(tmp_path)
    assert run_cli(capsys, "evaluate", run, "--data", folder)["metrics"].keys() == {"psnr", "ssim", "rmse"}
    (folder / "labels.txt").write_text("\n".join(sorted(SCENE_LABELS, reverse=True)), encoding="utf-8")
    assert main(["evaluate", str(run), "--data", str(folder)]) == 2
    assert f"{folder}: label 0 is 'triangle', and the model's is 'sky'" in capsys.readouterr().err


def test_evaluation_takes_255_as_the_training_did(run: Path, tmp_path: Path) -> None:
    folder, checkpoint = folder_of_scenes(tmp_path, 255), read_checkpoint(run)

    def work(p: parallel.Parallel, dont_care: bool) -> int:
        map_format = {**checkpoint.description["map_format"], "dont_care": dont_care}
        described = replace(checkpoint, description={**checkpoint.description, "map_format": map_format})
        held_out = described.trainer(p)._held_out(str(folder))
        return int(held_out[0]["labels"][0, 0])

    assert parallel.launch(work, "single", True) == 255
    with pytest.raises(InputError, match="or train with --dont-care if 255 stands for no label there"):
        parallel.launch(work, "single", False)


def test_samples_from_another_folder_than_the_training(run: Path, tmp_path: Path) -> None:
    """The options say where the data was from there, the description where it is."""
    checkpoint = read_checkpoint(run)
    described = replace(
        checkpoint, description={**checkpoint.description, "data": str(folder_of_scenes(tmp_path))}
    )

    def work(p: parallel.Parallel) -> int:
        trainer = described.trainer(p, data="from/there")
        with evaluating(trainer):
            return trainer.sample(SeanSampleConfig(run=run, n=1)).samples  # type: ignore[union-attr]

    assert parallel.launch(work, "single") == 1


def test_samples_are_a_grid(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = run_cli(capsys, "sample", run, "-n", "2", "--output", tmp_path / "grid.png")
    assert result["samples"] == 2
    with Image.open(tmp_path / "grid.png") as grid:
        assert grid.size == (3 * 32 + 2 * 2, 2 * 32 + 2)


def test_a_style_on_another_map(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The mean style stands in for regions that the style picture lacks."""
    row = scenes(32, 2).train[1]
    Image.fromarray(as_pixels(row["image"])).save(tmp_path / "style.png")
    Image.fromarray(np.zeros((32, 32), np.uint8)).save(tmp_path / "sky.png")
    Image.fromarray(row["labels"].astype(np.uint8)).save(tmp_path / "map.png")
    files = [
        "--style",
        tmp_path / "style.png",
        "--style-mask",
        tmp_path / "sky.png",
        "--mask",
        tmp_path / "map.png",
    ]
    result = run_cli(capsys, "sample", run, *files, "--output", tmp_path / "grid.png")
    assert result["samples"] == 1
    argv = ["sample", run, *files, "--region", "hill=x.png", "--output", tmp_path / "other.png"]
    assert main([str(word) for word in argv]) == 2
    assert "no region 'hill'; did you mean hills?" in capsys.readouterr().err


def test_resume_is_exact(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = run / "checkpoints" / "step-00000002"
    result = run_cli(capsys, "train", "sean", "--resume", source, "--out", tmp_path / "on")
    for name in ("net", "discriminator"):
        ours = load_file(Path(result["checkpoint"]) / "weights" / f"{name}.safetensors")
        theirs = load_file(run / "checkpoints" / "step-00000003" / "weights" / f"{name}.safetensors")
        assert all(torch.equal(tensor, theirs[key]) for key, tensor in ours.items())
        assert ours.keys() == theirs.keys()


def test_the_official_layout_there_and_back(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = run_cli(capsys, "export", run, "--layout", "official", "--to", tmp_path / "official")["files"]
    assert [Path(file).name for file in files] == ["latest_net_G.pth", "latest_net_D.pth"]
    state = torch.load(files[0], weights_only=True)
    assert state["up_0.ace_1.fc_mu7.weight"].shape == (4, 4)
    converted = run_cli(capsys, "convert", files[0], "--model", "sean", "--to", tmp_path / "converted")
    net, back = zoo.load(run), zoo.load(converted["checkpoint"])
    assert isinstance(net, Generator)
    assert all(torch.equal(tensor, back.state_dict()[name]) for name, tensor in net.state_dict().items())
    for folder in (run / "checkpoints" / "step-00000003", Path(converted["checkpoint"])):
        assert {file.name for file in (folder / "weights").iterdir()} == {
            "net.safetensors",
            "discriminator.safetensors",
        }
    assert main(["export", str(run), "--layout", "official", "--to", str(tmp_path / "official")]) == 2
    assert "exists already" in capsys.readouterr().err
    assert main(["export", str(run), "--layout", "keras", "--to", str(tmp_path / "x")]) == 2
    assert "--layout keras: sean has plain, official" in capsys.readouterr().err


def test_a_converted_model_has_no_data_to_evaluate_on(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_cli(capsys, "export", run, "--layout", "official", "--to", tmp_path)
    (tmp_path / "latest_net_D.pth").unlink()
    run_cli(capsys, "convert", tmp_path / "latest_net_G.pth", "--model", "sean", "--to", tmp_path / "to")
    assert [file.name for file in (tmp_path / "to" / "weights").iterdir()] == ["net.safetensors"]
    assert main(["evaluate", str(tmp_path / "to")]) == 2
    assert "sean has nothing to evaluate on; give --data" in capsys.readouterr().err
