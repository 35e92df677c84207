"""Laws of cross-entropy and its gradient: what changes nothing, what counts nowhere, and how rows become a mean."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from oracles.reference.scored_rows import scored_rows

from ..case import Case
from ..declaration import Declaration
from ..law import NOTHING, Judgement, Law, law, within
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

# Arguments that hold rows of classes, and how an operation names its result.
ROWS = ("logits", "shards", "student", "teacher")
RESULT = {"cross_entropy_backward": "dlogits", "distillation_loss_backward": "dstudent"}


def ignored(case: Case) -> int:
    number = case.options.get("ignore_index", -100)
    assert isinstance(number, int)
    return number


def result_of(trial: Trial) -> str:
    """The name of what the operation gives: a loss, or a gradient of the shape of the logits."""
    return RESULT.get(trial.operation.name, "loss")


def names_of_rows(case: Case) -> list[str]:
    return [name for name in ROWS if name in case.arrays]


def _on_a_grid(case: Case) -> Case | None:
    """Logits that are multiples of 1/8 in -3 … 3, so that 8 more is exact in every format of 8 bits; no term that sees the shift."""
    if not case.arrays["targets"].size:
        return None
    grid = {}
    for name in names_of_rows(case):
        z = case.arrays[name]
        wide = z.astype(np.float64)
        grid[name] = np.where(np.isfinite(wide), np.rint(np.clip(np.nan_to_num(wide), -3.0, 3.0) * 8.0) / 8.0, wide).astype(z.dtype)
    plain = case.with_arrays(**grid)
    return plain.with_options(z_loss=0.0) if "z_loss" in case.options else plain


@law(prepare=_on_a_grid, every=2)
def adding_one_number_to_all_logits_changes_nothing(trial: Trial) -> Judgement:
    """softmax(z + c) = softmax(z): logits on a grid, moved by 8 without rounding; without z_loss, which is there to see the shift.

    Allowed: the bound of the moved case.
    """
    moved = {name: (trial.case.arrays[name].astype(np.float64) + 8.0).astype(trial.case.arrays[name].dtype)
             for name in names_of_rows(trial.case)}  # fmt: skip
    other = trial.on(trial.case.with_arrays(**moved))
    return pinned(within(other.answer, trial.wanted, other.allowed), trial, other)


@law(every=2, minimise=False)
def renaming_the_classes_changes_nothing(trial: Trial) -> Judgement:
    """Classes renamed alike in logits, weights and targets; a gradient is renamed with them. Allowed: the bound of the renamed case."""
    case, result = trial.case, result_of(trial)
    names, skip = [name for name in (*names_of_rows(case), "weights") if name in case.arrays], ignored(case)
    V = case.arrays[names[0]].shape[-1]
    if not case.arrays["targets"].size or skip >= 0 or "shards" in names:
        return NOTHING
    order = np.random.default_rng(V).permutation(V)
    y = case.arrays["targets"]
    renamed = np.where(y == skip, y, np.argsort(order)[np.where(y == skip, 0, y)])
    other = trial.on(case.with_arrays(targets=renamed, **{name: np.ascontiguousarray(case.arrays[name][..., order]) for name in names}))
    wanted = trial.wanted[result][..., order] if result != "loss" else trial.wanted[result]
    return pinned(within(other.answer, {result: wanted}, other.allowed), trial, other)


def _far_below(case: Case) -> Case | None:
    """Logits on the grid, moved by -3 2^12: farther than what a tile is padded with, and inside of float16 at half the temperature too."""
    plain = _on_a_grid(case)
    if plain is None:
        return None
    return plain.with_arrays(**{name: (plain.arrays[name].astype(np.float64) - 12288.0).astype(plain.arrays[name].dtype)
                                for name in names_of_rows(plain)})  # fmt: skip


@law(prepare=_far_below, every=2)
def logits_may_all_lie_far_below_zero(trial: Trial) -> Judgement:
    """With all logits near -12288 neither 0, -100 nor -10000 may stand for the maximum of nothing, or for what fills up a tile.

    Allowed: the bound.
    """
    return within(trial.answer, trial.wanted, trial.allowed)


def _one_in_a_row(case: Case, value: float, beside: int) -> Case | None:
    """`value` for one logit of each row that counts, `beside` classes from its target; no smoothed label, which wants every class."""
    y, name = case.arrays["targets"], names_of_rows(case)[0]
    z, counts = case.arrays[name], y != ignored(case)
    if not counts.any():
        return None
    rows = np.moveaxis(z, 0, -2) if name == "shards" else z                     # (..., R, V/R): each class at its place
    rows = rows.reshape(*y.shape, -1)
    V = rows.shape[-1]
    if beside >= V:
        return None
    at = np.where(np.arange(V) == ((np.where(counts, y, 0) + beside) % V)[..., None], counts[..., None], False)
    rows = np.where(at, value, rows).astype(z.dtype)
    if name == "shards":
        rows = np.moveaxis(rows.reshape(*y.shape, len(z), -1), -2, 0)
    plain = case.with_arrays(**{name: np.ascontiguousarray(rows)})
    return plain.with_options(label_smoothing=0.0) if "label_smoothing" in case.options else plain


def _impossible_class(case: Case) -> Case | None:
    return _one_in_a_row(case, -np.inf, 1)


def declared_nan(declaration: Declaration) -> str:
    return "declared to be NaN" if declaration.conventions["impossible_class"] == "nan" else ""


@law(prepare=_impossible_class, not_covered=declared_nan, every=2)
def an_impossible_class_costs_nothing(trial: Trial) -> Judgement:
    """A logit of -inf, as in a vocabulary that is padded, is a class of probability 0: where it is no target it adds nothing.

    Not where it is declared to be NaN, 0 times infinity. Allowed: the bound.
    """
    return within(trial.answer, trial.wanted, trial.allowed)


def _with_nan(case: Case) -> Case | None:
    return None if "weights" in case.arrays else _one_in_a_row(case, np.nan, 0)


@law(prepare=_with_nan, every=2)
def a_nan_that_counts_is_seen(trial: Trial) -> Judgement:
    """NaN in a logit of a row that counts is NaN in its loss and in all of its gradient: who makes a number of it hides what broke.

    Judged are the elements that are NaN at the oracle.
    """
    allowed = {name: np.where(np.isnan(wanted), 0.0, np.inf) for name, wanted in trial.wanted.items()}
    return within(trial.answer, trial.wanted, allowed)


def _poisoned(case: Case) -> Case | None:
    """Every third target ignored, and NaN in the rows of all that are."""
    y = case.arrays["targets"]
    if not y.size:
        return None
    targets = np.where(np.arange(y.size).reshape(y.shape) % 3 == 1, ignored(case), y)
    arrays = {}
    for name in names_of_rows(case):
        z = case.arrays[name].copy()
        z[..., targets == ignored(case), :] = np.nan
        arrays[name] = z
    return case.with_arrays(targets=targets, **arrays)


@law(prepare=_poisoned, every=2)
def ignored_rows_never_matter(trial: Trial) -> Judgement:
    """NaN in rows whose target is ignored changes nothing in others; their own loss and gradient are 0. Allowed: the bound, of them 0.

    Where it is declared to spread, the gradient of that row itself is NaN, and no other.
    """
    return within(trial.answer, trial.wanted, trial.allowed)


def _all_ignored(case: Case) -> Case | None:
    y = case.arrays["targets"]
    return case.with_arrays(targets=np.full_like(y, ignored(case))) if y.size else None


@law(prepare=_all_ignored, every=3)
def nothing_to_score_is_no_loss(trial: Trial) -> Judgement:
    """With every target ignored loss and gradient are 0, or NaN where a mean of nothing is declared to be. Allowed: 0."""
    return within(trial.answer, trial.wanted, {name: np.zeros(w.shape) for name, w in trial.wanted.items()})


def _equal_logits(case: Case) -> Case | None:
    if not case.arrays["targets"].size or "z_loss" in case.options:
        return None
    return case.with_arrays(**{name: np.full_like(case.arrays[name], 0.5) for name in names_of_rows(case)})


@law(prepare=_equal_logits, every=2)
def equal_logits_cost_the_logarithm_of_their_number(trial: Trial) -> Judgement:
    """V equal logits cost ln V, whatever the target and however much its label is smoothed. Allowed: the bound.

    A mean of rows of no weight is left out: it is what the subject declares.
    """
    case = trial.case
    if "weights" in case.arrays or (case.arrays["targets"] == ignored(case)).all():
        return NOTHING
    z = case.arrays[names_of_rows(case)[0]]
    V = z.shape[-1] * (z.shape[0] if "shards" in case.arrays else 1)
    counts = case.arrays["targets"] != ignored(case)
    each = np.where(counts, np.log(V), 0.0)
    wanted = {"none": each, "sum": each.sum(), "mean": np.asarray(np.log(V))}[str(case.options["reduction"])]
    return within(trial.answer, {"loss": np.asarray(wanted)}, trial.allowed)


def _one_rank_far_above(case: Case) -> Case | None:
    """All logits of one rank 1024 above those of the others: e^1024 is beyond every format, and e^-1024 is 0."""
    plain = _on_a_grid(case)
    if plain is None or len(case.arrays["shards"]) < 2:
        return None
    z = plain.arrays["shards"].astype(np.float64)
    z[int(case.hash, 16) % len(z)] += 1024.0
    return plain.with_arrays(shards=z.astype(plain.arrays["shards"].dtype))


@law(prepare=_one_rank_far_above, every=2)
def one_rank_may_lie_far_above_the_others(trial: Trial) -> Judgement:
    """The maximum that is taken off is that of all ranks: with one rank's own, e^(z - m) overflows, or is 0 everywhere.

    Allowed: the bound.
    """
    return within(trial.answer, trial.wanted, trial.allowed)


@law(every=2, minimise=False)
def a_mean_is_the_sum_over_the_weight(trial: Trial) -> Judgement:
    """The mean is the rows' losses added up over the sum of the weights of their targets, the sum is them added up.

    Allowed: the bound of the result and the sum of the rows' bounds, over the same weight.
    """
    case, coverage = trial.case, trial.subject.declaration.coverage
    reduction = case.options["reduction"]
    if "reduction" not in coverage.arguments or "none" not in coverage.levels("reduction", ("none",)) or reduction == "none":
        return NOTHING
    rows = trial.on(case.with_options(reduction="none"))
    weight = 1.0 if reduction == "sum" else float(((case.arrays["targets"] != ignored(case)) * _weights(case)).sum())
    if not rows.answer or weight == 0.0 or not trial.answer:
        return NOTHING
    allowed = trial.allowed["loss"] + rows.allowed["loss"].sum() / weight
    total = rows.answer["loss"].astype(np.float64).sum() / weight
    return pinned(within(trial.answer, {"loss": np.asarray(total)}, {"loss": np.asarray(allowed)}), trial, rows)


def _weights(case: Case) -> np.ndarray:
    """The weight of each target's class."""
    if "weights" not in case.arrays:
        return np.ones(case.arrays["targets"].shape)
    y = np.where(case.arrays["targets"] == ignored(case), 0, case.arrays["targets"])
    return np.asarray(case.arrays["weights"].astype(np.float64)[y])


