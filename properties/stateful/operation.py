"""Operation: an object of the contract, its model, its laws and its sequences, together. `operations` lists them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from .play import Model, SequenceLaw
from .sequence import NEW, Answer, Call, Numbers, Sequence


@dataclass(frozen=True)
class Probe:
    """An ability that no signature tells: a sequence is tried, and its answers show it."""

    ability: str
    calls: Sequence
    shows: Callable[[list[Answer]], bool]
    without: str


@dataclass(frozen=True)
class StatefulOperation:
    """One object of the contract.

    oracle             the reference class
    required, optional methods; without an optional one, what it does is not covered
    arguments          optional arguments, as `method.argument`, `new` being the constructor
    sample             makes one object, to see what methods it has
    probes             abilities that are found by trying
    model              the model of an object made by this first call, with these abilities
    laws               what must hold after every call, the plainest first
    designed           sequences by what they are about, at least one for each known kind of fault
    weights            how often each method is drawn, beside the others
    drawn_new, drawn_call   a first call, and a call of a method that the model can follow, chosen by drawn numbers
    in_bounds          whether a call is one the contract speaks of
    carried            modules of this package that a repro carries a copy of, or, as `reference.NAME`, of the oracles: model, laws
                       and what they need
    model_name, laws_name   where in them the model and the laws are, as `module:name`
    walker_name        where in them, if anywhere, the function is that makes of a subject's factory one whose objects take and
                       give plain data alone: states that are objects themselves, say, by number
    """

    name: str
    summary: str
    oracle: Callable[..., Any]
    required: tuple[str, ...]
    optional: tuple[str, ...]
    arguments: tuple[str, ...]
    sample: Call
    probes: tuple[Probe, ...]
    model: Callable[[Call, frozenset[str]], Model]
    laws: tuple[SequenceLaw, ...]
    designed: Callable[[], dict[str, Sequence]]
    weights: Mapping[str, int]
    drawn_new: Callable[[Numbers, frozenset[str]], Call]
    drawn_call: Callable[[str, Numbers, Any, frozenset[str]], Call]
    in_bounds: Callable[[Call], bool]
    carried: tuple[str, ...]
    model_name: str
    laws_name: str
    source: str
    walker_name: str = ""

    def held(self, factory: Callable[..., Any]) -> Callable[..., Any]:
        """The factory whose objects are called: the subject's own, or what `walker_name` makes of it."""
        return walked(factory, self.walker_name)

    def covered(self, calls: Sequence, abilities: frozenset[str]) -> Sequence:
        """The calls that a subject of these abilities can be given: any part of a sequence is a sequence."""
        return tuple(call for call in calls if self.can(call, abilities))

    def designed_for(self, abilities: frozenset[str]) -> list[Sequence]:
        """The designed sequences that a subject of these abilities can be given, each once."""
        covered = [self.covered(calls, abilities) for calls in self.designed().values()]
        return [calls for calls in dict.fromkeys(covered) if len(calls) > 1 and calls[0].method == NEW]

    def can(self, call: Call, abilities: frozenset[str]) -> bool:
        """Whether a subject of these abilities has the method and the arguments of a call."""
        given = [f"{call.method}.{name}" for name, _ in call.named]
        methods = set(self.required) | abilities | {NEW}
        return call.method in methods and all(name in abilities for name in given)


def walked(factory: Callable[..., Any], walker_name: str) -> Callable[..., Any]:
    """What the function of that name makes of a factory, and the factory itself where there is no name."""
    if not walker_name:
        return factory
    module, _, name = walker_name.partition(":")
    made: Callable[..., Any] = getattr(import_module(f".{module}", __package__), name)(factory)
    return made
