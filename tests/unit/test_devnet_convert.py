"""Checkpoints of the published port."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest
import torch

from zoo.models.devnet.convert import convert, load_published, published_network
from zoo.models.devnet.model import DevNet
from zoo_datasets import InputError


def checkpoint(columns: int = 21) -> dict[str, object]:
    generator = torch.Generator().manual_seed(0)
    shapes = {"fc.weight": (20, columns), "fc.bias": (20,), "output.weight": (1, 20), "output.bias": (1,)}
    state = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    return {"model": state, "n_input": columns}


def test_published_example_scores_as_the_port_does(reference: Path):
    path = reference / "devnet" / "published_port_example.pth"
    state = torch.load(path, weights_only=True)["model"]
    x = torch.rand(50, 21, generator=torch.Generator().manual_seed(0))
    hidden = (x @ state["fc.weight"].T + state["fc.bias"]).clamp_min(0)
    want = hidden @ state["output.weight"][0] + state["output.bias"]
    torch.testing.assert_close(load_published(path)(x), want)


def test_convert_gives_what_makes_the_network(tmp_path):
    path = tmp_path / "port.pth"
    torch.save(checkpoint(), path)
    config, description, models = convert(path)
    weights = models["net"].state_dict()
    assert config.network_depth == 2
    DevNet(**description["model"]).load_state_dict(weights)
    assert torch.equal(weights["score.bias"], checkpoint()["model"]["output.bias"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda given: given.pop("model"), 'no weights under "model"'),
        (lambda given: given["model"].pop("fc.weight"), "no matrix fc.weight"),
        (lambda given: given["model"].pop("output.bias"), "output.bias is missing, where .* has "),
        (lambda given: given["model"].update(extra=torch.zeros(2)), r"extra is \(2,\), where .* has nothing"),
        (lambda given: given["model"].update({"fc.weight": torch.zeros(10, 21)}), r"fc.weight is \(10, 21\)"),
        (lambda given: given["model"].update({"fc.weight": "text"}), 'no weights under "model"'),
    ],
)
def test_other_checkpoints_are_refused(change, message):
    given = checkpoint()
    change(given)
    with pytest.raises(InputError, match=f"^port.pth: .*{message}") as error:
        published_network(given, "port.pth")
    assert "\n" not in str(error.value)


class Command:
    """Unpickling it makes a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("save", [torch.save, lambda value, path: path.write_bytes(pickle.dumps(value))])
def test_nothing_in_a_file_is_run(tmp_path, save):
    path, made = tmp_path / "port.pth", tmp_path / "made"
    save({"model": Command(made)}, path)
    with pytest.raises(InputError, match="not a torch checkpoint of tensors alone"):
        load_published(path)
    assert not made.exists()


@pytest.mark.parametrize("content", [b"", b"text, no checkpoint"])
def test_other_files_are_refused(tmp_path, content):
    path = tmp_path / "port.pth"
    path.write_bytes(content)
    with pytest.raises(InputError, match="not a torch checkpoint"):
        load_published(path)
    with pytest.raises(InputError, match=r"none.pth: cannot be read \(No such file or directory\)"):
        load_published(tmp_path / "none.pth")
