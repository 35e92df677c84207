"""Attention kernels of jax.experimental.pallas in its interpreters, on arrays of JAX in the layout (B, L, H, D).

Nothing but NumPy and JAX is imported, JAX inside the functions, so that this file runs alone.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np

QUERIES = 64
BLOCK, TPU_BLOCK = 32, 128                                                      # lengths are multiples of them


def mha(q: Any, k: Any, v: Any, *, causal: Any, scale: Any = None) -> Any:
    """out (B, Lq, H, D) and lse (B, H, Lq) of pallas.ops.gpu.attention.mha, whose lse is in base 2."""
    is_causal = _checked(q, k, causal)
    with _narrow_types():
        out, lse = _mha(is_causal, _scale(q, scale), True)(q, k, v)
    return out, lse * math.log(2.0)


def mha_backward(q: Any, k: Any, v: Any, out: Any, lse: Any, dout: Any, *, causal: Any, scale: Any = None) -> Any:
    """dq, dk, dv of pallas.ops.gpu.attention.mha; out and lse are its own."""
    is_causal = _checked(q, k, causal)
    with _narrow_types():
        return _mha_backward(is_causal, _scale(q, scale))(q, k, v, dout)


def decode(q: Any, k: Any, v: Any, *, causal: Any, window: Any = None, scale: Any = None, kv_lengths: Any = None) -> Any:
    """out (B, Lq, Hq, D) and lse (B, Hq, Lq) of pallas.ops.gpu.decode_attention.gqa, the keys in two parts.

    It takes one query a sequence: each query becomes a sequence, which sees the keys from start_idx up to kv_seq_len. The keys are
    padded to a multiple of what the kernel takes.
    """
    import jax.numpy as jnp

    (B, Lq, Hq, D), Lk = q.shape, k.shape[1]
    if B * Lq > QUERIES:
        raise NotImplementedError(f"{QUERIES} queries at most")
    lengths = np.full(B, Lk) if kv_lengths is None else np.asarray(kv_lengths)
    p = lengths[:, None] - Lq + np.arange(Lq)                                   # (B, Lq): where a query stands
    left, right = window or (None, None)
    right = min(0, Lk if right is None else right) if causal is not None else right
    first = np.zeros_like(p) if left is None else np.maximum(p - left, 0)
    end = np.broadcast_to(lengths[:, None], p.shape) if right is None else np.minimum(p + right + 1, lengths[:, None])
    whole = ((0, 0), (0, -Lk % BLOCK), (0, 0), (0, 0))
    keys, values = (jnp.repeat(jnp.pad(x, whole), Lq, axis=0) for x in (k, v))  # (B Lq, ..., Hkv, D)
    with _narrow_types():
        out, (l, m) = _decode(_scale(q, scale))(q.reshape(B * Lq, Hq, D), keys, values, *(x.ravel().astype(np.int32) for x in (first, end)))
    with np.errstate(divide="ignore"):
        lse = np.log(np.asarray(l)) + np.asarray(m)                             # (B Lq, Hq)
    return out.reshape(B, Lq, Hq, D), np.ascontiguousarray(lse.reshape(B, Lq, Hq).swapaxes(1, 2))


def tpu_flash(q: Any, k: Any, v: Any, *, causal: Any, scale: Any = None) -> Any:
    """out (B, Lq, H, D) of pallas.ops.tpu.flash_attention, interpreted as a TPU would run it, without a bias."""
    return tpu_flash_scaled_bias(q, k, v, causal=causal, scale=scale)


def tpu_flash_scaled_bias(q: Any, k: Any, v: Any, *, causal: Any, scale: Any = None, bias: Any = None) -> Any:
    """The same with its `ab`, which is added before sm_scale multiplies the sum: another convention than the contract's.

    "Should the attention bias be added before or after", its source asks.
    """
    import jax.experimental.pallas.tpu as pltpu
    from jax.experimental.pallas.ops.tpu.flash_attention import BlockSizes, flash_attention

    (B, Lq, H, _), Lk = q.shape, k.shape[1]
    if bias is not None:
        bias = np.broadcast_to(np.asarray(bias), (B, H, Lq, Lk))
    blocks = BlockSizes(block_q=TPU_BLOCK, block_k_major=TPU_BLOCK, block_k=TPU_BLOCK, block_b=1)
    with _narrow_types(), pltpu.force_tpu_interpret_mode():
        out = flash_attention(*(x.swapaxes(1, 2) for x in (q, k, v)), bias, causal=causal is not None, sm_scale=_scale(q, scale),
                              block_sizes=blocks)  # fmt: skip
    return out.swapaxes(1, 2)


def splash(q: Any, k: Any, v: Any, *, causal: Any, window: Any = None, scale: Any = None, softcap: Any = None, sinks: Any = None) -> Any:
    """out (B, Lq, Hq, D) and lse (B, Hq, Lq) of pallas.ops.tpu.splash_attention; the scale is the caller's, so q is multiplied by it."""
    import jax

    if q.shape[1] > k.shape[1]:
        raise NotImplementedError("more queries than keys: what a row that sees nothing gives depends on its tile")
    scaled = (q * np.asarray(_scale(q, scale)).astype(q.dtype)).swapaxes(1, 2)
    given = (scaled, k.swapaxes(1, 2), v.swapaxes(1, 2))
    with _narrow_types():
        kernel = _splash(q.shape[2], q.shape[1], k.shape[1], causal, window, softcap)
        out, residuals = jax.vmap(lambda q, k, v: kernel(q, k, v, sinks=sinks))(*given)
    lse = residuals["logsumexp"] if isinstance(residuals, dict) else residuals[0]
    return out.swapaxes(1, 2), lse


