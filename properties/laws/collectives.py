"""Laws of collectives and of data parallelism: any order of ranks, any cut of the batch, arrays that never overlap."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..case import Case
from ..law import NOTHING, Judgement, Law, law, within
from ..trial import Trial
from .every_operation import agreement, answers, inputs_stay_untouched, pinned, repeats_give_the_same_bits, strides_are_respected
from .ranks import exact_on_integers, list_agreement, members, places_are_kept, same_in_every_row, same_on_every_rank

_SHARED = (inputs_stay_untouched, strides_are_respected, repeats_give_the_same_bits)


@law(every=2, minimise=False)
def the_order_of_ranks_does_not_matter(trial: Trial) -> Judgement:
    """Ranks numbered the other way round reduce to the same. Allowed: bound(case) + bound(turned case), since sums round otherwise."""
    names = list(trial.case.arrays)
    turned = trial.case.with_arrays(**dict(zip(names, list(trial.case.arrays.values())[::-1])))
    other = trial.on(turned)
    if not trial.answer or not other.answer or len(names) < 2:
        return NOTHING
    allowed = {name: trial.allowed[name] + other.allowed[name] for name in trial.wanted}
    return pinned(within(trial.answer, {name: other.answer[name].astype(np.float64) for name in trial.wanted}, allowed), trial, other)


def _divisor_of_mean(case: Case) -> int:
    """R where a mean is asked for, 1 where nothing is divided."""
    return len(case.arrays) if case.options.get("op") == "mean" else 1


def _rows(case: Case) -> int:
    """R of arrays (R, ...)."""
    return next(len(a) for name, a in case.arrays.items() if name.startswith("grads"))


def _tokens(case: Case) -> int:
    return int(case.arrays["tokens"].sum())


def _ranks_of_copies(case: Case) -> int:
    return int(case.arrays["grads"].shape[1])


def _places(name: str, what: str) -> Law:
    """`places_are_kept`, but for means, which would divide what one rank alone holds."""
    inner = places_are_kept(name, what)
    return replace(inner, prepare=lambda case: None if case.options.get("op") == "mean" else inner.prepare(case))


@law(minimise=False, every=2)
def any_cut_of_the_batch_gives_the_same_gradient(trial: Trial) -> Judgement:
    """All micro-batches of all ranks taken as micro-batches of one rank: the same gradient.

        sum_r sum_a g_ra / sum n_ra does not know what r is and what a is

    Allowed: bound(case) + bound(one rank's case), since both round.
    """
    grads, tokens = trial.case.arrays["grads"], trial.case.arrays["tokens"]
    together = grads.reshape(1, grads.shape[0] * grads.shape[1], *grads.shape[2:])
    one = trial.on(trial.case.with_arrays(grads=together, tokens=tokens.reshape(1, tokens.size)))
    if not trial.answer or not one.answer:
        return NOTHING
    wanted = np.broadcast_to(one.answer["grads"].astype(np.float64), trial.answer["grads"].shape)
    return pinned(within(trial.answer, {"grads": wanted}, {"grads": trial.allowed["grads"] + one.allowed["grads"]}), trial, one)


@law(minimise=False, every=2)
def the_order_of_copies_does_not_matter(trial: Trial) -> Judgement:
    """The copies taken in the other order: the same gradient on all of them. Allowed: bound(case) + bound(turned case)."""
    other = trial.on(trial.case.with_arrays(grads=trial.case.arrays["grads"][::-1].copy()))
    if not trial.answer or not other.answer:
        return NOTHING
    wanted = {"grads": other.answer["grads"].astype(np.float64)}
    return pinned(within(trial.answer, wanted, {"grads": trial.allowed["grads"] + other.allowed["grads"]}), trial, other)


@law(minimise=False)
def arrays_never_overlap(trial: Trial) -> Judgement:
    """Every array begins where the one before has ended, or later, and the last ends within the total. Allowed: 0."""
    if not {"offsets", "total"} <= set(trial.answer):
        return NOTHING
    ends = [int(start) + int(size) for start, size in zip(trial.answer["offsets"], trial.case.arrays["sizes"])]
    limits = [*(int(start) for start in trial.answer["offsets"][1:]), int(trial.answer["total"])]
    wrong = [k for k, (end, limit) in enumerate(zip(ends, limits)) if end > limit]
    reason = f"array {wrong[0]} ends at {ends[wrong[0]]}, behind {limits[wrong[0]]}" if wrong else ""
    return Judgement(len(ends), worst_ratio=np.inf if wrong else 0.0, worst_at="offsets", failed=bool(wrong), reason=reason)


@law(minimise=False)
def every_rank_gets_as_much(trial: Trial) -> Judgement:
    """The total is a multiple of the number of ranks, and every offset one of the alignment. Allowed: 0."""
    if not {"offsets", "total"} <= set(trial.answer):
        return NOTHING
    alignment, world = (trial.case.options.get(name, 1) for name in ("alignment", "world"))
    assert isinstance(alignment, int)
    assert isinstance(world, int)
    rests = [int(start) % alignment for start in trial.answer["offsets"]] + [int(trial.answer["total"]) % world]
    reason = f"offsets {trial.answer['offsets'].tolist()}, total {int(trial.answer['total'])} for alignment {alignment}, {world} ranks"
    return Judgement(len(rests), worst_ratio=np.inf if any(rests) else 0.0, failed=any(rests), reason=reason if any(rests) else "")


@law(minimise=False, every=2)
def what_is_gathered_is_what_was_held(trial: Trial) -> Judgement:
    """Rank r's part, cut out of what is gathered, is what rank r holds: on every rank, to the last bit. Allowed: 0."""
    held = [np.asarray(a, np.float64) for a in trial.case.arrays.values()]
    gathered = {name: a for name, a in members(trial.answer, "out").items() if a.dtype == next(iter(trial.case.arrays.values())).dtype}
    wanted = {name: np.concatenate(held) for name in gathered}
    return within(gathered, wanted, {name: np.zeros(value.shape) for name, value in wanted.items()})


ALL_REDUCE_LAWS: tuple[Law, ...] = (
    answers, list_agreement("out"), same_on_every_rank("out"), the_order_of_ranks_does_not_matter,
    exact_on_integers("integers_are_added_exactly", ranks=_divisor_of_mean),
    _places("every_element_stays_in_its_place", "every rank has them at the same places"), *_SHARED,
)  # fmt: skip
REDUCE_SCATTER_LAWS: tuple[Law, ...] = (
    answers, list_agreement("out"), exact_on_integers("integers_are_added_exactly", ranks=_divisor_of_mean),
    _places("every_rank_gets_its_own_part", "rank r has the r-th part of them"), *_SHARED,
)  # fmt: skip
ALL_GATHER_LAWS: tuple[Law, ...] = (
    answers, list_agreement("out"), same_on_every_rank("out"), what_is_gathered_is_what_was_held, *_SHARED,
)  # fmt: skip
BUCKETED_LAWS: tuple[Law, ...] = (
    answers, list_agreement("grads"), same_in_every_row("grads"), exact_on_integers("integers_are_averaged_exactly", ranks=_rows), *_SHARED,
)  # fmt: skip
ACCUMULATE_LAWS: tuple[Law, ...] = (
    answers, agreement("grads"), same_in_every_row("grads"), any_cut_of_the_batch_gives_the_same_gradient,
    exact_on_integers("integers_are_averaged_exactly", ranks=_tokens), *_SHARED,
)  # fmt: skip
TIED_LAWS: tuple[Law, ...] = (
    answers, agreement("grads"), same_in_every_row("grads", axes=2), the_order_of_copies_does_not_matter,
    exact_on_integers("integers_are_averaged_exactly", ranks=_ranks_of_copies), *_SHARED,
)  # fmt: skip
FLAT_LAYOUT_LAWS: tuple[Law, ...] = (
    answers, agreement("offsets"), agreement("total"), arrays_never_overlap, every_rank_gets_as_much, inputs_stay_untouched,
    repeats_give_the_same_bits,
)  # fmt: skip
