"""Operation: oracle, cases, error bound and laws of one operation, together. The constants stand in one file a family."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from .arithmetic import ResolvedArithmetic
from .array_lists import whole_name
from .case import Case
from .comparison import Float64
from .law import Law
from .signatures import SIGNATURES, Signature


@dataclass(frozen=True)
class Operation:
    """One operation of the contract.

    oracle     the reference function, called with the case's arguments
    answer     the oracle's results by name, in the conventions of a subject
    bound      what an arithmetic allows of each result, in the same conventions
    cases      gives the `CaseSource` its recipes come from, imported when asked for since it brings in Hypothesis
    laws       what must hold, the plainest first
    source     where the operation is defined
    """

    name: str
    summary: str
    oracle: Callable[..., Any]
    answer: Callable[[Case, Mapping[str, str]], dict[str, Float64]]
    bound: Callable[[ResolvedArithmetic, Case, Mapping[str, str]], dict[str, Float64]]
    cases: Callable[[], Any]
    laws: tuple[Law, ...]
    source: str

    @property
    def signature(self) -> Signature:
        return SIGNATURES[self.name]

    def input_format(self, case: Case) -> str:
        """The format of the first required array of floats, which the others share."""
        given = [array for name, array in case.arrays.items() if whole_name(name) in self.signature.lists]
        given += [case.arrays[name] for name in self.signature.required if name in case.arrays]
        floats = (array.dtype for array in given if array.dtype.kind not in "biu")
        return str(next(floats, "float64"))

    def allowed(self, arithmetic: ResolvedArithmetic, case: Case, conventions: Mapping[str, str]) -> dict[str, Float64]:
        """bound(subject) + bound(oracle): what a subject may differ from the oracle, which rounds in float64 itself.

        Every term of a bound grows with the roundoffs in it and is convex in them with value 0 at 0, so where all formats
        of the subject are float32 or coarser the oracle's share is at most 2^-29 of the subject's; it is added as a factor.
        """
        subject = self.bound(arithmetic, case, conventions)
        if "float64" in (arithmetic.accumulate, arithmetic.elementwise, arithmetic.out, arithmetic.phases):
            oracle = self.bound(arithmetic.widened(), case, conventions)
            return {name: subject[name] + oracle[name] for name in subject}
        return {name: value * (1.0 + 2.0**-28) for name, value in subject.items()}


INTEGER, BOOLEAN = "integer", "bool"


def result_format(signature: Signature, name: str, arithmetic: ResolvedArithmetic) -> str:
    """The format in which a result is returned: `lse` for log-sum-exps, `moments` for those, `out` for other numbers.

    `INTEGER` means any integer dtype.
    """
    whole = whole_name(name)
    if whole in signature.integers:
        return INTEGER
    if whole in signature.booleans:
        return BOOLEAN
    if whole in signature.moments:
        return arithmetic.moments
    return arithmetic.lse if whole == "lse" else arithmetic.out


def is_of_format(dtype: np.dtype[Any], wanted: str) -> bool:
    """Whether a returned dtype is what `result_format` asks for."""
    return dtype.kind in "iu" if wanted == INTEGER else dtype.name == wanted


def as_float64(results: Mapping[str, Any]) -> dict[str, Float64]:
    """Results widened to float64."""
    return {name: np.asarray(value, dtype=np.float64) for name, value in results.items() if value is not None}
