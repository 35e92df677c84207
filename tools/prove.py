"""Proofs: lemmas put to an SMT solver, countermodels confirmed by exact enumeration, all of it printed."""

from __future__ import annotations

import importlib
import json
import time
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.text import Text

from oracles.properties.declaration import UsageError

from .rendering import console

if TYPE_CHECKING:
    from .lemmas_speculative import Lemma, Query

PROOFS = {"speculative": "lemmas_speculative"}                                  # name -> module with LEMMAS
SECONDS_A_QUERY = 20
_RESULTS = {"unsat": "proven", "sat": "refuted", "unknown": "unknown"}

Countermodel = dict[str, list[str]]                                             # name -> numbers, as fractions


@dataclass(frozen=True)
class Outcome:
    """What the solver said of one lemma, and in which numbers it fails where it does."""

    lemma: Lemma
    result: str
    countermodel: Countermodel | None
    seconds: float

    @property
    def good(self) -> bool:
        return self.result == self.lemma.expected

    def to_json(self) -> dict[str, Any]:
        return {"name": self.lemma.name, "statement": self.lemma.statement, "formula": self.lemma.formula, "expected": self.lemma.expected,
                "result": self.result, "countermodel": self.countermodel, "seconds": self.seconds}  # fmt: skip

    def view(self) -> Text:
        style = {"proven": "bold green", "refuted": "bold yellow"}[self.result] if self.good else "bold red"
        surprise = "" if self.good else f", expected {self.lemma.expected}"
        lines: list[str | tuple[str, str]] = [(f"{self.result}{surprise}", style), f"  {self.lemma.name}  {1000 * self.seconds:.0f} ms\n",
                 f"    {self.lemma.statement}\n", (f"    {self.lemma.formula}\n", "cyan")]  # fmt: skip
        if self.countermodel:
            numbers = "   ".join(f"{name} = ({', '.join(values)})" for name, values in self.countermodel.items())
            lines.append(f"    {numbers}\n")
        return Text.assemble(*lines)


def prove(name: str | None, as_json: bool) -> int:
    """Prove one family of lemmas, or all; print them. Exit code 0 where every lemma is as expected, else 1.

    Raises UsageError for an unknown name, and where the solver is not installed.
    """
    outcomes = [settle(lemma) for family in _families(name) for lemma in lemmas(family)]
    good = all(outcome.good for outcome in outcomes)
    if as_json:
        print(json.dumps({"lemmas": [outcome.to_json() for outcome in outcomes]}, indent=1, ensure_ascii=False))
    else:
        console().print(Group(*(outcome.view() for outcome in outcomes), _conclusion(outcomes)))
    return 0 if good else 1


def lemmas(family: str) -> tuple[Lemma, ...]:
    """The lemmas of one family. Raises UsageError without the solver."""
    try:
        importlib.import_module("z3")
    except ImportError:
        raise UsageError("prove: the solver z3 is not installed; want it: pip install 'oracles[proofs]'") from None
    found: tuple[Lemma, ...] = importlib.import_module(f".{PROOFS[family]}", __package__).LEMMAS
    return found


def settle(lemma: Lemma) -> Outcome:
    """Put every query of a lemma to the solver.

    Proven: all goals follow, and their hypotheses can be true, so that they do not follow from nothing. Refuted: one goal
    does not follow. Raises ValueError, an error of ours, for hypotheses that contradict each other, and for a countermodel
    that the broken algorithm, followed path by path in fractions, does not bear out.
    """
    start, result, countermodel = time.perf_counter(), "proven", None
    for query in lemma.queries():
        answer, countermodel = _ask(lemma, query)
        if answer != "proven":
            result = answer
            break
    return Outcome(lemma, result, countermodel, time.perf_counter() - start)


def _ask(lemma: Lemma, query: Query) -> tuple[str, Countermodel | None]:
    import z3  # type: ignore[import-untyped, import-not-found, unused-ignore]

    solver = z3.Solver()
    solver.set("timeout", 1000 * SECONDS_A_QUERY)
    solver.add(*query.hypotheses)
    if solver.check() == z3.unsat:
        raise ValueError(f"{lemma.name}, {query.part}: the hypotheses contradict each other; want some that can be true")
    solver.add(z3.Not(query.goal))
    answer = _RESULTS[str(solver.check())]
    if answer != "refuted" or not query.shown:
        return answer, None
    model = solver.model()
    numbers = {name: [_fraction(model.eval(x, model_completion=True)) for x in values] for name, values in query.shown.items()}
    _confirm(lemma, numbers)
    return answer, {name: [str(x) for x in values] for name, values in numbers.items()}


def _fraction(value: Any) -> Fraction:
    if not hasattr(value, "as_fraction"):
        raise ValueError(f"countermodel: got {value}; want a rational number")
    return Fraction(value.as_fraction())


def _confirm(lemma: Lemma, numbers: dict[str, list[Fraction]]) -> None:
    """The broken algorithm emits for these p and q what the countermodel says, which is not what is wanted."""
    if lemma.enumerated is None:
        return
    emitted = list(lemma.enumerated(numbers["p"], numbers["q"]))
    if emitted != numbers["emitted"] or emitted == numbers["wanted"]:
        raise ValueError(f"{lemma.name}: got {numbers} from the solver; the algorithm, enumerated, emits {[str(x) for x in emitted]}")


def _families(name: str | None) -> list[str]:
    if name is not None and name not in PROOFS:
        raise UsageError(f"NAME: got {name!r}; want one of {', '.join(PROOFS)}")
    return list(PROOFS) if name is None else [name]


def _conclusion(outcomes: list[Outcome]) -> Text:
    count = {result: sum(outcome.result == result for outcome in outcomes) for result in ("proven", "refuted", "unknown")}
    bad = [outcome.lemma.name for outcome in outcomes if not outcome.good]
    seconds = sum(outcome.seconds for outcome in outcomes)
    told = f"{count['proven']} proven, {count['refuted']} refuted with a countermodel, {count['unknown']} unknown, {seconds:.1f} s"
    return Text.assemble((f"not as expected: {', '.join(bad)}  ", "bold red") if bad else ("as expected  ", "bold green"), told)
