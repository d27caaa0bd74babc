"""One path fills a config: flags, YAML and dicts, each error one line that names its place."""

from __future__ import annotations

import json
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zoo.config import OptionError, RunConfig, SampleConfig, TrainConfig, require
from zoo.fill import from_dict, from_yaml, to_dict, to_yaml
from zoo.flags import from_flags
from zoo_datasets.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Config(TrainConfig):
    """Every kind of option that a model may have."""

    width: int = 64
    """units of the hidden layer"""
    rate: float = 1e-3
    """100 % of it"""
    share: float | None = None
    """nothing to say"""
    norm: Literal["batch", "layer"] = "batch"
    """how the hidden layer is normalised"""
    depth: Literal[1, 2, 4] = 2
    """layers"""
    flip: bool = True
    """turn images round"""
    label: str | None = None
    """a column"""
    sizes: tuple[int, ...] = ()
    """several"""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.width >= 1, "width", f"must be at least 1, not {self.width}")


def flags(*argv: str, cls: type = Config, **options: Any) -> Any:
    return from_flags(cls, argv, prog="zoo train mine", config_file=True, **options)


def message(error: pytest.ExceptionInfo[InputError]) -> str:
    text = str(error.value)
    assert "\n" not in text
    return text


def test_flags_and_keys_and_yaml_give_the_same(tmp_path: Path) -> None:
    by_hand = Config(
        width=3, rate=1e-4, norm="layer", depth=4, flip=False, label="x", sizes=(1, 2), batch_size=8
    )
    by_flags = flags(
        *[
            "--width",
            "3",
            "--rate",
            "1e-4",
            "--norm",
            "layer",
            "--depth",
            "4",
            "--no-flip",
            "--label",
            "x",
            "--sizes",
            "1",
            "2",
            "--batch-size=8",
        ]
    )
    values = {
        "width": 3,
        "rate": 1e-4,
        "norm": "layer",
        "depth": 4,
        "flip": False,
        "label": "x",
        "sizes": [1, 2],
    }
    by_dict = from_dict(Config, values | {"batch-size": 8})
    file = tmp_path / "mine.yaml"
    file.write_text(
        "{width: 3, rate: 1e-4, norm: layer, depth: 4, flip: no, label: x, sizes: [1, 2], batch_size: 8}"
    )
    assert by_flags == by_dict == from_yaml(Config, file) == flags("--config", str(file)) == by_hand


