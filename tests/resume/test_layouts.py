"""A checkpoint has no layout: every strategy writes the same tensors, and reads what any other wrote."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from cases import Run, load_and_save, load_and_train, load_train_save, tensors, train_and_save
from pool import Pool
from safetensors import safe_open
from safetensors.torch import load_file, load_model

from parallel import Parallel, registry
from parallel.testing import nets

LAYOUTS = [
    ("single", 1),
    ("ddp", 2),
    ("ddp", 3),
    ("fsdp", 2),
    ("fsdp", 4),
    ("zero1", 3),
    ("zero2", 2),
    ("zero3", 3),
    ("zero3-offload", 2),
    ("tp", 2),
    ("tp", 4),
    ("ddp+tp", 4),
    ("fsdp+tp", 4),
    ("hsdp", 4),
]
CARRIED = [
    (spec, n)
    for spec, n in (
        ("accelerate-ddp", 2),
        ("fabric-ddp", 3),
        ("fabric-fsdp", 2),
        ("fabric-fsdp", 3),
        ("deepspeed-zero3", 2),
        ("deepspeed-zero3", 3),
    )
    if not registry.resolve(spec)[0].missing()
]
NAMES = ["mlp", "gan", "short-bias", "tied", "attention", "dropout"]
STEPS, MORE = 6, 5  # the save is in the middle of the second epoch


class Saved:
    """One process's checkpoint of each case, and what its next steps gave."""

    def __init__(self, ranks: Pool, folder: Path) -> None:
        self.ranks, self.folder = ranks, folder
        self.next: dict[str, list[list[float]]] = {}

    def __getitem__(self, name: str) -> Path:
        if name not in self.next:
            self.next[name] = self.ranks.run(
                train_and_save, "single", 1, name, self.folder / name, STEPS, MORE, precision="fp64"
            )[0]
        return self.folder / name


@pytest.fixture(scope="module")
def saved(ranks: Pool, tmp_path_factory: pytest.TempPathFactory) -> Saved:
    return Saved(ranks, tmp_path_factory.mktemp("saved"))


def close(got: list[list[float]], want: list[list[float]]) -> bool:
    return torch.allclose(torch.tensor(got), torch.tensor(want), rtol=1e-9, atol=0.0)


def matrix() -> list[tuple[str, str, int]]:
    """Two nets with two optimizers, and empty shards, under all; what is special to some under those."""
    cases = [(name, *layout) for layout in LAYOUTS[1:] + CARRIED for name in ("gan", "short-bias")]
    cases += [("attention", *layout) for layout in LAYOUTS if "tp" in layout[0]]
    cases += [("tied", "ddp", 2), ("tied", "fsdp", 3), ("tied", "zero1", 2), ("tied", "tp", 2)]
    return [
        *cases,
        ("mlp", "zero1", 4),
        ("mlp", "zero3", 2),
        ("dropout", "fsdp+tp", 4),
        ("dropout", "ddp", 4),
    ]


@pytest.mark.parametrize(("name", "spec", "n"), matrix())
def test_every_strategy_saves_the_same_tensors_and_resumes_from_one_checkpoint(
    ranks: Pool, fresh: Pool, saved: Saved, tmp_path: Path, name: str, spec: str, n: int
) -> None:
    one = tensors(saved[name])
    ranks.run(train_and_save, spec, n, name, tmp_path / "own", STEPS, precision="fp64")
    own = tensors(tmp_path / "own")
    assert own.keys() == one.keys()
    for key, tensor in one.items():
        assert (own[key].shape, own[key].dtype) == (tensor.shape, tensor.dtype), key
        scale = tensor.double().norm().clamp_min(1e-6)
        assert (own[key].double() - tensor.double()).norm() / scale < 1e-8, key
    for got in fresh.run(load_and_train, spec, n, name, saved[name], MORE, precision="fp64"):
        assert close(got, saved.next[name])


