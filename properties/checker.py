"""Checker: puts cases to a subject, lets every law judge, shrinks what fails. It renders nothing."""

from __future__ import annotations

import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np

from .case import Case
from .counterexample import write_counterexample
from .coverage import Coverage
from .declaration import UsageError
from .law import Judgement, Law
from .operation import Operation
from .operations import operation_named
from .outcome import DIED, HUNG, REFUSED
from .report import ERROR, FAILED, HELD, NOT_COVERED, Report, Verdict
from .subjects import Subject, open_subject
from .trial import Trial

# Random cases after the designed ones.
BUDGETS = {"quick": 0, "default": 80, "full": 4000}
DEATHS = 12                                                                     # each costs the start of a process
SHRINK_SECONDS = 12.0                                                           # for one law
ALL_SHRINK_SECONDS = 45.0


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
        """The case as this subject's conventions want it."""
        spread = self.subject.declaration.conventions.get("nonfinite_behind_mask") == "spread"
        return _finite(case) if spread and case.notes.get("poison") == "nan" else case


def check(
    operation: str | Operation, subject: str | Callable[..., Any] | Subject, *, budget: int | str = "default", seed: int = 0,
    max_seconds: float | None = None, call_seconds: float = 30.0, in_process: bool = False, failures: Path | str | None = None,
    laws: tuple[str, ...] | None = None, declared: Mapping[str, Any] | None = None, progress: Callable[[int, int], None] | None = None,
) -> Report:  # fmt: skip
    """Hold a subject to all laws of an operation.

    >>> from oracles.reference import flash_attention
    >>> check("attention", flash_attention, budget="quick").held
    True

    subject       a function, its text (`file.py:function`, `module:function`, `peers:name`, `cmd:PROGRAM`), or a `Subject`
    budget        random cases after the designed ones: a number, or one of `BUDGETS`
    seed          of the random cases; the designed ones are always the same
    max_seconds   stop after that time; what was not judged by then is said in the report
    call_seconds  how long one call may take (in a worker)
    failures      folder for counterexamples; None writes none
    laws          names of the laws to judge; None: all
    declared      arguments of `subject`, for a subject that does not declare itself
    progress      called with (cases done, cases in all)

    Raises UsageError (a ValueError) where operation, subject, budget or laws are not what they should be.
    """
    chosen = operation_named(operation) if isinstance(operation, str) else operation
    count = _random_cases(budget)
    ours = isinstance(subject, str) or not hasattr(subject, "declaration")
    opened: Any = subject
    if ours:
        opened = open_subject(opened, chosen.name, in_process=in_process, seconds=call_seconds, declared=declared)
    start = time.monotonic()
    try:
        run = Run(chosen, opened, chosen.cases(), [Tally(law, law.not_covered(opened.declaration)) for law in _chosen(chosen, laws)])
        designed = run.source.designed(run.coverage)
        recipes = [*designed, *_random(run.source.strategy(run.coverage), count, seed)]
        for index, recipe in enumerate(recipes):
            if run.stopped or not any(tally.open for tally in run.tallies):
                break
            if max_seconds is not None and time.monotonic() - start > max_seconds:
                run.stopped = f"stopped after {max_seconds:g} s, {index} of {len(recipes)} cases"
                break
            _judge_one(run, index, recipe)
            if progress:
                progress(index + 1, len(recipes))
        verdicts = _verdicts(run, Path(failures) if failures is not None else None)
        declaration = opened.declaration
        return Report(
            chosen.name, opened.spec or declaration.name, asdict(declaration.arithmetic), declaration.conventions, seed,
            time.monotonic() - start, verdicts, _not_covered(run), len(designed), len(recipes) - len(designed), declaration.version,
            run.stopped,
        )  # fmt: skip
    finally:
        if ours:
            opened.close()


def _random_cases(budget: int | str) -> int:
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


def _judge_one(run: Run, index: int, recipe: Any) -> None:
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


def _verdicts(run: Run, folder: Path | None) -> tuple[Verdict, ...]:
    deadline = time.monotonic() + ALL_SHRINK_SECONDS
    return tuple(_verdict(run, tally, folder, min(SHRINK_SECONDS, max(0.0, deadline - time.monotonic()))) for tally in run.tallies)


