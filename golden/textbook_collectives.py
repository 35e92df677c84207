"""The textbook formulas of what ranks bring together, one element at a time, in mpmath: what every rank holds at one place, listed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from .textbook_attention import mp

Element = Callable[[str, tuple[int, ...]], Any]
_OPS: dict[str, Callable[[list[Any]], Any]] = {
    "sum": lambda held: mp().fsum(held), "mean": lambda held: mp().fsum(held) / len(held), "max": max, "min": min,
}  # fmt: skip


def all_reduce(arguments: Mapping[str, Any]) -> Element:
    """The sum, mean, maximum or minimum of what the ranks hold."""
    combine = _OPS[arguments.get("op", "sum")]
    return lambda name, index: combine([number(x, index) for x in arguments["arrays"]])


def reduce_scatter(arguments: Mapping[str, Any]) -> Element:
    """The same, rank r's first row being row r n of all."""
    whole, R = all_reduce(arguments), len(arguments["arrays"])
    n = len(arguments["arrays"][0]) // R
    return lambda name, index: whole(name, (member(name) * n + index[0], *index[1:]))


def all_gather(arguments: Mapping[str, Any]) -> Element:
    """The row of the rank that holds it."""
    def element(name: str, index: tuple[int, ...]) -> Any:
        row = index[0]
        for x in arguments["arrays"]:
            if row < len(x):
                return number(x, (row, *index[1:]))
            row -= len(x)
        raise IndexError(f"{name}{list(index)}: no rank holds that row")

    return element


def bucketed_all_reduce(arguments: Mapping[str, Any]) -> Element:
    """The mean over ranks."""
    def element(name: str, index: tuple[int, ...]) -> Any:
        grad = arguments["grads"][member(name)]
        return mp().fsum(number(grad, (r, *index[1:])) for r in range(len(grad))) / len(grad)

    return element


def accumulate_gradients(arguments: Mapping[str, Any]) -> Element:
    """Sum of gradients over sum of tokens."""
    grads, tokens = np.asarray(arguments["grads"]), np.asarray(arguments["tokens"])

    def element(name: str, index: tuple[int, ...]) -> Any:
        held = mp().fsum(number(grads, (r, a, *index[1:])) for r, a in np.ndindex(*tokens.shape))
        counted = sum(int(n) for n in tokens.reshape(-1))
        return held / counted if counted else mp().mpf(0)

    return element


def tied_gradients(arguments: Mapping[str, Any]) -> Element:
    """The sum over copies of the means over ranks."""
    grads = np.asarray(arguments["grads"])
    S, R = grads.shape[:2]
    return lambda name, index: mp().fsum(
        mp().fsum(number(grads, (s, r, *index[2:])) for r in range(R)) / R for s in range(S))


def number(x: Any, index: tuple[int, ...]) -> Any:
    """One element of an array, exactly."""
    return mp().mpf(float(np.asarray(x)[index]))


def member(name: str) -> int:
    """Which array of a list a result is."""
    return int(name.partition(".")[2])
