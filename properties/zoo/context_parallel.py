"""Mutants of the context-parallel family: parts rounded on their way, log-sum-exps of shifted keys, rings that read the wrong shard."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import textbook_shards as textbook
from .specimen import mutant
from .textbook_decoding import working
from .textbook_shards import Array, Call

FAMILY = "context-parallel"
GITHUB = "https://github.com"
Lists = tuple[list[Array], ...]


def _shards(R: int, n: int, *, D: int = 4, backward: bool = False, dtype: Any = np.float32, **options: Any) -> dict[str, Any]:
    """N(0, 1) on every rank, one head."""
    g, names = np.random.default_rng(1), ("q_shards", "k_shards", "v_shards", *(["dout_shards"] if backward else []))
    arrays = {f"{name}.{r}": g.standard_normal((1, 1, n, D)).astype(dtype) for name in names for r in range(R)}
    return {**arrays, "causal": None, **options}


def _cancelling() -> dict[str, Any]:
    """Queries of 0 over 8 ranks, and values that are large on each and cancel between them, in bfloat16."""
    given = _shards(8, 8, dtype=working(np.zeros(1)).dtype)
    for r in range(8):
        given[f"q_shards.{r}"] *= 0.0
        given[f"v_shards.{r}"] = (-1.0) ** r * (1.0 + np.abs(given[f"v_shards.{r}"]))
    bfloat16 = _bfloat16()
    return {name: x.astype(bfloat16) if isinstance(x, np.ndarray) else x for name, x in given.items()}


def _bfloat16() -> Any:
    import ml_dtypes

    return ml_dtypes.bfloat16


@mutant("ring_attention", id="ring-partials-rounded-each-hop", family=FAMILY, dtypes=["bfloat16"], trigger=_cancelling,
        source=f"{GITHUB}/zhuzilin/ring-flash-attention/issues/42 {GITHUB}/zhuzilin/ring-flash-attention/issues/22 "
        f"{GITHUB}/Dao-AILab/flash-attention/pull/2723")
def parts_rounded(q_shards: Any, k_shards: Any, v_shards: Any, *, causal: Any, order: str = "contiguous", segments: Any = None,
                  scale: Any = None) -> Lists:  # fmt: skip
    """Every part's output is rounded to the 16 bits of the inputs before it is merged: the error grows with the number of ranks."""
    narrow = q_shards[0].dtype

    def merge(out: Array, lse: Array, out_b: Array, lse_b: Array) -> tuple[Array, Array]:
        return textbook.merge(out, lse, out_b.astype(narrow).astype(out.dtype), lse_b)

    call = textbook.prepared(q_shards, k_shards, v_shards, causal=causal, order=order, segments=segments, scale=scale)
    return textbook.rounded(*textbook.ring(call, merge=merge), q_shards[0])


def _far_apart() -> dict[str, Any]:
    """Keys of two ranks whose means are far apart."""
    given = _shards(2, 3)
    return {**given, "k_shards.1": given["k_shards.1"] + np.float32(4)}


@mutant("ring_attention", id="lse-not-corrected-after-key-centering", family=FAMILY, trigger=_far_apart,
        source=f"{GITHUB}/ROCm/aiter/pull/3334")
def keys_centred(q_shards: Any, k_shards: Any, v_shards: Any, *, causal: Any, order: str = "contiguous", segments: Any = None,
                 scale: Any = None) -> Lists:  # fmt: skip
    """The mean of a shard's keys is taken off before the scores, and not put back into its log-sum-exp, by which parts are weighed."""
    def part(q: Array, k: Array, v: Array, seen: Array, factor: float) -> tuple[Array, Array]:
        centred = k - k.mean(axis=2, keepdims=True, dtype=k.dtype) if k.shape[2] else k
        return textbook.part(q, centred, v, seen, factor)

    call = textbook.prepared(q_shards, k_shards, v_shards, causal=causal, order=order, segments=segments, scale=scale)
    return textbook.rounded(*textbook.ring(call, part=part), q_shards[0])


def halves(call: Call, i: int, j: int) -> Array:
    """In zig-zag order: of keys of a rank before, the first half; to keys of a rank behind, the second half of the queries."""
    seen = textbook.visible(call, i, j)
    n = seen.shape[3]
    if not call.zigzag or i == j:
        return seen
    first = np.arange(n) < n // 2
    return np.asarray(seen & (first[None, :] if j < i else ~first[:, None]))


@mutant("ring_attention", id="balanced-reorder-without-causal", family=FAMILY, source=f"{GITHUB}/pytorch/pytorch/issues/141429",
        trigger=lambda: _shards(2, 4, order="zigzag"))
def halves_without_a_causal_mask(q_shards: Any, k_shards: Any, v_shards: Any, *, causal: Any, order: str = "contiguous",
                                 segments: Any = None, scale: Any = None) -> Lists:  # fmt: skip
    """The shortcut of zig-zag order, half of the queries or of the keys at each step, is taken without a causal mask too."""
    call = textbook.prepared(q_shards, k_shards, v_shards, causal=causal, order=order, segments=segments, scale=scale)
    return textbook.rounded(*textbook.ring(call, seen=halves), q_shards[0])


