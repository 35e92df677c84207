"""Laws of layers of experts and of their gradients over ranks: the sum over experts, places, who is dropped, and no rank too many."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from oracles.reference import route

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


def _limited(case: Case) -> bool:
    return case.options.get("capacity") is not None


def _identities(case: Case) -> Case | None:
    """Every expert gives its token back, none is dropped, gates sum to 1."""
    x, w = case.arrays["x"], case.arrays["weights"]
    if not x.size or not case.options["normalize"]:
        return None
    eye = np.broadcast_to(np.eye(*w.shape[1:]), w.shape).astype(w.dtype)
    unlimited = {"capacity": None} if _limited(case) else {}
    return case.with_arrays(weights=eye.copy()).with_options(**unlimited)


@law(prepare=_identities, every=2)
def identity_experts_give_the_token_back(trial: Trial) -> Judgement:
    """Gates that sum to 1 over experts that change nothing: out = x, as far as out reaches. Allowed: the bound."""
    x, (_, D, F) = trial.case.arrays["x"].astype(np.float64), trial.case.arrays["weights"].shape
    wanted = np.zeros((len(x), F))
    wanted[:, : min(D, F)] = x[:, :F]
    return within(trial.answer, {"out": wanted}, {"out": trial.allowed["out"]})


def _takes_capacity(declaration: Declaration) -> str:
    return "" if "capacity" in declaration.coverage.arguments else "the subject takes no capacity"


def _all_to_the_same(case: Case) -> Case | None:
    """All tokens want expert 0 first, 1 second and so on; places for half of them."""
    z = case.arrays["logits"]
    if not z.size or "bias" in case.arrays:
        return None
    logits = np.broadcast_to(-np.arange(z.shape[1]) / 2.0, z.shape).astype(z.dtype)
    return case.with_arrays(logits=logits.copy()).with_options(capacity=(len(z) + 1) // 2)


@law(prepare=_all_to_the_same, every=2, not_covered=_takes_capacity)
def places_go_to_the_first_tokens(trial: Trial) -> Judgement:
    """All tokens want the same experts: the first half of them has the places in order, the others are dropped and add nothing.

    Allowed: 0 for the slots, the bound for out.
    """
    T, k = trial.wanted["slots"].shape
    C = trial.case.options["capacity"]
    assert isinstance(C, int)
    slots = np.broadcast_to(np.where(np.arange(T) < C, np.arange(T), -1)[:, None].astype(np.float64), (T, k))
    out = np.where(np.arange(T)[:, None] < C, trial.wanted["out"], 0.0)
    return within(trial.answer, {"slots": slots, "out": out}, {"slots": np.zeros((T, k)), "out": trial.allowed["out"]})


@law(minimise=False)
def no_place_is_given_twice(trial: Trial) -> Judgement:
    """No two assignments to one expert have one place; places start at 0, have no gap, and stay below the capacity. Allowed: 0."""
    slots = trial.answer.get("slots")
    if slots is None or not slots.size or np.isinf(trial.allowed["slots"]).any():
        return NOTHING
    ids = _ids(trial)
    for expert in range(trial.case.arrays["logits"].shape[1]):
        taken = np.sort(slots[ids == expert])
        taken = taken[taken >= 0]
        if (taken != np.arange(len(taken))).any() or (_limited(trial.case) and len(taken) > int(str(trial.case.options["capacity"]))):
            reason = f"slots: expert {expert} has the places {taken.tolist()[:12]}; want each once, from 0 on, below the capacity"
            return Judgement(slots.size, worst_ratio=np.inf, failed=True, reason=reason, evidence=Evidence(trial.wanted, trial.allowed))
    return Judgement(compared=slots.size)


def _ids(trial: Trial) -> Array:
    options = trial.case.options
    return route(trial.case.arrays["logits"], k=int(str(options["k"])), normalize=False, bias=trial.case.arrays.get("bias"))[0]


def _unlimited(case: Case) -> Case | None:
    return case.with_options(capacity=None) if _limited(case) else case


@law(prepare=_unlimited, every=2, minimise=False)
def without_a_limit_nobody_is_dropped(trial: Trial) -> Judgement:
    """Without capacity no slot is -1, and out is the sum over all experts for all tokens, with gates of 0 for those not chosen.

        out = sum_e gate_e x w_e

    Allowed: the bound.
    """
    slots = trial.answer.get("slots")
    if slots is not None and (slots < 0).any():
        reason = f"slots: {int((slots < 0).sum())} of {slots.size} assignments were dropped where there is no limit"
        return Judgement(slots.size, worst_ratio=np.inf, failed=True, reason=reason, evidence=Evidence(trial.wanted, trial.allowed))
    x, z, w = (trial.case.arrays[name].astype(np.float64) for name in ("x", "logits", "weights"))
    if not trial.answer or not x.size:
        return NOTHING
    options = trial.case.options
    ids, gates = route(z, k=int(str(options["k"])), normalize=bool(options["normalize"]), bias=trial.case.arrays.get("bias"))
    dense = np.zeros(z.shape)
    np.put_along_axis(dense, ids, gates, axis=-1)
    return within(trial.answer, {"out": np.einsum("te,td,edf->tf", dense, x, w)}, {"out": trial.allowed["out"]})


@law(every=2, minimise=False)
def tokens_do_not_know_each_other(trial: Trial) -> Judgement:
    """Tokens in reverse order come out in reverse order, where places are not limited. Allowed: the bound."""
    x, z = trial.case.arrays["x"], trial.case.arrays["logits"]
    if len(x) < 2 or _limited(trial.case) or not trial.answer:
        return NOTHING
    other = trial.on(trial.case.with_arrays(x=np.ascontiguousarray(x[::-1]), logits=np.ascontiguousarray(z[::-1])))
    return pinned(within(other.answer, {"out": trial.wanted["out"][::-1]}, {"out": other.allowed["out"]}), trial, other)


@law(every=2, minimise=False)
def renaming_the_experts_changes_nothing(trial: Trial) -> Judgement:
    """Logits, bias and weights in another order of experts: the same out. Tokens with equal experts are left out. Allowed: the bound."""
    z = trial.case.arrays["logits"].astype(np.float64)
    if not z.size or not trial.answer:
        return NOTHING
    order = np.random.default_rng(z.shape[1]).permutation(z.shape[1])
    arrays = {name: np.ascontiguousarray(a[..., order]) for name, a in trial.case.arrays.items() if name in ("logits", "bias")}
    other = trial.on(trial.case.with_arrays(weights=np.ascontiguousarray(trial.case.arrays["weights"][order]), **arrays))
    tied = (np.diff(np.sort(z, axis=-1), axis=-1) == 0.0).any(axis=-1)
    tied = tied | (tied.any() and _limited(trial.case))
    allowed = np.where(tied[:, None] | np.isinf(trial.allowed["out"]), np.inf, other.allowed["out"])
    return pinned(within(other.answer, {"out": trial.wanted["out"]}, {"out": allowed}), trial, other)


def _whole_numbers(case: Case) -> Case | None:
    """Small whole numbers."""
    x = case.arrays["x"]
    if not x.size:
        return None
    small = {name: np.clip(np.rint(a.astype(np.float64)), -3, 3).astype(a.dtype) for name, a in case.arrays.items()
             if name in ("x", "weights", "dout")}  # fmt: skip
    return case.with_arrays(**small)


@law(prepare=_whole_numbers, every=2)
def twice_the_token_comes_out_twice(trial: Trial) -> Judgement:
    """The layer is linear in x, whom its logits do not depend on here: 2 x gives 2 out, to the last bit. Subnormal results are left out."""
    x = trial.case.arrays["x"]
    other = trial.on(trial.case.with_arrays(x=(2.0 * x.astype(np.float64)).astype(x.dtype)))
    if "out" not in trial.answer or not other.answer or not trial.repeats():
        return NOTHING
    wanted = 2.0 * trial.answer["out"].astype(np.float64)
    tiny = (np.abs(wanted) < 2.0**-100) & (wanted != 0.0) if x.dtype == np.float64 else np.abs(wanted) < 2.0**-8
    allowed = np.where(tiny | np.isinf(trial.allowed["out"]), np.inf, 0.0)
    return pinned(within(other.answer, {"out": wanted}, {"out": allowed}), trial, other)


# Gradients over ranks -----------------------------------------------------------------------------------------------------

_RANKED = ("x", "logits", "weights", "dout")


@law(minimise=False)
def any_number_of_ranks_has_the_gradients_of_one(trial: Trial) -> Judgement:
    """All tokens and experts on one rank: the same gradients, none larger by the number of ranks. Allowed: the bounds of both."""
    R = len(trial.case.arrays["x"])
    if R < 2 or not trial.answer or not trial.case.arrays["x"].size:
        return NOTHING
    whole = {name: np.ascontiguousarray(a.reshape(1, -1, *a.shape[2:])) for name, a in trial.case.arrays.items() if name in _RANKED}
    other = trial.on(trial.case.with_arrays(**whole))
    wanted = {name: other.answer[name].astype(np.float64).reshape(got.shape) for name, got in trial.answer.items() if name in other.answer}
    allowed = {name: trial.allowed[name] + other.allowed[name].reshape(trial.allowed[name].shape) for name in wanted}
    return pinned(within(trial.answer, wanted, allowed), trial, other)


@law(every=2, minimise=False)
def twice_dout_has_twice_the_gradients(trial: Trial) -> Judgement:
    """All gradients are linear in dout. Allowed: twice the bound, and that of the doubled case."""
    d = trial.case.arrays["dout"]
    other = trial.on(trial.case.with_arrays(dout=(2.0 * d.astype(np.float64)).astype(d.dtype)))
    if not trial.answer or not other.answer:
        return NOTHING
    wanted = {name: 2.0 * got.astype(np.float64) for name, got in trial.answer.items()}
    return pinned(within(other.answer, wanted, {name: 2.0 * trial.allowed[name] + other.allowed[name] for name in wanted}), trial, other)


@law(every=2)
def a_tokens_router_gradient_adds_up_to_nothing(trial: Trial) -> Judgement:
    """sum_e dlogits_e = 0: the softmax does not see a shift. Allowed: the sum of the bounds of the row."""
    got = trial.answer.get("dlogits")
    if got is None or not got.size:
        return NOTHING
    judged = within({"dlogits": got.astype(np.float64).sum(axis=-1)}, {"dlogits": np.zeros(got.shape[:-1])},
                    {"dlogits": trial.allowed["dlogits"].sum(axis=-1) + np.abs(trial.wanted["dlogits"].sum(axis=-1))})
    return pinned(judged, trial)


@law(every=2)
def tokens_and_experts_have_the_same_product(trial: Trial) -> Judgement:
    """sum x dx = sum w dw = sum dout out: the layer is linear in tokens and in experts, so a factor on one belongs on the other.

    Allowed: the bounds of both along |x| and |w|.
    """
    if not {"dx", "dweights"} <= set(trial.answer) or not trial.case.arrays["x"].size:
        return NOTHING
    x, w = (trial.case.arrays[name].astype(np.float64) for name in ("x", "weights"))
    of_x, of_w = (trial.answer["dx"].astype(np.float64) * x).sum(), (trial.answer["dweights"].astype(np.float64) * w).sum()
    allowed = (trial.allowed["dx"] * np.abs(x)).sum() + (trial.allowed["dweights"] * np.abs(w)).sum()
    own = abs((trial.wanted["dx"] * x).sum() - (trial.wanted["dweights"] * w).sum())
    allowed = np.asarray(allowed + own if np.isfinite(allowed) else np.inf)
    return pinned(within({"dx": np.asarray(of_x)}, {"dx": np.asarray(of_w)}, {"dx": allowed}), trial)


def _one_choice(case: Case) -> Case | None:
    return case.with_options(k=1) if case.arrays["x"].size else None


@law(prepare=_one_choice, every=2)
def one_choice_reaches_the_router_only_unnormalised(trial: Trial) -> Judgement:
    """k = 1: normalised gates are 1 and give the router nothing; as they are, they give it p (dgate - p dgate). Allowed: the bound."""
    return within(trial.answer, {"dlogits": trial.wanted["dlogits"]}, {"dlogits": trial.allowed["dlogits"]})


def _crowded(case: Case) -> Case | None:
    """All tokens at expert 0, no second choice."""
    z = case.arrays["logits"]
    if not case.arrays["x"].size or "bias" in case.arrays or z.shape[-1] < 2:
        return None
    return case.with_arrays(logits=np.broadcast_to(8.0 * (np.arange(z.shape[-1]) == 0), z.shape).astype(z.dtype).copy()).with_options(k=1)


@law(prepare=_crowded, every=2)
def an_expert_without_tokens_has_no_gradient(trial: Trial) -> Judgement:
    """All tokens at the first expert: the others' gradients are 0. Allowed: 0 there, the bound at the first."""
    if "dweights" not in trial.answer:
        return NOTHING
    first = np.zeros(trial.wanted["dweights"].shape, np.bool_)
    first[0, 0] = True
    return within(trial.answer, {"dweights": np.where(first, trial.wanted["dweights"], 0.0)},
                  {"dweights": np.where(first, trial.allowed["dweights"], 0.0)})


_SHARED: tuple[Law, ...] = (
    replace(strides_are_respected, minimise=False), inputs_stay_untouched, buffers_are_fully_written, repeats_give_the_same_bits,
)  # fmt: skip
MOE_LAWS: tuple[Law, ...] = (
    answers,
    replace(agreement("out"), minimise=False),
    replace(agreement("slots"), minimise=False),
    identity_experts_give_the_token_back,
    places_go_to_the_first_tokens,
    no_place_is_given_twice,
    without_a_limit_nobody_is_dropped,
    tokens_do_not_know_each_other,
    renaming_the_experts_changes_nothing,
    twice_the_token_comes_out_twice,
    *_SHARED,
)
EXPERT_BACKWARD_LAWS: tuple[Law, ...] = (
    answers,
    replace(agreement("dx"), minimise=False),
    replace(agreement("dlogits"), minimise=False),
    replace(agreement("dweights"), minimise=False),
    any_number_of_ranks_has_the_gradients_of_one,
    twice_dout_has_twice_the_gradients,
    a_tokens_router_gradient_adds_up_to_nothing,
    tokens_and_experts_have_the_same_product,
    one_choice_reaches_the_router_only_unnormalised,
    an_expert_without_tokens_has_no_gradient,
    *_SHARED,
)
