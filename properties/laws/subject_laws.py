"""How the law of a subject is judged: exactly, from its uniforms, or by an e-process, where it draws with a generator of its own.

Which law it must have, and of what, is left to the laws of each operation.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from ..case import Case
from ..declaration import Declaration
from ..law import Evidence, Judgement
from ..law_test import ALPHA, LawTest, looks
from ..outcome import RETURNED
from ..safetensors_file import Array
from ..trial import Trial

Int64 = NDArray[np.int64]
Draw = Callable[[int], Mapping[Hashable, int]]                                  # a number of draws -> their counts by outcome


class NoAnswerError(Exception):
    """The subject did not answer as it should: the business of other laws."""


def needs_uniforms(declaration: Declaration) -> str:
    """The condition of laws that are computed from the uniforms a subject takes."""
    own = declaration.conventions.get("uniforms") == "own"
    return "the subject draws with a generator of its own: its draws are tested instead" if own else ""


def needs_a_generator(declaration: Declaration) -> str:
    """The condition of laws for subjects that draw with a generator of their own."""
    return "" if declaration.conventions.get("uniforms") == "own" else "the subject takes its uniforms as arguments: its law is computed"


def follows_the_contract(declaration: Declaration) -> str:
    """The condition of laws that say what each uniform stands for."""
    other = declaration.conventions.get("uniforms") != "contract"
    return "the subject uses the uniforms in its own way, or not at all: its law is judged" if other else ""


def integers(trial: Trial, case: Case, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Int64]:
    """What a subject answers to a case: integer arrays of these shapes. No oracle is asked. Raises NoAnswerError."""
    buffers = {name: (shapes[name], "int64") for name in trial.subject.declaration.buffers if name in shapes}
    outcome = trial.subject.run(case, buffers)
    if outcome.kind != RETURNED:
        raise NoAnswerError(outcome.message)
    got: dict[str, Array] = dict(outcome.outputs)
    for name, shape in shapes.items():
        if name not in got or got[name].shape != shape or got[name].dtype.kind not in "iu":
            raise NoAnswerError(f"{name}: no integers of shape {shape}")
    return {name: got[name].astype(np.int64) for name in shapes}


def exactly(distance: Fraction, allowed: Fraction, what: str, compared: int, evidence: Evidence) -> Judgement:
    """The judgement on a distance known as a fraction; it is said whether it holds or not."""
    text = f"{what}: {distance} = {float(distance):.3g} from the target's"
    failed = distance > allowed
    ratio = float(distance / allowed) if allowed else (math.inf if distance else 0.0)
    reason = f"the {text}, and the grid of uniforms explains {float(allowed):.3g}" if failed else ""
    return Judgement(compared, worst_ratio=ratio, worst_at=text, failed=failed, reason=reason, evidence=evidence)


def sequentially(law: Mapping[Hashable, Fraction | float], draw: Draw, most: int, what: str, evidence: Evidence) -> Judgement:
    """The judgement of an e-process on draws of a subject, looked at again and again up to `most` of them."""
    test = LawTest(law)
    for n in looks(most):
        if n > test.total:                                                      # a draw may give more than it was asked for
            test.add(draw(n - test.total))
        if test.rejected:
            seen = f"the impossible {test.impossible}" if test.impossible is not None else f"evidence e^{test.log_evidence:.1f}"
            reason = f"the {what}: {seen} against it after {test.total} draws (false alarms: {ALPHA:g})"
            return Judgement(test.total, worst_ratio=math.inf, worst_at=what, failed=True, reason=reason, evidence=evidence)
    ratio = max(0.0, test.log_evidence) / -math.log(ALPHA)
    found = f"{what}: no distance of {test.smallest_distance():.2g} or more in {test.total} draws"
    return Judgement(test.total, worst_ratio=ratio, worst_at=found, evidence=evidence)


def draws_anew(first: Array, second: Array, what: str) -> Judgement:
    """The judgement that two calls share no numbers: fair coins that one of them drew are those of the other, at no distance in the batch.

    A coincidence of n - s coins at a distance s has a probability of 2^(s - n): both directions, all s below n / 2, make 2^(1 - n / 2).
    """
    n = len(first)
    for s in range(n // 2):
        for a, b in ((first, second), (second, first)):
            if np.array_equal(a[s:], b[: n - s]):
                where = "in the same rows" if s == 0 else f"{s} rows away"
                reason = f"{what}: a second call drew the {n - s} numbers of the first again, {where}: by chance once in 2^{n - s} calls"
                return Judgement(n, worst_ratio=math.inf, worst_at=what, failed=True, reason=reason)
    return Judgement(n)


def counted(rows: Int64) -> Counter[Hashable]:
    """How often each row of integers comes."""
    return Counter(map(tuple, rows.tolist()))
