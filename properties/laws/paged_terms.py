"""Paged terms: what the laws of paged attention ask of a case, and how they put keys into pages and take them out."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from oracles.reference import slot_mapping, visible_keys

from ..case import Case
from ..safetensors_file import Array
from .attention_terms import VISIBILITY_TERMS, chosen

PAGES = ("k_pages", "v_pages")


def query_lengths(case: Case) -> NDArray[np.int64]:
    """How many queries of each sequence are no padding, (B,)."""
    B, _, Lq, _ = case.arrays["q"].shape
    return np.asarray(case.arrays.get("query_lengths", np.full(B, Lq)), dtype=np.int64)


def padding(case: Case) -> NDArray[np.bool_]:
    """Which queries are padding: bool (B, Lq)."""
    return np.asarray(np.arange(case.arrays["q"].shape[2]) >= query_lengths(case)[:, None])


def slots(case: Case) -> list[NDArray[np.int64]]:
    """The slots of each sequence's tokens, in order, in pages laid end to end."""
    S = case.arrays["k_pages"].shape[1]
    return [slot_mapping(table, np.arange(n), block_size=S) for table, n in zip(case.arrays["block_tables"], case.arrays["kv_lengths"])]


def used(case: Case) -> NDArray[np.bool_]:
    """Which slots hold a token of some sequence: bool (N, S)."""
    N, S = case.arrays["k_pages"].shape[:2]
    flags = np.zeros(N * S, dtype=bool)
    for at in slots(case):
        flags[at] = True
    return flags.reshape(N, S)


def visible(case: Case) -> Iterator[tuple[int, int, NDArray[np.bool_]]]:
    """Of each sequence: its number, how many queries it has, and which keys each of them sees, bool (Hq, n, n_k)."""
    Hq = case.arrays["q"].shape[1]
    terms = {name: value for name, value in chosen(case, VISIBILITY_TERMS).items() if name in ("causal", "window")}
    for b, (n, n_k) in enumerate(zip(query_lengths(case), case.arrays["kv_lengths"])):
        yield b, int(n), visible_keys(1, Hq, int(n), int(n_k), **terms)[0]


def counts(case: Case) -> NDArray[np.int64]:
    """How many keys each query sees: (B, Hq, Lq), 0 for padding."""
    seen = np.zeros(case.arrays["q"].shape[:3], dtype=np.int64)
    for b, n, flags in visible(case):
        seen[b, :, :n] = flags.sum(axis=-1)
    return seen


def is_empty(case: Case) -> bool:
    """Whether there is no query, or no sequence has a key."""
    return case.arrays["q"].size == 0 or 0 in case.arrays["v_pages"].shape or not case.arrays["kv_lengths"].any()


def contiguous(case: Case) -> Case:
    """The same tokens as a call of attention: k (B, Hkv, Lk, D), v, kv_lengths. query_lengths are left out: all queries are asked."""
    n_k = case.arrays["kv_lengths"]
    Lk = int(n_k.max(initial=0))
    arrays = {"q": case.arrays["q"]}
    for name, pages in (("k", case.arrays["k_pages"]), ("v", case.arrays["v_pages"])):
        flat = pages.reshape(-1, *pages.shape[2:])
        x = np.zeros((len(n_k), Lk, *flat.shape[1:]), pages.dtype)
        for b, at in enumerate(slots(case)):
            x[b, : len(at)] = flat[at]
        arrays[name] = np.ascontiguousarray(x.swapaxes(1, 2))
    arrays |= {"kv_lengths": n_k} | {name: case.arrays[name] for name in ("sinks",) if name in case.arrays}
    return Case("attention", arrays, case.options, case.origin, case.notes)


def paged(attention: Case, case: Case, *, block_size: int | None = None) -> Case:
    """The keys of a call of attention in pages of a pool of their own, each sequence's in an order drawn from the hash of `case`.

    A page of nobody stands among them; what no token fills is NaN where the pages of `case` hold NaN, else 1. block_size: that
    of `case`, or another.
    """
    k, v, n_k = (attention.arrays[name] for name in ("k", "v", "kv_lengths"))
    S = block_size or case.arrays["k_pages"].shape[1]
    needed = -(-n_k // S)
    N = int(needed.sum()) + 1
    order = np.random.default_rng(int(case.hash, 16)).permutation(N)
    tables = np.full((len(n_k), int(needed.max(initial=0)) + 1), -1, dtype=np.int64)
    filler = np.nan if any(np.isnan(case.arrays[name].astype(np.float64)).any() for name in PAGES) else 1.0
    pools = [np.full((N * S, x.shape[1], x.shape[3]), filler).astype(x.dtype) for x in (k, v)]
    for b, blocks in enumerate(np.split(order[:-1], np.cumsum(needed)[:-1]) if len(n_k) else []):
        tables[b, : len(blocks)] = blocks
        at = (blocks[:, None] * S + np.arange(S)).ravel()[: n_k[b]]
        for pool, x in zip(pools, (k, v)):
            pool[at] = x[b, :, : n_k[b]].swapaxes(0, 1)
    k_pages, v_pages = (pool.reshape(N, S, *pool.shape[1:]) for pool in pools)
    arrays: dict[str, Array] = {"q": attention.arrays["q"], "k_pages": k_pages, "v_pages": v_pages, "block_tables": tables,
                                "kv_lengths": n_k}  # fmt: skip
    arrays |= {name: attention.arrays[name] for name in ("sinks",) if name in attention.arrays}
    return Case("paged_attention", arrays, attention.options, case.origin, case.notes)


def repaged(case: Case, *, block_size: int | None = None) -> Case:
    """The same call with the tokens of every sequence in pages of its own, elsewhere."""
    moved = paged(contiguous(case), case, block_size=block_size)
    return case.with_arrays(**{name: moved.arrays[name] for name in (*PAGES, "block_tables")})
