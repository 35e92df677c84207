"""Guides held to the automaton: the oracle keeps every law, each law is broken by something, failures are small and replay alone."""

from __future__ import annotations

import doctest
import importlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oracles.properties import UsageError
from oracles.properties.report import FAILED, HELD, NOT_COVERED, Report
from oracles.properties.stateful.checker import check_object
from oracles.properties.stateful.guide_laws import GUIDE_LAWS
from oracles.properties.stateful.guide_model import A_DOT, GuideModel
from oracles.properties.stateful.guide_sequences import DESIGNED, drawn_call, drawn_new, in_bounds, new
from oracles.properties.stateful.guide_walker import GuideWalker
from oracles.properties.stateful.sequence import NEW, Call
from oracles.properties.stateful.token_mask import TOKEN_MASK
from oracles.reference import compile_regex


def test_the_oracle_keeps_every_law() -> None:
    report = check_object("token_mask", compile_regex, budget=25)
    assert {verdict.law: verdict.status for verdict in report.verdicts} == dict.fromkeys((law.name for law in GUIDE_LAWS), HELD)
    assert all(verdict.compared for verdict in report.verdicts)
    assert report.not_covered == ()


class Guide:
    """The oracle, with states of its own that no plain data can hold; each broken one changes one thing."""

    def __init__(self, pattern: str, vocabulary: list[str], *, eos: int) -> None:
        self.inner = compile_regex(pattern, vocabulary, eos=eos)
        self.vocabulary, self.eos = vocabulary, eos
        self.start: Any = frozenset({self.inner.start})

    def token_mask(self, state: Any) -> Any:
        return self.inner.token_mask(next(iter(state)))

    def advance(self, state: Any, token: int) -> Any:
        return frozenset({self.inner.advance(next(iter(state)), token)})

    def draft_masks(self, state: Any, draft: list[int]) -> Any:
        return self.inner.draft_masks(next(iter(state)), draft)


class Wrong(Guide):
    """The mask is one entry short."""

    def token_mask(self, state: Any) -> Any:
        return super().token_mask(state)[:-1]


class Numbers(Guide):
    """The mask is of numbers."""

    def token_mask(self, state: Any) -> Any:
        return super().token_mask(state).astype(np.int64)


class NoEosWhereMoreCanFollow(Guide):
    def token_mask(self, state: Any) -> Any:
        mask = super().token_mask(state)
        mask[self.eos] &= mask.sum() == 1
        return mask


class GoesOnBehindEos(Guide):
    def advance(self, state: Any, token: int) -> Any:
        after = super().advance(state, token)
        return state if token == self.eos else after


class EmptyTokens(Guide):
    def token_mask(self, state: Any) -> Any:
        return super().token_mask(state) | np.array([not text for text in self.vocabulary])


class RefusesLongTokens(Guide):
    def advance(self, state: Any, token: int) -> Any:
        if 0 <= token < self.eos and len(self.vocabulary[token]) > 2:
            raise ValueError("too long")
        return super().advance(state, token)


class NegativeNumbersCountFromTheEnd(Guide):
    def advance(self, state: Any, token: int) -> Any:
        return super().advance(state, token % len(self.vocabulary) if token < 0 else token)


class RaisesKeyError(Guide):
    def advance(self, state: Any, token: int) -> Any:
        try:
            return super().advance(state, token)
        except ValueError:
            raise KeyError(token) from None


class LooksAheadAtTheStartAlone(Guide):
    """Later it takes what characters could complete, whether the vocabulary has them or not."""

    def __init__(self, pattern: str, vocabulary: list[str], *, eos: int) -> None:
        super().__init__(pattern, vocabulary, eos=eos)
        self.inner = compile_regex(pattern, vocabulary, eos=eos, dead_ends="characters")
        self.ahead = compile_regex(pattern, vocabulary, eos=eos)

    def token_mask(self, state: Any) -> Any:
        return self.ahead.token_mask(0) if state == self.start else super().token_mask(state)


class OneState(Guide):
    """The object is its state: advancing moves it, whatever state it was asked to advance from."""

    def __init__(self, pattern: str, vocabulary: list[str], *, eos: int) -> None:
        super().__init__(pattern, vocabulary, eos=eos)
        self.now = self.start

    def token_mask(self, state: Any) -> Any:
        return super().token_mask(self.now)

    def advance(self, state: Any, token: int) -> Any:
        self.now = super().advance(state, token)
        return self.now


