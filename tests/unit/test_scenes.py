"""Generated scenes: the same every time and at every size, of regions whose looks differ."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import parallel
from zoo_datasets.errors import InputError
from zoo_datasets.scenes import SCENE_LABELS, draw_scene, generated_scenes


def same(a, b):
    return np.array_equal(a["image"], b["image"]) and np.array_equal(a["labels"], b["labels"])


@settings(max_examples=30)
@given(st.integers(0, 2**63 - 1), st.integers(0, 1), st.integers(0, 10**9), st.integers(1, 40))
def test_a_scene_is_one_at_every_size(seed, split, number, size):
    scene = draw_scene(size, seed, split, number)
    assert scene["image"].shape == (3, size, size) and scene["image"].dtype == np.float32
    assert scene["labels"].shape == (size, size) and scene["labels"].dtype == np.int64
    assert abs(scene["image"]).max() <= 1
    assert scene["labels"].min() >= 0 and scene["labels"].max() < len(SCENE_LABELS)
    larger = draw_scene(3 * size, seed, split, number)  # each pixel's centre is that of a block's middle one
    off = scene["labels"] != larger["labels"][1::3, 1::3]  # but for rounding at an edge
    assert off.mean() < 0.02
    assert abs(scene["image"] - larger["image"][:, 1::3, 1::3])[:, ~off].max(initial=0) < 1e-4


def test_scenes_depend_on_seed_split_and_number_alone():
    data = generated_scenes(16, seed=3, train=5, evaluation=4)
    longer = generated_scenes(16, seed=3, train=9, evaluation=6)
    assert (len(data.train), len(data.eval)) == (5, 4)
    assert all(same(data.train[row], longer.train[row]) for row in range(5))
    assert all(same(data.eval[row], longer.eval[row]) for row in range(4))
    other = generated_scenes(16, seed=4, train=5)
    seen = [part[row]["image"].tobytes() for part in (data.train, data.eval, other.train) for row in range(4)]
    assert len(set(seen)) == len(seen)
    taken = data.train.take(np.array([4, 1]))
    assert same(taken[0], data.train[4]) and same(taken[1], data.train[1])
    assert taken.name(0) == "scenes, scene 4"


def test_a_region_has_its_own_looks_in_every_scene():
    """What a style is: colours differ between regions and scenes much more than within a region."""
    data = generated_scenes(64, train=60)
    means: dict[int, list[np.ndarray]] = {label: [] for label in range(len(SCENE_LABELS))}
    within = []
    for row in range(60):
        image, labels = data.train[row]["image"], data.train[row]["labels"]
        for label in np.unique(labels):
            pixels = image[:, labels == label]
            means[int(label)].append(pixels.mean(1))
            within.append(pixels.var(1).mean())
    for label, found in means.items():
        assert len(found) > 30, SCENE_LABELS[label]  # in most scenes
        assert np.var(found, axis=0).min() > 0.15
    assert 0.002 < np.mean(within) < 0.05  # there is texture, and colour outweighs it


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 0}, "size must be at least 1"),
        ({"size": 8, "train": 0}, "train must be at least 1"),
        ({"size": 8, "evaluation": -1}, "evaluation must be at least 1"),
        ({"size": 8, "seed": -1}, "seed must be at least 0"),
    ],
)
def test_what_cannot_be_drawn(options, message):
    with pytest.raises(InputError, match=message):
        generated_scenes(**options)


def test_a_loader_takes_scenes():
    data = generated_scenes(8, train=5).train
    batches = parallel.launch(_first_batches, "single", data)
    assert [tuple(shape) for shape, _ in batches] == [(2, 3, 8, 8), (2, 3, 8, 8), (1, 3, 8, 8)]
    assert np.array_equal(batches[1][1], np.stack([data[2]["labels"], data[3]["labels"]]))


def _first_batches(p, data):
    return [(batch["image"].shape, batch["labels"].numpy()) for batch in p.loader(data, 2)]
