"""jax.nn.dot_product_attention on arrays of JAX in the layout (B, L, H, D), forward and by reverse differentiation.

Nothing but JAX is imported, inside the functions, so that this file runs alone.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any


def attention(q: Any, k: Any, v: Any, *, causal: Any, window: Any = None, scale: Any = None, mask: Any = None,
              kv_lengths: Any = None) -> Any:
    """out (B, Lq, Hq, D) and lse (B, Hq, Lq), without a bias."""
    return attention_bias(q, k, v, causal=causal, window=window, scale=scale, mask=mask, kv_lengths=kv_lengths)


def attention_bias(q: Any, k: Any, v: Any, *, causal: Any, window: Any = None, scale: Any = None, bias: Any = None, mask: Any = None,
                   kv_lengths: Any = None) -> Any:
    """out (B, Lq, Hq, D) and lse (B, Hq, Lq)."""
    options = _options(q, k, causal, window, kv_lengths)
    return _compiled(*options)(q, k, v, bias, mask, kv_lengths, _scale(q, scale))


def backward(q: Any, k: Any, v: Any, out: Any, lse: Any, dout: Any, *, causal: Any, window: Any = None, scale: Any = None,
             mask: Any = None, kv_lengths: Any = None) -> Any:
    """dq, dk, dv without a bias; out and lse are its own."""
    return backward_bias(q, k, v, out, lse, dout, causal=causal, window=window, scale=scale, mask=mask, kv_lengths=kv_lengths)


def backward_bias(q: Any, k: Any, v: Any, out: Any, lse: Any, dout: Any, *, causal: Any, window: Any = None, scale: Any = None,
                  bias: Any = None, mask: Any = None, kv_lengths: Any = None) -> Any:
    """dq, dk, dv and dbias; out and lse are its own."""
    options = _options(q, k, causal, window, kv_lengths)
    gradients = _compiled_backward(*options)(q, k, v, bias, mask, kv_lengths, _scale(q, scale), dout)
    return {name: gradient for name, gradient in zip(("dq", "dk", "dv", "dbias"), gradients) if gradient is not None}


def _scale(q: Any, scale: Any) -> float:
    """Handed over as a number, so that another scale is not another compilation; the default is the library's own."""
    return float(q.shape[-1] ** -0.5 if scale is None else scale)


def _options(q: Any, k: Any, causal: Any, window: Any, kv_lengths: Any) -> tuple[bool, Any]:
    """is_causal and local_window_size, whose query i always stands at i."""
    Lq, Lk = q.shape[1], k.shape[1]
    if window is None:
        return causal is not None, None
    if causal is None and (Lq != Lk or kv_lengths is not None):
        raise NotImplementedError("local_window_size puts query i at i, not at i + n_k - n_q")
    left, right = (max(Lq, Lk) if side is None else side for side in window)
    return causal is not None, (left, right)


@lru_cache(maxsize=1024)
def _compiled(is_causal: bool, window: Any) -> Any:
    import jax

    def run(q: Any, k: Any, v: Any, bias: Any, mask: Any, kv_lengths: Any, scale: Any) -> Any:
        lengths = None if kv_lengths is None else kv_lengths.astype("int32")
        out, lse = jax.nn.dot_product_attention(
            q, k, v, bias, mask, scale=scale, is_causal=is_causal, key_value_seq_lengths=lengths, local_window_size=window,
            return_residual=True,
        )  # fmt: skip
        return out, lse.swapaxes(1, 2)

    return jax.jit(run)


@lru_cache(maxsize=1024)
def _compiled_backward(is_causal: bool, window: Any) -> Any:
    import jax

    forward = _compiled(is_causal, window)

    def run(q: Any, k: Any, v: Any, bias: Any, mask: Any, kv_lengths: Any, scale: Any, dout: Any) -> Any:
        _, pull_back = jax.vjp(lambda q, k, v, bias: forward(q, k, v, bias, mask, kv_lengths, scale)[0], q, k, v, bias)
        return pull_back(dout)

    return jax.jit(run)