@law(every=2)
def a_row_of_the_gradient_adds_up_to_nothing(trial: Trial) -> Judgement:
    """sum_c dz_c = 2 g z_loss w lse, which is 0 without z_loss: the softmax sums to 1, and so does a smoothed label.

    Allowed: the sum of the bounds of the row.
    """
    name = result_of(trial)
    if not trial.answer:
        return NOTHING
    got, wanted, allowed = (part[name].astype(np.float64).sum(axis=-1) for part in (trial.answer, trial.wanted, trial.allowed))
    return pinned(within({name: got}, {name: wanted}, {name: allowed}), trial)


@law(every=2, minimise=False)
def twice_the_loss_has_twice_the_gradient(trial: Trial) -> Judgement:
    """The gradient is linear in dloss: twice dloss, twice the gradient. Allowed: twice the bound, and that of the doubled case."""
    name = result_of(trial)
    doubled = (trial.case.arrays["dloss"].astype(np.float64) * 2.0).astype(trial.case.arrays["dloss"].dtype)
    other = trial.on(trial.case.with_arrays(dloss=np.asarray(doubled)))
    if not trial.answer or not other.answer:
        return NOTHING
    wanted = {name: 2.0 * trial.answer[name].astype(np.float64)}
    return pinned(within(other.answer, wanted, {name: 2.0 * trial.allowed[name] + other.allowed[name]}), trial, other)


