"""The gradient of looking tokens up in a table: rows added up where a token stands."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from . import arguments
from .arguments import Float64


def embedding_backward(tokens: ArrayLike, dx: ArrayLike, *, vocabulary: int) -> Float64:
    """The gradient of sum(dx * table[tokens]) with respect to the table: float64 (V, E).

        dtable[v] = sum over places with token v of dx

    tokens (...), dx (..., E). A token that stands often gets all of its rows, not the last one.

    >>> embedding_backward([0, 2, 0], [[1.0], [2.0], [4.0]], vocabulary=3).tolist()
    [[5.0], [0.0], [2.0]]

    Raises ValueError or TypeError that names the argument. Error bound: (n - 1) u sum |dx| for a token that stands n times.
    Source: the definition of a table look-up.
    """
    V = arguments.whole_number("vocabulary", vocabulary, least=1)
    ids = arguments.integers("tokens", tokens, least=0, most=V - 1)
    dx = arguments.widen("dx", dx)
    if dx.shape[:-1] != ids.shape or dx.ndim == 0:
        raise ValueError(f"dx: got shape {dx.shape} for tokens {ids.shape}; want {ids.shape} and one axis more")
    table = np.zeros((V, dx.shape[-1]))
    np.add.at(table, ids.reshape(-1), dx.reshape(-1, dx.shape[-1]))
    return table
