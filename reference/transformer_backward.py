"""The gradient of the decoder, by hand: every module's own gradient, in the reverse order of the forward pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from . import arguments
from .arguments import Float64, Int64
from .attention import attention
from .attention_backward import attention_backward
from .decoder_cache import left_window
from .embedding_backward import embedding_backward
from .mla import mla_scale
from .moe_swiglu import moe_balance, moe_swiglu, moe_swiglu_backward
from .rms_norm import rms_norm
from .rms_norm_backward import rms_norm_backward
from .rope import rope
from .rope_backward import rope_backward
from .swiglu import swiglu
from .swiglu_backward import swiglu_backward
from .transformer import Decoder, Weights, checked_weights, join_heads, split_heads

Layer = Mapping[str, Float64]
Attended = tuple[Float64, Callable[[Float64], dict[str, Float64]]]


def transformer_backward(
    tokens: ArrayLike, weights: Weights, decoder: Decoder, dlogits: ArrayLike, *, balance: float = 0.0
) -> dict[str, Float64]:  # fmt: skip
    """The gradients of sum(dlogits * transformer_forward(tokens, …)) with respect to all weights: a dict of their names and shapes.

        dx = dlogits head^T,  then through the last norm
        dx = dx + d rms_norm(d feed-forward(dx)),   dx = dx + d rms_norm(d attention(dx))    in each layer, the last first
        dembedding = dx added up by token, and the head's gradient where they are one

    tokens (B, T), dlogits (B, T, V). balance: what the balance losses of all layers of experts, added up, are multiplied with in
    the loss whose gradient this is. Activations are computed anew and kept for one pass.

    >>> sizes = Decoder(vocabulary=3, width=2, layers=1, heads=1, kv_heads=1, head_size=2, hidden=1, tied=True)
    >>> weights = {name: np.zeros(shape) for name, shape in sizes.shapes().items()}
    >>> weights |= {"embedding": np.array([[3.0, 4.0], [0.0, 1.0], [1.0, 0.0]]), "norm": np.ones(2)}
    >>> transformer_backward([[0]], weights, sizes, [[[0.0, 1.0, 0.0]]])["norm"].round(3)
    array([0.   , 1.131])

    Raises as `transformer_forward`. Error bound: `properties.bounds.decoder_bound`.
    Source: as `Decoder`, differentiated; the tied head: Press and Wolf 2017 (arXiv 1608.05859).
    """
    passed = transformer_pass(tokens, weights, decoder, balance=balance)
    return passed.back(arguments.widen("dlogits", dlogits, passed.logits.shape))


class DecoderPass(NamedTuple):
    """The logits (B, T, V), the balance loss of each layer of experts, and what turns dlogits into the gradients of all weights."""

    logits: Float64
    balances: list[Float64]
    back: Callable[[Float64], dict[str, Float64]]


class LayerPass(NamedTuple):
    """A layer's output (B, T, E), its balance loss if it has experts, and what turns dout into dx and the gradients of its weights."""

    out: Float64
    balance: Float64 | None
    back: Callable[[Float64], tuple[Float64, dict[str, Float64]]]


def transformer_pass(tokens: ArrayLike, weights: Weights, decoder: Decoder, *, balance: float = 0.0) -> DecoderPass:
    """`transformer_forward` that keeps what `transformer_backward` needs: the two as one pass forward and one back.

    >>> sizes = Decoder(vocabulary=3, width=2, layers=1, heads=1, kv_heads=1, head_size=2, hidden=1)
    >>> weights = {name: np.ones(shape) for name, shape in sizes.shapes().items()}
    >>> transformer_pass([[0]], weights, sizes).logits.round(3)
    array([[[2., 2., 2.]]])

    Raises, error bound, source: as `transformer_forward` and `transformer_backward`.
    """
    ids = arguments.integers("tokens", tokens, least=0, most=decoder.vocabulary - 1)
    if ids.ndim != 2:
        raise ValueError(f"tokens: got shape {ids.shape}; want 2 axes")
    w = checked_weights(weights, decoder)
    x, layers = w["embedding"][ids], []
    for i in range(decoder.layers):
        layers.append(layer_pass(x, layer_weights(w, i), decoder, np.arange(ids.shape[1]), balance=balance))
        x = layers[-1].out
    last, y = x, rms_norm(x, w["norm"], eps=decoder.eps)
    head = w["embedding"].T if decoder.tied else w["head"]

    def back(dz: Float64) -> dict[str, Float64]:
        dx, dnorm = rms_norm_backward(last, w["norm"], dz @ head.T, eps=decoder.eps)
        gradients = {"norm": dnorm}
        for i in reversed(range(decoder.layers)):
            dx, own = layers[i].back(dx)
            gradients |= {f"layers.{i}.{name}": g for name, g in own.items()}
        gradients["embedding"] = embedding_backward(ids, dx, vocabulary=decoder.vocabulary)
        if decoder.tied:
            gradients["embedding"] += outer(y, dz).T
        else:
            gradients["head"] = outer(y, dz)
        return {name: gradients[name] for name in w}

    return DecoderPass(np.asarray(y @ head), [layer.balance for layer in layers if layer.balance is not None], back)


