"""Mirrored images and label maps: left becomes right where names say so."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from zoo.models.sean.flip import flipped, mirror_table

CELEBAMASK_HQ = (
    "background", "skin", "nose", "eye_g", "l_eye", "r_eye", "l_brow", "r_brow", "l_ear", "r_ear", "mouth",
    "u_lip", "l_lip", "hair", "hat", "ear_r", "neck_l", "neck", "cloth",
)  # fmt: skip


def pairs(names):
    table = mirror_table(names).tolist()
    assert table[len(names) :] == list(range(len(names), 256))
    return {(names[a], names[b]) for a, b in enumerate(table[: len(names)]) if a < b}


def test_faces():
    """l_lip is the lower lip, ear_r an earring, neck_l a necklace: none has a counterpart."""
    assert pairs(CELEBAMASK_HQ) == {("l_eye", "r_eye"), ("l_brow", "r_brow"), ("l_ear", "r_ear")}


def test_how_names_may_say_it():
    names = ("Left arm", "right arm", "leg-left", "leg-right", "leftover", "rightover", "arm L", "l2", "r2")
    assert pairs(names) == {("Left arm", "right arm"), ("leg-left", "leg-right"), ("l2", "r2")}
    assert pairs(("sky", "ground", "path")) == set()


@settings(max_examples=25)
@given(st.lists(st.sampled_from(CELEBAMASK_HQ), min_size=1, unique=True), st.data())
def test_mirroring_twice_changes_nothing(names, data):
    table = mirror_table(names)
    assert torch.equal(table[table], torch.arange(256))
    labels = torch.randint(len(names), (3, 4, 6), generator=torch.Generator().manual_seed(0))
    labels[0, 0, 0] = 255
    image = torch.rand(3, 3, 4, 6)
    chosen = torch.tensor(data.draw(st.lists(st.integers(0, 1), min_size=3, max_size=3)))
    other_image, other = flipped(image, labels, chosen, table)
    for row, flip in enumerate(chosen.tolist()):
        for x in range(6):
            seen = 5 - x if flip else x
            assert torch.equal(other_image[row, :, :, x], image[row, :, :, seen])
            column = labels[row, :, seen]
            assert torch.equal(other[row, :, x], table[column] if flip else column)
    again = flipped(other_image, other, chosen, table)
    assert torch.equal(again[0], image) and torch.equal(again[1], labels)


def test_no_rows():
    image, labels = flipped(
        torch.zeros(0, 3, 4, 4), torch.zeros(0, 4, 4, dtype=torch.int64), torch.zeros(0), mirror_table(("a",))
    )
    assert image.shape == (0, 3, 4, 4) and labels.shape == (0, 4, 4)
