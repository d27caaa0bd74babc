"""--engine-config: read, checked against what the contract settles, handed on; no engine is needed for that."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallel import launch, launch_each, registry
from parallel.adapters.config import EngineConfig, Settled, engines_own, read
from parallel.errors import ParallelError
from zoo.commands import main

SETTLED = (
    Settled("gradient_clipping", "p.optimizer's clip_norm", allowed=(0, None)),
    Settled("fp16.enabled", "--precision", allowed=(False,)),
    Settled("optimizer", "p.optimizer"),
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "engine.conf"


@pytest.mark.parametrize(
    ("text", "form", "said"),
    [
        ("{", "json", ", line 1: not JSON: Expecting property name enclosed in double quotes"),
        ('{"a": 1,\n "b": }', "json", ", line 2: not JSON: Expecting value"),
        ('{"a": 1, "a": 2}', "json", ": a is given twice: keep one"),
        ("[1]", "json", ": must hold settings by name, as the engine's documentation shows"),
        ("a: [1", "yaml", ", line 1: not YAML: expected ',' or ']', but got '<stream end>'"),
        ("1: 2", "yaml", ": must hold settings by name, as the engine's documentation shows"),
        (
            "!!python/object/apply:os.system ['true']",
            "yaml",
            ", line 1: not YAML: could not determine a constructor",
        ),
    ],
)
def test_a_file_that_is_none(text: str, form: str, said: str, file: Path) -> None:
    file.write_text(text)
    with pytest.raises(ParallelError) as caught:
        read(file, form)
    assert str(caught.value).startswith(f"--engine-config {file}{said}")
    assert "\n" not in str(caught.value)


def test_no_file(file: Path) -> None:
    with pytest.raises(ParallelError, match=r"engine\.conf: cannot be read: No such file or directory"):
        read(file, "yaml")


def test_an_empty_file_says_nothing(file: Path) -> None:
    file.write_text("")
    assert engines_own(read(file, "yaml"), SETTLED) == engines_own(None, SETTLED) == {}


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"gradient_clipping": 1.0},
            "gradient_clipping is 1.0, which p.optimizer's clip_norm settles: leave it out",
        ),
        ({"fp16": {"enabled": True}}, "fp16.enabled is true, which --precision settles: leave it out"),
        ({"fp16": {"enabled": 0}}, "fp16.enabled is 0, which --precision settles: leave it out"),
        (
            {"optimizer": {"type": "Adam"}},
            'optimizer is {"type": "Adam"}, which p.optimizer settles: leave it out',
        ),
    ],
)
def test_what_contradicts_the_contract_is_named(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ParallelError) as caught:
        engines_own(EngineConfig("mine.json", settings), SETTLED)
    assert str(caught.value) == f"--engine-config mine.json: {said}"


def test_what_says_the_same_is_dropped_and_the_rest_is_kept() -> None:
    settings = {
        "gradient_clipping": "auto",
        "fp16": {"enabled": False, "initial_scale_power": 8},
        "zero": {"a": 1},
    }
    config = EngineConfig("mine.json", settings)
    assert engines_own(config, SETTLED) == {"fp16": {"initial_scale_power": 8}, "zero": {"a": 1}}
    assert config.settings["fp16"]["enabled"] is False


NESTS = st.dictionaries(
    st.sampled_from(["fp16", "optimizer", "enabled", "x"]),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=3),
        lambda inner: (
            st.dictionaries(st.sampled_from(["enabled", "y"]), inner, max_size=2)
            | st.lists(inner, max_size=2)
        ),
        max_leaves=4,
    ),
    max_size=4,
)


@given(NESTS)
def test_any_mapping_is_taken_or_named(settings: dict[str, Any]) -> None:
    """Nothing but an error of ours, and no settled key is ever handed on."""
    try:
        own = engines_own(EngineConfig("mine.json", settings), SETTLED)
    except ParallelError as error:
        assert any(f": {setting.key} is " in str(error) for setting in SETTLED)
        return
    assert "optimizer" not in own
    assert not isinstance(own.get("fp16"), dict) or "enabled" not in own["fp16"]


@pytest.mark.parametrize("spec", ["single", "ddp", "fsdp+tp", "fabric-ddp"])
def test_a_strategy_without_a_configuration_refuses_one(
    spec: str, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "find_spec", lambda module: module)
    file.write_text("{}")
    said = (
        f"--engine-config {file} with strategy {spec!r}, which has no configuration of its own: leave it out"
    )
    for start in (launch, lambda main, spec, **options: launch_each(main, [spec], **options)):
        with pytest.raises(ParallelError) as caught:
            start(print, spec, engine_config=file)
        assert str(caught.value) == said


def test_the_command_takes_a_file_and_says_what_is_wrong_with_it(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "find_spec", lambda module: module)
    file.write_text("{")
    run = tmp_path / "run"
    for spec, said in (
        ("ddp", "with strategy 'ddp', which has no configuration of its own: leave it out"),
        ("deepspeed-zero1", ", line 1: not JSON: Expecting property name enclosed in double quotes"),
    ):
        line = ["train", "devnet", "--parallel", spec, "--engine-config", str(file), "--out", str(run)]
        assert main(line) == 2
        shown = capsys.readouterr()
        assert shown.out == "" and len(shown.err.splitlines()) == 1
        assert said in shown.err and str(file) in shown.err
    assert not run.exists()
