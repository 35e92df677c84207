"""Zero sequences: the designed ones, at least one for each known kind of fault, and how random calls are chosen."""

from __future__ import annotations

from .sequence import NEW, Call, Floats, Numbers, Sequence
from .zero_model import ZeroModel, new_zero

# Shapes whose sizes no small number of ranks divides, one of them empty; none of them empty; sizes that 2 and 3 divide.
ODD = ((5,), (7,), (0, 2), (1,))
FULL = ((5,), (7,), (3, 1))
EVEN = ((2, 3), (6,))
SHAPES = (ODD, EVEN, ((1,),), ((3, 3), (2,), (4,)))


def attach(shapes: tuple[tuple[int, ...], ...] = EVEN, first: int = 1) -> Call:
    """Parameters whose numbers nobody else has."""
    return Call("attach", (tuple((f"p{k}", Floats(shape, first + 20 * k)) for k, shape in enumerate(shapes)),))


def gradients(method: str, world: int, shapes: tuple[tuple[int, ...], ...] = EVEN, *, first: int = 1, sign: int = 1,
              tokens: tuple[int, ...] | None = None) -> Call:
    """Each rank's gradients: integers of either sign, which no two ranks share."""
    own = tuple(tuple(Floats(shape, sign * (first + 7 * r - 3 * k), 1 - 2 * (r % 2)) for k, shape in enumerate(shapes))
                for r in range(world))  # fmt: skip
    return Call(method, (own,), () if tokens is None else (("tokens", tokens),))


def accumulate(world: int, shapes: tuple[tuple[int, ...], ...] = EVEN, *, first: int = 1, sign: int = 1,
               tokens: tuple[int, ...] | None = None) -> Call:
    return gradients("accumulate", world, shapes, first=first, sign=sign, tokens=tokens)


def step(world: int, shapes: tuple[tuple[int, ...], ...] = EVEN, *, first: int = 1, sign: int = 1,
         tokens: tuple[int, ...] | None = None) -> Call:
    return gradients("step", world, shapes, first=first, sign=sign, tokens=tokens)


def reload(stage: int, world: int) -> Call:
    return Call("reload", (stage, world))


def _steps(stage: int, world: int, shapes: tuple[tuple[int, ...], ...]) -> Sequence:
    return (new_zero(stage, world), attach(shapes), step(world, shapes), step(world, shapes, first=4, sign=-1),
            step(world, shapes, first=2))  # fmt: skip


def _accumulated(stage: int, shapes: tuple[tuple[int, ...], ...]) -> Sequence:
    """Four micro-batches, the last of them large and of the other sign; then steps of one and of two."""
    return (new_zero(stage, 2), attach(shapes), *(accumulate(2, shapes, first=i) for i in range(3)), step(2, shapes, first=90, sign=-1),
            step(2, shapes), accumulate(2, shapes, first=30), step(2, shapes))  # fmt: skip


# What it is about: the calls.
DESIGNED: dict[str, Sequence] = {
    **{f"stage {stage}, {world} ranks, sizes that {world} does not divide": _steps(stage, world, ODD)
       for stage in (0, 1, 2, 3) for world in (2, 4)},
    **{f"stage {stage}, 3 ranks, sizes that 3 divides": _steps(stage, 3, EVEN) for stage in (0, 1, 2, 3)},
    **{f"stage {stage}, micro-batches": _accumulated(stage, ODD) for stage in (0, 1, 2, 3)},
    **{f"stage {stage}, micro-batches of no empty array": _accumulated(stage, FULL) for stage in (1, 3)},
    **{f"stage {stage}, one rank": _steps(stage, 1, EVEN) for stage in (1, 3)},
    "more ranks than elements": _steps(3, 4, ((1,), (2,))),
    "clipped, each shard another norm": (new_zero(2, 2, 2.0), attach(((2,),)), step(2, ((2,),), first=3), step(2, ((2,),), first=40)),
    "clipped at stage 3": (new_zero(3, 4, 1.0), attach(ODD), step(4, ODD), step(4, ODD, first=30, sign=-1)),
    "within the limit": (new_zero(1, 2, 4096.0), attach(), step(2), step(2, first=5)),
    "tokens that differ": (new_zero(2, 2), attach(), accumulate(2, tokens=(1, 3)), step(2, first=9, tokens=(2, 0)), step(2, tokens=(0, 0))),
    "another layout": (new_zero(1, 2), attach(ODD), step(2, ODD), reload(3, 4), step(4, ODD, first=3), reload(2, 1), step(1, ODD),
                       reload(0, 3), step(3, ODD)),
    "reloaded between micro-batches": (new_zero(2, 2), attach(), accumulate(2), reload(1, 2), step(2)),
    "attached anew": (new_zero(3, 2), attach(), step(2), attach(ODD, first=50), step(2, ODD), step(2, ODD, first=6)),
    "wrong calls": (new_zero(1, 2), step(2), attach(), step(3), step(2, ODD), accumulate(1), step(2, tokens=(1, 1, 1)), step(2)),
    "no such stage": (new_zero(4, 2), attach()),
}  # fmt: skip


def designed_sequences() -> dict[str, Sequence]:
    """All designed sequences by what they are about."""
    return DESIGNED


WEIGHTS = {"attach": 1, "accumulate": 2, "step": 4, "reload": 1}


def drawn_new(numbers: Numbers, abilities: frozenset[str]) -> Call:
    """Any stage of 1 to 4 ranks, clipped or not."""
    limit = float(1 + numbers[2] % 30) if "new.max_norm" in abilities and numbers[2] % 2 else None
    return new_zero(numbers[0] % 4, 1 + numbers[1] % 4, limit)


def drawn_call(method: str, numbers: Numbers, model: ZeroModel, abilities: frozenset[str]) -> Call:
    """A call of a method: mostly one that can succeed. numbers choose; 0 is the plainest."""
    which, amount, rest = numbers
    if method == "attach" or not model.states:
        return attach(SHAPES[which % len(SHAPES)], 1 + amount % 9)
    if method == "reload" and not model.pending:
        return reload(which % 4, 1 + amount % 4)
    shapes = tuple(state.p.shape for state in model.states.values())
    wrong = 1 if rest % 20 == 19 else 0
    tokens = tuple((which >> 3 * r) % 4 for r in range(model.world)) if "step.tokens" in abilities and rest % 3 == 2 else None
    chosen = "step" if method == "reload" else method
    return gradients(chosen, model.world + wrong, shapes, first=amount % 40, sign=1 - 2 * (rest % 2), tokens=tokens)


def in_bounds(call: Call) -> bool:
    """Whether a call is one that the contract speaks of: a shrunk sequence must be."""
    if call.method in (NEW, "reload"):
        return bool(call.args[0] >= 0 and call.args[1] >= 1 and (call.option("max_norm") or 0) >= 0)
    return all(n >= 0 for n in call.option("tokens") or ())
