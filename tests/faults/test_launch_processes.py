"""Starting ranks: what cannot start says so on one line and starts nothing; what can is left alone by its neighbours."""

from __future__ import annotations

import atexit
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from pool import Pool

from parallel import ParallelError, RankError, launch
from parallel.interface import Parallel
from parallel.testing import Trace, differences, nets, run_case

ROOT = Path(__file__).resolve().parents[2]


class StubbornError(Exception):
    """Does not come back from a pickle."""

    def __init__(self, what: str, why: str) -> None:
        super().__init__(f"{what}: {why}")


def look(p: Parallel) -> dict[str, Any]:
    """What a rank finds itself to be, and a little training."""
    trace = run_case(p, "mlp", 4)
    net = p.wrap(nets.MLP(), nets.MLP_PLAN)
    return {
        "rank": p.rank,
        "size": p.world_size,
        "trace": trace,
        "devices": {parameter.device.type for parameter in net.parameters()} | {p.device.type},
        "threads": torch.get_num_threads(),
    }


def stubborn(p: Parallel) -> None:
    raise StubbornError("this", "for no reason")


def no_value(p: Parallel) -> Any:
    return threading.Lock()


def slow_to_leave(p: Parallel, folder: Path) -> int:
    def leave() -> None:
        (folder / f"leaving-{p.rank}").write_text(str(os.getpid()))
        time.sleep(1.0)

    atexit.register(leave)
    return 7


def sleep(p: Parallel, folder: Path) -> None:
    (folder / f"rank-{p.rank}").write_text(str(os.getpid()))
    p.barrier()
    time.sleep(300)


# What starts nothing


@pytest.fixture
def no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(*args: object, **options: object) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr(subprocess, "Popen", start)


@pytest.mark.parametrize(
    ("main", "spec", "nproc", "said"),
    [
        (lambda p: None, "ddp", 2, "the function to launch and its arguments must pickle, since 2 new "),
        (look, "ddp", 0, "--nproc is 0; it must be at least 1"),
        (look, "dpp", 2, "unknown strategy 'dpp'; did you mean dp or ddp or hsdp?"),
        (look, "single", 2, "--nproc 2 with strategy 'single', which is one process: leave it out, or take ddp"),
        (look, "hsdp", 2, "strategy 'hsdp' needs at least 4 ranks, and --nproc is 2"),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("no_process")
def test_what_cannot_start_is_one_line(main: Callable[..., Any], spec: str, nproc: int, said: str) -> None:
    with pytest.raises(ParallelError) as caught:
        launch(main, spec, nproc=nproc)
    assert str(caught.value).startswith(said)
    assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("no_process")
def test_a_number_of_ranks_against_a_launchers(monkeypatch: pytest.MonkeyPatch) -> None:
    launcher = {
        "RANK": "0",
        "WORLD_SIZE": "4",
        "LOCAL_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "1",
    }
    for name, value in launcher.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ParallelError, match="--nproc 2 under torchrun, which started 4 ranks: leave it out"):
        launch(look, "ddp", nproc=2)
    with pytest.raises(ParallelError, match="strategy 'single' is one process, and torchrun started 4"):
        launch(look, "single")


SCRIPT = """
from parallel import launch

def size(p):
    return p.world_size

print(launch(size, "ddp", nproc=2))
"""


@pytest.mark.parametrize(
    ("how", "said"),
    [
        (
            "file",
            'this one launches when it is imported: put what starts it below `if __name__ == "__main__":`',
        ),
        ("-c", "size is of a notebook, or of no file, and each rank must import it: put it in a module"),
        ("-", "size is of a notebook, or of no file, and each rank must import it: put it in a module"),
    ],
)
def test_a_script_that_the_ranks_cannot_import(how: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    argv = {"file": ["script.py"], "-c": ["-c", SCRIPT], "-": ["-"]}[how]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "datasets")])}
    done = subprocess.run(
        [sys.executable, *argv], cwd=tmp_path, env=environment, input=SCRIPT, capture_output=True, text=True
    )  # fmt: skip
    assert done.returncode == 1
    raised = next(line for line in done.stderr.splitlines() if line.startswith("parallel.errors"))
    assert raised.startswith("parallel.errors.ParallelError: ") and said in raised


# What a rank says that cannot be said


def test_an_error_that_does_not_unpickle_still_tells() -> None:
    with pytest.raises(
        RankError, match=r"^test_launch_processes\.StubbornError: this: for no reason"
    ) as caught:
        launch(stubborn, "ddp", nproc=1, in_place=False)
    assert caught.value.__notes__[0].startswith("Raised on rank 0 of 1:\nTraceback")


def test_a_value_that_does_not_pickle_is_an_error() -> None:
    with pytest.raises(TypeError, match="cannot pickle"):
        launch(no_value, "single", in_place=False)


FORKS = """
import os, sys
from parallel.processes import _keep_from_forks

read, write = os.pipe()
_keep_from_forks(write)
if os.fork() == 0:
    try:
        os.fstat(write)
    except OSError:
        again = os.open(os.devnull, os.O_RDONLY)
        assert again == write  # the number is free for another file
        if os.fork() == 0:
            os.fstat(again)
            os._exit(0)
        os._exit(os.waitstatus_to_exitcode(os.wait()[1]))
    os._exit(1)
os.fstat(write)
sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
"""


