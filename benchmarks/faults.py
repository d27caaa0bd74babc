"""Kills and raises at random, many times: no checkpoint is lost, every run comes to the end it would have come to.

python benchmarks/faults.py --kills 200 --raises 50        # about 20 minutes on two quiet cores

Kills: a random rank of two to four gets SIGKILL at a random moment of a training that saves after every step, the others
are ended, and the run goes on with another number of ranks; whenever it is done, the next begins. Before each start every
complete checkpoint is verified, and one that was there must not have gone unless a later one is there. At the end the
weights are compared with those of a run that nothing happened to.

Raises: a rank started by ``launch`` raises at a random place: at the start, in a step, in an evaluation, in a save. Counted
are the seconds from there until ``launch`` has ended all ranks and raised.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from parallel import launch
from zoo import registry
from zoo.checkpoint import checkpoints_of, step_folder
from zoo.fill import from_dict

STEPS = 15
OPTIONS: dict[str, Any] = {
    "steps": STEPS,
    "batch_size": 32,
    "batches_per_epoch": 7,
    "save_every": ["1", "steps"],
    "keep": 2,
    "log_every": 5,
    "precision": "fp64",
    "seed": 1,
}
LAYOUTS = [("ddp", 2), ("ddp", 3), ("fsdp", 2), ("fsdp", 4), ("zero1", 2), ("zero2", 3), ("hsdp", 4)]


def rank_main(spec: str, rank: int, size: int, meet: str, out: str, background: bool) -> None:
    """A rank of a training that goes on where it stopped; ends as a killed one would."""
    from parallel.launcher import Options, Place
    from parallel.setup import create
    from zoo.run import train

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    p = create(spec, Options(precision="fp64"), Place(rank, size, rank, f"file:{meet}", 0, "launch"))
    entry = registry.get("devnet")
    config = from_dict(entry.load("config"), {**OPTIONS, "out": out, "resume": "", "async_save": background})
    train(p, entry, config)
    p.close()
    os._exit(0)


def start(context: Any, spec: str, size: int, meet: Path, out: Path, background: bool) -> list[BaseProcess]:
    meet.mkdir()
    ranks = []
    for rank in range(size):
        arguments = (spec, rank, size, str(meet), str(out), background)
        ranks.append(context.Process(target=rank_main, args=arguments))
        ranks[-1].start()
    return ranks


def kill_often(kills: int, folder: Path, draw: random.Random) -> None:
    from parallel.checkpoint import verify

    os.environ.update(OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["parallel.setup", "zoo.run", "zoo.models.devnet.trainer", "parallel.fsdp"]
    )
    unbroken = folder / "unbroken"
    begun = time.monotonic()
    for rank in start(context, "ddp", 2, folder / "meet", unbroken, False):
        rank.join()
    length = time.monotonic() - begun
    done, starts, runs, worst, while_saving = 0, 0, 0, 0.0, 0
    out = folder / "run-0"
    while done < kills:
        before = {checkpoint.name for checkpoint in checkpoints_of(out)}
        spec, size = draw.choice(LAYOUTS)
        meet = folder / f"meet-{starts}"
        starts += 1
        ranks = start(context, spec, size, meet, out, draw.random() < 0.5)
        moment = time.monotonic() + draw.uniform(0.0, length)
        while time.monotonic() < moment and all(rank.is_alive() for rank in ranks):
            time.sleep(0.002)
        if all(rank.is_alive() for rank in ranks):
            draw.choice(ranks).kill()
            done += 1
            if done % 20 == 0:
                print(f"{done} kills, {runs} runs done", file=sys.stderr, flush=True)
        elif any(rank.exitcode for rank in ranks if not rank.is_alive()):
            raise SystemExit(f"{spec} on {size}: a rank ended with {[rank.exitcode for rank in ranks]}")
        else:
            for rank in ranks:
                rank.join()
        for rank in ranks:
            rank.kill()
            rank.join()
        shutil.rmtree(meet, ignore_errors=True)
        after = checkpoints_of(out)
        for checkpoint in after:
            verify(checkpoint)
        names = {checkpoint.name for checkpoint in after}
        if before and not (names and max(names) >= max(before)):
            raise SystemExit(f"a checkpoint was lost: {sorted(before)} before, {sorted(names)} after")
        folders = {path.name for path in (out / "checkpoints").glob("step-*")}
        while_saving += bool(folders - names)
        if step_folder(out, STEPS).name in names:
            worst = max(worst, distance(out, unbroken))
            runs += 1
            shutil.rmtree(out)
            out = folder / f"run-{runs}"
    print(
        f"kills: {done}, of them {while_saving} left a save or a removal unfinished; {runs} runs came to their end"
    )
    print(
        f"every checkpoint left was good; final weights differ from the unbroken run's by at most {worst:.2g}"
    )


def distance(one: Path, other: Path) -> float:
    """Norm of the difference over the norm, the worst tensor's."""
    from safetensors.torch import load_file

    ours, theirs = (load_file(step_folder(run, STEPS) / "weights/net.safetensors") for run in (one, other))
    assert ours.keys() == theirs.keys()
    return max(float((ours[name] - theirs[name]).norm() / theirs[name].norm()) for name in theirs)


