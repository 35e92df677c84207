"""Mutants of the sampling family: filters that keep too little or too much, histories mixed up, draws past the end and without a tail."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import textbook_decoding as textbook
from .specimen import mutant
from .textbook_decoding import Array, filter_row

FAMILY = "sampling"


def _logits(*rows: list[float]) -> Array:
    return np.log(np.array(rows, dtype=np.float32))


@mutant(
    "filter_probabilities", id="top-p-one-picks-argmax", family=FAMILY, source="https://github.com/BlinkDL/ChatRWKV/pull/170",
    trigger=lambda: {"logits": _logits([0.5, 0.3, 0.2]), "top_p": 1.0},
)  # fmt: skip
def cut_where_the_sum_exceeds(logits: Any, *, temperature: Any = 1.0, top_k: Any = None, top_p: Any = None, min_p: Any = None) -> Array:
    """The last token kept is the first whose sum exceeds top_p; no sum exceeds 1, and the first index of nothing is 0."""
    def nucleus(p: Array, kept: Array, order: Array, share: Any) -> Array:
        w = np.where(kept, p, 0)[order]
        last = int(np.argmax(np.cumsum(w / w.sum()) > share))
        return np.isin(np.arange(len(p)), order[: last + 1])

    return textbook.filtered(logits, lambda *row: filter_row(*row, nucleus=nucleus), temperature=temperature, top_k=top_k, top_p=top_p,
                             min_p=min_p)  # fmt: skip


@mutant(
    "filter_probabilities", id="top-p-after-unnormalised-top-k", family=FAMILY, source="https://github.com/ml-explore/mlx-lm/pull/388",
    trigger=lambda: {"logits": _logits([0.15, *[0.85 / 9] * 9]), "top_k": 1, "top_p": 0.8},
)  # fmt: skip
def share_of_what_was_never_renormalised(
    logits: Any, *, temperature: Any = 1.0, top_k: Any = None, top_p: Any = None, min_p: Any = None
) -> Array:  # fmt: skip
    """After top-k the masses no longer sum to 1, and the ascending sum never exceeds 1 - top_p: every token is dropped."""
    def row(z: Array, t: Any, k: Any, share: Any, least: Any) -> Array:
        if share is None or t == 0:
            return filter_row(z, t, k, share, least)
        p, order = textbook.softmax(z, t), np.argsort(-z, kind="stable")
        w = np.where(np.isin(np.arange(len(z)), order[: len(z) if k is None else int(k)]), p, 0)
        ascending = order[::-1]
        w[ascending] *= np.cumsum(w[ascending]) > 1 - share
        w *= w >= (0 if least is None else least) * p.max()
        return np.asarray(w / w.sum()) if w.any() else w

    return textbook.filtered(logits, row, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)


@mutant(
    "filter_probabilities", id="top-p-ascending-cumsum", family=FAMILY, source="https://github.com/dmlc/gluon-nlp/issues/1481",
    trigger=lambda: {"logits": _logits([0.1, 0.2, 0.7]), "top_p": 0.6},
)  # fmt: skip
def summed_in_the_order_of_the_vocabulary(
    logits: Any, *, temperature: Any = 1.0, top_k: Any = None, top_p: Any = None, min_p: Any = None
) -> Array:  # fmt: skip
    """The cumulative sum runs over the vocabulary instead of the sorted probabilities."""
    def nucleus(p: Array, kept: Array, order: Array, share: Any) -> Array:
        return textbook.shortest_prefix(p, kept, np.arange(len(p)), share)

    return textbook.filtered(logits, lambda *row: filter_row(*row, nucleus=nucleus), temperature=temperature, top_k=top_k, top_p=top_p,
                             min_p=min_p)  # fmt: skip


@mutant(
    "filter_probabilities", id="renorm-mutates-input-used-by-min-p", family=FAMILY, source="https://github.com/sgl-project/sglang/pull/15648",
    trigger=lambda: {"logits": _logits([0.4, 0.3, 0.2, 0.1]), "top_k": 2, "min_p": 0.6},
)  # fmt: skip
def threshold_of_the_renormalised(logits: Any, *, temperature: Any = 1.0, top_k: Any = None, top_p: Any = None, min_p: Any = None) -> Array:
    """Renormalising writes over the probabilities that min-p takes its threshold from, which it holds against the original ones."""
    def row(z: Array, t: Any, k: Any, share: Any, least: Any) -> Array:
        p, renormalised = textbook.softmax(z, t), filter_row(z, t, k, share, None)
        if least is None or t == 0:
            return renormalised
        w = np.where((renormalised > 0) & ((p >= least * renormalised.max()) | (p == p.max())), renormalised, 0)
        return np.asarray(w / w.sum())

    return textbook.filtered(logits, row, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)


@mutant(
    "filter_probabilities", id="top-p-renorm-misses-boundary-token", family=FAMILY,
    source="https://github.com/flashinfer-ai/flashinfer/issues/2202",
    trigger=lambda: {"logits": np.random.default_rng(0).standard_normal((2, 500)).astype(np.float32), "top_p": 0.9},
)  # fmt: skip
def upper_end_of_the_bisection(logits: Any, *, temperature: Any = 1.0, top_k: Any = None, top_p: Any = None, min_p: Any = None) -> Array:
    """The pivot is found by bisection and its upper end returned, where the mass above is just under top_p."""
    def nucleus(p: Array, kept: Array, order: Array, share: Any) -> Array:
        w = np.where(kept, p, 0) / p[kept].sum()
        low, high = 0.0, float(w.max())
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (middle, high) if w[w > middle].sum() >= share else (low, middle)
        above = w > high
        return np.asarray(above if above.any() else w == w.max())

    return textbook.filtered(logits, lambda *row: filter_row(*row, nucleus=nucleus), temperature=temperature, top_k=top_k, top_p=top_p,
                             min_p=min_p)  # fmt: skip


@mutant(
    "filter_probabilities", id="top-p-drops-crossing-token", family=FAMILY,
    source="https://github.com/ggml-org/llama.cpp/pull/1953 https://github.com/Biohub/esm/pull/360 "
           "https://github.com/rasbt/reasoning-from-scratch/issues/164 https://github.com/fishaudio/fish-speech/pull/1171",
    trigger=lambda: {"logits": _logits([0.4, 0.3, 0.2, 0.1]), "top_p": 0.8},
)  # fmt: skip
def as_long_as_the_sum_fits(logits: Any, *, temperature: Any = 1.0, top_k: Any = None, top_p: Any = None, min_p: Any = None) -> Array:
    """Tokens are kept while their sum, themselves included, does not exceed top_p: the one that crosses it is dropped."""
    def nucleus(p: Array, kept: Array, order: Array, share: Any) -> Array:
        w = np.where(kept, p, 0)[order]
        inside = np.zeros(len(p), dtype=bool)
        inside[order] = np.cumsum(w) <= share * w.sum()
        inside[order[0]] = True
        return inside

    return textbook.filtered(logits, lambda *row: filter_row(*row, nucleus=nucleus), temperature=temperature, top_k=top_k, top_p=top_p,
                             min_p=min_p)  # fmt: skip


@mutant(
    "filter_probabilities", id="nucleus-last-included-index-first-slice", family=FAMILY,
    source="https://github.com/facebookresearch/fairseq/pull/882",
    trigger=lambda: {"logits": _logits([0.4, 0.3, 0.2, 0.1]), "top_p": 0.8},
)  # fmt: skip
def last_index_from_the_first_column(
    logits: Any, *, temperature: Any = 1.0, top_k: Any = None, top_p: Any = None, min_p: Any = None
) -> Array:  # fmt: skip
    """The index of the last token kept is read from the first column of a cumulative mask, so it is 0 or 1, and nothing is renormalised."""
    def row(z: Array, t: Any, k: Any, share: Any, least: Any) -> Array:
        if share is None or t == 0:
            return filter_row(z, t, k, share, least)
        p, order = filter_row(z, t, k, None, least), np.argsort(-z, kind="stable")
        last = int(p[order[0]] < share)
        return np.where(np.isin(np.arange(len(z)), order[: last + 1]), p, 0)

    return textbook.filtered(logits, row, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)


# Penalties ---------------------------------------------------------------------------------------------------------------


@mutant(
    "apply_penalties", id="penalty-history-prompt-output-mixed", family=FAMILY, source="https://github.com/vllm-project/vllm-metal/pull/69",
    trigger=lambda: {"logits": np.ones((1, 8), np.float32), "tokens": np.array([[5]]), "prompt_lengths": 1, "frequency": 1.0},
)  # fmt: skip
def histories_exchanged(
    logits: Any, tokens: Any, *, prompt_lengths: Any = None, repetition: Any = 1.0, frequency: Any = 0.0, presence: Any = 0.0
) -> Array:  # fmt: skip
    """Frequency and presence count the prompt too, and repetition looks at the output alone."""
    z, B = textbook.working(logits), len(tokens)
    start = textbook.per_row(0 if prompt_lengths is None else prompt_lengths, B)
    columns = [textbook.per_row(x, B) for x in (repetition, frequency, presence)]
    rows = [textbook.penalised_row(z[i], tokens[i, int(start[i]) :], tokens[i], *(c[i] for c in columns)) for i in range(B)]
    return np.array(rows).reshape(z.shape).astype(logits.dtype)


@mutant(
    "apply_penalties", id="penalties-misaligned-by-request-order", family=FAMILY, source="https://github.com/vllm-project/vllm/pull/5639",
    trigger=lambda: {"logits": np.ones((2, 4), np.float32), "tokens": np.array([[0], [1]]),
                     "repetition": np.array([1.0, 2.0], np.float32)},
)  # fmt: skip
def histories_from_the_first_penalty_on(
    logits: Any, tokens: Any, *, prompt_lengths: Any = None, repetition: Any = 1.0, frequency: Any = 0.0, presence: Any = 0.0
) -> Array:  # fmt: skip
    """Histories are collected from the first row with a penalty on, and read by row: a plain row before it shifts them."""
    z, B = textbook.working(logits), len(tokens)
    start = textbook.per_row(0 if prompt_lengths is None else prompt_lengths, B)
    columns = [textbook.per_row(x, B) for x in (repetition, frequency, presence)]
    penalised = [columns[0][i] != 1 or columns[1][i] != 0 or columns[2][i] != 0 for i in range(B)]
    first = penalised.index(True) if True in penalised else 0
    nothing = np.full(0, -1, dtype=np.int64)
    rows = [textbook.penalised_row(z[i], *((tokens[i + first], tokens[i + first, int(start[i + first]) :]) if i + first < B
                                           else (nothing, nothing)), *(c[i] for c in columns)) for i in range(B)]  # fmt: skip
    return np.array(rows).reshape(z.shape).astype(logits.dtype)


# Draws -------------------------------------------------------------------------------------------------------------------


@mutant(
    "sample", id="sampler-out-of-range-id-for-onehot", family=FAMILY, source="https://github.com/flashinfer-ai/flashinfer/issues/384",
    dtypes=["float32"],
    trigger=lambda: {"probabilities": np.eye(8, dtype=np.float32)[1:2], "u": np.array([0.99999994], np.float32)},
)  # fmt: skip
def unset_where_no_sum_exceeds(probabilities: Any, u: Any) -> Array:
    """Where rounding carries u S up to S no sum exceeds it, and the output keeps what it held: an id past the end."""
    c = np.cumsum(textbook.working(probabilities), axis=-1)
    scaled = np.nextafter(u * c[..., -1], np.float32(np.inf))
    return np.asarray((c <= scaled[..., None]).sum(axis=-1), dtype=np.int64)


@mutant(
    "sample", id="seeded-noise-indexed-by-rank", family=FAMILY, source="https://github.com/sgl-project/sglang/pull/35697",
    trigger=lambda: {"probabilities": np.array([[0.25, 0.75], [1.0, 0.0]], np.float32), "u": np.array([0.1, 0.5], np.float32)},
)  # fmt: skip
def by_rank_when_a_neighbour_filters(probabilities: Any, u: Any) -> Array:
    """When any row of the batch was filtered, uniforms are read against the sorted probabilities, else against the vocabulary."""
    p = textbook.working(probabilities)
    if not (p == 0).any():
        return np.array([textbook.drawn(row, x) for row, x in zip(p, u)], dtype=np.int64)
    order = np.argsort(-p, axis=-1, kind="stable")
    return np.array([places[textbook.drawn(row[places], x)] for row, places, x in zip(p, order, u)], dtype=np.int64)


@mutant(
    "sample", id="seed-ignored-when-a-neighbour-has-none", family=FAMILY, source="https://github.com/vllm-project/vllm/issues/51226",
    trigger=lambda: {"probabilities": np.array([[1.0, 0.0], [0.5, 0.5]], np.float32), "u": np.array([0.1, 0.9], np.float32)},
)  # fmt: skip
def one_stream_when_a_neighbour_is_greedy(probabilities: Any, u: Any) -> Array:
    """When one row needs no uniform (it is one-hot, and has no seed), all rows read the first one's."""
    p = textbook.working(probabilities)
    shared = bool(((p > 0).sum(axis=-1) == 1).any())
    return np.array([textbook.drawn(row, u[0] if shared else x) for row, x in zip(p, u)], dtype=np.int64)


