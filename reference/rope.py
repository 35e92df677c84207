"""Rotary position embedding: pairs of coordinates turned by an angle that grows with the position. Frequencies are rope_scaling's."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from . import arguments
from .arguments import Float64
from .rope_scaling import Scaling, rope_frequencies

Pairing = Literal["half", "interleaved"]
_FARTHEST = 2**53                                                               # the last run of whole numbers that float64 holds


def rope(x: ArrayLike, positions: ArrayLike, *, pairing: Pairing, base: float = 10000.0, rotary_dim: int | None = None,
         scaling: Scaling = None) -> Float64:
    """x with each pair of its first rotary_dim coordinates turned by position x frequency: float64, the shape of x.

        (a_i, b_i) -> m (a_i cos t_i - b_i sin t_i,  a_i sin t_i + b_i cos t_i),   t_i = position f_i

    x (..., T, D); positions of any shape that broadcasts to x.shape[:-1], whole numbers, negative ones legal. f and m as
    in `rope_frequencies`; m = 1 but for yarn. R = rotary_dim, None: D; coordinates from R on stay as they are.

        pairing = "half"          pair i is (x_i, x_(i + R/2))     Llama, GPT-NeoX
        pairing = "interleaved"   pair i is (x_2i, x_(2i + 1))     the paper, GPT-J, DeepSeek

    Both read and write their coordinates at the same places. Position 0 is the identity (times m); norms are kept; the
    product of a turned q and a turned k depends on the difference of their positions alone; without m, turning by a and
    then by b is turning by a + b, which is how a cache of keys is moved to other positions. A NaN or an infinity in x
    spreads within its pair.

    >>> rope([[1.0, 2.0, 3.0, 4.0]], [0], pairing="half")
    array([[1., 2., 3., 4.]])
    >>> rope([1.0, 0.0, 0.0, 0.0], 1, pairing="half").round(3), rope([1.0, 0.0, 0.0, 0.0], 1, pairing="interleaved").round(3)
    (array([0.54 , 0.   , 0.841, 0.   ]), array([0.54 , 0.841, 0.   , 0.   ]))

    Raises ValueError or TypeError that names the argument, what came and what is wanted.
    Error bound: ((3 + |ln f_i|) |t_i| + 4) u m (|a_i| + |b_i|), and |t_i| times that of f where it is scaled: it grows
    with the angle, and so does that of any kernel: one that computes t in float32 is off by 2^-24 |t_i|.
    Source: Su et al. 2021 (arXiv 2104.09864), equations 15 and 34.
    """
    x = arguments.widen("x", x)
    if x.ndim == 0:
        raise ValueError("x: got a number; want at least one axis")
    R = x.shape[-1] if rotary_dim is None else arguments.whole_number("rotary_dim", rotary_dim, least=2)
    if not 2 <= R <= x.shape[-1] or R % 2:
        raise ValueError(f"rotary_dim: got {R} for x of shape {x.shape}; want an even number in 2..{x.shape[-1]}")
    a, b = _pairs(pairing, R)
    f, m = rope_frequencies(R, base=base, scaling=scaling)                      # (R / 2,)
    p = arguments.broadcast("positions", arguments.integers("positions", positions, least=-_FARTHEST, most=_FARTHEST), x.shape[:-1])
    t = p[..., None] * f                                                        # (..., T, R / 2): float64, also where x was narrow
    cos, sin = m * np.cos(t), m * np.sin(t)
    out = x.copy()
    with np.errstate(invalid="ignore", over="ignore"):
        # Written where it was read: vllm-project/vllm-metal#44 joined the halves of interleaved pairs end to end.
        out[..., a] = x[..., a] * cos - x[..., b] * sin
        out[..., b] = x[..., a] * sin + x[..., b] * cos
    return out


def _pairs(pairing: Pairing, R: int) -> tuple[slice, slice]:
    """Where the first and the second of every pair stand, in the order of the frequencies.

    One place decides it for x and for the angles: raiyanyahya/how-to-train-your-gpt#7 laid them out differently.
    """
    if pairing == "half":
        return slice(0, R // 2), slice(R // 2, R)
    if pairing == "interleaved":
        return slice(0, R, 2), slice(1, R, 2)
    raise ValueError(f"pairing: got {pairing!r}; want 'half' or 'interleaved'")
