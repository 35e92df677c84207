"""The cache of keys and values: what is written, seen, rolled back, and that decoding through it is recomputing."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from oracles.reference import KVCache, attention, padded_positions, write_kv

pytestmark = pytest.mark.filterwarnings("error")


def tokens(n: int, seed: int = 0, *, B: int = 2, H: int = 2) -> Any:
    r = np.random.default_rng(seed)
    return r.normal(size=(B, H, n, 3)), r.normal(size=(B, H, n, 4))


def slots_of(n: int, S: int = 6) -> Any:
    r = np.random.default_rng(5)
    return r.normal(size=(S, 2, 3)), r.normal(size=(S, 2, 4)), r.normal(size=(n, 2, 3)), r.normal(size=(n, 2, 4))


@pytest.mark.parametrize("slots", [[0, 1, 2], [5, 0, 3], [-1, 4, -1], [2, 2, 2], [-1, -1, -1], [3, 1, 3]])
def test_each_slot_holds_the_last_token_given_to_it(slots: list[int]) -> None:
    k_cache, v_cache, k, v = slots_of(3)
    for cache, x, got in zip((k_cache, v_cache), (k, v), write_kv(k_cache, v_cache, k, v, slots)):
        for s in range(6):
            given = [t for t in range(3) if slots[t] == s]
            np.testing.assert_array_equal(got[s], x[given[-1]] if given else cache[s])


def test_writing_changes_no_input() -> None:
    given = slots_of(3)
    write_kv(*given, [1, 2, 3])
    for x, y in zip(given, slots_of(3)):
        np.testing.assert_array_equal(x, y)


def test_poison_in_other_slots_stays_there() -> None:
    k_cache, v_cache, k, v = slots_of(2)
    k_cache[:], v_cache[:] = np.nan, np.inf
    got, _ = write_kv(k_cache, v_cache, k, v, [1, 4])
    assert np.isnan(got).all(axis=(1, 2)).tolist() == [True, False, True, True, False, True]


def test_narrow_tokens_are_widened_exactly() -> None:
    k_cache, v_cache, k, v = slots_of(2)
    k = k.astype(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(write_kv(k_cache, v_cache, k, v, [0, 1])[0][:2], k.astype(np.float64))


@pytest.mark.parametrize("S", [0, 3])
def test_no_tokens_are_legal(S: int) -> None:
    k_cache, v_cache, k, v = slots_of(0, S)
    np.testing.assert_array_equal(write_kv(k_cache, v_cache, k, v, [])[0], k_cache)


@pytest.mark.parametrize(("place", "value", "error", "words"), [
    (4, [0, 6], ValueError, "slots: got numbers from 0 to 6; want -1..5"),
    (4, [-2, 0], ValueError, "slots: got numbers from -2 to 0; want -1..5"),
    (4, [0, 1, 2], ValueError, r"slots: got shape \(3,\); want \(2,\)"),
    (4, [0.0, 1.0], TypeError, "slots: got dtype float64; want integers"),
    (1, np.zeros((5, 2, 4)), ValueError, r"v_cache: got shape \(5, 2, 4\) beside k_cache \(6, 2, 3\); want \(6, 2, Dv\)"),
    (2, np.zeros((2, 1, 3)), ValueError, r"k: got shape \(2, 1, 3\) beside k_cache \(6, 2, 3\); want \(T, 2, 3\)"),
    (3, np.zeros((2, 2, 3)), ValueError, r"v: got shape \(2, 2, 3\); want \(2, 2, 4\)"),
])
def test_bad_writes_are_refused_by_name(place: int, value: Any, error: type[Exception], words: str) -> None:
    given = [*slots_of(2), [0, 1]]
    given[place] = value
    with pytest.raises(error, match=words):
        write_kv(*given)


@pytest.mark.parametrize("window", [None, 0, 1, 3, 50])
@pytest.mark.parametrize("chunks", [[1] * 7, [4, 3], [7], [0, 2, 0, 5]])
def test_decoding_through_the_cache_is_attention_over_all_tokens(window: int | None, chunks: list[int], rounding: Any) -> None:
    (k, v), q = tokens(7), np.random.default_rng(1).normal(size=(2, 4, 7, 3))
    options: Any = {"causal": "bottom_right", "window": None if window is None else (window, 0)}
    cache, i = KVCache(window=window), 0
    want, bound = attention(q, k, v, **options)[0], rounding(q, k, v, options).out()
    for n in chunks:
        new = slice(i, i + n)
        cache.append(k[:, :, :0], v[:, :, :0])
        seen = [np.concatenate([old, x[:, :, new]], axis=2) for old, x in zip(cache.view(), (k, v))]
        out, _ = attention(q[:, :, new], *seen, **options)
        assert (np.abs(out - want[:, :, new]) <= 2 * bound[:, :, new]).all()
        cache.append(k[:, :, new], v[:, :, new])
        i += n
    assert len(cache) == 7


@pytest.mark.parametrize("window", [None, 0, 2, 9])
def test_a_view_is_the_last_tokens_of_the_window(window: int | None) -> None:
    cache = KVCache(window=window)
    k, v = tokens(5)
    for i in range(5):
        cache.append(k[:, :, i : i + 1], v[:, :, i : i + 1])
        first = 0 if window is None else max(0, i + 1 - window)
        for x, y in zip(cache.view(), (k, v)):
            np.testing.assert_array_equal(x, y[:, :, first : i + 1])
    assert len(cache) == 5


@pytest.mark.parametrize("window", [None, 2])
def test_rolled_back_it_goes_on_as_if_the_rest_had_never_come(window: int | None) -> None:
    k, v = tokens(8)
    cache, plain = KVCache(window=window), KVCache(window=window)
    cache.append(k[:, :, :6], v[:, :, :6])
    cache.crop(3)
    cache.append(k[:, :, 6:], v[:, :, 6:])
    plain.append(k[:, :, [0, 1, 2, 6, 7]], v[:, :, [0, 1, 2, 6, 7]])
    assert len(cache) == len(plain) == 5
    for x, y in zip(cache.view(), plain.view()):
        np.testing.assert_array_equal(x, y)


def test_selected_rows_are_whole_sequences_with_their_own_values() -> None:
    cache = KVCache()
    k, v = tokens(4, B=3)
    cache.append(k, v)
    cache.select([2, 0, 2])
    for x, y in zip(cache.view(), (k, v)):
        np.testing.assert_array_equal(x, y[[2, 0, 2]])


def test_views_are_copies() -> None:
    cache, (k, v) = KVCache(), tokens(3)
    cache.append(k, v)
    cache.view()[0][:] = np.nan
    k[:] = np.nan
    assert np.isfinite(cache.view()[0]).all()


def test_a_refused_append_changes_nothing() -> None:
    cache, (k, v) = KVCache(), tokens(3)
    cache.append(k, v)
    with pytest.raises(ValueError, match=r"v: got shape \(2, 2, 3, 3\) for a cache of \(2, 2, 3, 4\)"):
        cache.append(k, v[..., :3])
    assert len(cache) == 3


def test_bad_calls_of_the_cache_are_refused_by_name() -> None:
    cache, (k, v) = KVCache(), tokens(3)
    with pytest.raises(ValueError, match="cache: got one to which nothing was appended"):
        cache.view()
    with pytest.raises(ValueError, match="n: got 1 for a cache of 0 tokens"):
        cache.crop(1)
    cache.append(k, v)
    with pytest.raises(ValueError, match=r"n: got 4 for a cache of 3 tokens; want 0\.\.3"):
        cache.crop(4)
    with pytest.raises(ValueError, match="n: got -1"):
        cache.crop(-1)
    with pytest.raises(ValueError, match=r"v: got shape \(2, 2, 2, 4\) beside k \(2, 2, 3, 3\)"):
        cache.append(k, v[:, :, :2])
    with pytest.raises(ValueError, match=r"rows: got numbers from 0 to 2; want 0\.\.1"):
        cache.select([0, 2])
    with pytest.raises(ValueError, match="window: got -1; want a whole number >= 0"):
        KVCache(window=-1)


PRESENT = np.array([[False, False, True, True, True], [True, True, True, False, True], [False] * 5])


@pytest.mark.parametrize("past", range(6))
def test_positions_count_present_tokens_from_the_first_column_on(past: int) -> None:
    got = padded_positions(PRESENT, past=past)
    assert got.tolist() == [[max(0, int(row[: j + 1].sum()) - 1) for j in range(past, 5)] for row in PRESENT]


def test_bad_positions_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"past: got 6 for 5 columns; want 0\.\.5"):
        padded_positions(PRESENT, past=6)
    with pytest.raises(TypeError, match="present: got dtype int64; want bool"):
        padded_positions(PRESENT.astype(np.int64))
    with pytest.raises(ValueError, match=r"present: got shape \(5,\); want 2 axes"):
        padded_positions(PRESENT[0])