class RemembersHowItCame(Guide):
    """Behind a token of several characters, the last token is not allowed again."""

    def __init__(self, pattern: str, vocabulary: list[str], *, eos: int) -> None:
        super().__init__(pattern, vocabulary, eos=eos)
        self.start = (self.start, None)

    def token_mask(self, state: Any) -> Any:
        mask = super().token_mask(state[0])
        if state[1] is not None and len(self.vocabulary[state[1]]) > 1:
            mask[state[1]] = False
        return mask

    def advance(self, state: Any, token: int) -> Any:
        return super().advance(state[0], token), None if token == self.eos else token

    def draft_masks(self, state: Any, draft: list[int]) -> Any:
        return super().draft_masks(state[0], draft)


class OneRowForAll(Guide):
    def draft_masks(self, state: Any, draft: list[int]) -> Any:
        rows = super().draft_masks(state, draft)
        return np.stack([rows[0]] * len(rows))


class DropsTheBonusRow(Guide):
    def draft_masks(self, state: Any, draft: list[int]) -> Any:
        rows = super().draft_masks(state, draft)
        return rows[: max(1, len(rows) - 1)]


class ForbidsTheLastToken(Guide):
    def token_mask(self, state: Any) -> Any:
        mask = super().token_mask(state)
        mask[self.eos - 1] = False
        return mask


BROKEN: list[tuple[str, Callable[..., Any]]] = [
    ("answers", Wrong),
    ("answers", Numbers),
    ("eos_exactly_where_the_text_is_in_the_language", NoEosWhereMoreCanFollow),
    ("after_eos_only_eos", GoesOnBehindEos),
    ("empty_tokens_never", EmptyTokens),
    ("allowed_tokens_advance", RefusesLongTokens),
    ("forbidden_tokens_raise_ValueError", NegativeNumbersCountFromTheEnd),
    ("forbidden_tokens_raise_ValueError", RaisesKeyError),
    ("no_dead_end_is_entered", LooksAheadAtTheStartAlone),
    ("states_are_values", OneState),
    ("equal_texts_have_equal_masks", RemembersHowItCame),
    ("equal_quotients_have_equal_masks", RemembersHowItCame),
    ("every_row_of_a_draft_has_a_mask_of_its_own", OneRowForAll),
    ("a_draft_ends_before_its_first_forbidden_token", DropsTheBonusRow),
    ("masks_agree_with_the_oracle", ForbidsTheLastToken),
]


def verdict_on(report: Report, law: str) -> Any:
    return next(verdict for verdict in report.verdicts if verdict.law == law)


@pytest.mark.parametrize(("law", "guide"), BROKEN, ids=[f"{law}-{guide.__name__}" for law, guide in BROKEN])
def test_every_law_can_fail(law: str, guide: Callable[..., Any]) -> None:
    verdict = verdict_on(check_object("token_mask", guide, budget="quick", laws=(law,)), law)
    assert verdict.status == FAILED, verdict
    assert "could not be shrunk" not in verdict.reason


def test_every_law_is_among_those_that_fail() -> None:
    assert {law for law, _ in BROKEN} == {law.name for law in GUIDE_LAWS}


def test_states_of_any_kind_are_taken() -> None:
    assert check_object("token_mask", Guide, budget="quick").held


def by_characters(pattern: str, vocabulary: list[str], *, eos: int) -> Any:
    return compile_regex(pattern, vocabulary, eos=eos, dead_ends="characters")


def test_dead_ends_by_characters_are_told_by_trying_and_judged_so() -> None:
    report = check_object("token_mask", by_characters, budget=25)
    assert report.held
    assert any(line.startswith("dead ends of the vocabulary") for line in report.not_covered)
    assert verdict_on(report, "no_dead_end_is_entered").status == NOT_COVERED


def dot_takes_all(pattern: str, vocabulary: list[str], *, eos: int) -> Any:
    return compile_regex(A_DOT.sub(lambda found: found[1] or "(?:.|\n)", pattern), vocabulary, eos=eos)


def test_a_dot_that_takes_the_line_feed_is_told_by_trying_and_judged_so() -> None:
    report = check_object("token_mask", dot_takes_all, budget="quick")
    assert report.held
    assert any(line.startswith("the line feed behind a dot") for line in report.not_covered)


def test_dots_of_other_kinds_are_left_alone() -> None:
    assert A_DOT.sub(lambda found: found[1] or "!", r"a.\.[.\]]\\.[^.]") == r"a!\.[.\]]\\![^.]"


