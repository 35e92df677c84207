"""Legal variants of rotary embedding and of writes into a cache."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..arithmetic import Arithmetic
from . import textbook_rope as textbook
from .specimen import variant
from .textbook import Array, working

FAMILY, CACHE = "rope", "kv-cache"
SIXTEEN = ("float16", "bfloat16")
TABLE = 8192                                                                    # positions that a table holds


def _angles(x: Any, positions: Any, R: int, base: float, scaling: Any, wide: Any) -> Array:
    return textbook.angles(np.asarray(positions), textbook.frequencies(R, base, scaling, wide), wide)


def _dim(x: Any, rotary_dim: int | None) -> int:
    return x.shape[-1] if rotary_dim is None else rotary_dim


def _with_tail(rotated: Array, x: Any, R: int) -> Array:
    return np.concatenate([rotated.astype(x.dtype), x[..., R:]], axis=-1)


@variant("rope", id="rope-tables-in-float32", family=FAMILY, promises=("deterministic",))
def rope_with_narrow_tables(x: Any, positions: Any, *, pairing: str, base: float = 10000.0, rotary_dim: int | None = None,
                            scaling: Any = None) -> Array:
    """Frequencies, angles and tables in float32, as nearly every library makes them."""
    return textbook.rope(x, positions, pairing=pairing, base=base, rotary_dim=rotary_dim, scaling=scaling)


@variant("rope", id="rope-tables-in-float64", family=FAMILY, arithmetic=Arithmetic(phases="float64"))
def rope_with_wide_tables(x: Any, positions: Any, *, pairing: str, base: float = 10000.0, rotary_dim: int | None = None,
                          scaling: Any = None) -> Array:
    """Tables made in float64 and stored in float32, in which the rotation is done."""
    R, wide = _dim(x, rotary_dim), working(x)
    t, m = _angles(x, positions, R, base, scaling, np.float64), textbook.magnitude(scaling)
    with np.errstate(all="ignore"):
        cos, sin = (np.cos(t) * m).astype(wide), (np.sin(t) * m).astype(wide)
        return _with_tail(textbook.turned(x[..., :R].astype(wide), cos, sin, pairing), x, R)


@variant("rope", id="rope-complex-product", family=FAMILY)
def rope_by_complex_product(x: Any, positions: Any, *, pairing: str, base: float = 10000.0, rotary_dim: int | None = None,
                            scaling: Any = None) -> Array:
    """A pair is a complex number, multiplied by one on the circle of radius m."""
    R, wide = _dim(x, rotary_dim), working(x)
    first, second = textbook.places(R, pairing)
    t, m = _angles(x, positions, R, base, scaling, wide), wide(textbook.magnitude(scaling))
    y = x[..., :R].astype(wide)
    with np.errstate(all="ignore"):
        z = (y[..., first] + 1j * y[..., second]) * (m * np.cos(t) + 1j * (m * np.sin(t)))
        y[..., first], y[..., second] = z.real, z.imag
        return _with_tail(y, x, R)


@variant("rope", id="rope-rotate-half", family=FAMILY, source="https://github.com/huggingface/transformers")
def rope_by_rotate_half(x: Any, positions: Any, *, pairing: str, base: float = 10000.0, rotary_dim: int | None = None,
                        scaling: Any = None) -> Array:
    """x cos + rotate_half(x) sin with tables as wide as the head."""
    R, wide = _dim(x, rotary_dim), working(x)
    t, m = _angles(x, positions, R, base, scaling, wide), wide(textbook.magnitude(scaling))
    y = x[..., :R].astype(wide)
    if pairing == "half":
        t = np.concatenate([t, t], axis=-1)
        turned = np.concatenate([-y[..., R // 2 :], y[..., : R // 2]], axis=-1)
    else:
        t = np.repeat(t, 2, axis=-1)
        turned = np.stack([-y[..., 1::2], y[..., 0::2]], axis=-1).reshape(y.shape)
    with np.errstate(all="ignore"):
        return _with_tail(y * (np.cos(t) * m) + turned * (np.sin(t) * m), x, R)


@variant("rope", id="rope-gathered-from-a-table", family=FAMILY, source="https://github.com/vllm-project/vllm")
def rope_from_a_table(x: Any, positions: Any, *, pairing: str, base: float = 10000.0, rotary_dim: int | None = None,
                      scaling: Any = None) -> Array:
    """Sines and cosines of all positions of the context are made once and gathered; it takes no position outside."""
    p, R, wide = np.asarray(positions), _dim(x, rotary_dim), working(x)
    if p.size and (p.min() < 0 or p.max() >= TABLE):
        raise NotImplementedError(f"positions outside 0..{TABLE - 1}")
    t, m = _angles(x, np.arange(TABLE), R, base, scaling, wide), wide(textbook.magnitude(scaling))
    cos, sin = (np.cos(t) * m)[p], (np.sin(t) * m)[p]
    with np.errstate(all="ignore"):
        return _with_tail(textbook.turned(x[..., :R].astype(wide), cos, sin, pairing), x, R)


def _through(log: Callable[..., Any], exp: Callable[..., Any]) -> textbook.Frequencies:
    def frequencies(R: int, base: float, scaling: Any, wide: Any) -> Array:
        return np.asarray(exp(-(np.arange(0, R, 2).astype(wide) / wide(R)) * log(wide(base))))

    return frequencies


@variant("rope", id="rope-frequencies-by-exp", family=FAMILY)
def rope_by_exp(x: Any, positions: Any, *, pairing: str, base: float = 10000.0, rotary_dim: int | None = None) -> Array:
    """Frequencies are e^(-2i/R ln base)."""
    return textbook.rope(x, positions, pairing=pairing, base=base, rotary_dim=rotary_dim, frequencies=_through(np.log, np.exp))


@variant("rope", id="rope-frequencies-by-exp2", family=FAMILY)
def rope_by_exp2(x: Any, positions: Any, *, pairing: str, base: float = 10000.0, rotary_dim: int | None = None) -> Array:
    """Frequencies are 2^(-2i/R log2 base), as on a GPU."""
    return textbook.rope(x, positions, pairing=pairing, base=base, rotary_dim=rotary_dim, frequencies=_through(np.log2, np.exp2))


@variant("rope", id="rope-positions-scaled", family=FAMILY, only={"scaling": ["none", "linear"]})
def rope_with_scaled_positions(x: Any, positions: Any, *, pairing: str, base: float = 10000.0, rotary_dim: int | None = None,
                               scaling: Any = None) -> Array:
    """Linear scaling divides positions instead of frequencies."""
    def angles(p: Array, f: Array, wide: Any) -> Array:
        return np.asarray((p.astype(wide) / wide(scaling["factor"] if scaling else 1))[..., None] * f)

    return textbook.rope(x, positions, pairing=pairing, base=base, rotary_dim=rotary_dim, angles=angles)


@variant("rope", id="rope-sixteen-bit-eager", family=FAMILY, dtypes=SIXTEEN, arithmetic=Arithmetic(elementwise="input", phases="float32"))
def rope_in_sixteen_bits(x: Any, positions: Any, *, pairing: str, base: float = 10000.0, rotary_dim: int | None = None,
                         scaling: Any = None) -> Array:
    """Phases in float32, tables, products and sums in the 16 bits of the input, as an eager framework does."""
    R, m = _dim(x, rotary_dim), np.float32(textbook.magnitude(scaling))
    t = _angles(x, positions, R, base, scaling, np.float32)
    with np.errstate(all="ignore"):
        cos, sin = (np.cos(t) * m).astype(x.dtype), (np.sin(t) * m).astype(x.dtype)
        return _with_tail(textbook.turned(x[..., :R], cos, sin, pairing), x, R)


@variant("rope", id="rope-sixteen-bit-widened", family=FAMILY, dtypes=SIXTEEN)
def rope_widened(x: Any, positions: Any, *, pairing: str, base: float = 10000.0, rotary_dim: int | None = None,
                 scaling: Any = None) -> Array:
    """16-bit inputs are widened to float32, and only the result is rounded."""
    options = {"base": base, "rotary_dim": rotary_dim, "scaling": scaling}
    return textbook.rope(x.astype(np.float32), positions, pairing=pairing, **options).astype(x.dtype)


@variant("rope", id="rope-sixteen-bit-to-float32", family=FAMILY, dtypes=SIXTEEN, arithmetic=Arithmetic(out="float32"))
def rope_kept_wide(x: Any, positions: Any, *, pairing: str, base: float = 10000.0, rotary_dim: int | None = None) -> Array:
    """16-bit inputs come out in float32, what is not turned too."""
    return textbook.rope(x.astype(np.float32), positions, pairing=pairing, base=base, rotary_dim=rotary_dim)


@variant("rope", id="rope-fused", family=FAMILY, dtypes=("float32",))
def rope_fused(x: Any, positions: Any, *, pairing: str, base: float = 10000.0, rotary_dim: int | None = None) -> Array:
    """One of the two products enters the sum unrounded, as a fused multiply-add leaves it."""
    R = _dim(x, rotary_dim)
    first, second = textbook.places(R, pairing)
    t = _angles(x, positions, R, base, None, np.float32)
    a, b, cos, sin = (y.astype(np.float64) for y in (x[..., first], x[..., second], np.cos(t), np.sin(t)))
    y = x[..., :R].copy()
    with np.errstate(all="ignore"):
        y[..., first] = (a * cos - (b * sin).astype(np.float32)).astype(np.float32)
        y[..., second] = (b * cos + (a * sin).astype(np.float32)).astype(np.float32)
        return _with_tail(y, x, R)


@variant("rope", id="rope-into-a-buffer", family=FAMILY, buffers=("out",))
def rope_into(x: Any, positions: Any, *, out: Any, pairing: str, base: float = 10000.0, rotary_dim: int | None = None) -> None:
    """The result goes into a buffer, the part that does not turn copied first."""
    R, wide = _dim(x, rotary_dim), working(x)
    t = _angles(x, positions, R, base, None, wide)
    out[..., R:] = x[..., R:]
    with np.errstate(all="ignore"):
        out[..., :R] = textbook.turned(x[..., :R].astype(wide), np.cos(t), np.sin(t), pairing)


@variant("rope", id="rope-halves-only", family=FAMILY, only={"pairing": ["half"]})
def rope_of_halves(x: Any, positions: Any, *, base: float = 10000.0, rotary_dim: int | None = None, scaling: Any = None) -> Array:
    """It takes no pairing, and says that it means halves."""
    return textbook.rope(x, positions, pairing="half", base=base, rotary_dim=rotary_dim, scaling=scaling)


@variant("rope", id="rope-by-permutation", family=FAMILY)
def rope_of_permuted(x: Any, positions: Any, *, pairing: str, base: float = 10000.0, scaling: Any = None) -> Array:
    """Interleaved pairs are brought into halves, turned there and brought back."""
    order = np.arange(x.shape[-1]) if pairing == "half" else np.argsort(np.arange(x.shape[-1]) % 2, kind="stable")
    return textbook.rope(x[..., order], positions, pairing="half", base=base, scaling=scaling)[..., np.argsort(order)]


@variant("rope", id="rope-flushed", family=FAMILY, dtypes=("float32",), arithmetic=Arithmetic(flush_to_zero=True))
def rope_without_subnormals(x: Any, positions: Any, *, pairing: str, base: float = 10000.0, rotary_dim: int | None = None) -> Array:
    """Subnormal coordinates that turn, going in and coming out, are taken for zero."""
    def flushed(y: Array) -> Array:
        return np.where(np.abs(y) < np.finfo(np.float32).tiny, np.float32(0), y)

    R = _dim(x, rotary_dim)
    return _with_tail(flushed(textbook.rope(flushed(x[..., :R]), positions, pairing=pairing, base=base)), x, R)


# Caches ---------------------------------------------------------------------------------------------------------------------


@variant("write_kv", id="write-kv-loop", family=CACHE, promises=("deterministic",))
def write_token_by_token(k_cache: Any, v_cache: Any, k: Any, v: Any, slots: Any) -> tuple[Array, Array]:
    """Token after token into copies of the caches."""
    return textbook.write_kv(k_cache, v_cache, k, v, slots)


@variant("write_kv", id="write-kv-by-index", family=CACHE, dtypes=("float32", "float64", *SIXTEEN))
def write_by_index(k_cache: Any, v_cache: Any, k: Any, v: Any, slots: Any) -> tuple[Array, Array]:
    """One assignment by index for all tokens that are not skipped; NumPy lets the last of equal indices win."""
    k_cache, v_cache, there = k_cache.copy(), v_cache.copy(), slots >= 0
    k_cache[slots[there]], v_cache[slots[there]] = k[there], v[there]
    return k_cache, v_cache


@variant("write_kv", id="write-kv-in-place", family=CACHE, in_place=("k_cache", "v_cache"))
def write_in_place(k_cache: Any, v_cache: Any, k: Any, v: Any, slots: Any) -> None:
    """The caches handed in are written to, and nothing is returned."""
    for token in np.flatnonzero(slots >= 0):
        k_cache[slots[token]], v_cache[slots[token]] = k[token], v[token]


@variant("write_kv", id="write-kv-backwards", family=CACHE)
def write_backwards(k_cache: Any, v_cache: Any, k: Any, v: Any, slots: Any) -> tuple[Array, Array]:
    """From the last token to the first, each slot written once."""
    k_cache, v_cache, done = k_cache.copy(), v_cache.copy(), {-1}
    for token in reversed(range(len(slots))):
        slot = int(slots[token])
        if slot not in done:
            k_cache[slot], v_cache[slot] = k[token], v[token]
            done.add(slot)
    return k_cache, v_cache


@variant("write_kv", id="write-kv-spare-slot", family=CACHE)
def write_with_a_spare_slot(k_cache: Any, v_cache: Any, k: Any, v: Any, slots: Any) -> tuple[Array, Array]:
    """Skipped tokens go into one slot more than there are, which is cut off."""
    caches = []
    for cache, tokens in ((k_cache, k), (v_cache, v)):
        longer = np.concatenate([cache, np.zeros_like(cache, shape=(1, *cache.shape[1:]))])
        for token, slot in enumerate(slots):
            longer[slot] = tokens[token]                                        # -1 is the spare one
        caches.append(longer[:-1])
    return caches[0], caches[1]


@variant("write_kv", id="write-kv-heads-apart", family=CACHE, in_place=("k_cache", "v_cache"), promises=("deterministic",))
def write_head_by_head(k_cache: Any, v_cache: Any, k: Any, v: Any, slots: Any) -> None:
    """Each head by itself, in place, keys before values."""
    for cache, tokens in ((k_cache, k), (v_cache, v)):
        for head in range(cache.shape[1]):
            for token, slot in enumerate(slots):
                if slot >= 0:
                    cache[slot, head] = tokens[token, head]


@variant("padded_positions", id="positions-token-by-token", family=CACHE)
def positions_token_by_token(present: Any, *, past: int = 0) -> Array:
    """Each row walked from its first column, the cached ones too."""
    rows = []
    for row in present:
        counted, line = 0, []
        for seen in row:
            counted += bool(seen)
            line.append(max(counted - 1, 0))
        rows.append(line[past:])
    return np.array(rows, dtype=np.int32).reshape(present.shape[0], present.shape[1] - past)


@variant("padded_positions", id="positions-less-padding", family=CACHE)
def positions_less_padding(present: Any, *, past: int = 0) -> Array:
    """The column less the padding up to it, counted over all columns and cut then."""
    column = np.arange(present.shape[1]) - np.cumsum(~present, axis=1)
    return np.asarray(np.maximum(column, 0)[:, past:])
