"""The laws of latent attention: what both its forms must keep."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from oracles.reference import FloatFormat, attention, mla_attention_absorbed

from .. import bounds
from ..case import Case
from ..comparison import Float64
from ..law import NOTHING, Judgement, Law, law, within
from ..outcome import RAISED
from ..safetensors_file import Array
from ..trial import Trial
from .attention_probes import does_not_ignore, rounds_equal_weights, takes_no_scale
from .attention_relations import fits, widened
from .attention_terms import like
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
from .mla_terms import is_empty, keys_taken, rows_taken, seen_alone, sizes, visible, with_values


@law(every=2)
def absorbed_and_reconstructed_agree(trial: Trial) -> Judgement:
    """The subject, whichever form it takes, agrees with the oracle of the absorbed form too: for one query and for many.

        q (latent w_uk)^T = (q w_uk^T) latent^T,   p (latent w_uv) = (p latent) w_uv

    Allowed: the subject's bound and that of the absorbed form in float64. Not where a declared convention moves rows that see nothing.
    """
    if not trial.answer or is_empty(trial.case):
        return NOTHING
    out, lse = mla_attention_absorbed(**trial.case.arguments())
    absorbed = replace(trial.arithmetic.widened(), absorbed=True)
    second = bounds.mla_attention_bound(absorbed, **trial.case.arguments())
    told = visible(trial.case).any(axis=-1)
    wanted = {name: x for name, x in (("out", out), ("lse", lse)) if name in trial.answer}
    allowed = {name: np.where(told.reshape(*told.shape, *[1] * (x.ndim - 3)), trial.allowed[name] + second[name], np.inf)
               for name, x in wanted.items()}  # fmt: skip
    return within(trial.answer, wanted, allowed)


@law(every=2)
def queries_without_keys_are_empty(trial: Trial) -> Judgement:
    """A query that sees no key has output 0 and log-sum-exp -inf, or what the subject declared. Allowed: 0."""
    none = ~visible(trial.case).any(axis=-1)
    if not trial.answer or not none.any():
        return NOTHING
    allowed = {name: np.where(none.reshape(*none.shape, *[1] * (bound.ndim - 3)), bound, np.inf) for name, bound in trial.allowed.items()}
    return within(trial.answer, {name: trial.wanted[name] for name in trial.answer}, allowed)


def _identity(case: Case) -> Case | None:
    if is_empty(case):
        return None
    w = {name: case.arrays[name] for name in ("w_uk", "w_uv")}
    return case.with_arrays(**{name: np.broadcast_to(np.eye(*x.shape[1:]), x.shape).astype(x.dtype) for name, x in w.items()})


@law(prepare=_identity, every=3)
def identity_projections_are_multi_query_attention(trial: Trial) -> Judgement:
    """With w_uk and w_uv the identity, cut to Dn and Dv or filled up with zeros, every head reads the latents themselves as keys and
    values: attention of [q_nope, q_rope] over one key head [latent, k_rope] and one value head, latent.

    Allowed: the bound, and that of attention in float64.
    """
    case = trial.case
    arrays = case.arrays
    q = np.concatenate([arrays["q_nope"], arrays["q_rope"]], axis=-1)
    k, v = (_cut(arrays["latent"], arrays[w].shape[-1])[:, None] for w in ("w_uk", "w_uv"))
    k = np.concatenate([k, arrays["k_rope"][:, None]], axis=-1)
    given = {name: case.arguments()[name] for name in ("causal", "scale", "kv_lengths", "mask") if name in case.arguments()}
    wanted = dict(zip(("out", "lse"), attention(q, k, v, **given)))
    plain = bounds.attention_bound(trial.arithmetic.widened(), q, k, v, **given)
    told = visible(case).any(axis=-1)
    allowed = {name: np.where(told.reshape(*told.shape, *[1] * (x.ndim - 3)), trial.allowed[name] + plain[name], np.inf)
               for name, x in wanted.items()}  # fmt: skip
    return within(trial.answer, {name: wanted[name] for name in trial.answer}, allowed) if trial.answer else NOTHING


def _cut(x: Array, n: int) -> Array:
    """x with n columns: fewer, or zeros behind."""
    return np.concatenate([x[..., :n], np.zeros((*x.shape[:-1], max(n - x.shape[-1], 0)), x.dtype)], axis=-1)


def _one_channel(case: Case) -> Case | None:
    """Every latent holds 1 in its first channel, which head h reads as h + 1 in all its values."""
    H, C, Dv = case.arrays["w_uv"].shape
    if is_empty(case) or H < 2:
        return None
    latent = case.arrays["latent"].astype(np.float64)
    values = np.zeros((H, C, Dv))
    values[:, 0] = np.arange(1.0, H + 1.0)[:, None]
    ones = np.where(np.arange(C) == 0, 1.0, np.where(np.isfinite(latent), latent, 0.0))
    return case.with_arrays(latent=with_values(case.arrays["latent"], ones), w_uv=values.astype(case.arrays["w_uv"].dtype))


@law(prepare=_one_channel, every=3)
def heads_read_their_own_values(trial: Trial) -> Judgement:
    """With w_uv[h] making h + 1 of every latent, each head's output is its number: the average of a constant. Allowed: the bound."""
    if "out" not in trial.answer:
        return NOTHING
    return within(trial.answer, {"out": trial.wanted["out"]}, {"out": trial.allowed["out"]})


