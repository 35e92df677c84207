"""Run: the cases of one check put to one subject, and what each law has found so far. What is made of it is the checker's business."""

from __future__ import annotations

import tempfile
import traceback
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from oracles.reference import FloatFormat

from .case import Case
from .coverage import Coverage
from .declaration import UsageError
from .law import Judgement, Law
from .operation import Operation
from .outcome import DIED, HUNG, REFUSED
from .subjects import Subject
from .trial import Trial

# Random cases after the designed ones.
BUDGETS = {"quick": 0, "default": 80, "full": 4000}
DEATHS = 12                                                                     # each costs the start of a process


@dataclass
class Failure:
    """What failed first: the recipe, the case as the law prepared it, what was found, how the subject had ended."""

    recipe: Any
    case: Case
    judgement: Judgement
    kind: str


@dataclass
class Tally:
    """One law over a run."""

    law: Law
    not_covered: str
    cases: int = 0
    compared: int = 0
    left_out: int = 0
    worst_ratio: float = 0.0
    worst_at: str = ""
    silence: str = ""
    warning: str = ""
    failure: Failure | None = None
    broken: str = ""

    @property
    def open(self) -> bool:
        return not self.not_covered and self.failure is None and not self.broken

    def add(self, judgement: Judgement) -> None:
        if judgement.compared == 0 and not judgement.failed:
            self.silence = judgement.reason or self.silence
            return
        self.cases += 1
        self.warning = self.warning or judgement.warning
        self.compared += judgement.compared
        self.left_out += judgement.left_out
        if judgement.worst_ratio > self.worst_ratio or not self.worst_at:
            self.worst_ratio, self.worst_at = max(self.worst_ratio, judgement.worst_ratio), judgement.worst_at


@dataclass
class Run:
    """Everything a run carries from case to case."""

    operation: Operation
    subject: Subject
    source: Any
    tallies: list[Tally]
    deaths: int = 0
    refusals: int = 0
    refusal: str = ""
    defect: str = ""
    stopped: str = ""
    cases: int = 0
    missing: set[str] = field(default_factory=set)

    @property
    def coverage(self) -> Coverage:
        return self.subject.declaration.coverage

    def prepared(self, law: Law, recipe: Any) -> Case | None:
        return law.prepare(self.finished(self.source.build(recipe)))

    def finished(self, case: Case) -> Case:
        """The case as this subject's conventions and formats want it."""
        case = self._with_moments(case)
        poisoned = tuple(case.notes.get("poisoned", ("k", "v")))
        if case.notes.get("poison") is None or not set(poisoned) <= set(case.arrays):
            return case
        spread = self.subject.declaration.conventions.get("nonfinite_behind_mask") == "spread"
        arithmetic = self.subject.declaration.arithmetic.resolve(self.operation.input_format(case))
        narrowest = min(FloatFormat(name).max for name in (arithmetic.accumulate, arithmetic.elementwise))
        return _tamed(case, narrowest if narrowest < FloatFormat(arithmetic.inputs).max else np.inf, spread, poisoned)

    def _with_moments(self, case: Case) -> Case:
        """The case with an optimizer's moments in the format that the subject keeps them in."""
        names = [name for name in self.operation.signature.moments if name in case.arrays]
        if not names:
            return case
        wanted = FloatFormat(self.subject.declaration.arithmetic.resolve(self.operation.input_format(case)).moments)
        return case.with_arrays(**{name: wanted.cast(case.arrays[name].astype(np.float64)) for name in names
                                   if case.arrays[name].dtype.name != wanted.name})  # fmt: skip


def begin(operation: Operation, subject: Subject, laws: tuple[str, ...] | None = None) -> Run:
    """A run in which nothing has been judged yet. laws: names of those to judge; None: all."""
    tallies = [Tally(law, law.not_covered(subject.declaration)) for law in _chosen(operation, laws)]
    return Run(operation, subject, operation.cases(), tallies)


def recipes_of(run: Run, budget: int | str, seed: int) -> tuple[list[Any], list[Any]]:
    """The designed recipes that the subject covers, and as many random ones as the budget says."""
    count = random_cases(budget)
    return run.source.designed(run.coverage), _random(run.source.strategy(run.coverage), count, seed)


