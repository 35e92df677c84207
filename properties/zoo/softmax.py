"""Mutants of the softmax family: rows that see nothing, sinks, and partial results put together."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..arithmetic import Arithmetic
from . import textbook, triggers
from .specimen import mutant
from .textbook import Array

FAMILY = "softmax"
MERGING = Arithmetic(merges_lse=True)


@mutant(
    "attention", id="sink-dropped-for-multi-row-queries", family=FAMILY, source="https://github.com/ml-explore/mlx/issues/3452",
    trigger=lambda: triggers.forward(Lq=5, sinks=np.array([1.0], np.float32)),
)  # fmt: skip
def sink_only_while_decoding(
    q: Any, k: Any, v: Any, *, causal: Any, scale: Any = None, mask: Any = None, sinks: Any = None
) -> tuple[Array, Array]:
    """The sink enters the denominator when there is one query, and is forgotten for several."""
    return textbook.attention(q, k, v, causal=causal, scale=scale, mask=mask, sinks=sinks if q.shape[2] == 1 else None)


@mutant(
    "attention", id="empty-partition-lse-plus-inf", family=FAMILY, arithmetic=MERGING,
    source="https://github.com/Dao-AILab/flash-attention/pull/2573 https://github.com/flashinfer-ai/flashinfer/pull/3943",
    trigger=lambda: triggers.forward(Lk=6, mask=np.array([0, 0, 0, 1, 1, 1], bool)[None, None, None]),
)  # fmt: skip
def empty_part_takes_all(q: Any, k: Any, v: Any, *, causal: Any, scale: Any = None, mask: Any = None) -> tuple[Array, Array]:
    """Half of the keys that a row sees nothing of reports a log-sum-exp of +inf, and the merge gives it all the weight."""
    a, b = textbook.attention_in_parts(q, k, v, parts=2, causal=causal, scale=scale, mask=mask)
    (out_a, lse_a), (out_b, lse_b) = ((out, np.where(np.isneginf(lse), np.inf, lse)) for out, lse in (a, b))
    with np.errstate(invalid="ignore", over="ignore"):
        m = np.maximum(lse_a, lse_b)
        w_a, w_b = (np.where(lse == m, 1, np.exp(lse - m)).astype(m.dtype) for lse in (lse_a, lse_b))
        l = w_a + w_b
        return ((w_a / l)[..., None] * out_a + (w_b / l)[..., None] * out_b).astype(q.dtype), m + np.log(l)


@mutant(
    "attention", id="lse-base-2-merged-as-natural", family=FAMILY, arithmetic=MERGING,
    source="https://github.com/vllm-project/vllm/pull/52796",
    trigger=lambda: {"q": np.ones((1, 1, 1, 1), np.float32), "k": np.array([2, 0, 0, 0], np.float32).reshape(1, 1, 4, 1),
                     "v": np.array([1, 0, 0, 0], np.float32).reshape(1, 1, 4, 1), "causal": None},
)  # fmt: skip
def halves_weighed_by_the_wrong_base(q: Any, k: Any, v: Any, *, causal: Any, scale: Any = None) -> tuple[Array, Array]:
    """Two halves of the keys report log2 of their sums, and are weighed with powers of e; the log-sum-exp returned is converted."""
    ln2 = q.dtype.type(np.log(2.0))
    (out_a, lse_a), (out_b, lse_b) = textbook.attention_in_parts(q, k, v, parts=2, causal=causal, scale=scale)
    out, _ = textbook.merge_attention(out_a, lse_a / ln2, out_b, lse_b / ln2)
    return out.astype(q.dtype), textbook.merge_attention(out_a, lse_a, out_b, lse_b)[1]


def _unguarded(s: Array, seen: Array, sinks: Array | None) -> tuple[Array, Array]:
    x = np.where(seen, s, -np.inf)
    m = x.max(axis=-1, keepdims=True, initial=-np.inf)
    e = np.exp(x - m)                                                           # -inf - -inf
    l = e.sum(axis=-1, keepdims=True)
    return e / l, (m + np.log(l))[..., 0]


@mutant(
    "attention", id="fully-masked-row-nan", family=FAMILY,
    source="https://github.com/tracel-ai/burn/pull/4697 https://github.com/pytorch/pytorch/pull/131060 "
           "https://github.com/pytorch/pytorch/pull/133882 https://github.com/iree-org/iree/issues/24175",
    trigger=lambda: triggers.forward(Lq=3, Lk=3, causal="bottom_right", mask=np.array([0, 1, 1], bool)[None, None, None]),
)  # fmt: skip
def blind_row_is_nan(q: Any, k: Any, v: Any, *, causal: Any, scale: Any = None, mask: Any = None) -> tuple[Array, Array]:
    """A row whose keys are all hidden subtracts its maximum of -inf from -inf and becomes NaN instead of 0."""
    return textbook.attention(q, k, v, causal=causal, scale=scale, mask=mask, weights=_unguarded)


@mutant(
    "merge_attention", id="merge-two-empty-states-nan", family=FAMILY,
    source="https://github.com/vllm-project/vllm/pull/39148 https://github.com/vllm-project/vllm/pull/28181 "
           "https://github.com/flashinfer-ai/flashinfer/issues/4051",
    trigger=lambda: triggers.parts(empty="ab"),
)  # fmt: skip
def two_empty_parts_are_nan(out_a: Any, lse_a: Any, out_b: Any, lse_b: Any) -> tuple[Array, Array]:
    """Two parts that both saw no key are weighed relative to a maximum of -inf, which makes the row NaN."""
    with np.errstate(invalid="ignore", over="ignore"):
        m = np.maximum(lse_a, lse_b)
        w_a, w_b = np.exp(lse_a - m), np.exp(lse_b - m)
        l = w_a + w_b
        out = (w_a / l)[..., None] * out_a + (w_b / l)[..., None] * out_b
        return out.astype(out_a.dtype), m + np.log(l)