@law(every=3)
def heads_in_another_order_answer_in_that_order(trial: Trial) -> Judgement:
    """Heads of q_nope, q_rope, w_uk and w_uv in reverse: out and lse in reverse. A head that reads another's w_uk shows.

    A mask for each head is left out. Allowed: the bounds of both calls.
    """
    case = trial.case
    if is_empty(case) or sizes(case)[1] < 2 or case.arrays.get("mask", np.zeros((1, 1, 1, 1))).shape[1] > 1:
        return NOTHING
    turned = {name: case.arrays[name][:, ::-1].copy() for name in ("q_nope", "q_rope")}
    other = trial.on(case.with_arrays(**turned, w_uk=case.arrays["w_uk"][::-1].copy(), w_uv=case.arrays["w_uv"][::-1].copy()))
    if not trial.answer or not other.answer:
        return NOTHING
    back = {name: value[:, ::-1] for name, value in widened(other).items()}
    return fits(trial, back, {name: other.allowed[name][:, ::-1] for name in back}, other)


def _scalable(case: Case) -> Case | None:
    if is_empty(case):
        return None
    case = seen_alone(case)
    return case if all(_moderate(case.arrays[name]) for name in ("q_nope", "q_rope", "latent", "k_rope", "w_uk")) else None


def _moderate(array: Array) -> bool:
    """Numbers whose products with one another, and fourfold, stay normal."""
    magnitudes = np.abs(array.astype(np.float64))
    return bool((((magnitudes >= 2.0**-8) & (magnitudes <= 2.0**6)) | (magnitudes == 0.0)).all())


@law(prepare=_scalable, every=2, not_covered=takes_no_scale)
def four_times_q_and_a_quarter_of_the_scale_change_no_bit(trial: Trial) -> Judgement:
    """Both parts of the queries times 4 and the scale divided by 4 change nothing: powers of two pass through every rounding.

    A kernel that ignores the scale, or takes its own, multiplies all scores by 4. Numbers stay far from underflow. Allowed: 0, where
    the subject repeats itself.
    """
    case, scale = trial.case, trial.case.options["scale"]
    assert isinstance(scale, float | int)
    fourfold = {name: like(case.arrays[name], 4.0 * case.arrays[name].astype(np.float64)) for name in ("q_nope", "q_rope")}
    other = trial.on(case.with_arrays(**fourfold).with_options(scale=scale / 4.0))
    return same_bits(trial, other, {name: np.ones(got.shape, bool) for name, got in trial.answer.items()})


def _uniform(case: Case) -> Case | None:
    if is_empty(case):
        return None
    generator = np.random.default_rng(int(case.hash, 16))
    latent, w_uv = case.arrays["latent"], case.arrays["w_uv"]
    zeros = {name: np.zeros_like(case.arrays[name]) for name in ("q_nope", "q_rope")}
    return case.with_arrays(**zeros, latent=with_values(latent, generator.integers(-4, 5, latent.shape).astype(np.float64)),
                            k_rope=with_values(case.arrays["k_rope"], np.ones(case.arrays["k_rope"].shape)),
                            w_uv=generator.integers(-1, 2, w_uv.shape).astype(np.float64).astype(w_uv.dtype))


