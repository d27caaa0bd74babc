"""Checkpoints of the published toy."""

from __future__ import annotations

import io
import os
import pickle
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from zoo.models.ddpm.convert import load_published, published_network
from zoo.models.ddpm.model import DenoisingMLP
from zoo_datasets.errors import InputError


def saved(path: Path, checkpoint: object) -> Path:
    torch.save(checkpoint, path)
    return path


def state(**changes: Tensor | None) -> dict[str, Tensor]:
    """A small state dict with some tensors replaced, or removed (None). `_` stands for the dot."""
    tensors: dict[str, Tensor | None] = dict(DenoisingMLP(3, width=8).state_dict())
    tensors |= {name.replace("_", "."): value for name, value in changes.items()}
    return {name: value for name, value in tensors.items() if value is not None}


@settings(deadline=None, max_examples=25)
@given(
    st.integers(1, 9), st.integers(1, 9), st.sampled_from(["", "module.", "_orig_mod.module."]), st.booleans()
)
def test_any_width_comes_back(features: int, width: int, prefix: str, nested: bool) -> None:
    net = DenoisingMLP(features, steps=10, width=width)
    weights = {prefix + name: tensor for name, tensor in net.state_dict().items()}
    got = published_network({"model": weights} if nested else weights, "toy.pth", steps=10)
    x, t = torch.randn(4, features), torch.tensor([0, 3, 6, 9])
    assert got.steps == 10
    assert torch.equal(got(x, t), net(x, t))


def test_a_file_in_double_precision_stays_so(tmp_path: Path) -> None:
    weights = {name: torch.randn_like(tensor, dtype=torch.float64) for name, tensor in state().items()}
    got = load_published(saved(tmp_path / "toy.pth", {"model": weights}))
    assert got.steps == 1000
    for name, tensor in got.state_dict().items():
        torch.testing.assert_close(tensor, weights[name], rtol=0, atol=0)


@pytest.mark.parametrize(
    ("checkpoint", "message"),
    [
        ({"model": state(fc2_bias=None)}, r"fc2\.bias is missing, but a toy DDPM of width 8 .* has \[8\]"),
        ({"model": state(fc5_bias=torch.zeros(2))}, r"fc5\.bias is \[2\], but .* 3 numbers has none"),
        ({"model": state(fc1_weight=torch.zeros(8, 3))}, r"fc1\.weight is \[8, 3\], but .* has \[8, 4\]"),
        ({"model": state(fc2_weight=torch.zeros(8, 9))}, r"fc2\.weight is \[8, 9\], but .* has \[8, 8\]"),
        (
            {"model": state(fc4_weight=None)},
            r"no matrix fc4\.weight, so not a toy DDPM; it has 'fc1\.weight', .*",
        ),
        ({"model": state(fc4_weight=torch.zeros(3))}, r"no matrix fc4\.weight, so not a toy DDPM; .*"),
        ({"model": {}}, r"no matrix fc4\.weight, so not a toy DDPM; .*"),
        ({"model": torch.zeros(3)}, 'no state dict of weights, neither at the top nor under "model"'),
        (
            {"model": state(fc4_weight=torch.zeros(3, 8).int())},
            r'no state dict of weights, neither .* "model"',
        ),
        ({"epoch": 3}, 'no state dict of weights, neither at the top nor under "model"'),
        ([1, 2], 'no state dict of weights, neither at the top nor under "model"'),
    ],
)
def test_another_network_is_refused(tmp_path: Path, checkpoint: object, message: str) -> None:
    path = saved(tmp_path / "toy.pth", checkpoint)
    with pytest.raises(InputError, match=f"^{path}: {message}") as caught:
        load_published(path)
    assert "\n" not in str(caught.value)


class Trap:
    """Runs a command where it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {self.mark}",)


def test_objects_are_not_unpickled(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    zipped = saved(tmp_path / "zipped.pth", {"model": Trap(mark)})
    plain = tmp_path / "plain.pth"
    plain.write_bytes(pickle.dumps({"model": Trap(mark)}, protocol=2))
    for path in (zipped, plain):
        with pytest.raises(InputError, match=f"^{path}: not a torch checkpoint of tensors alone, .*$"):
            load_published(path)
    assert not mark.exists()


@pytest.mark.parametrize("content", [b"", b"no torch here", b"PK\x03\x04 cut off", b"\x80\x02"])
def test_files_that_are_no_checkpoints_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "toy.pth"
    path.write_bytes(content)
    with pytest.raises(InputError, match=f"^{path}: not a torch checkpoint of tensors alone, .*$"):
        load_published(path)


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_a_damaged_file_is_refused_or_read(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    buffer = io.BytesIO()
    torch.save({"model": state()}, buffer, _use_new_zipfile_serialization=data.draw(st.booleans()))
    content = bytearray(buffer.getvalue())
    for _ in range(data.draw(st.integers(1, 20))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.mktemp("damaged") / "toy.pth"
    path.write_bytes(
        content[: data.draw(st.integers(0, len(content)))] if data.draw(st.booleans()) else content
    )
    try:
        load_published(path)
    except InputError as error:
        assert "\n" not in str(error)


def test_paths_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "none.pth", tmp_path):
        with pytest.raises(InputError, match=f"^{path}: cannot be read .*$"):
            load_published(path)