def layer_pass(x: Float64, w: Layer, decoder: Decoder, positions: Int64, *, balance: float = 0.0) -> LayerPass:
    """One layer: attention and feed-forward, each behind a norm and beside a residual.

    >>> sizes = Decoder(vocabulary=3, width=2, layers=1, heads=1, kv_heads=1, head_size=2, hidden=1)
    >>> w = {name.removeprefix("layers.0."): np.zeros(shape) for name, shape in sizes.shapes().items()}
    >>> passed = layer_pass(np.ones((1, 1, 2)), w, sizes, np.arange(1))
    >>> passed.out.tolist(), passed.back(np.ones((1, 1, 2)))[0].tolist()
    ([[[1.0, 1.0]]], [[[1.0, 1.0]]])
    """
    normed = rms_norm(x, w["norm_attention"], eps=decoder.eps)
    attended, attend_back = (_grouped if decoder.latent is None else _latent)(normed, w, decoder, positions)
    middle = x + attended
    fed = rms_norm(middle, w["norm_feed_forward"], eps=decoder.eps)
    out, feed_back = _feed_forward(fed, w, decoder, balance)
    unbalance = None if decoder.experts is None else moe_balance(fed, w["w_router"], k=decoder.active)

    def back(dout: Float64) -> tuple[Float64, dict[str, Float64]]:
        own = feed_back(dout)
        dmiddle, own["norm_feed_forward"] = rms_norm_backward(middle, w["norm_feed_forward"], own.pop("x"), eps=decoder.eps)
        dmiddle = dout + dmiddle
        own |= attend_back(dmiddle)
        dx, own["norm_attention"] = rms_norm_backward(x, w["norm_attention"], own.pop("x"), eps=decoder.eps)
        return dmiddle + dx, own

    return LayerPass(middle + out, unbalance, back)


def layer_weights(weights: Mapping[str, Float64], i: int) -> dict[str, Float64]:
    """The weights of layer i, by their names within it.

    >>> layer_weights({"layers.0.w_q": np.ones(1), "norm": np.ones(1)}, 0)
    {'w_q': array([1.])}
    """
    return {name.removeprefix(f"layers.{i}."): value for name, value in weights.items() if name.startswith(f"layers.{i}.")}


def _feed_forward(x: Float64, w: Layer, decoder: Decoder, balance: float) -> Attended:
    matrices = (w["w_gate"], w["w_up"], w["w_down"])
    if decoder.experts is None:
        def back(dy: Float64) -> dict[str, Float64]:
            return _renamed(swiglu_backward(x, *matrices, dy))

        return swiglu(x, *matrices), back
    options: dict[str, Any] = {"k": decoder.active, "normalize": decoder.normalize_gates}

    def back_of_experts(dy: Float64) -> dict[str, Float64]:
        return _renamed(moe_swiglu_backward(x, w["w_router"], *matrices, dy, balance=balance, **options))

    return moe_swiglu(x, w["w_router"], *matrices, **options), back_of_experts


def _renamed(gradients: Mapping[str, Float64]) -> dict[str, Float64]:
    return {name.removeprefix("d"): g for name, g in gradients.items()}