def _narrow_types() -> Any:
    """The kernels mix Python integers with int32 and fail where integers are 64 bits wide by default."""
    import jax

    return jax.enable_x64(False)


def _scale(q: Any, scale: Any) -> float:
    return float(q.shape[-1] ** -0.5 if scale is None else scale)


def _checked(q: Any, k: Any, causal: Any) -> bool:
    """Whether it is causal. With more queries than keys the kernel reads past the last key."""
    if causal is not None and q.shape[1] > k.shape[1]:
        raise NotImplementedError("causal with more queries than keys reads past the keys")
    return causal is not None


@lru_cache(maxsize=1024)
def _mha(causal: bool, scale: float, return_residuals: bool) -> Any:
    from jax.experimental.pallas.ops.gpu.attention import BlockSizes, mha

    sizes = BlockSizes(block_q=BLOCK, block_k=BLOCK, block_q_dkv=BLOCK, block_kv_dkv=BLOCK, block_q_dq=BLOCK, block_kv_dq=BLOCK)

    def run(q: Any, k: Any, v: Any) -> Any:
        return mha(q, k, v, None, scale, causal, block_sizes=sizes, interpret=True, return_residuals=return_residuals)

    return run


@lru_cache(maxsize=1024)
def _mha_backward(causal: bool, scale: float) -> Any:
    import jax

    def run(q: Any, k: Any, v: Any, dout: Any) -> Any:
        _, pull_back = jax.vjp(_mha(causal, scale, False), q, k, v)
        return pull_back(dout)

    return jax.jit(run)


@lru_cache(maxsize=1024)
def _decode(scale: float) -> Any:
    from jax.experimental.pallas.ops.gpu.decode_attention import gqa

    def run(q: Any, k: Any, v: Any, first: Any, end: Any) -> Any:
        return gqa(q, k, v, start_idx=first, kv_seq_len=end, sm_scale=scale, block_k=16, k_splits=2, interpret=True, return_residuals=True)

    return run


@lru_cache(maxsize=1024)
def _splash(heads: int, Lq: int, Lk: int, causal: Any, window: Any, softcap: Any) -> Any:
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as kernels
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

    one = _splash_mask(Lq, Lk, causal, window)
    sizes = kernels.BlockSizes(block_q=TPU_BLOCK, block_kv=TPU_BLOCK, block_kv_compute=TPU_BLOCK)
    return kernels.make_splash_mha(masks.MultiHeadMask([one] * heads), block_sizes=sizes, save_residuals=True, interpret=True,
                                   head_shards=1, q_seq_shards=1, attn_logits_soft_cap=softcap)  # fmt: skip


def _splash_mask(Lq: int, Lk: int, causal: Any, window: Any) -> Any:
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

    shape, offset = (Lq, Lk), Lk - Lq
    if window is None:
        return masks.FullMask(shape) if causal is None else masks.CausalMask(shape, offset)
    local = masks.LocalMask(shape, tuple(window), offset)
    return local if causal is None else local & masks.CausalMask(shape, offset)
