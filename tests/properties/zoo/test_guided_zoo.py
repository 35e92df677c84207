"""Mutants and variants of guided decoding: every report has one, all die by a law, no variant is accused."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from oracles.properties.checker import check
from oracles.properties.zoo import keeper
from oracles.properties.zoo.specimen import Specimen
from oracles.properties.zoo.textbook_guide import Guide, by_text, nullable, parsed
from oracles.reference import compile_regex

# Who dies of what, on the designed walks: the law that speaks of the fault.
DEATHS = {
    "token-id-narrowed-to-32-bit": "forbidden_tokens_raise_ValueError",
    "guided-fill-after-terminate": "every_row_of_a_draft_has_a_mask_of_its_own",
    "stop-at-first-accepting-state": "equal_quotients_have_equal_masks",
    "guided-mask-stale-inside-draft-window": "every_row_of_a_draft_has_a_mask_of_its_own",
    "guided-draft-tokens-not-validated": "a_draft_ends_before_its_first_forbidden_token",
    "eos-consumed-state-not-advanced-in-batch": "masks_agree_with_the_oracle",
    "bitmask-narrower-than-the-vocabulary": "eos_exactly_where_the_text_is_in_the_language",
}
FOUND = {s.id: s for s in keeper.inhabitants(("guided",))}
MUTANTS = [s for s in FOUND.values() if s.kind == "mutant"]
VARIANTS = [s for s in FOUND.values() if s.kind == "variant"]


def named(specimens: list[Specimen]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("specimen", specimens, ids=[s.id for s in specimens])


def test_every_report_has_one_mutant() -> None:
    assert {s.id for s in MUTANTS} == set(DEATHS)


def test_there_are_six_variants_or_more() -> None:
    assert len(VARIANTS) >= 6


@named(MUTANTS)
def test_its_source_is_an_address_and_its_fault_a_sentence(specimen: Specimen) -> None:
    assert all(re.fullmatch(r"https://github\.com/\S+/(issues|pull)/\d+", address) for address in specimen.source.split())
    assert specimen.fault.endswith(".")


@named(MUTANTS)
def test_it_breaks_a_law_on_its_own_trigger_and_the_oracle_none(specimen: Specimen) -> None:
    assert keeper.why_invalid(specimen) == ""


@named(MUTANTS)
def test_it_dies_of_the_law_that_speaks_of_its_fault(specimen: Specimen) -> None:
    fate = keeper.fate_of(specimen, budget="quick")
    assert (fate.status, fate.law) == ("killed", DEATHS[specimen.id])


@named(VARIANTS)
def test_no_law_accuses_it(specimen: Specimen) -> None:
    fate = keeper.fate_of(specimen, budget="quick")
    assert (fate.status, fate.law, fate.reason) == ("lives", "", "")


@pytest.mark.long
@named(VARIANTS)
def test_no_law_accuses_it_on_random_walks(specimen: Specimen) -> None:
    fate = keeper.fate_of(specimen, budget="default", seed=1)
    assert (fate.status, fate.law, fate.reason) == ("lives", "", "")


@pytest.mark.parametrize("pattern", ["a*", "(ab|a)b?", "[^a]b{1,2}|", "(a|b)*a(a|b){2}", "(?:a{2,}|b)+", r"\w|", "a{0,2}b"])
def test_the_textbook_matches_as_python_does(pattern: str) -> None:
    for n in range(6):
        for characters in itertools.product("ab", repeat=n):
            text = "".join(characters)
            assert nullable(by_text(parsed(pattern), text)) == bool(re.fullmatch(pattern, text)), text


def test_the_textbook_looks_ahead_in_tokens() -> None:
    assert Guide("ab|c", ["a", "c", "<eos>"], eos=2).token_mask(parsed("ab|c")).tolist() == [False, True, False]


@pytest.mark.parametrize(("written", "read", "pattern"), [
    (r"\s", "[ \t\n]", r"\s{2,}-"), ("{2,}", "{2}", r"\s{2,}-"),
    (r"\D", "[^0-9\n]", r"\D\W[^a][1_a]{2,}"), ("[^", "[^\n", r"\D\W[^a][1_a]{2,}"),
])  # fmt: skip
def test_a_guide_that_reads_a_part_of_the_pattern_language_otherwise_is_found(written: str, read: str, pattern: str) -> None:
    """Spaces without the rare ones, negated classes without the line feed, an open repetition as an exact one."""
    def misread(text: str, vocabulary: Sequence[str], *, eos: int) -> Any:
        return compile_regex(text.replace(written, read) if text == pattern else text, vocabulary, eos=eos)

    report = check("token_mask", misread, budget=0, in_process=True, laws=("masks_agree_with_the_oracle",))
    assert not report.held


@pytest.mark.parametrize("hidden", [lambda text: len(text) > 32, lambda text: text.startswith("<") and text.endswith(">")])
def test_a_guide_that_never_allows_some_texts_is_found(hidden: Callable[[str], bool]) -> None:
    """Long tokens, and those that look like tags."""
    class Hiding(Guide):
        def token_mask(self, state: Any) -> Any:
            mask = np.array(super().token_mask(state))
            return mask & ~np.array([hidden(text) and i != self.eos for i, text in enumerate(self.vocabulary)])

    assert not check("token_mask", Hiding, budget=0, in_process=True, laws=("masks_agree_with_the_oracle",)).held
