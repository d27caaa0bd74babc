"""From a command line to a command, and from what it raises to an exit code."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from types import ModuleType

import zoo
from parallel.errors import NonFiniteError, ParallelError
from zoo.commands.outcome import shown_trace
from zoo.fill import nearest
from zoo.keeper import SaveError
from zoo.run import to_json
from zoo_datasets.errors import InputError, shown

COMMANDS = ("list", "train", "evaluate", "predict", "sample", "export", "convert", "checkpoints", "parity")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line.

    Returns:
        the exit code: 0 done, 2 bad usage or input (one line on stderr), 1 a fault (a traceback, or a line),
        75 stopped by a signal with a checkpoint saved, 130 stopped by Ctrl-C without.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        return _run(arguments)
    except (InputError, ParallelError) as error:
        print(f"zoo: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("zoo: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # `zoo list | head`
        sys.stderr.close()
        return 1
    except (NonFiniteError, SaveError) as error:
        print(f"zoo: {error}", file=sys.stderr)
        return 1
    except Exception as error:
        print(shown_trace(error), file=sys.stderr)
        return 1


def _run(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_help())
        return 0 if arguments else 2
    if arguments[0] == "--version":
        print(f"zoo {zoo.__version__}")
        return 0
    if arguments[0] not in COMMANDS:
        raise InputError(f"unknown command {shown(arguments[0])}; {nearest(arguments[0], COMMANDS)}")
    as_json = "--json" in arguments
    outcome = _command(arguments[0]).run([argument for argument in arguments[1:] if argument != "--json"])
    if outcome is None:
        return 0
    print(to_json(outcome.result) if as_json else outcome.text, flush=True)
    return outcome.code


def _command(name: str) -> ModuleType:
    return import_module(f"zoo.commands.{name}")


def _help() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {_command(name).SUMMARY}" for name in COMMANDS]
    return "\n".join(
        [
            "usage: zoo COMMAND ...",
            "",
            "A model zoo with pluggable parallelism for PyTorch:",
            "change one word, --parallel, and the numbers stay.",
            "",
            "commands:",
            *lines,
            "",
            "`zoo COMMAND --help` shows a command's options, `zoo train MODEL --help` a model's.",
        ]
    )
