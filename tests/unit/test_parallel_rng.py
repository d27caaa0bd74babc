"""Draws belong to the sample: any cut of the rows gives slices of one and the same array, and the array is random."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor, nn

from parallel import rng
from parallel.batch import Batch
from parallel.dropout import CurrentPart, KeyedDropout, key_dropout
from parallel.errors import ParallelError

SHAPES = st.lists(st.integers(0, 5), max_size=3).map(tuple)
KEYS = st.integers(-(2**63), 2**63 - 1)
MASK = 2**64 - 1


def draw_all(key: int, position: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> list[Tensor]:
    return [
        rng.uniform(key, position, shape, dtype),
        rng.normal(key, position, shape, dtype),
        rng.integers(key, position, -3, 9, shape),
        rng.keep_mask(key, position, shape, rng.of_65536(0.3)),
    ]


@settings(deadline=None)
@given(
    key=KEYS,
    rows=st.integers(0, 9),
    cut=st.tuples(st.integers(0, 9), st.integers(0, 9)),
    shape=SHAPES,
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
)
def test_rows_of_a_share_are_rows_of_the_whole(
    key: int, rows: int, cut: tuple[int, int], shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    start, stop = sorted(min(place, rows) for place in cut)
    position = torch.arange(rows)
    whole = draw_all(key, position, shape, dtype)
    share = draw_all(key, position[start:stop], shape, dtype)
    for all_rows, own in zip(whole, share, strict=True):
        assert own.shape == (stop - start, *shape)
        assert own.equal(all_rows[start:stop])
    backwards = draw_all(key, position.flip(0), shape, dtype)
    assert all(again.equal(all_rows.flip(0)) for all_rows, again in zip(whole, backwards, strict=True))


def splitmix64(state: int) -> int:
    """The finaliser as the paper's reference code has it, in Python's integers."""
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & MASK
    return state ^ (state >> 31)


@settings(deadline=None)
@given(key=KEYS, position=st.integers(0, 2**40), count=st.integers(1, 4))
def test_bits_are_splitmix64s(key: int, position: int, count: int) -> None:
    """So that int64's signed shifts and overflows do what the unsigned originals do."""
    golden = 0x9E3779B97F4A7C15
    row = splitmix64((position * golden + key) & MASK)
    want = [splitmix64((row + column * golden) & MASK) for column in range(1, count + 1)]
    got = rng.bits(key, torch.tensor([position]), count)[0]
    assert [int(value) & MASK for value in got] == want


def test_splitmix64_is_the_published_sequence() -> None:
    """The generator seeded with 1234567: its first outputs, as printed with the reference implementation."""
    want = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    state, got = 1234567, []
    for _ in want:
        state = (state + 0x9E3779B97F4A7C15) & MASK
        got.append(splitmix64(state))
    assert got == want


# Distributions: Kolmogorov-Smirnov against scipy's, on draws that are fixed for ever

ROWS, WIDTH = 500, 40


