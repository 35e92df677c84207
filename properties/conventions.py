"""Conventions: the points on which released libraries differ and which a subject may declare. Undeclared means the oracles' answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Convention:
    """One point on which libraries differ.

    values      what may be declared, the oracles' own first
    meaning     what it decides
    operations  the operations it concerns
    """

    values: tuple[str, ...]
    meaning: str
    operations: tuple[str, ...]


_ATTENTION = ("attention", "attention_backward", "attention_packed", "attention_packed_backward")
_THROUGH_CACHES = ("paged_attention", "mla_attention")

CONVENTIONS: dict[str, Convention] = {
    "empty_rows": Convention(
        ("zero", "nan", "mean_v"), "output of a query that sees none of the keys there are: 0, NaN, or the mean of all values; "
        "softmax of a row of nothing but -inf: zeros, NaN, or equal shares",
        (*_ATTENTION, *_THROUGH_CACHES, "softmax"),
    ),
    "empty_lse": Convention(
        ("minus_infinity", "any"), "log-sum-exp of a query that sees no key, or of nothing but -inf: -inf, or left open",
        ("attention", "attention_backward", "attention_packed", *_THROUGH_CACHES, "log_sum_exp"),
    ),
    "nonfinite_behind_mask": Convention(
        ("undeclared", "ignored", "spread"),
        "NaN or inf that no query may see: undeclared, it is put only beyond kv_lengths; ignored, it must change nothing anywhere; "
        "spread, it is never put", (*_ATTENTION, *_THROUGH_CACHES),
    ),
    "hidden_weight": Convention(
        ("zero", "finite_mask"), "a hidden key has no weight whatever the scores; or a finite number stands for -inf, so that it is seen "
        "where the visible scores are far below 0", ("attention",),
    ),
    "head_map": Convention(("contiguous", "interleaved"), "query head h reads key/value head h // (Hq / Hkv), or h % Hkv", _ATTENTION),
    "window_counts_current": Convention(
        ("no", "yes"), "the window's left number counts keys before the current one, or the current one too",
        (*_ATTENTION, "paged_attention"),
    ),
    "bias_before_softcap": Convention(
        ("no", "yes"), "softcap is applied before the bias is added, or after (then the two together are not covered)",
        ("attention", "attention_backward"),
    ),
    "padding_queries": Convention(
        ("empty", "any"), "queries from query_lengths on: output 0 and log-sum-exp -inf, or left open", ("paged_attention",)
    ),
    "uniforms": Convention(
        ("contract", "other", "own"), "the uniforms stand for what the contract says; or otherwise, so that the law alone is judged; "
        "or the subject draws with a generator of its own and leaves them unread, so that its draws are tested",
        ("sample", "speculative_verify", "speculative_loop", "mtp_loop"),
    ),
    "rule": Convention(
        ("token", "block"), "drafts are tested one after another, or as a block (Sun et al. 2024, arXiv 2403.10444, algorithm 2; "
        "`oracles.reference.verify_block`): the same law of tokens, on average more of them", ("speculative_verify",),
    ),
    "zero_residual": Convention(
        ("target", "any"), "where a draft token is rejected and nothing is left of the target: a draw from the target, or left open",
        ("speculative_verify",),
    ),
    "top_k_ties": Convention(
        ("lowest", "highest", "all", "any"), "of equal logits at the border of top-k: the lowest indices are kept, the highest, all of "
        "them, or left open", ("filter_probabilities",),
    ),
    "top_p_ties": Convention(
        ("lowest", "highest", "any"), "of equal logits at the border of top-p: the lowest indices are kept, the highest, or left open",
        ("filter_probabilities",),
    ),
    "top_p_crossing": Convention(
        ("kept", "dropped"), "the token that carries the mass over top_p is kept, or dropped unless it is the first",
        ("filter_probabilities",),
    ),
    "top_p_of": Convention(
        ("top_k_left", "all"), "top_p is a share of what top-k left, renormalised, or of the whole distribution", ("filter_probabilities",)
    ),
    "min_p_order": Convention(
        ("after_top_p", "before_top_p"), "min-p filters what top-p left, or before top-p, whose mass it then renormalises",
        ("filter_probabilities",),
    ),
    "argmax_ties": Convention(
        ("lowest", "any"), "of equal largest logits, temperature 0 takes the lowest index, or it is left open", ("filter_probabilities",)
    ),
    "clip_denominator": Convention(
        ("norm", "norm_plus_1e-6"), "gradients are scaled by max_norm / norm, or by max_norm / (norm + 1e-6), where that is below 1",
        ("clip_grad_norm", "clip_grad_norm_sharded"),
    ),
    "bias_correction": Convention(
        ("on", "off"), "the moments are divided by 1 - beta^step, or used as they are", ("adamw_step",),
    ),
    "adam_eps": Convention(
        ("outside", "inside", "uncorrected"), "lr m^ is divided by sqrt(v^) + eps (Kingma and Ba 2015, algorithm 1; PyTorch), by "
        "sqrt(v^ + eps) (optax's eps_root), or by sqrt(v^) + eps / sqrt(1 - beta2^step), which is adding eps to the root of the moment "
        "before it is corrected (the epsilon hat before their section 2.1; Keras)", ("adamw_step",),
    ),
    "zero_over_zero": Convention(
        ("stays", "nan"), "where m^, v^ and eps are all 0 a parameter stays but for its decay, or becomes NaN", ("adamw_step",),
    ),
    "decay": Convention(
        ("old", "new", "without_lr"), "lr weight_decay of the parameter as it was is taken off (PyTorch, optax), or of the parameter as "
        "the step left it, or weight_decay of it, whatever lr (Loshchilov and Hutter 2019, algorithm 2, with a schedule of 1)",
        ("adamw_step",),
    ),
    "all_ignored": Convention(
        ("zero", "nan"), "the mean over no target, all of them being ignored or of weight 0: 0, or NaN; the gradient of targets of "
        "weight 0: 0, or NaN; the balance of no token: 0, or NaN",
        ("cross_entropy", "cross_entropy_backward", "vocab_parallel_cross_entropy", "distillation_loss", "balance_loss"),
    ),
    "impossible_class": Convention(
        ("nothing", "nan"), "a logit of -inf at a class that is no target (in distillation: of student and teacher): it adds nothing, or "
        "makes the row NaN, being multiplied with 0",
        ("cross_entropy", "cross_entropy_backward", "vocab_parallel_cross_entropy", "distillation_loss", "distillation_loss_backward"),
    ),
    "ignored_logits": Convention(
        ("ignored", "spread"),
        "NaN or inf in the logits of a row that is ignored: its gradient is 0, or NaN; that of other rows is its own",
        ("cross_entropy_backward",),
    ),
    "route_ties": Convention(
        ("lowest", "any"), "of experts of equal probability and bias the lowest indices are chosen, or it is left open", ("route",)
    ),
    "balance_share": Convention(
        ("of_assignments", "of_tokens"), "an expert's share f is one of all assignments, so that balance costs 1; or of tokens, so that it "
        "costs as much as each token has experts", ("balance_loss", "balance_loss_backward"),
    ),
    "code_ties": Convention(
        ("even", "even_with_zero", "away", "any"),
        "x / scale half way between two codes: rounded to even before the zero point is added, or with it, or away from 0, or left open",
        ("quantize",),
    ),
    "symmetric_codes": Convention(
        ("narrow", "full"), "symmetric codes reach from -(2^(bits-1) - 1), or from -2^(bits-1), one more than on the other side",
        ("quantize",),
    ),
    "scale_of_codes": Convention(
        ("stored", "unstored"), "codes are made with the scale as it is returned, or before it was rounded to the format it is returned in",
        ("quantize",),
    ),
    "zero_scale": Convention(
        ("one", "any"),
        "the scale of a block of nothing but zeros is 1; or left open, there and where it would be too small for a normal number or for "
        "its reciprocal: zeros have the zero point's code, and that is 0, either way",
        ("quantize",),
    ),
    "pruned_count": Convention(
        ("floor", "nearest"), "of n weights floor(sparsity n) go, or the nearest whole number", ("prune_magnitude",)
    ),
    "pruned_ties": Convention(
        ("lowest", "any"), "of equal magnitudes at the border the lowest indices go (of two in four: stay), or it is left open",
        ("prune_magnitude", "prune_2_4"),
    ),
}  # fmt: skip


def declared(conventions: Mapping[str, Any], operation: str) -> dict[str, str]:
    """All conventions, the declared values over the oracles' own.

    Raises ValueError for an unknown name or value, and for a convention that does not concern the operation.
    """
    result = {name: convention.values[0] for name, convention in CONVENTIONS.items()}
    for name, value in conventions.items():
        if name not in CONVENTIONS:
            raise ValueError(f"conventions: got {name!r}; want one of {', '.join(CONVENTIONS)}")
        known = CONVENTIONS[name]
        if operation not in known.operations:
            mine = ", ".join(name for name, convention in CONVENTIONS.items() if operation in convention.operations)
            raise ValueError(f"conventions: {name!r} does not concern {operation}; want {f'some of {mine}' if mine else 'none'}")
        if value not in known.values:
            raise ValueError(f"conventions[{name!r}]: got {value!r}; want one of {', '.join(known.values)} ({known.meaning})")
        result[name] = value
    return result