def _tail() -> dict[str, Any]:
    """One head and 512 tokens that together come once in 16 draws, each less likely than 2^-11."""
    return {"probabilities": np.append(15 / 16, np.full(512, 2.0**-13))[None].astype(np.float16), "u": np.zeros(1, np.float32)}


@mutant(
    "sample", id="float32-exponential-noise-truncates-tail", family=FAMILY, source="https://github.com/vllm-project/vllm/pull/43150",
    dtypes=["float32", "float16"], conventions={"uniforms": "own"}, trigger=_tail,
)  # fmt: skip
def race_in_the_format_of_the_weights(probabilities: Any, u: Any) -> Array:
    """The least of e / p wins, e exponential but drawn in the format of p: none below 2^-24, or 2^-11, and so hardly any of a tail."""
    p, step = np.asarray(probabilities, np.float64), 2.0**-24 if probabilities.dtype == np.float32 else 2.0**-11
    uniforms = np.maximum(np.floor(np.random.default_rng().uniform(size=p.shape) / step), 1.0) * step
    with np.errstate(divide="ignore"):
        return np.asarray((-np.log1p(-uniforms) / p).argmin(axis=-1), dtype=np.int64)


@mutant(
    "sample", id="graph-replay-draws-the-same-numbers", family=FAMILY,
    source="https://github.com/NVIDIA/Megatron-LM/pull/5697 https://github.com/kekzl/imp/pull/2013", conventions={"uniforms": "own"},
    trigger=lambda: {"probabilities": np.array([[0.25, 0.75], [1.0, 0.0]], np.float32), "u": np.array([0.1, 0.5], np.float32)},
)  # fmt: skip
def offset_frozen_at_capture(probabilities: Any, u: Any) -> Array:
    """The generator is read inside a captured graph, whose replays all begin at the offset of the capture."""
    uniforms = np.random.default_rng(0).uniform(size=len(probabilities))
    return np.array([textbook.drawn(row, x) for row, x in zip(textbook.working(probabilities), uniforms)], dtype=np.int64)