def random_cases(budget: int | str) -> int:
    """How many random cases a budget means. Raises UsageError for anything but a number or one of `BUDGETS`."""
    if isinstance(budget, str) and budget in BUDGETS:
        return BUDGETS[budget]
    if isinstance(budget, int | str) and str(budget).isdigit():
        return int(budget)
    raise UsageError(f"budget: got {budget!r}; want a number of random cases, or one of {', '.join(BUDGETS)}")


def _chosen(operation: Operation, names: tuple[str, ...] | None) -> tuple[Law, ...]:
    unknown = [name for name in names or () if name not in {law.name for law in operation.laws}]
    if unknown:
        known = ", ".join(law.name for law in operation.laws)
        raise UsageError(f"laws: {operation.name} has no {', '.join(unknown)}; want some of {known}")
    return tuple(law for law in operation.laws if names is None or law.name in names)


def judge_one(run: Run, index: int, recipe: Any) -> None:
    """Put the case of one recipe to the subject and let every law that is still open judge it, where its turn has come."""
    case = run.finished(run.source.build(recipe))
    trial = Trial(run.operation, run.subject, case)
    run.cases += 1
    for position, tally in enumerate(run.tallies):
        if not tally.open or (index + position) % tally.law.every:
            continue
        try:
            prepared = tally.law.prepare(case)
            if prepared is None:
                continue
            on = trial if prepared is case else trial.on(prepared)
            judgement = tally.law.judge(on)
        except UsageError:
            raise
        except Exception as error:                                              # ours: the subject's own never get here
            tally.broken = f"the checker itself failed on {recipe}: {type(error).__name__}: {error}\n{traceback.format_exc(limit=-3)}"
            continue
        tally.add(judgement)
        if judgement.failed:
            tally.failure = Failure(recipe, prepared, judgement, on.outcome.kind)
        _watch(run, on)
        if run.stopped:
            return


def _watch(run: Run, trial: Trial) -> None:
    """Notice what concerns the whole run: refusals, defects, deaths, a hang."""
    if "outcome" not in trial.__dict__:
        return
    kind = trial.outcome.kind
    if kind == REFUSED:
        run.refusals, run.refusal = run.refusals + 1, trial.outcome.message
    elif trial.defects:
        run.defect = run.defect or trial.defects
    if kind == DIED:
        run.deaths += 1
        if run.deaths >= DEATHS:
            run.stopped = f"stopped: the subject's process ended {run.deaths} times, the last time: {trial.outcome.message}"
    elif kind == HUNG:
        run.stopped = f"stopped: the subject {trial.outcome.message}"
        answers = next((tally for tally in run.tallies if tally.law.name == "answers" and tally.open), None)
        if answers:
            judgement = Judgement(1, worst_ratio=np.inf, failed=True, reason=trial.outcome.message)
            answers.failure = Failure(None, trial.case, judgement, kind)


def _random(strategy: Any, count: int, seed: int) -> list[Any]:
    """`count` recipes drawn by Hypothesis; nothing of it is stored, nested or timed."""
    import hypothesis
    from hypothesis import HealthCheck, Phase, settings
    from hypothesis.configuration import set_hypothesis_home_dir

    if count == 0:
        return []
    recipes: list[Any] = []
    with tempfile.TemporaryDirectory() as home:
        set_hypothesis_home_dir(home)                                           # otherwise a folder appears where the user works
        try:
            explicit = settings(max_examples=count, database=None, deadline=None, phases=[Phase.generate], derandomize=False,
                                suppress_health_check=list(HealthCheck))  # fmt: skip

            def collect(recipe: Any) -> None:
                recipes.append(recipe)

            library = cast(Any, hypothesis)                                     # its decorators carry no types
            library.seed(seed)(explicit(library.given(strategy)(collect)))()
        finally:
            set_hypothesis_home_dir(None)
    return recipes[:count]


def _tamed(case: Case, narrowest: float, spread: bool, poisoned: tuple[str, ...]) -> Case:
    """Poison of a size that the subject's own arithmetic can hold, and no NaN for subjects that declare it to spread."""
    if not spread and np.isinf(narrowest):
        return case
    arrays = {}
    for name in poisoned:
        array = case.arrays[name].astype(np.float64)
        held = array if np.isinf(narrowest) else np.where(np.abs(array) > narrowest**0.25, narrowest**0.25, array)
        arrays[name] = (np.where(np.isfinite(held), held, 1.0) if spread else held).astype(case.arrays[name].dtype)
    return case.with_arrays(**arrays)
