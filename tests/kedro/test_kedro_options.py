"""A node's options: parameters over keywords over the project's defaults, and what is wrong with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("kedro.framework", reason="pip install 'parallel-zoo[kedro]'")


from parallel.errors import ParallelError
from zoo import registry
from zoo.config import LaunchConfig
from zoo.integrations.kedro import functions, options
from zoo.integrations.kedro.handover import handing_over
from zoo_datasets.errors import InputError

DEVNET = registry.get("devnet")


def train_config(defaults: Any = (), keywords: Any = (), parameters: Any = (), has_data: bool = True) -> Any:
    layers = map(dict, (defaults, keywords, parameters))
    return options.train_config(DEVNET, *layers, "params:training", has_data)


def test_parameters_overrule_keywords_and_these_the_projects_defaults() -> None:
    defaults = {"parallel": "ddp", "nproc": 2, "precision": "fp64"}
    config = train_config(defaults, {"nproc": 3, "epochs": 7}, {"nproc": 4, "batch-size": 16})
    assert (config.parallel, config.nproc, config.precision) == ("ddp", 4, "fp64")
    assert (config.epochs, config.batch_size) == (7, 16)
    assert train_config({}, {"epochs": 7}, {"steps": 5}).epochs is None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"parameters": {"batch_sise": 4}},
            "params:training: unknown key 'batch_sise'; did you mean batch_size?",
        ),
        (
            {"parameters": {"batch_size": "many"}},
            "params:training, key batch_size: must be a whole number, not 'many'",
        ),
        ({"parameters": {"seed": -1}}, "params:training, key seed: must be from 0 to 2**63 - 1, not -1"),
        (
            {"parameters": {"data": "x.csv"}},
            "params:training, key data: leave it out: an input of the node gives it",
        ),
        ({"parameters": [1]}, "params:training: must hold options by name, not '[1]'"),
        ({"keywords": {"nproc": 0}}, "the node's keywords, key nproc: must be at least 1, not 0"),
        ({"defaults": {"nproc": 0}}, "zoo.yml or params:zoo, key nproc: must be at least 1, not 0"),
        (
            {"defaults": {"seed": 0}},
            "zoo.yml or params:zoo: unknown key 'seed'; there are: parallel, nproc, tp",
        ),
        (
            {"defaults": {"parallel": "dddp"}},
            "zoo.yml or params:zoo, key parallel: unknown strategy 'dddp'; did you mean",
        ),
        (
            {"defaults": {"parallel": "dddp"}, "parameters": {"parallel": "ddp+fsdp"}},
            "params:training, key parallel: strategy 'ddp+fsdp': a combination",
        ),
        ({"parameters": {"max_restarts": 1}}, "params:training, key max_restarts: leave it out"),
    ],
)
def test_a_wrong_option_is_named_where_it_was_given(given: dict[str, Any], message: str) -> None:
    everything = {"defaults": {}, "keywords": {}, "parameters": {}} | given
    with pytest.raises(InputError) as caught:
        options.train_config(DEVNET, *everything.values(), source="params:training", has_data=True)
    assert str(caught.value).startswith(message)


def test_an_evaluation_takes_of_the_defaults_what_concerns_it() -> None:
    config = options.launch_config(
        {"parallel": "ddp", "nproc": 2, "precision": "fp64"}, {}, {"nproc": 3}, "p"
    )
    assert (config.parallel, config.nproc) == ("ddp", 3)
    with pytest.raises(InputError, match="p: unknown key 'epochs'"):
        options.launch_config({}, {}, {"epochs": 3}, "p")


def test_samples_take_the_options_of_the_command(tmp_path: Path) -> None:
    entry = registry.get("ddpm")
    config = options.sample_config(
        entry, {"nproc": 2, "precision": "fp64"}, {"n": 3}, {"seed": 4}, "p", tmp_path
    )
    assert (config.run, config.nproc, config.n, config.seed) == (tmp_path, 2, 3, 4)
    with pytest.raises(InputError, match="p, key output: leave it out"):
        options.sample_config(entry, {}, {}, {"output": "x.csv"}, "p", tmp_path)
    with pytest.raises(InputError, match="devnet draws no samples"):
        options.sample_config(DEVNET, {}, {}, {}, "p", tmp_path)


@pytest.mark.parametrize("kind", [InputError, ParallelError])
def test_messages_speak_of_keys_where_the_command_speaks_of_flags(kind: type[Exception]) -> None:
    said = "--nproc 2 with --batch-size 3: name the label with --label, not --labels or --help (a--label)"
    with pytest.raises(kind) as caught, handing_over({}, train_config()) as handover:
        raise kind(said)
    expected = (
        "key nproc 2 with key batch_size 3: name the label with key label, not --labels or --help (a--label)"
    )
    assert str(caught.value) == handover.reworded(said) == expected


def test_the_training_of_a_nodes_model_has_keys_too() -> None:
    said = "cat.png: broken; remove it, or train with --batch-size 3 and other --data on --nproc 2"
    with handing_over({"data": "cats"}, LaunchConfig(), train_config()) as handover:
        expected = (
            "cat.png: broken; remove it, or train with key batch_size 3 and other input cats on key nproc 2"
        )
        assert handover.reworded(said) == expected


def test_every_way_of_running_checks_the_strategy(tmp_path: Path) -> None:
    wrong = {"parallel": "dddp"}
    with pytest.raises(InputError, match=r"^p, key parallel: unknown strategy 'dddp'"):
        options.launch_config({"parallel": "ddp"}, {}, wrong, "p")
    with pytest.raises(InputError, match=r"^the node's keywords, key parallel: unknown strategy 'dddp'"):
        options.sample_config(registry.get("ddpm"), {}, wrong, {}, "p", tmp_path)


def test_a_refusal_of_the_launcher_names_the_key() -> None:
    with pytest.raises(ParallelError, match="key nproc 2 with strategy 'single'"):
        functions.train(None, None, {"nproc": 2, "parallel": "single"}, model="ddpm")
