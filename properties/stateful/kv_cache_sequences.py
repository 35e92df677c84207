"""KV cache sequences: the designed ones, at least one for each known kind of fault, and how random calls are chosen."""

from __future__ import annotations

from .kv_cache_model import KVCacheModel, new_cache
from .sequence import NEW, Call, Floats, Numbers, Sequence

D, DV = 2, 3


def append(n: int, *, B: int = 1, H: int = 1, first: int = 0, D: int = D, Dv: int = DV) -> Call:
    """n tokens whose numbers nobody else has: keys from `first` on, values negative."""
    return Call("append", (Floats((B, H, n, D), first + 1), Floats((B, H, n, Dv), -first - 1, -1)))


def crop(n: int) -> Call:
    return Call("crop", (n,))


def select(*rows: int) -> Call:
    return Call("select", (rows,))


VIEW, LENGTH = Call("view"), Call("__len__")

# What it is about: the calls.
DESIGNED: dict[str, Sequence] = {
    "decoding": (new_cache(), append(5), append(1, first=20), append(1, first=30), VIEW, LENGTH),
    "an empty prompt": (new_cache(), append(0), append(2), append(0), VIEW),
    "nothing yet": (new_cache(), LENGTH, VIEW, select(0), crop(0), crop(1), append(1)),
    "sequences and heads": (new_cache(), append(2, B=2, H=3), append(3, B=2, H=3, first=40), VIEW),
    "rolled back": (new_cache(), append(8), append(4, first=40), crop(10), append(1, first=60),
                    append(3, first=70), crop(9), append(2, first=90)),
    "rolled back to nothing": (new_cache(), append(3), crop(0), append(2, first=20), crop(2), crop(1)),
    "windowed": (new_cache(3), append(2), append(1, first=10), append(1, first=20), append(2, first=30), append(7, first=40),
                 append(1, first=60)),
    "a window of one": (new_cache(1), append(3), append(1, first=20), crop(3), append(1, first=30)),
    "a window of none": (new_cache(0), append(3), append(1, first=20), VIEW),
    "rolled back across the window": (new_cache(2), append(5), append(2, first=30), crop(6), crop(4), crop(1), append(1, first=60)),
    "beams": (new_cache(), append(2, B=3), select(2, 0, 1), append(1, B=3, first=30), select(1, 1), append(1, B=2, first=50), select(0)),
    "windowed beams": (new_cache(2), append(3, B=2, H=2), select(1, 1, 0), append(1, B=3, H=2, first=60), select(2)),
    "split, and merged again": (new_cache(), append(4, B=2), select(0, 1), select(1, 0), select(1, 0), append(1, B=2, first=60)),
    "rolled back, then selected": (new_cache(), append(5, B=2), crop(2), select(1, 0), append(1, B=2, first=60), crop(3)),
    "wrong calls": (new_cache(), append(2, B=2), append(1), append(1, B=2, H=2), append(1, B=2, D=D + 1), append(1, B=2, Dv=DV + 1),
                    crop(3), select(2), Call("append", (Floats((2, 1, 1, D)), Floats((2, 1, 2, DV)))), append(1, B=2, first=30)),
    "many small ones": (new_cache(), *(append(1, first=9 * i) for i in range(20)), crop(17), append(3, first=200)),
}  # fmt: skip


def designed_sequences() -> dict[str, Sequence]:
    """All designed sequences by what they are about."""
    return DESIGNED


WEIGHTS = {"append": 4, "crop": 2, "select": 1, "view": 1}


def drawn_new(numbers: Numbers, abilities: frozenset[str]) -> Call:
    """A cache without a window, or with one of 0 to 4."""
    return new_cache(numbers[1] % 5 if "new.window" in abilities and numbers[0] % 2 else None)


def drawn_call(method: str, numbers: Numbers, model: KVCacheModel, abilities: frozenset[str]) -> Call:
    """A call of a method: mostly one that can succeed. numbers choose; 0 is the plainest."""
    which, amount, rest = numbers
    if method == "append" or model.k is None:
        B, H = (1 + which % 2, 1 + which // 2 % 2) if model.k is None or rest % 20 == 19 else model.k.shape[:2]
        return append(amount % 4, B=B, H=H, first=24 * model.appended)
    if method == "crop":
        return crop(amount % (len(model) + 1 + (rest % 20 == 19)))
    if method == "select":
        rows = len(model.k) + (rest % 20 == 19)
        return select(*((which >> 3 * i) % rows for i in range(1 + amount % 3)))
    return VIEW


def in_bounds(call: Call) -> bool:
    """Whether a call is one that the contract speaks of: a shrunk sequence must be."""
    if call.method == NEW:
        return (call.option("window") or 0) >= 0
    return call.method != "crop" or bool(call.args[0] >= 0)
