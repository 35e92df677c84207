"""Legal variants of the sampling family: other sorts and thresholds, declared ties and orders, other uses of uniforms, own generators."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..arithmetic import Arithmetic
from . import textbook_decoding as textbook
from .specimen import variant
from .textbook_decoding import Array, filter_row, softmax

FAMILY = "sampling"
FORMATS = ["float32", "float64", "float16", "bfloat16"]


def _wide(x: Any) -> Array:
    return np.asarray(x, dtype=np.float64)


@variant("filter_probabilities", id="filter-textbook", family=FAMILY, dtypes=FORMATS)
def filter_as_in_the_book(logits: Any, *, temperature: Any = 1.0, top_k: Any = None, top_p: Any = None, min_p: Any = None) -> Array:
    """One stable descending sort, a cumulative sum, one quotient."""
    return textbook.filtered(logits, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)


@variant("filter_probabilities", id="filter-in-float64", family=FAMILY, dtypes=FORMATS,
         arithmetic=Arithmetic(accumulate="float64", elementwise="float64"))
def filter_in_float64(logits: Any, *, temperature: Any = 1.0, top_k: Any = None, top_p: Any = None, min_p: Any = None) -> Array:
    """Everything in float64, rounded once at the end."""
    return textbook.filtered(_wide(logits), temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p).astype(logits.dtype)


@variant("filter_probabilities", id="filter-ascending-sort", family=FAMILY, conventions={"top_p_ties": "highest"},
         source="https://github.com/huggingface/transformers/blob/main/src/transformers/generation/logits_process.py")
def filter_by_ascending_sums(logits: Any, *, temperature: Any = 1.0, top_k: Any = None, top_p: Any = None, min_p: Any = None) -> Array:
    """Sums from the least likely token on: dropped while they are at most 1 - top_p; of equal ones the first go first."""
    def nucleus(p: Array, kept: Array, order: Array, share: Any) -> Array:
        w = np.where(kept, p, 0)
        ascending = np.argsort(w, kind="stable")
        inside = np.ones(len(p), dtype=bool)
        inside[ascending] = np.cumsum(w[ascending] / w.sum()) > 1 - share
        inside[ascending[-1]] = True
        return inside

    return textbook.filtered(logits, lambda *row: filter_row(*row, nucleus=nucleus), temperature=temperature, top_k=top_k, top_p=top_p,
                             min_p=min_p)  # fmt: skip


@variant("filter_probabilities", id="filter-minus-infinity-between", family=FAMILY)
def filter_by_masks_of_logits(logits: Any, *, temperature: Any = 1.0, top_k: Any = None, top_p: Any = None, min_p: Any = None) -> Array:
    """Every filter takes a softmax anew and puts -inf in place of what it drops."""
    def row(z: Array, t: Any, k: Any, share: Any, least: Any) -> Array:
        if t == 0:
            return softmax(z, t)
        z = z / z.dtype.type(t)
        threshold = None if least is None else np.isneginf(z) | (softmax(z, 1.0) < least * softmax(z, 1.0).max())
        z = z if k is None else np.where(filter_row(z, 1.0, k, None, None) > 0, z, -np.inf)
        z = z if share is None else np.where(filter_row(z, 1.0, None, share, None) > 0, z, -np.inf)
        z = z if threshold is None else np.where(threshold, -np.inf, z).astype(z.dtype)
        return softmax(z.astype(logits.dtype), 1.0)

    return textbook.filtered(logits, row, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)


@variant("filter_probabilities", id="filter-threshold-keeps-ties", family=FAMILY, conventions={"top_k_ties": "all"})
def filter_by_the_kth_largest(logits: Any, *, temperature: Any = 1.0, top_k: Any = None, top_p: Any = None, min_p: Any = None) -> Array:
    """The k-th largest logit is found without a sort; all that are not below it are kept."""
    def row(z: Array, t: Any, k: Any, share: Any, least: Any) -> Array:
        if k is not None and t != 0 and k < len(z):
            z = np.where(z >= np.partition(z, len(z) - int(k))[len(z) - int(k)], z, -np.inf)
        return filter_row(z, t, None, share, least)

    return textbook.filtered(logits, row, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)


@variant("filter_probabilities", id="filter-without-a-sort", family=FAMILY)
def filter_by_counting(logits: Any, *, temperature: Any = 1.0, top_k: Any = None, top_p: Any = None, min_p: Any = None) -> Array:
    """Rank and mass before each token are counted by comparing it with all others: no sort, no cumulative sum."""
    def row(z: Array, t: Any, k: Any, share: Any, least: Any) -> Array:
        p, i = softmax(z, t), np.arange(len(z))
        if t == 0:
            return p
        before = (z[:, None] < z) | ((z[:, None] == z) & (i < i[:, None]))      # (V, V): the second comes before the first
        kept = before.sum(axis=1) < (len(z) if k is None else k)
        if share is not None:
            w = np.where(kept, p, 0)
            kept &= before.astype(p.dtype) @ w < p.dtype.type(share) * w.sum()
        w = np.where(kept & (p >= (0 if least is None else p.dtype.type(least)) * p.max()), p, 0)
        return np.asarray(w / w.sum())

    return textbook.filtered(logits, row, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)


@variant("filter_probabilities", id="filter-min-p-before-top-p", family=FAMILY, conventions={"min_p_order": "before_top_p"})
def filter_min_p_first(logits: Any, *, temperature: Any = 1.0, top_k: Any = None, top_p: Any = None, min_p: Any = None) -> Array:
    """Min-p comes before top-p, which is a share of what it left."""
    def row(z: Array, t: Any, k: Any, share: Any, least: Any) -> Array:
        left = filter_row(z, t, k, None, least)
        return left if share is None else filter_row(np.where(left > 0, z, -np.inf), t, None, share, None)

    return textbook.filtered(logits, row, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)


@variant("filter_probabilities", id="filter-joint-top-k-top-p", family=FAMILY, conventions={"top_p_of": "all"},
         source="https://docs.flashinfer.ai/generated/flashinfer.sampling.top_k_top_p_sampling_from_probs.html")
def filter_jointly(logits: Any, *, temperature: Any = 1.0, top_k: Any = None, top_p: Any = None, min_p: Any = None) -> Array:
    """Top-p is a share of the whole distribution, whatever top-k drops."""
    def row(z: Array, t: Any, k: Any, share: Any, least: Any) -> Array:
        w = np.where(filter_row(z, t, None, share, None) > 0, filter_row(z, t, k, None, least), 0)
        return np.asarray(w / w.sum())

    return textbook.filtered(logits, row, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)


@variant("filter_probabilities", id="filter-crossing-token-dropped", family=FAMILY, conventions={"top_p_crossing": "dropped"})
def filter_without_the_crossing_token(
    logits: Any, *, temperature: Any = 1.0, top_k: Any = None, top_p: Any = None, min_p: Any = None
) -> Array:  # fmt: skip
    """Tokens are kept while their sum does not exceed top_p, the first in any case: declared."""
    def nucleus(p: Array, kept: Array, order: Array, share: Any) -> Array:
        w = np.where(kept, p, 0)[order]
        inside = np.zeros(len(p), dtype=bool)
        inside[order] = np.cumsum(w) <= share * w.sum()
        inside[order[0]] = True
        return inside

    return textbook.filtered(logits, lambda *row: filter_row(*row, nucleus=nucleus), temperature=temperature, top_k=top_k, top_p=top_p,
                             min_p=min_p)  # fmt: skip


@variant("filter_probabilities", id="filter-any-of-equal-ones", family=FAMILY,
         conventions={"top_k_ties": "any", "top_p_ties": "any", "argmax_ties": "any"})
def filter_with_an_unstable_sort(logits: Any, *, temperature: Any = 1.0, top_k: Any = None, top_p: Any = None, min_p: Any = None) -> Array:
    """The sort takes equal logits in any order, another one for each row."""
    def row(z: Array, t: Any, k: Any, share: Any, least: Any) -> Array:
        order = np.random.default_rng(len(z)).permutation(len(z))
        p = np.empty_like(z)
        p[order] = filter_row(z[order], t, k, share, least)
        return p

    return textbook.filtered(logits, row, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)


@variant("apply_penalties", id="penalties-textbook", family=FAMILY, dtypes=FORMATS)
def penalties_by_counts(
    logits: Any, tokens: Any, *, prompt_lengths: Any = None, repetition: Any = 1.0, frequency: Any = 0.0, presence: Any = 0.0
) -> Array:  # fmt: skip
    """Counts of each row's history and of its output, applied row by row."""
    z, B = textbook.working(logits), len(tokens)
    start = textbook.per_row(0 if prompt_lengths is None else prompt_lengths, B)
    columns = [textbook.per_row(x, B) for x in (repetition, frequency, presence)]
    rows = [textbook.penalised_row(z[i], tokens[i], tokens[i, int(start[i]) :], *(c[i] for c in columns)) for i in range(B)]
    return np.array(rows).reshape(z.shape).astype(logits.dtype)


