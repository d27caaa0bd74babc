"""Checkpoints and tensors as datasets: versions, other file systems, credentials, what is damaged or in the way."""

from __future__ import annotations

import logging
import pickle
import re
import shutil
from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("kedro.framework", reason="pip install 'parallel-zoo[kedro]'")

import fsspec
import numpy as np
import torch
from kedro.io import DataCatalog, DatasetError, Version
from safetensors.torch import load_file

import zoo
from zoo.commands import main
from zoo.integrations.kedro import TrainedModel
from zoo.integrations.kedro.datasets import CheckpointDataset, SafetensorsDataset

TOY_PACKAGE = Path(__file__).resolve().parents[1] / "toy_package"
SECRET = "open-sesame"


@pytest.fixture(scope="module", autouse=True)
def toy_package() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(TOY_PACKAGE))
        yield


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[TrainedModel]:
    """One of 2 steps, and one of 3."""
    folder = tmp_path_factory.mktemp("runs")
    for steps in (2, 3):
        with redirect_stdout(StringIO()):
            assert main(["train", "toy", "--steps", str(steps), "--out", str(folder / f"{steps}")]) == 0
    return [TrainedModel(folder / f"{n}" / f"checkpoints/step-0000000{n}") for n in (2, 3)]


@pytest.fixture
def memory() -> Iterator[Any]:
    fs = fsspec.filesystem("memory")
    yield fs
    fs.rm("/", recursive=True)


def catalog(**entries: dict[str, Any]) -> DataCatalog:
    credentials = {"cloud": {"password": SECRET}}
    return DataCatalog.from_config(entries, credentials, save_version="now")


def checkpoints(filepath: Path | str, **more: Any) -> dict[str, Any]:
    kind = "zoo.integrations.kedro.datasets.CheckpointDataset"
    return {"type": kind, "filepath": str(filepath), **more}


def tensors(filepath: Path | str, **more: Any) -> dict[str, Any]:
    kind = "zoo.integrations.kedro.datasets.SafetensorsDataset"
    return {"type": kind, "filepath": str(filepath), **more}


def test_a_checkpoint_loads_to_a_model_ready_to_use(models: list[TrainedModel], tmp_path: Path) -> None:
    data = catalog(net=checkpoints(tmp_path / "net", versioned=True))
    data.save("net", models[0])
    folder = tmp_path / "net/now/net"
    model = data.load("net")
    x = torch.tensor([[2.0], [-1.0]])
    weights = load_file(folder / "weights/net.safetensors")
    assert torch.equal(model(x), x[:, 0] * weights["line.weight"].item() + weights["line.bias"].item())
    assert not model.module.training
    assert (model.name, model.config.steps, model.description["kind"]) == ("toy", 2, "line")
    assert torch.equal(zoo.load(folder)(x), model(x))
    ours, theirs = (
        {path.relative_to(root): path.read_bytes() for path in root.rglob("*") if path.is_file()}
        for root in (folder, models[0].folder)
    )
    assert ours == theirs  # whole: it can be trained on, too


def test_versions_load_by_name_and_the_last_one_otherwise(models: list[TrainedModel], tmp_path: Path) -> None:
    for model, version in zip(models, ("2026-01-01", "2026-01-02"), strict=True):
        CheckpointDataset(filepath=str(tmp_path / "net"), version=Version(None, version)).save(model)
    steps = {
        load: CheckpointDataset(filepath=str(tmp_path / "net"), version=Version(load, None))
        .load()
        .config.steps
        for load in ("2026-01-01", "2026-01-02", None)
    }
    assert steps == {"2026-01-01": 2, "2026-01-02": 3, None: 3}
    (tmp_path / "net/2026-01-02/net/manifest.json").unlink()  # as if its copying had been cut short
    last = CheckpointDataset(filepath=str(tmp_path / "net"), version=Version(None, "2026-01-03"))
    assert last.exists()
    assert last.load().config.steps == 2


