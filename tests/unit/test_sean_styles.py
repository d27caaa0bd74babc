"""Style matrices by arithmetic: means, fillings and blends, in loops here; palettes and grids."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from zoo.models.sean.pictures import _lab, as_pixels, coloured, grid, palette
from zoo.models.sean.styles import (
    Styles,
    blended,
    filled,
    mean_styles,
    regions_seen,
    require_styles,
    style_sums,
    with_regions,
)
from zoo_datasets.errors import InputError

LABELS, LENGTH = 5, 3


def some_styles(seed: int) -> Styles:
    generator = torch.Generator().manual_seed(seed)
    known = torch.rand(LABELS, generator=generator) < 0.6
    codes = torch.rand(LABELS, LENGTH, generator=generator, dtype=torch.float64)
    return Styles(codes * known.unsqueeze(1), known)


def test_the_encoder_looks_at_every_second_pixel():
    labels = torch.full((2, 4, 4), 255)
    labels[0, 1, 1] = 2  # between the pixels looked at
    labels[1, 2, 0] = 3
    assert regions_seen(labels, LABELS).tolist() == [[False] * 5, [False, False, False, True, False]]


@settings(max_examples=20)
@given(st.integers(0, 10**6), st.integers(1, 6))
def test_means_are_over_the_images_that_have_the_region(seed, rows):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(LABELS + 2, (rows, 4, 4), generator=generator)
    codes = torch.rand(rows, LABELS, LENGTH, generator=generator)
    sums = style_sums(codes[:2], labels[:2]) + style_sums(codes[2:], labels[2:])  # maybe of no rows
    means = mean_styles(sums)
    for label in range(LABELS):
        having = [row for row in range(rows) if (labels[row, ::2, ::2] == label).any()]
        assert bool(means.known[label]) == bool(having)
        expected = codes[having, label].double().mean(0) if having else torch.zeros(LENGTH)
        assert torch.allclose(means.codes[label], expected.double(), rtol=1e-12)
    again = Styles.from_json(json.loads(json.dumps(means.to_json())), LENGTH)
    assert torch.equal(again.codes, means.codes) and torch.equal(again.known, means.known)


@settings(max_examples=30)
@given(st.integers(0, 10**6), st.integers(0, 10**6), st.sampled_from([0.0, 0.25, 1.0]))
def test_blends_and_fillings(one, other, amount):
    first, second = some_styles(one), some_styles(other)
    between, with_means = blended(first, second, amount), filled(first, second)
    for label in range(LABELS):
        a, b = first.codes[label], second.codes[label]
        match bool(first.known[label]), bool(second.known[label]):
            case True, True:
                expected, instead = a + amount * (b - a), a
            case True, False:
                expected, instead = a, a
            case _:
                expected, instead = b, b
        assert torch.allclose(between.codes[label], expected)
        assert torch.equal(with_means.codes[label], instead)
    assert torch.equal(between.known, first.known | second.known)
    assert torch.equal(with_means.known, between.known)
    assert filled(first, None) is first


def test_an_amount_a_region():
    first = Styles(torch.zeros(2, 1), torch.ones(2, dtype=torch.bool))
    second = Styles(torch.ones(2, 1), torch.ones(2, dtype=torch.bool))
    assert blended(first, second, torch.tensor([0.25, 1.0])).codes.flatten().tolist() == [0.25, 1.0]


def test_other_codes_for_some_regions():
    style = Styles(torch.zeros(3, 1), torch.tensor([True, False, True]))
    found = with_regions(style, {1: torch.tensor([4.0]), 2: torch.tensor([8.0])}, 0.5)
    assert found.codes.flatten().tolist() == [0, 4, 4]  # where there is nothing to blend with, all of it
    assert found.known.all()


def test_a_region_without_a_style_is_named():
    style = Styles(torch.zeros(3, 1), torch.tensor([True, False, True]))
    names = ("sky", "sea", "sun")
    require_styles(style, torch.tensor([[0, 2], [255, 0]]), names, "--mask m.png")
    with pytest.raises(InputError, match=r"--mask m\.png: has 'sea', .* give --region sea=IMAGE"):
        require_styles(style, torch.tensor([[0, 1]]), names, "--mask m.png")


def test_colours_are_far_apart_and_black_is_for_no_label():
    for count, least in ((8, 50), (19, 35), (34, 25), (255, 8)):
        colours = palette(count)
        lab = _lab(np.concatenate([colours, [[0, 0, 0]]]))
        distances = np.linalg.norm(lab[:, None] - lab, axis=2) + 1e3 * np.eye(count + 1)
        assert distances.min() > least, count
        assert np.array_equal(palette(8), colours[:8])
    labels = np.array([[0, 255], [1, 0]])
    assert np.array_equal(coloured(labels, 2)[0, 1], [0, 0, 0])
    assert np.array_equal(coloured(labels, 2)[1, 0], palette(2)[1])


def test_lab_of_known_colours():
    """Published values of sRGB's white, red and blue under D65."""
    known = {
        (255, 255, 255): (100, 0, 0),
        (255, 0, 0): (53.24, 80.09, 67.20),
        (0, 0, 255): (32.3, 79.2, -107.9),
    }
    for rgb, lab in known.items():
        assert _lab(np.array([rgb]))[0] == pytest.approx(lab, abs=0.15)


def test_grids():
    tile = as_pixels(np.stack([np.full((4, 5), value, np.float32) for value in (-1.0, 0.0, 2.0)]))
    assert tile.shape == (4, 5, 3) and tile[0, 0].tolist() == [0, 128, 255]
    whole = grid([[tile, tile, tile], [tile, tile, tile]])
    assert whole.shape == (10, 19, 3)
    assert (whole[4:6] == 255).all() and (whole[:, 5:7] == 255).all()
    for y in (0, 6):
        for x in (0, 7, 14):
            assert np.array_equal(whole[y : y + 4, x : x + 5], tile)
