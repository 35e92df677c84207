"""KV cache model: all keys and values that were appended and kept, as arrays, kept beside any cache of one layer.

It needs nothing but NumPy and its neighbours, so that a repro can carry a copy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .play import unusable
from .sequence import NEW, RAISED, RETURNED, Answer, Call

LOOKS = (Call("view"), Call("__len__"))


@dataclass
class CacheMoment:
    """One call, what came of it, and what is known after it. See `play.Moment`.

    wrong_call                  why ValueError (or TypeError) is the only right answer, or ""
    view_before, view           keys and values that the cache showed before and after the call; None where it raised
    length_before, length       what len() said
    """

    call: Call
    answer: Answer
    model: KVCacheModel
    wrong_call: str = ""
    defect: str = ""
    lost: bool = False
    view_before: list[Any] | None = None
    view: list[Any] | None = None
    length_before: int = 0
    length: int = 0


class KVCacheModel:
    """k, v: all tokens, (B, H, n, D) and (B, H, n, Dv), or None before the first append."""

    def __init__(self, new: Call, abilities: frozenset[str]) -> None:
        self.window: int | None = new.option("window")
        self.k: Any = None
        self.v: Any = None
        self.view: list[Any] | None = None
        self.length = 0
        self.appended = 0

    def __len__(self) -> int:
        return 0 if self.k is None else int(self.k.shape[2])

    def looks(self, call: Call) -> list[Call]:
        return list(LOOKS)

    def closing(self) -> Call | None:
        """A cache has nothing to be closed."""
        return None

    def follow(self, call: Call, answer: Answer, seen: list[Answer]) -> CacheMoment:
        moment = CacheMoment(call, answer, self, self._wrong_call(call), view_before=self.view, length_before=self.length)
        moment.defect = unusable(call, answer) or self._out_of_form(moment) or self._read(moment, seen)
        if moment.defect:
            return moment
        moment.lost = answer.kind == RETURNED and bool(moment.wrong_call)
        if answer.kind == RETURNED and not moment.wrong_call:
            self._apply(call)
        self.view, self.length = moment.view, moment.length
        return moment

    def shown(self) -> list[Any]:
        """What the next query may see: the last `window` tokens, or all."""
        first = 0 if self.window is None else max(0, len(self) - self.window)
        return [self.k[:, :, first:], self.v[:, :, first:]]

    def _wrong_call(self, call: Call) -> str:
        if call.method == "append" and self.k is not None:
            for name, given, kept in (("k", call.args[0], self.k), ("v", call.args[1], self.v)):
                if (*given.shape[:2], given.shape[3]) != (*kept.shape[:2], kept.shape[3]):
                    return f"{name} of shape {given.shape} does not go behind {kept.shape}"
        if call.method == "append" and call.args[0].shape[:3] != call.args[1].shape[:3]:
            return f"v of shape {call.args[1].shape} does not go beside k of {call.args[0].shape}"
        if call.method == "crop" and not 0 <= call.args[0] <= len(self):
            return f"n = {call.args[0]} is not in 0..{len(self)}"
        if call.method in ("select", "view") and self.k is None:
            return "nothing was appended"
        if call.method == "select" and not all(0 <= row < len(self.k) for row in call.args[0]):
            return f"rows {call.args[0]} are not all in 0..{len(self.k) - 1}"
        return ""

    def _out_of_form(self, moment: CacheMoment) -> str:
        answer = moment.answer
        if answer.kind != RAISED or (moment.wrong_call and (answer.raised("ValueError") or answer.raised("TypeError"))):
            return ""
        return f"{moment.call} raised {answer.message}; want " + ("ValueError" if moment.wrong_call else "a result")

    def _read(self, moment: CacheMoment, seen: list[Answer]) -> str:
        view, length = seen
        for look, answer in zip(LOOKS, seen, strict=True):
            if unusable(look, answer):
                return unusable(look, answer)
        if not isinstance(length.value, int):
            return f"len after {moment.call}: {length.message or length.value}; want a number"
        moment.length = length.value
        known = self.k is not None or (moment.call.method == "append" and moment.answer.kind == RETURNED)
        if view.kind == RAISED:
            return f"view after {moment.call} raised {view.message}" if known else ""
        pair = view.value if isinstance(view.value, list) else []
        if len(pair) != 2 or not all(isinstance(array, np.ndarray) and array.ndim == 4 for array in pair):
            return f"view after {moment.call}: got {_form(view.value)}; want two arrays of four axes"
        moment.view = [np.asarray(array, np.float64) for array in pair]
        return ""

    def _apply(self, call: Call) -> None:
        if call.method == "append":
            k, v = (np.asarray(value.array(), np.float64) for value in call.args)
            self.k = k if self.k is None else np.concatenate([self.k, k], axis=2)
            self.v = v if self.v is None else np.concatenate([self.v, v], axis=2)
            self.appended += 1
        elif call.method == "crop" and self.k is not None:
            self.k, self.v = self.k[:, :, : call.args[0]], self.v[:, :, : call.args[0]]
        elif call.method == "select":
            self.k, self.v = self.k[list(call.args[0])], self.v[list(call.args[0])]


def new_cache(window: int | None = None) -> Call:
    return Call(NEW, (), () if window is None else (("window", window),))


def _form(value: Any) -> str:
    if isinstance(value, list):
        return f"{len(value)} values"
    return f"an array of shape {value.shape}" if hasattr(value, "shape") else repr(value)