@law(prepare=_uniform, every=3, not_covered=rounds_equal_weights)
def equal_scores_average_exactly(trial: Trial) -> Judgement:
    """With queries of 0 all visible keys weigh the same: for 2^n of them, integer latents and w_uv, the output is the exact mean,
    once rounded.

        sum over keys and channels of integers: exact in any order and in either form; the division by 2^n too

    Rows with another number of keys are left out. Allowed: 0.
    """
    if "out" not in trial.answer:
        return NOTHING
    count, a, C = visible(trial.case).sum(axis=-1), trial.arithmetic, trial.case.arrays["w_uv"].shape[1]
    digits = min(FloatFormat(name).fraction_bits for name in (a.accumulate, a.elementwise))
    stored = FloatFormat(a.projected).fraction_bits
    exact = (count > 0) & (count & (count - 1) == 0) & (count * 4 * C <= 2.0 ** (digits + 1)) & (count * 4 * C <= 2.0 ** (stored + 1))
    exact = (exact & (count * FloatFormat(a.probabilities).smallest <= 1.0))[..., None]
    wanted = FloatFormat(a.out).round(np.where(exact, trial.wanted["out"], 0.0))
    return within(trial.answer, {"out": wanted}, {"out": np.where(exact & np.ones(wanted.shape, bool), 0.0, np.inf)})


def _permutable(case: Case) -> Case | None:
    if is_empty(case) or case.options.get("causal") is not None or sizes(case)[3] < 2:
        return None
    return seen_alone(case, "kv_lengths")


@law(prepare=_permutable, every=3)
def the_order_of_latents_does_not_matter(trial: Trial) -> Judgement:
    """Latents, rotary keys and the columns of the mask in another order: the same sum. Not with causal or kv_lengths.

    Allowed: the bounds of both calls.
    """
    order = np.random.default_rng(int(trial.case.hash, 16)).permutation(sizes(trial.case)[3])
    other = trial.on(keys_taken(trial.case, order))
    return fits(trial, widened(other), other.allowed, other) if trial.answer and other.answer else NOTHING


def _prompt(case: Case) -> Case | None:
    return case if case.options.get("causal") == "bottom_right" and not is_empty(case) and sizes(case)[2] > 1 else None


