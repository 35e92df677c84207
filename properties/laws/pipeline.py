"""Laws of pipelines: schedules that can be run and cost no more than their kind; losses and steps that no cut changes."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np

from oracles.reference import FloatFormat, Schedule, schedule_limits
from oracles.reference.pipeline_schedule import BACKWARD, FORWARD, WEIGHT

from ..array_lists import whole_name
from ..case import Case
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
    same_bits,
    strides_are_respected,
)
from .shard_terms import list_agreement

# Schedules ---------------------------------------------------------------------------------------------------------------


def _sizes(case: Case) -> dict[str, Any]:
    return {name: case.options.get(name, 1) for name in ("stages", "microbatches", "chunks")}


def _wanted(case: Case) -> Counter[tuple[int, int, int]]:
    """What every stage has to do."""
    ops = (FORWARD, BACKWARD, WEIGHT) if case.options["kind"] == "zero_bubble" else (FORWARD, BACKWARD)
    sizes = _sizes(case)
    return Counter((op, i, c) for op in ops for i in range(sizes["microbatches"]) for c in range(sizes["chunks"]))


def _broken(trial: Trial, reason: str) -> Judgement:
    """A broken law, with the oracle's own schedule as evidence: one that keeps it."""
    wanted = {"actions": trial.wanted["actions"]}
    evidence = Evidence(wanted, {"actions": np.zeros(wanted["actions"].shape)})
    return Judgement(max(wanted["actions"].size, 1), worst_ratio=np.inf, worst_at="actions", failed=True, reason=reason, evidence=evidence)


@law()
def every_action_is_done_once(trial: Trial) -> Judgement:
    """Each stage does each micro-batch's forward and backward pass, and gradient of the weights, once for each chunk. Allowed: 0."""
    if not trial.answer:
        return NOTHING
    actions, wanted = trial.answer["actions"], _wanted(trial.case)
    for s, row in enumerate(actions):
        done = Counter(map(tuple, row.tolist()))
        if done != wanted:
            wrong = next(iter((done - wanted) + (wanted - done)))
            return _broken(trial, f"actions[{s}]: {wrong} is done {done[wrong]} times, wanted {wanted[wrong]}")
    return Judgement(compared=actions.size)


def _runnable(trial: Trial) -> Schedule | None:
    """The schedule, where it has every action once: of others neither time nor memory can be told."""
    case = trial.case
    if not trial.answer or any(Counter(map(tuple, row.tolist())) != _wanted(case) for row in trial.answer["actions"]):
        return None
    return Schedule(trial.answer["actions"].astype(np.int64), _sizes(case)["chunks"], split=case.options["kind"] == "zero_bubble")


@law()
def no_stage_waits_for_ever(trial: Trial) -> Judgement:
    """Every action's needs are met by actions that can be done before it: the schedule runs to its end, whatever the durations.

    A forward pass needs that of the piece before, a backward pass that of the piece after, the last piece's its own forward pass,
    the gradient of the weights its backward pass. Allowed: 0.
    """
    order = _runnable(trial)
    if order is None:
        return NOTHING
    try:
        order.timeline()
    except ValueError as error:
        return _broken(trial, str(error))
    return Judgement(compared=order.actions.size)


@law()
def no_stage_idles_longer_than_in_its_kind(trial: Trial) -> Judgement:
    """Where every action takes one unit, the share of time spent waiting is at most that of the kind's formula.

        (p - 1) / (m + p - 1), interleaved (p - 1) / (v m + p - 1), zero-bubble 1 - 3 m / max(3 m + p - 1, 2 m + 2 p - 1)

    Allowed: 2^-50, for the quotients.
    """
    order = _runnable(trial)
    if order is None:
        return NOTHING
    limit, _ = schedule_limits(str(trial.case.options["kind"]), **_sizes(trial.case))
    try:
        idle = order.bubble()
    except ValueError:
        return NOTHING                                                          # no_stage_waits_for_ever says so
    if idle > limit + 2.0**-50:
        return _broken(trial, f"stages idle {idle:.4g} of the time, at most {limit:.4g} wanted")
    return Judgement(compared=max(order.actions.size, 1))


