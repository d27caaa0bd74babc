"""Every command that reads a run names what is damaged in it, before a rank starts, and offers what is good."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from signed import of_the_future

import zoo
from zoo.commands import main
from zoo_datasets.errors import InputError

TOY_PACKAGE = Path(__file__).parents[1] / "toy_package"
LAST, BEFORE = "run/checkpoints/step-00000004", "run/checkpoints/step-00000002"
WEIGHTS, STATE = f"{LAST}/weights/net.safetensors", f"{LAST}/state/net-00001.safetensors"
MANIFEST = f"{LAST}/manifest.json"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A run of two checkpoints."""
    folder = tmp_path_factory.mktemp("made") / "run"
    argv = f"train toy --precision fp64 --steps 4 --momentum 0.5 --save-every 2 steps --out {folder}"
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(TOY_PACKAGE))
        assert main(argv.split()) == 0
        yield folder


@pytest.fixture(autouse=True)
def run(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(made, tmp_path / "run")
    (tmp_path / "points.txt").write_text("0.5\n")
    monkeypatch.chdir(tmp_path)


def truncate(file: str) -> None:
    Path(file).write_bytes(Path(file).read_bytes()[:-3])


def flip(file: str) -> None:
    data = bytearray(Path(file).read_bytes())
    data[-5] ^= 0x10
    Path(file).write_bytes(data)


COMMANDS = {
    "evaluate": "evaluate {run} --parallel ddp",
    "predict": "predict {run} --input points.txt --output out.csv",
    "sample": "sample {run} -n 2",
    "export": "export {run} --to net.safetensors",
}
HARMS: dict[str, tuple[Callable[[str], object], str, str]] = {
    "truncated": (truncate, WEIGHTS, r"\d+ bytes, and \d+ were written"),
    "flipped": (flip, WEIGHTS, "damaged, its checksum differs"),
    "missing": (lambda file: Path(file).unlink(), WEIGHTS, "missing"),
    "missing shard": (lambda file: Path(file).unlink(), STATE, "missing"),
    "manifest": (flip, MANIFEST, "(cannot be read: .*|damaged, its checksum differs)"),
    "future": (
        lambda file: of_the_future(Path(file).parent),
        MANIFEST,
        "of version 7, and this release reads up to 1: upgrade to load it",
    ),
}


def said_of(harm: str) -> str:
    """Does the harm; a pattern of what is to be said of it."""
    act, file, message = HARMS[harm]
    act(file)
    return f"{file}: {message}"


@pytest.fixture
def no_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(*args: object, **options: object) -> None:
        raise AssertionError("a rank was started")

    monkeypatch.setattr("parallel.launcher.launch", start)


@pytest.mark.parametrize("harm", HARMS)
@pytest.mark.usefixtures("no_rank")
def test_what_reads_a_run_names_the_damage_and_offers_another(
    harm: str, capsys: pytest.CaptureFixture[str]
) -> None:
    problem = said_of(harm)
    for command, argv in COMMANDS.items():
        for run in ("run", LAST):
            assert main(argv.format(run=run).split()) == 2, command
            assert re.fullmatch(f"zoo: {problem}; {BEFORE} is good\n", capsys.readouterr().err), command
    with pytest.raises(InputError, match=f"^{problem}; {BEFORE} is good$"):
        zoo.load("run")
    assert main(["checkpoints", "run", "--verify"]) == 1
    assert re.search(problem, capsys.readouterr().out)
    assert not list(Path().glob("*.csv"))
    assert not list(Path().glob("*.safetensors"))


@pytest.mark.parametrize("harm", HARMS)
def test_what_goes_on_from_that_checkpoint_alone_offers_another(
    harm: str, capsys: pytest.CaptureFixture[str]
) -> None:
    problem = said_of(harm)
    assert main(["train", "toy", "--resume", LAST, "--out", "other"]) == 2
    assert re.fullmatch(f"zoo: {problem}; {BEFORE} is good\n", capsys.readouterr().err)
    assert not Path("other").exists()


def test_a_later_release_s_checkpoint_is_not_written_over(capsys: pytest.CaptureFixture[str]) -> None:
    """It is good: going on from the one before it would clear it at its step."""
    problem = said_of("future")
    before = Path(MANIFEST).read_bytes()
    assert main(["train", "toy", "--resume", "run"]) == 2
    assert re.fullmatch(f"zoo: {problem}; {BEFORE} is good\n", capsys.readouterr().err)
    assert Path(MANIFEST).read_bytes() == before
    assert main(["checkpoints", "run"]) == 1
    assert "DAMAGED" not in capsys.readouterr().out


def test_where_no_checkpoint_is_good(capsys: pytest.CaptureFixture[str]) -> None:
    truncate(WEIGHTS)
    truncate(f"{BEFORE}/state/net-00001.safetensors")
    for argv in ("evaluate run", "train toy --resume run"):
        assert main(argv.split()) == 2
        said = capsys.readouterr().err.splitlines()[-1]
        assert said.startswith(f"zoo: {WEIGHTS}: ")
        assert said.endswith("; run has no other that is good")


def test_damage_that_a_command_does_not_read_is_no_concern_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    flip(STATE)
    assert main(["export", "run", "--to", "net.safetensors"]) == 0
    assert main(["checkpoints", "run", "--verify"]) == 1
    assert f"DAMAGED: {STATE}: damaged, its checksum differs" in capsys.readouterr().out


def test_it_is_found_before_torch_is_imported() -> None:
    code = (
        "import sys\nfrom zoo.checkpoint import read_checkpoint\n"
        "try: read_checkpoint('run')\nexcept ValueError as error: print(error)\n"
        "print('torch' in sys.modules)"
    )
    flip(WEIGHTS)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == f"{WEIGHTS}: damaged, its checksum differs; {BEFORE} is good\nFalse\n"
