"""What the command says to wrong usage: one line that says what to do, and exit code 2."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from zoo.commands import COMMANDS, main

ROOT = Path(__file__).resolve().parents[2]
TOY_PACKAGE = ROOT / "tests" / "toy_package"


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(TOY_PACKAGE))
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("trian", "unknown command 'trian'; did you mean train?"),
        ("train", "name a model: ddpm, devnet, sean, toy, vit"),
        ("train dvnet", "unknown model 'dvnet'; did you mean devnet?"),
        ("train --nproc 2 toy", "the model comes first, as in `zoo train ddpm --nproc ...`"),
        ("train toy --parallel dpd", "unknown strategy 'dpd'; did you mean "),
        ("train toy --nproc 0", "--nproc must be at least 1, not 0"),
        ("train toy --rowz 3", "unknown option --rowz; did you mean --rows?"),
        ("train toy --rows 1", "--rows must be at least 2, not 1"),
        ("train toy --known-outliers 3", "unknown option --known-outliers; "),
        ("train toy --config none.yaml", "none.yaml: cannot be read: No such file or directory"),
        ("train toy --config mine.yaml", "mine.yaml: unknown key 'bach_size'; did you mean batch_size?"),
        ("train toy --out full", "--out full: is not empty; give a folder that is new or empty"),
        ("train toy --data bad", "bad: row 3 is not a point"),
        ("evaluate", "the following arguments are required: RUN; see zoo evaluate --help"),
        ("evaluate nowhere", "nowhere: no such run; give a run directory or a checkpoint in it"),
        ("evaluate full", "full: holds no complete checkpoint; give a run directory or a checkpoint in it"),
        ("evaluate nowhere --dta x", "unknown option --dta; did you mean --data?"),
        ("predict nowhere --input x", "--output is missing"),
        ("predict nowhere --input x --output mine.csv", "--output mine.csv: exists already; give a new name"),
        ("predict nowhere --input x --output a/b.csv", "--output a/b.csv: there is no folder a"),
        (
            "predict nowhere --input x --output b.txt",
            "--output b.txt: tables are written as CSV; give a name",
        ),
        ("sample -n 3 nowhere", "the run comes first, as in `zoo sample RUN -n 10`"),
        ("sample nowhere", "nowhere: no such run; give a run directory or a checkpoint in it"),
        ("export full --to net.pth", "--to must end in .safetensors, not net.pth"),
        ("export nowhere --to mine.safetensors", "--to mine.safetensors: exists already; give a new name"),
        ("convert mine.csv", "--model is missing"),
        ("convert mine.csv --model toi", "unknown model 'toi'; did you mean toy?"),
        ("convert none.pth --model toy", "none.pth: no such file"),
        ("convert full --model toy", "full: is a directory, and a file is needed"),
        ("checkpoints full", "full: holds no run; give a run directory or a checkpoint in it"),
        (
            "convert mine.csv --model toy --to full",
            "--to full: exists already; give a folder that is new or empty",
        ),
        ("list --models", "unknown option --models; see zoo list --help"),
    ],
)
def test_one_line_and_exit_code_2(
    line: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("mine.csv", "mine.safetensors"):
        Path(name).write_text("mine")
    Path("mine.yaml").write_text("bach_size: 3")
    Path("full").mkdir()
    Path("full/notes.txt").write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    assert main(line.split()) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert len(shown.err.splitlines()) == 1
    assert shown.err.startswith(f"zoo: {said}")
    assert sorted(tmp_path.rglob("*")) == before
    assert all(
        path.read_text() == "mine" for path in before if path.suffix in (".csv", ".safetensors", ".txt")
    )


def test_no_arguments_show_the_help_and_are_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    shown = capsys.readouterr().out
    assert main(["--help"]) == 0
    assert capsys.readouterr().out == shown
    assert all(f"\n  {command} " in shown for command in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code = main([command, "--help"])
    except SystemExit as stop:
        code = stop.code  # type: ignore[assignment]
    assert code == 0
    assert capsys.readouterr().out.startswith(f"usage: zoo {command}")


def test_the_help_of_a_model_shows_its_own_options(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["train", "toy", "--help"])
    assert stop.value.code == 0
    shown = " ".join(capsys.readouterr().out.split())
    for text in ("--rows N points to make up (default: 13)", "--parallel", "--config FILE", "--json"):
        assert text in shown


def test_list_shows_models_and_strategies(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    shown = capsys.readouterr().out
    assert "  toy     a straight line\n" in shown
    assert "  ddp " in shown
    assert main(["list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert {"name": "toy", "summary": "a straight line"} in listed["models"]
    assert {"single", "ddp"} <= {entry["name"] for entry in listed["strategies"]}


def test_listing_needs_no_torch() -> None:
    code = "import sys; from zoo.commands import main; sys.exit(main(['list']) or 'torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": f"{ROOT}:{ROOT / 'datasets'}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_a_fault_shows_its_traceback_and_exits_with_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import zoo.commands.list

    def broken(argv: list[str]) -> None:
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(zoo.commands.list, "run", broken)
    assert main(["list"]) == 1
    shown = capsys.readouterr().err
    assert shown.startswith("Traceback")
    assert shown.endswith("RuntimeError: a fault of ours\n")
