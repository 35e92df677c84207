"""The laws of attention's forward pass, and those that stand by themselves. Probes and relations have files of their own."""

from __future__ import annotations

import numpy as np

from ..case import Case
from ..law import NOTHING, Judgement, Law, law, within
from ..safetensors_file import Array
from ..trial import Trial
from .attention_noise import errors_stay_at_the_noise_floor
from .attention_probes import (
    equal_scores_average_exactly,
    four_times_q_and_a_quarter_of_the_scale_change_no_bit,
    heads_read_their_own_keys,
    hidden_keys_have_no_weight_beside_low_scores,
    nan_behind_the_mask_is_ignored,
    one_hot_values_show_the_weights,
    the_first_forbidden_key_stays_forbidden,
)
from .attention_relations import ATTENTION_RELATIONS
from .attention_terms import is_empty, like, sizes, visible, without
from .every_operation import (
    agreement,
    answers,
    buffers_are_fully_written,
    inputs_stay_untouched,
    promised,
    repeats_give_the_same_bits,
    same_bits,
    strides_are_respected,
)


@law()
def rows_that_see_nothing_are_empty(trial: Trial) -> Judgement:
    """A query that sees no key has output 0 and log-sum-exp -inf (or sink), or what the subject declared for such rows.

    Allowed: 0 for a zero and for -inf, one rounding for a sink.
    """
    case = trial.case
    if not trial.answer or case.arrays["q"].size == 0:
        return NOTHING
    seen = visible(case).any(axis=-1)                                           # (B, Hq, Lq)
    if seen.all():
        return NOTHING
    allowed = {name: np.where(seen.reshape(*seen.shape, *[1] * (bound.ndim - 3)), np.inf, bound) for name, bound in trial.allowed.items()}
    return within(trial.answer, {name: trial.wanted[name] for name in trial.answer}, allowed)


def _seen_nan(case: Case) -> Case | None:
    """The key that the hash names is NaN in every channel, for all heads and items."""
    if is_empty(case):
        return None
    k = case.arrays["k"].copy()
    k[:, :, int(case.hash, 16) % k.shape[2]] = np.nan
    if not _all_nan(k).any():
        return None                                                             # a format without NaN
    return without(case, "dropout_mask", "dropout_p").with_arrays(k=k)          # a row dropped whole would be 0


def _all_nan(k: Array) -> Array:
    """Which keys are NaN in every channel, for all heads and items, (Lk,): behind kv_lengths there may be more, seen by nobody."""
    return np.asarray(np.isnan(k.astype(np.float64)).all(axis=(0, 1, 3)))


@law(prepare=_seen_nan, every=4)
def a_nan_that_is_seen_shows(trial: Trial) -> Judgement:
    """A row that sees a key of NaN is NaN: out all of it, the log-sum-exp no finite number and not that of an empty row.

    Set to 0, or taken for a row that sees nothing, a fault upstream is hidden. Rows that do not see it are not judged here: in many
    kernels 0 x NaN spreads. Allowed: 0, the kind alone is compared.
    """
    case = trial.case
    if not trial.answer:
        return NOTHING
    seeing = (visible(case) & _all_nan(case.arrays["k"])).any(axis=-1)          # (B, Hq, Lq)
    got = dict(trial.answer)
    if "lse" in got:
        got["lse"] = np.where(got["lse"] == np.inf, np.nan, got["lse"])         # FlashAttention-2 returns +inf
    rows = {name: np.broadcast_to(seeing.reshape(*seeing.shape, *[1] * (x.ndim - 3)), x.shape) for name, x in got.items()}
    return within(got, {name: np.where(row, np.nan, 0.0) for name, row in rows.items()},
                  {name: np.where(row, 0.0, np.inf) for name, row in rows.items()})  # fmt: skip


def _later_keys(case: Case) -> Case | None:
    lengths = case.arrays["q"].shape[2]
    return None if is_empty(case) or lengths < 2 or case.options.get("causal") is None else case