@law(every=2)
def a_step_against_the_gradient_moves_the_target_up(trial: Trial) -> Judgement:
    """At the target dz is at most 0 times g, elsewhere at least 0: one class gains, the others lose; without smoothing and z_loss.

    Allowed: the bound.
    """
    case = trial.case
    if not trial.answer or "label_smoothing" in case.options or "z_loss" in case.options:
        return NOTHING
    rows = scored_rows(case.arrays["logits"], case.arrays["targets"], weights=case.arrays.get("weights"), ignore_index=ignored(case),
                       label_smoothing=0.0, reduction="mean")  # fmt: skip
    at = rows.spread(np.where(np.arange(rows.z.shape[-1]) == rows.y[:, None], -1.0, 1.0))
    g = case.arrays["dloss"].astype(np.float64)
    sign = at * np.sign(g)[..., None] if g.ndim else at * np.sign(g)
    got = np.where(np.isnan(trial.wanted["dlogits"]), 0.0, trial.answer["dlogits"].astype(np.float64) * sign)
    return pinned(within({"dlogits": np.minimum(got, 0.0)}, {"dlogits": np.zeros(got.shape)}, trial.allowed), trial)


_SHARED: tuple[Law, ...] = (
    replace(strides_are_respected, minimise=False), inputs_stay_untouched, buffers_are_fully_written, repeats_give_the_same_bits,
)  # fmt: skip
CROSS_ENTROPY_LAWS: tuple[Law, ...] = (
    answers,
    replace(agreement("loss"), minimise=False),
    adding_one_number_to_all_logits_changes_nothing,
    logits_may_all_lie_far_below_zero,
    an_impossible_class_costs_nothing,
    a_nan_that_counts_is_seen,
    renaming_the_classes_changes_nothing,
    ignored_rows_never_matter,
    nothing_to_score_is_no_loss,
    equal_logits_cost_the_logarithm_of_their_number,
    a_mean_is_the_sum_over_the_weight,
    *_SHARED,
)
SHARDED_LAWS: tuple[Law, ...] = (
    *(one for one in CROSS_ENTROPY_LAWS if one not in (renaming_the_classes_changes_nothing, *_SHARED)),
    one_rank_may_lie_far_above_the_others,
    *_SHARED,
)
CROSS_ENTROPY_BACKWARD_LAWS: tuple[Law, ...] = (
    answers,
    replace(agreement("dlogits"), minimise=False),
    adding_one_number_to_all_logits_changes_nothing,
    logits_may_all_lie_far_below_zero,
    an_impossible_class_costs_nothing,
    a_nan_that_counts_is_seen,
    renaming_the_classes_changes_nothing,
    ignored_rows_never_matter,
    nothing_to_score_is_no_loss,
    a_row_of_the_gradient_adds_up_to_nothing,
    twice_the_loss_has_twice_the_gradient,
    a_step_against_the_gradient_moves_the_target_up,
    *_SHARED,
)
