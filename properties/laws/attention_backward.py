"""Laws of attention's backward pass, fed with the oracle's out and lse (rounded to their formats), so that it is judged by itself."""

from __future__ import annotations

import numpy as np

from ..case import Case
from ..law import NOTHING, Judgement, Law, law, within
from ..trial import Trial
from .attention_relations import fits, item
from .attention_terms import is_empty, sizes, visible
from .every_operation import (
    agreement,
    answers,
    buffers_are_fully_written,
    inputs_stay_untouched,
    pinned,
    repeats_give_the_same_bits,
    same_bits,
    strides_are_respected,
)


@law()
def hidden_keys_get_no_gradient(trial: Trial) -> Judgement:
    """A key that no query sees has dK = dV = 0 exactly, and a query that sees no key has dQ = 0: nothing flows where nothing was read.

    Allowed: 0.
    """
    case = trial.case
    if not trial.answer or case.arrays["q"].size == 0 or is_empty(case):
        return NOTHING
    B, Hq, _, Lk = sizes(case)
    Hkv = case.arrays["k"].shape[1]
    seen = visible(case)
    key_seen = np.asarray(seen.any(axis=2).reshape(B, Hkv, Hq // Hkv, Lk).any(axis=2))     # (B, Hkv, Lk)
    row_sees = np.asarray(seen.any(axis=-1))                                          # (B, Hq, Lq)
    places = {"dq": ~row_sees[..., None], "dk": ~key_seen[..., None], "dv": ~key_seen[..., None]}
    if not any(p.any() for p in places.values()):
        return NOTHING
    zero = {name: np.zeros(trial.wanted[name].shape) for name in places}
    exact = {name: places[name] & (trial.allowed[name] < np.inf) for name in places}
    return within(trial.answer, zero, {name: np.where(exact[name], zero[name], np.inf) for name in places})


def _no_upstream(case: Case) -> Case | None:
    return None if is_empty(case) else case.with_arrays(dout=np.zeros_like(case.arrays["dout"]))


@law(prepare=_no_upstream, every=4)
def no_gradient_comes_from_none(trial: Trial) -> Judgement:
    """dOut = 0 makes every gradient 0 exactly: each is a sum of products with dOut or with delta = sum dOut Out.

    Where the bound gives no promise (scores so large that their rounding makes e^(s - lse) overflow) 0 x inf is legal. Allowed: 0.
    """
    zero = {name: np.zeros(bound.shape) for name, bound in trial.wanted.items()}
    return within(trial.answer, zero, {name: np.where(np.isfinite(trial.allowed[name]), 0.0, np.inf) for name in zero})


def _far_from_underflow(case: Case) -> Case | None:
    if is_empty(case) or case.arrays["dout"].dtype.itemsize < 4:
        return None
    magnitudes = [np.abs(case.arrays[name].astype(np.float64)) for name in ("q", "k", "v", "dout")]
    moderate = all(((m == 0) | (m >= 2.0**-12) & (m <= 2.0**12)).all() for m in magnitudes)
    return case if moderate else None


@law(prepare=_far_from_underflow, every=4)
def doubling_dout_doubles_every_gradient(trial: Trial) -> Judgement:
    """Gradients are linear in dOut, and a power of two passes through every rounding: all bits of the gradients but the exponent stay.

    Judged as the same call with dOut / 2 being exactly half, on float32 and float64 inputs far from underflow, above the
    smallest result 2^-100. Allowed: 0, where the subject repeats itself.
    """
    half = trial.on(trial.case.with_arrays(dout=(trial.case.arrays["dout"] / 2).astype(trial.case.arrays["dout"].dtype)))
    if not trial.answer or not half.answer:
        return NOTHING
    large = {name: np.abs(np.asarray(got, np.float64)) >= 2.0**-100 for name, got in trial.answer.items()}
    halved = {name: np.asarray(got, np.float64) / 2 for name, got in trial.answer.items()}
    differs = {name: large[name] & (halved[name] != np.asarray(half.answer[name], np.float64)) for name in halved}
    if any(d.any() for d in differs.values()):
        if not trial.repeats():
            return Judgement(reason="the subject does not give the same bits twice, so two runs cannot be compared bitwise")
        name = next(name for name in differs if differs[name].any())
        at = tuple(int(i) for i in np.argwhere(differs[name])[0])
        reason = f"{name}{list(at)} is {halved[name][at] * 2:.9g}; with dout / 2 it is {float(half.answer[name][at]):.9g}, not half"
        return Judgement(1, worst_ratio=np.inf, worst_at=f"{name}{list(at)}", failed=True, reason=reason)
    return Judgement(compared=sum(int(places.sum()) for places in large.values()))


def _two_items(case: Case) -> Case | None:
    return case if case.arrays["q"].shape[0] > 1 and not is_empty(case) else None


@law(prepare=_two_items, every=3)
def batch_items_do_not_mix(trial: Trial) -> Judgement:
    """With another first item in the batch (q, v and dout reversed, times -1/2), the gradients of the other items keep their bits.

    Same shapes, so the same sums in the same order; dbias and dsinks add up the batch and are left out. Allowed: 0.
    """
    def other_first(name: str) -> np.ndarray:
        array = trial.case.arrays[name].copy()
        array[0] = array.dtype.type(-0.5) * array[0, :, ::-1]                   # another largest value too
        return array

    other = trial.on(trial.case.with_arrays(**{name: other_first(name) for name in ("q", "v", "dout")}))
    rest = {name: np.broadcast_to((np.arange(got.shape[0]) > 0)[:, None, None, None], got.shape) for name, got in trial.answer.items()
            if name in ("dq", "dk", "dv")}  # fmt: skip
    return same_bits(trial, other, rest)


def _free_keys(case: Case) -> Case | None:
    return None if is_empty(case) or any(name in case.arguments() for name in ("softcap", "sinks")) else case


@law(prepare=_free_keys, every=2)
def key_gradients_sum_to_zero(trial: Trial) -> Judgement:
    """Adding one vector to all keys changes no output, so the gradient along it, the sum of dK over the keys, is 0.

    Not with softcap or sinks. Allowed: the sum of the bounds of dK over the keys.
    """
    if "dk" not in trial.answer:
        return NOTHING
    total = {"dk": np.asarray(trial.answer["dk"], np.float64).sum(axis=2)}
    allowed = trial.allowed["dk"].sum(axis=2)
    zero = np.where(np.isfinite(trial.wanted["dk"]).all(axis=2), 0.0, np.nan)
    return pinned(within(total, {"dk": zero}, {"dk": allowed}), trial)


@law(prepare=_two_items, every=4)
def each_item_of_a_batch_has_its_own_gradients(trial: Trial) -> Judgement:
    """The items of a batch, whose scales differ, asked one by one, have the gradients they have together. dbias and dsinks add up.

    Allowed: the bounds of both calls.
    """
    alone = [trial.on(item(trial.case, b)) for b in range(trial.case.arrays["q"].shape[0])]
    names = [name for name in ("dq", "dk", "dv") if name in trial.answer]
    if not names or not all(part.answer for part in alone):
        return NOTHING
    wanted = {name: np.concatenate([np.asarray(part.answer[name], np.float64) for part in alone]) for name in names}
    return fits(trial, wanted, {name: np.concatenate([part.allowed[name] for part in alone]) for name in names}, *alone)


def _grouped(case: Case) -> Case | None:
    return case if case.arrays["q"].shape[1] != case.arrays["k"].shape[1] and not is_empty(case) else None


@law(prepare=_grouped, every=4)
def grouped_gradients_are_sums_over_the_group(trial: Trial) -> Judgement:
    """With every key/value head repeated for its query heads, dK and dV of the group are the sums over the repeated heads.

    Allowed: the bounds of both calls, those of the repeated heads added up.
    """
    case = trial.case
    Hq, Hkv = case.arrays["q"].shape[1], case.arrays["k"].shape[1]
    heads = np.arange(Hq) % Hkv if trial.conventions["head_map"] == "interleaved" else np.arange(Hq) // (Hq // Hkv)
    other = trial.on(case.with_arrays(k=case.arrays["k"][:, heads], v=case.arrays["v"][:, heads]))
    names = [name for name in ("dk", "dv") if name in trial.answer and name in other.answer]
    member = (heads[None, :] == np.arange(Hkv)[:, None]).astype(np.float64)     # (Hkv, Hq)

    def over_the_group(x: np.ndarray) -> np.ndarray:
        return np.stack([np.asarray(x, np.float64)[:, member[h] > 0].sum(axis=1) for h in range(Hkv)], axis=1)

    wanted = {name: over_the_group(other.answer[name]) for name in names}
    return fits(trial, wanted, {name: over_the_group(other.allowed[name]) for name in names}, other) if names else NOTHING


ATTENTION_BACKWARD_LAWS: tuple[Law, ...] = (
    answers,
    agreement("dq"),
    agreement("dk"),
    agreement("dv"),
    agreement("dbias"),
    agreement("dsinks"),
    hidden_keys_get_no_gradient,
    no_gradient_comes_from_none,
    doubling_dout_doubles_every_gradient,
    batch_items_do_not_mix,
    key_gradients_sum_to_zero,
    each_item_of_a_batch_has_its_own_gradients,
    grouped_gradients_are_sums_over_the_group,
    strides_are_respected,
    inputs_stay_untouched,
    buffers_are_fully_written,
    repeats_give_the_same_bits,
)
