"""A cache of keys and values for the second route: one list of tokens a sequence."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from .traces import Step


class _Refused(Exception):
    """A ValueError is due."""


class Cache:
    """tokens: for each sequence a list of pairs, keys and values of one token for all heads. shape: None before the first append."""

    def __init__(self, window: int | None) -> None:
        self.window = window
        self.tokens: list[list[tuple[Any, Any]]] = []
        self.shape: tuple[int, int, int] | None = None                          # heads, D, Dv
        self.count = 0

    def answered(self, step: Step) -> Step:
        """The step with this cache's answer."""
        try:
            return replace(step, answer=getattr(self, step.call)(**step.arguments))
        except _Refused:
            return replace(step, raises="ValueError")

    def append(self, k: Any, v: Any) -> None:
        rows, heads, n, D = k.shape
        shape = (heads, D, v.shape[3])
        if self.shape is None:
            self.tokens, self.shape = [[] for _ in range(rows)], shape
        if shape != self.shape or rows != len(self.tokens):
            raise _Refused
        for b in range(rows):
            for t in range(n):
                self.tokens[b].append((k[b, :, t].tolist(), v[b, :, t].tolist()))
        self.count += n

    def length(self) -> int:
        return self.count

    def view(self) -> dict[str, Any]:
        if self.shape is None:
            raise _Refused
        heads, *widths = self.shape
        shown = self.count if self.window is None else min(self.window, self.count)
        result = {}
        for side, (letter, width) in enumerate(zip("kv", widths)):
            numbers = [token[side][h] for row in self.tokens for h in range(heads) for token in row[self.count - shown :]]
            result[letter] = np.asarray(numbers, dtype=np.float64).reshape(len(self.tokens), heads, shown, width)
        return result

    def crop(self, n: int) -> None:
        if n > self.count:
            raise _Refused
        self.tokens, self.count = [row[:n] for row in self.tokens], n

    def select(self, rows: list[int]) -> None:
        if self.shape is None or any(row >= len(self.tokens) for row in rows):
            raise _Refused
        self.tokens = [list(self.tokens[row]) for row in rows]