def _grouped(x: Float64, w: Layer, decoder: Decoder, positions: Int64) -> Attended:
    """Attention of grouped heads and its projections: (B, T, E) -> (B, T, E)."""
    turn: dict[str, Any] = {"pairing": decoder.pairing, "base": decoder.base, "scaling": decoder.scaling}
    see: dict[str, Any] = {"causal": "bottom_right", "window": left_window(decoder.window)}
    q, k, v = (split_heads(x @ w[name], decoder.head_size) for name in ("w_q", "w_k", "w_v"))
    q, k = (rope(y, positions, **turn) for y in (q, k))
    out, lse = attention(q, k, v, **see)
    joined = join_heads(out)

    def back(dy: Float64) -> dict[str, Float64]:
        dout = split_heads(dy @ w["w_o"].T, decoder.head_size)
        d = attention_backward(q, k, v, out, lse, dout, **see)
        dq, dk = (join_heads(rope_backward(d[name], positions, **turn)) for name in ("dq", "dk"))
        parts = {"w_q": dq, "w_k": dk, "w_v": join_heads(d["dv"])}
        dx = sum(part @ w[name].T for name, part in parts.items())
        return {"x": np.asarray(dx), "w_o": outer(joined, dy), **{name: outer(x, part) for name, part in parts.items()}}

    return joined @ w["w_o"], back


def _latent(x: Float64, w: Layer, decoder: Decoder, positions: Int64) -> Attended:
    """Latent attention, its keys and values built, and its projections: (B, T, E) -> (B, T, E)."""
    D, Dr = decoder.head_size, decoder.rope_size or 0
    turn: dict[str, Any] = {"pairing": decoder.pairing, "base": decoder.base, "scaling": decoder.scaling}
    see: dict[str, Any] = {"causal": "bottom_right", "window": left_window(decoder.window),
                           "scale": mla_scale(D, Dr, scaling=decoder.scaling)}
    q_nope, q_rope = np.split(split_heads(x @ w["w_q"], D + Dr), [D], axis=-1)
    compressed = x @ w["w_c"]                                                   # (B, T, C)
    latent, k_rope = rms_norm(compressed, w["norm_latent"], eps=decoder.eps), rope(x @ w["w_kr"], positions, **turn)
    q = np.concatenate([q_nope, rope(q_rope, positions, **turn)], axis=-1)      # (B, H, T, D + Dr)
    shared = np.broadcast_to(k_rope[:, None], (*q.shape[:-1], Dr))
    k, v = np.concatenate([latent[:, None] @ w["w_uk"], shared], axis=-1), latent[:, None] @ w["w_uv"]
    out, lse = attention(q, k, v, **see)
    joined = join_heads(out)

    def back(dy: Float64) -> dict[str, Float64]:
        d = attention_backward(q, k, v, out, lse, split_heads(dy @ w["w_o"].T, D), **see)
        dq_nope, dq_rope = np.split(d["dq"], [D], axis=-1)
        dk_nope, dk_rope = np.split(d["dk"], [D], axis=-1)
        dq = join_heads(np.concatenate([dq_nope, rope_backward(dq_rope, positions, **turn)], axis=-1))
        dkr = rope_backward(dk_rope.sum(axis=1), positions, **turn)             # one rotary key for all heads: (B, T, Dr)
        dlatent = (dk_nope @ w["w_uk"].swapaxes(-1, -2) + d["dv"] @ w["w_uv"].swapaxes(-1, -2)).sum(axis=1)
        dc, dnorm = rms_norm_backward(compressed, w["norm_latent"], dlatent, eps=decoder.eps)
        up = latent[:, None].swapaxes(-1, -2)                                   # (B, 1, C, T)
        return {
            "x": dq @ w["w_q"].T + dc @ w["w_c"].T + dkr @ w["w_kr"].T, "w_o": outer(joined, dy), "w_q": outer(x, dq), "w_c": outer(x, dc),
            "w_kr": outer(x, dkr), "norm_latent": dnorm, "w_uk": (up @ dk_nope).sum(axis=0), "w_uv": (up @ d["dv"]).sum(axis=0),
        }  # fmt: skip

    return joined @ w["w_o"], back


def outer(x: Float64, d: Float64) -> Float64:
    """x^T d summed over all vectors: (..., E), (..., F) -> (E, F).

    >>> outer(np.ones((2, 3, 1)), np.ones((2, 3, 2)))
    array([[6., 6.]])
    """
    return np.asarray(x.reshape(-1, x.shape[-1]).T @ d.reshape(-1, d.shape[-1]))
