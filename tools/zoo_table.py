"""Zoo table: what the suite kills and whom it accuses, counted and shown."""

from __future__ import annotations

import os
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from oracles.properties.zoo.keeper import Fate, inhabitants, visit

from .rendering import ratio


@dataclass(frozen=True)
class Census:
    """The fates of all specimens of one visit."""

    fates: tuple[Fate, ...]
    budget: str
    seconds: float

    def among(self, *kinds: str) -> list[Fate]:
        """The fates of specimens of these kinds."""
        return [fate for fate in self.fates if fate.specimen.kind in kinds]

    @property
    def killed(self) -> list[Fate]:
        return [fate for fate in self.among("mutant") if fate.status == "killed"]

    @property
    def missed(self) -> list[Fate]:
        """Mutants that lived, and those that showed nothing: both are faults of the suite."""
        return [fate for fate in self.among("mutant") if fate.status != "killed"]

    @property
    def false_alarms(self) -> list[Fate]:
        """Variants and controls that were rejected or could not be judged."""
        return [fate for fate in self.among("variant", "control") if fate.status != "lives"]

    @property
    def good(self) -> bool:
        return bool(self.fates) and not self.missed and not self.false_alarms

    def to_json(self) -> dict[str, Any]:
        """The census under the stable keys."""
        return {
            **self._counts(list(self.fates)),
            "families": {name: self._counts([f for f in self.fates if f.specimen.family == name])
                         for name in dict.fromkeys(f.specimen.family for f in self.fates)},
            "budget": self.budget, "seconds": round(self.seconds, 2),
            "median_seconds_to_kill": round(statistics.median(f.seconds for f in self.killed), 4) if self.killed else None,
            "kills": [{"id": f.specimen.id, "law": f.law, "seconds": round(f.seconds, 4),
                       "worst_ratio": f.worst_ratio if f.worst_ratio != float("inf") else None} for f in self.killed],
            "reasons": {f.specimen.id: f"{f.status}: {f.reason}" for f in (*self.missed, *self.false_alarms)},
        }  # fmt: skip

    @staticmethod
    def _counts(fates: list[Fate]) -> dict[str, Any]:
        mutants = [f for f in fates if f.specimen.kind == "mutant"]
        others = [f for f in fates if f.specimen.kind != "mutant"]
        return {
            "mutants": len(mutants), "killed": sum(f.status == "killed" for f in mutants),
            "missed": [f.specimen.id for f in mutants if f.status != "killed"],
            "variants": sum(f.specimen.kind == "variant" for f in others), "controls": sum(f.specimen.kind == "control" for f in others),
            "false_alarms": [f.specimen.id for f in others if f.status != "lives"],
        }  # fmt: skip

    def view(self) -> Group:
        """The census for a terminal: a line a specimen, then the two numbers that matter."""
        table = Table("specimen", "family", "", "law", "worst / bound", "s", box=box.SIMPLE, pad_edge=False)
        for fate in self.fates:
            bad = fate in self.missed or fate in self.false_alarms
            style = "bold red" if bad else "green" if fate.status == "killed" else ""
            table.add_row(fate.specimen.id, fate.specimen.family, Text(fate.status, style), fate.law,
                          ratio(fate.worst_ratio) if fate.law else "", f"{fate.seconds:.2f}")  # fmt: skip
        remarks = [Text(f"{f.specimen.id}: {f.status}: {f.reason}", "red") for f in (*self.missed, *self.false_alarms)]
        mutants, legal = self.among("mutant"), self.among("variant", "control")
        summary = (f"killed {len(self.killed)} of {len(mutants)} mutants; {len(self.false_alarms)} false alarms among {len(legal)} legal "
                   f"implementations; budget {self.budget}, {self.seconds:.1f} s")  # fmt: skip
        return Group(table, *remarks, Text(summary, "bold green" if self.good else "bold red"))


def take_census(families: tuple[str, ...] | None, *, extra: Path | None, budget: str, seed: int, progress: Any = None) -> Census:
    """Visit the zoo. Raises UsageError for unknown families or an extra folder without specimens."""
    start = time.monotonic()
    found = inhabitants(families, extra)
    fates = list(visit(found, budget=budget, seed=seed, processes=os.cpu_count() or 1, progress=progress))
    fates.sort(key=lambda fate: found.index(fate.specimen))
    return Census(tuple(fates), budget, time.monotonic() - start)