@law(prepare=_later_keys, every=2)
def what_comes_later_changes_no_earlier_bit(trial: Trial) -> Judgement:
    """Causal: with other values in the keys behind a row, and in the queries after it, all earlier rows keep their bits.

    The shapes are the same, so a row meets the same sums in the same order. Allowed: 0, where the subject repeats itself.
    """
    case = trial.case
    _, Hq, Lq, _ = sizes(case)
    cut = 1 + int(case.hash, 16) % (Lq - 1)
    free = ~np.asarray(visible(case)[:, :, :cut].any(axis=2))                             # (B, Hq, Lk): seen by no row before the cut
    Hkv = case.arrays["k"].shape[1]
    heads = np.arange(Hq) % Hkv if trial.conventions["head_map"] == "interleaved" else np.arange(Hq) // (Hq // Hkv)
    free = np.stack([free[:, heads == h].all(axis=1) for h in range(Hkv)], axis=1)[..., None]     # (B, Hkv, Lk, 1)
    arrays = {}
    for name in ("k", "v"):
        given = case.arrays[name].astype(np.float64)
        arrays[name] = like(case.arrays[name], np.where(free & np.isfinite(given), -0.5 * given[..., ::-1], given))
    q = case.arrays["q"].astype(np.float64)
    arrays["q"] = like(case.arrays["q"], np.concatenate([q[:, :, :cut], -q[:, :, cut:, ::-1]], axis=2))
    rows = visible(case).any(axis=-1) & (np.arange(Lq) < cut)                   # rows that see nothing have a law of their own
    earlier = {name: np.broadcast_to(rows.reshape(*rows.shape, *[1] * (got.ndim - 3)), got.shape) for name, got in trial.answer.items()}
    return same_bits(trial, trial.on(case.with_arrays(**arrays)), earlier)


def _several(case: Case) -> Case | None:
    return case if case.arrays["q"].shape[0] > 1 and not is_empty(case) else None


@law(prepare=_several, every=2, not_covered=promised("batch_invariant", "the same bits for every batch size"))
def a_batch_is_its_items(trial: Trial) -> Judgement:
    """The last item of a batch, alone, has the bits it has in the batch. Allowed: 0, for those who promise it."""
    case = trial.case
    B = case.arrays["q"].shape[0]
    per_batch = {n: a for n, a in case.arrays.items() if a.ndim in (1, 4) and a.shape[0] == B and n not in ("sinks", "alibi_slopes")}
    alone = trial.on(case.with_arrays(**{name: array[-1:].copy() for name, array in per_batch.items()}))
    if not trial.answer or not alone.answer:
        return NOTHING
    for name, got in trial.answer.items():
        if got[-1:].tobytes() != alone.answer[name].tobytes():
            reason = f"{name}: the last item alone has other bits than in its batch"
            return Judgement(got[-1:].size, worst_ratio=np.inf, failed=True, reason=reason)
    return Judgement(compared=sum(got[-1:].size for got in trial.answer.values()))


@law(every=8, minimise=False, not_covered=promised("validates_input", "to refuse bad input"))
def bad_input_is_refused(trial: Trial) -> Judgement:
    """Query heads that are no multiple of the key/value heads, another head size, another number of values, masks, biases and
    lengths made for another number of keys: an exception each.
    """
    if is_empty(trial.case):
        return NOTHING
    q, k, v = (trial.case.arrays[name] for name in "qkv")
    bad = {
        "q with another head size": {"q": np.concatenate([q, q[..., :1]], axis=-1)},
        "v with a key more": {"v": np.concatenate([v, v[:, :, :1]], axis=2)},
        "a batch of another size": {"k": np.concatenate([k, k[:1]], axis=0)},
        "query heads that do not divide": {"k": np.concatenate([k] * (q.shape[1] + 1), 1), "v": np.concatenate([v] * (q.shape[1] + 1), 1)},
    }
    Lk = k.shape[2]
    bad |= {f"{name} for a key more": {name: np.concatenate([a, a[..., :1]], axis=-1)} for name, a in trial.case.arrays.items()
            if name in ("bias", "mask", "dropout_mask") and a.shape[-1] == Lk > 1}  # fmt: skip
    if "kv_lengths" in trial.case.arrays:
        bad["kv_lengths beyond the keys"] = {"kv_lengths": np.full_like(trial.case.arrays["kv_lengths"], Lk + 1)}
    for what, arrays in bad.items():
        kind = trial.subject.run(trial.case.with_arrays(**arrays), {}).kind
        if kind != "raised":
            return Judgement(compared=1, worst_ratio=np.inf, failed=True, reason=f"{what}: {kind}; want an exception")
    return Judgement(compared=len(bad))


ATTENTION_LAWS: tuple[Law, ...] = (
    answers,
    agreement("out"),
    agreement("lse"),
    rows_that_see_nothing_are_empty,
    a_nan_that_is_seen_shows,
    one_hot_values_show_the_weights,
    equal_scores_average_exactly,
    the_first_forbidden_key_stays_forbidden,
    hidden_keys_have_no_weight_beside_low_scores,
    heads_read_their_own_keys,
    what_comes_later_changes_no_earlier_bit,
    four_times_q_and_a_quarter_of_the_scale_change_no_bit,
    *ATTENTION_RELATIONS,
    errors_stay_at_the_noise_floor,
    strides_are_respected,
    inputs_stay_untouched,
    buffers_are_fully_written,
    nan_behind_the_mask_is_ignored,
    repeats_give_the_same_bits,
    a_batch_is_its_items,
    bad_input_is_refused,
)