@pytest.mark.parametrize("key", [0, 1, -1, 2**63 - 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_uniform_and_normal(key: int, dtype: torch.dtype) -> None:
    position = torch.arange(ROWS)
    uniform = rng.uniform(key, position, (WIDTH,), dtype)
    assert uniform.dtype == dtype
    assert 0.0 < float(uniform.min()) < float(uniform.max()) < 1.0
    assert stats.kstest(uniform.flatten().double(), "uniform").pvalue > 1e-3
    normal = rng.normal(key, position, (WIDTH,), dtype)
    assert normal.dtype == dtype
    assert stats.kstest(normal.flatten().double(), "norm").pvalue > 1e-3
    assert stats.kurtosis(normal.flatten().double()) == pytest.approx(0.0, abs=0.15)


def test_draws_are_independent_of_their_neighbours() -> None:
    """Rows, columns, the two numbers of a pair, and other keys: correlations of independent draws, 1/sqrt(n) large."""
    position = torch.arange(2000)
    drawn = rng.normal(rng.make_key(0, "a"), position, (20,), torch.float64)
    other = rng.normal(rng.make_key(0, "b"), position, (20,), torch.float64)
    limit = 4.5 / math.sqrt(2000)
    columns = torch.corrcoef(torch.cat((drawn, other), 1).T)
    assert (columns - torch.eye(40, dtype=torch.float64)).abs().max() < limit * 1.2
    for lag in (1, 2, 7):
        assert (
            abs(float(torch.corrcoef(torch.stack((drawn[lag:].flatten(), drawn[:-lag].flatten())))[0, 1]))
            < limit
        )
    squares = torch.corrcoef(drawn.square().T)
    assert (squares - torch.eye(20, dtype=torch.float64)).abs().max() < limit * 1.2


@settings(deadline=None)
@given(key=KEYS, low=st.integers(-(2**40), 2**40), span=st.integers(1, 2**31))
def test_integers_stay_in_their_range(key: int, low: int, span: int) -> None:
    drawn = rng.integers(key, torch.arange(50), low, low + span, (3,))
    assert drawn.dtype == torch.int64
    assert int(drawn.min()) >= low
    assert int(drawn.max()) < low + span


@pytest.mark.parametrize("span", [1, 2, 7, 100])
def test_integers_are_uniform(span: int) -> None:
    drawn = rng.integers(rng.make_key("x"), torch.arange(5000), 10, 10 + span, (4,))
    counts = torch.bincount(drawn.flatten() - 10, minlength=span)
    assert counts.numel() == span
    assert span == 1 or stats.chisquare(counts).pvalue > 1e-3


@pytest.mark.parametrize(("low", "high"), [(3, 3), (3, 2), (0, 2**31 + 1)])
def test_integers_of_no_range_are_refused(low: int, high: int) -> None:
    with pytest.raises(ValueError, match=rf"integers in \[{low}, {high}\): the range must hold 1 to"):
        rng.integers(0, torch.arange(2), low, high, ())


@settings(deadline=None, max_examples=30)
@given(key=KEYS, drop=st.floats(0.0, 1.0))
def test_keep_mask_keeps_with_the_probability_it_says(key: int, drop: float) -> None:
    dropped = rng.of_65536(drop)
    keep = rng.keep_mask(key, torch.arange(200), (101,), dropped)
    assert keep.dtype == torch.bool
    probability = 1.0 - dropped / 65536
    assert probability == pytest.approx(1.0 - drop, abs=2.0**-17)
    deviation = math.sqrt(keep.numel() * probability * (1.0 - probability))
    assert abs(int(keep.sum()) - keep.numel() * probability) <= 6.0 * deviation


def test_keep_mask_at_its_ends() -> None:
    position = torch.arange(100)
    assert rng.keep_mask(0, position, (100,), 0).all()
    assert not rng.keep_mask(0, position, (100,), 65536).any()


@settings(deadline=None)
@given(key=KEYS, dropped=st.integers(0, 65535), count=st.integers(0, 9), number=st.integers(0, 9))
def test_tensors_give_the_masks_of_numbers(key: int, dropped: int, count: int, number: int) -> None:
    """Compiled code reads the key and the probability from tensors."""
    position = torch.arange(-3, 4)
    want = rng.keep_mask(rng.nth_key(key, number), position, (count,), dropped)
    held = rng.nth_key(torch.tensor(key), number)
    assert rng.keep_mask(held, position, (count,), torch.tensor(dropped)).equal(want)


@settings(deadline=None)
@given(parts=st.lists(st.one_of(st.integers(), st.text(max_size=3)), min_size=1, max_size=3))
def test_keys_tell_names_apart(parts: list[int | str]) -> None:
    key = rng.make_key(*parts)
    assert -(2**63) <= key < 2**63
    assert key == rng.make_key(*parts)
    assert key != rng.make_key(*parts, "")
    for place, part in enumerate(parts):
        if isinstance(part, int):  # 1 and "1" are two names
            assert key != rng.make_key(*parts[:place], str(part), *parts[place + 1 :])


def test_the_draws_of_a_key_stay() -> None:
    """A change of these numbers would make every run differ from older ones."""
    key = rng.make_key(0, "z", 3)
    assert key == 2776391691006183513
    position = torch.arange(2)
    assert rng.integers(key, position, 0, 1000, (3,)).tolist() == [[196, 211, 192], [677, 241, 722]]
    uniform = rng.uniform(key, position, (2,), torch.float64)
    assert uniform.tolist() == [
        [0.19620612022011324, 0.21174281560150526],
        [0.6774171645499549, 0.24163746859541052],
    ]
    normal = rng.normal(key, position, (2,), torch.float64)
    assert normal[0].tolist() == pytest.approx([-1.3122683591941784, -1.2390039672468993], rel=1e-14)


# Batches


def batch(rows: int, start: int = 0, size: int | None = None, step: int = 0, seed: int = 0) -> Batch:
    position = torch.arange(start, start + rows)
    return Batch(torch.zeros(rows, 4), size or rows, position, position, seed, step, 0)


@settings(deadline=None)
@given(rows=st.integers(0, 20), parts=st.integers(1, 6))
def test_parts_are_rows_of_the_batch(rows: int, parts: int) -> None:
    whole = batch(rows)
    noise, numbers = whole.noise("z", (3,)), whole.randint("t", 0, 50)
    uniform = whole.uniform("u")
    found = list(whole.split(parts))
    assert len(found) == parts
    assert max(map(len, found)) - min(map(len, found)) <= 1
    assert torch.cat([part.noise("z", (3,)) for part in found]).equal(noise)
    assert torch.cat([part.randint("t", 0, 50) for part in found]).equal(numbers)
    assert torch.cat([part.uniform("u") for part in found]).equal(uniform)
    assert torch.cat([part.index for part in found]).equal(whole.index)
    assert all(part.size == whole.size for part in found)
    assert all(part.shared_noise("s", (7,)).equal(whole.shared_noise("s", (7,))) for part in found)


def test_steps_seeds_and_names_draw_anew() -> None:
    drawn = [
        each.noise(name, (4,))
        for each in (batch(5), batch(5, step=1), batch(5, seed=1), batch(5, start=5))
        for name in ("a", "b")
    ]
    for one, other in itertools.combinations(drawn, 2):
        assert not one.equal(other)


def test_draws_have_the_datas_dtype_unless_told() -> None:
    position = torch.arange(3)
    for dtype in (torch.float32, torch.float64):
        own = Batch({"label": position, "x": torch.zeros(3, 2, dtype=dtype)}, 3, position, position, 0, 0, 0)
        assert own.noise("z", (2,)).dtype == dtype
        assert own.shared_noise("z", (2,)).dtype == dtype
        assert own.noise("z", (2,), torch.float32).dtype == torch.float32
    assert Batch(position, 3, position, position, 0, 0, 0).noise("z", ()).dtype == torch.get_default_dtype()


def test_a_batch_of_one_tensor_and_of_two() -> None:
    x, y = torch.zeros(3, 2), torch.ones(3)
    position = torch.arange(3)
    pair = Batch((x, y), 3, position, position, 0, 0, 0)
    assert pair.x is x
    assert pair.y is y
    assert pair[1] is y
    alone = Batch(x, 3, position, position, 0, 0, 0)
    assert alone.x is x
    assert len(alone) == 3


# Dropout


def dropped(layer: nn.Module, current: CurrentPart, part: Batch, x: Tensor) -> Tensor:
    current.set(part)
    try:
        return layer(x)
    finally:
        current.set(None)


@pytest.mark.parametrize(
    ("kind", "shape"),
    [
        (nn.Dropout, (6,)),
        (nn.Dropout, (5, 3)),
        (nn.Dropout1d, (4, 5)),
        (nn.Dropout2d, (4, 3, 3)),
        (nn.Dropout3d, (4, 2, 2, 2)),
    ],
)
@pytest.mark.parametrize("copies", [1, 2])
def test_two_shares_masks_are_slices_of_the_whole(
    kind: type[nn.Module], shape: tuple[int, ...], copies: int
) -> None:
    """And differ. Copies: a model may stack its rows, as SEAN's and attention's reshapes do."""
    current = CurrentPart()
    model = nn.Sequential(nn.Identity(), kind(0.4))
    key_dropout(model, current)
    layer = model[1]
    assert isinstance(layer, KeyedDropout)
    whole = dropped(layer, current, batch(12), torch.ones(12 * copies, *shape))
    first = dropped(layer, current, batch(5, 0, 12), torch.ones(5 * copies, *shape))
    second = dropped(layer, current, batch(7, 5, 12), torch.ones(7 * copies, *shape))
    rows = whole.view(copies, 12, *shape)
    assert first.view(copies, 5, *shape).equal(rows[:, :5])
    assert second.view(copies, 7, *shape).equal(rows[:, 5:])
    assert not first.view(copies, 5, *shape).equal(second.view(copies, 7, *shape)[:, :5])
    if copies == 2:
        assert not rows[0].equal(rows[1])
    if kind is not nn.Dropout:  # whole channels
        flat = whole.flatten(2)
        assert (flat == flat[..., :1]).all()
    assert whole.unique().tolist() == pytest.approx([0.0, 1 / 0.6], rel=1e-4)


def test_calls_layers_and_steps_have_masks_of_their_own() -> None:
    current = CurrentPart()
    model = nn.Sequential(nn.Dropout(0.5), nn.Dropout(0.5))
    key_dropout(model, current)
    x = torch.ones(8, 32)
    current.set(batch(8))
    masks = [model[0](x), model[0](x), model[1](x)]
    current.set(batch(8, step=1))
    masks.append(model[0](x))
    for one, other in itertools.combinations(masks, 2):
        assert not one.equal(other)
    current.set(batch(8))
    assert model[0](x).equal(masks[0])


def test_dropout_keeps_the_mean_and_is_off_in_evaluation() -> None:
    current = CurrentPart()
    model = nn.Sequential(nn.Dropout(0.25))
    key_dropout(model, current)
    x = torch.ones(200, 100)
    assert dropped(model[0], current, batch(200), x).mean() == pytest.approx(1.0, abs=0.02)
    model.eval()
    assert model(x) is x


def test_dropout_outside_a_part_or_over_other_rows_is_refused() -> None:
    current = CurrentPart()
    model = nn.Sequential(nn.Dropout(0.25))
    key_dropout(model, current)
    with pytest.raises(
        ParallelError, match=r"dropout layer '0': no batch is being computed; run the forward pass inside"
    ):
        model(torch.ones(4, 3))
    with pytest.raises(ParallelError, match=r"dropout layer '0': its input has 7 rows where the part has 3"):
        dropped(model[0], current, batch(3), torch.ones(7, 2))
    with pytest.raises(ParallelError, match="a bare Dropout cannot be wrapped"):
        key_dropout(nn.Dropout(0.1), current)


@pytest.mark.parametrize(
    "layer",
    [
        nn.MultiheadAttention(4, 2, dropout=0.1),
        nn.LSTM(4, 4, num_layers=2, dropout=0.1),
        nn.GRU(4, 4, num_layers=2, dropout=0.1),
        nn.AlphaDropout(0.1),
        nn.FeatureAlphaDropout(0.1),
        nn.RReLU(),
        nn.TransformerEncoderLayer(4, 2, 8),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_draws_inside_torch_are_refused_by_name(layer: nn.Module) -> None:
    with pytest.raises(ParallelError, match="'inner"):
        key_dropout(nn.ModuleDict({"inner": layer}), CurrentPart())


@pytest.mark.parametrize(
    "layer", [nn.MultiheadAttention(4, 2), nn.LSTM(4, 4), nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0)]
)
def test_the_same_layers_without_dropout_are_fine(layer: nn.Module) -> None:
    key_dropout(nn.ModuleDict({"inner": layer}), CurrentPart())
