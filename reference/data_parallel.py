"""Data parallelism: gradients of R ranks brought together, in buckets, after accumulation. What is kept of them where is left to `zero`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from . import arguments
from .arguments import Float64, Int64
from .collectives import Algorithm, Traffic, all_reduce, no_traffic


def accumulate_gradients(grads: ArrayLike, tokens: ArrayLike) -> Float64:
    """The gradient of the mean loss over all tokens of all ranks and micro-batches, on every rank: (R, ...).

        out_r = sum_r sum_a g_ra / sum_r sum_a n_ra,    g_ra the gradient of the *sum* of the token losses of micro-batch a of rank r

    grads (R, A, ...), tokens (R, A) numbers of tokens that count. Each rank adds up its micro-batches, one all_reduce adds the
    ranks, and the one division is by the number of all tokens: neither a mean of means over micro-batches
    (ml-explore/mlx-lm#1413) nor over ranks (huggingface/transformers#34373). No token at all: 0.

    >>> accumulate_gradients([[[1.0], [12.0]]], [[1, 3]])
    array([[3.25]])

    Raises ValueError for shapes that do not fit and negative counts, TypeError for counts that are no integers.
    Error bound: g(R A + 1, u) sum |g| / n.
    Source: Goyal et al. 2017 (arXiv 1706.02677), section 3; the token counts: huggingface/transformers#34191.
    """
    g = arguments.widen("grads", grads)
    if g.ndim < 2 or g.shape[0] == 0:
        raise ValueError(f"grads: got shape {g.shape}; want (R, A, ...), at least one rank")
    n = arguments.integers("tokens", tokens, g.shape[:2], least=0, most=2**53)
    sums, _ = all_reduce(list(g.sum(axis=1)))                                   # R of (...)
    totals, _ = all_reduce(list(n.sum(axis=1)))                                 # R of ()
    return np.stack([s / t if t else np.zeros_like(s) for s, t in zip(sums, totals)])


def bucket_schedule(sizes: Sequence[int], order: Sequence[int], *, bucket_elements: int) -> list[list[int]]:
    """The gradients of each bucket, taken in the order in which they arrive: one more goes in as long as it fits.

    >>> bucket_schedule([4, 1, 2, 9], [3, 2, 1, 0], bucket_elements=5)
    [[3], [2, 1], [0]]

    A gradient larger than a bucket has one of its own. Raises ValueError for an order that is no permutation.
    """
    size = arguments.whole_number("bucket_elements", bucket_elements, least=1)
    if sorted(order) != list(range(len(sizes))):
        raise ValueError(f"arrival: got {list(order)}; want each of 0..{len(sizes) - 1} once")
    buckets: list[list[int]] = []
    filled = size
    for k in order:
        if not buckets or filled + sizes[k] > size:
            buckets.append([])
            filled = 0
        buckets[-1].append(k)
        filled += sizes[k]
    return buckets


def bucketed_all_reduce(grads: Sequence[ArrayLike], arrival: ArrayLike, *, bucket_elements: int) -> tuple[list[Float64], Traffic]:
    """The mean over the ranks of each gradient, on every rank, in buckets: K arrays (R, ...), and the traffic.

        out_k[r] = sum_r g_k[r] / R

    grads: K arrays (R, ...), row r what rank r holds of gradient k. arrival (R, K): the order in which each rank's gradients
    become ready. Buckets are cut in the order of rank 0 and sent when the last of theirs is ready everywhere, so that all ranks
    reduce the same things together, whatever order is theirs; the answer depends on neither arrival nor bucket_elements.

    >>> out, traffic = bucketed_all_reduce([[[1.0], [3.0]], [[2.0], [6.0]]], [[1, 0], [0, 1]], bucket_elements=1)
    >>> out[0].tolist(), out[1].tolist(), traffic.steps
    ([[2.0], [2.0]], [[4.0], [4.0]], 4)

    Raises ValueError for shapes that do not fit, an arrival that is no permutation, a bucket of less than one element.
    Error bound: g(R, u) sum_r |g_k[r]| / R. Traffic: 2 P (R - 1) / R elements a rank where R divides every bucket.
    Source: Li et al. 2020 (arXiv 2006.15704), section 3.2.
    """
    held = [arguments.widen(f"grads[{k}]", g) for k, g in enumerate(grads)]
    R = held[0].shape[0] if held and held[0].ndim else 0
    for k, g in enumerate(held):
        if g.ndim == 0 or g.shape[0] != R or R == 0:
            raise ValueError(f"grads[{k}]: got shape {g.shape}; want ({R or 'R'}, ...), a row for each rank")
    if not held:
        return [], no_traffic(1)
    orders: Int64 = arguments.integers("arrival", arrival, (R, len(held)), least=0, most=len(held) - 1)
    for order in orders.tolist():
        bucket_schedule([0] * len(held), order, bucket_elements=1)              # raises where it is no permutation
    schedule = bucket_schedule([g[0].size for g in held], orders[0].tolist(), bucket_elements=bucket_elements)
    out, total = [np.empty_like(g) for g in held], no_traffic(R)
    for bucket in schedule:
        flat = [np.concatenate([held[k][r].reshape(-1) for k in bucket]) for r in range(R)]
        reduced, traffic = all_reduce(flat, op="mean")
        total = total + traffic
        ends = np.cumsum([held[k][0].size for k in bucket])[:-1]
        for r in range(R):
            for k, part in zip(bucket, np.split(reduced[r], ends)):
                out[k][r] = part.reshape(held[k].shape[1:])
    return out, total


def tied_gradients(grads: ArrayLike) -> Float64:
    """The gradient of a weight of which the first and the last pipeline stage hold a copy: the sum over copies of the mean over ranks.

        out[s, r] = sum_s (sum_r g[s, r]) / R

    grads (S, R, ...): copy s, data-parallel rank r. The copies are added before anything is scattered: in the flat buffers of
    two stages they lie at different places, so that shards of one are no shards of the other (NVIDIA/Megatron-LM#844).

    >>> tied_gradients([[1.0, 2.0], [4.0, 8.0]]).tolist()
    [[7.5, 7.5], [7.5, 7.5]]

    Raises ValueError for fewer than two axes or none of one. Error bound: g(S R, u) sum |g| / R.
    Source: Shoeybi et al. 2019 (arXiv 1909.08053); Press and Wolf 2017 (arXiv 1608.05859).
    """
    g = arguments.widen("grads", grads)
    if g.ndim < 2 or 0 in g.shape[:2]:
        raise ValueError(f"grads: got shape {g.shape}; want (S, R, ...), at least one copy and one rank")
    over_copies = [all_reduce(list(g[:, r]))[0] for r in range(g.shape[1])]     # [r][s]
    over_ranks = [all_reduce([over_copies[r][s] for r in range(g.shape[1])], op="mean")[0] for s in range(g.shape[0])]  # [s][r]
    return np.array(over_ranks)


class DataParallel:
    """R copies of a model: micro-batches add up on each rank, `synchronise` brings them together once a step.

    >>> dp = DataParallel(2, bucket_elements=4)
    >>> dp.accumulate([[[1.0]], [[12.0]]], tokens=[1, 3])
    >>> dp.synchronise()[1], dp.traffic.sent
    ([array([3.25])], (8, 8))

    Nothing is sent by `accumulate` (modelscope/FunASR#3472 sent the first micro-batch only). Gradients are those of sums of token
    losses, tokens how many each rank counted. Raises ValueError for another number of ranks or gradients than before.
    Source: Li et al. 2020 (arXiv 2006.15704).
    """

    def __init__(self, world: int, *, bucket_elements: int, algorithm: Algorithm = "ring") -> None:
        self.world = arguments.whole_number("world", world, least=1)
        self.bucket_elements = arguments.whole_number("bucket_elements", bucket_elements, least=1)
        self.algorithm: Algorithm = algorithm
        self.traffic = no_traffic(world)
        self._sums: list[list[Float64]] = []
        self._tokens = [0] * world

    def accumulate(self, grads: Sequence[Sequence[ArrayLike]], *, tokens: Sequence[int]) -> None:
        """Add one micro-batch of every rank: grads[r], the gradients of rank r, tokens[r], the tokens it counted."""
        if len(grads) != self.world or len(tokens) != self.world:
            raise ValueError(f"grads: got {len(grads)} lists and {len(tokens)} counts; want {self.world}, one for each rank")
        new = [[arguments.widen(f"grads[{r}][{k}]", g) for k, g in enumerate(own)] for r, own in enumerate(grads)]
        if self._sums and [[g.shape for g in own] for own in new] != [[g.shape for g in own] for own in self._sums]:
            raise ValueError("grads: got other shapes than those of the micro-batches before")
        self._sums = [[a + b for a, b in zip(old, own)] for old, own in zip(self._sums, new)] if self._sums else new
        self._tokens = [old + arguments.whole_number("tokens", n, least=0) for old, n in zip(self._tokens, tokens)]

    def synchronise(self) -> list[list[Float64]]:
        """The gradients of the mean over all tokens, on each rank; what was accumulated is forgotten. traffic is that of the gradients."""
        if not self._sums:
            raise ValueError("grads: nothing was accumulated")
        total = int(all_reduce([np.asarray(n) for n in self._tokens])[0][0])
        sizes = [g.size for g in self._sums[0]]
        self.traffic = no_traffic(self.world)
        out = [[np.empty_like(g) for g in own] for own in self._sums]
        for bucket in bucket_schedule(sizes, range(len(sizes))[::-1], bucket_elements=self.bucket_elements):
            flat = [np.concatenate([own[k].reshape(-1) for k in bucket]) for own in self._sums]
            reduced, traffic = all_reduce(flat, algorithm=self.algorithm)
            self.traffic = self.traffic + traffic
            ends = np.cumsum([sizes[k] for k in bucket])[:-1]
            for own, whole in zip(out, reduced):
                for k, part in zip(bucket, np.split(whole, ends)):
                    own[k][...] = part.reshape(own[k].shape) / total if total else 0.0
        self._sums, self._tokens = [], [0] * self.world
        return out
