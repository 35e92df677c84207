"""Zero walker: a sharded optimizer whose results are plain data, and which can go on in another layout from what it saved.

It needs nothing, so that a repro can carry a copy.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

SAME = ("attach", "accumulate", "step", "params", "held")


class ZeroWalker:
    """One object after another: `reload` makes a new one from the state of the last.

    make   factory, called as make(stage, world, lr=…, …); what it makes has attach, step and params, and may have accumulate,
           save and load, held, moved

    >>> from oracles.reference import Zero
    >>> walker = ZeroWalker(Zero, 1, 1, lr=0.5, beta1=0.0, beta2=0.0, eps=0.0, weight_decay=0.0)
    >>> walker.attach([["w", [1.0]]])
    >>> walker.reload(3, 2)
    >>> walker.params()["w"], walker.moved()
    (array([1.]), [0, 0])
    """

    def __init__(self, make: Callable[..., Any], stage: int, world: int, **options: Any) -> None:
        self._make, self._options = make, options
        self._attached: dict[str, Any] = {}
        self._object = make(stage, world, **options)

    def __getattr__(self, name: str) -> Any:
        """The methods of the object, and those made of them, where it has what they need."""
        made = {"reload": (("save", "load"), self._reload), "moved": (("moved",), self._moved)}
        if name in made and all(hasattr(self._object, needed) for needed in made[name][0]):
            return made[name][1]
        if name == "attach":
            return self._attach
        if name in SAME:
            return getattr(self._object, name)
        raise AttributeError(name)

    def _attach(self, params: Any) -> Any:
        """Pairs of name and array, as the mapping that the contract knows."""
        given = {name: array for name, array in params}
        if len(given) < len(params):
            raise ValueError("params: a name is given twice")
        result = self._object.attach(given)
        self._attached = given
        return result

    def _reload(self, stage: int, world: int) -> None:
        """Save, make another object of that layout, attach what was attached, load."""
        state = self._object.save()
        other = self._make(stage, world, **self._options)
        other.attach(self._attached)
        other.load(state)
        self._object = other

    def _moved(self) -> list[int]:
        """Bytes of gradients and parameters that each rank sent."""
        moved = self._object.moved()
        traffic: Any = moved["buffers"] if isinstance(moved, Mapping) else moved
        return [int(n) for n in (traffic.sent if hasattr(traffic, "sent") else traffic)]


def with_reload(make: Callable[..., Any]) -> Callable[..., ZeroWalker]:
    """The factory of walkers over the objects that a factory makes, with its arguments."""
    try:
        return functools.wraps(make)(functools.partial(ZeroWalker, make))
    except (AttributeError, TypeError):
        return functools.partial(ZeroWalker, make)
