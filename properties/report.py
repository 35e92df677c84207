"""Report: the verdicts of a run, as data. The JSON keys are stable; how it looks on a screen is the command line's business."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

HELD, FAILED, ERROR, NOT_COVERED = "held", "failed", "error", "not_covered"


@dataclass(frozen=True)
class Verdict:
    """What one law found over a run.

    status          held, failed, error (nothing could be judged: as bad as failed), not_covered
    reason          why; for a law that held, why it could not be judged on some of the cases
    cases, compared cases judged, elements compared; left_out: elements for which the bound gives no promise
    worst_ratio     largest error / allowed; worst_at: where it was
    counterexample  the folder of the failure, or None
    case            the failing case in one line
    warning         what a reader should know although the law held
    hint            what kind of fault it looks like: a help for people, never part of the verdict
    """

    law: str
    status: str
    reason: str = ""
    cases: int = 0
    compared: int = 0
    left_out: int = 0
    worst_ratio: float = 0.0
    worst_at: str = ""
    counterexample: str | None = None
    case: str = ""
    hint: str = ""
    warning: str = ""

    def to_json(self) -> dict[str, Any]:
        """JSON has no infinity: `worst_ratio` is null and `worst_ratio_infinite` true where no error was allowed at all."""
        infinite = not math.isfinite(self.worst_ratio)
        return {
            "law": self.law, "status": self.status, "reason": self.reason, "cases": self.cases, "compared": self.compared,
            "left_out": self.left_out, "worst_ratio": None if infinite else self.worst_ratio, "worst_ratio_infinite": infinite,
            "worst_at": self.worst_at, "counterexample": self.counterexample, "case": self.case, "hint": self.hint, "warning": self.warning,
        }  # fmt: skip


@dataclass(frozen=True)
class Report:
    """All verdicts on one subject of one operation, and what they do not speak of."""

    operation: str
    subject: str
    arithmetic: Mapping[str, Any]
    conventions: Mapping[str, str]
    seed: int
    seconds: float
    verdicts: tuple[Verdict, ...]
    not_covered: tuple[str, ...]
    designed: int = 0
    random: int = 0
    version: str = ""
    stopped: str = ""
    power: Mapping[str, Any] = field(default_factory=dict)

    @property
    def held(self) -> bool:
        """Every law held or does not bind this subject, and something was compared."""
        judged = [v for v in self.verdicts if v.status != NOT_COVERED]
        return bool(judged) and all(v.status == HELD for v in judged) and sum(v.compared for v in judged) > 0 and not self.stopped

    def to_json(self) -> dict[str, Any]:
        """The report under the stable keys."""
        return {
            "operation": self.operation, "subject": self.subject, "version": self.version, "held": self.held,
            "arithmetic": dict(self.arithmetic), "conventions": dict(self.conventions), "seed": self.seed,
            "seconds": round(self.seconds, 3),
            "cases": {"designed": self.designed, "random": self.random}, "stopped": self.stopped,
            "verdicts": [v.to_json() for v in self.verdicts], "not_covered": list(self.not_covered), "power": dict(self.power),
        }  # fmt: skip


def junit(reports: Iterable[Report]) -> str:
    """JUnit XML: one suite a report, one test a law; not covered is skipped, error and failed are what they say."""
    root = ElementTree.Element("testsuites")
    for report in reports:
        counts = {status: sum(v.status == status for v in report.verdicts) for status in (FAILED, ERROR, NOT_COVERED)}
        suite = ElementTree.SubElement(
            root, "testsuite", name=f"{report.operation} {report.subject}", tests=str(len(report.verdicts)),
            failures=str(counts[FAILED]), errors=str(counts[ERROR]), skipped=str(counts[NOT_COVERED]), time=f"{report.seconds:.3f}",
        )  # fmt: skip
        for verdict in report.verdicts:
            test = ElementTree.SubElement(suite, "testcase", classname=f"{report.operation}.{report.subject}", name=verdict.law)
            tag = {FAILED: "failure", ERROR: "error", NOT_COVERED: "skipped"}.get(verdict.status)
            if tag:
                element = ElementTree.SubElement(test, tag, message=_printable(verdict.reason))
                element.text = _printable("\n".join(filter(None, (verdict.hint, verdict.case, verdict.counterexample))))
        if report.stopped:
            ElementTree.SubElement(ElementTree.SubElement(suite, "testcase", name="run"), "error", message=_printable(report.stopped))
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _printable(text: str) -> str:
    """XML 1.0 knows no control characters but tab and line ends."""
    return "".join(c for c in text if c in "\t\n" or ord(c) >= 32)
