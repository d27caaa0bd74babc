"""Models come from the zoo, from installed packages and by hand; listing them costs nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import zoo
from zoo import registry
from zoo.config import TrainConfig
from zoo.registry import ModelEntry
from zoo_datasets.errors import InputError

TOY_PACKAGE = Path(__file__).parents[1] / "toy_package"


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> ModelEntry:
    """The entry of an installed package that brings a model."""
    monkeypatch.syspath_prepend(str(TOY_PACKAGE))
    return registry.get("toy")


@pytest.fixture
def by_hand() -> Iterator[ModelEntry]:
    entry = registry.register(
        ModelEntry("by-hand", "made here", model=lambda: None, config=TrainConfig, trainer="nowhere:Trainer")  # type: ignore[arg-type]
    )
    yield entry
    del registry._registered["by-hand"]


def test_an_installed_package_adds_its_models(toy: ModelEntry) -> None:
    assert toy.name == "toy"
    assert {"devnet", "toy"} <= set(zoo.list_models())
    assert zoo.list_models() == sorted(zoo.list_models())


def test_without_it_they_are_unknown() -> None:
    with pytest.raises(InputError, match=r"^unknown model 'toy'; there are: .*devnet"):
        registry.get("toy")


def test_an_unknown_model_comes_with_the_nearest() -> None:
    with pytest.raises(InputError, match=r"^unknown model 'devnt'; did you mean devnet\?$"):
        zoo.create_model("devnt")


def test_a_model_is_made_from_its_own_arguments(toy: ModelEntry) -> None:
    net = zoo.create_model("toy", slopes=3, bias=False)
    assert {name: tuple(tensor.shape) for name, tensor in net.state_dict().items()} == {"line.weight": (1, 3)}
    with pytest.raises(InputError, match=r"^model toy: unknown option 'slope'; did you mean slopes\?$"):
        zoo.create_model("toy", slope=3)
    with pytest.raises(InputError, match=r"^model toy: option slopes is missing$"):
        zoo.create_model("toy")


def test_a_model_registered_by_hand(by_hand: ModelEntry) -> None:
    assert registry.get("by-hand") is by_hand
    assert "by-hand" in zoo.list_models()
    assert zoo.create_model("by-hand") is None


@pytest.mark.parametrize("name", ["devnet", "by-hand"])
def test_a_name_is_given_once(by_hand: ModelEntry, name: str) -> None:
    with pytest.raises(ValueError, match=f"there is a model '{name}' already"):
        registry.register(replace(by_hand, name=name))


@pytest.mark.parametrize(
    ("points_at", "what"), [("toy_config:ToyConfig", "no entry"), ("toy_config:MODEL", "another name")]
)
def test_an_entry_point_that_is_no_entry_names_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, points_at: str, what: str
) -> None:
    info = tmp_path / "other-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[parallel_zoo.models]\nother = {points_at}\n")
    monkeypatch.syspath_prepend(str(TOY_PACKAGE))
    monkeypatch.syspath_prepend(str(tmp_path))
    assert "other" in zoo.list_models()
    with pytest.raises(InputError, match=f"^model other: {points_at} is not a zoo.registry.ModelEntry"):
        registry.get("other")


def test_each_model_of_the_zoo_has_what_its_entry_names() -> None:
    for name in zoo.list_models():
        entry = registry.get(name)
        assert issubclass(entry.load("config"), TrainConfig)
        assert callable(entry.load("model"))
        assert callable(entry.load("trainer"))
        assert "\n" not in entry.summary
        if entry.convert is not None:
            assert callable(entry.load("convert"))