def test_a_ranks_pipe_is_not_kept_open_by_what_it_forks() -> None:
    """A killed rank is known by its pipe's end, and its loader's workers live on for seconds."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "datasets")])}
    done = subprocess.run([sys.executable, "-c", FORKS], env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


# Neighbours


def test_ctrl_c_while_the_ranks_are_leaving_changes_nothing(tmp_path: Path) -> None:
    def interrupt() -> None:
        deadline = time.monotonic() + 100.0
        while len(list(tmp_path.iterdir())) < 2 and time.monotonic() < deadline:
            time.sleep(0.02)
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.1)

    thread = threading.Thread(target=interrupt)
    thread.start()
    assert launch(slow_to_leave, "ddp", tmp_path, nproc=2) == 7
    thread.join()
    for file in tmp_path.iterdir():
        assert not Path(f"/proc/{file.read_text()}").exists()


def test_two_launches_at_once_give_rank_0s_values(monkeypatch: pytest.MonkeyPatch, ranks: Pool) -> None:
    """With torch's usual port taken, and under variables that another job left, none of which is a launch.

    The ranks are on the device that was asked for, and share the machine's threads out.
    """
    for name, value in {"RANK": "3", "WORLD_SIZE": "8", "SLURM_NTASKS": "8", "SLURM_PROCID": "3"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    found: dict[str, dict[str, Any]] = {}

    def train(spec: str) -> None:
        found[spec] = launch(look, spec, nproc=2, precision="fp64", device="cpu")

    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", 29500))
        taken.listen()
        threads = [threading.Thread(target=train, args=(spec,)) for spec in ("ddp", "fsdp")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(150.0)
    want = ranks.run(run_case, "single", 1, "mlp", 4, precision="fp64")[0]
    for spec in ("ddp", "fsdp"):
        got = found[spec]
        assert (got["rank"], got["size"]) == (0, 2)
        assert got["devices"] == {"cpu"}
        assert got["threads"] == max(1, (os.cpu_count() or 1) // 2)
        assert not differences(want, got["trace"], "fp64")


def threads_after_a_case(p: Parallel, case: str) -> int:
    run_case(p, case, 1)
    return len(list(Path("/proc/self/task").iterdir()))


@pytest.mark.skipif(sys.platform != "linux", reason="counts threads in /proc")
@pytest.mark.parametrize("spec", ["ddp", "fsdp"])
def test_a_closed_strategy_leaves_no_group_behind(spec: str, ranks: Pool) -> None:
    """A process group has four threads, which wake a hundred times a second for as long as anything holds it."""
    ranks.run(threads_after_a_case, spec, 2, "mlp")
    cases = ("mlp", "short-bias", "dropout", "tied")
    assert len({ranks.run(threads_after_a_case, spec, 2, case)[0] for case in cases}) == 1


@pytest.mark.usefixtures("temporary")
def test_ranks_do_not_outlive_a_killed_parent(tmp_path: Path) -> None:
    """Killed, not asked: no handler runs, and the ranks see a pipe close."""
    code = (
        "import sys, pathlib; sys.path[:0] = sys.argv[2:]\n"
        "from test_launch_processes import launch, sleep\n"
        "launch(sleep, 'ddp', pathlib.Path(sys.argv[1]), nproc=2)\n"
    )
    paths = [str(ROOT), str(ROOT / "tests"), str(Path(__file__).parent)]
    parent = subprocess.Popen([sys.executable, "-c", code, str(tmp_path), *paths])
    try:
        found = [wait_for(tmp_path / f"rank-{rank}") for rank in range(2)]
    finally:
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    deadline = time.monotonic() + 10.0
    while any(map(runs, found)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(runs, found))


def wait_for(file: Path) -> int:
    deadline = time.monotonic() + 90.0
    while time.monotonic() < deadline:
        if file.exists() and file.read_text():
            return int(file.read_text())
        time.sleep(0.05)
    raise AssertionError(f"no {file.name} within 90 s")


def runs(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


# Several nodes

NODE = """
import json, os, sys
from pathlib import Path
sys.path[:0] = sys.argv[2:]
import torch
from parallel import launch
from parallel.testing import run_case

def main(p):
    trace = run_case(p, "mlp", 4)
    told = {"rank": p.rank, "local": p.local_rank, "node": int(os.environ["GROUP_RANK"]), "size": p.world_size}
    told |= {"losses": trace.losses, "norms": trace.norms}
    Path(sys.argv[1], f"rank-{p.rank}.json").write_text(json.dumps(told))

if __name__ == "__main__":
    launch(main, "ddp", precision="fp64")
"""


def test_two_nodes_of_two_ranks_train_what_one_process_does(tmp_path: Path, ranks: Pool) -> None:
    script = tmp_path / "node.py"
    script.write_text(NODE)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    torchrun = (
        f"-m torch.distributed.run --nnodes 2 --nproc-per-node 2 --master-addr 127.0.0.1 --master-port {port}"
    )
    environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    nodes = [
        subprocess.Popen(
            [sys.executable, *torchrun.split(), f"--node-rank={node}", str(script), str(tmp_path), str(ROOT)],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        for node in range(2)
    ]
    want = ranks.run(run_case, "single", 1, "mlp", 4, precision="fp64")[0]  # meanwhile
    for node in nodes:
        _, said = node.communicate(timeout=120)
        assert node.returncode == 0, said
    for rank in range(4):
        told = json.loads((tmp_path / f"rank-{rank}.json").read_text())
        assert (told["rank"], told["size"]) == (rank, 4)
        assert told["node"] * 2 + told["local"] == rank
        got = Trace(told["losses"], told["norms"])
        assert not differences(Trace(want.losses, want.norms), got, "fp64")