def test_flags_overrule_the_file_and_the_file_the_defaults(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("width: 3\nseed: 5\n")
    config = flags("--seed", "6", "--config", str(file))
    assert (config.width, config.seed, config.depth) == (3, 6, 2)


@pytest.mark.parametrize(
    ("lower", "upper", "epochs", "steps"),
    [
        ("epochs: 4", "--steps", None, 9),
        ("steps: 4", "--epochs", 9, None),
        ("epochs: 4", "--epochs", 9, None),
    ],
)
def test_a_length_given_later_takes_the_place_of_the_other(
    tmp_path: Path, lower: str, upper: str, epochs: int | None, steps: int | None
) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(lower)
    config = flags("--config", str(file), upper, "9")
    assert (config.epochs, config.steps) == (epochs, steps)


def test_epochs_and_steps_mean_global_batches() -> None:
    assert Config().total_steps(7) == 10 * 7
    assert Config(epochs=3).total_steps(7) == 21
    assert Config(steps=3).total_steps(7) == 3
    with pytest.raises(InputError) as error:
        flags("--steps", "3", "--epochs", "10")
    assert message(error) == "--steps excludes epochs: give one of the two"


@pytest.mark.parametrize(
    ("option", "value", "wording"),
    [
        ("width", "x", "must be a whole number, not 'x'"),
        ("width", "3.5", "must be a whole number, not '3.5'"),
        ("rate", "fast", "must be a number, not 'fast'"),
        ("share", "half", "must be a number, not 'half'"),
        ("norm", "layr", "must be one of batch, layer, not 'layr'; did you mean layer?"),
        ("depth", "3", "must be one of 1, 2, 4, not '3'"),
        ("width", "0", "must be at least 1, not 0"),
        ("nproc", "0", "must be at least 1, not 0"),
        ("tp", "0", "must be at least 1, not 0"),
        ("epochs", "0", "must be at least 1, not 0"),
        ("steps", "-1", "must be at least 1, not -1"),
        ("batch_size", "0", "must be at least 1, not 0"),
        ("accumulate", "0", "must be at least 1, not 0"),
        ("eval_every", "0", "must be at least 1, not 0"),
        ("log_every", "0", "must be at least 1, not 0"),
        ("seed", "-1", "must be from 0 to 2**63 - 1, not -1"),
        (
            "precision",
            "fp8",
            "must be one of fp64, fp32, bf16-mixed, fp16-mixed, not 'fp8'; did you mean fp64?",
        ),
        (
            "precision",
            "bf16",
            "must be one of fp64, fp32, bf16-mixed, fp16-mixed, not 'bf16'; did you mean bf16-mixed?",
        ),
    ],
)
def test_a_wrong_value_is_named_by_flag_by_key_and_by_yaml_key(
    tmp_path: Path, option: str, value: str, wording: str
) -> None:
    flag = "--" + option.replace("_", "-")
    with pytest.raises(InputError) as error:
        flags(f"{flag}={value}")
    assert message(error) == f"{flag} {wording}"
    with pytest.raises(InputError) as error:
        from_dict(Config, {option: value}, source="parameters")
    assert message(error) == f"parameters, key {option}: {wording}"
    file = tmp_path / "mine.yaml"
    file.write_text(f"{option}: '{value}'\n")
    with pytest.raises(InputError) as error:
        flags("--config", str(file), "--label", "y")
    assert message(error) == f"{file}, key {option}: {wording}"


@pytest.mark.parametrize(
    ("values", "wording"),
    [
        ({"rate": float("inf")}, "must be a number, not 'inf'"),
        ({"rate": float("nan")}, "must be a number, not 'nan'"),
        ({"width": True}, "must be a whole number, not 'True'"),
        ({"width": None}, "must be a whole number, not null"),
        ({"width": [1]}, "must be a whole number, not '[1]'"),
        ({"label": 3}, "must be text, not '3'"),
        ({"flip": "maybe"}, "must be true or false, not 'maybe'"),
        ({"sizes": ["a"]}, "must be several values, each a whole number, not \"['a']\""),
        ({"sizes": 3}, "must be several values, each a whole number, not '3'"),
    ],
)
def test_a_value_of_another_type_in_a_dict(values: dict[str, Any], wording: str) -> None:
    with pytest.raises(InputError) as error:
        from_dict(Config, values)
    assert message(error) == f"configuration, key {next(iter(values))}: {wording}"


def test_unknown_names_come_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(InputError) as error:
        flags("--batchsize", "3")
    assert message(error) == "unknown option --batchsize; did you mean --batch-size?"
    with pytest.raises(InputError) as error:
        flags("--xyzzy=3")
    assert message(error) == "unknown option --xyzzy; see zoo train mine --help"
    with pytest.raises(InputError) as error:
        flags("--batch", "3")  # no abbreviations: a later option would change what they mean
    assert message(error) == "unknown option --batch; did you mean --batch-size?"
    with pytest.raises(InputError) as error:
        from_dict(Config, {"batch_sise": 3}, source="parameters")
    assert message(error) == "parameters: unknown key 'batch_sise'; did you mean batch_size?"
    with pytest.raises(InputError) as error:
        from_dict(Config, {"batch-size": 3, "batch_size": 3})
    assert "is there twice" in message(error)


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--width"], "--width: expected one argument; see zoo train mine --help"),
        (["stray"], "unexpected argument 'stray'; see zoo train mine --help"),
    ],
)
def test_usage_errors_do_not_exit(argv: list[str], said: str) -> None:
    with pytest.raises(InputError) as error:
        flags(*argv)
    assert message(error) == said


def test_files_that_hold_no_options(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.yaml: cannot be read: No such file"):
        flags("--config", str(tmp_path / "none.yaml"))
    file = tmp_path / "mine.yaml"
    for text, said in {
        "width: 3\nrate: [1\n": "line 3: not YAML",
        "width: 3\nrate: 0.1\nwidth: 4\n": "line 3: not YAML: 'width' is there twice",
        "- width\n": "must hold options by name",
        "3: width\n": "must hold options by name",
    }.items():
        file.write_text(text)
        with pytest.raises(InputError, match=said) as error:
            flags("--config", str(file))
        assert str(file) in message(error)
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="cannot be read"):
        flags("--config", str(file))
    file.write_text("")
    assert flags("--config", str(file)) == Config()


