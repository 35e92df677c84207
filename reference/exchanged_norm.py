"""A norm before an all-to-all, backward: the gradient comes back to its tokens before the norm is differentiated."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from . import arguments
from .arguments import Float64
from .collectives import exchange
from .rms_norm_backward import rms_norm_backward


def exchanged_norm_backward(dy_shards: Sequence[ArrayLike], x_shards: Sequence[ArrayLike], weight: ArrayLike, *,
                            eps: float = 1e-6) -> tuple[list[Float64], Float64]:
    """The gradients through an RMS norm and the all-to-all that follows it: dx, R arrays (B, H, L/R, D), and dweight (D,).

        all-to-all    dy of all tokens and H/R heads on each rank becomes dy of L/R tokens and all heads
        norm          dx_r = J(x_r)^T dy_r, on each rank with its own x
        dweight       summed over the ranks

    What forward did: each rank normalised the keys of its tokens, y_r = rms_norm(x_r, weight), and gave heads for tokens
    (`all_to_all_attention`). dy_r (B, H/R, L, D) is the gradient as attention leaves it, tokens in the order of the ranks;
    x_r (B, H, L/R, D). The two steps do not commute: x_r belongs to the tokens of rank r alone.

    >>> dx, dweight = exchanged_norm_backward([np.ones((1, 1, 1, 2))], [np.array([[[[3.0, 4.0]]]])], [1.0, 2.0], eps=0.0)
    >>> dx[0].round(6).ravel(), dweight.round(6)
    (array([-0.09051 ,  0.067882]), array([0.848528, 1.131371]))

    Raises ValueError or TypeError that names the argument, the rank, what came and what is wanted.
    Error bound: that of `rms_norm_backward`, dweight summed over all ranks.
    Source: Jacobs et al. 2023 (arXiv 2309.14509), section 3.1; the order: ByteDance-Seed/VeOmni#419.
    """
    R = len(x_shards)
    if R == 0 or len(dy_shards) != R:
        raise ValueError(f"dy_shards: got {len(dy_shards)} shards beside {R} of x_shards; want one for every rank, at least one")
    first = arguments.float_array("x_shards[0]", x_shards[0], ndim=4)
    (B, H, n, D), weight = first.shape, arguments.widen("weight", weight, first.shape[3:])
    if H % R:
        raise ValueError(f"x_shards: got {H} heads for {R} ranks; want a multiple of {R}, whole heads for every rank")
    x = [arguments.widen(f"x_shards[{r}]", shard, first.shape) for r, shard in enumerate(x_shards)]
    dy = [arguments.widen(f"dy_shards[{r}]", shard, (B, H // R, R * n, D)) for r, shard in enumerate(dy_shards)]
    parts, _ = exchange([np.split(shard, R, axis=2) for shard in dy])
    norms = [rms_norm_backward(own, weight, np.concatenate(received, axis=1), eps=eps) for own, received in zip(x, parts)]
    return [dx for dx, _ in norms], np.asarray(sum(dweight for _, dweight in norms))
