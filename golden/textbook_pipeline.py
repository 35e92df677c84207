"""The textbook formulas of pipelines, one token at a time, in mpmath: each goes through all pieces by itself, forward and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np

from .textbook_attention import mp
from .textbook_collectives import member, number

Element = Callable[[str, tuple[int, ...]], Any]


def pipeline_loss(arguments: Mapping[str, Any]) -> Element:
    """The sum over tokens, over how many there are."""
    losses, places = np.asarray(arguments["token_losses"]), _tokens(arguments)

    def element(name: str, index: tuple[int, ...]) -> Any:
        return mp().fsum(number(losses, place) for place in places) / max(len(places), 1)

    return element


def _tokens(arguments: Mapping[str, Any]) -> list[tuple[int, int]]:
    return [(b, t) for b, n in enumerate(np.asarray(arguments["lengths"]).tolist()) for t in range(n)]


def pipeline_step(arguments: Mapping[str, Any]) -> Element:
    """y = z tanh(x W) piece after piece; dL/dx of a token is its own, dL/dW_ac the sum over tokens of x_a (dL/dy z sech^2)_c."""
    weights, places = [np.asarray(w) for w in arguments["weights"]], _tokens(arguments)
    D, n = weights[0].shape[0], max(len(places), 1)
    mask, p = arguments.get("dropout_mask"), mp().mpf(float(arguments.get("dropout_p", 0.0)))

    def factor(i: int, place: tuple[int, int], c: int) -> Any:
        return mp().mpf(1) if mask is None else int(mask[(i, *place, c)]) / (1 - p)

    @cache
    def passed(place: tuple[int, int]) -> tuple[Any, list[list[Any]], list[list[Any]]]:
        """The token's share of the loss; the input of each piece, and then the output; dL/dx of each piece, slopes before."""
        inputs, slopes = [[number(arguments["x"], (*place, c)) for c in range(D)]], []
        for i, w in enumerate(weights):
            sums = [mp().fsum(a * number(w, (r, c)) for r, a in enumerate(inputs[-1])) for c in range(D)]
            inputs.append([factor(i, place, c) * mp().tanh(s) for c, s in enumerate(sums)])
            slopes.append([factor(i, place, c) * mp().sech(s) ** 2 for c, s in enumerate(sums)])
        error = [y - number(arguments["targets"], (*place, c)) for c, y in enumerate(inputs[-1])]
        loss, up, before = mp().fsum(one**2 for one in error) / (2 * n), [one / n for one in error], list[list[Any]]()
        for w, slope in zip(reversed(weights), reversed(slopes)):
            before.insert(0, [a * b for a, b in zip(up, slope)])
            up = [mp().fsum(before[0][c] * number(w, (r, c)) for c in range(D)) for r in range(D)]
        return loss, inputs, [*before, up]

    def element(name: str, index: tuple[int, ...]) -> Any:
        if name == "loss":
            return mp().fsum(passed(place)[0] for place in places)
        if name == "dx":
            return passed(index[:2])[2][-1][index[2]] if index[:2] in places else mp().mpf(0)
        i, (a, c) = member(name), index
        return mp().fsum(passed(place)[1][i][a] * passed(place)[2][i][c] for place in places)

    return element
