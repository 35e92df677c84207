"""A small decoder, made of the modules beside it: what it computes, how it goes on from a prompt. Its gradient: transformer_backward."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from . import arguments
from .arguments import Array, Float64, Int64
from .attention import attention
from .decoder_cache import DecoderCache, left_window
from .mla import absorbed_queries, mla_attention, mla_compress, mla_scale
from .moe_swiglu import moe_swiglu
from .rms_norm import rms_norm
from .rope import Pairing, rope
from .rope_scaling import Scaling
from .swiglu import swiglu
from .visibility import visible_keys

Weights = Mapping[str, ArrayLike]


@dataclass(frozen=True, kw_only=True)
class Decoder:
    """The sizes of a decoder, and the names and shapes of its weights.

    V = vocabulary, E = width, H = heads, Hkv = kv_heads, D = head_size, F = hidden. latent = C makes it latent attention
    with rope_size = Dr turned coordinates beside head_size others, values of head_size, and no kv_heads of its own. window:
    keys before the current one that are seen, None: all. tied: the head is the embedding. experts = X makes each feed-forward
    layer X of them, of which every token takes `active` ones, their gates over their sum where normalize_gates; none is dropped.

    >>> sizes = Decoder(vocabulary=7, width=4, layers=1, heads=2, kv_heads=1, head_size=2, hidden=3, tied=True)
    >>> sizes.shapes()["layers.0.w_k"], "head" in sizes.shapes()
    ((4, 2), False)

    Raises ValueError for sizes that do not fit. Source: Touvron et al. 2023 (arXiv 2302.13971), section 2.2; latent: as `mla`.
    """

    vocabulary: int
    width: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    hidden: int
    latent: int | None = None
    rope_size: int | None = None
    window: int | None = None
    tied: bool = False
    pairing: Pairing = "half"
    base: float = 10000.0
    scaling: Scaling = None
    eps: float = 1e-6
    experts: int | None = None
    active: int = 1
    normalize_gates: bool = True

    def __post_init__(self) -> None:
        for name in ("vocabulary", "width", "layers", "heads", "kv_heads", "head_size", "hidden"):
            arguments.whole_number(name, getattr(self, name), least=1)
        if self.heads % self.kv_heads:
            raise ValueError(f"kv_heads: got {self.kv_heads} for {self.heads} heads; want a divisor of {self.heads}")
        if (self.latent is None) != (self.rope_size is None):
            raise ValueError(f"rope_size: got {self.rope_size} beside latent {self.latent}; want both or neither")
        most = 1 if self.experts is None else arguments.whole_number("experts", self.experts, least=1)
        if arguments.whole_number("active", self.active, least=1) > most:
            raise ValueError(f"active: got {self.active} of {self.experts} experts; want at most {most}")

    def shapes(self) -> dict[str, tuple[int, ...]]:
        E, H, D, F = self.width, self.heads, self.head_size, self.hidden
        X = () if self.experts is None else (self.experts,)
        layer: dict[str, tuple[int, ...]] = {"norm_attention": (E,), "w_o": (H * D, E), "norm_feed_forward": (E,), "w_gate": (*X, E, F),
                                             "w_up": (*X, E, F), "w_down": (*X, F, E)}
        layer |= {} if self.experts is None else {"w_router": (E, self.experts)}
        if self.latent is None or self.rope_size is None:
            layer |= {"w_q": (E, H * D), "w_k": (E, self.kv_heads * D), "w_v": (E, self.kv_heads * D)}
        else:
            layer |= {"w_q": (E, H * (D + self.rope_size)), "w_c": (E, self.latent), "w_kr": (E, self.rope_size),
                      "norm_latent": (self.latent,), "w_uk": (H, self.latent, D), "w_uv": (H, self.latent, D)}
        shapes = {f"layers.{i}.{name}": shape for i in range(self.layers) for name, shape in layer.items()}
        return {"embedding": (self.vocabulary, E), **shapes, "norm": (E,)} | ({} if self.tied else {"head": (E, self.vocabulary)})


def transformer_forward(tokens: ArrayLike, weights: Weights, decoder: Decoder, *, cache: DecoderCache | None = None) -> Float64:
    """The logits of every token: float64 (B, T, V).

        x = embedding[tokens]
        x = x + attention(rms_norm(x)) w_o,   x = x + swiglu(rms_norm(x))    in each layer
        logits = rms_norm(x) head

    tokens (B, T). Without a cache the tokens are whole sequences, and latent attention builds its keys and values; with one
    they are what follows on the tokens it holds, and latent attention is absorbed. The same real numbers either way, and
    however the tokens are cut into calls.

    >>> sizes = Decoder(vocabulary=3, width=2, layers=1, heads=1, kv_heads=1, head_size=2, hidden=1, tied=True)
    >>> weights = {name: np.zeros(shape) for name, shape in sizes.shapes().items()}
    >>> weights |= {"embedding": np.array([[3.0, 4.0], [0.0, 1.0], [1.0, 0.0]]), "norm": np.ones(2)}
    >>> transformer_forward([[0]], weights, sizes).round(3)
    array([[[7.071, 1.131, 0.849]]])

    Raises ValueError or TypeError that names the argument or the weight, what came and what is wanted.
    Error bound: those of the modules, each carried through the ones behind it. Source: as `Decoder`.
    """
    ids = arguments.integers("tokens", tokens, least=0, most=decoder.vocabulary - 1)
    if ids.ndim != 2:
        raise ValueError(f"tokens: got shape {ids.shape}; want 2 axes")
    w = checked_weights(weights, decoder)
    positions = np.arange(ids.shape[1]) if cache is None else cache.begin(ids)
    x: Float64 = w["embedding"][ids]                                            # (B, T, E)
    for i in range(decoder.layers):
        layer = {name.removeprefix(f"layers.{i}."): value for name, value in w.items() if name.startswith(f"layers.{i}.")}
        attend = _grouped if decoder.latent is None else _latent
        a = attend(rms_norm(x, layer["norm_attention"], eps=decoder.eps), layer, decoder, positions, i, cache)
        x = x + join_heads(a) @ layer["w_o"]
        x = x + _feed_forward(rms_norm(x, layer["norm_feed_forward"], eps=decoder.eps), layer, decoder)
    if cache is not None:
        cache.end()
    head = w["embedding"].T if decoder.tied else w["head"]
    return np.asarray(rms_norm(x, w["norm"], eps=decoder.eps) @ head)           # (B, T, V)


def transformer_generate(tokens: ArrayLike, weights: Weights, decoder: Decoder, *, new_tokens: int, cache: DecoderCache | None = None,
                         chunk: int | None = None, choose: Callable[[Float64], int] | None = None) -> tuple[Int64, Float64]:
    """The prompt and new_tokens more, and the logits each of those was chosen from: int64 (T + n,), float64 (n, V).

        token = choose(logits of the last token)   again and again

    tokens (T,), at least one. cache None computes everything anew for every token; else the prompt goes in at most `chunk`
    tokens at a time, less what the cache remembers, and then every new token alone, the last one not at all. choose None:
    the largest, of equals the first. All ways give the same logits within rounding.

    >>> sizes = Decoder(vocabulary=3, width=2, layers=1, heads=1, kv_heads=1, head_size=2, hidden=1, tied=True)
    >>> weights = {name: np.zeros(shape) for name, shape in sizes.shapes().items()}
    >>> weights |= {"embedding": np.array([[3.0, 4.0], [0.0, 1.0], [1.0, 0.0]]), "norm": np.ones(2)}
    >>> transformer_generate([2], weights, sizes, new_tokens=2)[0]
    array([2, 0, 0])

    Raises ValueError or TypeError that names the argument, what came and what is wanted.
    Error bound: that of `transformer_forward`. Source: chunks: Agrawal et al. 2023 (arXiv 2308.16369).
    """
    ids = arguments.integers("tokens", tokens, least=0, most=decoder.vocabulary - 1)
    if ids.ndim != 1 or ids.size == 0:
        raise ValueError(f"tokens: got shape {ids.shape}; want one axis of at least 1")
    n = arguments.whole_number("new_tokens", new_tokens, least=0)
    step = len(ids) if chunk is None else arguments.whole_number("chunk", chunk, least=1)
    rows = np.zeros((n, decoder.vocabulary))
    done = 0 if cache is None else cache.open(ids)
    for i in range(n):
        if cache is None:
            logits = transformer_forward(ids[None], weights, decoder)
        while cache is not None and done < len(ids):
            part = ids[None, done : done + step]
            logits = transformer_forward(part, weights, decoder, cache=cache)
            done += part.shape[1]
        rows[i] = logits[0, -1]
        ids = np.append(ids, int(rows[i].argmax()) if choose is None else choose(rows[i]))
    return ids, rows


def _grouped(x: Float64, w: Mapping[str, Array], decoder: Decoder, positions: Int64, layer: int, cache: DecoderCache | None) -> Float64:
    """Attention of grouped heads: (B, T, E) -> (B, H, T, D)."""
    q, k, v = (split_heads(x @ w[name], decoder.head_size) for name in ("w_q", "w_k", "w_v"))
    q, k = (rope(y, positions, pairing=decoder.pairing, base=decoder.base, scaling=decoder.scaling) for y in (q, k))
    if cache is not None:
        return cache.attend(layer, q, k, v, None)
    return attention(q, k, v, causal="bottom_right", window=left_window(decoder.window))[0]


def _latent(x: Float64, w: Mapping[str, Array], decoder: Decoder, positions: Int64, layer: int, cache: DecoderCache | None) -> Float64:
    """Latent attention: (B, T, E) -> (B, H, T, D). A cache keeps [latent, k_rope] as the key of one head and latent as its value."""
    D, Dr = decoder.head_size, decoder.rope_size or 0
    q_nope, q_rope = np.split(split_heads(x @ w["w_q"], D + Dr), [D], axis=-1)       # (B, H, T, D), (B, H, T, Dr)
    q_rope = rope(q_rope, positions, pairing=decoder.pairing, base=decoder.base, scaling=decoder.scaling)
    latent, k_rope = mla_compress(x, w["w_c"], w["w_kr"], positions, norm_weight=w["norm_latent"], norm_eps=decoder.eps,
                                  pairing=decoder.pairing, base=decoder.base, scaling=decoder.scaling)
    scale = mla_scale(D, Dr, scaling=decoder.scaling)
    if cache is not None:
        q, k = absorbed_queries(q_nope, q_rope, w["w_uk"]), np.concatenate([latent, k_rope], axis=-1)
        return np.asarray(cache.attend(layer, q, k[:, None], latent[:, None], scale) @ w["w_uv"])
    (B, H, T, _) = q_nope.shape
    seen = visible_keys(B, H, T, T, causal="bottom_right", window=left_window(decoder.window))
    return mla_attention(q_nope, q_rope, latent, k_rope, w["w_uk"], w["w_uv"], causal="bottom_right", scale=scale, mask=seen)[0]


def _feed_forward(x: Float64, w: Mapping[str, Array], decoder: Decoder) -> Float64:
    """One layer for all tokens, or experts that share them: (B, T, E)."""
    if decoder.experts is None:
        return swiglu(x, w["w_gate"], w["w_up"], w["w_down"])
    return moe_swiglu(x, w["w_router"], w["w_gate"], w["w_up"], w["w_down"], k=decoder.active, normalize=decoder.normalize_gates)


def split_heads(x: Float64, size: int) -> Float64:
    """(B, T, H size) -> (B, H, T, size)."""
    return x.reshape(*x.shape[:2], x.shape[2] // size, size).swapaxes(1, 2)


def join_heads(x: Float64) -> Float64:
    """(B, H, T, D) -> (B, T, H D)."""
    B, H, T, D = x.shape
    return x.swapaxes(1, 2).reshape(B, T, H * D)


def checked_weights(weights: Weights, decoder: Decoder) -> dict[str, Float64]:
    """Every weight in float64, of its shape, none missing and none too many."""
    shapes = decoder.shapes()
    if set(weights) != set(shapes):
        odd = sorted(set(weights) ^ set(shapes))
        raise ValueError(f"weights: got {len(weights)} names; want {len(shapes)}, of which these are missing or too many: {', '.join(odd)}")
    return {name: arguments.widen(name, weights[name], shape) for name, shape in shapes.items()}
