"""Attention arrays: what each level of an attention recipe stands for. Which levels to take is not decided here.

Every argument has a generator of its own, from the seed and the argument's place, so that taking one away leaves the others as they were.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oracles.reference import FloatFormat

Array = NDArray[Any]
PARTS = ("values", "dout", "window", "softcap", "bias", "mask", "kv_lengths", "sinks", "alibi", "dropout", "poison", "lengths")


def generator(seed: int, part: str) -> np.random.Generator:
    """The generator of one part of a case."""
    return np.random.default_rng((seed, PARTS.index(part)))


def scale_of(level: str, D: int) -> float | None:
    """default 1/sqrt(D), left out; twice the nearest power of two; 0.7 of it, in no format exact; the same below zero."""
    default = 1 / math.sqrt(D)
    power = 2.0 ** (1 + round(math.log2(default)))
    return {"default": None, "power_of_two": power, "odd": 0.7 * default, "negative": -0.7 * default}[level]


def window_of(level: str, Lk: int, g: np.random.Generator) -> tuple[int | None, int | None] | None:
    """Sides from 0, nothing but the current key, to a little more than half of the keys; each is 0 one time in eight."""
    left, right = (int(n) for n in np.where(g.uniform(size=2) < 0.125, 0, g.integers(1, Lk // 2 + 2, 2)))
    return {"none": None, "left": (left, None), "both": (left, right), "right": (None, right)}[level]


def softcap_of(level: str) -> float | None:
    """tight: most scores are bent; loose: the 30 of released models, only large scores are."""
    return {"none": None, "tight": 1.5, "loose": 30.0}[level]


def bias_of(level: str, shape: tuple[int, ...], fmt: FloatFormat, g: np.random.Generator) -> Array:
    """per_key (1, 1, 1, Lk), per_head (1, Hq, Lq, Lk), per_item (B, 1, Lq, Lk), per_head_key (1, Hq, 1, Lk).

    Others are full (B, Hq, Lq, Lk): normal numbers, or a tenth of them -inf.
    """
    B, Hq, Lq, Lk = shape
    broadcast = {"per_key": (1, 1, 1, Lk), "per_head": (1, Hq, Lq, Lk), "per_item": (B, 1, Lq, Lk), "per_head_key": (1, Hq, 1, Lk)}
    bias = g.standard_normal(broadcast.get(level, shape))
    if level == "minus_infinity" and fmt.has_infinity:
        bias = np.where(g.uniform(size=shape) < 0.1, -np.inf, bias)
    return fmt.cast(bias)


def mask_of(level: str, shape: tuple[int, ...], g: np.random.Generator) -> NDArray[np.bool_]:
    """True is visible: padding in front (B, 1, 1, Lk), random (B, Hq, Lq, Lk), blocks (1, 1, Lq, Lk), blind rows (B, 1, Lq, Lk)."""
    B, _, Lq, Lk = shape
    if level == "leading_padding":
        return np.asarray(np.arange(Lk) >= g.integers(0, Lk // 2 + 1, (B, 1, 1, 1)))
    if level == "random":
        return np.asarray(g.uniform(size=shape) < 0.7)
    if level == "block":
        blocks = int(g.integers(2, 4))
        same = np.arange(Lq)[:, None] * blocks // max(Lq, 1) == np.arange(Lk) * blocks // max(Lk, 1)
        return np.asarray(same[None, None])
    return np.broadcast_to(np.arange(Lq)[:, None] % 3 != g.integers(0, 2, (B, 1, 1, 1)), (B, 1, Lq, Lk)).copy()


def kv_lengths_of(level: str, B: int, Lk: int, g: np.random.Generator) -> NDArray[np.int64]:
    """ragged: from half of Lk to Lk; some_zero: ragged, and every third sequence empty; full: all Lk."""
    ragged = g.integers((Lk + 1) // 2, Lk + 1, B)
    lengths = {"ragged": ragged, "some_zero": np.where((np.arange(B) + g.integers(3)) % 3, ragged, 0), "full": np.full(B, Lk)}[level]
    return np.asarray(lengths, dtype=np.int64)


def sinks_of(level: str, Hq: int, fmt: FloatFormat, g: np.random.Generator) -> Array:
    """normal: as large as scores; dominant: most of the probability goes to the sink; towering: e^(sink - score) overflows in float32."""
    return fmt.cast(g.standard_normal(Hq) + {"normal": 0.0, "dominant": 8.0, "towering": 128.0}[level])


def alibi_of(Hq: int, fmt: FloatFormat) -> Array:
    """2^(-8 (h + 1) / Hq), in float32 for narrow formats. Source: Press et al. 2022 (arXiv 2108.12409), section 3."""
    wide = FloatFormat("float64" if fmt.name == "float64" else "float32")
    return wide.cast(2.0 ** (-8 * np.arange(1, Hq + 1) / max(Hq, 1)))


def dropout_p_of(level: str) -> float | None:
    """half: the factor 1 / (1 - p) is exact; tenth: it is not."""
    return {"none": None, "half": 0.5, "tenth": 0.1}[level]


def dropout_of(level: str, shape: tuple[int, ...], g: np.random.Generator) -> NDArray[np.bool_]:
    """True is kept, each with probability 1 - p."""
    return np.asarray(g.uniform(size=shape) >= (dropout_p_of(level) or 0.0))
