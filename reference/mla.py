"""Multi-head latent attention: keys and values as one small latent a token, read in two forms. Caches and pages are left to others."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from . import arguments
from .arguments import Causal, Float64
from .attention import attention
from .rms_norm import rms_norm
from .rope import Pairing, rope
from .rope_scaling import Scaling, yarn_mscale


def mla_compress(x: ArrayLike, w_c: ArrayLike, w_kr: ArrayLike, positions: ArrayLike, *, pairing: Pairing, base: float = 10000.0,
                 scaling: Scaling = None, norm_weight: ArrayLike | None = None, norm_eps: float = 1e-6) -> tuple[Float64, Float64]:
    """What a cache keeps of each token: latent (B, T, C) and k_rope (B, T, Dr), shared by all heads, float64.

        latent = x w_c,  and rms_norm(latent) norm_weight where one is given
        k_rope = rope(x w_kr, positions)

    x (B, T, E), w_c (E, C), w_kr (E, Dr), norm_weight (C,); positions broadcast to (B, T). Positions enter k_rope alone:
    turned latents could not be absorbed. C + Dr numbers a token and layer: 576 for 128 heads of 128 in DeepSeek-V2, where
    plain heads keep 32,768.

    >>> x = np.array([[[1.0, 2.0]]])
    >>> latent, k_rope = mla_compress(x, np.ones((2, 1)), np.eye(2), [[0]], pairing="interleaved")
    >>> latent, k_rope
    (array([[[3.]]]), array([[[1., 2.]]]))

    Raises ValueError or TypeError that names the argument, what came and what is wanted.
    Error bound: (E + 1) u |x| |w_c|, then that of `rms_norm`; (E + 1) u |x| |w_kr| turned, then that of `rope`.
    Source: DeepSeek-AI 2024 (arXiv 2405.04434), equations 9 and 15; the norm: its section 3.1.2.
    """
    x = arguments.widen("x", x, ndim=3)
    w_c, w_kr = arguments.widen("w_c", w_c, ndim=2), arguments.widen("w_kr", w_kr, ndim=2)
    for name, w in (("w_c", w_c), ("w_kr", w_kr)):
        if w.shape[0] != x.shape[2]:
            raise ValueError(f"{name}: got shape {w.shape} for x {x.shape}; want {x.shape[2]} rows")
    with np.errstate(invalid="ignore", over="ignore"):
        latent, k_rope = x @ w_c, x @ w_kr                                      # (B, T, C), (B, T, Dr)
    if norm_weight is not None:
        latent = rms_norm(latent, norm_weight, eps=norm_eps)
    return latent, rope(k_rope, positions, pairing=pairing, base=base, scaling=scaling)


def mla_scale(Dn: int, Dr: int, *, scaling: Scaling = None) -> float:
    """The factor on the scores: 1 / sqrt(Dn + Dr), times m(factor, mscale_all_dim)^2 where the context is stretched by yarn.

    The square, because queries and keys both grow by m; of mscale_all_dim, because what mscale adds stands in cos and sin
    already (NVIDIA/Megatron-LM#1429 took the other). Without it one key still comes out right, two do not
    (onnxruntime/mobius#548).

    >>> yarn = {"kind": "yarn", "factor": 40.0, "original_max_position_embeddings": 4096, "beta_fast": 32, "beta_slow": 1,
    ...         "mscale": 1.0, "mscale_all_dim": 0.707, "truncate": True}
    >>> mla_scale(8, 8), round(mla_scale(8, 8, scaling=yarn) * 4.0, 4)
    (0.25, 1.5896)

    Error bound: 14 u of its value. Source: DeepSeek-AI 2024 (arXiv 2405.04434), equation 18; the square: softmax_scale in
    the model code of DeepSeek-V2 and V3.
    """
    D = arguments.whole_number("Dn", Dn, least=0) + arguments.whole_number("Dr", Dr, least=0)
    if D == 0:
        raise ValueError("Dn: got 0 beside Dr = 0; want at least one coordinate")
    m = yarn_mscale(scaling["factor"], scaling["mscale_all_dim"]) if scaling is not None and scaling.get("kind") == "yarn" else 1.0
    return float(m * m / np.sqrt(D))


def mla_attention(q_nope: ArrayLike, q_rope: ArrayLike, latent: ArrayLike, k_rope: ArrayLike, w_uk: ArrayLike, w_uv: ArrayLike, *,
                  causal: Causal, scale: float, kv_lengths: ArrayLike | None = None,
                  mask: ArrayLike | None = None) -> tuple[Float64, Float64]:
    """Latent attention with keys and values built anew for each head: out (B, H, Lq, Dv), lse (B, H, Lq), float64.

        k_h = latent w_uk[h],   v_h = latent w_uv[h]
        out_h, lse_h = attention of [q_nope_h, q_rope_h] over [k_h, k_rope] and v_h

    q_nope (B, H, Lq, Dn), q_rope (B, H, Lq, Dr), latent (B, Lk, C), k_rope (B, Lk, Dr), w_uk (H, C, Dn), w_uv (H, C, Dv);
    kv_lengths (B,); mask (True = visible) broadcasts to (B, H, Lq, Lk). q_rope and k_rope are turned already. scale has no
    default: it is seldom 1 / sqrt(D), see `mla_scale`. Conventions as in `attention`: nothing visible gives 0 and -inf,
    what is not seen never matters.

    >>> q_nope, q_rope, latent = np.ones((1, 1, 1, 1)), np.zeros((1, 1, 1, 2)), np.array([[[0.0], [0.0]]])
    >>> mla_attention(q_nope, q_rope, latent, np.zeros((1, 2, 2)), np.ones((1, 1, 1)), np.ones((1, 1, 3)), causal=None, scale=1.0)
    (array([[[[0., 0., 0.]]]]), array([[[0.69314718]]]))

    Raises ValueError or TypeError that names the argument, what came and what is wanted.
    Error bound: that of `attention` with (C + Dn + Dr + 4) u |scale| (|q_nope| |w_uk|^T |latent|^T + |q_rope| |k_rope|^T)
    for the scores, and C + 1 roundings more of p |latent| |w_uv|.
    Source: DeepSeek-AI 2024 (arXiv 2405.04434), equations 10, 11 and 16 to 19.
    """
    q_nope, q_rope, latent, k_rope, w_uk, w_uv = _checked(q_nope, q_rope, latent, k_rope, w_uk, w_uv)
    (B, H, _, _), (_, Lk, Dr) = q_nope.shape, k_rope.shape
    with np.errstate(invalid="ignore", over="ignore"):                          # NaN and inf may stand where nobody looks
        k_nope, v = latent[:, None] @ w_uk, latent[:, None] @ w_uv              # (B, H, Lk, Dn), (B, H, Lk, Dv)
    q = np.concatenate([q_nope, q_rope], axis=-1)                               # (B, H, Lq, Dn + Dr)
    k = np.concatenate([k_nope, np.broadcast_to(k_rope[:, None], (B, H, Lk, Dr))], axis=-1)
    return attention(q, k, v, causal=causal, scale=arguments.real_number("scale", scale), kv_lengths=kv_lengths, mask=mask)


def mla_attention_absorbed(q_nope: ArrayLike, q_rope: ArrayLike, latent: ArrayLike, k_rope: ArrayLike, w_uk: ArrayLike,
                           w_uv: ArrayLike, *, causal: Causal, scale: float, kv_lengths: ArrayLike | None = None,
                           mask: ArrayLike | None = None) -> tuple[Float64, Float64]:
    """`mla_attention` without ever building a head's keys or values: the same real numbers, not the same bits.

        q_h (latent w_uk[h])^T = (q_h w_uk[h]^T) latent^T      w_uk joins the queries
        p (latent w_uv[h]) = (p latent) w_uv[h]                w_uv comes after the sum

    so that all heads read one key [latent, k_rope] and one value, latent: multi-query attention of head size C + Dr.

    >>> q_nope, q_rope, latent = np.ones((1, 1, 1, 1)), np.zeros((1, 1, 1, 2)), np.array([[[0.0], [0.0]]])
    >>> mla_attention_absorbed(q_nope, q_rope, latent, np.zeros((1, 2, 2)), np.ones((1, 1, 1)), np.ones((1, 1, 3)), causal=None,
    ...                        scale=1.0)
    (array([[[[0., 0., 0.]]]]), array([[[0.69314718]]]))

    Raises ValueError or TypeError that names the argument, what came and what is wanted.
    Error bound: as `mla_attention`. Source: DeepSeek-AI 2024 (arXiv 2405.04434), section 2.1.2 and appendix C.
    """
    q_nope, q_rope, latent, k_rope, w_uk, w_uv = _checked(q_nope, q_rope, latent, k_rope, w_uk, w_uv)
    q = absorbed_queries(q_nope, q_rope, w_uk)                                  # (B, H, Lq, C + Dr)
    k = np.concatenate([latent, k_rope], axis=-1)[:, None]                      # (B, 1, Lk, C + Dr)
    o, lse = attention(q, k, latent[:, None], causal=causal, scale=arguments.real_number("scale", scale), kv_lengths=kv_lengths,
                       mask=mask)                                               # (B, H, Lq, C)
    with np.errstate(invalid="ignore", over="ignore"):
        return o @ w_uv, lse


def absorbed_queries(q_nope: Float64, q_rope: Float64, w_uk: Float64) -> Float64:
    """Queries that read latents: [q_nope w_uk^T, q_rope], (B, H, Lq, C + Dr).

    >>> absorbed_queries(np.ones((1, 1, 1, 2)), np.zeros((1, 1, 1, 2)), np.array([[[1.0, 2.0]]]))
    array([[[[3., 0., 0.]]]])

    Error bound: (Dn + 1) u |q_nope| |w_uk|^T.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        return np.concatenate([q_nope @ w_uk.swapaxes(-1, -2), q_rope], axis=-1)


def _checked(q_nope: ArrayLike, q_rope: ArrayLike, latent: ArrayLike, k_rope: ArrayLike, w_uk: ArrayLike,
             w_uv: ArrayLike) -> tuple[Float64, Float64, Float64, Float64, Float64, Float64]:
    """The six arrays in float64, of shapes that fit one another."""
    q_nope, q_rope = arguments.widen("q_nope", q_nope, ndim=4), arguments.widen("q_rope", q_rope, ndim=4)
    B, H, Lq, Dn = q_nope.shape
    if q_rope.shape[:3] != (B, H, Lq):
        raise ValueError(f"q_rope: got shape {q_rope.shape} beside q_nope {q_nope.shape}; want ({B}, {H}, {Lq}, Dr)")
    latent = arguments.widen("latent", latent, ndim=3)
    if latent.shape[0] != B:
        raise ValueError(f"latent: got shape {latent.shape} beside q_nope {q_nope.shape}; want ({B}, Lk, C)")
    _, Lk, C = latent.shape
    k_rope = arguments.widen("k_rope", k_rope, (B, Lk, q_rope.shape[3]))
    w_uk, w_uv = arguments.widen("w_uk", w_uk, (H, C, Dn)), arguments.widen("w_uv", w_uv, ndim=3)
    if w_uv.shape[:2] != (H, C):
        raise ValueError(f"w_uv: got shape {w_uv.shape}; want ({H}, {C}, Dv)")
    return q_nope, q_rope, latent, k_rope, w_uk, w_uv
