"""Sequence run: sequences put to one object subject, and what each law has found so far. What is made of it is `stateful`'s business."""

from __future__ import annotations

import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

from .operation import StatefulOperation
from .play import Play, SequenceLaw, broken
from .sequence import DIED, HUNG, NEW, Call, Sequence
from .subjects import ObjectSubject

DEATHS = 12                                                                     # each costs the start of a process
STEPS = 30                                                                      # calls of a random sequence
CLOSING = 50                                                                    # more than any sequence needs to be ended


@dataclass
class SequenceTally:
    """One law over a run. failure: the calls up to the one after which it was broken, and what was wrong."""

    law: SequenceLaw
    not_covered: str = ""
    cases: int = 0
    compared: int = 0
    failure: tuple[Sequence, str] | None = None
    random: bool = False
    error: str = ""

    @property
    def open(self) -> bool:
        return not self.not_covered and self.failure is None and not self.error


@dataclass
class SequenceRun:
    """Everything a run carries from sequence to sequence."""

    operation: StatefulOperation
    subject: ObjectSubject
    abilities: frozenset[str]
    tallies: list[SequenceTally]
    deaths: int = 0
    refusals: list[str] = field(default_factory=list)
    stopped: str = ""
    deadline: float | None = None
    sequences: int = 0

    @property
    def over(self) -> bool:
        late = self.deadline is not None and time.monotonic() > self.deadline
        return bool(self.stopped) or late or not any(tally.open for tally in self.tallies)


def begin(operation: StatefulOperation, subject: ObjectSubject, laws: tuple[str, ...] | None = None) -> SequenceRun:
    """A run in which nothing has been judged yet. laws: names of those to judge; None: all."""
    abilities = set(subject.abilities)
    for probe in operation.probes:
        answers = subject.speak(list(operation.covered(probe.calls, subject.abilities)))
        abilities |= {probe.ability} if probe.shows(answers) else set()
    tallies = [SequenceTally(law, _not_covered(law, operation, abilities)) for law in operation.laws if laws is None or law.name in laws]
    return SequenceRun(operation, subject, frozenset(abilities), tallies)


def _not_covered(law: SequenceLaw, operation: StatefulOperation, abilities: set[str]) -> str:
    without = {probe.ability: probe.without for probe in operation.probes}
    missing = [name for name in law.needs if name not in abilities]
    return "; ".join(without.get(name) or _lacking(*name.partition(".")[::2]) for name in missing)


def _lacking(method: str, argument: str) -> str:
    if not argument:
        return f"the subject has no {method}"
    return f"the subject's {'constructor' if method == NEW else method} takes no {argument}"


class Session:
    """One sequence put to the subject, judged after every call. It ends at the first broken law, and when the model is lost."""

    def __init__(self, run: SequenceRun, new: Call, *, random: bool = False) -> None:
        self.run, self._random = run, random
        run.sequences += 1
        self.play = Play(run.operation.model(new, run.abilities), run.subject.speak)
        self._judged = [tally for tally in run.tallies if tally.open]
        self._counted: set[str] = set()
        self.do(new)

    @property
    def over(self) -> bool:
        return self.play.over or self.run.over

    def do(self, call: Call) -> None:
        """Make one call and let every open law judge what came of it."""
        if self.over:
            return
        try:
            moment = self.play.do(call)
            found = {} if moment is None else broken([tally.law for tally in self._judged], moment)
        except Exception as error:                                              # ours: the subject's own never get here
            where = traceback.format_exc(limit=-3)
            for tally in self._judged:
                tally.error = f"the checker itself failed after {call}: {type(error).__name__}: {error}\n{where}"
            self.play.over = True
            return
        if moment is None:
            self.run.refusals.append(self.play.refusal)
        elif moment.defect and moment.answer.kind in (DIED, HUNG):
            self._note_death(moment.answer.kind, moment.defect)
        for tally in self._judged:
            if tally.law.name in found:
                self._tell(tally, found[tally.law.name].compared, found[tally.law.name].wrong)

    def finish(self) -> None:
        """Make the closing calls."""
        for _ in range(CLOSING):
            call = None if self.over else self.play.model.closing()
            if call is None:
                return
            self.do(call)

    def _tell(self, tally: SequenceTally, compared: int, wrong: str) -> None:
        tally.compared += compared
        if compared and tally.law.name not in self._counted:
            self._counted.add(tally.law.name)
            tally.cases += 1
        if wrong:
            tally.failure, tally.random = (tuple(self.play.performed), wrong), self._random
            self.play.over = True

    def _note_death(self, kind: str, message: str) -> None:
        self.run.deaths += 1
        if kind == HUNG:
            self.run.stopped = f"stopped: the subject hung: {message}"
        elif self.run.deaths >= DEATHS:
            self.run.stopped = f"stopped: the subject's process ended {self.run.deaths} times, the last time: {message}"


