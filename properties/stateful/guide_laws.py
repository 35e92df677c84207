"""Laws of guided decoding: what every mask and every step must be, whatever the guide's states are made of.

They need nothing but NumPy and their neighbours, so that a repro can carry a copy.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .guide_model import BY_TOKENS, GuideMoment
from .play import SILENT, Found, SequenceLaw, answers, sequence_law
from .sequence import RAISED


def _told(m: GuideMoment, number: int, token: int, what: str) -> str:
    place = m.model.places[number]
    return (f"state {number}, after {place.text!r}{' and eos' if m.model.eos in place.tokens else ''}, {what} "
            f"token {token}, {m.model.vocabulary[token]!r}{' (eos)' if token == m.model.eos else ''}")  # fmt: skip


def _differing(m: GuideMoment, tokens: Any, done: bool | None = None) -> Found:
    """That masks are what they must be for some tokens, at states after eos, before it, or (None) all."""
    compared = 0
    for number, mask in m.masks.items():
        if done is not None and done != (m.model.eos in m.model.places[number].tokens):
            continue
        compared += len(tokens)
        wrong = [token for token in tokens if mask[token] != m.wanted[number][token]]
        if wrong:
            return Found(compared, _told(m, number, wrong[0], "allows" if mask[wrong[0]] else "forbids"))
    return Found(compared)


@sequence_law()
def eos_exactly_where_the_text_is_in_the_language(m: GuideMoment) -> Found:
    """token_mask(s)[eos] holds iff the whole text so far matches the pattern: not earlier, and not only where nothing longer does."""
    return _differing(m, [m.model.eos], done=False)


@sequence_law()
def after_eos_only_eos(m: GuideMoment) -> Found:
    """Once eos was taken, the mask holds eos and nothing else, whatever the text could have gone on with."""
    return _differing(m, range(len(m.model.vocabulary)), done=True)


@sequence_law()
def empty_tokens_never(m: GuideMoment) -> Found:
    """A token without text is never allowed: it changes nothing, and could be taken for ever. eos alone may have no text."""
    return _differing(m, [t for t, text in enumerate(m.model.vocabulary) if not text and t != m.model.eos])


@sequence_law()
def masks_agree_with_the_oracle(m: GuideMoment) -> Found:
    """token_mask(s)[t] holds iff some continuation of the text so far and t is in the language.

    The continuation is made of tokens of the vocabulary; of any characters, where the guide takes no account of what that lacks.
    """
    return _differing(m, range(len(m.model.vocabulary)))


@sequence_law()
def allowed_tokens_advance(m: GuideMoment) -> Found:
    """advance takes every token that the language allows, from every state, whatever was done from there before."""
    if m.place is None or not m.allowed:
        return SILENT
    return Found(1, "" if m.returned else f"{m.call} raised {m.answer.message}, after {m.place.text!r}")


@sequence_law()
def forbidden_tokens_raise_ValueError(m: GuideMoment) -> Found:
    """advance raises ValueError for a token that the language forbids there, and for a number that is no token, however large."""
    if m.place is None or m.allowed:
        return SILENT
    said = f"{m.call} returned" if m.returned else f"{m.call} raised {m.answer.message}"
    return Found(1, "" if m.answer.kind == RAISED and m.answer.raised("ValueError") else f"{said}, after {m.place.text!r}; want ValueError")


@sequence_law(BY_TOKENS)
def no_dead_end_is_entered(m: GuideMoment) -> Found:
    """Every state that advance leads to allows some token: a sequence of this vocabulary's tokens can always be ended."""
    if m.returned and m.entered is not None and not m.entered.any():
        return Found(len(m.masks) + 1, f"{m.call} led to a state that allows nothing, after {m.place.text if m.place else ''!r}")
    for number, mask in m.masks.items():
        if not mask.any():
            return Found(len(m.masks), f"state {number}, after {m.model.places[number].text!r}, allows nothing")
    return Found(len(m.masks))


@sequence_law()
def equal_texts_have_equal_masks(m: GuideMoment) -> Found:
    """A text has one mask, in whatever tokens it came: a token of several characters is those characters one after another."""
    return _equal(m, lambda place: (place.text, m.model.eos in place.tokens), "the same text")


@sequence_law()
def equal_quotients_have_equal_masks(m: GuideMoment) -> Found:
    """Two texts that the same continuations complete have the same mask: nothing else of the past counts."""
    return _equal(m, lambda place: place.state, "a text with the same continuations")


def _equal(m: GuideMoment, key: Any, what: str) -> Found:
    kept: dict[Any, int] = {}
    compared = 0
    for number, mask in m.masks.items():
        other = kept.setdefault(key(m.model.places[number]), number)
        if other == number:
            continue
        compared += len(mask)
        differs = np.flatnonzero(mask != m.masks[other])
        if len(differs):
            told = _told(m, number, int(differs[0]), "allows" if mask[differs[0]] else "forbids")
            return Found(compared, f"{told}, and state {other} of {what}, {m.model.places[other].text!r}, does not")
    return Found(compared)


@sequence_law()
def states_are_values(m: GuideMoment) -> Found:
    """The mask of a state never changes: advancing from it, or along other branches, is no part of it. Going back is keeping it."""
    compared = 0
    for number, mask in m.masks.items():
        compared += len(mask)
        if (mask != m.first[number]).any():
            token = int(np.flatnonzero(mask != m.first[number])[0])
            return Found(compared, f"{_told(m, number, token, 'allows' if mask[token] else 'forbids')} since {m.call}, and did not before")
    return Found(compared)


@sequence_law("draft_masks")
def every_row_of_a_draft_has_a_mask_of_its_own(m: GuideMoment) -> Found:
    """draft_masks(s, draft)[j] is the mask after draft[:j], for each j up to the first forbidden draft token, the bonus row too."""
    if m.wanted_rows is None:
        return SILENT
    n = min(len(m.rows), len(m.wanted_rows))
    differs = np.argwhere(m.rows[:n] != m.wanted_rows[:n])
    if len(differs):
        row, token = map(int, differs[0])
        does = "allows" if m.rows[row, token] else "forbids"
        return Found(n, f"row {row} of {m.call} {does} token {token}, {m.model.vocabulary[token]!r}")
    return Found(n)


@sequence_law("draft_masks")
def a_draft_ends_before_its_first_forbidden_token(m: GuideMoment) -> Found:
    """draft_masks has one row more than leading draft tokens that the language allows: a forbidden one and what follows are not there."""
    if m.wanted_rows is None:
        return SILENT
    got, want = len(m.rows) - 1, len(m.wanted_rows) - 1
    return Found(1, f"{m.call} takes {got} tokens of the draft; the language allows {want}" if got != want else "")


GUIDE_LAWS: tuple[SequenceLaw, ...] = (
    answers,
    eos_exactly_where_the_text_is_in_the_language,
    after_eos_only_eos,
    empty_tokens_never,
    allowed_tokens_advance,
    forbidden_tokens_raise_ValueError,
    no_dead_end_is_entered,
    states_are_values,
    equal_texts_have_equal_masks,
    equal_quotients_have_equal_masks,
    every_row_of_a_draft_has_a_mask_of_its_own,
    a_draft_ends_before_its_first_forbidden_token,
    masks_agree_with_the_oracle,
)
