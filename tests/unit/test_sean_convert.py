"""Official SEAN checkpoints, in and out."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from zoo.models.sean.config import SeanConfig
from zoo.models.sean.convert import convert, from_official, load_official, official_config, to_official
from zoo.models.sean.discriminator import Discriminator
from zoo.models.sean.generator import Generator
from zoo_datasets.errors import InputError

SMALL = SeanConfig(filters=4, style_length=16, discriminator_filters=4)
State = dict[str, Tensor]


@pytest.fixture(scope="module")
def official(reference: Path) -> dict[str, State]:
    golden = load_file(reference / "sean" / "sean_golden_small.safetensors")
    return {
        network: {n.removeprefix(f"{network}."): t for n, t in golden.items() if n.startswith(f"{network}.")}
        for network in ("generator", "discriminator")
    }


def test_there_and_back_changes_nothing(official: dict[str, State], tmp_path: Path) -> None:
    models = {"generator": Generator(SMALL), "discriminator": Discriminator(SMALL)}
    for network, model in models.items():
        load_official(model, official[network])
        save_file(to_official(model.state_dict()), tmp_path / "back.safetensors")
        back = load_file(tmp_path / "back.safetensors")
        assert back.keys() == official[network].keys()
        assert all(torch.equal(back[name], tensor) for name, tensor in official[network].items())


def test_each_label_keeps_its_mapping(official: dict[str, State]) -> None:
    ours = from_official(official["generator"])
    weight = ours["up_1.ace_s.fc_mu.weight"]
    assert weight.shape == (19, 16, 16)
    assert torch.equal(weight[12], official["generator"]["up_1.ace_s.fc_mu12.weight"])


def test_sizes_are_read_from_the_shapes(official: dict[str, State]) -> None:
    assert official_config(official["generator"], official["discriminator"]) == SMALL
    assert official_config(official["generator"]).discriminator_filters == 64
    deep = to_official(Generator(SeanConfig(labels=3, filters=2, style_length=5, upsampling=7)).state_dict())
    assert official_config(deep) == SeanConfig(labels=3, filters=2, style_length=5, upsampling=7)


def test_a_checkpoint_that_does_not_fit_is_one_line(official: dict[str, State]) -> None:
    state, generator = official["generator"], Generator(SMALL)

    def refused(changed: State, message: str) -> None:
        with pytest.raises(InputError, match=message) as caught:
            load_official(generator, changed)
        assert "\n" not in str(caught.value)

    refused(
        {n: t for n, t in state.items() if n != "up_0.ace_1.fc_mu4.bias"}, r"no up_0\.ace_1\.fc_mu4\.bias"
    )
    refused({n: t for n, t in state.items() if n != "fc.bias"}, r"no fc\.bias, which a Generator has")
    refused({**state, "up_0.ace_1.fc_mu4.bias": torch.zeros(3)}, r"fc_mu4\.bias has shape \(3,\), unlike")
    refused({**state, "extra": torch.zeros(1)}, "extra is no tensor of a Generator")
    refused({**state, "fc.bias": torch.zeros(7)}, r"fc\.bias has shape \(7,\), not \(64,\)")
    with pytest.raises(InputError, match=r"no fc\.weight of four axes"):
        official_config(official["discriminator"])


def test_a_file_that_is_none_is_named(
    official: dict[str, State], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    generator, discriminator = tmp_path / "latest_net_G.pth", tmp_path / "latest_net_D.pth"

    def refused(file: Path, message: str) -> None:
        with pytest.raises(InputError, match=f"^{file}: {message}"):
            convert(generator if file == discriminator and generator.exists() else file)

    torch.save(official["discriminator"], discriminator)
    refused(discriminator, r"no fc\.weight of four axes: is this the right network's file\?")
    assert not caplog.messages
    for state, message in (
        (
            {**official["generator"], "extra": torch.zeros(1)},
            "extra is no tensor of a Generator; give the official",
        ),
        ({**official["generator"], "fc.bias": torch.zeros(7)}, r"fc\.bias has shape \(7,\), not \(64,\) as"),
        ({**official["generator"], "fc.weight": torch.zeros(3, 19, 3, 3)}, "sean: filters is 0"),
        ({3: torch.zeros(1)}, "holds no weights by name"),
    ):
        torch.save(state, generator)
        refused(generator, message)
    torch.save(official["generator"], generator)
    torch.save({}, discriminator)
    refused(discriminator, r"no discriminator_0\.model0\.0\.weight of four axes")
    discriminator.unlink()
    convert(generator)
    assert "the image size is not in the file; 256 is taken" in caplog.messages[-1]
