"""Probes of attention: inputs built so that a fault shows exactly, or far beyond any rounding."""

from __future__ import annotations

import numpy as np

from oracles.reference import FloatFormat
from oracles.reference.attention import attention_scores

from ..case import Case
from ..declaration import Declaration
from ..law import NOTHING, Judgement, law, within
from ..safetensors_file import Array
from ..trial import Trial
from .attention_terms import SCORE_TERMS, chosen, is_empty, like, sizes, visible, without
from .every_operation import same_bits


def _small_scores(case: Case) -> Array:
    """q scaled down by a power of two until q k^T spreads by at most 4 in each row, hidden keys left out."""
    q, k = case.arrays["q"], case.arrays["k"]
    bare = without(case, "bias", "alibi_slopes", "softcap")
    s = attention_scores(q, k, **chosen(bare, SCORE_TERMS))
    seen = visible(case) & np.isfinite(s)
    largest = float(np.abs(np.where(seen, s, 0.0)).max(initial=0.0))
    return like(q, q.astype(np.float64) * 2.0 ** -np.ceil(np.log2(max(largest / 2.0, 1.0))))


def _one_hot(case: Case) -> Case | None:
    if is_empty(case):
        return None
    (B, Hkv, Lk, Dv) = case.arrays["v"].shape
    first = (int(case.hash, 16) % max(Lk - Dv + 1, 1)) if Lk > Dv else 0        # which stretch of keys the columns show
    values = np.zeros((B, Hkv, Lk, Dv))
    columns = np.arange(min(Dv, Lk - first))
    values[:, :, first + columns, columns] = 2.0 ** -(np.arange(Hkv) % 4)[:, None]  # tagged by head
    return without(case, "sinks").with_arrays(q=_small_scores(case), v=like(case.arrays["v"], values))


@law(prepare=_one_hot, every=3)
def one_hot_values_show_the_weights(trial: Trial) -> Judgement:
    """With V = one 1 a key, each in a column of its own, the output is P: exactly 0 for hidden keys, above 0 for visible ones.

    The 1 of head h is 2^-(h mod 4), so that a head reading another's values shows. Scores spread by 4 at most, so the bound
    of a visible weight is below the weight itself. Allowed: 0 for hidden keys, the bound for visible ones.
    """
    if "out" not in trial.answer:
        return NOTHING
    wanted, allowed = trial.wanted["out"], trial.allowed["out"]
    return within(trial.answer, {"out": wanted}, {"out": np.where(wanted == 0.0, 0.0, allowed)})


_COUNTED = ("bias", "alibi_slopes", "sinks", "dropout_mask", "dropout_p")


def _uniform(case: Case) -> Case | None:
    if is_empty(case):
        return None
    bare = without(case, *_COUNTED)
    generator = np.random.default_rng(int(case.hash, 16))
    q, v = case.arrays["q"], case.arrays["v"]
    hidden_nan = ~np.isfinite(v.astype(np.float64))
    values = np.where(hidden_nan, np.nan, generator.integers(-4, 5, v.shape).astype(np.float64))
    k = np.where(np.isfinite(case.arrays["k"].astype(np.float64)), 1.0, np.nan)
    return bare.with_arrays(q=like(q, np.zeros(q.shape)), k=k.astype(q.dtype), v=values.astype(v.dtype))


def rounds_equal_weights(declaration: Declaration) -> str:
    return "partial results merged through their log-sum-exp round log 2^n" if declaration.arithmetic.merges_lse else ""


@law(prepare=_uniform, every=3, not_covered=rounds_equal_weights)
def equal_scores_average_exactly(trial: Trial) -> Judgement:
    """With Q = 0 all visible keys weigh the same: for 2^n of them and integer values, the output is the exact mean, once rounded.

        e^0 = 1, sum of 2^n ones = 2^n, sum of small integers exact, division by 2^n exact

    whatever the order and tiling. Rows with another number of keys are left out. Does not hold with bias, ALiBi, sinks, dropout,
    which the probe takes away. Allowed: 0.
    """
    if "out" not in trial.answer:
        return NOTHING
    count = visible(trial.case).sum(axis=-1)                                    # (B, Hq, Lq)
    exact = (count > 0) & (count & (count - 1) == 0)
    digits = min(FloatFormat(name).fraction_bits for name in (trial.arithmetic.accumulate, trial.arithmetic.elementwise))
    exact &= count * 4 <= 2.0 ** (digits + 1)                                   # sums of integers up to 4 stay exact
    exact &= count * FloatFormat(trial.arithmetic.probabilities).smallest <= 1.0
    wanted = FloatFormat(trial.arithmetic.out).round(np.where(exact[..., None], trial.wanted["out"], 0.0))
    allowed = np.where(exact[..., None] & np.ones(wanted.shape, bool), 0.0, np.inf)
    return within(trial.answer, {"out": wanted}, {"out": allowed})


