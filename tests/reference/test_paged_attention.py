"""Paged attention against attention over the same tokens side by side, however the pages lie."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from oracles.reference import attention, paged_attention, slot_mapping, write_kv

pytestmark = pytest.mark.filterwarnings("error")
LENGTHS = [7, 0, 3, 8]
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {"causal": None}, "causal": {"causal": "bottom_right"}, "top left": {"causal": "top_left"},
    "window": {"causal": "bottom_right", "window": (2, 0)}, "window both sides": {"causal": None, "window": (1, 1)},
    "softcap": {"causal": "bottom_right", "softcap": 1.5, "scale": -0.5},
    "sinks": {"causal": "bottom_right", "sinks": np.array([0.0, 1.0, -2.0, 3.0])}}


def sequences(seed: int = 0) -> Any:
    r = np.random.default_rng(seed)
    return r.normal(size=(4, 4, 3, 5)), r.normal(size=(4, 8, 2, 5)), r.normal(size=(4, 8, 2, 6))


def paged(k: Any, v: Any, lengths: Any, *, block_size: int, seed: int = 0, fill: float = np.nan) -> Any:
    """The tokens in pages in random order, poison in every slot that holds none; tables and pages."""
    r, B = np.random.default_rng(seed), len(lengths)
    most = -(-8 // block_size)
    free = r.permutation(B * most + 3)
    k_pages, v_pages = (np.full((len(free), block_size, *x.shape[2:]), fill) for x in (k, v))
    tables = np.full((B, most), -1)
    for b in range(B):
        for i in range(-(-lengths[b] // block_size)):
            tables[b, i], free = free[0], free[1:]
        for t in range(lengths[b]):
            page, offset = tables[b, t // block_size], t % block_size
            k_pages[page, offset], v_pages[page, offset] = k[b, t], v[b, t]
    return k_pages, v_pages, tables, np.array(lengths)


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("block_size", [1, 2, 3, 8, 64])
def test_paged_is_contiguous_for_any_block_size_and_order(name: str, block_size: int) -> None:
    q, k, v = sequences()
    got = paged_attention(q, *paged(k, v, LENGTHS, block_size=block_size, seed=block_size), **OPTIONS[name])
    for b, n in enumerate(LENGTHS):
        one = attention(q[b : b + 1], k[b : b + 1, :n].swapaxes(1, 2), v[b : b + 1, :n].swapaxes(1, 2), **OPTIONS[name])
        for x, y in zip(got, one):
            np.testing.assert_array_equal(x[b], y[0])


@pytest.mark.parametrize("fill", [np.nan, np.inf, 1e30])
def test_what_stands_in_unused_slots_changes_nothing(fill: float) -> None:
    q, k, v = sequences()
    for x, y in zip(paged_attention(q, *paged(k, v, LENGTHS, block_size=4, fill=fill), causal="bottom_right"),
                    paged_attention(q, *paged(k, v, LENGTHS, block_size=4, fill=0.0), causal="bottom_right")):
        np.testing.assert_array_equal(x, y)


def test_entries_past_the_last_block_change_nothing() -> None:
    q, k, v = sequences()
    k_pages, v_pages, tables, lengths = paged(k, v, LENGTHS, block_size=2)
    stale = np.where(tables < 0, 0, tables)
    for x, y in zip(paged_attention(q, k_pages, v_pages, stale, lengths, causal=None),
                    paged_attention(q, k_pages, v_pages, tables, lengths, causal=None)):
        np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("name", OPTIONS)
def test_each_sequence_has_as_many_queries_as_are_its_own(name: str) -> None:
    q, k, v = sequences()
    n_q = [1, 0, 3, 2]
    out, lse = paged_attention(q, *paged(k, v, LENGTHS, block_size=4), query_lengths=n_q, **OPTIONS[name])
    for b, n in enumerate(n_q):
        one = attention(q[b : b + 1, :, :n], *(x[b : b + 1, : LENGTHS[b]].swapaxes(1, 2) for x in (k, v)), **OPTIONS[name])
        np.testing.assert_array_equal(out[b, :, :n], one[0][0])
        np.testing.assert_array_equal(lse[b, :, :n], one[1][0])
        assert (out[b, :, n:] == 0).all()
        assert np.isneginf(lse[b, :, n:]).all()


def test_sequences_may_share_pages() -> None:
    q, k, v = sequences()
    k_pages, v_pages, tables, _ = paged(k, v, LENGTHS, block_size=2)
    tables[2] = tables[0]
    out, _ = paged_attention(q, k_pages, v_pages, tables, [7, 0, 5, 8], causal="bottom_right")
    one, _ = attention(q[2:3], *(x[:1, :5].swapaxes(1, 2) for x in (k, v)), causal="bottom_right")
    np.testing.assert_array_equal(out[2], one[0])


def test_tokens_written_through_slots_are_the_ones_attended_to() -> None:
    q, k, v = sequences()
    k_pages, v_pages, tables, _ = paged(k, v, LENGTHS, block_size=4)
    k_pages, v_pages = np.full_like(k_pages, np.nan), np.full_like(v_pages, np.nan)
    slots = slot_mapping(tables[0], range(7), block_size=4)
    flat = write_kv(k_pages.reshape(-1, 2, 5), v_pages.reshape(-1, 2, 6), k[0, :7], v[0, :7], slots)
    got = paged_attention(q[:1], flat[0].reshape(k_pages.shape), flat[1].reshape(v_pages.shape), tables[:1], [7], causal=None)
    for x, y in zip(got, attention(q[:1], k[:1, :7].swapaxes(1, 2), v[:1, :7].swapaxes(1, 2), causal=None)):
        np.testing.assert_array_equal(x, y)


def test_narrow_pages_are_widened_exactly() -> None:
    q, k, v = sequences()
    k_pages, v_pages, tables, lengths = paged(k, v, LENGTHS, block_size=4, fill=0.0)
    narrow = [x.astype(ml_dtypes.bfloat16) for x in (k_pages, v_pages)]
    for x, y in zip(paged_attention(q, *narrow, tables, lengths, causal=None),
                    paged_attention(q, *(x.astype(np.float64) for x in narrow), tables, lengths, causal=None)):
        np.testing.assert_array_equal(x, y)


def test_inputs_are_not_changed() -> None:
    q, k, v = sequences()
    given, again = paged(k, v, LENGTHS, block_size=4), paged(k, v, LENGTHS, block_size=4)
    paged_attention(q, *given, causal=None)
    for x, y in zip([q, *given], [sequences()[0], *again]):
        np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize(("B", "Lq", "N", "blocks"), [(0, 3, 2, 1), (1, 0, 2, 1), (2, 3, 0, 0), (2, 3, 4, 0)])
def test_empty_axes_are_legal(B: int, Lq: int, N: int, blocks: int) -> None:
    out, lse = paged_attention(np.zeros((B, 4, Lq, 5)), np.zeros((N, 2, 2, 5)), np.zeros((N, 2, 2, 6)), np.full((B, blocks), -1),
                               np.zeros(B, int), causal="bottom_right")
    assert (out.shape, lse.shape) == ((B, 4, Lq, 6), (B, 4, Lq))


@pytest.mark.parametrize(("changed", "error", "words"), [
    ({"block_tables": [[0, -1]]}, ValueError, r"block_tables: got \[0, -1\] for sequence 0 of 3 tokens; want 2 blocks before the first -1"),
    ({"block_tables": [[0, 3]]}, ValueError, r"block_tables: got numbers from 0 to 3; want -1\.\.2"),
    ({"block_tables": [0, 1]}, ValueError, r"block_tables: got shape \(2,\) beside q \(1, 4, 2, 5\); want \(1, max_blocks\)"),
    ({"kv_lengths": [5]}, ValueError, r"kv_lengths: got numbers from 5 to 5; want 0\.\.4"),
    ({"kv_lengths": [1, 2]}, ValueError, r"kv_lengths: got shape \(2,\); want \(1,\)"),
    ({"query_lengths": [3]}, ValueError, r"query_lengths: got numbers from 3 to 3; want 0\.\.2"),
    ({"v_pages": np.zeros((3, 2, 1, 6))}, ValueError, r"v_pages: got shape \(3, 2, 1, 6\) beside k_pages \(3, 2, 2, 5\); want"),
    ({"q": np.zeros((1, 3, 2, 5))}, ValueError, "k: got 2 key/value heads for 3 query heads"),
    ({"q": np.zeros((1, 4, 2, 4))}, ValueError, r"k: got shape \(1, 2, 0, 5\) beside q"),
    ({"causal": True}, ValueError, "causal: got True"),
    ({"causal": True, "q": np.zeros((0, 4, 2, 5)), "block_tables": np.zeros((0, 2), int), "kv_lengths": []}, ValueError, "causal: got"),
    ({"k_pages": np.zeros((3, 2, 2, 5), int)}, TypeError, "k_pages: got dtype int64"),
])
def test_bad_input_is_refused_by_name(changed: dict[str, Any], error: type[Exception], words: str) -> None:
    given = {"q": np.zeros((1, 4, 2, 5)), "k_pages": np.zeros((3, 2, 2, 5)), "v_pages": np.zeros((3, 2, 2, 6)),
             "block_tables": [[0, 1]], "kv_lengths": [3], "causal": None, **changed}
    with pytest.raises(error, match=words):
        paged_attention(**given)


def test_slots_of_nothing_stay_nothing() -> None:
    assert slot_mapping([3, -1], [[0, -1], [1, 2]], block_size=2).tolist() == [[6, -1], [7, -1]]
    with pytest.raises(ValueError, match=r"positions: got numbers from 4 to 4; want -1\.\.3"):
        slot_mapping([3, -1], [4], block_size=2)
    with pytest.raises(ValueError, match=r"table: got shape \(1, 2\); want one axis"):
        slot_mapping([[3, -1]], [0], block_size=2)
