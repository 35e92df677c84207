"""Guides of XGrammar, outlines-core and llguidance: what each does behind start, token_mask, advance and draft_masks.

Nothing but NumPy and the libraries is imported, these inside the functions, so that this file runs alone. A token that a library
refuses, by False, None or an exception of its own, is a ValueError here. None of the three has a state after eos; here it is DONE.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np

DONE = "after eos"


class _Matching:
    """A guide whose state is a matcher of the library, which is copied before it is moved."""

    start: Any

    def __init__(self, size: int, eos: int) -> None:
        self.size, self.eos = size, eos

    def token_mask(self, state: Any) -> Any:
        """One entry a token; after eos, eos alone."""
        return np.arange(self.size) == self.eos if state == DONE else self.filled(state)

    def advance(self, state: Any, token: int) -> Any:
        """A copy of the matcher, which took the token; eos ends a text that is complete."""
        if token == self.eos and (state == DONE or self.ends(state)):
            return DONE
        if state != DONE and token != self.eos and self.took(moved := self.copied(state), token):
            return moved
        raise ValueError(f"token {token} is refused")

    def draft_masks(self, state: Any, draft: Sequence[int]) -> Any:
        """Masks along a draft, on the matcher itself, which is rolled back behind it."""
        rows, taken = [self.token_mask(state)], 0
        for token in draft:
            if not rows[-1][token]:
                break
            if token == self.eos:
                rows.append(self.token_mask(DONE))
                continue
            if not self.took(state, token):
                raise RuntimeError(f"token {token} is in the mask, and is refused")
            taken += 1
            rows.append(self.token_mask(state))
        if taken:
            self.rolled_back(state, taken)
        return np.stack(rows)

    def filled(self, matcher: Any) -> Any:
        raise NotImplementedError

    def copied(self, matcher: Any) -> Any:
        raise NotImplementedError

    def took(self, matcher: Any, token: int) -> bool:
        raise NotImplementedError

    def ends(self, matcher: Any) -> bool:
        raise NotImplementedError

    def rolled_back(self, matcher: Any, n: int) -> None:
        raise NotImplementedError


class XGrammar(_Matching):
    """xgrammar.GrammarMatcher over a raw vocabulary, eos its stop token."""

    def __init__(self, pattern: str, vocabulary: Sequence[str], *, eos: int) -> None:
        xgrammar: Any = import_module("xgrammar")

        super().__init__(len(vocabulary), eos)
        tokens = xgrammar.TokenizerInfo(list(vocabulary), vocab_type=xgrammar.VocabType.RAW, stop_token_ids=[eos])
        self.start = xgrammar.GrammarMatcher(self.compiled(xgrammar.GrammarCompiler(tokens, max_threads=1), pattern))

    def compiled(self, compiler: Any, pattern: str) -> Any:
        """The pattern, compiled."""
        return compiler.compile_regex(pattern)

    def filled(self, matcher: Any) -> Any:
        xgrammar: Any = import_module("xgrammar")

        words = xgrammar.allocate_token_bitmask(1, self.size)
        matcher.fill_next_token_bitmask(words)
        return np.unpackbits(words.numpy().view(np.uint8), bitorder="little", count=self.size).astype(np.bool_)

    def copied(self, matcher: Any) -> Any:
        return matcher.fork()

    def took(self, matcher: Any, token: int) -> bool:
        return bool(matcher.accept_token(token))

    def ends(self, matcher: Any) -> bool:
        return bool(matcher.fork().accept_token(self.eos))

    def rolled_back(self, matcher: Any, n: int) -> None:
        matcher.rollback(n)


class XGrammarSchema(XGrammar):
    """The same for a JSON schema, given as text, without whitespace."""

    def compiled(self, compiler: Any, pattern: str) -> Any:
        """The schema, compiled; by default whitespace is free."""
        return compiler.compile_json_schema(pattern, any_whitespace=False, separators=(",", ":"), strict_mode=True)


class LLGuidance(_Matching):
    """llguidance.LLMatcher over a tokenizer of these tokens' bytes."""

    def __init__(self, pattern: str, vocabulary: Sequence[str], *, eos: int) -> None:
        llguidance: Any = import_module("llguidance")

        super().__init__(len(vocabulary), eos)
        tokenizer = llguidance.LLTokenizer(llguidance.TokenizerWrapper(_Tokens(vocabulary, eos)))
        self.start = llguidance.LLMatcher(tokenizer, self.grammar(pattern))
        if self.start.is_error():
            raise RuntimeError(self.start.get_error())

    def grammar(self, pattern: str) -> str:
        """As its own function makes it: where the text is forced, the mask has only the token that its tokenizer would take."""
        llguidance: Any = import_module("llguidance")

        return str(llguidance.LLMatcher.grammar_from_regex(pattern))

    def filled(self, matcher: Any) -> Any:
        return np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little", count=self.size).astype(np.bool_)

    def copied(self, matcher: Any) -> Any:
        return matcher.deep_copy()

    def took(self, matcher: Any, token: int) -> bool:
        try:
            return bool(matcher.validate_tokens([token]) == 1 and matcher.consume_token(token))
        except OverflowError:
            return False

    def ends(self, matcher: Any) -> bool:
        return bool(matcher.is_accepting())                                     # it stops by itself where nothing can follow

    def rolled_back(self, matcher: Any, n: int) -> None:
        matcher.rollback(n)


