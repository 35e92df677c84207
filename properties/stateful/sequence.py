"""Sequence: calls on one object as plain data, and the making of one call. It needs nothing but NumPy, so that a repro can carry it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

NEW = "new"                                                                     # the first call of a sequence: makes the object
RETURNED, REFUSED, RAISED, MALFORMED, DIED, HUNG = "returned", "refused", "raised", "malformed", "died", "hung"


@dataclass(frozen=True)
class Floats:
    """An array of the float32 integers first, first + step, …: small, exact in every format, and each entry is known by its value."""

    shape: tuple[int, ...]
    first: int = 0
    step: int = 1

    def array(self) -> np.ndarray[Any, np.dtype[Any]]:
        size = int(np.prod(self.shape))
        return (self.first + self.step * np.arange(size)).astype(np.float32).reshape(self.shape)

    def __str__(self) -> str:
        end = self.first + self.step * int(np.prod(self.shape))
        return f"np.arange({self.first}, {end}, {self.step}, dtype=np.float32).reshape{self.shape}"


@dataclass(frozen=True)
class Call:
    """One call: a method, or `NEW`, with positional and named arguments of plain data."""

    method: str
    args: tuple[Any, ...] = ()
    named: tuple[tuple[str, Any], ...] = ()

    def __str__(self) -> str:
        """As Python source, the object being x.

        >>> print(Call("allocate", ("a", (1, 2)), (("salt", b"s"),)))
        x.allocate('a', [1, 2], salt=b's')
        """
        given = ", ".join([*map(_source, self.args), *(f"{name}={_source(value)}" for name, value in self.named)])
        if self.method == NEW:
            return f"x = SUBJECT({given})"
        return "len(x)" if self.method == "__len__" else f"x.{self.method}({given})"

    def option(self, name: str, default: Any = None) -> Any:
        """A named argument."""
        return dict(self.named).get(name, default)


Sequence = tuple[Call, ...]
Numbers = tuple[int, int, int]                                                  # each below 2^12: what a drawn call is chosen by


@dataclass(frozen=True)
class Answer:
    """What one call gave.

    kind      returned; refused (NotImplementedError: not covered); raised; malformed (no plain data); died; hung
    value     what was returned, as plain data: numbers, text, lists, dicts, arrays
    classes   names of the classes of the exception, its own first
    message   for people
    """

    kind: str
    value: Any = None
    classes: tuple[str, ...] = ()
    message: str = ""

    def raised(self, name: str) -> bool:
        """Whether an exception of this class, or one derived from it, was raised."""
        return self.kind == RAISED and name in self.classes


def perform(target: Any, call: Call) -> tuple[Answer, Any]:
    """Make one call; never raises for what the object does. Returns the answer and, for `NEW`, the object."""
    given = [_concrete(value) for value in call.args]
    named = {name: _concrete(value) for name, value in call.named}
    try:
        returned = target(*given, **named) if call.method == NEW else getattr(target, call.method)(*given, **named)
        return (Answer(RETURNED), returned) if call.method == NEW else (Answer(RETURNED, plain(returned)), None)
    except NotImplementedError as error:
        return Answer(REFUSED, message=str(error) or "NotImplementedError"), None
    except _NotPlain as error:
        return Answer(MALFORMED, message=f"{call} returned {error}"), None
    except (Exception, SystemExit) as error:
        names = tuple(kind.__name__ for kind in type(error).__mro__)
        return Answer(RAISED, classes=names, message=f"{type(error).__name__}: {error}"), None


class _NotPlain(TypeError):
    """Something that is no plain data."""


def plain(value: Any) -> Any:
    """Plain data: NumPy's numbers as Python's, sequences as lists, arrays copied. Raises TypeError for anything else."""
    if value is None or isinstance(value, bool | str | bytes):
        return value
    if isinstance(value, int | np.integer):
        return int(value)
    if isinstance(value, float | np.floating):
        return float(value)
    if isinstance(value, np.ndarray) or hasattr(value, "__array__"):
        return np.array(value)
    if isinstance(value, Mapping):
        return {str(name): plain(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple | range) or hasattr(value, "__iter__"):
        return [plain(entry) for entry in value]
    raise _NotPlain(f"{value!r} of type {type(value).__name__}; want numbers, lists of them, arrays or None")


def _concrete(value: Any) -> Any:
    if isinstance(value, Floats):
        return value.array()
    return [_concrete(entry) for entry in value] if isinstance(value, tuple) else value


def _source(value: Any) -> str:
    return f"[{', '.join(map(_source, value))}]" if isinstance(value, tuple) else str(value) if isinstance(value, Floats) else repr(value)


def to_json(value: Any) -> Any:
    """Calls, answers and plain data as JSON data; the inverse is `from_json`."""
    if isinstance(value, Call):
        return {"call": [value.method, to_json(value.args), [[name, to_json(v)] for name, v in value.named]]}
    if isinstance(value, Answer):
        return {"answer": [value.kind, to_json(value.value), list(value.classes), value.message]}
    if isinstance(value, Floats):
        return {"floats": [list(value.shape), value.first, value.step]}
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    if isinstance(value, np.ndarray):
        return {"array": [value.tolist(), str(value.dtype), list(value.shape)]}
    if isinstance(value, tuple):
        return {"tuple": [to_json(entry) for entry in value]}
    if isinstance(value, dict):
        return {"dict": [[name, to_json(entry)] for name, entry in value.items()]}
    return [to_json(entry) for entry in value] if isinstance(value, list) else value


_READERS: dict[str, Callable[[Any], Any]] = {
    "call": lambda x: Call(x[0], from_json(x[1]), tuple((name, from_json(value)) for name, value in x[2])),
    "answer": lambda x: Answer(x[0], from_json(x[1]), tuple(x[2]), x[3]),
    "floats": lambda x: Floats(tuple(x[0]), x[1], x[2]),
    "bytes": bytes.fromhex,
    "array": lambda x: np.array(x[0], dtype=x[1]).reshape(x[2]),
    "tuple": lambda x: tuple(from_json(entry) for entry in x),
    "dict": lambda x: {name: from_json(entry) for name, entry in x},
}


def from_json(data: Any) -> Any:
    """The inverse of `to_json`."""
    if isinstance(data, dict):
        ((kind, value),) = data.items()
        return _READERS[kind](value)
    return [from_json(entry) for entry in data] if isinstance(data, list) else data
