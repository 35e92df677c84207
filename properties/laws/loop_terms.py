"""Terms of the laws of generation loops: sizes of a case, what is left of its tables, and the law of the rule as fractions."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from ..case import Case
from ..enumeration import Distribution, Model, Tokens
from ..enumeration import Law as TokenLaw
from ..exact_law import emission_law
from ..safetensors_file import Array


def drafts_of(case: Case) -> str:
    """The argument that holds the tables of the drafts."""
    return "draft" if case.operation == "speculative_loop" else "heads"


def sizes(case: Case) -> tuple[int, int, int, int]:
    """B, N, k, V."""
    B, N, width = case.arrays["uniforms"].shape
    return B, N, (width - 1) // 2, len(case.arrays["target"])


def processed(case: Case, name: str = "target") -> Array:
    """A table of laws, its forbidden tokens taken out: (..., V, V, V)."""
    p = case.arrays[name].astype(np.float64)
    if "forbidden" not in case.arrays:
        return p
    left = np.where(case.arrays["forbidden"], 0.0, p)
    left = np.where(left.any(axis=-1, keepdims=True), left, p)
    return np.asarray(left / left.sum(axis=-1, keepdims=True))


def model_of(table: Array, text: Tokens) -> Model:
    """A table as the law of what comes after a text and a context behind it."""
    def model(context: Tokens) -> Distribution:
        whole = (0, *text, *context)
        return [Fraction(p) for p in table[whole[-2], whole[-1]].tolist()]

    return model


def _by_depth(heads: Array, text: Tokens) -> Model:
    """Own heads as a draft: the law of a context is that of the head of its depth."""
    return lambda context: model_of(heads[len(context)], text)(context)


def rule(case: Case) -> TokenLaw:
    """The law of tokens and numbers accepted together, as fractions: pass after pass that of `emission_law`."""
    _, N, k, _ = sizes(case)
    p, q, prompt = processed(case), processed(case, drafts_of(case)), tuple(case.arrays["prompt"][0].tolist())
    whole: TokenLaw = {}

    def go_on(new: Tokens, numbers: Tokens, reached: Fraction) -> None:
        if len(new) >= N:
            outcome = (*new[:N], *numbers, *(-1,) * (N - len(numbers)))
            whole[outcome] = whole.get(outcome, Fraction(0)) + reached
            return
        text = (*prompt, *new)
        silent = drafts_of(case) == "heads" and not numbers
        draft = model_of(q, text) if drafts_of(case) == "draft" else _by_depth(q, text)
        for emitted, probability in emission_law(draft, model_of(p, text), k=0 if silent else k).items():
            go_on((*new, *emitted), (*numbers, len(emitted) - 1), reached * probability)

    go_on((), (), Fraction(1))
    return whole


def part_of(found: TokenLaw, of: slice) -> TokenLaw:
    """The law of a part of each outcome."""
    parts: TokenLaw = {}
    for outcome, probability in found.items():
        parts[outcome[of]] = parts.get(outcome[of], Fraction(0)) + probability
    return parts