@law()
def no_stage_holds_more_than_in_its_kind(trial: Trial) -> Judgement:
    """Each stage holds at most as many activations as the kind's formula says, from forward pass to the gradient of the weights.

        gpipe m, 1f1b min(m, p - s), interleaved min(v m, 2 (p - s - 1) + (v - 1) p + 1) chunks, zero-bubble min(m, p)

    Allowed: 0.
    """
    order = _runnable(trial)
    if order is None:
        return NOTHING
    held, (_, limit) = order.peak_activations(), schedule_limits(str(trial.case.options["kind"]), **_sizes(trial.case))
    if (held > limit).any():
        s = int(np.argmax(held > limit))
        return _broken(trial, f"stage {s} holds {held[s]} activations at once, at most {limit[s]} wanted")
    return Judgement(compared=max(order.actions.size, 1))


SCHEDULE_LAWS: tuple[Law, ...] = (
    answers, every_action_is_done_once, no_stage_waits_for_ever, no_stage_idles_longer_than_in_its_kind,
    no_stage_holds_more_than_in_its_kind, repeats_give_the_same_bits,
)  # fmt: skip


# Losses ------------------------------------------------------------------------------------------------------------------


@law(every=2)
def no_cut_changes_the_loss(trial: Trial) -> Judgement:
    """In micro-batches of one sequence, and all in one, the loss is the same: the mean over tokens, not the mean of means.

    Allowed: the bounds of both calls.
    """
    judgements = []
    for size in (1, max(len(trial.case.arrays["lengths"]), 1)):
        other = trial.on(trial.case.with_options(microbatch_size=size))
        if "loss" in trial.answer and "loss" in other.answer:
            wanted = {"loss": np.asarray(other.answer["loss"], np.float64)}
            judgements.append(pinned(within(trial.answer, wanted, {"loss": trial.allowed["loss"] + other.allowed["loss"]}), trial, other))
    return next((judgement for judgement in judgements if judgement.failed), judgements[0] if judgements else NOTHING)


def _dyadic(case: Case) -> Case | None:
    """Losses of small whole numbers, and a power of two of tokens, spread over the sequences as evenly or unevenly as they were."""
    lengths, losses = _power_of_two(case.arrays["lengths"]), case.arrays["token_losses"]
    if not lengths.any():
        return None
    grid = np.random.default_rng(int(case.hash, 16)).integers(-3, 4, losses.shape)
    return case.with_arrays(lengths=lengths, token_losses=grid.astype(losses.dtype))


def _power_of_two(lengths: Array) -> Array:
    """The lengths, the first of them shortened until they sum to a power of two."""
    surplus = int(lengths.sum()) - 2 ** int(np.log2(max(int(lengths.sum()), 1)))
    before = np.concatenate([[0], np.cumsum(lengths)[:-1]]) if len(lengths) else lengths
    return np.asarray(lengths - np.clip(surplus - before, 0, lengths), dtype=np.int64)


@law(prepare=_dyadic)
def whole_losses_of_a_power_of_two_are_exact(trial: Trial) -> Judgement:
    """Small whole losses over 2^k tokens: every sum and every quotient is exact in any order and cut, but for the store.

    Allowed: 0.
    """
    exact = FloatFormat(trial.arithmetic.out).round(trial.wanted["loss"])
    return within(trial.answer, {"loss": np.asarray(exact)}, {"loss": np.zeros(())})


def _with_padding(case: Case) -> Case | None:
    T = case.arrays["token_losses"].shape[1]
    return case if (case.arrays["lengths"] < T).any() else None


@law(prepare=_with_padding, every=2)
def padding_does_not_count(trial: Trial) -> Judgement:
    """Other losses behind the lengths leave every bit of the loss. Allowed: 0."""
    losses, lengths = trial.case.arrays["token_losses"], trial.case.arrays["lengths"]
    behind = np.arange(losses.shape[1]) >= lengths[:, None]
    other = trial.on(trial.case.with_arrays(token_losses=np.where(behind, losses.dtype.type(-5), losses)))
    return same_bits(trial, other, {"loss": np.ones((), dtype=bool)})


PIPELINE_LOSS_LAWS: tuple[Law, ...] = (
    answers, agreement("loss"), no_cut_changes_the_loss, whole_losses_of_a_power_of_two_are_exact, padding_does_not_count,
    strides_are_respected, inputs_stay_untouched, buffers_are_fully_written, repeats_give_the_same_bits,
)  # fmt: skip


# Steps -------------------------------------------------------------------------------------------------------------------