@variant("apply_penalties", id="penalties-token-by-token", family=FAMILY)
def penalties_one_by_one(
    logits: Any, tokens: Any, *, prompt_lengths: Any = None, repetition: Any = 1.0, frequency: Any = 0.0, presence: Any = 0.0
) -> Array:  # fmt: skip
    """The history is walked: repetition and presence at a token's first place, frequency at each."""
    z = textbook.working(logits).copy()
    B, T = tokens.shape
    start = textbook.per_row(0 if prompt_lengths is None else prompt_lengths, B)
    r, f, once = (textbook.per_row(x, B) for x in (repetition, frequency, presence))
    for i in range(B):
        for token in set(tokens[i].tolist()) - {-1}:
            z[i, token] = z[i, token] / z.dtype.type(r[i]) if z[i, token] > 0 else z[i, token] * z.dtype.type(r[i])
        for token in set(tokens[i, int(start[i]) :].tolist()) - {-1}:
            z[i, token] -= z.dtype.type(once[i])
        for t in range(int(start[i]), T):
            if tokens[i, t] >= 0:
                z[i, tokens[i, t]] -= z.dtype.type(f[i])
    return z.astype(logits.dtype)


# Draws -------------------------------------------------------------------------------------------------------------------


@variant("sample", id="sample-textbook", family=FAMILY, dtypes=FORMATS)
def sample_by_bisection(probabilities: Any, u: Any) -> Array:
    """The cumulative sum is searched by bisection."""
    return np.array([textbook.drawn(row, x) for row, x in zip(textbook.working(probabilities), u)], dtype=np.int64)


