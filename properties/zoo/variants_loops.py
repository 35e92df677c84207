"""Legal variants of generation loops: without a cache, with caches that are rolled back, a whole batch in step, other uniforms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..arithmetic import Arithmetic
from . import textbook_loops as textbook
from .specimen import variant
from .textbook_decoding import Array, drawn, working

LARGEST = 1 - 2.0**-24
DOUBLE = Arithmetic(accumulate="float64", elementwise="float64")


@variant("speculative_loop", id="loop-textbook", family="speculative")
def loop_without_a_cache(
    target: Any, draft: Any, prompt: Any, uniforms: Any, *, eos: Any = None, forbidden: Any = None
) -> tuple[Array, Array]:  # fmt: skip
    """Every law is looked up from the whole text."""
    return textbook.speculative_loop(target, draft, prompt, uniforms, eos=eos, forbidden=forbidden)


@variant("mtp_loop", id="mtp-loop-textbook", family="mtp")
def mtp_loop_without_a_cache(
    target: Any, heads: Any, prompt: Any, uniforms: Any, *, eos: Any = None, forbidden: Any = None
) -> tuple[Array, Array]:  # fmt: skip
    """Every law is looked up from the whole text."""
    return textbook.mtp_loop(target, heads, prompt, uniforms, eos=eos, forbidden=forbidden)


class _Cache:
    """A table with a row for each token it was fed; rows of other tokens are cut off before it reads on."""

    def __init__(self, table: Any) -> None:
        self.table = working(table)
        self.fed: list[int] = []

    def law(self, text: Sequence[int]) -> Array:
        """The law after a text of which a part is in the cache."""
        same = next((i for i, (a, b) in enumerate(zip(self.fed, text)) if a != b), min(len(self.fed), len(text)))
        self.fed[same:] = text[same:]
        return np.asarray(self.table[textbook.last_two(self.fed)])


@variant("speculative_loop", id="loop-with-a-cache-by-prefix", family="speculative")
def loop_with_a_cached_draft(
    target: Any, draft: Any, prompt: Any, uniforms: Any, *, eos: Any = None, forbidden: Any = None
) -> tuple[Array, Array]:  # fmt: skip
    """The draft keeps its cache as far as it is a prefix of the text, and reads the rest again."""
    cache = _Cache(draft)
    return textbook.looped(lambda text, x, whole: cache.law([*text, *x]), target, prompt, uniforms, eos=eos, forbidden=forbidden)


@variant("speculative_loop", id="loop-in-float64", family="speculative", arithmetic=DOUBLE)
def loop_in_float64(
    target: Any, draft: Any, prompt: Any, uniforms: Any, *, eos: Any = None, forbidden: Any = None
) -> tuple[Array, Array]:  # fmt: skip
    """Everything in float64."""
    p, q = (np.asarray(x, np.float64) for x in (target, draft))
    return textbook.speculative_loop(p, q, prompt, uniforms, eos=eos, forbidden=forbidden)


def _quotient(u: Any, q: Any, p: Any) -> bool:
    return bool(u < p / q) if q > 0 else bool(p > 0)


def _cut_draw(w: Array, u: Any) -> int:
    """A draw among the weights above 0 alone."""
    possible = np.flatnonzero(w)
    return int(possible[drawn(w[possible], u)])


@variant("speculative_loop", id="loop-by-quotient", family="speculative")
def loop_by_quotient(
    target: Any, draft: Any, prompt: Any, uniforms: Any, *, eos: Any = None, forbidden: Any = None
) -> tuple[Array, Array]:  # fmt: skip
    """u < p / q, and draws among the possible tokens alone."""
    return textbook.speculative_loop(target, draft, prompt, uniforms, eos=eos, forbidden=forbidden, accept=_quotient, draw=_cut_draw)


@variant("mtp_loop", id="mtp-loop-by-quotient", family="mtp")
def mtp_loop_by_quotient(
    target: Any, heads: Any, prompt: Any, uniforms: Any, *, eos: Any = None, forbidden: Any = None
) -> tuple[Array, Array]:  # fmt: skip
    """u < p / q, and draws among the possible tokens alone."""
    return textbook.mtp_loop(target, heads, prompt, uniforms, eos=eos, forbidden=forbidden, accept=_quotient, draw=_cut_draw)


@variant("mtp_loop", id="mtp-loop-last-row-first", family="mtp", arithmetic=DOUBLE)
def mtp_loop_in_reverse(
    target: Any, heads: Any, prompt: Any, uniforms: Any, *, eos: Any = None, forbidden: Any = None
) -> tuple[Array, Array]:  # fmt: skip
    """The rows of a batch in reverse, everything in float64."""
    p, q = (np.asarray(x, np.float64) for x in (target, heads))
    tokens, n = textbook.mtp_loop(p, q, prompt[::-1], uniforms[::-1], eos=eos, forbidden=forbidden)
    return np.ascontiguousarray(tokens[::-1]), np.ascontiguousarray(n[::-1])


@variant("speculative_loop", id="loop-other-end-of-the-uniforms", family="speculative", conventions={"uniforms": "other"})
def loop_from_the_other_end(
    target: Any, draft: Any, prompt: Any, uniforms: Any, *, eos: Any = None, forbidden: Any = None
) -> tuple[Array, Array]:  # fmt: skip
    """1 - 2^-24 - u stands for u: another text, and the same law."""
    u = uniforms.dtype.type(LARGEST) - uniforms
    return textbook.speculative_loop(target, draft, prompt, u, eos=eos, forbidden=forbidden)


@variant("mtp_loop", id="mtp-loop-other-order-of-the-uniforms", family="mtp", conventions={"uniforms": "other"})
def mtp_loop_with_swapped_uniforms(
    target: Any, heads: Any, prompt: Any, uniforms: Any, *, eos: Any = None, forbidden: Any = None
) -> tuple[Array, Array]:  # fmt: skip
    """The uniforms of a pass in reverse: the first one draws the token after the drafts."""
    return textbook.mtp_loop(target, heads, prompt, uniforms[:, :, ::-1], eos=eos, forbidden=forbidden)


@variant("speculative_loop", id="loop-own-generator", family="speculative", conventions={"uniforms": "own"})
def loop_with_its_own_uniforms(
    target: Any, draft: Any, prompt: Any, uniforms: Any, *, eos: Any = None, forbidden: Any = None
) -> tuple[Array, Array]:  # fmt: skip
    """Uniforms of its own; those handed in are left unread."""
    u = np.random.default_rng().uniform(size=uniforms.shape)
    return textbook.speculative_loop(target, draft, prompt, u, eos=eos, forbidden=forbidden)


@variant("mtp_loop", id="mtp-loop-own-generator", family="mtp", conventions={"uniforms": "own"})
def mtp_loop_with_its_own_uniforms(
    target: Any, heads: Any, prompt: Any, uniforms: Any, *, eos: Any = None, forbidden: Any = None
) -> tuple[Array, Array]:  # fmt: skip
    """Uniforms of its own; those handed in are left unread."""
    u = np.random.default_rng().uniform(size=uniforms.shape)
    return textbook.mtp_loop(target, heads, prompt, u, eos=eos, forbidden=forbidden)