def _scalable(case: Case) -> Case | None:
    """An explicit scale, and values whose halves and doubles stay normal numbers."""
    if is_empty(case) or not all(_moderate(case.arrays[name]) for name in ("q", "k")):
        return None
    scale = case.options.get("scale")
    return case if scale is not None else case.with_options(scale=case.arrays["q"].shape[-1] ** -0.5)


def _moderate(array: Array) -> bool:
    magnitudes = np.abs(array.astype(np.float64))
    magnitudes = magnitudes[np.isfinite(magnitudes) & (magnitudes > 0) & (magnitudes < 1e20)]
    return bool(((magnitudes >= 2.0**-8) & (magnitudes <= 2.0**8)).all()) and bool(np.isfinite(array.astype(np.float64)).all())


def takes_no_scale(declaration: Declaration) -> str:
    return "" if "scale" in declaration.coverage.arguments else "the subject takes no scale"


@law(prepare=_scalable, every=3, not_covered=takes_no_scale)
def four_times_q_and_a_quarter_of_the_scale_change_no_bit(trial: Trial) -> Judgement:
    """attention(4 q, k, v, scale = s / 4) = attention(q, k, v, scale = s) bitwise: powers of two pass through every rounding.

    4 has a square root among them, so this holds too of kernels that multiply q and k by sqrt(s) each. Numbers stay between 2^-8
    and 2^8, far from underflow. Allowed: 0, where the subject repeats itself.
    """
    case, scale = trial.case, trial.case.options["scale"]
    assert isinstance(scale, float | int)
    fourfold = like(case.arrays["q"], 4.0 * case.arrays["q"].astype(np.float64))
    other = trial.on(case.with_arrays(q=fourfold).with_options(scale=scale / 4.0))
    return same_bits(trial, other, {name: np.ones(got.shape, bool) for name, got in trial.answer.items()})


def _magnet(case: Case) -> Case | None:
    """Each query is made to point at the first key it may not see, so strongly that a leak would take the whole row."""
    if is_empty(case) or case.arrays["q"].shape[-1] < 4:
        return None
    B, Hq, _, Lk = sizes(case)
    seen = visible(case)
    if seen.all() or not seen.any():
        return None
    generator = np.random.default_rng(int(case.hash, 16))
    Hkv, D = case.arrays["k"].shape[1], case.arrays["k"].shape[-1]
    keys = generator.choice([-1.0, 1.0], size=(B, Hkv, Lk, D))
    after = Lk - 1 - seen[..., ::-1].argmax(-1) + 1                             # (B, Hq, Lq): one past the last key seen
    before = seen.argmax(-1) - 1
    target = np.where(after < Lk, after, np.maximum(before, 0))
    heads = np.arange(Hq) // (Hq // Hkv)
    pointed = keys[np.arange(B)[:, None, None], heads[None, :, None], target]   # (B, Hq, Lq, D)
    scale = case.options.get("scale")
    strength = 8.0 / (D * float(scale)) if isinstance(scale, float | int) and scale else 8.0 / D**0.5
    hidden_nan = ~np.isfinite(case.arrays["k"].astype(np.float64))
    return case.with_arrays(
        q=like(case.arrays["q"], pointed * strength), k=np.where(hidden_nan, np.nan, keys).astype(case.arrays["k"].dtype)
    )


@law(prepare=_magnet, every=2)
def the_first_forbidden_key_stays_forbidden(trial: Trial) -> Judgement:
    """Each query is most attracted by the first key it may not see: a mask off by one anywhere moves the row by a multiple of the bound.

    Allowed: the bound of output and log-sum-exp.
    """
    return within(trial.answer, trial.wanted, trial.allowed)


def _one_value_a_head(case: Case) -> Case | None:
    Hkv = case.arrays["k"].shape[1]
    if is_empty(case) or Hkv < 2:
        return None
    tags = np.arange(1.0, Hkv + 1.0)[None, :, None, None]
    v = case.arrays["v"]
    hidden_nan = ~np.isfinite(v.astype(np.float64))
    return without(case, "dropout_mask", "dropout_p", "sinks").with_arrays(v=np.where(hidden_nan, np.nan, tags).astype(v.dtype))


@law(prepare=_one_value_a_head, every=3)
def heads_read_their_own_keys(trial: Trial) -> Judgement:
    """With V = h + 1 throughout key/value head h, every query head shows which head it reads: the average of a constant.

    Allowed: the bound, in which |v - out| vanishes for constant V.
    """
    if "out" not in trial.answer:
        return NOTHING
    return within(trial.answer, {"out": trial.wanted["out"]}, {"out": trial.allowed["out"]})


