"""Laws of routing: who is chosen, what the gates hold and what they never hold, and what changes nothing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..bounds.experts import choice, gate_errors, route_bound
from ..bounds.sums import roundings
from ..case import Case
from ..declaration import Declaration
from ..law import NOTHING, Evidence, Judgement, Law, law, within
from ..safetensors_file import Array
from ..trial import Trial
from .every_operation import (
    agreement,
    answers,
    buffers_are_fully_written,
    inputs_stay_untouched,
    pinned,
    repeats_give_the_same_bits,
    strides_are_respected,
)


def _k(case: Case) -> int:
    k = case.options["k"]
    assert isinstance(k, int)
    return k


def _own_ids(trial: Trial) -> Array | None:
    """The subject's experts, where they are experts, none twice; else that is the business of the next law."""
    ids = trial.answer.get("ids")
    if ids is None or not ids.size:
        return None
    E = trial.case.arrays["logits"].shape[1]
    fits = (ids >= 0) & (ids < E)
    return ids.astype(np.int64) if fits.all() and (np.diff(np.sort(ids, axis=-1), axis=-1) > 0).all() else None


@law(minimise=False)
def every_token_has_k_experts_none_twice(trial: Trial) -> Judgement:
    """ids are experts 0..E-1, and those of a token are all different. Allowed: 0."""
    ids = trial.answer.get("ids")
    if ids is None or not ids.size:
        return NOTHING
    if _own_ids(trial) is None:
        reason = f"ids: got {ids.min()}..{ids.max()}, or one twice for a token; want k different experts of 0..E-1"
        return Judgement(ids.size, worst_ratio=np.inf, failed=True, reason=reason, evidence=Evidence(trial.wanted, trial.allowed))
    return Judgement(compared=ids.size)


@law(minimise=False)
def nobody_left_out_is_surely_larger(trial: Trial) -> Judgement:
    """No expert that surely comes before a chosen one (by more than all roundings, or equal and of lower index) is left out or behind it.

    Allowed: any order of what a rounding may turn.
    """
    ids = _own_ids(trial)
    if ids is None:
        return NOTHING
    before = choice(trial.arithmetic, trial.case.arrays["logits"], k=_k(trial.case), bias=trial.case.arrays.get("bias"),
                    ties=trial.conventions["route_ties"]).before
    T, E = before.shape[:2]
    rank = np.full((T, E), ids.shape[1])                                        # those left out stand last, all alike
    np.put_along_axis(rank, ids, np.broadcast_to(np.arange(ids.shape[1]), ids.shape), axis=-1)
    wrong = before & (rank[:, :, None] > rank[:, None])
    compared = int(before.sum())
    if wrong.any():
        t, i, j = np.argwhere(wrong)[0]
        reason = f"ids[{t}] takes expert {j} before {i}, whose probability and bias are surely larger"
        return Judgement(compared, worst_ratio=np.inf, worst_at=f"ids[{t}]", failed=True, reason=reason,
                         evidence=Evidence(trial.wanted, trial.allowed))
    return Judgement(compared=compared)


@law(minimise=False)
def gates_are_those_of_the_returned_experts(trial: Trial) -> Judgement:
    """Whoever the subject chose, the gates are their probabilities, over their sum where that is asked. Allowed: the bound for them."""
    ids = _own_ids(trial)
    if ids is None or "gates" not in trial.answer:
        return NOTHING
    r = roundings(trial.arithmetic)
    chosen = choice(trial.arithmetic, trial.case.arrays["logits"], k=_k(trial.case), bias=trial.case.arrays.get("bias"))
    gates, error = gate_errors(r, chosen, ids, normalize=bool(trial.case.options["normalize"]))
    allowed = np.where(np.isfinite(error), r.out.bound(gates, np.where(np.isfinite(error), error, 0.0)), np.inf)
    return pinned(within(trial.answer, {"gates": gates}, {"gates": allowed}), trial)


def _takes_a_bias(declaration: Declaration) -> str:
    return "" if "bias" in declaration.coverage.arguments else "the subject takes no bias"


def _biased(case: Case) -> Case | None:
    """Probabilities of a half, a quarter, an eighth and so on, and a bias of 2 for the last expert."""
    z = case.arrays["logits"]
    T, E = z.shape
    if not z.size or E < 2:
        return None
    logits = np.broadcast_to(-np.arange(E) * 0.75, (T, E)).astype(z.dtype)
    wide = np.float64 if z.dtype == np.float64 else np.float32
    return case.with_arrays(logits=logits.copy(), bias=(2.0 * (np.arange(E) == E - 1)).astype(wide))


