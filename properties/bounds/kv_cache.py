"""The bounds for what is copied into a cache and counted beside it: nothing is rounded, so nothing is allowed."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from oracles.properties.arithmetic import ResolvedArithmetic
from oracles.reference.arguments import Float64


def write_kv_bound(arithmetic: ResolvedArithmetic, k_cache: ArrayLike, v_cache: ArrayLike, k: ArrayLike, v: ArrayLike,
                   slots: ArrayLike) -> dict[str, Float64]:
    """How far caches may be from the exact ones: {"k_cache", "v_cache"}, 0 everywhere.

        |error| = 0

    Tokens are copied, whatever the arithmetic. NaN is wanted where the cache held NaN, its bits are the business of
    `other_slots_keep_their_bits`.

    >>> from oracles.properties import Arithmetic
    >>> zeros = np.zeros((2, 1, 1))
    >>> write_kv_bound(Arithmetic().resolve("float32"), zeros, zeros, zeros[:1], zeros[:1], [0])["k_cache"].ravel()
    array([0., 0.])
    """
    return {"k_cache": np.zeros(np.shape(k_cache)), "v_cache": np.zeros(np.shape(v_cache))}


def padded_positions_bound(arithmetic: ResolvedArithmetic, present: ArrayLike, *, past: int = 0) -> dict[str, Float64]:
    """How far positions may be from the exact ones: {"positions" (B, L - past)}, 0 everywhere, whatever the arithmetic: they are integers.

        |error| = 0

    >>> from oracles.properties import Arithmetic
    >>> padded_positions_bound(Arithmetic().resolve("float32"), [[True, False]], past=1)["positions"]
    array([[0.]])
    """
    B, L = np.shape(present)
    return {"positions": np.zeros((B, L - past))}
