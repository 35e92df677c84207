"""Grade: answers that any program wrote for exported questions, judged against the certified values under what the submission declares.

A result earns its point where, for every element,

    |answer - (hi + lo)| <= bound(declared arithmetic)

with hi + lo the exact result to 106 bits. What is missing, unreadable, of another dtype or shape, or not a number where one is wanted
earns nothing; nothing is skipped. A result for which the defaults promise nothing at all, since sums may overflow or a decision stands
too near a tie, has no point to give, to anybody. The answers are data: nothing of a submission is run or imported.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from oracles.properties.arithmetic import Arithmetic
from oracles.properties.comparison import Comparison, Float64, ratios
from oracles.properties.declaration import UsageError
from oracles.properties.operation import is_of_format
from oracles.properties.safetensors_file import Array

from .certified import Limbs
from .export import ANSWERS, plain
from .questions import CHECKED, Question, operations_there, questions
from .store import DATA
from .submission import AnswerFault, Declared, declared_in, json_of, shown, surplus, surplus_tensors, tensors_of

HEADER_ROOM = 2**16                                                             # bytes that an answer may have beyond its numbers


@dataclass(frozen=True)
class Criterion:
    """One case: a point for each of its results that can be judged. `reason` says why the others and lost points are none."""

    name: str
    points: int
    max_points: int
    reason: str = ""

    @property
    def operation(self) -> str:
        return self.name.partition("/")[0]

    @property
    def missing(self) -> bool:
        """Whether points are lost since there is no file at all."""
        return self.max_points > 0 and self.reason.startswith("missing: ")


@dataclass
class Grade:
    """The marks of one submission; `flags` are what whoever judges should look at.

    unknown   names of tensors that answer nothing -> the files that hold them; one flag tells of them all
    """

    submission: str
    criteria: list[Criterion] = field(default_factory=list)
    flags: list[str] = field(default_factory=list)
    unknown: dict[str, list[str]] = field(default_factory=dict)

    @property
    def score(self) -> int:
        return sum(criterion.points for criterion in self.criteria)

    @property
    def max_score(self) -> int:
        return sum(criterion.max_points for criterion in self.criteria)

    @property
    def full(self) -> bool:
        """Every point there is, and there are some."""
        return 0 < self.max_score == self.score

    def operations(self) -> dict[str, tuple[int, int]]:
        """operation -> points, and points there are."""
        found: dict[str, tuple[int, int]] = {}
        for criterion in self.criteria:
            points, most = found.get(criterion.operation, (0, 0))
            found[criterion.operation] = (points + criterion.points, most + criterion.max_points)
        return found

    def to_json(self) -> dict[str, Any]:
        """The grade under the stable keys."""
        return {
            "submission": self.submission, "score": self.score, "max_score": self.max_score, "criteria": [vars(c) for c in self.criteria],
            "flags": self.flags, "missing": sum(criterion.missing for criterion in self.criteria),
            "operations": {name: {"points": points, "max_points": most} for name, (points, most) in self.operations().items()},
        }  # fmt: skip


@dataclass(frozen=True)
class Measure:
    """What is right for one result under one declaration.

    format, right, allowed   its dtype, its value, and how far it may be off
    zeros_would_do           whether the declaration is so wide that it lets zeros pass where the defaults do not
    """

    format: str
    right: Limbs
    allowed: Float64
    zeros_would_do: bool = False

    @property
    def promises(self) -> bool:
        """Whether something is said of an element, or there is none."""
        return self.allowed.size == 0 or not bool(np.isposinf(self.allowed).all())


def grade(folders: Sequence[Path], operations: Sequence[str] = (), *, golden: Path = DATA, declaration: Path | None = None,
          progress: Callable[[int, int], None] = lambda done, total: None) -> list[Grade]:
    """The grades of folders of answers, in their order. Which cases count is said here and by nothing in a folder.

    declaration   a file that stands for those of all submissions

    Raises UsageError where no path is a folder, an operation is unknown, or `declaration` is none; store.GoldenFault for damaged
    golden files. Whatever is wrong with a folder becomes a flag of its grade.
    """
    if not any(folder.is_dir() for folder in folders):
        raise UsageError(f"DIR: got {', '.join(map(str, folders)) or 'none'}; want a folder with answers/, made by `oracles golden export`")
    there = operations_there(golden)
    for name in operations:
        if name not in there:
            raise UsageError(f"--operation: got {name!r}; want some of {', '.join(there)}")
    grades = [Grade(name) for name in _names(folders)]
    said = [_declaration(folder, one, declaration) for folder, one in zip(folders, grades)]
    asked = list(questions(golden, operations))
    others = set(there) - {question.case.operation for question in asked}
    for number, question in enumerate(asked):
        measures: dict[Any, dict[str, Measure]] = {}
        for i, (folder, one) in enumerate(zip(folders, grades)):
            one.criteria.append(_criterion(folder, question, said[i], measures, one))
            progress(number * len(folders) + i + 1, len(asked) * len(folders))
    for folder, one in zip(folders, grades):
        one.flags += [*surplus_tensors(one.unknown), *surplus(folder, [question.file for question in asked], others)]
    return grades


def _names(folders: Sequence[Path]) -> list[str]:
    """The last parts of the paths; the whole paths where two have the same."""
    short = [folder.resolve().name for folder in folders]
    return [shown(name if short.count(name) == 1 else str(folder)) for name, folder in zip(short, folders)]


def _declaration(folder: Path, one: Grade, given: Path | None) -> Declared:
    if not folder.is_dir():
        one.flags.append("no folder")
    elif not (folder / ANSWERS).is_dir():
        one.flags.append("holds no answers/")
    try:
        said = declared_in(folder) if given is None else _given(given)
    except AnswerFault as fault:
        one.flags.append(f"judged under the defaults, since {fault}")
        return Declared()
    one.flags += said.flags
    return said


def _given(path: Path) -> Declared:
    """The declaration of whoever judges. Raises UsageError where it is none."""
    try:
        if not path.is_file():
            raise AnswerFault("missing", f"no {path}")
        return declared_in(path.resolve().parent, path.resolve().name)
    except AnswerFault as fault:
        raise UsageError(f"--declaration: {fault}") from None


def _criterion(folder: Path, question: Question, said: Declared, measures: dict[Any, dict[str, Measure]], one: Grade) -> Criterion:
    """The marks for one case. A failure of the judge itself costs no other case, and is told apart."""
    name, most = question.name, 1 if question.is_object else len(question.wanted)
    try:
        if question.is_object:
            reason = _judge_calls(folder, question)
            return Criterion(name, 0 if reason else most, most, reason)
        usual = _remembered(question, Declared(), measures)                     # the defaults say what counts, whatever is declared
        counting = [result for result, measure in usual.items() if measure.promises]
        most = len(counting)
        lost = _judge_results(folder, question, _remembered(question, said, measures), counting, one.unknown)
        unjudged = [f"{result}: not judged, the defaults promise nothing here" for result in usual if result not in counting]
        return Criterion(name, most - len(lost), most, "; ".join([*lost, *unjudged]))
    except AnswerFault as fault:
        return Criterion(name, 0, most, str(fault))
    except Exception as error:                                                  # ours, not theirs: the rest is still judged
        one.flags.append(f"the judge failed on {name}: {type(error).__name__}: {shown(str(error))}")
        return Criterion(name, 0, most, "the judge failed, see the flags")


def _remembered(question: Question, said: Declared, measures: dict[Any, dict[str, Measure]]) -> dict[str, Measure]:
    """The measures of a question under a declaration, taken once for all who declare the same."""
    if said.key not in measures:
        measures[said.key] = _measures(question, said)
    return measures[said.key]


def _measures(question: Question, said: Declared) -> dict[str, Measure]:
    """What is right for each result, and what may be off by how much. Raises AnswerFault where a declaration gives no bound.

    Where a declared convention wants something else than the oracle's own answer, that is right, to what the oracle itself may be off.
    """
    resolved, usual = question.resolved(said.arithmetic), question.resolved(Arithmetic())
    if question.case.operation not in CHECKED:
        return {name: Measure(question.format_of(name, usual), right, np.zeros(right.hi.shape)) for name, right in question.wanted.items()}
    operation, right = CHECKED[question.case.operation], dict(question.wanted)
    conventions, own = said.conventions_of(operation.name), Declared().conventions_of(operation.name)
    strict = allowed = operation.bound(usual, question.case, conventions)
    if resolved != usual:
        try:
            with np.errstate(all="ignore"):                                     # what is declared may be absurd
                allowed = operation.bound(resolved, question.case, conventions)
        except (ArithmeticError, ValueError) as error:
            raise AnswerFault("no bound", f"what is declared gives none ({shown(str(error))})") from None
    if conventions != own:
        there, here = operation.answer(question.case, own), operation.answer(question.case, conventions)
        oracle = operation.bound(resolved.widened(), question.case, conventions)
        for name, limbs in question.wanted.items():
            other = ~((there[name] == here[name]) | (np.isnan(there[name]) & np.isnan(here[name])))
            right[name] = Limbs(np.where(other, here[name], limbs.hi), np.where(other, 0.0, limbs.lo))
            allowed = {**allowed, name: allowed[name] + np.where(other, oracle[name], 0.0)}
    return {name: Measure(question.format_of(name, resolved), limbs, allowed[name],
                          _zeros_would_do(limbs, allowed[name], strict[name])) for name, limbs in right.items()}  # fmt: skip


def _zeros_would_do(right: Limbs, allowed: Float64, strict: Float64) -> bool:
    """Whether a declaration lets zeros pass where the defaults do not: then a pass would show nothing."""
    nothing = np.zeros(right.hi.shape)
    return allowed.size > 0 and compared("", nothing, right, strict).failed and not compared("", nothing, right, allowed).failed


def compared(name: str, got: Array, right: Limbs, allowed: Float64) -> Comparison:
    """One result against hi + lo. got - hi is exact within a factor 2 of hi (Sterbenz 1974), and rounds by 2^-53 of itself further off.

    Infinities and NaN want themselves. Elements with allowed = inf are not promised, and not compared.
    """
    g, finite = np.asarray(got, dtype=np.float64), np.isfinite(right.hi)
    with np.errstate(over="ignore", invalid="ignore"):
        rest, wanted = np.where(finite, g - np.where(finite, right.hi, 0.0), g), np.where(finite, right.lo, right.hi)
    promised = ~np.isposinf(allowed)
    left_out = int(allowed.size) - int(promised.sum())
    if not promised.any():
        return Comparison(name, 0, left_out, 0.0, None)
    ratio = np.where(promised, ratios(rest, wanted, allowed), -1.0)
    at = tuple(int(i) for i in np.unravel_index(int(ratio.argmax()), ratio.shape))
    return Comparison(name, int(promised.sum()), left_out, float(ratio[at]), at, float(g[at]), float(right.hi[at]), float(allowed[at]))


def _judge_results(folder: Path, question: Question, measures: Mapping[str, Measure], counting: Sequence[str],
                   unknown: dict[str, list[str]]) -> list[str]:  # fmt: skip
    """Why the counting results lose points, one reason a point. Raises AnswerFault where the file cannot be read."""
    file = f"{ANSWERS}/{question.file}"
    tensors = tensors_of(folder, file, HEADER_ROOM + 8 * sum(measure.right.hi.size for measure in measures.values()))
    surplus_names = shown(", ".join(shown(name) for name in tensors if name not in measures))
    if surplus_names:
        unknown.setdefault(surplus_names, []).append(question.file)
    told = (_fault(name, tensors.get(name), measures[name]) for name in counting)
    return [reason for reason in told if reason]


def _fault(name: str, got: Array | None, measure: Measure) -> str:
    """What is wrong with one result, or "". A result without elements is right if its dtype and shape are."""
    if got is None:
        return f"{name}: not in the file"
    if got.shape != measure.right.hi.shape:
        return f"{name}: got shape {got.shape}; want {measure.right.hi.shape}"
    if not is_of_format(got.dtype, measure.format):
        return f"{name}: got dtype {got.dtype}; want {measure.format}, or another declaration"
    comparison = compared(name, got, measure.right, measure.allowed)
    if comparison.failed:
        return str(comparison)
    if measure.zeros_would_do:
        return f"{name}: what is declared would let zeros pass too"
    if not measure.promises:
        return f"{name}: what is declared promises nothing for any element"
    return ""


def _judge_calls(folder: Path, question: Question) -> str:
    """Why the calls on an object earn no point, or "". Raises AnswerFault where the file cannot be read."""
    file = f"{ANSWERS}/{question.file}"
    right = [{"raises": step.raises} if step.raises else {"answer": plain(step.answer)} for step in question.calls]
    content = json_of(folder, file, HEADER_ROOM + 16 * len(_text(right)))
    got = content.get("calls") if isinstance(content, dict) else None
    if not isinstance(got, list) or len(got) != len(right):
        had = f"{len(got)} calls" if isinstance(got, list) else "no calls"
        return f"{had}; want {{\"calls\": […]}} with {len(right)}"
    for number, (mine, theirs) in enumerate(zip(right, got)):
        if not _alike(mine, theirs):
            call, arguments = question.calls[number].call, shown(_text(plain(question.calls[number].arguments)))
            return f"call {number}, {call}({arguments}): got {shown(_text(theirs))}; want {shown(_text(mine))}"
    return ""


def _alike(mine: Any, theirs: Any) -> bool:
    """Whether an answer is the right one. 1 is neither true nor 1.0; but 1.0 may be 1, since some languages write it so."""
    if isinstance(mine, dict):
        return isinstance(theirs, dict) and mine.keys() == theirs.keys() and all(_alike(mine[name], theirs[name]) for name in mine)
    if isinstance(mine, list):
        return isinstance(theirs, list) and len(mine) == len(theirs) and all(map(_alike, mine, theirs))
    if isinstance(mine, float):
        return type(theirs) in (int, float) and bool(mine == theirs)
    return type(mine) is type(theirs) and bool(mine == theirs)


def _text(content: Any) -> str:
    """JSON in one spelling."""
    return json.dumps(content, sort_keys=True)
