"""Laws of what is done on ranks: each member of a list agrees, every rank holds the same, integers are exact, places are kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from ..array_lists import whole_name
from ..case import Case
from ..law import NOTHING, Judgement, Law, within
from ..safetensors_file import Array
from ..trial import Trial, bits


def members(values: Mapping[str, Array], result: str) -> dict[str, Array]:
    """The arrays of one result that is a list, or the one array of that name."""
    return {name: value for name, value in values.items() if whole_name(name) == result}


def list_agreement(result: str) -> Law:
    """The law that every member of a list agrees with the oracle's, and none is missing."""

    def judge(trial: Trial) -> Judgement:
        wanted = members(trial.wanted, result)
        missing = [name for name in wanted if name not in trial.answer]
        if not trial.answer:
            return NOTHING
        if missing:
            return Judgement(1, worst_ratio=np.inf, failed=True, reason=f"{', '.join(missing)}: not returned")
        return within(trial.answer, wanted, trial.allowed)

    statement = (f"|{result} - oracle's {result}| <= bound(subject's arithmetic) + bound(oracle's arithmetic), on every rank; "
                 f"no rank is left out.")  # fmt: skip
    return Law(f"{result}_agree_with_the_oracle", statement, judge, lambda case: case, lambda declaration: "", minimise=False)


def same_on_every_rank(result: str) -> Law:
    """The law that all members of a list are equal to the last bit."""
    def judge(trial: Trial) -> Judgement:
        return _equal({result: list(members(trial.answer, result).values())})

    statement = f"{result} is the same on every rank, to the last bit: a sum is made once and copied, or in one order everywhere."
    return Law(f"every_rank_has_the_same_{result}", statement, judge, lambda case: case, lambda declaration: "", minimise=False)


def same_in_every_row(result: str, *, axes: int = 1) -> Law:
    """The law that the arrays of a result are equal along their first axes, which are ranks (or copies and ranks)."""
    def judge(trial: Trial) -> Judgement:
        return _equal({name: list(a.reshape(-1, *a.shape[axes:])) for name, a in members(trial.answer, result).items() if a.size})

    statement = f"{result} is the same on every rank, to the last bit: a sum is made once and copied, or in one order everywhere."
    return Law(f"every_rank_has_the_same_{result}", statement, judge, lambda case: case, lambda declaration: "", minimise=False)


def _equal(groups: dict[str, list[Array]]) -> Judgement:
    compared = 0
    for name, arrays in groups.items():
        for r, array in enumerate(arrays):
            compared += array.size
            differ = np.argwhere(bits(np.atleast_1d(array)) != bits(np.atleast_1d(arrays[0])))
            if len(differ):
                at = tuple(int(i) for i in differ[0])
                first, other = (float(np.atleast_1d(a)[at]) for a in (arrays[0], array))
                reason = f"{name}: {first:.9g} on rank 0 and {other:.9g} on rank {r} at {list(at)}"
                return Judgement(compared, worst_ratio=np.inf, worst_at=name, failed=True, reason=reason)
    return Judgement(compared=compared)


def _ternary(case: Case) -> Case | None:
    """Every number its sign: sums of them are integers below 256, which every format of 8 bits or more holds."""
    return case.with_arrays(**{name: np.sign(a) if a.dtype.kind not in "biu" else a for name, a in case.arrays.items()})


def exact_on_integers(name: str, *, ranks: Callable[[Case], int] | None = None) -> Law:
    """The law that with -1, 0 and 1 for numbers nothing rounds. ranks: what is divided by, which must be a power of two."""

    def prepare(case: Case) -> Case | None:
        divisor = 1 if ranks is None else ranks(case)
        return _ternary(case) if divisor > 0 and divisor & (divisor - 1) == 0 else None

    def judge(trial: Trial) -> Judgement:
        wanted = {key: np.asarray(value) for key, value in trial.wanted.items()}
        positive = trial.case.with_arrays(**{key: np.abs(a) for key, a in trial.case.arrays.items() if a.dtype.kind not in "biu"})
        largest = trial.operation.answer(positive, trial.conventions)
        if max((float(np.abs(value).max(initial=0.0)) for value in largest.values()), default=0.0) > 256.0:
            return NOTHING                                                      # sums of so many may round in 8 bits
        return within(trial.answer, wanted, {key: np.zeros(value.shape) for key, value in wanted.items()})

    divided = "" if ranks is None else ", where what is divided by is a power of two"
    statement = f"With -1, 0 and 1 for all numbers every sum is exact in every order{divided}. Allowed: 0."
    return Law(name, statement, judge, prepare, lambda declaration: "", every=2, minimise=False)


def _tagged(case: Case) -> Case:
    """The first rank holds numbers that tell their place, all others zeros."""
    first, arrays = True, {}
    for name, array in case.arrays.items():
        if array.dtype.kind in "biu":
            continue
        if array.ndim == 0:
            arrays[name] = array
            continue
        tags = (np.arange(array.size) % 120 + 1).astype(array.dtype).reshape(array.shape)
        arrays[name] = tags if first else np.zeros_like(array)
        first = False
    return case.with_arrays(**arrays)


def places_are_kept(name: str, what: str) -> Law:
    """The law that what one rank holds and no other arrives where it belongs."""

    def judge(trial: Trial) -> Judgement:
        wanted = {key: np.asarray(value) for key, value in trial.wanted.items()}
        return within(trial.answer, wanted, {key: np.zeros(value.shape) for key, value in wanted.items()})

    statement = f"Where one rank holds 1, 2, 3, … and the others zeros, {what}. Allowed: 0."
    return Law(name, statement, judge, _tagged, lambda declaration: "", every=2, minimise=False)