def put(run: SequenceRun, calls: Sequence) -> None:
    """Put one sequence to the subject, and end it."""
    session = Session(run, calls[0])
    for call in calls[1:]:
        session.do(call)
    session.finish()


def draw_sequences(run: SequenceRun, count: int, seed: int, after: Callable[[Session, bool], None]) -> None:
    """Put `count` sequences to the subject that a rule-based state machine of Hypothesis draws call by call, following the model.

    after(session, ended) is called after every call, and once more when the sequence is ended. Nothing is stored, timed or printed.
    Hypothesis does not shrink: it knows draws, not calls, and took a minute for what `shrinking` does better in one second.
    """
    import hypothesis
    from hypothesis import HealthCheck, Phase, Verbosity, settings
    from hypothesis.configuration import set_hypothesis_home_dir
    from hypothesis.stateful import run_state_machine_as_test

    if count == 0:
        return
    with tempfile.TemporaryDirectory() as home:
        set_hypothesis_home_dir(home)                                           # otherwise a folder appears where the user works
        try:
            explicit = settings(max_examples=count, stateful_step_count=STEPS, database=None, deadline=None, phases=[Phase.generate],
                                derandomize=False, print_blob=False, report_multiple_bugs=False, verbosity=Verbosity.quiet,
                                suppress_health_check=list(HealthCheck))  # fmt: skip
            run_state_machine_as_test(cast(Any, hypothesis).seed(seed)(_machine(run, after)), settings=explicit)
        except hypothesis.errors.Flaky:                                         # `after` knows of it
            pass
        finally:
            set_hypothesis_home_dir(None)


def _machine(run: SequenceRun, after: Callable[[Session, bool], None]) -> type[Any]:
    """The state machine of an operation: rules for each method that the subject has, as many as it is to be drawn often."""
    from hypothesis import strategies as st
    from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

    operation, abilities = run.operation, run.abilities
    number = st.integers(0, 2**12 - 1)

    class Machine(RuleBasedStateMachine):
        session: Session | None = None

        @initialize(a=number, b=number, c=number)
        def begin(self, a: int, b: int, c: int) -> None:
            self.session = Session(run, operation.drawn_new((a, b, c), abilities), random=True)
            after(self.session, False)

        def teardown(self) -> None:
            if self.session is not None:
                self.session.finish()
                after(self.session, True)

    def step_of(method: str, name: str) -> Callable[..., None]:
        def step(self: Any, a: int, b: int, c: int) -> None:
            if not self.session.over:
                self.session.do(operation.drawn_call(method, (a, b, c), self.session.play.model, abilities))
                after(self.session, False)

        step.__name__ = step.__qualname__ = name
        return step

    for method in operation.weights:
        if method in abilities:
            for turn in range(operation.weights[method]):
                name = f"{method}_{turn}"
                setattr(Machine, name, rule(a=number, b=number, c=number)(step_of(method, name)))
    return Machine