@law(every=2, minimise=False)
def no_cut_changes_the_step(trial: Trial) -> Judgement:
    """Loss and gradients are those of micro-batches of one sequence, and of all sequences in one: how a batch is cut and accumulated
    does not matter, whatever the token counts.

    Allowed: the bounds of both calls.
    """
    case, judgements = trial.case, []
    for size in (1, max(len(case.arrays["lengths"]), 1)):
        if case.options["kind"] == "interleaved":
            continue                                                            # whose micro-batches cannot be of any number
        options = {"microbatch_size": size} | ({"accumulation": 1} if "accumulation" in case.options else {})
        other = trial.on(case.with_options(**options))
        names = [name for name in trial.answer if name in other.answer]
        wanted = {name: np.asarray(other.answer[name], np.float64) for name in names}
        allowed = {name: trial.allowed[name] + other.allowed[name] for name in names}
        judgements.append(pinned(within(trial.answer, wanted, allowed), trial, other))
    return next((judgement for judgement in judgements if judgement.failed), judgements[0] if judgements else NOTHING)


def _one_piece(case: Case) -> Case | None:
    """One piece without weights, whole numbers, a power of two of tokens; dropout, which doubles, if any, is of one half."""
    dyadic = _dyadic_step(case)
    if dyadic is None or case.options["kind"] == "interleaved":
        return None
    arrays = {name: array for name, array in dyadic.arrays.items() if whole_name(name) != "weights"}
    weight = dyadic.arrays["weights.0"]
    arrays["weights.0"] = np.zeros_like(weight)
    if "dropout_mask" in arrays:
        arrays["dropout_mask"] = arrays["dropout_mask"][:1]
    options = {name: 0.5 if name == "dropout_p" else value for name, value in dyadic.options.items()}
    return Case(case.operation, arrays, options, case.origin, case.notes)


def _dyadic_step(case: Case) -> Case | None:
    lengths, g, x = _power_of_two(case.arrays["lengths"]), np.random.default_rng(int(case.hash, 16)), case.arrays["x"]
    if not lengths.any():
        return None
    return case.with_arrays(lengths=lengths, **{name: g.integers(-2, 3, x.shape).astype(x.dtype) for name in ("x", "targets")})


@law(prepare=_one_piece, every=2)
def a_piece_without_weights_is_exact(trial: Trial) -> Judgement:
    """One piece with W = 0, whole numbers and 2^k tokens: y = 0, so that the loss is the mean of targets^2 / 2 and dW = -x^T targets / N.

    Sums of whole numbers over a power of two are exact in any order, cut and accumulation, and dx = 0. Allowed: 0.
    """
    fmt = FloatFormat(trial.arithmetic.out)
    wanted = {name: np.asarray(fmt.round(value)) for name, value in trial.wanted.items() if name in trial.answer}
    return within(trial.answer, wanted, {name: np.zeros(value.shape) for name, value in wanted.items()})


@law(every=2, minimise=False, prepare=lambda case: _with_tokens_behind(case))
def tokens_behind_a_length_do_not_count(trial: Trial) -> Judgement:
    """Tokens behind the lengths get no gradient, and other inputs and targets there leave every bit of loss and gradients. Allowed: 0."""
    case = trial.case
    behind = _behind(case)
    changed = {name: np.where(behind, case.arrays[name].dtype.type(3), case.arrays[name]) for name in ("x", "targets")}
    everywhere = {name: np.ones(got.shape, bool) for name, got in trial.answer.items()}
    judgement = same_bits(trial, trial.on(case.with_arrays(**changed)), everywhere)
    if judgement.failed or "dx" not in trial.answer:
        return judgement
    return within(trial.answer, {"dx": np.zeros(behind.shape[:2] + trial.answer["dx"].shape[2:])},
                  {"dx": np.where(behind, 0.0, np.inf) + np.zeros(trial.answer["dx"].shape)})  # fmt: skip


def _behind(case: Case) -> Any:
    return (np.arange(case.arrays["x"].shape[1]) >= case.arrays["lengths"][:, None])[..., None]


def _with_tokens_behind(case: Case) -> Case | None:
    return case if _behind(case).any() else None


PIPELINE_STEP_LAWS: tuple[Law, ...] = (
    answers, replace(agreement("loss"), minimise=False), replace(agreement("dx"), minimise=False),
    replace(list_agreement("dweights"), minimise=False), no_cut_changes_the_step, a_piece_without_weights_is_exact,
    tokens_behind_a_length_do_not_count, strides_are_respected, inputs_stay_untouched, repeats_give_the_same_bits,
)  # fmt: skip