def _verdict(run: Run, tally: Tally, folder: Path | None, seconds: float) -> Verdict:
    name = tally.law.name
    if tally.not_covered:
        return Verdict(name, NOT_COVERED, tally.not_covered)
    if tally.broken:
        return Verdict(name, ERROR, tally.broken, tally.cases, tally.compared)
    if tally.failure is not None:
        case, judgement, note = _smallest(run, tally.law, tally.failure, seconds)
        written = None
        if folder is not None:
            written = str(write_counterexample(folder, run.operation, run.subject, tally.law, case, judgement))
        return Verdict(name, FAILED, judgement.reason + note, tally.cases, tally.compared, tally.left_out, judgement.worst_ratio,
                       judgement.worst_at, written, describe(case))  # fmt: skip
    if tally.compared:
        return Verdict(name, HELD, "", tally.cases, tally.compared, tally.left_out, tally.worst_ratio, tally.worst_at)
    if run.stopped:
        return Verdict(name, ERROR, f"nothing was judged: {run.stopped}")
    if tally.silence:
        return Verdict(name, NOT_COVERED, tally.silence)
    if run.refusals:
        return Verdict(name, NOT_COVERED, f"every case was refused: {run.refusal}")
    if run.defect:
        return Verdict(name, ERROR, f"nothing could be judged: {run.defect}")
    return Verdict(name, NOT_COVERED, "no case that the subject covers is of the kind this law speaks of")


def _smallest(run: Run, law: Law, failure: Failure, seconds: float) -> tuple[Case, Judgement, str]:
    """The smallest failing case found, what the law says of it, and a remark for the reason."""
    if failure.kind == HUNG or failure.recipe is None or seconds <= 0:
        return failure.case, failure.judgement, ""
    from .shrinking import shrink
    from .value_minimiser import minimise_values

    def fails_on(case: Case) -> bool:
        trial = Trial(run.operation, run.subject, case)
        return law.judge(trial).failed and trial.outcome.kind == failure.kind

    def fails(recipe: Any) -> bool:
        prepared = run.prepared(law, recipe)
        return prepared is not None and fails_on(prepared)

    def simpler(recipe: Any) -> Iterator[Any]:
        return (run.source.covered(r, run.coverage) for r in run.source.simpler(recipe))

    if not fails(failure.recipe):
        return failure.case, failure.judgement, " (once: the same input did not fail again, so the subject is not deterministic)"
    recipe, _ = shrink(failure.recipe, simpler, fails, seconds=0.7 * seconds, reseed=6)
    case = run.prepared(law, recipe)
    if case is None:
        raise RuntimeError(f"{law.name}: the shrunk recipe {recipe} has no case")
    if law.minimise:
        case = minimise_values(case, fails_on, seconds=0.3 * seconds, complete=run.source.complete)
    judgement = law.judge(Trial(run.operation, run.subject, case))
    return (case, judgement, "") if judgement.failed else (failure.case, failure.judgement, " (only now and then: not deterministic)")


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


def _finite(case: Case) -> Case:
    """NaN and infinities that nobody may see replaced by numbers, for subjects that declare them to spread."""
    arrays = {name: np.where(np.isfinite(a.astype(np.float64)), a, 1.0).astype(a.dtype) for name, a in case.arrays.items() if name in "kv"}
    return case.with_arrays(**arrays)


def _not_covered(run: Run) -> tuple[str, ...]:
    """What the verdicts do not speak of, one line each."""
    coverage, contract = run.coverage, run.operation.signature
    lines = [f"argument {name}: the subject does not take it" for name in contract.optional if name not in coverage.arguments]
    lines += [f"{what}: declared away" for flag, what in _FEATURES.items() if not getattr(coverage, flag) and "q" in contract.required]
    if "causal" in coverage.arguments:
        lines += [f"causal = {a}: not declared" for a in ("bottom_right", "top_left") if a not in coverage.causal]
    lines += [f"inputs in {name}: not declared" for name in ("float64", "float32", "float16", "bfloat16") if name not in coverage.dtypes]
    if coverage.head_dims is not None:
        lines.append(f"head sizes other than {', '.join(map(str, coverage.head_dims))}: not declared")
    lines += sorted(tally.silence for tally in run.tallies if tally.silence.startswith("the subject returns no"))
    if run.refusals:
        lines.append(f"{run.refusals} calls refused with NotImplementedError, the last: {run.refusal}")
    return tuple(lines)


_FEATURES = {
    "grouped": "fewer key/value heads than query heads", "value_dim": "Dv other than D", "cross_lengths": "Lq other than Lk",
    "empty": "lengths of 0", "negative_scale": "a negative scale",
}  # fmt: skip


def describe(case: Case) -> str:
    """A case in one line: shapes, dtype, options."""
    shapes = ", ".join(f"{name} {'x'.join(map(str, array.shape)) or 'scalar'}" for name, array in case.arrays.items())
    dtype = next(iter(case.arrays.values())).dtype
    options = ", ".join(f"{name}={value!r}" for name, value in case.options.items())
    return f"{shapes}; {dtype}" + (f"; {options}" if options else "")