@law(prepare=_prompt, every=2)
def each_step_of_decoding_is_its_row(trial: Trial) -> Judgement:
    """A query asked alone over the latents written so far gets its row of the whole prompt: up to four of the rows.

    Causal, bottom right. Allowed: the bounds of both calls.
    """
    Lq = sizes(trial.case)[2]
    rows = sorted({0, Lq - 1, Lq // 2, int(trial.case.hash, 16) % Lq})
    return _judged_together(trial, [(i, i + 1) for i in rows])


@law(prepare=_prompt, every=2)
def a_prompt_in_chunks_is_the_whole_prompt(trial: Trial) -> Judgement:
    """The first queries over the latents written then, and the rest over all of them: what one call gives. As for one step.

    Allowed: the bounds of both calls.
    """
    Lq = sizes(trial.case)[2]
    cut = 1 + int(trial.case.hash, 16) % (Lq - 1)
    return _judged_together(trial, [(0, cut), (cut, Lq)])


def _before(case: Case, start: int, stop: int) -> Case | None:
    """Queries start to stop alone, when the latents of later ones are not yet written; None where some sequence had none then."""
    later = sizes(case)[2] - stop
    if "kv_lengths" in case.arrays:
        left = case.arrays["kv_lengths"] - later
        return rows_taken(case, slice(start, stop)).with_arrays(kv_lengths=left) if (left > 0).all() else None
    written = sizes(case)[3] - later
    return rows_taken(keys_taken(case, np.arange(written)), slice(start, stop)) if written > 0 else None


def _judged_together(trial: Trial, parts: list[tuple[int, int]]) -> Judgement:
    """Rows start to stop of the whole call against the same rows asked by themselves."""
    runs = [(start, stop, trial.on(part)) for start, stop in parts if (part := _before(trial.case, start, stop)) is not None]
    if not trial.answer or not runs or not all(run.answer for _, _, run in runs):
        return NOTHING
    wanted: dict[str, Float64] = {name: np.zeros(trial.wanted[name].shape) for name in trial.answer}
    allowed = {name: np.full(trial.wanted[name].shape, np.inf) for name in trial.answer}
    for start, stop, run in runs:
        for name, value in widened(run).items():
            wanted[name][:, :, start:stop], allowed[name][:, :, start:stop] = value, run.allowed[name]
    return fits(trial, wanted, allowed, *(run for _, _, run in runs))


@law(every=5)
def each_item_of_a_batch_stands_alone(trial: Trial) -> Judgement:
    """The items of a batch, asked one by one, get what they get together. Allowed: the bounds of both calls."""
    case = trial.case
    B = sizes(case)[0]
    if B < 2 or is_empty(case):
        return NOTHING
    per_item = [name for name in ("q_nope", "q_rope", "latent", "k_rope", "kv_lengths", "mask")
                if name in case.arrays and case.arrays[name].shape[0] == B]  # fmt: skip
    alone = [trial.on(case.with_arrays(**{name: case.arrays[name][b : b + 1] for name in per_item})) for b in range(B)]
    if not trial.answer or not all(part.answer for part in alone):
        return NOTHING
    wanted = {name: np.concatenate([widened(part)[name] for part in alone]) for name in trial.answer}
    return fits(trial, wanted, {name: np.concatenate([part.allowed[name] for part in alone]) for name in wanted}, *alone)


def _nan_where_nobody_looks(case: Case) -> Case | None:
    unseen = ~np.any(visible(case), axis=(1, 2))[..., None]
    if is_empty(case) or not unseen.any():
        return None
    return case.with_arrays(**{name: np.where(unseen, np.nan, case.arrays[name].astype(np.float64)).astype(case.arrays[name].dtype)
                               for name in ("latent", "k_rope")})  # fmt: skip


@law(prepare=_nan_where_nobody_looks, every=2, not_covered=does_not_ignore)
def nan_behind_the_mask_is_ignored(trial: Trial) -> Judgement:
    """NaN in latents and rotary keys that no query may see changes nothing. Only for those who declare it. Allowed: the bound."""
    return within(trial.answer, trial.wanted, trial.allowed)


@law(every=8, minimise=False, not_covered=promised("validates_input", "to refuse bad input"))
def bad_shapes_are_refused(trial: Trial) -> Judgement:
    """Parts of a query of other lengths, rotary keys of another size, projections for other heads or latents: an exception each."""
    if is_empty(trial.case):
        return NOTHING
    given = trial.case.arrays

    def longer(name: str, axis: int) -> dict[str, Array]:
        return {name: np.concatenate([given[name], given[name].take([0], axis=axis)], axis=axis)}

    bad = {"q_rope of more queries": longer("q_rope", 2), "latents of another batch": longer("latent", 0),
           "a rotary key more than latents": longer("k_rope", 1), "w_uk for another latent": longer("w_uk", 1),
           "w_uk for a head more": longer("w_uk", 0), "w_uv for another latent": longer("w_uv", 1)}  # fmt: skip
    for what, arrays in bad.items():
        kind = trial.subject.run(trial.case.with_arrays(**arrays), {}).kind
        if kind != RAISED:
            return Judgement(compared=1, worst_ratio=np.inf, failed=True, reason=f"{what}: {kind}; want an exception")
    return Judgement(compared=len(bad))


LATENT_LAWS: tuple[Law, ...] = (
    answers,
    agreement("out"),
    agreement("lse"),
    absorbed_and_reconstructed_agree,
    queries_without_keys_are_empty,
    identity_projections_are_multi_query_attention,
    heads_read_their_own_values,
    heads_in_another_order_answer_in_that_order,
    four_times_q_and_a_quarter_of_the_scale_change_no_bit,
    equal_scores_average_exactly,
    the_order_of_latents_does_not_matter,
    each_step_of_decoding_is_its_row,
    a_prompt_in_chunks_is_the_whole_prompt,
    each_item_of_a_batch_stands_alone,
    strides_are_respected,
    inputs_stay_untouched,
    buffers_are_fully_written,
    nan_behind_the_mask_is_ignored,
    repeats_give_the_same_bits,
    bad_shapes_are_refused,
)