PLACES = ("start", "wrap", "step", "evaluation", "save", "end")


def raise_somewhere(p: Any, folder: Path, place: str, culprit: int, step: int) -> None:
    """Trains a little, and raises on one rank."""
    import torch
    from torch import nn

    def pass_by(here: str) -> None:
        if here == place and p.rank == culprit:
            (folder / "raised").write_text(str(time.monotonic()))
            raise LookupError(f"at {place}")

    pass_by("start")
    net = p.wrap(nn.Sequential(nn.Linear(8, 32), nn.Linear(32, 1)))
    pass_by("wrap")
    opt = p.optimizer(net, torch.optim.Adam, lr=1e-3)
    for batch in p.loader(torch.randn(64, 8), 8):
        for part in p.parts(batch):
            p.backward(net(part.x).square().sum() / batch.size, opt)
            if batch.step == step:
                pass_by("step")
        p.step(opt)
    with torch.no_grad():
        rows = net(torch.randn(3, 8))
    pass_by("evaluation")
    p.gather(rows, torch.arange(3))
    if place == "save" and p.rank == culprit:
        opt.slots[0].net.module.state_dict = lambda **_: pass_by("save")
    p.save(folder / "checkpoint", {"net": net}, optimizers={"net": opt})
    pass_by("end")


def raise_often(raises: int, folder: Path, draw: random.Random) -> None:
    seconds = []
    for number in range(raises):
        own = folder / f"raise-{number}"
        own.mkdir()
        spec, size = draw.choice(LAYOUTS[:6])
        place, culprit = draw.choice(PLACES), draw.randrange(size)
        try:
            launch(raise_somewhere, spec, own, place, culprit, draw.randrange(8), nproc=size)
        except LookupError as error:
            seconds.append(time.monotonic() - float((own / "raised").read_text()))
            notes = error.__notes__
            good = str(error) == f"at {place}" and len(notes) == 1
            if not good or not notes[0].startswith(f"Raised on rank {culprit} of {size}:\nTraceback"):
                raise SystemExit(f"{spec} on {size}, {place}: {notes}") from error
    print(f"raises: {len(seconds)} of {raises}, each with its own rank's traceback and no other's")
    print(
        f"seconds until all had ended: median {sorted(seconds)[len(seconds) // 2]:.2f}, worst {max(seconds):.2f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Kills and raises at random, many times.")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--raises", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    draw = random.Random(options.seed)
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        if options.kills:
            kill_often(options.kills, Path(folder), draw)
        if options.raises:
            raise_often(options.raises, Path(folder), draw)


if __name__ == "__main__":
    main()
