"""Trial: one case put to one subject. Oracle, bound and outcome are computed once and shared by all laws."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import numpy as np

from .arithmetic import ResolvedArithmetic
from .array_lists import whole_name
from .case import Case
from .comparison import Float64
from .operation import INTEGER, Operation, is_of_format, result_format
from .outcome import RETURNED, Outcome
from .safetensors_file import Array
from .subjects import Subject


class Trial:
    """One case, one subject, and what is known about both."""

    def __init__(self, operation: Operation, subject: Subject, case: Case) -> None:
        self.operation, self.subject, self.case = operation, subject, case

    def on(self, case: Case) -> Trial:
        """The same subject on another case."""
        return Trial(self.operation, self.subject, case)

    @property
    def conventions(self) -> Mapping[str, str]:
        return self.subject.declaration.conventions

    @cached_property
    def arithmetic(self) -> ResolvedArithmetic:
        return self.subject.declaration.arithmetic.resolve(self.operation.input_format(self.case))

    @cached_property
    def wanted(self) -> dict[str, Float64]:
        """The oracle's results in the subject's conventions."""
        return self.operation.answer(self.case, self.conventions)

    @cached_property
    def allowed(self) -> dict[str, Float64]:
        """How far each element may be from `wanted`; inf where there is no promise."""
        return self.operation.allowed(self.arithmetic, self.case, self.conventions)

    @cached_property
    def outcome(self) -> Outcome:
        """What the subject did, run once."""
        return self.run_again()

    def run_again(self) -> Outcome:
        """One more run of the subject on the same case."""
        buffers = self.subject.declaration.buffers                              # without one no oracle is asked: it may refuse the case
        shapes = {name: (self.wanted[name].shape, self._format(name).replace(INTEGER, "int64"))
                  for name in (self.wanted if buffers else ()) if whole_name(name) in buffers}  # fmt: skip
        return self.subject.run(self.case, shapes)

    def _format(self, name: str) -> str:
        return result_format(self.operation.signature, name, self.arithmetic)

    @cached_property
    def defects(self) -> str:
        """What is wrong with the form of the answer, or "": no arrays, wrong shapes, wrong dtypes."""
        if self.outcome.kind != RETURNED:
            return self.outcome.message
        for name, got in self.outcome.outputs.items():
            if name not in self.wanted:
                return f"{name}: returned, though the case has no such result"
            if got.shape != self.wanted[name].shape:
                return f"{name}: got shape {got.shape}; want {self.wanted[name].shape}"
            wanted = self._format(name)
            if not is_of_format(got.dtype, wanted):
                other = "" if wanted in (INTEGER, "bool") else " (or declare another in Arithmetic)"
                return f"{name}: got dtype {got.dtype}; want {wanted}{other}"
        return ""

    @cached_property
    def answer(self) -> Mapping[str, Array]:
        """The results in the oracle's order, or nothing at all where the answer has defects: that is the business of the law `answers`.

        A file or a pipe sorts them by name, out.10 before out.2.
        """
        outputs = {} if self.defects else self.outcome.outputs
        return {name: outputs[name] for name in self.wanted if name in outputs}

    def repeats(self) -> bool:
        """Whether a second run on the same input gives the same bits, without which no two runs can be compared bitwise."""
        again = self.run_again()
        return again.kind == RETURNED and all(
            name in again.outputs and again.outputs[name].tobytes() == got.tobytes() for name, got in self.answer.items()
        )


def bits(array: Array) -> Array:
    """The bits of an array of floats as integers, with both zeros the same."""
    widened = np.ascontiguousarray(np.asarray(array, dtype=np.float64) + 0.0)
    return widened.view(np.int64)