def _nan_where_nobody_looks(case: Case) -> Case | None:
    if is_empty(case):
        return None
    B, Hq, _, Lk = sizes(case)
    Hkv = case.arrays["k"].shape[1]
    unseen = ~np.asarray(visible(case).any(axis=2).reshape(B, Hkv, Hq // Hkv, Lk).any(axis=2))[..., None]
    if not unseen.any():
        return None
    return case.with_arrays(**{n: np.where(unseen, np.nan, case.arrays[n].astype(np.float64)).astype(case.arrays[n].dtype) for n in "kv"})


def does_not_ignore(declaration: Declaration) -> str:
    ignored = declaration.conventions.get("nonfinite_behind_mask") == "ignored"
    return "" if ignored else "the subject does not declare nonfinite_behind_mask = ignored"


@law(prepare=_nan_where_nobody_looks, every=2, not_covered=does_not_ignore)
def nan_behind_the_mask_is_ignored(trial: Trial) -> Judgement:
    """NaN in keys and values that no query may see changes nothing. Only for those who declare it: 0 x NaN is NaN in most tiled kernels.

    Allowed: the bound, which does not look there either.
    """
    return within(trial.answer, trial.wanted, trial.allowed)


def _beside_low_scores(case: Case) -> Case | None:
    """One row a key/value head whose visible keys all score far below 0 and hidden ones as far above; those have the value 1, these -1.

    Scores are at most 0.6 of the largest number of the format: within 2 / 3, so that a product with log2 e stays finite.
    """
    if is_empty(case):
        return None
    case = without(case, "softcap", "sinks", "alibi_slopes", "dropout_mask", "dropout_p")
    B, Hq, Lq, Lk = sizes(case)
    Hkv = case.arrays["k"].shape[1]
    seen = visible(case).reshape(B, Hkv, Hq // Hkv * Lq, Lk)                    # rows of all the queries of a key/value head
    mixed = seen.any(axis=-1) & ~seen.all(axis=-1)
    if not mixed.any():
        return None
    low = np.take_along_axis(seen, mixed.argmax(axis=-1)[..., None, None], axis=2)[:, :, 0, :, None]            # (B, Hkv, Lk, 1)
    q, k, v = (case.arrays[name] for name in "qkv")
    size = np.sqrt(0.6 * FloatFormat(q.dtype.name).max) * (np.arange(q.shape[-1]) == 0)
    keys = np.where(np.isfinite(k.astype(np.float64)), np.where(low, -size, size), np.nan)
    values = np.where(np.isfinite(v.astype(np.float64)), np.where(low, 1.0, -1.0), np.nan)
    probe = case.with_arrays(q=like(q, np.broadcast_to(size, q.shape)), k=keys.astype(k.dtype), v=values.astype(v.dtype))
    return probe.with_options(scale=1.0) if "scale" in case.options else probe


def _masks_with_a_number(declaration: Declaration) -> str:
    finite = declaration.conventions.get("hidden_weight") == "finite_mask"
    return "the subject declares hidden_weight = finite_mask" if finite else ""


@law(prepare=_beside_low_scores, every=2, not_covered=_masks_with_a_number)
def hidden_keys_have_no_weight_beside_low_scores(trial: Trial) -> Judgement:
    """Where all visible scores are as low as the format allows and the hidden ones as high, the hidden ones still have no weight.

    Visible keys hold the value 1, hidden ones -1: whatever the weights, an average of the visible is 1. A finite number in place of
    -inf, -10000 or the least of the format added to the score, makes a hidden key win. Not where scores are kept in less range than
    the inputs. Allowed: nearer to 1 than to 0.
    """
    arithmetic = trial.arithmetic
    narrowest = min(FloatFormat(name).max for name in (arithmetic.accumulate, arithmetic.elementwise, arithmetic.scores))
    if "out" not in trial.answer or narrowest < FloatFormat(arithmetic.inputs).max:
        return NOTHING
    Hq, Hkv = trial.case.arrays["q"].shape[1], trial.case.arrays["k"].shape[1]
    heads = np.arange(Hq) % Hkv if trial.conventions["head_map"] == "interleaved" else np.arange(Hq) // (Hq // Hkv)
    high = ~(trial.case.arrays["v"][..., 0].astype(np.float64) > 0.0)[:, heads][:, :, None]                     # (B, Hq, 1, Lk)
    seen = visible(trial.case)
    judged = np.asarray(seen.any(axis=-1) & ~(seen & high).any(axis=-1))[..., None] & np.ones(trial.wanted["out"].shape, bool)
    return within(trial.answer, {"out": np.where(judged, 1.0, 0.0)}, {"out": np.where(judged, 0.5, np.inf)})
