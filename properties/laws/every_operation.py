"""Laws that bind every operation: it answers, agrees with the oracle, leaves its inputs alone, writes all it returns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from ..case import Case
from ..declaration import Declaration
from ..law import NOTHING, Evidence, Judgement, Law, law, within
from ..outcome import REFUSED, RETURNED
from ..safetensors_file import Array
from ..strides import strided_copy
from ..trial import Trial, bits


@law(minimise=False)
def answers(trial: Trial) -> Judgement:
    """Every case the subject covers is answered with arrays of the right shape and dtype, without an exception, in time."""
    if trial.outcome.kind == REFUSED:
        return Judgement(reason=f"refused: {trial.outcome.message}")
    if trial.defects:
        told = ""
        if "unexpected keyword argument" in trial.defects:
            told = " (it has **keywords, so all arguments of the contract were passed; name those it takes)"
        elif (listed := [name for name in trial.operation.signature.as_array.values() if name not in trial.case.arrays]):
            told = f" ({listed[0]} came as a list, as it may; one array is all it takes? declare refuses=['lists'])"
        return Judgement(compared=1, worst_ratio=np.inf, failed=True, reason=trial.defects + told)
    return Judgement(compared=len(trial.outcome.outputs))


def agreement(result: str) -> Law:
    """The law that one result agrees with the oracle's."""

    def judge(trial: Trial) -> Judgement:
        if not trial.answer or result not in trial.wanted:
            return NOTHING
        if result not in trial.answer:
            return Judgement(reason=f"the subject returns no {result}")
        return within(trial.answer, {result: trial.wanted[result]}, {result: trial.allowed[result]})

    statement = f"|{result} - oracle's {result}| <= bound(subject's arithmetic) + bound(oracle's arithmetic), element by element."
    return Law(f"{result}_agrees_with_the_oracle", statement, judge, lambda case: case, lambda declaration: "")


@law(every=3)
def inputs_stay_untouched(trial: Trial) -> Judgement:
    """After the call every input holds the bytes it held before, and no result shares memory with an input."""
    if trial.outcome.kind != RETURNED:
        return NOTHING
    faults = [f"{name} was changed" for name in trial.outcome.changed] + [f"{pair} shares memory" for pair in trial.outcome.shared]
    elements = sum(array.size for array in trial.case.arrays.values())
    if faults:
        return Judgement(compared=elements, worst_ratio=np.inf, failed=True, reason="; ".join(faults))
    return Judgement(compared=elements)


def _strided(case: Case) -> Case:
    """The same values as views into larger buffers: the two axes before the last exchanged in memory, of a matrix both, and gaps."""
    return case.with_arrays(**{name: _spread_out(array) for name, array in case.arrays.items() if array.ndim >= 2})


def _spread_out(array: Array) -> Array:
    order = list(range(array.ndim))
    first = max(array.ndim - 3, 0)
    order[first], order[first + 1] = first + 1, first
    strides, step = [0] * array.ndim, 1
    for axis in reversed(order):
        strides[axis] = step
        step *= max(array.shape[axis], 1) + (3 if axis == array.ndim - 1 else 0)
    return strided_copy(array, strides)


@law(prepare=_strided, every=4, minimise=True)
def strides_are_respected(trial: Trial) -> Judgement:
    """Inputs that are views (axes exchanged in memory, gaps filled with NaN between rows) are read as what they show.

    Allowed: the bound of the same case, since another memory order may be added up in another order.
    """
    return within(trial.answer, trial.wanted, trial.allowed)


def _untouched(got: Array) -> Array:
    left: Array = got == np.iinfo(got.dtype).min if got.dtype.kind in "iu" else np.isnan(got.astype(np.float64))
    return left


def _takes_no_buffers(declaration: Declaration) -> str:
    return "" if declaration.buffers else "the subject takes no output buffers"


@law(every=3, not_covered=_takes_no_buffers)
def buffers_are_fully_written(trial: Trial) -> Judgement:
    """Output buffers come filled with NaN, those of integers with the least there is; none is left where the oracle has a number."""
    unwritten = {name: _untouched(got) & ~np.isnan(trial.wanted[name]) & np.isfinite(trial.allowed[name])
                 for name, got in trial.answer.items()}  # an overflow may be a NaN of the kernel's own
    for name, places in unwritten.items():
        if places.any():
            first = ",".join(map(str, np.argwhere(places)[0]))
            reason = f"{name}: {int(places.sum())} of {places.size} elements were not written, the first at [{first}]"
            return Judgement(places.size, worst_ratio=np.inf, worst_at=f"{name}[{first}]", failed=True, reason=reason)
    return Judgement(compared=sum(places.size for places in unwritten.values()))


def promised(promise: str, what: str) -> Callable[[Declaration], str]:
    """The condition of laws that bind only those who promise to keep them."""

    def not_covered(declaration: Declaration) -> str:
        return "" if promise in declaration.promises else f"the subject does not promise {what}"

    return not_covered


@law(every=4, not_covered=promised("deterministic", "the same bits twice"))
def repeats_give_the_same_bits(trial: Trial) -> Judgement:
    """Five runs on the same input give the same bits, and fifty on every eighth small one: rare interleavings need many tries."""
    many = int(trial.case.hash, 16) % 8 == 0 and sum(array.size for array in trial.case.arrays.values()) < 2**14
    for _ in range(49 if many else 4):
        if trial.answer and not trial.repeats():
            return Judgement(compared=1, worst_ratio=np.inf, failed=True, reason="a second run on the same input gave other bits")
    return Judgement(compared=sum(got.size for got in trial.answer.values()))


def pinned(judgement: Judgement, trial: Trial, *others: Trial) -> Judgement:
    """A broken relation with evidence that stands by itself: the call of the two that is itself wrong, and what the oracle says of it.

    Where two answers do not fit together within the sum of their bounds, at least one of them is outside its own; what the other
    call of a faulty subject answered is no lasting measure.
    """
    if not judgement.failed:
        return judgement
    for one in (trial, *others):
        if one.answer and within(one.answer, one.wanted, one.allowed).failed:
            own = one is trial
            return replace(judgement, evidence=Evidence(one.wanted, one.allowed, None if own else one.case, of_other=not own))
    return judgement


def same_bits(trial: Trial, other: Trial, equal: dict[str, Array]) -> Judgement:
    """The judgement that the results of two cases agree bit for bit where `equal` says so.

    Says nothing where the subject does not even repeat itself on the same input: then no bitwise law can be tried.
    """
    if not trial.answer or not other.answer:
        return NOTHING
    compared, evidence = 0, Evidence(other=other.case, equal=equal)
    for name, places in equal.items():
        if name not in trial.answer or name not in other.answer:
            continue
        differs = (places & (bits(trial.answer[name]) != bits(other.answer[name]))).reshape(places.shape)   # bits() adds an axis
        compared += int(places.sum())
        if differs.any():
            if not trial.repeats():
                return Judgement(reason="the subject does not give the same bits twice, so two runs cannot be compared bitwise")
            at = tuple(np.argwhere(differs)[0])
            place = f"{name}[{','.join(map(str, at))}]"
            reason = f"{place} is {float(trial.answer[name][at]):.9g}, and {float(other.answer[name][at]):.9g} where it must not differ"
            return Judgement(compared, worst_ratio=np.inf, worst_at=place, failed=True, reason=reason, evidence=evidence)
    return Judgement(compared=compared, evidence=evidence)
