"""Measuring: every oracle against its certified values, in its own float64 bound and in units in the last place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from oracles.properties.arithmetic import Arithmetic
from oracles.properties.array_lists import whole_name
from oracles.properties.case import Case
from oracles.properties.conventions import declared
from oracles.properties.operations import operation_named

from . import store
from .certified import Float64, Limbs

BEGIN, END = "<!-- oracles golden measure: begin -->", "<!-- oracles golden measure: end -->"
# The oracles whose contract is in units in the last place, and how many: of the larger of a log-sum-exp and the maximum it is taken
# from, or of the two that are merged; of a loss itself.
ULPS = 4.0
IN_ULPS = (("log_sum_exp", "lse"), ("merge_attention", "lse"), ("mtp_loss", "loss"), ("cross_entropy", "loss"))


@dataclass
class Measured:
    """One result of one operation: the worst of all its cases. ulp: for those of `IN_ULPS`, in the unit of `_unit`."""

    operation: str
    result: str
    values: int = 0
    left_out: int = 0
    worst_ratio: float = 0.0
    ratio_at: str = ""
    worst_ulp: float = 0.0
    ulp_at: str = ""

    @property
    def promises_ulps(self) -> bool:
        return (self.operation, self.result) in IN_ULPS

    @property
    def held(self) -> bool:
        """Within once the bound, and within `ULPS` where that is promised."""
        return self.values > 0 and self.worst_ratio <= 1.0 and (not self.promises_ulps or self.worst_ulp <= ULPS)

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "held": self.held}


def measured(folder: Path = store.DATA, *, progress: Callable[[str], None] = lambda name: None) -> list[Measured]:
    """Run every oracle on every case of a folder."""
    arithmetic = Arithmetic(recomputes=True).resolve("float64")
    rows: dict[tuple[str, str], Measured] = {}
    for entry in store.read_manifest(folder):
        if entry.is_trace:
            continue
        progress(entry.name)
        case, limbs = store.read(entry, folder)
        operation, conventions = operation_named(case.operation), declared({}, case.operation)
        answer, bound = operation.answer(case, conventions), operation.bound(arithmetic, case, conventions)
        for name, value in limbs.items():
            whole = whole_name(name)                                            # a list of arrays has one row
            row = rows.setdefault((case.operation, whole), Measured(case.operation, whole))
            _add(row, case.origin if whole == name else f"{case.origin} {name}", answer[name], value, bound[name], _unit(case, name, value))
    return list(rows.values())


def _unit(case: Case, name: str, value: Limbs) -> Float64:
    """One unit in the last place, of what the oracle's contract says."""
    size = [value.hi]
    if case.operation == "log_sum_exp":
        size.append(np.max(case.arrays["x"].astype(np.float64), axis=case.arguments()["axis"], initial=-np.inf))
    if case.operation == "merge_attention" and name == "lse":
        size += [case.arrays["lse_a"].astype(np.float64), case.arrays["lse_b"].astype(np.float64)]
    return np.asarray(np.spacing(np.max([np.where(np.isfinite(x), np.abs(x), 0.0) for x in size], axis=0)))


def _add(row: Measured, case: str, got: Float64, value: Limbs, bound: Float64, unit: Float64) -> None:
    with np.errstate(invalid="ignore"):
        error = np.abs((got - value.hi) - value.lo)
    error = np.where(got == value.hi, np.abs(np.where(np.isfinite(value.hi), value.lo, 0.0)), np.where(np.isnan(error), np.inf, error))
    exact = (got == value.hi) & (value.lo == 0.0)
    ratio = np.where(exact, 0.0, np.where(bound > 0.0, error / np.where(bound > 0.0, bound, 1.0), np.inf))
    ratio = np.where(np.isposinf(bound), 0.0, ratio)
    row.values += int(np.isfinite(bound).sum())
    row.left_out += int((~np.isfinite(bound)).sum())
    kinds = {"ratio": ratio} | ({"ulp": error / unit} if row.promises_ulps else {})
    for kind, found in kinds.items():
        if found.size and float(found.max()) >= getattr(row, f"worst_{kind}"):
            at = [int(i) for i in np.unravel_index(int(found.argmax()), found.shape)]
            setattr(row, f"worst_{kind}", float(found.max()))
            setattr(row, f"{kind}_at", f"{case} {at}")


def table(rows: list[Measured]) -> str:
    """The measurements as a Markdown table."""
    lines = ["| operation | result | values | worst error / bound | where | worst ulp |", "|---|---|---:|---:|---|---:|"]
    lines += [f"| {row.operation} | {row.result} | {row.values:,} | {row.worst_ratio:.3f} | {row.ratio_at} | "
              f"{f'{row.worst_ulp:.2f}' if row.promises_ulps else ''} |" for row in rows]  # fmt: skip
    return "\n".join(lines)


def written(page: str, rows: list[Measured]) -> str:
    """A page with the table between its marks. Raises ValueError where it has none."""
    if page.count(BEGIN) != 1 or page.count(END) != 1:
        raise ValueError(f"page: got one without the marks {BEGIN} and {END}; want each once")
    before, rest = page.split(BEGIN)
    return f"{before}{BEGIN}\n\n{table(rows)}\n\n{END}{rest.split(END)[1]}"
