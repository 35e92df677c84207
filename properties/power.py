"""Power: what a run that held could have seen. Faults are put into the oracle and judged as the subject was."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from .array_lists import whole_name
from .case import Case
from .comparison import Float64, ratios
from .laws.attention_terms import is_empty, visible
from .trial import Trial

CASES = 8                                                                       # cases looked at, of each format
FINEST, COARSEST = -44, 0                                                       # powers of two tried for a perturbation of the scores


def measure(trials: Sequence[Trial], results: Sequence[str]) -> dict[str, dict[str, Any]]:
    """For each input format, the smallest faults that a run on these cases would have seen, in the results the subject returns.

    cases           how many were looked at
    relative_error  result -> bound / |value| of the median element, in the case where that is least: an element there that is
                    off by more of itself shows
    score_scale     smallest relative change of all scores that shows in some case (attention)
    dropped_key, wrong_row, wrong_head    [seen, tried]: cases in which the fault shows (attention)

    Each is judged like the subject, element by element against the bound; nothing is assumed about the subject.
    """
    worth = [trial for trial in trials if not _nothing_to_see(trial)]
    formats = dict.fromkeys(trial.operation.input_format(trial.case) for trial in worth)
    return {name: _of_one_format([t for t in worth if t.operation.input_format(t.case) == name][:CASES], results) for name in formats}


def _of_one_format(trials: Sequence[Trial], results: Sequence[str]) -> dict[str, Any]:
    found: dict[str, Any] = {"cases": len(trials), "relative_error": _relative_errors(trials, results)}
    if trials[0].operation.name == "attention":
        finest = [exponent for trial in trials if (exponent := _finest_scale(trial, results)) is not None]
        found["score_scale"] = 2.0 ** min(finest) if finest else None
        for name, fault in FAULTS.items():
            changed = [(trial, fault(trial)) for trial in trials]
            tried = [(trial, answer) for trial, answer in changed if answer is not None]
            found[name] = [sum(_shows(trial, answer, results) for trial, answer in tried), len(tried)]
    return found


def describe(power: Mapping[str, Any]) -> list[str]:
    """The power of a run, one line an input format."""
    words = {"dropped_key": "a dropped key", "wrong_row": "a row in place of its neighbour", "wrong_head": "a head in place of another"}
    lines = []
    for name, found in power.items():
        parts = [f"all scores times 1 + {found['score_scale']:.1g}"] if found.get("score_scale") else []
        parts += [f"{words[w]} in {found[w][0]} of {found[w][1]} cases" for w in words if w in found and found[w][1]]
        shares = {result: value for result, value in found["relative_error"].items() if value is not None}
        parts += [f"{result} off by {value:.1g} of itself" if value else f"any change of {result}" for result, value in shares.items()]
        lines += [f"in {name} it would have seen: " + "; ".join(parts)] if parts else []
    return lines


def _nothing_to_see(trial: Trial) -> bool:
    if trial.operation.name != "attention":
        return not any(value.size for value in trial.wanted.values())
    return is_empty(trial.case) or not np.isfinite(trial.wanted["lse"]).any() or bool((visible(trial.case).sum(axis=-1) < 2).all())


def _relative_errors(trials: Sequence[Trial], results: Sequence[str]) -> dict[str, float | None]:
    errors: dict[str, float | None] = {}
    for name in results:
        pairs = [(trial.allowed[key], np.abs(value)) for trial in trials for key, value in trial.wanted.items() if whole_name(key) == name]
        told = [(value > 0) & np.isfinite(value) & (bound > 0) & np.isfinite(bound) for bound, value in pairs]
        shares = [bound[some] / value[some] for (bound, value), some in zip(pairs, told)]
        medians = [float(np.median(share)) for share in shares if share.size]
        exact = any(value.size and not bound.any() for bound, value in pairs)
        errors[name] = min(medians, default=0.0 if exact else None)
    return errors


def _shows(trial: Trial, answer: Mapping[str, Float64], results: Sequence[str]) -> bool:
    return any(bool((ratios(answer[name], trial.wanted[name], trial.allowed[name]) > 1.0).any()) for name in results if name in answer)


def _finest_scale(trial: Trial, results: Sequence[str]) -> int | None:
    """The smallest power of two by which the scores, grown by that share of themselves, still show; by bisection."""
    if not _shows(trial, _scaled(trial, COARSEST), results):
        return None
    low, high = FINEST, COARSEST                                                # shows at high, not known to at low
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _shows(trial, _scaled(trial, middle), results) else (middle, high)
    return high


def _scaled(trial: Trial, exponent: int) -> dict[str, Float64]:
    given = trial.case.options.get("scale")
    scale = float(given) if isinstance(given, float | int) else trial.case.arrays["q"].shape[-1] ** -0.5
    return _answer(trial, trial.case.with_options(scale=scale * (1.0 + 2.0**exponent)))


def _answer(trial: Trial, case: Case) -> dict[str, Float64]:
    return trial.operation.answer(case, trial.conventions)


def _dropped_key(trial: Trial) -> dict[str, Float64] | None:
    """Every row loses the last key it sees."""
    seen = visible(trial.case)
    last = np.cumsum(seen[..., ::-1], axis=-1)[..., ::-1] == 1
    return _answer(trial, trial.case.with_arrays(mask=np.broadcast_to(trial.case.arrays.get("mask", True), seen.shape) & ~(seen & last)))


def _neighbours(axis: int) -> Callable[[Trial], dict[str, Float64] | None]:
    """Results exchanged with those of the next index along an axis of (B, Hq, Lq, ...)."""
    def exchanged(trial: Trial) -> dict[str, Float64] | None:
        if trial.wanted["lse"].shape[axis] < 2:
            return None
        return {name: np.roll(value, 1, axis=axis) for name, value in trial.wanted.items()}

    return exchanged


FAULTS: dict[str, Callable[[Trial], dict[str, Float64] | None]] = {
    "dropped_key": _dropped_key,
    "wrong_row": _neighbours(2),
    "wrong_head": _neighbours(1),
}
