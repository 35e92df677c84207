"""Our own fast implementations, which `oracles check` without a subject holds to the oracles."""

from __future__ import annotations

from typing import Any

import numpy as np

from oracles import reference
from oracles.properties import Arithmetic, subject

FLOAT64 = Arithmetic(out="float64", accumulate="float64", elementwise="float64", lse="float64")
FORMATS = ("float32", "float64", "float16", "bfloat16")
ALIGNMENTS = (None, "bottom_right", "top_left")


@subject("softmax", arithmetic=FLOAT64, dtypes=FORMATS, promises=["deterministic"])
def softmax_in_one_pass(x: Any, *, axis: int = -1) -> Any:
    """The online softmax, along any axis, in blocks of 32."""
    return np.moveaxis(reference.online_softmax(np.moveaxis(x, axis, -1), block=32), -1, axis)


@subject("log_sum_exp", arithmetic=FLOAT64, dtypes=FORMATS, promises=["deterministic"])
def log_sum_exp_by_halves(x: Any, *, axis: int = -1) -> Any:
    """The log-sum-exp of two halves of the axis, merged as two partial attention results are."""
    x = np.moveaxis(np.asarray(x, np.float64), axis, -1)
    halves = (x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :])
    parts = [(np.zeros((*x.shape[:-1], 1)), reference.log_sum_exp(half)) for half in halves]
    return reference.merge_attention(*parts[0], *parts[1])[1]


@subject("attention", dtypes=FORMATS, causal=ALIGNMENTS, conventions={"nonfinite_behind_mask": "ignored"},
         promises=["deterministic", "batch_invariant", "validates_input"])
def tiled_attention(q: Any, k: Any, v: Any, *, causal: Any, **options: Any) -> Any:
    """`flash_attention` with its default tiles."""
    return reference.flash_attention(q, k, v, causal=causal, **options)


@subject("attention_backward", dtypes=FORMATS, causal=ALIGNMENTS, promises=["deterministic"])
def tiled_attention_backward(q: Any, k: Any, v: Any, out: Any, lse: Any, dout: Any, *, causal: Any, **options: Any) -> Any:
    """`flash_attention_backward` with its default tiles."""
    return reference.flash_attention_backward(q, k, v, out, lse, dout, causal=causal, **options)


@subject("filter_probabilities", arithmetic=FLOAT64, dtypes=FORMATS, promises=["deterministic"])
def filter_without_a_sort(logits: Any, *, temperature: Any = 1.0, top_k: Any = None, top_p: Any = None, min_p: Any = None) -> Any:
    """Every token compared with all others: its rank, and the mass before it, without a sort or a running sum."""
    z = np.asarray(logits, np.float64)
    V, i = z.shape[-1], np.arange(z.shape[-1])
    given = ((temperature, 1.0), (top_k, V), (top_p, 1.0), (min_p, 0.0))
    t, k, share, least = (np.broadcast_to(np.asarray(neutral if x is None else x), z.shape[:-1])[..., None] for x, neutral in given)
    e = np.exp((z - z.max(axis=-1, keepdims=True)) / np.where(t == 0, 1.0, t))
    before = (z[..., None, :] > z[..., :, None]) | ((z[..., None, :] == z[..., :, None]) & (i < i[:, None]))     # (..., V, V)
    kept = before.sum(axis=-1) < np.where(t == 0, 1, k)
    w = np.where(kept, e, 0.0)
    kept &= (before @ w[..., None])[..., 0] < share * w.sum(axis=-1, keepdims=True) if top_p is not None else True
    w = np.where(kept & (e >= least), e, 0.0)
    return w / w.sum(axis=-1, keepdims=True)


@subject("sample", arithmetic=FLOAT64, dtypes=FORMATS, promises=["deterministic"])
def sample_by_counting(probabilities: Any, u: Any) -> Any:
    """The first sum that exceeds u S, all of them compared at once."""
    p = np.asarray(probabilities, np.float64)
    c = np.cumsum(p, axis=-1)
    reached = c > np.asarray(u, np.float64)[..., None] * c[..., -1:]
    return np.where(reached.any(axis=-1), reached.argmax(axis=-1), p.shape[-1] - 1 - (p[..., ::-1] > 0).argmax(axis=-1))


@subject("speculative_verify", arithmetic=FLOAT64, promises=["deterministic"])
def verify_a_batch_at_once(
    draft_tokens: Any, draft_probs: Any, target_probs: Any, accept_u: Any, sample_u: Any, *, draft_lengths: Any = None
) -> Any:  # fmt: skip
    """All tests of the batch at once, the first failure of each row, then one draw for each row."""
    B, K = draft_tokens.shape
    x, place, rows = np.asarray(draft_tokens), np.arange(K), np.arange(B)
    n = np.where((x < 0).any(axis=1), (x < 0).argmax(axis=1), K) if K else np.zeros(B, np.int64)
    n = n if draft_lengths is None else np.minimum(n, draft_lengths)
    inside = (place < n[:, None])[..., None]
    q = np.where(inside, np.asarray(draft_probs, np.float64), 0.0)                                               # NaN behind a draft
    p = np.where(np.arange(K + 1)[:, None] <= n[:, None, None], np.asarray(target_probs, np.float64), 0.0)
    q, p = (a / np.where(a.sum(axis=-1, keepdims=True) > 0, a.sum(axis=-1, keepdims=True), 1.0) for a in (q, p))
    own, of_target = (np.take_along_axis(a, np.maximum(x, 0)[..., None], axis=-1)[..., 0] for a in (q, p[:, :K]))
    passed = (np.asarray(accept_u, np.float64) * own < of_target) & inside[..., 0]
    j = np.cumprod(passed, axis=1).sum(axis=1)
    left = np.maximum(p[rows, j] - np.append(q, np.zeros((B, 1, q.shape[-1])), axis=1)[rows, j], 0.0)
    left = np.where(left.any(axis=-1, keepdims=True), left, p[rows, j])
    tokens = np.where(np.arange(K + 1) < j[:, None], np.append(x, np.full((B, 1), -1), axis=1), -1)
    tokens[rows, j] = sample_by_counting(left, sample_u)
    return tokens, j


