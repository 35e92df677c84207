"""The textbook formulas of context parallelism, one element at a time, in mpmath: where a token stands is found by counting."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from .textbook_attention import TextbookRows, mp
from .textbook_collectives import member, number
from .textbook_shards import norm_root, norm_slope

Element = Callable[[str, tuple[int, ...]], Any]


def ring_attention(arguments: Mapping[str, Any]) -> Element:
    """Forward and backward: an element of a shard is that of its token in the whole sequence."""
    shards = {letter: arguments[f"{letter}_shards"] for letter in ("q", "k", "v", "dout") if f"{letter}_shards" in arguments}
    R, n = len(shards["q"]), shards["q"][0].shape[2]
    at = _homes(R, n, arguments.get("order", "contiguous"))
    whole = {letter: np.stack([held[r][:, :, i] for r, i in at], axis=2) if at else held[0] for letter, held in shards.items()}
    B, L = whole["q"].shape[0], R * n
    mask = np.ones((B, 1, L, L), dtype=bool)
    if "segments" in arguments:
        for b, i, j in np.ndindex(B, L, L):
            mine, theirs = (int(arguments["segments"][b, t]) for t in (i, j))
            mask[b, 0, i, j] = mine == theirs != -1
    rows = TextbookRows({**whole, "mask": mask, "causal": arguments["causal"], "scale": arguments.get("scale")})

    def element(name: str, index: tuple[int, ...]) -> Any:
        b, h, i, *rest = index
        return rows.element(name.partition(".")[0], (b, h, at.index((member(name), i)), *rest))

    return element


def _homes(R: int, n: int, order: str) -> list[tuple[int, int]]:
    """The rank that holds each token of the sequence, and its place there: dealt out in pieces, there and back again in zig-zag order."""
    pieces = [*range(R)] if order == "contiguous" else [*range(R), *reversed(range(R))]
    homes, held = [], [0] * R
    for rank in pieces:
        for _ in range(R * n // len(pieces)):
            homes.append((rank, held[rank]))
            held[rank] += 1
    return homes


def sharded_cache_attention(arguments: Mapping[str, Any]) -> Element:
    """Tokens dealt out in turns, until the last that is asked for has been."""
    k, v, q = arguments["k_shards"], arguments["v_shards"], np.asarray(arguments["q"])
    R, S = len(k), k[0].shape[2]
    homes, held = list[tuple[int, int]](), [0] * R
    while len(homes) < R * S:
        for rank in range(R):
            for _ in range(int(arguments["interleave"])):
                homes.append((rank, held[rank]))
                held[rank] += 1
    rows = []
    for b, asked in enumerate(np.asarray(arguments["indices"]).tolist()):
        at = [homes[g] for g in asked if g != -1]
        given = {}
        for letter, side in (("k", k), ("v", v)):
            _, heads, _, width = side[0].shape
            tokens = [side[r][b, :, i] for r, i in at]
            given[letter] = np.asarray(tokens, dtype=side[0].dtype).reshape(len(at), heads, width).swapaxes(0, 1)[None]
        rows.append(TextbookRows({"q": q[b : b + 1, :, None], **given, "causal": None, "scale": arguments.get("scale")}))
    return lambda name, index: rows[index[0]].element(name, (0, index[1], 0, *index[2:]))


def exchanged_norm_backward(arguments: Mapping[str, Any]) -> Element:
    """Head h of token t came to rank h R / H, t its place in the sequence."""
    x, dy, eps = arguments["x_shards"], arguments["dy_shards"], mp().mpf(float(arguments.get("eps", 1e-6)))
    n, each = x[0].shape[2], dy[0].shape[1]

    def upstream(r: int, b: int, h: int, t: int) -> Any:
        return dy[h // each][b, h % each, r * n + t]

    def element(name: str, index: tuple[int, ...]) -> Any:
        if name != "dweight":
            (b, h, t, i), r = index, member(name)
            return norm_slope(x[r][b, h, t], arguments["weight"], upstream(r, b, h, t), eps, i)
        return mp().fsum(number(upstream(r, *at), index) * number(x[r][at], index) / norm_root(x[r][at], eps)
                         for r in range(len(x)) for at in np.ndindex(*x[r].shape[:-1]))  # fmt: skip

    return element
