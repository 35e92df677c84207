"""Laws of pruning: how many go, which, that more takes only away, and that what went stays gone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from ..array_lists import gathered, whole_name
from ..bounds.pruning import counts_of
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

Float64 = NDArray[np.float64]
Rows = tuple[Float64, NDArray[np.bool_]]                                        # magnitudes and mask of what is ranked together
_COMMON: tuple[Law, ...] = (strides_are_respected, inputs_stay_untouched, buffers_are_fully_written, repeats_give_the_same_bits)


def _layers(arrays: Mapping[str, Array], name: str) -> list[Array]:
    """The layers of a list, or of one array whose first axis counts them."""
    return list(gathered(arrays, (name,))[name])


def _rows(trial: Trial) -> Iterator[Rows]:
    """Magnitudes and mask of each layer, or of all together; none where the answer has defects."""
    if not trial.answer:
        return
    rows = [np.abs(w.astype(np.float64)).reshape(-1) for w in _layers(trial.case.arrays, "weights")]
    masks = [mask.astype(bool).reshape(-1) for mask in _layers(trial.answer, "masks")]
    if trial.case.options["scope"] == "global" and rows and len(rows) == len(masks):
        yield np.concatenate(rows), np.concatenate(masks)
    else:
        yield from zip(rows, masks)


def _masks_agree(trial: Trial) -> Judgement:
    missing = [name for name in trial.wanted if name not in trial.answer]
    if not trial.answer:
        return NOTHING
    if missing:
        return Judgement(1, worst_ratio=np.inf, failed=True, reason=f"{', '.join(missing)}: not returned")
    return within(trial.answer, trial.wanted, trial.allowed)


masks_agrees_with_the_oracle = Law(
    "masks_agrees_with_the_oracle", "|masks - oracle's masks| <= bound(subject's arithmetic) + bound(oracle's arithmetic), element by "
    "element; of a list none is missing.", _masks_agree, lambda case: case, lambda declaration: "",
)  # fmt: skip


def _failed(trial: Trial, compared: int, place: str, reason: str) -> Judgement:
    return Judgement(compared, worst_ratio=np.inf, worst_at=place, failed=True, reason=reason,
                     evidence=Evidence(trial.wanted, trial.allowed))  # fmt: skip


@law(minimise=False)
def as_many_go_as_the_share_says(trial: Trial) -> Judgement:
    """Of n weights floor(sparsity n) go (the nearest whole number, where declared), whatever ties there are; by rule "count".

    Allowed: the two counts between which the rounding of sparsity times n decides.
    """
    if trial.case.options.get("rule", "count") != "count":
        return NOTHING
    compared, sparsity = 0, trial.case.options["sparsity"]
    assert isinstance(sparsity, float)
    for w, mask in _rows(trial):
        least, most = counts_of(sparsity, len(w), trial.conventions["pruned_count"])
        gone, compared = int((~mask).sum()), compared + len(w)
        if not least <= gone <= most:
            wanted = str(least) if least == most else f"{least} or {most}"
            return _failed(trial, compared, "masks", f"{gone} of {len(w)} weights go at sparsity {sparsity}; want {wanted}")
    return Judgement(compared)


@law(minimise=False)
def what_stays_is_no_smaller_than_what_goes(trial: Trial) -> Judgement:
    """The smallest magnitude that stays is at least the largest that goes, among the weights ranked together. Allowed: 0."""
    compared = 0
    for w, mask in _rows(trial):
        compared += len(w)
        if mask.any() and not mask.all() and w[mask].min() < w[~mask].max():
            reason = f"a weight of magnitude {w[mask].min():.9g} stays, and one of {w[~mask].max():.9g} goes"
            return _failed(trial, compared, "masks", reason)
    return Judgement(compared)


@law(every=2, minimise=False)
def more_sparsity_only_takes_away(trial: Trial) -> Judgement:
    """Nothing that goes at a sparsity stays at one half way between it and 1. Holds unless ties are left open. Allowed: 0."""
    if trial.conventions["pruned_ties"] == "any":
        return NOTHING
    sparsity = trial.case.options["sparsity"]
    assert isinstance(sparsity, float)
    other = trial.on(trial.case.with_options(sparsity=(sparsity + 1.0) / 2.0))
    compared = 0
    for name, mask in trial.answer.items():
        grown = other.answer[name].astype(bool) & ~mask.astype(bool) if name in other.answer else np.zeros(0, bool)
        compared += grown.size
        if grown.any():
            place = f"{name}[{','.join(map(str, np.argwhere(grown)[0]))}]"
            return _failed(trial, compared, place, f"{place} goes at sparsity {sparsity}, and stays at a larger one")
    return Judgement(compared)


def _alternating(w: Array) -> Array:
    return np.where(np.arange(w.size).reshape(w.shape) % 2 == 0, -1, 1).astype(w.dtype)


def _sized(case: Case, name: str) -> dict[str, Array]:
    """The arrays of one argument that are not empty."""
    return {n: w for n, w in case.arrays.items() if whole_name(n) == name and w.size}


@law(every=2, minimise=False)
def signs_do_not_matter(trial: Trial) -> Judgement:
    """Every second weight with the other sign has the mask it had: magnitudes decide. Allowed: what ties and roundings leave open."""
    weights = _sized(trial.case, trial.operation.signature.required[0])
    if not weights or not trial.answer:
        return NOTHING
    other = trial.on(trial.case.with_arrays(**{name: w * _alternating(w) for name, w in weights.items()}))
    return pinned(within(other.answer, {name: mask.astype(np.float64) for name, mask in trial.answer.items()}, trial.allowed), trial, other)


def _all_equal(case: Case) -> Case | None:
    weights = _sized(case, "weights") if case.options.get("rule", "count") == "count" else {}
    return case.with_arrays(**{name: _alternating(w) for name, w in weights.items()}) if weights else None


def _orders_ties(declaration: Declaration) -> str:
    return "" if declaration.conventions.get("pruned_ties") != "any" else "the subject leaves open which of equal magnitudes go"


@law(prepare=_all_equal, every=2, not_covered=_orders_ties)
def of_equals_the_lowest_index_goes_first(trial: Trial) -> Judgement:
    """Where all magnitudes are 1, the first floor(sparsity n) go, in C order. Allowed: 0, unless the count itself is open."""
    return within(trial.answer, trial.wanted, trial.allowed)


@law(every=2, minimise=False)
def a_layer_alone_is_as_among_others(trial: Trial) -> Judgement:
    """With scope "layer", one layer by itself has the mask it has among the others. Allowed: what ties and roundings leave open."""
    layers = _layers(trial.case.arrays, "weights")
    i = int(trial.case.hash, 16) % max(len(layers), 1)
    if trial.case.options["scope"] != "layer" or len(layers) < 2 or len(trial.wanted) != len(trial.answer) or not layers[i].size:
        return NOTHING
    listed = "weights" not in trial.case.arrays
    alone = {"weights.0": layers[i].copy()} if listed else {"weights": layers[i][None].copy()}
    here, allowed = (_layers(found, "masks")[i].astype(np.float64) for found in (trial.answer, trial.allowed))
    result, shape = ("masks.0", here.shape) if listed else ("masks", (1, *here.shape))
    other = trial.on(replace(trial.case, arrays=alone))
    return pinned(within(other.answer, {result: here.reshape(shape)}, {result: allowed.reshape(shape)}), trial, other)


@law(minimise=False)
def the_strictly_larger_stay(trial: Trial) -> Judgement:
    """By rule "quantile" equal magnitudes share their fate: a threshold is strict. Allowed: 0."""
    if trial.case.options.get("rule", "count") != "quantile":
        return NOTHING
    compared = 0
    for w, mask in _rows(trial):
        compared += len(w)
        both = np.intersect1d(w[mask], w[~mask])
        if both.size:
            return _failed(trial, compared, "masks", f"of weights of magnitude {both[0]:.9g} some stay and some go")
    return Judgement(compared)


# Two of every four --------------------------------------------------------------------------------------------------------


@law(minimise=False)
def two_of_every_four_stay(trial: Trial) -> Judgement:
    """Exactly two of each four consecutive weights along the axis stay, and of a short last group at most two. Allowed: 0."""
    mask = trial.answer.get("mask")
    if mask is None or not mask.size:
        return NOTHING
    axis = trial.case.options["axis"]
    assert isinstance(axis, int)
    rows = np.moveaxis(mask.astype(np.int64), axis, -1)
    for start in range(0, rows.shape[-1], 4):
        four = rows[..., start : start + 4]
        kept = four.sum(axis=-1)
        if (kept != min(2, four.shape[-1])).any():
            wrong = int(kept[kept != min(2, four.shape[-1])][0])
            return _failed(trial, mask.size, "mask", f"{wrong} of the weights {start}..{start + four.shape[-1] - 1} stay; "
                           f"want {min(2, four.shape[-1])}")  # fmt: skip
    return Judgement(mask.size)


@law(every=2, minimise=False)
def fours_may_change_places(trial: Trial) -> Judgement:
    """Fours in reverse order along the axis have their masks in reverse order. Allowed: what ties leave open."""
    w, axis = trial.case.arrays["w"], trial.case.options["axis"]
    assert isinstance(axis, int)
    n = w.shape[axis]
    if "mask" not in trial.answer or n % 4 or n < 8 or not w.size:
        return NOTHING
    order = np.arange(n).reshape(-1, 4)[::-1].reshape(-1)
    other = trial.on(trial.case.with_arrays(w=np.ascontiguousarray(np.take(w, order, axis=axis))))
    wanted = np.take(trial.answer["mask"].astype(np.float64), order, axis=axis)
    return pinned(within(other.answer, {"mask": wanted}, {"mask": np.take(trial.allowed["mask"], order, axis=axis)}), trial, other)


def _equal_fours(case: Case) -> Case | None:
    w = case.arrays["w"]
    return case.with_arrays(w=np.ones_like(w)) if w.size else None


@law(prepare=_equal_fours, every=2, not_covered=_orders_ties)
def of_equal_four_the_first_two_stay(trial: Trial) -> Judgement:
    """Of four equal magnitudes the two of lowest index stay. Allowed: 0."""
    return within(trial.answer, trial.wanted, trial.allowed)


# Step by step -------------------------------------------------------------------------------------------------------------


@law(minimise=False)
def what_went_stays_gone(trial: Trial) -> Judgement:
    """No weight that is pruned at one step is back at a later one, however it has grown in the meantime. Allowed: 0."""
    masks = trial.answer.get("masks")
    if masks is None or len(masks) < 2:
        return NOTHING
    back = masks[1:].astype(bool) & ~masks[:-1].astype(bool)
    if back.any():
        step, *at = np.argwhere(back)[0].tolist()
        return _failed(trial, back.size, f"masks[{step + 1}]", f"the weight {at} went at step {step} and is back at step {step + 1}")
    return Judgement(back.size)


@law(minimise=False)
def each_step_has_its_sparsity(trial: Trial) -> Judgement:
    """At every step, the last one too, exactly floor(sparsity n) of the weights ranked together are gone. Allowed: 0."""
    masks = trial.answer.get("masks")
    if masks is None:
        return NOTHING
    for t, sparsity in enumerate(trial.case.arrays["sparsities"].tolist()):
        step = masks[t].astype(bool)
        rows = step.reshape(1, -1) if trial.case.options["scope"] == "global" else step.reshape(len(step), step.size // len(step))
        gone, wanted = (~rows).sum(axis=1), int(Fraction(sparsity) * rows.shape[1])
        if (gone != wanted).any():
            wrong = int(gone[gone != wanted][0])
            reason = f"at step {t} {wrong} of {rows.shape[1]} weights are gone at sparsity {sparsity:g}; want {wanted}"
            return _failed(trial, masks.size, f"masks[{t}]", reason)
    return Judgement(masks.size)


def _one_step(case: Case) -> Case | None:
    history = case.arrays["history"]
    if not history.size:
        return None
    return replace(case, arrays={"history": history[:1].copy(), "sparsities": case.arrays["sparsities"][:1].copy()})


@law(prepare=_one_step, every=2)
def one_step_is_pruning_at_once(trial: Trial) -> Judgement:
    """A single step is `prune_magnitude` by count with its sparsity. Allowed: 0."""
    return within(trial.answer, trial.wanted, trial.allowed)


PRUNE_LAWS: tuple[Law, ...] = (
    answers,
    masks_agrees_with_the_oracle,
    as_many_go_as_the_share_says,
    what_stays_is_no_smaller_than_what_goes,
    more_sparsity_only_takes_away,
    signs_do_not_matter,
    of_equals_the_lowest_index_goes_first,
    a_layer_alone_is_as_among_others,
    the_strictly_larger_stay,
    *_COMMON,
)
PRUNE_2_4_LAWS: tuple[Law, ...] = (
    answers,
    agreement("mask"),
    two_of_every_four_stay,
    signs_do_not_matter,
    fours_may_change_places,
    of_equal_four_the_first_two_stay,
    *_COMMON,
)
GRADUAL_LAWS: tuple[Law, ...] = (
    answers,
    agreement("masks"),
    what_went_stays_gone,
    each_step_has_its_sparsity,
    signs_do_not_matter,
    one_step_is_pruning_at_once,
    *_COMMON,
)