@subject("mtp_loss", arithmetic=FLOAT64, dtypes=FORMATS, promises=["deterministic"])
def mtp_loss_of_rolled_labels(logits: Any, tokens: Any, *, weights: Any = None, segments: Any = None, ignore_index: int = -100) -> Any:
    """Labels rolled by j places, masked where they wrapped around or belong to another document."""
    z, T, total = np.asarray(logits, np.float64), len(tokens), 0.0
    for j in range(1, len(z) + 1):
        labels, counts = np.roll(tokens, -j), np.arange(T) + j < T
        counts &= (labels != ignore_index) & (True if segments is None else np.roll(segments, -j) == segments)
        rows = z[j - 1, counts]
        losses = reference.log_sum_exp(rows) - np.take_along_axis(rows, labels[counts][:, None], axis=-1)[:, 0]
        total += (1.0 if weights is None else float(weights[j - 1])) * (float(losses.mean()) if counts.any() else 0.0)
    return np.asarray(total)


OWN_PORTS: tuple[tuple[str, str], ...] = (
    ("softmax", "oracles.tools.own_ports:softmax_in_one_pass"),
    ("log_sum_exp", "oracles.tools.own_ports:log_sum_exp_by_halves"),
    ("attention", "oracles.tools.own_ports:tiled_attention"),
    ("attention_backward", "oracles.tools.own_ports:tiled_attention_backward"),
    ("rope", "oracles.tools.rotary_ports:rope_on_the_unit_circle"),
    ("write_kv", "oracles.tools.rotary_ports:write_kv_by_gathering"),
    ("paged_attention", "oracles.tools.cache_ports:paged_attention_page_by_page"),
    ("mla_attention", "oracles.tools.cache_ports:mla_attention_over_latents"),
    ("filter_probabilities", "oracles.tools.own_ports:filter_without_a_sort"),
    ("sample", "oracles.tools.own_ports:sample_by_counting"),
    ("speculative_verify", "oracles.tools.own_ports:verify_a_batch_at_once"),
    ("speculative_loop", "oracles.tools.loop_ports:speculative_loop_in_step"),
    ("mtp_loop", "oracles.tools.loop_ports:mtp_loop_in_step"),
    ("mtp_loss", "oracles.tools.own_ports:mtp_loss_of_rolled_labels"),
    ("cross_entropy", "oracles.tools.training_ports:cross_entropy_of_soft_labels"),
    ("cross_entropy_backward", "oracles.tools.training_ports:cross_entropy_gradient_of_soft_labels"),
    ("distillation_loss_backward", "oracles.tools.training_ports:distillation_gradient_by_jacobian"),
    ("adamw_step", "oracles.tools.training_ports:adamw_by_interpolation"),
    ("route", "oracles.tools.expert_ports:route_by_counting"),
    ("balance_loss", "oracles.tools.expert_ports:balance_of_one_hots"),
    ("balance_loss_backward", "oracles.tools.expert_ports:balance_gradient_of_one_hots"),
    ("moe_layer", "oracles.tools.expert_ports:moe_layer_dense"),
    ("expert_parallel_backward", "oracles.tools.expert_ports:expert_gradients_dense"),
    ("schedule", "oracles.tools.shard_ports:schedule_by_what_is_held"),
    ("pipeline_loss", "oracles.tools.shard_ports:loss_as_a_weighted_sum"),
    ("pipeline_step", "oracles.tools.shard_ports:step_of_the_whole_batch"),
    ("ring_attention", "oracles.tools.shard_ports:rows_of_the_whole_sequence"),
    ("ring_attention_backward", "oracles.tools.shard_ports:gradients_of_the_whole_sequence"),
    ("sharded_cache_attention", "oracles.tools.shard_ports:gathered_before_the_softmax"),
    ("exchanged_norm_backward", "oracles.tools.shard_ports:norm_by_its_jacobian"),
    ("quantize", "oracles.tools.quantization_ports:quantize_in_float32"),
    ("dequantize", "oracles.tools.quantization_ports:dequantize_in_float32"),
    ("quantized_matmul", "oracles.tools.quantization_ports:matmul_in_pieces_of_1024"),
    ("prune_2_4", "oracles.tools.quantization_ports:two_four_by_comparing"),
    ("all_reduce", "oracles.tools.rank_ports:all_reduce_by_halves"),
    ("bucketed_all_reduce", "oracles.tools.rank_ports:gradients_by_columns"),
    ("accumulate_gradients", "oracles.tools.rank_ports:gradients_as_they_come"),
    ("row_parallel", "oracles.tools.rank_ports:row_parallel_as_one_product"),
    ("clip_grad_norm_sharded", "oracles.tools.rank_ports:clip_by_one_vector"),
)
