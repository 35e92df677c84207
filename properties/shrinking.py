"""Shrinking: from a recipe that fails to the smallest one that still does. Values are `value_minimiser`'s business.

A recipe is a frozen dataclass of a fixed number of fields: sizes (`size_field`), named choices (`choice_field`),
switches (bool) and a seed. Its default is the simplest recipe there is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import Field, dataclass, field, fields, replace
from typing import Any, TypeVar

R = TypeVar("R")

# Sizes of tiles and heads; one more is where a kernel starts its second tile.
TILES = (8, 16, 32, 64, 128, 256, 512)


@dataclass
class Deadline:
    """A moment of `time.monotonic` at which the search ends, and whether anybody was stopped by it."""

    moment: float
    stopped: bool = False

    @classmethod
    def after(cls, seconds: float) -> Deadline:
        return cls(time.monotonic() + seconds)

    def share(self, part: float) -> Deadline:
        """A deadline after part of the time that is left."""
        now = time.monotonic()
        return Deadline(now + part * max(self.moment - now, 0.0))

    def over(self) -> bool:
        """Asked before each step: whether it may not be taken."""
        self.stopped = self.stopped or time.monotonic() >= self.moment
        return self.stopped


def size_field() -> Any:
    """A field that holds a size; 1 is the simplest, then 0, 2, 3, ..."""
    return field(default=1, metadata={"size": True})


def choice_field(levels: tuple[str, ...]) -> Any:
    """A field that holds one of some names, the simplest first."""
    return field(default=levels[0], metadata={"levels": levels})


def size(recipe: Any) -> tuple[int, ...]:
    """How large a recipe is: compared as tuples, smaller is simpler. The seed does not count.

        (choices and switches not at their simplest, sum of the sizes, level of each choice ..., each size ...)

    Every candidate of `simpler_recipes` is smaller, and there is no infinite descent: tuples of one length of integers >= 0.
    """
    levels = tuple(_level(f, getattr(recipe, f.name)) for f in _choices(recipe))
    sizes = tuple(_rank(getattr(recipe, name)) for name in _sizes(recipe))
    return (sum(level > 0 for level in levels), sum(sizes), *levels, *sizes)


def simpler_recipes(recipe: R) -> Iterator[R]:
    """Strictly smaller recipes, the biggest reductions first.

    All choices at once, all sizes at once, then choice by choice, then size by size (equal sizes also together):
    1, 2, 3, 4, the size of a tile and one more, another size of the recipe, and by halving the distance to the size down to one less.
    """
    seen = {recipe}
    for changes in _reductions(recipe):
        candidate: R = replace(recipe, **changes)  # type: ignore[type-var]
        if candidate not in seen:
            seen.add(candidate)
            yield candidate


def shrink(
    recipe: R, simpler: Callable[[R], Iterator[R]], fails: Callable[[R], bool], *, until: Deadline, reseed: int = 3
) -> tuple[R, int]:  # fmt: skip
    """The smallest recipe found that still fails, and how many trials it took.

    Greedy: the first smaller recipe that fails is taken, until none fails or the time is over. `fails` must mean
    that *the same law* fails. Each candidate is tried with `reseed` seeds, its own and those after it, since a fault may
    need luck in its values. What `simpler` yields need not be smaller (a candidate mapped into what a subject covers may
    have grown): what is not smaller by `size` is not tried, so this terminates.
    """
    trials = 0
    tried: set[R] = {recipe}
    while True:
        for candidate in simpler(recipe):
            if size(candidate) >= size(recipe):
                continue
            for offset in range(reseed):
                seeded: R = replace(candidate, seed=candidate.seed + offset)  # type: ignore[type-var, attr-defined]
                if seeded in tried:
                    continue
                if until.over():
                    return recipe, trials
                tried.add(seeded)
                trials += 1
                if fails(seeded):
                    recipe = seeded
                    break
            else:
                continue
            break
        else:
            return recipe, trials


def _sizes(recipe: Any) -> list[str]:
    return [f.name for f in fields(recipe) if "size" in f.metadata]


def _choices(recipe: Any) -> list[Field[Any]]:
    return [f for f in fields(recipe) if "levels" in f.metadata or isinstance(f.default, bool)]


def _level(f: Field[Any], value: Any) -> int:
    return int(value) if isinstance(value, bool) else f.metadata["levels"].index(value)


def _rank(n: int) -> int:
    return {1: 0, 0: 1}.get(n, n)


def _reductions(recipe: Any) -> Iterator[dict[str, Any]]:
    choices = {f.name: f.default for f in _choices(recipe)}
    names = _sizes(recipe)
    yield {**choices, **dict.fromkeys(names, 1)}
    yield choices
    yield dict.fromkeys(names, 1)
    for f in _choices(recipe):
        yield {f.name: f.default}
    for f in _choices(recipe):
        for level in range(1, _level(f, getattr(recipe, f.name))):
            yield {f.name: f.metadata["levels"][level]}
    for name in names:
        n = getattr(recipe, name)
        equal = [other for other in names if getattr(recipe, other) == n > 1]
        for smaller in _smaller_sizes(n, [getattr(recipe, other) for other in names]):
            if len(equal) > 1:
                yield dict.fromkeys(equal, smaller)
            yield {name: smaller}


def _smaller_sizes(n: int, others: list[int]) -> list[int]:
    if n == 0:
        return [1]
    halvings = [n - (n >> shift) for shift in range(1, n.bit_length())]
    return sorted(m for m in {1, 2, 3, 4, *TILES, *(tile + 1 for tile in TILES), *others, *halvings} if 0 < m < n)
