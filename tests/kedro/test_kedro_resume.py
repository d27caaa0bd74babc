"""``resume`` as an option of a node: as on the command line, from a run or from what the catalog keeps."""

from __future__ import annotations

import json
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("kedro.framework", reason="pip install 'parallel-zoo[kedro]'")

from zoo import registry
from zoo.commands import main
from zoo.fill import from_dict, to_yaml
from zoo.integrations.kedro import functions
from zoo.integrations.kedro.datasets import CheckpointDataset
from zoo.integrations.kedro.options import train_config
from zoo_datasets.errors import InputError

TOY_PACKAGE = Path(__file__).resolve().parents[1] / "toy_package"
OPTIONS = {"steps": 7, "batch_size": 3, "kind": "flat", "precision": "fp64"}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(TOY_PACKAGE))


def by_zoo(out: str, **options: Any) -> None:
    flags = [f"--{key.replace('_', '-')}={value}" for key, value in options.items()]
    with redirect_stdout(StringIO()):
        assert main(["train", "toy", "--out", out, *flags]) == 0


def written(out: str, model: str = "toy", **options: Any) -> None:
    """A run directory as far as its options."""
    Path(out).mkdir()
    made = from_dict(registry.get(model).load("config"), OPTIONS | options if model == "toy" else options)
    (Path(out) / "config.yaml").write_text(to_yaml(made, model))


def config(has_data: bool = False, zoo: Any = None, **parameters: Any) -> Any:
    return train_config(registry.get("toy"), zoo or {}, {}, parameters, "params:training", has_data)


def lines(run: Path | str) -> list[Any]:
    return [json.loads(line) for line in (Path(run) / "metrics.jsonl").read_text().splitlines()]


def weights(run: Path | str) -> bytes:
    return (Path(run) / "checkpoints/step-00000007/weights/net.safetensors").read_bytes()


def test_a_node_goes_on_as_if_it_had_not_stopped() -> None:
    by_zoo("unbroken", **OPTIONS)
    by_zoo("run", **OPTIONS | {"steps": 4})
    CheckpointDataset(filepath="kept").save(functions.TrainedModel(Path("run/checkpoints/step-00000004")))
    model = functions.train(None, None, {"resume": "kept", "steps": 7, "out": "other"}, model="toy")
    assert model.folder == Path("other/checkpoints/step-00000007").absolute()
    assert weights("other") == weights("unbroken")
    assert lines("other") == lines("unbroken")[4:]


def test_the_runs_options_count_where_others_are_not_given() -> None:
    written("run", parallel="ddp", nproc=3, max_restarts=2)
    found = config(resume="run", lr=0.5)
    assert (found.kind, found.batch_size, found.precision, found.lr) == ("flat", 3, "fp64", 0.5)
    assert (found.steps, found.epochs, found.parallel, found.nproc) == (7, None, "ddp", 3)
    assert (found.out, found.max_restarts) == (Path("run"), 0)
    assert (config(resume="run", epochs=2).epochs, config(resume="run", epochs=2).steps) == (2, None)
    elsewhere = config(resume="run", zoo={"parallel": "fsdp"})
    assert (elsewhere.parallel, elsewhere.nproc) == ("fsdp", None)
    assert config(resume="", out="run").kind == "flat"
    assert config(resume="", out="new").kind == "line"  # there is nothing to go on with


def test_rows_of_the_catalog_take_the_place_of_the_runs() -> None:
    written("run", data="mine")
    assert config(resume="run").data == "mine"
    assert config(has_data=True, resume="run").data is None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("nowhere", "nowhere: no run, nor a checkpoint of one"),
        ("", "goes on with the run in --out DIR"),
        ("theirs", "theirs: is a run of another model than toy"),
        ("run/checkpoints/step-00000005", "run/checkpoints/step-00000005: run has later checkpoints"),
        (3.5, "must be text, not '3.5'"),
    ],
)
def test_what_cannot_be_gone_on_with_is_named_by_its_key(given: Any, message: str) -> None:
    written("run")
    written("theirs", "devnet")
    for step in (5, 7):
        (Path("run/checkpoints") / f"step-0000000{step}").mkdir(parents=True)
        (Path("run/checkpoints") / f"step-0000000{step}" / "manifest.json").touch()
    with pytest.raises(InputError) as caught:
        config(resume=given)
    assert str(caught.value).startswith(f"params:training, key resume: {message}")
