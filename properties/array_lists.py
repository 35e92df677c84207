"""Array lists: arguments and results that are lists of arrays, kept apart in a case as `grads.0`, `grads.1`, … and handed over as one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def whole_name(name: str) -> str:
    """The argument or result that a name of one array belongs to.

    >>> whole_name("grads.12"), whole_name("norm")
    ('grads', 'norm')
    """
    return name.partition(".")[0]


def gathered(values: Mapping[str, Any], lists: tuple[str, ...]) -> dict[str, Any]:
    """The members of each list as one, in their order; what belongs to no list as it is.

    >>> gathered({"grads.0": 5, "grads.1": 7, "max_norm": 1.0}, ("grads",))
    {'grads': [5, 7], 'max_norm': 1.0}
    """
    found: dict[str, Any] = {}
    for name, value in values.items():
        whole = whole_name(name)
        if whole in lists and whole != name:
            found.setdefault(whole, []).append(value)
        else:
            found[name] = value
    return found


def spread(name: str, members: Any) -> dict[str, Any]:
    """The members of a list by names of their own: the inverse of `gathered`.

    >>> spread("grads", [5, 7])
    {'grads.0': 5, 'grads.1': 7}
    """
    return {f"{name}.{i}": member for i, member in enumerate(members)}