@mutant("ring_attention", id="cp-seqlens-by-integer-division", family=FAMILY, source=f"{GITHUB}/NVIDIA/TransformerEngine/issues/3331",
        trigger=lambda: _shards(2, 4, order="zigzag", segments=np.array([[0] * 6 + [-1] * 2])))
def lengths_divided(q_shards: Any, k_shards: Any, v_shards: Any, *, causal: Any, order: str = "contiguous", segments: Any = None,
                    scale: Any = None) -> Lists:  # fmt: skip
    """In zig-zag order each rank takes the first length // R of its tokens for real ones, wherever the padding really is."""
    def seen(call: Call, i: int, j: int) -> Array:
        if segments is None or not call.zigzag:
            return textbook.visible(call, i, j)
        real = (call.segments >= 0).sum(axis=1)[:, None] // call.R
        inside = np.arange(len(call.places[0])) < real                          # (B, n)
        p, place = call.places[i][:, None], call.places[j][None, :]
        pairs = inside[:, :, None] & inside[:, None, :] & (~np.bool_(call.causal) | (place <= p))
        return np.asarray(pairs[:, None])

    call = textbook.prepared(q_shards, k_shards, v_shards, causal=causal, order=order, segments=segments, scale=scale)
    return textbook.rounded(*textbook.ring(call, seen=seen), q_shards[0])


@mutant("ring_attention_backward", id="ring-backward-reuses-local-kv", family=FAMILY,
        source=f"{GITHUB}/NVIDIA-NeMo/Automodel/pull/3157", trigger=lambda: _shards(2, 2, backward=True))
def keys_of_the_first_step(q_shards: Any, k_shards: Any, v_shards: Any, dout_shards: Any, *, causal: Any, order: str = "contiguous",
                           segments: Any = None, scale: Any = None) -> Lists:  # fmt: skip
    """Keys and values go round, but every step of the backward pass reads those of the rank itself, saved at the first."""
    call = textbook.prepared(q_shards, k_shards, v_shards, causal=causal, order=order, segments=segments, scale=scale)
    return textbook.returned(call, textbook.ring_gradients(call, dout_shards, key=lambda i, j: i), q_shards[0])


def _read_through_the_local_table() -> dict[str, Any]:
    g, one = np.random.default_rng(1), np.array([[0, 2, 5, 6]])
    arrays = {f"{name}.{r}": g.standard_normal((1, 1, 4, 4)).astype(np.float32) for name in ("k_shards", "v_shards") for r in range(2)}
    return {"q": g.standard_normal((1, 1, 4)).astype(np.float32), **arrays, "indices": one, "interleave": 1}


@mutant("sharded_cache_attention", id="sparse-global-index-read-through-local-table", family=FAMILY,
        source=f"{GITHUB}/vllm-project/vllm/pull/54541", trigger=_read_through_the_local_table)
def global_places(q: Any, k_shards: Any, v_shards: Any, indices: Any, *, interleave: int, scale: Any = None) -> tuple[Array, Array]:
    """Every rank reads all indices as places of its own, whoever holds them; those past its end are lost."""
    S = k_shards[0].shape[2]

    def places(row: Array, r: int, R: int, interleave: int) -> Array:
        return np.asarray(row[(row >= 0) & (row < S)])

    return textbook.sharded_cache_attention(q, k_shards, v_shards, indices, interleave=interleave, scale=scale, places=places)


def _two_ranks() -> dict[str, Any]:
    g = np.random.default_rng(1)
    arrays = {f"dy_shards.{r}": g.standard_normal((1, 1, 4, 4)).astype(np.float32) for r in range(2)}
    arrays |= {f"x_shards.{r}": g.standard_normal((1, 2, 2, 4)).astype(np.float32) for r in range(2)}
    return {**arrays, "weight": np.array([1.0, 2.0, 0.5, 3.0], np.float32)}


@mutant("exchanged_norm_backward", id="all-to-all-norm-backward-before-gradient-arrives", family=FAMILY,
        source=f"{GITHUB}/ByteDance-Seed/VeOmni/pull/419", trigger=_two_ranks)
def norm_before_the_exchange(dy_shards: Any, x_shards: Any, weight: Any, *, eps: float = 1e-6) -> tuple[list[Array], Array]:
    """Each rank differentiates the norm with the gradient as attention left it, of other tokens and heads, and sends that on."""
    R, each = len(x_shards), []
    for dy, x in zip(dy_shards, x_shards):
        rows = working(x).swapaxes(1, 2).reshape(-1, x.shape[-1])               # tokens by heads, as the kernel lays them out
        grads = working(dy).swapaxes(1, 2)
        dx, terms = textbook.norm_backward(grads.reshape(rows.shape), rows, working(weight), eps)
        each.append((dx.reshape(grads.shape).swapaxes(1, 2), terms))
    total = sum(terms.sum(axis=0, dtype=terms.dtype) for _, terms in each)
    return [dx.astype(weight.dtype) for dx in textbook.to_tokens([dx for dx, _ in each], R)], np.asarray(total).astype(weight.dtype)
