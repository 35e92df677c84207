"""Multi-head latent attention in its absorbed form on a GPU (kernels/mla_decode.cu, kernels/merge_attention.cu)."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import arguments
from .attention_problem import BLOCK, FLOAT, QUERIES_A_BLOCK
from .launching import Backend, Launcher, ceil_div, cpp_type

CHANNELS, ROTARY = (128, 512), 64                                               # instances of mla_decode; its most rotary columns


def mla_attention_absorbed(q_nope: Any, q_rope: Any, latent: Any, k_rope: Any, w_uk: Any, w_uv: Any, *, causal: Any, scale: float,
                           kv_lengths: Any = None, mask: Any = None, splits: int = 1,
                           backend: str | Backend = "cuda") -> tuple[Any, Any]:
    """Latent attention that never builds a key or a value: out (B, H, Lq, Dv) in the format of q_nope, lse (B, H, Lq) in float32.

        q_h = q_nope_h w_uk[h]^T,   o_h = softmax(scale (q_h latent^T + q_rope_h k_rope^T)) latent,   out_h = o_h w_uv[h]

    q_nope (B, H, Lq, Dn), q_rope (B, H, Lq, Dr), latent (B, Lk, C), k_rope (B, Lk, Dr), w_uk (H, C, Dn), w_uv (H, C, Dv), one of
    float32, float16 and bfloat16; C up to 512, Dr up to 64; q_h and o_h are kept in float32. kv_lengths (B,); mask (True = visible)
    broadcasts to (B, H, Lq, Lk). All heads share one load of the latents. splits, conventions and repeated bits as in `paged_attention`.

    >>> q_nope, q_rope, latent = (np.ones(shape, np.float32) for shape in ((1, 1, 1, 1), (1, 1, 1, 2), (1, 2, 1)))
    >>> w = np.ones((1, 1, 1), np.float32)
    >>> mla_attention_absorbed(q_nope, q_rope, latent, np.zeros((1, 2, 2), np.float32), w, w, causal=None, scale=1.0,
    ...                        backend="emulated")[0]
    array([[[[1.]]]], dtype=float32)

    Raises ValueError or TypeError that names the argument, NotImplementedError for a format or size the kernels are not built for,
    RuntimeError where there is no device. Error bound: `properties.bounds.mla_attention_bound` under Arithmetic(absorbed=True).
    Source: DeepSeek-AI 2024 (arXiv 2405.04434), section 2.1.2 and appendix C.
    """
    q_nope = arguments.floats("q_nope", q_nope, ndim=4)
    (B, H, Lq, Dn), given = q_nope.shape, {"q_nope": q_nope}
    given["q_rope"] = arguments.floats("q_rope", q_rope, ndim=4, like=q_nope)
    given["latent"] = arguments.floats("latent", latent, ndim=3, like=q_nope)
    given["w_uv"] = arguments.floats("w_uv", w_uv, ndim=3, like=q_nope)
    Dr, (Lk, C), Dv = given["q_rope"].shape[3], given["latent"].shape[1:], given["w_uv"].shape[2]
    for name, x, shape in (("q_rope", q_rope, (B, H, Lq, Dr)), ("latent", latent, (B, Lk, C)), ("k_rope", k_rope, (B, Lk, Dr)),
                           ("w_uk", w_uk, (H, C, Dn)), ("w_uv", w_uv, (H, C, Dv))):
        given[name] = arguments.floats(name, x, shape, like=q_nope)
    if H == 0 or C == 0:
        raise ValueError(f"latent: got {C} channels for {H} heads; want at least one of each")
    if max(CHANNELS) < C or Dr > ROTARY:
        raise NotImplementedError(f"latent, k_rope: got {C} and {Dr} columns; the kernels are built for {max(CHANNELS)} and {ROTARY}")
    splits, scale = arguments.whole_number("splits", splits, least=1), arguments.real_number("scale", scale)
    rule = arguments.causal_rule(causal)
    lengths = None if kv_lengths is None else arguments.integers("kv_lengths", kv_lengths, least=0, most=Lk, shape=(B,))
    steps = None
    if mask is not None:
        mask = arguments.booleans("mask", mask)
        steps = np.array(arguments.broadcast_steps("mask", mask, (B, H, Lq, Lk)))
    run, dtype, rows, cpp = Launcher(backend, **given), q_nope.dtype.name, B * H * Lq, cpp_type(q_nope)
    tensors = {name: run.take(x) for name, x in given.items()}
    q, (parts, part_lses) = run.new((rows, C), "float32"), (run.new((splits, rows, C), "float32"), run.new((splits, rows), "float32"))
    run.launch("mla_decode.cu", f"absorb_queries<{cpp}>", (rows,), BLOCK,
               [tensors["q_nope"], tensors["w_uk"], q, H, Lq, Dn, C], outputs=("q",))
    CP = min(n for n in CHANNELS if n >= C)
    run.launch("mla_decode.cu", f"mla_decode<{cpp}, {CP}>", (ceil_div(H * Lq, QUERIES_A_BLOCK), 1, B * splits), BLOCK,
               [q, *(tensors[name] for name in ("q_rope", "latent", "k_rope")), parts, part_lses,
                None if lengths is None else run.take(lengths), None if mask is None else run.take(mask, "uint8"),
                None if steps is None else run.take(steps, "int64"), splits, B, H, Lq, Lk, C, Dr, rule, scale],
               shared_mem=FLOAT * (16 * (CP + ROTARY) + 32 * (CP + ROTARY + 1) + 512), outputs=("outs", "lses"))
    o, lse, out = parts, part_lses, run.new((B, H, Lq, Dv), dtype)
    if splits > 1:
        o, lse = run.new((rows, C), "float32"), run.new((rows,), "float32")
        run.launch("merge_attention.cu", "merge_splits<float>", (ceil_div(rows, 4),), BLOCK,
                   [parts, part_lses, o, lse, splits, rows, H, Lq, C, 0], outputs=("out", "lse"))
    run.launch("mla_decode.cu", f"expand_values<{cpp}>", (rows,), BLOCK, [o, tensors["w_uv"], out, H, Lq, C, Dv], outputs=("out",))
    return run.give(out, dtype), run.give(lse.reshape(B, H, Lq), "float32")
