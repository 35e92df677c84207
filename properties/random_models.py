"""Random models: laws of the next token in every context, in fractions, with zeros, ties, disjoint supports and equal models."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from fractions import Fraction

from .enumeration import Distribution, Model, Tokens


@dataclass(frozen=True)
class RandomModel:
    """A distribution for every context over V tokens, drawn from a seed: whole weights from `least` to `most`
    over their sum, a negative one taken as 0.

    With a `side`, 0 or 1, the context splits the vocabulary in two and only that side has weight: models of one `split_seed`
    and different sides have disjoint supports everywhere.

    >>> [str(p) for p in RandomModel(3, seed=1)((0, 2))] == [str(p) for p in RandomModel(3, seed=1)((0, 2))]
    True
    """

    V: int
    seed: int
    least: int = 1
    most: int = 12
    side: int | None = None
    split_seed: int = 0
    known: dict[Tokens, Distribution] = field(default_factory=dict, repr=False, compare=False)

    def __call__(self, context: Tokens) -> Distribution:
        if context not in self.known:
            draw = random.Random(f"{self.seed} {context}")
            weights = [max(0, draw.randint(self.least, self.most)) for _ in range(self.V)]
            tokens = list(range(self.V))
            if self.side is not None:
                split = random.Random(f"{self.split_seed} {context}")
                split.shuffle(tokens)
                cut = split.randint(1, self.V - 1)
                tokens = (tokens[:cut], tokens[cut:])[self.side]
                weights = [w if x in tokens else 0 for x, w in enumerate(weights)]
            if not any(weights):
                weights[draw.choice(tokens)] = 1
            self.known[context] = tuple(Fraction(w, sum(weights)) for w in weights)
        return self.known[context]


KINDS = ("positive", "zeros", "ties", "disjoint", "equal", "one against many")


def random_models(V: int, seed: int) -> tuple[Model, Model]:
    """A draft and a target over V >= 2 tokens; the seed chooses the kind, in the order of KINDS, and the numbers.

    zeros: about half the tokens have probability 0. ties: weights of 1 and 2. disjoint: no token in common. equal: the draft
    is the target. one against many: the draft is certain, the target is not.
    """
    kind = KINDS[seed % len(KINDS)]
    target_seed, draft_seed = 2 * seed, 2 * seed + 1
    if kind == "disjoint":
        return RandomModel(V, draft_seed, side=0, split_seed=seed), RandomModel(V, target_seed, side=1, split_seed=seed)
    if kind == "one against many":
        return RandomModel(V, draft_seed, least=0, most=0), RandomModel(V, target_seed)
    least, most = {"positive": (1, 12), "zeros": (-3, 3), "ties": (1, 2), "equal": (0, 5)}[kind]
    target = RandomModel(V, target_seed, least=least, most=most)
    return (target if kind == "equal" else RandomModel(V, draft_seed, least=least, most=most)), target