class LLGuidanceUnforced(LLGuidance):
    """The same without forced tokens: an option of its grammars."""

    def grammar(self, pattern: str) -> str:
        """A Lark grammar of the pattern alone, no_forcing set."""
        quoted = pattern.replace("/", "\\/").replace("\n", "\\n")
        return f'%llguidance {{"no_forcing": true}}\nstart: /{quoted}/'


class LLGuidanceSchema(LLGuidance):
    """The same for a JSON schema, given as text, without whitespace."""

    def grammar(self, pattern: str) -> str:
        """A grammar of the schema; by default whitespace is free."""
        llguidance: Any = import_module("llguidance")
        compact = {"whitespace_flexible": False, "item_separator": ",", "key_separator": ":"}
        return str(llguidance.LLMatcher.grammar_from_json_schema(pattern, overrides=compact))


class _Tokens:
    """What llguidance asks of a tokenizer: the longest token first."""

    def __init__(self, vocabulary: Sequence[str], eos: int) -> None:
        self.tokens = [text.encode() for text in vocabulary]
        self.tokens[eos] = b"<eos>"
        self.eos_token_id, self.bos_token_id, self.special_token_ids = eos, None, [eos]

    def __call__(self, text: Any) -> list[int]:
        data = text.encode() if isinstance(text, str) else bytes(text)
        found: list[int] = []
        while data:
            best = max((t for t in self.tokens if t and data.startswith(t)), key=len, default=data[:1])
            found += [self.tokens.index(best)] if best in self.tokens else []
            data = data[len(best) :]
        return found


class OutlinesCore:
    """outlines_core.Index over its Vocabulary: states are its own numbers. It has no masks of drafts but step by step."""

    def __init__(self, pattern: str, vocabulary: Sequence[str], *, eos: int) -> None:
        outlines_core: Any = import_module("outlines_core")

        ids: dict[str | bytes, list[int]] = {}
        for token, text in enumerate(vocabulary):
            if token != eos:
                ids.setdefault(text, []).append(token)
        self.size, self.eos = len(vocabulary), eos
        try:
            self.index = outlines_core.Index(pattern, outlines_core.Vocabulary(eos, ids))
        except ValueError as error:
            if "The vocabulary provided is incompatible" in str(error):         # some state has no way on
                raise NotImplementedError(str(error)) from None
            raise
        self.start = self.index.get_initial_state()

    def token_mask(self, state: Any) -> Any:
        """One entry a token; after eos, eos alone."""
        mask = np.arange(self.size) == self.eos if state == DONE else np.zeros(self.size, np.bool_)
        if state != DONE:
            mask[self.index.get_allowed_tokens(state)] = True
        return mask

    def advance(self, state: Any, token: int) -> Any:
        """The index's next state; eos leads to DONE from its final ones, where it says so."""
        if token == self.eos and (state == DONE or self.index.is_final_state(state)):
            return DONE
        try:
            after = None if state == DONE else self.index.get_next_state(state, token)
        except OverflowError:
            after = None
        if after is None:
            raise ValueError(f"token {token} is refused")
        return after
