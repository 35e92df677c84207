"""The decoder: every way to run it gives the logits of one plain evaluation, within a bound carried through all its layers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from oracles.reference import ContiguousCache, Decoder, PagedCache, PagePool, rope, transformer_forward, transformer_generate

pytestmark = pytest.mark.filterwarnings("error")
U = 2.0**-53
YARN = {"kind": "yarn", "factor": 4.0, "original_max_position_embeddings": 8, "beta_fast": 2, "beta_slow": 1, "mscale": 1.0,
        "mscale_all_dim": 0.707, "truncate": True}
SIZES: dict[str, Any] = {"vocabulary": 11, "width": 8, "layers": 2, "heads": 4, "kv_heads": 2, "head_size": 4, "hidden": 6}
LATENT: dict[str, Any] = {"latent": 5, "rope_size": 2, "pairing": "interleaved"}
DECODERS = {"grouped": Decoder(**SIZES), "tied": Decoder(**SIZES, tied=True), "window": Decoder(**SIZES, window=3),
            "multi-query, yarn": Decoder(**{**SIZES, "kv_heads": 1}, scaling=YARN), "latent": Decoder(**SIZES, **LATENT),
            "latent, yarn, window": Decoder(**SIZES, **LATENT, scaling=YARN, window=2)}
TOKENS = np.array([3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5])


def weights_of(decoder: Decoder, seed: int = 0) -> Any:
    """Normal numbers small enough that a layer does not blow errors up, and so the bound: norms around 1, vectors of size 1."""
    r, weights = np.random.default_rng(seed), {}
    for name, shape in decoder.shapes().items():
        size = 1.0 if name == "embedding" else 0.1 if len(shape) == 1 else 0.5 / np.sqrt(shape[-2])
        weights[name] = (len(shape) == 1) + size * r.normal(size=shape)
    return weights


class Rounded:
    """A value and how far any evaluation of it may be from the exact one; each operation carries errors on and adds its own."""

    def __init__(self, x: Any, e: Any = 0.0) -> None:
        self.x, self.e = np.asarray(x), np.broadcast_to(e, np.shape(x))

    @property
    def size(self) -> Any:
        return np.abs(self.x) + self.e

    def __add__(self, other: Rounded) -> Rounded:
        x = self.x + other.x
        return Rounded(x, self.e + other.e + U * (self.size + other.size))

    def __matmul__(self, w: Any) -> Rounded:
        return Rounded(self.x @ w, self.e @ np.abs(w) + (w.shape[-2] + 1) * U * self.size @ np.abs(w))

    def shaped(self, change: Any) -> Rounded:
        return Rounded(change(self.x), change(self.e))

    def heads(self, size: int) -> Rounded:
        return self.shaped(lambda y: y.reshape(len(y), -1, size).swapaxes(0, 1))                   # (H, T, size)

    def normed(self, weight: Any, eps: float) -> Rounded:
        root = np.sqrt((self.x**2).mean(-1, keepdims=True) + eps)
        d_root = (2 * np.abs(self.x) * self.e + self.e**2).mean(-1, keepdims=True) / root
        y, w = self.x / root * weight, np.abs(weight)
        e = w * (self.e + np.abs(self.x) * d_root / root) / (root - d_root)
        return Rounded(y, e + (self.x.shape[-1] / 2 + 5) * U * (np.abs(y) + e))

    def gated(self, w_gate: Any, w_up: Any, w_down: Any) -> Rounded:
        g, a = self @ w_gate, self @ w_up
        s = g.x / (1 + np.exp(-g.x))
        d = 1.1 * g.e + 6 * U * (np.abs(s) + 1.1 * g.e)
        h = s * a.x
        e = d * np.abs(a.x) + (np.abs(s) + d) * a.e
        return Rounded(h, e + U * (np.abs(h) + e)) @ w_down

    def turned(self, positions: Any, decoder: Decoder) -> Rounded:
        turn = {"pairing": decoder.pairing, "base": decoder.base, "scaling": decoder.scaling}
        R = self.x.shape[-1]
        half = (lambda y: np.concatenate([y[..., R // 2 :], y[..., : R // 2]], -1)) if decoder.pairing == "half" \
            else (lambda y: y.reshape(*y.shape[:-1], R // 2, 2)[..., ::-1].reshape(y.shape))
        m = 1.2                                                                 # at least yarn's factor on cos and sin here
        own = 8 * U * m * (self.size + half(self.size))                         # all ways turn by the same angles
        return Rounded(rope(self.x, positions, **turn), m * (self.e + half(self.e)) + own)


def attend(q: Rounded, k: Rounded, v: Rounded, seen: Any, scale: float, n: int) -> Rounded:
    """One attention of (H, T, D) over (H, T, D) and (H, T, Dv); n additions in a score or a value at most, in any order."""
    up = lambda y: np.swapaxes(y, -1, -2)  # noqa: E731
    s = scale * q.x @ up(k.x)
    d = scale * (q.size @ up(k.e) + q.e @ up(k.size)) + (n + 20) * U * scale * q.size @ up(k.size)
    d = np.where(seen, d, 0.0).max(-1, keepdims=True)
    p = np.where(seen, np.exp(s - np.where(seen, s, -np.inf).max(-1, keepdims=True)), 0.0)
    p = p / p.sum(-1, keepdims=True)
    T = len(seen)
    t = np.expm1(2 * d + (2 * T + 16) * U)
    return Rounded(p @ v.x, (1 + t) * (p @ v.e) + (1 + t) * (t + (T + n + 8) * U) * (p @ v.size))


def evaluated(tokens: Any, w: Any, decoder: Decoder) -> Rounded:
    """The decoder written down once more for one sequence, head by head, with errors: the formula of the page."""
    T, H, D = len(tokens), decoder.heads, decoder.head_size
    p = np.arange(T)
    seen = (p[:, None] >= p) & (p[:, None] - p <= (T if decoder.window is None else decoder.window))
    x = Rounded(w["embedding"][tokens])
    for i in range(decoder.layers):
        l = {name: w[f"layers.{i}.{name}"] for name in (key.split(".", 2)[2] for key in w if key.startswith(f"layers.{i}."))}
        y = x.normed(l["norm_attention"], decoder.eps)
        if decoder.latent is None:
            q, k = ((y @ l[name]).heads(D).turned(p, decoder) for name in ("w_q", "w_k"))
            k, v = (z.shaped(lambda a: np.repeat(a, H // decoder.kv_heads, 0)) for z in (k, (y @ l["w_v"]).heads(D)))
            out = attend(q, k, v, seen, D**-0.5, D)
        else:
            Dr, C = decoder.rope_size, decoder.latent
            q = (y @ l["w_q"]).heads(D + Dr)
            q_nope, q_rope = q.shaped(lambda a: a[..., :D]), q.shaped(lambda a: a[..., D:]).turned(p, decoder)
            latent, k_rope = (y @ l["w_c"]).normed(l["norm_latent"], decoder.eps), (y @ l["w_kr"]).turned(p, decoder)
            m = 1.0 if decoder.scaling is None else 1 + 0.0707 * np.log(decoder.scaling["factor"])
            q_l, size = q_nope @ l["w_uk"].swapaxes(-1, -2), q_nope.size @ np.abs(l["w_uk"]).swapaxes(-1, -2)
            e = q_l.e + (C + D + 2) * U * size                                  # keys built anew round elsewhere, as often
            q = Rounded(np.concatenate([q_l.x, q_rope.x], -1), np.concatenate([e, q_rope.e], -1))
            k = Rounded(np.concatenate([latent.x, k_rope.x], -1), np.concatenate([latent.e, k_rope.e], -1))
            k, v = (z.shaped(lambda a: np.repeat(a[None], H, 0)) for z in (k, latent))
            out = attend(q, k, v, seen, m * m * (D + Dr) ** -0.5, C + D + Dr) @ l["w_uv"]
        x = x + out.shaped(lambda a: a.swapaxes(0, 1).reshape(T, -1)) @ l["w_o"]
        x = x + x.normed(l["norm_feed_forward"], decoder.eps).gated(l["w_gate"], l["w_up"], l["w_down"])
    return x.normed(w["norm"], decoder.eps) @ (w["embedding"].T if decoder.tied else w["head"])


def caches(decoder: Decoder) -> dict[str, Any]:
    pool = lambda size: PagedCache(PagePool(decoder.layers, 20, size), "seq", window=decoder.window)  # noqa: E731
    return {"side by side": ContiguousCache(decoder.layers, window=decoder.window), "pages of 1": pool(1), "pages of 3": pool(3),
            "pages of 16": pool(16)}


@pytest.mark.parametrize("name", DECODERS)
def test_the_whole_sequence_at_once_is_the_formula(name: str) -> None:
    decoder, w = DECODERS[name], weights_of(DECODERS[name])
    want = evaluated(TOKENS, w, decoder)
    got = transformer_forward(np.stack([TOKENS, TOKENS[::-1]]), w, decoder)
    assert (np.abs(got[0] - want.x) <= 2 * want.e).all()
    assert (want.e <= 2.0**-30 * np.abs(want.x).max()).all()                    # a bound that would let a fault pass is none


@pytest.mark.parametrize("cache", ["side by side", "pages of 1", "pages of 3", "pages of 16"])
@pytest.mark.parametrize("name", DECODERS)
@pytest.mark.parametrize("chunks", [[1] * 11, [11], [4, 4, 3], [7, 1, 1, 1, 1]])
def test_in_any_chunks_through_any_cache_it_is_the_formula(name: str, cache: str, chunks: list[int]) -> None:
    decoder, w = DECODERS[name], weights_of(DECODERS[name])
    want, memory, done, parts = evaluated(TOKENS, w, decoder), caches(decoder)[cache], 0, []
    memory.open(TOKENS)
    for n in chunks:
        parts.append(transformer_forward(TOKENS[None, done : done + n], w, decoder, cache=memory)[0])
        done += n
    assert (np.abs(np.concatenate(parts) - want.x) <= 2 * want.e).all()


@pytest.mark.parametrize("name", DECODERS)
def test_four_ways_to_generate_agree(name: str) -> None:
    decoder, w = DECODERS[name], weights_of(DECODERS[name])
    plain, logits = transformer_generate(TOKENS[:5], w, decoder, new_tokens=6)
    bound = 2 * evaluated(plain[:-1], w, decoder).e[4:]
    for way, cache in caches(decoder).items():
        for chunk in (None, 1, 2):
            cache = caches(decoder)[way]
            tokens, rows = transformer_generate(TOKENS[:5], w, decoder, new_tokens=6, cache=cache, chunk=chunk)
            assert tokens.tolist() == plain.tolist(), (way, chunk)
            assert (np.abs(rows - logits) <= bound).all(), (way, chunk)
            assert len(cache) == 10                                             # the last token was chosen, and never computed


@pytest.mark.parametrize("name", DECODERS)
@pytest.mark.parametrize("length", [3, 8, 9])
def test_a_prompt_that_the_pool_remembers_gives_the_same_logits(name: str, length: int) -> None:
    decoder, w = DECODERS[name], weights_of(DECODERS[name])
    pool = PagePool(decoder.layers, 20, 4)
    first, logits = transformer_generate(TOKENS[:length], w, decoder, new_tokens=2, cache=PagedCache(pool, 1, window=decoder.window))
    before = [x.copy() for pages in pool.pages for x in pages]
    again = PagedCache(pool, 2, window=decoder.window)
    tokens, rows = transformer_generate(TOKENS[:length], w, decoder, new_tokens=2, cache=again)
    assert pool.allocator.stats()["hits"] == length // 4
    assert tokens.tolist() == first.tolist()
    assert (np.abs(rows - logits) <= 2 * evaluated(first[:-1], w, decoder).e[length - 1 :]).all()
    shared = pool.allocator.table(1)[: length // 4]
    for old, new in zip(before, (x for pages in pool.pages for x in pages)):
        np.testing.assert_array_equal(old[shared], new[shared])                 # found, read, and not written again


def test_prompts_under_another_salt_are_not_remembered() -> None:
    decoder, w = DECODERS["grouped"], weights_of(DECODERS["grouped"])
    pool = PagePool(decoder.layers, 20, 4)
    for seq, salt in enumerate([b"adapter 1", b"adapter 2", b""]):
        transformer_generate(TOKENS, w, decoder, new_tokens=1, cache=PagedCache(pool, seq, salt=salt))
    assert pool.allocator.stats()["hits"] == 0


@pytest.mark.parametrize("name", DECODERS)
def test_a_fork_goes_on_by_itself(name: str) -> None:
    decoder, w = DECODERS[name], weights_of(DECODERS[name])
    pool = PagePool(decoder.layers, 20, 4)
    parent = PagedCache(pool, "parent", window=decoder.window)
    parent.open(TOKENS[:6])
    transformer_forward(TOKENS[None, :6], w, decoder, cache=parent)
    child = parent.fork("child")
    for cache, tail in ((child, [7, 7]), (parent, [8, 0]), (child, [2])):       # in turns: each on its own copy
        last = transformer_forward([tail], w, decoder, cache=cache)[0]
        want = evaluated(np.array([*TOKENS[:6], *([7, 7] if cache is child and tail == [2] else []), *tail]), w, decoder)
        assert (np.abs(last - want.x[-len(tail) :]) <= 2 * want.e[-len(tail) :]).all()
    child.free()
    parent.free()
    assert pool.allocator.stats()["used"] == 0


@pytest.mark.parametrize("cache", ["side by side", "pages of 1", "pages of 3", "pages of 16"])
@pytest.mark.parametrize("name", DECODERS)
def test_refused_drafts_are_rolled_back(name: str, cache: str) -> None:
    decoder, w = DECODERS[name], weights_of(DECODERS[name])
    memory = caches(decoder)[cache]
    memory.open(TOKENS[:4])
    transformer_forward(TOKENS[None, :4], w, decoder, cache=memory)
    transformer_forward([[0, 0, 0]], w, decoder, cache=memory)
    memory.crop(5)
    got = transformer_forward([[9, 9]], w, decoder, cache=memory)[0]
    want = evaluated(np.array([*TOKENS[:4], 0, 9, 9]), w, decoder)
    assert len(memory) == 7
    assert (np.abs(got - want.x[-2:]) <= 2 * want.e[-2:]).all()


def test_rolled_back_into_shared_pages_it_writes_to_its_own() -> None:
    decoder, w = DECODERS["grouped"], weights_of(DECODERS["grouped"])
    pool = PagePool(decoder.layers, 20, 4)
    first, second = PagedCache(pool, 1), PagedCache(pool, 2)
    transformer_generate(TOKENS[:8], w, decoder, new_tokens=1, cache=first)
    transformer_generate(TOKENS[:8], w, decoder, new_tokens=1, cache=second)
    second.crop(6)
    for cache, tail, tokens in ((second, [0, 0], [*TOKENS[:6], 0, 0]), (first, [2], [*TOKENS[:8], 2])):
        got, want = transformer_forward([tail], w, decoder, cache=cache)[0], evaluated(np.array(tokens), w, decoder)
        assert (np.abs(got - want.x[-len(tail) :]) <= 2 * want.e[-len(tail) :]).all()


def test_rolled_back_its_pages_are_given_back_and_known_by_what_followed() -> None:
    decoder, w = DECODERS["grouped"], weights_of(DECODERS["grouped"])
    cache = PagedCache(PagePool(decoder.layers, 20, 2), "seq")
    cache.open(TOKENS[:8])
    transformer_forward(TOKENS[None, :8], w, decoder, cache=cache)
    cache.crop(2)
    assert len(cache.pool.allocator.table("seq")) == 1
    transformer_forward([[7, 7]], w, decoder, cache=cache)
    assert cache.pool.allocator.match_prefix([*TOKENS[:2], 7, 7]) == cache.pool.allocator.table("seq")


def test_a_cache_with_a_window_shows_no_more_than_that() -> None:
    decoder, w = DECODERS["window"], weights_of(DECODERS["window"])
    cache = ContiguousCache(decoder.layers, window=decoder.window)
    transformer_forward(TOKENS[None], w, decoder, cache=cache)
    assert [layer.view()[0].shape[2] for layer in cache.layers] == [3, 3]


def test_sequences_of_a_batch_do_not_see_each_other() -> None:
    decoder, w = DECODERS["grouped"], weights_of(DECODERS["grouped"])
    cache = ContiguousCache(decoder.layers)
    transformer_forward(np.stack([TOKENS[:6], TOKENS[5:]]), w, decoder, cache=cache)
    got = transformer_forward([[1], [2]], w, decoder, cache=cache)
    for row, tokens in zip(got, ([*TOKENS[:6], 1], [*TOKENS[5:], 2])):
        want = evaluated(np.array(tokens), w, decoder)
        assert (np.abs(row[0] - want.x[-1]) <= 2 * want.e[-1]).all()


def test_what_chooses_sees_the_logits_and_decides() -> None:
    decoder, w = DECODERS["grouped"], weights_of(DECODERS["grouped"])
    seen: list[Any] = []
    tokens, rows = transformer_generate([1], w, decoder, new_tokens=3, choose=lambda logits: seen.append(logits) or 4)
    assert tokens.tolist() == [1, 4, 4, 4]
    np.testing.assert_array_equal(seen, rows)


def test_no_new_tokens_and_empty_batches_are_legal() -> None:
    decoder, w = DECODERS["grouped"], weights_of(DECODERS["grouped"])
    assert transformer_generate([1], w, decoder, new_tokens=0)[1].shape == (0, 11)
    assert transformer_forward(np.zeros((0, 3), int), w, decoder).shape == (0, 3, 11)
    assert transformer_forward(np.zeros((2, 0), int), w, decoder).shape == (2, 0, 11)


@pytest.mark.parametrize(("call", "error", "words"), [
    (lambda d, w: transformer_forward([[11]], w, d), ValueError, r"tokens: got numbers from 11 to 11; want 0\.\.10"),
    (lambda d, w: transformer_forward([1], w, d), ValueError, r"tokens: got shape \(1,\); want 2 axes"),
    (lambda d, w: transformer_forward([[1]], {**w, "norm": np.ones(7)}, d), ValueError, r"norm: got shape \(7,\); want \(8,\)"),
    (lambda d, w: transformer_forward([[1]], {**w, "bias": np.ones(7)}, d), ValueError, "which these are missing or too many: bias"),
    (lambda d, w: transformer_generate([], w, d, new_tokens=1), ValueError, r"tokens: got shape \(0,\); want one axis of at least 1"),
    (lambda d, w: transformer_generate([1], w, d, new_tokens=1, chunk=0), ValueError, "chunk: got 0; want a whole number >= 1"),
    (lambda d, w: Decoder(**{**SIZES, "kv_heads": 3}), ValueError, "kv_heads: got 3 for 4 heads; want a divisor of 4"),
    (lambda d, w: Decoder(**SIZES, latent=4), ValueError, "rope_size: got None beside latent 4; want both or neither"),
    (lambda d, w: Decoder(**{**SIZES, "layers": 0}), ValueError, "layers: got 0; want a whole number >= 1"),
    (lambda d, w: PagedCache(PagePool(1, 4, 2), 0).begin(np.array([[1], [2]])), ValueError, r"tokens: got shape \(2, 1\); want one"),
])
def test_bad_input_is_refused_by_name(call: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call(DECODERS["grouped"], weights_of(DECODERS["grouped"]))


def test_other_tokens_than_those_it_was_opened_with_are_refused() -> None:
    decoder, w = DECODERS["grouped"], weights_of(DECODERS["grouped"])
    cache = PagedCache(PagePool(2, 4, 2), 0)
    cache.open([1, 2])
    with pytest.raises(ValueError, match="tokens: got 3 at position 1; want 2, with which it was opened"):
        transformer_forward([[1, 3]], w, decoder, cache=cache)
