"""The decoder's gradient: the same graph written once more with running errors, and a complex step that knows no gradient at all."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from oracles import reference
from oracles.properties import Arithmetic
from oracles.properties.bounds.decoder import decoder_with_errors, logits_with_errors
from oracles.reference import Decoder, decoder_gradients, decoder_loss, rope_frequencies, transformer_backward, transformer_forward
from oracles.reference.transformer_backward import transformer_pass

SIZES: dict[str, Any] = {"vocabulary": 7, "width": 6, "layers": 2, "heads": 4, "kv_heads": 2, "head_size": 2, "hidden": 5}
LATENT: dict[str, Any] = {"latent": 3, "rope_size": 2, "pairing": "interleaved"}
DECODERS = {
    "grouped": Decoder(**SIZES),
    "tied": Decoder(**SIZES, tied=True),
    "window, interleaved": Decoder(**SIZES, window=2, pairing="interleaved"),
    "experts": Decoder(**SIZES, experts=4, active=2),
    "experts, gates as they are": Decoder(**SIZES, experts=3, active=2, normalize_gates=False),
    "one expert of three, tied": Decoder(**SIZES, experts=3, active=1, normalize_gates=False, tied=True),
    "latent": Decoder(**SIZES, **LATENT),
    "latent, window, experts": Decoder(**SIZES, **LATENT, window=2, experts=3, active=2),
}
BALANCE, STEP = 0.125, 2.0**-600


def problem(decoder: Decoder, seed: int = 0) -> tuple[Any, Any, dict[str, Any]]:
    """Tokens, targets of which some are ignored, and weights small enough that no layer blows errors up."""
    r, weights = np.random.default_rng(seed), {}
    for name, shape in decoder.shapes().items():
        size = 1.0 if name == "embedding" else 0.1 if len(shape) == 1 else 0.5 / np.sqrt(shape[-2])
        weights[name] = (len(shape) == 1) + size * r.normal(size=shape)
    tokens, targets = r.integers(0, decoder.vocabulary, (2, 2, 6))
    targets[0, :2] = -100
    return tokens, targets, weights


def worst(found: dict[str, Any], wanted: dict[str, Any]) -> float:
    """The largest error over what is allowed of both evaluations, of any element of any gradient."""
    def ratio(name: str) -> float:
        return float((np.abs(found[name] - wanted[name].x) / np.maximum(2.0 * wanted[name].e, np.finfo(float).tiny)).max())

    return max(map(ratio, found))


def with_errors(tokens: Any, targets: Any, weights: Any, decoder: Decoder) -> dict[str, Any]:
    return decoder_with_errors(Arithmetic().resolve("float64"), tokens, targets, weights, decoder, balance=BALANCE)


@pytest.mark.parametrize("name", DECODERS)
def test_loss_and_gradients_are_those_of_the_graph_written_once_more(name: str) -> None:
    decoder = DECODERS[name]
    given = problem(decoder)
    loss, gradients = decoder_gradients(*given, decoder, balance=BALANCE)
    wanted = with_errors(*given, decoder)
    assert set(gradients) == set(decoder.shapes())
    assert worst({"loss": loss, **gradients}, wanted) <= 1.0
    assert all((w.e <= 2.0**-14 * np.abs(w.x).max()).all() for w in wanted.values())               # a bound that lets faults pass is none


@pytest.mark.parametrize("name", DECODERS)
def test_a_complex_step_along_any_direction_is_the_gradient_times_it(name: str) -> None:
    """Im f(w + i h d) / h, in long double, whose roundings are lost beside those of float64: half of what is allowed of two."""
    decoder = DECODERS[name]
    tokens, targets, weights = problem(decoder)
    _, gradients = decoder_gradients(tokens, targets, weights, decoder, balance=BALANCE)
    wanted, r = with_errors(tokens, targets, weights, decoder), np.random.default_rng(1)
    for key, g in gradients.items():
        directions = [r.choice((-1.0, 1.0), g.shape) for _ in range(2)] + [np.eye(1, g.size, int(np.abs(g).argmax())).reshape(g.shape)]
        for d in directions:
            moved = {n: w + 1j * (STEP * d if n == key else 0.0) for n, w in weights.items()}
            slope = float(complex_loss(tokens, targets, moved, decoder).imag / STEP)
            assert abs(slope - float((g * d).sum())) <= 2.0 * float((wanted[key].e * np.abs(d)).sum()), key


FAULTS: dict[str, tuple[str, str, Callable[..., Any]]] = {
    "the norm's second term forgotten": (
        "transformer_backward", "rms_norm_backward", lambda x, w, dy, *, eps: (
            dy * w / np.sqrt((x * x).mean(-1, keepdims=True) + eps), reference.rms_norm_backward(x, w, dy, eps=eps)[1])),
    "turned on instead of back": ("transformer_backward", "rope_backward", reference.rope),
    "the last row of a token only": (
        "transformer_backward", "embedding_backward", lambda ids, dx, *, vocabulary: _last_row(ids, dx, vocabulary)),
    "silu's slope is sigma": (
        "swiglu_backward", "silu_and_slope", lambda g: (g / (1 + np.exp(-g)), 1 / (1 + np.exp(-g)))),
}


def _last_row(ids: Any, dx: Any, vocabulary: int) -> Any:
    table = np.zeros((vocabulary, dx.shape[-1]))
    table[ids.reshape(-1)] = dx.reshape(-1, dx.shape[-1])
    return table


@pytest.mark.parametrize("fault", FAULTS)
def test_the_comparison_sees(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, name, wrong = FAULTS[fault]
    given = problem(DECODERS["grouped"])
    monkeypatch.setattr(sys.modules[f"oracles.reference.{module}"], name, wrong)
    _, gradients = decoder_gradients(*given, DECODERS["grouped"], balance=BALANCE)
    assert worst(gradients, with_errors(*given, DECODERS["grouped"])) > 1e3


@pytest.mark.parametrize("name", DECODERS)
def test_a_pass_gives_the_logits_of_the_forward_bit_for_bit(name: str) -> None:
    tokens, targets, weights = problem(DECODERS[name])
    passed = transformer_pass(tokens, weights, DECODERS[name])
    assert (passed.logits == transformer_forward(tokens, weights, DECODERS[name])).all()
    assert decoder_loss(tokens, targets, weights, DECODERS[name]) == decoder_gradients(tokens, targets, weights, DECODERS[name])[0]


@pytest.mark.parametrize("chunk", [1, 4, None])
@pytest.mark.parametrize("name", [name for name, decoder in DECODERS.items() if decoder.latent is None])
def test_through_caches_a_decoder_of_experts_too_has_the_logits_of_the_graph(name: str, chunk: int | None) -> None:
    """Every token takes its own experts, whoever else is in the call: prefill in chunks, decoding token by token, pages."""
    decoder = DECODERS[name]
    tokens, _, weights = problem(decoder)
    wanted = logits_with_errors(Arithmetic().resolve("float64"), tokens[:1], weights, decoder)
    paged = reference.PagedCache(reference.PagePool(decoder.layers, 8, 2), "seq", window=decoder.window)
    for cache in (reference.ContiguousCache(decoder.layers, window=decoder.window), paged):
        cache.open(tokens[0])
        cut = [tokens[:1, i : i + (chunk or 6)] for i in range(0, 6, chunk or 6)]
        logits = np.concatenate([transformer_forward(part, weights, decoder, cache=cache) for part in cut], axis=1)
        assert (np.abs(logits - wanted.x) <= 2.0 * wanted.e).all()


def test_an_ignored_target_sends_nothing_back() -> None:
    decoder = DECODERS["experts"]
    tokens, targets, weights = problem(decoder)
    _, gradients = decoder_gradients(tokens, np.full_like(targets, -100), weights, decoder)
    assert all((g == 0.0).all() for g in gradients.values())


def test_the_gradient_is_linear_in_dlogits() -> None:
    decoder = DECODERS["grouped"]
    tokens, _, weights = problem(decoder)
    d = np.random.default_rng(2).normal(size=(*tokens.shape, decoder.vocabulary))
    one, two = transformer_backward(tokens, weights, decoder, d), transformer_backward(tokens, weights, decoder, 2.0 * d)
    assert all((2.0 * one[name] == two[name]).all() for name in one)            # a power of two: to the last bit


@pytest.mark.parametrize(("change", "message"), [
    (lambda t, w, d: (t[0], w, d), "tokens: got shape (6,); want 2 axes"),
    (lambda t, w, d: (t, w, d[0]), "dlogits: got shape (6, 7); want (2, 6, 7)"),
    (lambda t, w, d: (t, {**w, "odd": w["norm"]}, d), "missing or too many: odd"),
])  # fmt: skip
def test_what_is_wrong_is_named(change: Any, message: str) -> None:
    decoder = DECODERS["grouped"]
    tokens, _, weights = problem(decoder)
    tokens, weights, dlogits = change(tokens, weights, np.zeros((2, 6, 7)))
    with pytest.raises(ValueError, match=re.escape(message)):
        transformer_backward(tokens, weights, decoder, dlogits)


@pytest.mark.parametrize(("options", "message"), [
    ({"experts": 2, "active": 3}, "active: got 3 of 2 experts; want at most 2"), ({"active": 2}, "active: got 2 of None experts"),
])  # fmt: skip
def test_experts_that_do_not_fit_are_refused(options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Decoder(**SIZES, **options)


def complex_loss(tokens: Any, targets: Any, weights: Any, decoder: Decoder) -> Any:
    """The loss for complex weights: every function of it is analytic, once it is settled which key is largest and who is chosen."""
    w = {name: value.astype(np.clongdouble) for name, value in weights.items()}
    x, unbalance = w["embedding"][tokens], np.clongdouble(0)
    for i in range(decoder.layers):
        l = {name.removeprefix(f"layers.{i}."): value for name, value in w.items() if name.startswith(f"layers.{i}.")}
        x = x + _attention(_normed(x, l["norm_attention"], decoder), l, decoder) @ l["w_o"]
        f = _normed(x, l["norm_feed_forward"], decoder)
        if decoder.experts is None:
            x = x + _gated(f, l["w_gate"], l["w_up"], l["w_down"])
            continue
        p = _softmax(f @ l["w_router"])
        ids = np.argsort(-p.real, axis=-1, kind="stable")[..., : decoder.active]
        chosen = (ids[..., None] == np.arange(decoder.experts)).any(axis=-2)
        gates = np.where(chosen, p, 0) / (np.where(chosen, p, 0).sum(-1, keepdims=True) if decoder.normalize_gates else 1)
        x = x + sum(gates[..., e, None] * _gated(f, l["w_gate"][e], l["w_up"][e], l["w_down"][e]) for e in range(decoder.experts))
        share = chosen.mean((0, 1)) / decoder.active
        unbalance = unbalance + decoder.experts * (share * p.mean((0, 1))).sum()
    z = _normed(x, w["norm"], decoder) @ (w["embedding"].T if decoder.tied else w["head"])
    counts = targets != -100
    logp = np.log(_softmax(z))[counts, targets[counts]]
    return -logp.sum() / counts.sum() + BALANCE * unbalance


def _normed(x: Any, weight: Any, decoder: Decoder) -> Any:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + np.longdouble(decoder.eps)) * weight


def _gated(x: Any, w_gate: Any, w_up: Any, w_down: Any) -> Any:
    g = x @ w_gate
    return (g / (1 + np.exp(-g)) * (x @ w_up)) @ w_down


def _softmax(s: Any) -> Any:
    e = np.exp(s - s.real.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def _turned(x: Any, decoder: Decoder) -> Any:
    f, m = rope_frequencies(x.shape[-1], base=decoder.base, scaling=decoder.scaling)
    t = np.arange(x.shape[-2])[:, None] * f
    R = x.shape[-1]
    a, b = (slice(0, R // 2), slice(R // 2, R)) if decoder.pairing == "half" else (slice(0, R, 2), slice(1, R, 2))
    out = np.empty_like(x)
    out[..., a] = m * (x[..., a] * np.cos(t) - x[..., b] * np.sin(t))
    out[..., b] = m * (x[..., a] * np.sin(t) + x[..., b] * np.cos(t))
    return out


def _attention(x: Any, l: Any, decoder: Decoder) -> Any:
    (B, T, _), H, D = x.shape, decoder.heads, decoder.head_size
    heads = lambda y, size: y.reshape(B, T, -1, size).swapaxes(1, 2)  # noqa: E731
    if decoder.latent is None:
        q, k, v = (heads(x @ l[name], D) for name in ("w_q", "w_k", "w_v"))
        q, k = _turned(q, decoder), _turned(k, decoder)
        k, v = (np.repeat(y, H // decoder.kv_heads, axis=1) for y in (k, v))
        scale = 1 / np.sqrt(np.longdouble(D))
    else:
        q = heads(x @ l["w_q"], D + decoder.rope_size)
        q = np.concatenate([q[..., :D], _turned(q[..., D:], decoder)], -1)
        latent = _normed(x @ l["w_c"], l["norm_latent"], decoder)[:, None]
        shared = np.broadcast_to(_turned((x @ l["w_kr"])[:, None], decoder), (B, H, T, decoder.rope_size))
        k, v = np.concatenate([latent @ l["w_uk"], shared], -1), latent @ l["w_uv"]
        scale = 1 / np.sqrt(np.longdouble(D + decoder.rope_size))
    i, j = np.arange(T)[:, None], np.arange(T)
    seen = (j <= i) & (True if decoder.window is None else i - j <= decoder.window)
    s = np.where(seen, scale * (q @ k.swapaxes(-1, -2)), -np.inf)
    return (_softmax(s) @ v).swapaxes(1, 2).reshape(B, T, H * D)