def test_the_manifest_is_copied_last(
    models: list[TrainedModel], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = CheckpointDataset(filepath=str(tmp_path / "net"))
    copied = []

    def put_file(source: str, target: str) -> None:
        copied.append(Path(target).name)
        shutil.copy(source, target)

    monkeypatch.setattr(dataset._fs, "put_file", put_file)
    dataset.save(models[0])
    assert len(copied) >= 2
    assert copied[-1] == "manifest.json"


def test_another_file_system_holds_a_checkpoint(models: list[TrainedModel], memory: Any) -> None:
    data = catalog(net=checkpoints("memory:///bucket/net", versioned=True, credentials="cloud"))
    data.save("net", models[1])
    assert memory.exists("/bucket/net/now/net/manifest.json")
    model = data.load("net")
    folder = model.folder
    assert torch.equal(model(torch.ones(1, 1)), models[1](torch.ones(1, 1)))
    del model
    assert not folder.exists()  # the copy goes with the model


def test_credentials_are_in_no_text(
    models: list[TrainedModel], memory: Any, caplog: pytest.LogCaptureFixture
) -> None:
    data = catalog(
        net=checkpoints("memory:///bucket/net", credentials="cloud"),
        raw=tensors("memory:///bucket/raw.safetensors", credentials="cloud"),
    )
    said = []
    with caplog.at_level(logging.DEBUG):
        data.save("net", models[0])
        data.load("net")
        for name in ("net", "raw"):
            assert data[name]._fs.storage_options == {"password": SECRET}  # it gets there
            said += [str(data[name]), repr(data[name]), str(data[name]._describe())]
            for wrong in (data[name].load, lambda name=name: data[name].save(3)):
                memory.rm("/bucket", recursive=True) if memory.exists("/bucket") else None
                with pytest.raises(DatasetError) as caught:
                    wrong()
                said += [str(caught.value), str(caught.value.__cause__)]
    assert "bucket" in "".join(said)
    assert SECRET not in "".join([*said, *caplog.messages, repr(data)])


def test_an_unversioned_checkpoint_is_replaced_and_nothing_else_is(
    models: list[TrainedModel], tmp_path: Path
) -> None:
    dataset = CheckpointDataset(filepath=str(tmp_path / "net"))
    for model in models:
        dataset.save(model)
        assert dataset.load().config.steps == model.config.steps
    with pytest.raises(DatasetError, match="lies there already"):
        dataset.save(dataset.load())
    assert dataset.load().config.steps == 3
    (tmp_path / "papers").mkdir()
    (tmp_path / "papers/thesis.txt").write_text("my life's work")
    with pytest.raises(DatasetError, match="is not empty and no complete checkpoint"):
        CheckpointDataset(filepath=str(tmp_path / "papers")).save(models[0])
    assert (tmp_path / "papers/thesis.txt").read_text() == "my life's work"


def test_a_version_is_never_written_over(models: list[TrainedModel], tmp_path: Path) -> None:
    dataset = CheckpointDataset(filepath=str(tmp_path / "net"), version=Version(None, "one"))
    dataset.save(models[0])
    with pytest.raises(DatasetError, match="must not exist"):
        CheckpointDataset(filepath=str(tmp_path / "net"), version=Version(None, "one")).save(models[1])


def test_what_is_no_model_or_no_checkpoint_is_refused(tmp_path: Path) -> None:
    dataset = CheckpointDataset(filepath=str(tmp_path / "net"))
    assert not dataset.exists()
    with pytest.raises(DatasetError, match="takes what the zoo's train nodes give, not dict"):
        dataset.save({"a": 1})  # type: ignore[arg-type]
    with pytest.raises(DatasetError, match="no such run"):
        dataset.load()


@pytest.mark.parametrize("versioned", [True, False])
@pytest.mark.parametrize("root", ["{folder}", "memory:///bucket"])
def test_a_damaged_checkpoint_is_named_where_it_lies_and_says_what_to_do(
    root: str, versioned: bool, models: list[TrainedModel], memory: Any, tmp_path: Path
) -> None:
    path = f"{root.format(folder=tmp_path)}/net"
    data = catalog(net=checkpoints(path, versioned=versioned))
    data.save("net", models[0])
    fs, _ = fsspec.url_to_fs(path)
    (weights,) = fs.glob(f"{path}/**/net.safetensors")
    fs.pipe_file(weights, fs.cat_file(weights)[:-1])
    with pytest.raises(DatasetError) as caught:
        data.load("net")
    what = (
        r" bytes, and \d+ were written; train again"
        + r", or load another version with --load-versions" * versioned
    )
    assert re.search(rf"{weights}: \d+{what}$", str(caught.value))


def test_a_model_goes_to_another_process_as_a_path(models: list[TrainedModel]) -> None:
    assert models[0].module is not None
    content = pickle.dumps(models[0])
    assert len(content) < 1000
    assert pickle.loads(content) == models[0]


def test_tensors_come_back_as_they_were(tmp_path: Path) -> None:
    data = catalog(raw=tensors(tmp_path / "raw.safetensors", versioned=True))
    half = torch.randn(3, 2, generator=torch.Generator().manual_seed(0)).bfloat16()
    kept = {
        "half": half.T,
        "count": torch.tensor(3),
        "array": np.arange(4.0),
        "view": half[1:].requires_grad_(),
    }
    data.save("raw", kept)
    for found in (data.load("raw"), load_file(tmp_path / "raw.safetensors/now/raw.safetensors")):
        assert found.keys() == kept.keys()
        for name, value in kept.items():
            assert torch.equal(found[name], torch.as_tensor(value))
            assert found[name].dtype == torch.as_tensor(value).dtype


def test_what_is_no_tensor_or_no_file_of_tensors_is_named(tmp_path: Path) -> None:
    dataset = SafetensorsDataset(filepath=str(tmp_path / "raw.safetensors"))
    with pytest.raises(DatasetError, match="takes tensors by name, not list"):
        dataset.save([torch.ones(2)])  # type: ignore[arg-type]
    with pytest.raises(DatasetError, match="'words' is no tensor"):
        dataset.save({"words": "hello"})
    assert not dataset.exists()
    (tmp_path / "raw.safetensors").write_bytes(b"no tensors here")
    with pytest.raises(DatasetError, match=r"raw\.safetensors: no safetensors file, or damaged"):
        dataset.load()
