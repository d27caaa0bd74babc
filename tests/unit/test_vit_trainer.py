"""ViT's training, evaluation, prediction, export and errors, through the command line where users meet them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.numpy import load_file
from torch.nn import functional as F

import parallel
import zoo
from zoo.commands import main
from zoo.fill import from_dict
from zoo.models.vit.config import ViTConfig
from zoo.models.vit.samples import evaluation_rows, training_rows
from zoo.models.vit.trainer import ViTTrainer
from zoo.trainer import evaluating, fit
from zoo_datasets.errors import InputError
from zoo_datasets.images import load_images

SMALL = ("depth=2", "embed_dim=16", "num_heads=2")
FLAGS = ["--model-args", *SMALL]


def image(path: Path, seed: int, size: tuple[int, int] = (8, 8)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    return path


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """A run of a few steps."""
    folder = tmp_path_factory.mktemp("vit") / "run"
    assert main(["train", "vit", "--steps", "4", "--out", str(folder), *FLAGS]) == 0
    return folder


@pytest.fixture
def folder(tmp_path) -> Path:
    """Images of two classes, of several sizes."""
    for label in ("cat", "dog"):
        for number in range(6):
            image(tmp_path / "data" / label / f"{number}.png", number, (8 + number, 9))
    return tmp_path / "data"


def trained(config: ViTConfig, **options: Any) -> ViTTrainer:
    def work(p: parallel.Parallel) -> ViTTrainer:
        trainer = ViTTrainer(p, config)
        fit(trainer)
        return trainer

    return parallel.launch(work, "single", **options)


def test_it_learns():
    config = ViTConfig(epochs=8, batch_size=16, lr=5e-3, data="digits:0-1", model_args=SMALL)
    with evaluating(trainer := trained(config)):
        assert trainer.evaluate().metrics["top1"] > 0.95


def test_a_step_is_adamw_on_smoothed_cross_entropy():
    """By hand in float64: the step's gradient, clipped, through torch's own AdamW."""
    config = ViTConfig(
        steps=1, model_args=SMALL, label_smoothing=0.2, lr=0.01, warmup=0.0, weight_decay=0.1, clip_norm=0.5
    )
    trainer = trained(config, precision="fp64")
    net = trainer.models["net"]
    theirs = timm.create_model(trainer.net_arguments["arch"], **trainer.net_arguments["args"]).double()
    start = ViTTrainer(trainer.p, config)
    start.build()
    theirs.load_state_dict(start.models["net"].state_dict())
    batch = next(iter(start.train))
    x = batch["image"].double() / 127.5 - 1
    targets = F.one_hot(batch["label"], 10) * 0.8 + 0.02
    loss = -(targets * theirs(x).log_softmax(-1)).sum(-1).mean()
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(theirs.parameters(), 0.5)
    assert norm > 0.5
    decayed = {
        name: p.ndim > 1 and name not in ("pos_embed", "cls_token") for name, p in theirs.named_parameters()
    }
    torch.optim.AdamW(
        [
            {
                "params": [p for name, p in theirs.named_parameters() if decayed[name] is which],
                "weight_decay": 0.1 * which,
            }
            for which in (True, False)
        ],
        lr=0.01,
    ).step()
    for (name, got), want in zip(net.named_parameters(), theirs.parameters(), strict=True):
        if not name.endswith(
            "qkv.bias"
        ):  # AdamW's first step is the gradient's sign, and that of a key's bias is rounding
            torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-9, msg=name)


def test_reports(run):
    report = run / "report"
    assert {path.name for path in report.iterdir()} == {
        "report.md",
        "classes.csv",
        "confusion.csv",
        "confusion.png",
        "misclassified.png",
    }
    table = np.loadtxt(report / "confusion.csv", delimiter=",", skiprows=1)
    assert table[:, 1:].sum() == len(load_images().eval)
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert np.trace(table[:, 1:]) / table[:, 1:].sum() == pytest.approx(metrics[-1]["eval_top1"])
    assert f"| top1 | {metrics[-1]['eval_top1']:.4f} |" in (report / "report.md").read_text()
    for name in ("confusion.png", "misclassified.png"):
        with Image.open(report / name) as picture:
            assert min(picture.size) > 300


def test_evaluating_a_run_again(run, capsys):
    assert main(["evaluate", str(run), "--json"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])["metrics"]
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert found["top1"] == metrics[-1]["eval_top1"]


@pytest.mark.parametrize("ending", ["npy", "safetensors"])
def test_predictions_and_embeddings(run, folder, tmp_path, ending):
    output, features = tmp_path / "p.csv", tmp_path / f"f.{ending}"
    command = [
        "predict",
        str(run),
        "--input",
        str(folder),
        "--output",
        str(output),
        "--features",
        str(features),
    ]
    assert main(command) == 0
    lines = [line.split(",") for line in output.read_text().splitlines()]
    paths = sorted(folder.rglob("*.png"))
    assert lines[0] == ["image", "label", "probability"]
    assert [line[0] for line in lines[1:]] == [str(path) for path in paths]
    found = np.load(features) if ending == "npy" else load_file(features)["features"]
    net: Any = zoo.load(run)
    for row, path in enumerate(paths):
        with Image.open(path) as picture:
            side = min(picture.size)
            left, top = round((picture.width - side) / 2), round((picture.height - side) / 2)
            square = (
                picture.convert("L")
                .crop((left, top, left + side, top + side))
                .resize((8, 8), Image.Resampling.BICUBIC)
            )
        x = torch.from_numpy(np.array(square, dtype=np.float32))[None, None] / 127.5 - 1
        with torch.no_grad():
            want, logits = net.forward_head(net.forward_features(x), pre_logits=True)[0], net(x)[0]
        # torch and Pillow round a resized image each in its way.
        assert np.abs(found[row] - want.numpy()).max() < 0.05
        if side == 8:
            assert np.abs(found[row] - want.numpy()).max() < 1e-5
            assert lines[1 + row][1] == str(int(logits.argmax()))
            assert float(lines[1 + row][2]) == pytest.approx(logits.softmax(0).max().item(), rel=1e-5)
    assert main(command) == 2  # nothing is written over


def test_one_image(run, tmp_path):
    path = image(tmp_path / "one.png", 0)
    assert main(["predict", str(run), "--input", str(path), "--output", str(tmp_path / "p.csv")]) == 0
    assert (tmp_path / "p.csv").read_text().count("\n") == 2


def test_an_exported_folder_is_timms(run, tmp_path):
    assert main(["export", str(run), "--to", str(tmp_path / "model.safetensors")]) == 0
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["label_names"] == [str(digit) for digit in range(10)]
    x = torch.randn(3, 1, 8, 8)
    ours = zoo.load(run)
    nets = [
        timm.create_model(f"local-dir:{tmp_path}", pretrained=True),
        timm.create_model(
            config["architecture"], checkpoint_path=tmp_path / "model.safetensors", **config["model_args"]
        ),
    ]
    for net in nets:
        with torch.no_grad():
            assert torch.equal(net.eval()(x), ours(x))
    data = timm.data.resolve_model_data_config(nets[0])
    assert data["input_size"] == (1, 8, 8) and tuple(data["mean"]) == (0.5,)
    assert main(["export", str(run), "--to", str(tmp_path / "again.safetensors")]) == 2


def test_training_goes_on_from_a_run(run, tmp_path):
    config = ViTConfig(steps=1, lr=1e-12, data="digits:5-9", pretrained=str(run), model_args=SMALL)
    net = trained(config).models["net"]
    want = zoo.load(run).state_dict()
    got = net.state_dict()
    torch.testing.assert_close(got["blocks.1.mlp.fc1.weight"], want["blocks.1.mlp.fc1.weight"])
    assert got["head.weight"].shape == (5, 16)


def test_as_many_other_classes_get_a_fresh_head(tmp_path):
    first = tmp_path / "low"
    assert main(["train", "vit", "--steps", "1", "--data", "digits:0-4", "--out", str(first), *FLAGS]) == 0
    low = zoo.load(first).state_dict()["head.weight"]
    config = ViTConfig(steps=1, lr=1e-12, data="digits:5-9", pretrained=str(first), model_args=SMALL, seed=1)
    other = trained(config).models["net"].state_dict()["head.weight"]
    assert (low - other).abs().max() > 1e-3
    same = trained(
        ViTConfig(steps=1, lr=1e-12, data="digits:0-4", pretrained=str(first), model_args=SMALL, seed=1)
    )
    torch.testing.assert_close(same.models["net"].state_dict()["head.weight"], low)


def test_images_of_a_folder(folder, tmp_path, capsys):
    flags = ["--data", str(folder), "--in-chans", "3", "--steps", "2", "--batch-size", "4", *FLAGS]
    assert (
        main(["train", "vit", *flags, "--workers", "1", "--flip", "--out", str(tmp_path / "run"), "--json"])
        == 0
    )
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["metrics"].keys() == {"top1", "loss"}
    assert main(["evaluate", str(tmp_path / "run"), "--data", str(folder)]) == 0


@pytest.mark.parametrize("workers", [0, 1])
def test_a_corrupt_image_is_named_in_one_line(folder, tmp_path, capsys, workers):
    bad = folder / "cat" / "3.png"
    bad.write_bytes(bad.read_bytes()[:60])
    flags = ["--data", str(folder), "--epochs", "1", "--workers", str(workers), *FLAGS]
    assert main(["train", "vit", *flags, "--out", str(tmp_path / "run")]) == 2
    message = capsys.readouterr().err.splitlines()[-1]
    assert message.startswith(f"zoo: {bad}: no image that can be read") and message.endswith("--skip-bad")


def test_corrupt_images_are_counted_and_skipped(folder, tmp_path, capsys):
    (folder / "cat" / "3.png").write_bytes(b"nonsense")
    (folder / "dog" / "1.png").write_bytes(b"nonsense")
    out = tmp_path / "run"
    flags = ["--data", str(folder), "--epochs", "1", "--skip-bad", *FLAGS]
    assert main(["train", "vit", *flags, "--out", str(out)]) == 0
    counted = [
        int(word)
        for line in (out / "log.txt").read_text().splitlines()
        if "left out" in line
        for word in line.split()
        if word.isdigit()
    ]
    assert sum(counted) == 2
    assert main(["predict", str(out), "--input", str(folder), "--output", str(tmp_path / "p.csv")]) == 0
    assert (tmp_path / "p.csv").read_text().count("\n") == 11


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            ["--arch", "vit_tiny_patch16_22"],
            "unknown architecture 'vit_tiny_patch16_22'; the nearest are vit_tiny_patch16_224",
        ),
        (["--pretrained", "absent.pth"], "absent.pth: no such file of weights"),
        (["--data", "digit"], "no data set or folder 'digit'; did you mean digits?"),
        (["--freeze", "head"], "--freeze must be none, backbone or blocks:N, not head"),
        (["--freeze", "blocks:9"], "--freeze blocks:9: the net has 2 blocks"),
        (["--in-chans", "2"], "--in-chans must be 1 (grey) or 3 (RGB), not 2"),
        (["--mixup", "-1"], "--mixup must not be negative, not -1"),
        (["--crop", "0"], "--crop must be above 0, not 0"),
        (["--ema", "1"], "--ema must be from 0 to below 1"),
        pytest.param(
            ["--parallel", "tp", "--nproc", "3"],
            "num_heads is 2, which 3 tensor-parallel ranks do not divide",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_errors_are_one_line(flags, message, tmp_path, capsys):
    known = [] if "--arch" in flags else FLAGS
    assert main(["train", "vit", "--steps", "1", "--out", str(tmp_path / "run"), *known, *flags]) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("zoo: ")]
    assert len(lines) == 1 and message in lines[0]
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("argument", ["depth", "num_classes=3", "img_size=3"])
def test_arguments_of_the_architecture(argument):
    with pytest.raises(InputError, match="model_args"):
        from_dict(ViTConfig, {"model_args": [argument]}, source="options")


def test_arguments_are_json_or_text():
    config = ViTConfig(model_args=("a=3", "b=true", "c=avg", "d=0.5"), dropout=0.1, in_chans=3)
    assert config.arch_args() == {
        "in_chans": 3,
        "proj_drop_rate": 0.1,
        "pos_drop_rate": 0.1,
        "a": 3,
        "b": True,
        "c": "avg",
        "d": 0.5,
    }


def test_images_are_shifted_and_scaled_as_timm_does(folder):
    """DeiT's mean and deviation are ImageNet's."""
    config = ViTConfig(
        steps=1, data=str(folder), arch="deit_tiny_patch16_224", img_size=16, in_chans=3, model_args=SMALL
    )
    trainer = trained(config)
    pixels = torch.randint(0, 256, (2, 3, 16, 16), dtype=torch.uint8)
    mean, std = (
        torch.tensor(values).view(3, 1, 1) for values in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    )
    torch.testing.assert_close(trainer.normalised(pixels), (pixels / 255 - mean) / std)


def test_augmentation_belongs_to_training(folder):
    config = ViTConfig(flip=True, crop=0.3, randaugment=2)
    images = load_images(folder).train
    torch.manual_seed(0)
    rows = training_rows(images, 8, 3, config)
    first, again = rows[0]["image"], rows[0]["image"]
    assert first.shape == again.shape == (3, 8, 8) and first.dtype == torch.uint8
    assert not torch.equal(first, again)
    torch.manual_seed(0)
    assert torch.equal(training_rows(images, 8, 3, config)[0]["image"], first)
    still = evaluation_rows(images, 8, 3)
    assert torch.equal(still[0]["image"], still[0]["image"])
