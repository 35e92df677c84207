"""The textbook formulas of tensor parallelism, one element at a time, in mpmath: those of one rank, and where an element of it lies."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from . import textbook_losses, textbook_optimizers
from .textbook_attention import mp
from .textbook_collectives import member, number

Element = Callable[[str, tuple[int, ...]], Any]


def column_parallel(arguments: Mapping[str, Any]) -> Element:
    """Row times column, and the bias of that column."""
    x = np.asarray(arguments["x"])

    def element(name: str, index: tuple[int, ...]) -> Any:
        (t, n), w = index, arguments["w_shards"][member(name)]
        return mp().fsum(number(x, (t, c)) * number(w, (c, n)) for c in range(x.shape[1])) + number(
            arguments["bias_shards"][member(name)], (n,))  # fmt: skip

    return element


def row_parallel(arguments: Mapping[str, Any]) -> Element:
    """The same over the rows of all ranks."""
    pairs = list(zip(arguments["x_shards"], arguments["w_shards"]))

    def element(name: str, index: tuple[int, ...]) -> Any:
        t, n = index
        parts = (number(x, (t, c)) * number(w, (c, n)) for x, w in pairs for c in range(len(w)))
        return mp().fsum(parts) + number(arguments["bias"], (n,))

    return element


def shard_qkv(arguments: Mapping[str, Any]) -> Element:
    """Query head h is on rank h R / H, and reads key head h Hkv / H."""
    H, Hkv, R = (int(arguments[name]) for name in ("heads", "kv_heads", "world"))

    def element(name: str, index: tuple[int, ...]) -> Any:
        letter, n = name[0], H if name[0] == "q" else Hkv
        w, row, column = arguments[f"w_{letter}"], *index
        D = w.shape[1] // n
        held = [h if letter == "q" else h // (H // Hkv) for h in range(H) if h // (H // R) == member(name)]
        return number(w, (row, list(dict.fromkeys(held))[column // D] * D + column % D))

    return element


def vocab_parallel_embedding(arguments: Mapping[str, Any]) -> Element:
    """The row of the token."""
    return lambda name, index: number(arguments["table"], (int(arguments["tokens"][index[:-1]]), index[-1]))


def vocab_parallel_cross_entropy_backward(arguments: Mapping[str, Any]) -> Element:
    """The gradient of class r V / R + i, shard r's number i."""
    shards = np.asarray(arguments["shards"])
    R, n = shards.shape[0], shards.shape[-1]
    logits = np.stack([shards[c // n, ..., c % n] for c in range(R * n)], axis=-1)
    whole = textbook_losses.cross_entropy_backward({**arguments, "logits": logits})
    return lambda name, index: whole("dlogits", (*index[1:-1], index[0] * n + index[-1]))


def norm_backward_sharded(arguments: Mapping[str, Any]) -> Element:
    """Each vector by itself; the weight's over the vectors of all ranks."""
    eps = mp().mpf(float(arguments.get("eps", 1e-6)))

    def element(name: str, index: tuple[int, ...]) -> Any:
        if name.startswith("dx"):
            x, d = (arguments[side][member(name)][index[:-1]] for side in ("x_shards", "dout_shards"))
            return norm_slope(x, arguments["weight"], d, eps, index[-1])
        return mp().fsum(number(d, (*at, index[0])) * number(x, (*at, index[0])) / norm_root(x[at], eps)
                         for x, d in zip(arguments["x_shards"], arguments["dout_shards"]) for at in np.ndindex(*x.shape[:-1]))  # fmt: skip

    return element


def norm_root(x: Any, eps: Any) -> Any:
    """sqrt(mean(x^2) + eps) of one vector."""
    return mp().sqrt(mp().fsum(mp().mpf(float(one)) ** 2 for one in x) / len(x) + eps)


def norm_slope(x: Any, weight: Any, d: Any, eps: Any, i: int) -> Any:
    """sum_j d_j w_j dn_j/dx_i,   dn_j/dx_i = [i = j] / r - x_i x_j / (D r^3)."""
    r, D = norm_root(x, eps), len(x)
    a, w, dy = ([mp().mpf(float(one)) for one in row] for row in (x, weight, d))
    return mp().fsum(dy[j] * w[j] * ((1 if i == j else 0) / r - a[i] * a[j] / (D * r**3)) for j in range(D))


def clip_grad_norm_sharded(arguments: Mapping[str, Any]) -> Element:
    """One rank's clip, of all parts of what is cut and one copy of the rest."""
    kinds = [int(kind) for kind in arguments["placement"]]
    grads = [g if kind else g[:1] for g, kind in zip(arguments["grads"], kinds)]
    whole = textbook_optimizers.clip_grad_norm({"grads": grads, "max_norm": arguments["max_norm"]})

    def element(name: str, index: tuple[int, ...]) -> Any:
        copy = name != "norm" and not kinds[member(name)]
        return whole(name, (0, *index[1:]) if copy else index)

    return element
