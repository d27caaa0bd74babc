"""docs/migrating.md: its blocks run as they are printed, and all end at the numbers of a plain loop."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from parallel import launch, registry
from parallel.registry import ACCELERATE, DEEPSPEED, FABRIC

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "migrating.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
ENGINES = {"lightning_fabric": FABRIC, "accelerate": ACCELERATE, "deepspeed": DEEPSPEED}
TASKS = ("classifier", "gan")


def blocks(*modules: str) -> str:
    """The page's blocks, of other engines only those that import one of these."""
    kept = []
    for block in BLOCKS:
        foreign = {
            module for module in ENGINES if re.search(rf"^(import|from) {module}\b", block, re.MULTILINE)
        }
        if foreign <= set(modules):
            kept.append(block)
    return "\n".join(kept)


@pytest.fixture(scope="module")
def page() -> dict[str, Any]:
    """What the blocks of our own define."""
    names: dict[str, Any] = {}
    exec(compile(blocks(), "migrating.md", "exec"), names)
    return names


@pytest.fixture(scope="module")
def plain(page: dict[str, Any]) -> dict[str, float]:
    """The same trainings in plain torch, in one process."""
    net = page["classifier"]()
    opt = torch.optim.Adam(net.parameters(), lr=1e-2)
    for step in range(12):
        x, y = (tensor[step % 4 * 32 :][:32] for tensor in page["labelled"].tensors)
        opt.zero_grad()
        F.cross_entropy(net(x), y).backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
    g, d = page["generator"](), page["discriminator"]()
    g_opt, d_opt = (torch.optim.Adam(net.parameters(), lr=1e-3) for net in (g, d))
    for step in range(12):
        real, z = (tensor[step % 4 * 32 :][:32] for tensor in page["with_noise"].tensors)
        d_opt.zero_grad()
        (F.softplus(-d(real)) + F.softplus(d(g(z).detach()))).mean().backward()
        d_opt.step()
        g_opt.zero_grad()
        F.softplus(-d(g(z))).mean().backward()
        g_opt.step()
    noise = page["with_noise"].tensors[1]
    return {"classifier": page["answer"](net, page["rows"]), "gan": page["answer"](lambda z: d(g(z)), noise)}


@pytest.mark.parametrize("task", TASKS)
def test_our_blocks_train_what_a_plain_loop_does(
    task: str, page: dict[str, Any], plain: dict[str, float]
) -> None:
    for parts in (1, 2):
        assert launch(page[f"our_{task}"], accumulate=parts) == pytest.approx(plain[task], rel=1e-5)


def test_the_page_has_a_block_for_each() -> None:
    for name in ("fabric", "accelerate", "deepspeed", "our"):
        for task in TASKS:
            assert f"def {name}_{task}(" in "\n".join(BLOCKS)


# DeepSpeed would compile a helper for two minutes, for a faster all-reduce.
UNCOMPILED = """
import deepspeed

vars(deepspeed.ops)["__compatible_ops__"] = {}
"""
RUN = """
import json, os

if __name__ == "__main__":
    found = {}
    for task in ("classifier", "gan"):
        for spec in SPECS:
            found[f"{spec} {task}"] = launch(globals()[f"our_{task}"], spec)
    for name in NAMES:
        for task in ("classifier", "gan"):
            found[f"{name} {task}"] = globals()[f"{name}_{task}"]()
    if os.environ["RANK"] == "0":
        print("found:", json.dumps(found))
"""


def test_every_engine_ends_at_the_same_numbers(plain: dict[str, float], tmp_path: Path) -> None:
    there = [module for module, library in ENGINES.items() if not library.missing()]
    if not there:
        pytest.skip("no other engine is installed: make test-adapters")
    names = [module.removeprefix("lightning_") for module in there]
    specs = ["ddp", "fsdp"]
    specs += [
        entry.name
        for entry in registry.entries()
        if entry.library is not None
        and entry.library.module in there
        and entry.name in ("accelerate-ddp", "fabric-ddp", "fabric-fsdp")
    ]
    script = tmp_path / "script.py"
    head = UNCOMPILED if "deepspeed" in there else ""
    script.write_text(f"{head}\n{blocks(*there)}\nSPECS = {specs}\nNAMES = {names}\n{RUN}")
    found = torchrun(script)
    assert len(found) == 2 * (len(specs) + len(names))
    for key, value in found.items():
        assert value == pytest.approx(plain[key.split()[1]], rel=1e-4), key


def torchrun(script: Path) -> dict[str, float]:
    path = os.pathsep.join([str(ROOT), str(ROOT / "datasets")])
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)],
        env=os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    line = next(line for line in done.stdout.splitlines() if line.startswith("found:"))
    found: dict[str, float] = json.loads(line.removeprefix("found:"))
    return found
