"""Checker: puts cases to a subject, lets every law judge, shrinks what fails. It renders nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from .case import Case
from .counterexample import write_counterexample
from .declaration import UsageError
from .diagnosis import PRECISION, diagnose
from .law import Judgement, Law
from .operation import Operation
from .operations import operation_named
from .outcome import HUNG, RETURNED
from .power import CASES, measure
from .report import ERROR, FAILED, HELD, NOT_COVERED, Report, Verdict
from .run import Failure, Run, Tally, begin, judge_one, random_cases, recipes_of
from .shrinking import Deadline, shrink, size
from .stateful.names import STATEFUL_NAMES
from .subjects import Subject, open_subject
from .trial import Trial

SHRINK_SECONDS = 20.0                                                           # for all laws of a run together
_CUT = " (a smaller one may be found: shrinking was stopped by its limit of time)"


def check(
    operation: str | Operation, subject: str | Callable[..., Any] | Subject, *, budget: int | str = "default", seed: int = 0,
    max_seconds: float | None = None, call_seconds: float = 30.0, in_process: bool = False, failures: Path | str | None = None,
    laws: tuple[str, ...] | None = None, declared: Mapping[str, Any] | None = None, progress: Callable[[int, int], None] | None = None,
    max_cases: int | None = None,
) -> Report:  # fmt: skip
    """Hold a subject to all laws of an operation.

    >>> from oracles.reference import flash_attention
    >>> check("attention", flash_attention, budget="quick").held
    True

    operation     its name; for an object such as "block_allocator" see `stateful.check_object`
    subject       a function, its text (`file.py:function`, `module:function`, `peers:name`, `cmd:PROGRAM`), or a `Subject`
    budget        random cases after the designed ones: a number, or one of `BUDGETS`
    seed          of the random cases; the designed ones are always the same
    max_seconds   stop after that time; what was not judged by then is said in the report
    call_seconds  how long one call may take (in a worker)
    failures      folder for counterexamples; None writes none
    laws          names of the laws to judge; None: all
    declared      arguments of `subject`, for a subject that does not declare itself
    progress      called with (cases done, cases in all)
    max_cases     put so many at most, evenly out of all there are; the report says how many were left

    Raises UsageError (a ValueError) where operation, subject, budget or laws are not what they should be.
    """
    if operation in STATEFUL_NAMES:
        from .stateful.checker import check_object

        if max_cases is not None:
            raise UsageError(f"max_cases: got {max_cases} for {operation}, an object; want a budget, its designed sequences all belong")
        if declared:
            raise UsageError(f"{', '.join(declared)}: {operation} is an object, which declares nothing; want no such option")
        if not isinstance(subject, str) and not callable(subject):
            raise UsageError(f"SUBJECT: got {subject!r}; want a class or factory, or its text")
        return check_object(str(operation), subject, budget=budget, seed=seed, max_seconds=max_seconds, call_seconds=call_seconds,
                            in_process=in_process, failures=failures, laws=laws, progress=progress)  # fmt: skip
    chosen = operation_named(operation) if isinstance(operation, str) else operation
    random_cases(budget)                                                        # before a process is started for nothing
    ours = isinstance(subject, str) or not hasattr(subject, "declaration")
    opened: Any = subject
    if ours:
        opened = open_subject(opened, chosen.name, in_process=in_process, seconds=call_seconds, declared=declared)
    start = time.monotonic()
    try:
        run = begin(chosen, opened, laws)
        designed, drawn = recipes_of(run, budget, seed)
        everything = [*designed, *drawn]
        kept = _spread(len(everything), max_cases)
        recipes = [everything[index] for index in kept]
        own = sum(index < len(designed) for index in kept)
        for index, recipe in enumerate(recipes):
            if run.stopped or not any(tally.open for tally in run.tallies):
                break
            if max_seconds is not None and time.monotonic() - start > max_seconds:
                run.stopped = f"stopped after {max_seconds:g} s, {index} of {len(recipes)} cases"
                break
            judge_one(run, index, recipe)
            if progress:
                progress(index + 1, len(recipes))
        verdicts = _verdicts(run, Path(failures) if failures is not None else None)
        declaration = opened.declaration
        broken = run.stopped or any(verdict.status in (FAILED, ERROR) for verdict in verdicts)
        return Report(
            chosen.name, opened.spec or declaration.name, asdict(declaration.arithmetic), declaration.conventions, seed,
            time.monotonic() - start, verdicts, (*_left(recipes, everything), *_not_covered(run)), own, len(kept) - own,
            declaration.version,
            run.stopped, {} if broken else _power(run, recipes),
        )  # fmt: skip
    finally:
        if ours:
            opened.close()


def _spread(count: int, most: int | None) -> list[int]:
    """Which of `count` cases are put where `most` may be: all, or that many at even distances, the first among them."""
    return list(range(count)) if most is None or most >= count else [index * count // most for index in range(most)]


def _left(recipes: list[Any], everything: list[Any]) -> tuple[str, ...]:
    left = len(everything) - len(recipes)
    return (f"{left} of {len(everything)} cases: max_cases is {len(recipes)}",) if left else ()


def _power(run: Run, recipes: list[Any]) -> dict[str, Any]:
    """What a run that held would have seen, on cases spread over all that were put."""
    step = max(1, len(recipes) // (6 * CASES))                                  # some see nothing, and there are several formats
    trials = [Trial(run.operation, run.subject, run.finished(run.source.build(recipe))) for recipe in recipes[::step]]
    agreeing = [tally.law.name for tally in run.tallies if tally.compared]
    results = [name for name in run.operation.signature.results if f"{name}_agrees_with_the_oracle" in agreeing]
    return measure(trials, results)


@dataclass
class Shrinking:
    """What the laws of a run share: the time for shrinking, and the recipes in which it has ended, which the next law tries first."""

    until: Deadline
    ends: list[Any] = field(default_factory=list)


def _verdicts(run: Run, folder: Path | None) -> tuple[Verdict, ...]:
    shared = Shrinking(Deadline.after(SHRINK_SECONDS))
    return tuple(_verdict(run, tally, folder, shared) for tally in run.tallies)


def _verdict(run: Run, tally: Tally, folder: Path | None, shared: Shrinking) -> Verdict:
    name = tally.law.name
    if tally.not_covered:
        return Verdict(name, NOT_COVERED, tally.not_covered)
    if tally.broken:
        return Verdict(name, ERROR, tally.broken, tally.cases, tally.compared)
    if tally.failure is not None:
        return _failed(run, tally, tally.failure, folder, shared)
    if tally.compared:
        return Verdict(name, HELD, tally.silence, tally.cases, tally.compared, tally.left_out, tally.worst_ratio, tally.worst_at,
                       warning=tally.warning)  # fmt: skip
    if run.stopped:
        return Verdict(name, ERROR, f"nothing was judged: {run.stopped}")
    if tally.silence:
        return Verdict(name, NOT_COVERED, tally.silence)
    if run.refusals:
        return Verdict(name, NOT_COVERED, f"every case was refused: {run.refusal}")
    if run.defect:
        return Verdict(name, ERROR, f"nothing could be judged: {run.defect}")
    return Verdict(name, NOT_COVERED, "no case that the subject covers is of the kind this law speaks of")


def _failed(run: Run, tally: Tally, failure: Failure, folder: Path | None, shared: Shrinking) -> Verdict:
    """The verdict on a broken law: shrunk, written down, looked at. What goes wrong in that is said, and leaves the law broken."""
    case, judgement, note, written, hint = failure.case, failure.judgement, "", None, ""
    cut = False
    try:
        case, judgement, note, cut = _smallest(run, tally.law, failure, shared)
        hint = _hint(run, tally.law, failure, case) if failure.kind == RETURNED and not note else ""
        if folder is not None:
            written = str(write_counterexample(folder, run.operation, run.subject, tally.law, case, judgement))
    except Exception as error:                                                  # ours, or the disk's
        note += f" (it could not be shrunk and written down: {type(error).__name__}: {error})"
    return Verdict(tally.law.name, FAILED, judgement.reason + note, tally.cases, tally.compared, tally.left_out, judgement.worst_ratio,
                   judgement.worst_at, written, describe(case) + (_CUT if cut else ""), hint)  # fmt: skip


def _hint(run: Run, law: Law, failure: Failure, shrunk: Case) -> str:
    """What the failure looks like on the case as it was found; a guess at precision must hold of the shrunk case too."""
    if law.name == "inputs_stay_untouched":
        return ""
    hint = diagnose(Trial(run.operation, run.subject, failure.case))
    guessed = hint.startswith(PRECISION)
    return "" if guessed and not diagnose(Trial(run.operation, run.subject, shrunk)).startswith(PRECISION) else hint


def _smallest(run: Run, law: Law, failure: Failure, shared: Shrinking) -> tuple[Case, Judgement, str, bool]:
    """The smallest failing case found, what the law says of it, a remark for the reason, and whether the time ended the search.

    First of all what other laws have shrunk to is tried, least first: one fault mostly breaks them all there, and a law for which
    no time is left still shows no case of thousands of elements.
    """
    if failure.kind == HUNG or failure.recipe is None:
        return failure.case, failure.judgement, "", False
    from .value_minimiser import minimise_values

    def fails_on(case: Case) -> bool:
        trial = Trial(run.operation, run.subject, case)
        return law.judge(trial).failed and trial.outcome.kind == failure.kind

    def fails(recipe: Any) -> bool:
        prepared = run.prepared(law, recipe)
        return prepared is not None and fails_on(prepared)

    def simpler(recipe: Any) -> Iterator[Any]:
        return (run.source.covered(r, run.coverage) for r in run.source.simpler(recipe))

    drawn = run.subject.declaration.conventions.get("uniforms") == "own"        # other draws in each run are then no remark
    known = sorted((end for end in shared.ends if size(end) < size(failure.recipe)), key=size)
    start = next((recipe for recipe in (*known, failure.recipe) if fails(recipe)), None)
    if start is None:
        once = " (once: the same input did not fail again, so the subject is not deterministic)"
        return failure.case, failure.judgement, "" if drawn else once, False
    structure, values = shared.until.share(0.7), Deadline(shared.until.moment)
    recipe, _ = shrink(start, simpler, fails, until=structure, reseed=6)
    if recipe not in shared.ends:
        shared.ends.append(recipe)
    case = run.prepared(law, recipe)
    if case is None:
        raise RuntimeError(f"{law.name}: the shrunk recipe {recipe} has no case")
    if law.minimise:
        case = minimise_values(case, fails_on, until=values, complete=run.source.complete)
    judgement = law.judge(Trial(run.operation, run.subject, case))
    if judgement.failed:
        return case, judgement, "", structure.stopped or values.stopped
    return failure.case, failure.judgement, "" if drawn else " (only now and then: not deterministic)", False


def _not_covered(run: Run) -> tuple[str, ...]:
    """What the verdicts do not speak of, one line each."""
    coverage, contract = run.coverage, run.operation.signature
    lines = [f"argument {name}: the subject does not take it" for name in contract.optional if name not in coverage.arguments]
    lines += [f"parameter {name} of the subject: no argument of {run.operation.name}, so it was never set (rename={{ARGUMENT: {name!r}}}?)"
              for name in run.subject.declaration.unset]  # fmt: skip
    lines += [f"{what}: declared away" for flag, what in _FEATURES.items()
              if not getattr(coverage, flag) and (contract.as_array if flag == "lists" else "q" in contract.required)]
    if "causal" in coverage.arguments:
        lines += [f"causal = {a}: not declared" for a in ("bottom_right", "top_left") if a not in coverage.causal]
    formats = ("float64", "float32", "float16", "bfloat16") if set(contract.required) - set(contract.choices) else ()      # of arrays
    lines += [f"inputs in {name}: not declared" for name in formats if name not in coverage.dtypes]
    lines += [f"{option} other than {', '.join(taken)}: not declared" for option, taken in coverage.only]
    if coverage.head_dims is not None:
        lines.append(f"head sizes other than {', '.join(map(str, coverage.head_dims))}: not declared")
    lines += sorted({f"{tally.law.name}: {tally.silence}" for tally in run.tallies if tally.silence and tally.compared})
    lines += sorted({tally.silence for tally in run.tallies if tally.silence.startswith("the subject returns no")})
    if run.refusals:
        lines.append(f"{run.refusals} calls refused with NotImplementedError, the last: {run.refusal}")
    return tuple(lines)


_FEATURES = {
    "grouped": "fewer key/value heads than query heads", "value_dim": "Dv other than D", "cross_lengths": "Lq other than Lk",
    "empty": "lengths of 0", "negative_scale": "a negative scale",
    "lists": "lists of arrays",
}  # fmt: skip


def describe(case: Case) -> str:
    """A case in one line: shapes, dtype, options."""
    shapes = ", ".join(f"{name} {'x'.join(map(str, array.shape)) or 'scalar'}" for name, array in case.arrays.items())
    dtype = next((str(array.dtype) for array in case.arrays.values()), "")
    options = ", ".join(f"{name}={value!r}" for name, value in case.options.items())
    return "; ".join(part for part in (shapes, dtype, options) if part)