def test_a_failure_is_the_smallest_walk(tmp_path: Path) -> None:
    verdict = verdict_on(check_object("token_mask", NegativeNumbersCountFromTheEnd, budget="quick", failures=tmp_path),
                         "forbidden_tokens_raise_ValueError")  # fmt: skip
    assert verdict.case.count("advance") == 1
    assert verdict.counterexample is not None


LIVING = """
class Guide:
    start = ()
    def __init__(self, pattern, vocabulary, eos):
        self.size = len(vocabulary)
    def token_mask(self, state):
        import numpy
        return numpy.ones(self.size, bool)
    def advance(self, state, token):
        return (*state, token)
"""


def test_a_failure_replays_without_us(tmp_path: Path) -> None:
    """Its repro loads nothing of this package: model, laws and automaton lie beside it."""
    subject = tmp_path / "living.py"
    subject.write_text(LIVING)
    report = check_object("token_mask", f"{subject}:Guide", budget="quick", failures=tmp_path / "failures", laws=("empty_tokens_never",))
    folder = Path(str(verdict_on(report, "empty_tokens_never").counterexample))
    unloadable = ("import runpy, sys; sys.modules['oracles'] = None; sys.argv = [sys.argv[1]]; "
                  "runpy.run_path(sys.argv[0], run_name='__main__')")  # fmt: skip
    ended = subprocess.run([sys.executable, "-c", unloadable, str(folder / "repro.py")], capture_output=True, text=True, cwd=tmp_path)
    assert ended.returncode == 1, ended.stderr
    assert ended.stdout.startswith("empty_tokens_never: state 0")


def test_a_peer_that_is_not_installed_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "xgrammar", None)
    with pytest.raises(UsageError, match=r"xgrammar cannot be imported .*; want it: pip install 'oracles\[guided\]'"):
        check_object("token_mask", "peers:xgrammar", in_process=True)


def test_a_guide_without_the_three_is_refused() -> None:
    with pytest.raises(UsageError, match="the guide has no start"):
        check_object("token_mask", lambda pattern, vocabulary, eos: object())


def test_a_state_that_was_not_met_is_none() -> None:
    walker = GuideWalker(compile_regex, "a*", ["a", "<eos>"], 1)
    with pytest.raises(LookupError, match="no state 1"):
        walker.token_mask(1)


@pytest.mark.parametrize("name", DESIGNED)
def test_designed_walks_are_in_bounds_and_go_somewhere(name: str) -> None:
    calls = DESIGNED[name]
    assert calls[0].method == NEW
    assert len(calls) > 1
    assert all(map(in_bounds, calls[1:]))
    compile_regex(*calls[0].args[:2], eos=calls[0].args[2])


def test_drawn_walks_are_of_what_the_contract_speaks_of() -> None:
    draw = np.random.default_rng(0)
    lacking = 0
    for _ in range(300):
        first = drawn_new(tuple(draw.integers(0, 2**12, 3).tolist()), frozenset())
        assert in_bounds(first)
        lacking += not {"a", "b", "c"} <= set(first.args[1])
        model = GuideModel(first, frozenset({"tokens", "dot"}))
        model.looks(first)
        model.follow(first, *_returned())
        for method in ("advance", "draft_masks"):
            call = drawn_call(method, tuple(draw.integers(0, 2**12, 3).tolist()), model, frozenset())
            assert isinstance(call, Call)
            assert in_bounds(call)
    assert 20 < lacking < 150


def _returned() -> tuple[Any, list[Any]]:
    from oracles.properties.stateful.sequence import RETURNED, Answer

    return Answer(RETURNED), []


def test_a_pattern_that_no_tokens_complete_is_out_of_bounds() -> None:
    assert not in_bounds(new("ab", "a"))
    assert not in_bounds(Call(NEW, ("a", ("a", "b"), 1)))


def test_the_operation_names_its_parts() -> None:
    assert TOKEN_MASK.oracle is compile_regex
    assert set(TOKEN_MASK.weights) == {"advance", "draft_masks"}


@pytest.mark.parametrize("name", ["guide_walker", "guide_sequences"])
def test_the_examples_print_what_they_say(name: str) -> None:
    result = doctest.testmod(importlib.import_module(f"oracles.properties.stateful.{name}"))
    assert result.attempted > 0
    assert result.failed == 0