def test_options_know_whose_they_are(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(to_yaml(Config(width=5), "mine"))
    assert file.read_text().startswith("model: mine\n")
    assert from_yaml(Config, file, model="mine").width == 5
    with pytest.raises(InputError, match=r"config\.yaml, key model: these are options of mine, not of other"):
        from_yaml(Config, file, model="other")


def test_required_options_and_positionals() -> None:
    config = from_flags(RunConfig, ["runs/a"], prog="zoo use", positionals={"run": "RUN"})
    assert config == RunConfig(run=Path("runs/a"))
    with pytest.raises(InputError, match="RUN"):
        from_flags(RunConfig, [], prog="zoo use", positionals={"run": "RUN"})
    with pytest.raises(InputError, match=r"^--run is missing$"):
        from_flags(RunConfig, [], prog="zoo use")
    with pytest.raises(InputError, match=r"^configuration, key run: is missing$"):
        from_dict(RunConfig, {})


def test_a_flag_of_several_values_given_again_adds_to_them(tmp_path: Path) -> None:
    file = tmp_path / "options.yaml"
    file.write_text("sizes: [7]")
    assert flags("--sizes", "1", "2", "--width", "3", "--sizes", "4").sizes == (1, 2, 4)
    assert flags("--config", str(file), "--sizes", "1", "--sizes", "2").sizes == (1, 2)
    assert flags("--width", "3", "--width", "4").width == 4


def test_short_flags_and_keywords_as_names() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Sample(SampleConfig):
        """Samples."""

        from_: tuple[float, ...] = ()
        """where to begin"""

    globals()["Sample"] = Sample  # where type hints are looked up
    config = from_flags(
        Sample, ["here", "-n", "3", "--from", "1", "-2.5"], prog="zoo sample", positionals={"run": "RUN"}
    )
    assert (config.n, config.from_) == (3, (1.0, -2.5))
    assert from_dict(Sample, {"run": "here", "n": 3, "from": [1, -2.5]}) == config
    with pytest.raises(InputError, match=r"^-n must be at least 1, not 0$"):
        from_flags(Sample, ["here", "-n", "0"], prog="zoo sample", positionals={"run": "RUN"})


def test_help_shows_texts_and_defaults_of_own_and_inherited_fields(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as stop:
        flags("--help")
    assert stop.value.code == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "--width N units of the hidden layer (default: 64)" in shown
    assert "--rate X 100 % of it (default: 0.001)" in shown
    assert "--norm batch|layer how the hidden layer is normalised (default: batch)" in shown
    assert "passes over the training data (default: 10)" in shown
    assert "--out PATH" in shown
    assert "--config FILE" in shown


def test_an_option_error_keeps_its_kind_and_words_from_rank_to_parent() -> None:
    error = pickle.loads(pickle.dumps(OptionError("nproc", "must be at least 1, not 0")))
    assert isinstance(error, OptionError)
    assert (error.option, str(error)) == ("nproc", "nproc must be at least 1, not 0")


TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), max_size=12)
CONFIGS = st.builds(
    Config,
    width=st.integers(1, 2**40),
    rate=st.floats(allow_nan=False, allow_infinity=False),
    share=st.none() | st.floats(-1e300, 1e300),
    norm=st.sampled_from(["batch", "layer"]),
    depth=st.sampled_from([1, 2, 4]),
    flip=st.booleans(),
    label=st.none() | TEXT,
    data=st.none() | TEXT,
    sizes=st.lists(st.integers(), max_size=3).map(tuple),
    seed=st.integers(0, 2**63 - 1),
    epochs=st.integers(1, 100),
    out=st.none() | st.sampled_from([Path("a/b"), Path("/x y/null")]),
)


@settings(max_examples=40)
@given(CONFIGS)
def test_what_is_written_reads_back_equal(config: Config) -> None:
    import yaml

    assert from_dict(Config, yaml.safe_load(to_yaml(config, "mine")), model="mine") == config
    assert from_dict(Config, json.loads(json.dumps(to_dict(config)))) == config


@given(TEXT.filter(lambda text: text != "--"))  # which argparse of Python 3.11 takes for a separator
def test_text_stays_as_it_is_typed(text: str) -> None:
    assert flags(f"--label={text}").label == text