@variant("sample", id="sample-one-after-another", family=FAMILY)
def sample_by_subtraction(probabilities: Any, u: Any) -> Array:
    """Weights are taken off u S one after another until it is below 0."""
    p, tokens = textbook.working(probabilities), np.zeros(len(u), dtype=np.int64)
    for b, row in enumerate(p):
        rest, c = u[b] * row.sum(), row.dtype.type(0)
        for i in np.flatnonzero(row):
            tokens[b], c = i, c + row[i]
            if rest < c:
                break
    return tokens


@variant("sample", id="sample-normalised-first", family=FAMILY)
def sample_of_the_normalised(probabilities: Any, u: Any) -> Array:
    """Each weight is divided by the sum first, and the sums are compared with u itself."""
    p = textbook.working(probabilities)
    c = np.cumsum(p / p.sum(axis=-1, keepdims=True), axis=-1)
    last = (np.cumsum(p > 0, axis=-1) < (p > 0).sum(axis=-1, keepdims=True)).sum(axis=-1)
    return np.asarray(np.minimum((c <= u[:, None]).sum(axis=-1), last), dtype=np.int64)


@variant("sample", id="sample-in-blocks", family=FAMILY)
def sample_by_blocks_of_32(probabilities: Any, u: Any) -> Array:
    """Sums of blocks of 32 first, then the tokens of the block that u S falls into."""
    tokens = np.zeros(len(u), dtype=np.int64)
    for b, row in enumerate(textbook.working(probabilities)):
        blocks = [row[i : i + 32] for i in range(0, len(row), 32)]
        ends = np.cumsum([block.sum(dtype=row.dtype) for block in blocks], dtype=row.dtype)
        at = min(int(np.searchsorted(ends, u[b] * ends[-1], side="right")), int(np.flatnonzero(row)[-1]) // 32)
        rest = u[b] * ends[-1] - (ends[at - 1] if at else 0)
        inside = int((np.cumsum(blocks[at]) <= rest).sum())
        later = np.flatnonzero(row[at * 32 + min(inside, len(blocks[at]) - 1) :])
        here = np.flatnonzero(blocks[at])
        tokens[b] = at * 32 + (min(inside, int(here[-1])) if len(here) else inside) if len(here) else at * 32 + int(later[0])
    return tokens


@variant("sample", id="sample-from-the-other-end", family=FAMILY, conventions={"uniforms": "other"})
def sample_backwards(probabilities: Any, u: Any) -> Array:
    """The last token stands at 0: another token for the same uniform, and the same law."""
    p = textbook.working(probabilities)[:, ::-1]
    return np.array([p.shape[1] - 1 - textbook.drawn(row, x) for row, x in zip(p, u)], dtype=np.int64)


@variant("sample", id="sample-most-likely-first", family=FAMILY, conventions={"uniforms": "other"})
def sample_in_descending_order(probabilities: Any, u: Any) -> Array:
    """The most likely token stands at 0, as in libraries that sort before they draw."""
    p = textbook.working(probabilities)
    order = np.argsort(-p, axis=-1, kind="stable")
    return np.array([places[textbook.drawn(row[places], x)] for row, places, x in zip(p, order, u)], dtype=np.int64)


@variant("sample", id="sample-by-alias-tables", family=FAMILY, conventions={"uniforms": "other"},
         source="Walker 1977 (doi 10.1145/355744.355749)")
def sample_by_aliases(probabilities: Any, u: Any) -> Array:
    """V equal cells, each shared by at most two tokens: one uniform chooses the cell and the token in it."""
    tokens = np.zeros(len(u), dtype=np.int64)
    for b, row in enumerate(_wide(probabilities)):
        V, share, alias = len(row), row / row.sum() * len(row), np.arange(len(row))
        small, large = [i for i in range(V) if share[i] < 1], [i for i in range(V) if share[i] >= 1]
        while small and large:
            i, j = small.pop(), large.pop()
            alias[i] = j
            share[j] -= 1 - share[i]
            (small if share[j] < 1 else large).append(j)
        cell = int(_wide(u)[b] * V)
        inside = float(_wide(u)[b]) * V - cell < share[cell]
        tokens[b] = cell if inside and row[cell] > 0 else alias[cell] if row[alias[cell]] > 0 else int(row.argmax())
    return tokens


@variant("sample", id="sample-gumbel-max", family=FAMILY, dtypes=FORMATS, conventions={"uniforms": "own"},
         source="Maddison et al. 2014 (arXiv 1411.0030), section 2")
def sample_by_gumbel_noise(probabilities: Any, u: Any) -> Array:
    """The largest of ln p + Gumbel noise, from a generator of its own in float64."""
    with np.errstate(divide="ignore"):
        z = np.log(_wide(probabilities))
    return np.asarray((z + np.random.default_rng().gumbel(size=z.shape)).argmax(axis=-1), dtype=np.int64)


@variant("sample", id="sample-exponential-race", family=FAMILY, conventions={"uniforms": "own"}, dtypes=FORMATS)
def sample_by_a_race(probabilities: Any, u: Any) -> Array:
    """The least of e / p wins, e exponential in float64; what has no weight does not run."""
    p = _wide(probabilities)
    e = np.random.default_rng().standard_exponential(p.shape)
    with np.errstate(divide="ignore"):
        return np.asarray((e / p).argmin(axis=-1), dtype=np.int64)


@variant("sample", id="sample-own-uniforms", family=FAMILY, conventions={"uniforms": "own"})
def sample_with_its_own_uniforms(probabilities: Any, u: Any) -> Array:
    """The inverse of the distribution function, at uniforms of its own."""
    p, own = textbook.working(probabilities), np.random.default_rng()
    c = np.cumsum(p, axis=-1, dtype=np.float64)
    past = own.uniform(size=(len(p), 1)) * c[:, -1:] >= c
    return np.asarray(np.minimum(past.sum(axis=-1), p.shape[-1] - 1 - (p[:, ::-1] > 0).argmax(axis=-1)), dtype=np.int64)
