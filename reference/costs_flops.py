"""FLOPs of a model by formula, attention's quadratic part included, and the share of a device's peak that they are."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from . import arguments
from .arguments import Int64
from .costs_kv import Config, read_config
from .costs_parameters import parameter_count

Pairs = Literal["causal", "all"]


def attention_pairs(n: int, *, causal: bool, window: int | None = None) -> int:
    """Pairs of a query and a key of n tokens: n^2, or n (n + 1) / 2 causal, each query with at most the last `window` keys.

    >>> attention_pairs(4, causal=False), attention_pairs(4, causal=True), attention_pairs(4, causal=True, window=2)
    (16, 10, 7)

    Raises ValueError for a window of what is not causal. Exact.
    """
    n = arguments.whole_number("n", n, least=0)
    if not causal:
        return n * n
    w = n if window is None else min(n, arguments.whole_number("window", window, least=1))
    return w * (w + 1) // 2 + (n - w) * w


def model_flops(lengths: ArrayLike, *, config: Config, pairs: Pairs, backward: bool = False) -> Int64:
    """FLOPs of the forward pass over sequences of these lengths, three times that with the backward: int64, the shape of lengths.

        2 N n + 2 Hq (Dqk + Dv) x sum over layers of pairs,   a multiply-add counted as two
        N = parameters that a token is multiplied with: the active ones without an input table that is only looked up
        pairs "causal": n (n + 1) / 2 in each layer, fewer in windowed ones;  "all": n^2

    "all" is the count of many published utilisations (12 layers h n for each token in training), which charges causal
    models for what they skip. Dqk = Dn + Dr for latent attention, built out. Norms count as 2 a parameter, softmax,
    activation functions and a recomputed forward as nothing.

    >>> small = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 128, "vocab_size": 32000}
    >>> model_flops([1, 100], config=small, pairs="causal")
    array([  4178560, 419123200])

    Raises ValueError for a negative length, other pairs or a config without sizes, OverflowError past 2^63. Exact integers.
    Source: Kaplan et al. 2020 (arXiv 2001.08361), section 2.1; Chowdhery et al. 2022 (arXiv 2204.02311), appendix B; the table that is
    only looked up: tenstorrent/tt-metal#50114; causal pairs: verl-project/verl#4959.
    """
    sizes = read_config(config)
    if pairs not in ("causal", "all"):
        raise ValueError(f"pairs: got {pairs!r}; want 'causal' or 'all'")
    causal = pairs == "causal"
    n = arguments.integers("lengths", lengths, least=0, most=2**40)
    multiplied, windowed = parameter_count(sizes).multiplied, sizes.windowed_layers if causal else 0
    flops = []
    for length in n.ravel().tolist():
        full, kept = (attention_pairs(length, causal=causal, window=w) for w in (None, sizes.window if causal else None))
        met = (sizes.layers - windowed) * full + windowed * kept
        forward = 2 * multiplied * length + 2 * sizes.query_heads * (sizes.score_dim + sizes.output_dim) * met
        flops.append(forward * (3 if backward else 1))
    return np.array(flops, dtype=np.int64).reshape(n.shape)


def utilisation(tokens_per_second: float, flops_per_token: float, *, peak_flops_per_second: float) -> float:
    """Model FLOPs utilisation: the share of a peak that the model's own FLOPs are. Recomputation is no work.

    >>> utilisation(4000.0, 6 * 8e9, peak_flops_per_second=480e12)
    0.4

    Raises ValueError for numbers not above 0. Source: Chowdhery et al. 2022 (arXiv 2204.02311), section 4.1.
    """
    speed, flops, peak = (arguments.real_number(name, x, positive=True) for name, x in (
        ("tokens_per_second", tokens_per_second), ("flops_per_token", flops_per_token), ("peak_flops_per_second", peak_flops_per_second)))
    return speed * flops / peak