@pytest.mark.parametrize(("spec", "n"), LAYOUTS + CARRIED)
def test_what_is_loaded_is_saved_again_bit_for_bit(
    fresh: Pool, saved: Saved, tmp_path: Path, spec: str, n: int
) -> None:
    """Whole files are equal: neither a bit of a tensor nor the cut into files depends on the ranks."""
    fresh.run(load_and_save, spec, n, "gan", saved["gan"], tmp_path / "again", precision="fp64")
    files = sorted(file.relative_to(saved["gan"]) for file in saved["gan"].glob("*/*"))
    assert len(files) == 5
    for file in files:
        assert (tmp_path / "again" / file).read_bytes() == (saved["gan"] / file).read_bytes(), file


def still_tied(p: Parallel, folder: Path) -> bool:
    run = Run(p, "tied", seed=99)
    p.load(folder, **run.parts)
    net = run.parts["models"]["net0"]
    return net.head.weight is net.embed.weight


def test_tied_tensors_are_under_each_name_and_stay_tied(fresh: Pool, saved: Saved) -> None:
    """Plain torch loads the file strictly; the tie is in its header, and in the module that it is loaded into."""
    file = saved["tied"] / "weights/net0.safetensors"
    with safe_open(file, "pt") as opened:
        assert opened.metadata() == {"format": "pt", "head.weight": "embed.weight"}
    whole = load_file(file)
    assert torch.equal(whole["head.weight"], whole["embed.weight"])
    for load in (
        lambda net: net.load_state_dict(whole, strict=True),
        lambda net: load_model(net, file, strict=False),
    ):
        net = nets.Tied().double()
        load(net)
        assert net.head.weight is net.embed.weight
        assert torch.equal(net.embed.weight, whole["embed.weight"])
    for spec, n in (("single", 1), ("ddp", 2), ("fsdp", 3), ("tp", 2)):
        assert fresh.run(still_tied, spec, n, saved["tied"], precision="fp64") == [True] * n


def pairs() -> list[tuple[str, tuple[str, int], tuple[str, int]]]:
    draw = random.Random(7)
    drawn = [(draw.choice(NAMES), *draw.sample(LAYOUTS, 2)) for _ in range(12)]
    for carried in CARRIED:
        drawn += [
            ("gan", carried, ("fsdp", 3)),
            ("gan", ("fsdp", 2), carried),
            ("mlp", carried, ("single", 1)),
        ]
    return drawn


@pytest.mark.parametrize(
    ("name", "one", "other"), pairs(), ids=lambda it: it if isinstance(it, str) else f"{it[0]}{it[1]}"
)
def test_from_any_layout_straight_to_any_other(
    ranks: Pool,
    fresh: Pool,
    saved: Saved,
    tmp_path: Path,
    name: str,
    one: tuple[str, int],
    other: tuple[str, int],
) -> None:
    ranks.run(train_and_save, *one, name, tmp_path / "one", STEPS, precision="fp64")
    got = fresh.run(load_and_train, *other, name, tmp_path / "one", MORE, precision="fp64")[0]
    assert saved[name]
    assert close(got, saved.next[name])


@pytest.mark.parametrize("name", ["dropout", "gan"])
def test_a_chain_of_2_1_and_3_ranks_is_one_run(
    ranks: Pool, fresh: Pool, saved: Saved, tmp_path: Path, name: str
) -> None:
    """Saved in the second epoch, gone on with in one process into the third, and there by three ranks."""
    assert saved[name]
    ranks.run(train_and_save, "ddp", 2, name, tmp_path / "two", STEPS, precision="fp64")
    one = fresh.run(
        load_train_save, "single", 1, name, tmp_path / "two", 3, tmp_path / "one", precision="fp64"
    )[0]
    three = ranks.run(load_and_train, "fsdp", 3, name, tmp_path / "one", MORE - 3, precision="fp64")
    assert all(close([*one, *got], saved.next[name]) for got in three)