@law(prepare=_biased, every=2, not_covered=_takes_a_bias)
def a_bias_chooses_and_is_not_in_the_gates(trial: Trial) -> Judgement:
    """A bias of 2 puts the least probable expert first; its gate stays its probability, the smallest. Allowed: the bound."""
    return within(trial.answer, trial.wanted, trial.allowed)


def _equal(case: Case) -> Case | None:
    z = case.arrays["logits"]
    return case.with_arrays(logits=np.full_like(z, 0.5)) if z.size and "bias" not in case.arrays else None


@law(prepare=_equal, every=2)
def equal_experts_are_taken_by_index_and_share_alike(trial: Trial) -> Judgement:
    """Equal logits: experts 0 to k - 1, gates 1 / k where they are normalised, else 1 / E. Allowed: 0, and the bound.

    Where ties are declared to be open (`route_ties`) it is any k experts, with these gates.
    """
    T, E = trial.case.arrays["logits"].shape
    k, any_of_them = _k(trial.case), trial.conventions["route_ties"] == "any"
    wanted = {"ids": np.broadcast_to(np.arange(k, dtype=np.float64), (T, k)),
              "gates": np.full((T, k), 1.0 / (k if trial.case.options["normalize"] else E))}
    bound = route_bound(trial.arithmetic, **trial.case.arguments())["gates"]
    return within(trial.answer, wanted, {"ids": np.full((T, k), np.inf if any_of_them else 0.0), "gates": bound})


def _on_a_grid(case: Case) -> Case | None:
    """Logits that are multiples of 1/8 in -3 ... 3, so that 8 more is exact in every format of 8 bits."""
    z = case.arrays["logits"]
    grid = np.rint(np.clip(z.astype(np.float64), -3.0, 3.0) * 8.0) / 8.0
    return case.with_arrays(logits=grid.astype(z.dtype)) if z.size else None


@law(prepare=_on_a_grid, every=2)
def adding_one_number_to_all_logits_changes_nothing(trial: Trial) -> Judgement:
    """softmax(z + c) = softmax(z): the same experts and gates with all logits moved by 8. Allowed: the bound of the moved case."""
    z = trial.case.arrays["logits"]
    other = trial.on(trial.case.with_arrays(logits=(z.astype(np.float64) + 8.0).astype(z.dtype)))
    return pinned(within(other.answer, trial.wanted, other.allowed), trial, other)


@law(every=2, minimise=False)
def tokens_do_not_know_each_other(trial: Trial) -> Judgement:
    """Tokens in reverse order have their experts and gates in reverse order. Allowed: the bound."""
    z = trial.case.arrays["logits"]
    if len(z) < 2 or not trial.answer:
        return NOTHING
    other = trial.on(trial.case.with_arrays(logits=np.ascontiguousarray(z[::-1])))
    wanted = {name: value[::-1] for name, value in trial.wanted.items()}
    return pinned(within(other.answer, wanted, other.allowed), trial, other)


@law(every=2, minimise=False)
def renaming_the_experts_renames_the_choice(trial: Trial) -> Judgement:
    """Logits and bias in another order of experts: the same gates, the new names. Tokens with equal experts are left out.

    Allowed: the bound of the renamed case.
    """
    z = trial.case.arrays["logits"]
    if not z.size or not trial.answer:
        return NOTHING
    order = np.random.default_rng(z.shape[1]).permutation(z.shape[1])
    arrays = {name: np.ascontiguousarray(trial.case.arrays[name][..., order]) for name in ("logits", "bias") if name in trial.case.arrays}
    other = trial.on(trial.case.with_arrays(**arrays))
    s = z.astype(np.float64)
    equal = (np.diff(np.sort(s, axis=-1), axis=-1) == 0.0).any(axis=-1, keepdims=True)
    tied = np.asarray(equal | np.isinf(trial.allowed["ids"]).any(axis=-1, keepdims=True))
    wanted = {"ids": np.argsort(order)[trial.wanted["ids"].astype(np.int64)].astype(np.float64), "gates": trial.wanted["gates"]}
    allowed = {name: np.where(tied, np.inf, bound) for name, bound in other.allowed.items()}
    return pinned(within(other.answer, wanted, allowed), trial, other)


ROUTE_LAWS: tuple[Law, ...] = (
    answers,
    replace(agreement("ids"), minimise=False),
    replace(agreement("gates"), minimise=False),
    every_token_has_k_experts_none_twice,
    nobody_left_out_is_surely_larger,
    gates_are_those_of_the_returned_experts,
    a_bias_chooses_and_is_not_in_the_gates,
    equal_experts_are_taken_by_index_and_share_alike,
    adding_one_number_to_all_logits_changes_nothing,
    tokens_do_not_know_each_other,
    renaming_the_experts_renames_the_choice,
    replace(strides_are_respected, minimise=False),
    inputs_stay_untouched,
    buffers_are_fully_written,
    repeats_give_the_same_bits,
)
