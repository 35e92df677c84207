"""Our CUDA ports as declared subjects, run by the emulator on NumPy arrays: `oracles check gpu:… --emulate` looks here.

Head sizes are those of the narrowest instance of each kernel, so that building and emulating stays cheap. float64 is not covered: the
kernels compute in float32.
"""

from __future__ import annotations

from typing import Any

from oracles.gpu import adamw as optimizers
from oracles.gpu import cross_entropy as losses
from oracles.gpu import experts as mixture
from oracles.gpu import flash_attention as forward
from oracles.gpu import flash_attention_backward as backward
from oracles.gpu import kv_cache as cache
from oracles.gpu import merge_attention as merge
from oracles.gpu import mla as latents
from oracles.gpu import paged_attention as pages
from oracles.gpu import pruning as sparse
from oracles.gpu import quantization as codes
from oracles.gpu import rope as rotary
from oracles.gpu import sampling as draws
from oracles.gpu import softmax as rows
from oracles.gpu import speculative as drafts
from oracles.properties import Arithmetic, subject

FORMATS = ("float32", "float16", "bfloat16")
ALIGNMENTS = (None, "bottom_right", "top_left")
HEAD_DIMS = (1, 5, 16, 40, 64)
# expf, logf and tanhf of the CUDA C++ Programming Guide are within 2 ulp, 4 units of roundoff.
ARITHMETIC = Arithmetic(exp_ulps=4.0, log_ulps=4.0, tanh_ulps=4.0, tile_min=32)
IGNORED = {"nonfinite_behind_mask": "ignored"}
EMULATED = "emulated"


@subject("softmax", arithmetic=ARITHMETIC, dtypes=FORMATS, promises=["deterministic"])
def softmax(x: Any, *, axis: int = -1) -> Any:
    """kernels/softmax.cu."""
    return rows.softmax(x, axis=axis, backend=EMULATED)


@subject("log_sum_exp", arithmetic=ARITHMETIC, dtypes=FORMATS, promises=["deterministic"])
def log_sum_exp(x: Any, *, axis: int = -1) -> Any:
    """kernels/softmax.cu, its other output."""
    return rows.log_sum_exp(x, axis=axis, backend=EMULATED)


@subject("merge_attention", arithmetic=ARITHMETIC, dtypes=FORMATS, promises=["deterministic"])
def merge_attention(out_a: Any, lse_a: Any, out_b: Any, lse_b: Any) -> Any:
    """kernels/merge_attention.cu."""
    return merge.merge_attention(out_a, lse_a, out_b, lse_b, backend=EMULATED)


@subject("attention", arithmetic=ARITHMETIC, dtypes=FORMATS, causal=ALIGNMENTS, head_dims=HEAD_DIMS, conventions=IGNORED,
         promises=["deterministic", "batch_invariant", "validates_input"])
def flash_attention(q: Any, k: Any, v: Any, *, causal: Any, window: Any = None, scale: Any = None, softcap: Any = None, bias: Any = None,
                    mask: Any = None, kv_lengths: Any = None, sinks: Any = None, alibi_slopes: Any = None, dropout_mask: Any = None,
                    dropout_p: Any = 0.0) -> Any:
    """kernels/flash_forward.cu, one block for all keys of a query."""
    return forward.flash_attention(q, k, v, causal=causal, window=window, scale=scale, softcap=softcap, bias=bias, mask=mask,
                                   kv_lengths=kv_lengths, sinks=sinks, alibi_slopes=alibi_slopes, dropout_mask=dropout_mask,
                                   dropout_p=dropout_p, backend=EMULATED)


@subject("attention", arithmetic=Arithmetic(tile_min=32, merges_lse=True), dtypes=FORMATS, causal=ALIGNMENTS, head_dims=(64,),
         conventions=IGNORED, promises=["deterministic", "batch_invariant"])
def flash_attention_split(q: Any, k: Any, v: Any, *, causal: Any, window: Any = None, scale: Any = None, softcap: Any = None,
                          bias: Any = None, mask: Any = None, kv_lengths: Any = None, sinks: Any = None, alibi_slopes: Any = None,
                          dropout_mask: Any = None, dropout_p: Any = 0.0) -> Any:
    """kernels/flash_forward.cu with the keys in three shares, and kernels/merge_attention.cu."""
    return forward.flash_attention(q, k, v, causal=causal, window=window, scale=scale, softcap=softcap, bias=bias, mask=mask,
                                   kv_lengths=kv_lengths, sinks=sinks, alibi_slopes=alibi_slopes, dropout_mask=dropout_mask,
                                   dropout_p=dropout_p, splits=3, backend=EMULATED)


@subject("attention_backward", arithmetic=ARITHMETIC, dtypes=FORMATS, causal=ALIGNMENTS, head_dims=(5, 16, 40), promises=["deterministic"])
def flash_attention_backward(q: Any, k: Any, v: Any, out: Any, lse: Any, dout: Any, *, causal: Any, window: Any = None, scale: Any = None,
                             softcap: Any = None, bias: Any = None, mask: Any = None, kv_lengths: Any = None, sinks: Any = None,
                             alibi_slopes: Any = None, dropout_mask: Any = None, dropout_p: Any = 0.0) -> Any:
    """kernels/flash_backward.cu."""
    return backward.flash_attention_backward(q, k, v, out, lse, dout, causal=causal, window=window, scale=scale, softcap=softcap,
                                             bias=bias, mask=mask, kv_lengths=kv_lengths, sinks=sinks, alibi_slopes=alibi_slopes,
                                             dropout_mask=dropout_mask, dropout_p=dropout_p, backend=EMULATED)


@subject("attention_packed", arithmetic=ARITHMETIC, dtypes=FORMATS, causal=ALIGNMENTS, head_dims=HEAD_DIMS,
         promises=["deterministic", "batch_invariant", "validates_input"])
def flash_attention_packed(q: Any, k: Any, v: Any, cu_q: Any, cu_k: Any, *, causal: Any, window: Any = None, scale: Any = None,
                           softcap: Any = None) -> Any:
    """kernels/flash_forward.cu on packed sequences."""
    return forward.flash_attention_packed(q, k, v, cu_q, cu_k, causal=causal, window=window, scale=scale, softcap=softcap,
                                          backend=EMULATED)


@subject("attention_packed_backward", arithmetic=ARITHMETIC, dtypes=FORMATS, causal=ALIGNMENTS, head_dims=(5, 16, 40),
         promises=["deterministic"])
def flash_attention_packed_backward(q: Any, k: Any, v: Any, out: Any, lse: Any, dout: Any, cu_q: Any, cu_k: Any, *, causal: Any,
                                    window: Any = None, scale: Any = None, softcap: Any = None) -> Any:
    """kernels/flash_backward.cu on packed sequences."""
    return backward.flash_attention_packed_backward(q, k, v, out, lse, dout, cu_q, cu_k, causal=causal, window=window, scale=scale,
                                                    softcap=softcap, backend=EMULATED)


@subject("rope", arithmetic=Arithmetic(phases="float64"), dtypes=FORMATS, promises=["deterministic"])
def rope(x: Any, positions: Any, *, pairing: Any, base: Any = 10000.0, rotary_dim: Any = None, scaling: Any = None) -> Any:
    """kernels/rope.cu."""
    return rotary.rope(x, positions, pairing=pairing, base=base, rotary_dim=rotary_dim, scaling=scaling, backend=EMULATED)


@subject("write_kv", dtypes=FORMATS, in_place=["k_cache", "v_cache"], promises=["deterministic"])
def write_kv(k_cache: Any, v_cache: Any, k: Any, v: Any, slots: Any) -> None:
    """kernels/write_kv.cu."""
    cache.write_kv(k_cache, v_cache, k, v, slots, backend=EMULATED)


@subject("paged_attention", arithmetic=ARITHMETIC, dtypes=FORMATS, causal=ALIGNMENTS, head_dims=HEAD_DIMS, conventions=IGNORED,
         promises=["deterministic", "validates_input"])
def paged_attention(q: Any, k_pages: Any, v_pages: Any, block_tables: Any, kv_lengths: Any, *, causal: Any, query_lengths: Any = None,
                    window: Any = None, scale: Any = None, softcap: Any = None, sinks: Any = None) -> Any:
    """kernels/paged_decode.cu, one block for all keys of a group of heads."""
    return pages.paged_attention(q, k_pages, v_pages, block_tables, kv_lengths, causal=causal, query_lengths=query_lengths, window=window,
                                 scale=scale, softcap=softcap, sinks=sinks, backend=EMULATED)


@subject("paged_attention", arithmetic=Arithmetic(tile_min=32, merges_lse=True), dtypes=FORMATS, causal=ALIGNMENTS, head_dims=(64,),
         conventions=IGNORED, promises=["deterministic"])
def paged_attention_split(q: Any, k_pages: Any, v_pages: Any, block_tables: Any, kv_lengths: Any, *, causal: Any, query_lengths: Any = None,
                          window: Any = None, scale: Any = None, softcap: Any = None, sinks: Any = None) -> Any:
    """kernels/paged_decode.cu with the keys in three shares, and kernels/merge_attention.cu."""
    return pages.paged_attention(q, k_pages, v_pages, block_tables, kv_lengths, causal=causal, query_lengths=query_lengths, window=window,
                                 scale=scale, softcap=softcap, sinks=sinks, splits=3, backend=EMULATED)


@subject("mla_attention", arithmetic=Arithmetic(tile_min=32, absorbed=True), dtypes=FORMATS, causal=ALIGNMENTS, conventions=IGNORED,
         promises=["deterministic", "validates_input"])
def mla_attention(q_nope: Any, q_rope: Any, latent: Any, k_rope: Any, w_uk: Any, w_uv: Any, *, causal: Any, scale: Any,
                  kv_lengths: Any = None, mask: Any = None) -> Any:
    """kernels/mla_decode.cu: the absorbed form."""
    return latents.mla_attention_absorbed(q_nope, q_rope, latent, k_rope, w_uk, w_uv, causal=causal, scale=scale, kv_lengths=kv_lengths,
                                          mask=mask, backend=EMULATED)


@subject("mla_attention", arithmetic=Arithmetic(tile_min=32, absorbed=True, merges_lse=True), dtypes=FORMATS, causal=ALIGNMENTS,
         head_dims=(16,), conventions=IGNORED, promises=["deterministic"])
def mla_attention_split(q_nope: Any, q_rope: Any, latent: Any, k_rope: Any, w_uk: Any, w_uv: Any, *, causal: Any, scale: Any,
                        kv_lengths: Any = None, mask: Any = None) -> Any:
    """kernels/mla_decode.cu with the keys in three shares, and kernels/merge_attention.cu."""
    return latents.mla_attention_absorbed(q_nope, q_rope, latent, k_rope, w_uk, w_uv, causal=causal, scale=scale, kv_lengths=kv_lengths,
                                          mask=mask, splits=3, backend=EMULATED)


@subject("filter_probabilities", arithmetic=ARITHMETIC, dtypes=FORMATS, promises=["deterministic"])
def filter_probabilities(logits: Any, *, temperature: Any = 1.0, top_k: Any = None, top_p: Any = None, min_p: Any = None) -> Any:
    """kernels/sampling.cu."""
    return draws.filter_probabilities(logits, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, backend=EMULATED)


@subject("sample", dtypes=FORMATS, promises=["deterministic"])
def sample(probabilities: Any, u: Any) -> Any:
    """kernels/sampling.cu, its draw."""
    return draws.sample(probabilities, u, backend=EMULATED)


@subject("speculative_verify", dtypes=["float32"], promises=["deterministic"])
def speculative_verify(draft_tokens: Any, draft_probs: Any, target_probs: Any, accept_u: Any, sample_u: Any, *,
                       draft_lengths: Any = None) -> Any:
    """kernels/speculative_verify.cu."""
    return drafts.speculative_verify(draft_tokens, draft_probs, target_probs, accept_u, sample_u, draft_lengths=draft_lengths,
                                     backend=EMULATED)


@subject("quantize", arithmetic=Arithmetic(out="float32"), dtypes=FORMATS, promises=["deterministic"])
def quantize(x: Any, *, bits: Any, axis: Any = None, group: Any = None, symmetric: Any = True, scale: Any = None, zero: Any = None) -> Any:
    """kernels/quantize.cu: scales in float32 for every format."""
    return codes.quantize(x, bits=bits, axis=axis, group=group, symmetric=symmetric, scale=scale, zero=zero, backend=EMULATED)


@subject("quantized_matmul", dtypes=FORMATS, promises=["deterministic"])
def quantized_matmul(x: Any, q: Any, scale: Any, *, x_scale: Any, bias: Any = None) -> Any:
    """kernels/matmul_int8.cu."""
    return codes.quantized_matmul(x, q, scale, x_scale=x_scale, bias=bias, backend=EMULATED)


@subject("prune_2_4", dtypes=FORMATS, promises=["deterministic"])
def prune_2_4(w: Any, *, axis: Any) -> Any:
    """kernels/prune_2_4.cu."""
    return sparse.prune_2_4(w, axis=axis, backend=EMULATED)


@subject("cross_entropy", arithmetic=ARITHMETIC, dtypes=FORMATS, promises=["deterministic"])
def cross_entropy(logits: Any, targets: Any, *, weights: Any = None, ignore_index: int = -100, label_smoothing: float = 0.0,
                  z_loss: float = 0.0, reduction: str) -> Any:
    """kernels/cross_entropy.cu, without the gradient."""
    return losses.cross_entropy(logits, targets, weights=weights, ignore_index=ignore_index, label_smoothing=label_smoothing, z_loss=z_loss,
                                reduction=reduction, backend=EMULATED)


@subject("cross_entropy_backward", arithmetic=ARITHMETIC, dtypes=FORMATS, promises=["deterministic"])
def cross_entropy_backward(logits: Any, targets: Any, dloss: Any, *, weights: Any = None, ignore_index: int = -100,
                           label_smoothing: float = 0.0, z_loss: float = 0.0, reduction: str) -> Any:
    """kernels/cross_entropy.cu, the gradient of the launch that gives both."""
    return losses.cross_entropy_with_gradient(logits, targets, dloss, weights=weights, ignore_index=ignore_index,
                                              label_smoothing=label_smoothing, z_loss=z_loss, reduction=reduction, backend=EMULATED)[1]


@subject("adamw_step", arithmetic=Arithmetic(moments="float32"), dtypes=FORMATS, promises=["deterministic"])
def adamw_step(param: Any, grad: Any, m: Any, v: Any, *, step: int, lr: float, beta1: float, beta2: float, eps: float,
               weight_decay: float) -> Any:
    """kernels/adamw.cu: moments in float32 for every format."""
    return optimizers.adamw_step(param, grad, m, v, step=step, lr=lr, beta1=beta1, beta2=beta2, eps=eps, weight_decay=weight_decay,
                                 backend=EMULATED)


@subject("master_weight_step", dtypes=["float32"], promises=["deterministic"])
def master_weight_step(grad: Any, master: Any, m: Any, v: Any, *, loss_scale: float, max_norm: Any, step: int, lr: float, beta1: float,
                       beta2: float, eps: float, weight_decay: float, fmt: str) -> Any:
    """kernels/adamw.cu, the fused step; its weights of 16 bits widened, as the contract has them."""
    weights, *others = optimizers.master_weight_step(grad, master, m, v, loss_scale=loss_scale, max_norm=max_norm, step=step, lr=lr,
                                                     beta1=beta1, beta2=beta2, eps=eps, weight_decay=weight_decay, fmt=fmt,
                                                     backend=EMULATED)
    return weights.astype("float32"), *others


@subject("route", arithmetic=ARITHMETIC, dtypes=FORMATS, promises=["deterministic"])
def route(logits: Any, *, k: int, normalize: bool, bias: Any = None) -> Any:
    """kernels/experts.cu; its gates of float32 rounded to the format of the logits, as the contract has them."""
    ids, gates = mixture.route(logits, k=k, normalize=normalize, bias=bias, backend=EMULATED)
    return ids, gates.astype(logits.dtype)


@subject("moe_layer", arithmetic=ARITHMETIC, dtypes=FORMATS, promises=["deterministic"])
def moe_layer(x: Any, logits: Any, weights: Any, *, k: int, normalize: bool, bias: Any = None, capacity: Any = None) -> Any:
    """kernels/experts.cu: routing, dispatch, one product an expert, combine."""
    return mixture.moe_layer(x, logits, weights, k=k, normalize=normalize, bias=bias, capacity=capacity, backend=EMULATED)


GPU_PORTS: tuple[tuple[str, str], ...] = (
    ("softmax", "oracles.tools.gpu_ports:softmax"),
    ("log_sum_exp", "oracles.tools.gpu_ports:log_sum_exp"),
    ("merge_attention", "oracles.tools.gpu_ports:merge_attention"),
    ("attention", "oracles.tools.gpu_ports:flash_attention"),
    ("attention", "oracles.tools.gpu_ports:flash_attention_split"),
    ("attention_backward", "oracles.tools.gpu_ports:flash_attention_backward"),
    ("attention_packed", "oracles.tools.gpu_ports:flash_attention_packed"),
    ("attention_packed_backward", "oracles.tools.gpu_ports:flash_attention_packed_backward"),
    ("rope", "oracles.tools.gpu_ports:rope"),
    ("write_kv", "oracles.tools.gpu_ports:write_kv"),
    ("paged_attention", "oracles.tools.gpu_ports:paged_attention"),
    ("paged_attention", "oracles.tools.gpu_ports:paged_attention_split"),
    ("mla_attention", "oracles.tools.gpu_ports:mla_attention"),
    ("mla_attention", "oracles.tools.gpu_ports:mla_attention_split"),
    ("filter_probabilities", "oracles.tools.gpu_ports:filter_probabilities"),
    ("sample", "oracles.tools.gpu_ports:sample"),
    ("speculative_verify", "oracles.tools.gpu_ports:speculative_verify"),
    ("quantize", "oracles.tools.gpu_ports:quantize"),
    ("quantized_matmul", "oracles.tools.gpu_ports:quantized_matmul"),
    ("prune_2_4", "oracles.tools.gpu_ports:prune_2_4"),
    ("cross_entropy", "oracles.tools.gpu_ports:cross_entropy"),
    ("cross_entropy_backward", "oracles.tools.gpu_ports:cross_entropy_backward"),
    ("adamw_step", "oracles.tools.gpu_ports:adamw_step"),
    ("master_weight_step", "oracles.tools.gpu_ports:master_weight_step"),
    ("route", "oracles.tools.gpu_ports:route"),
    ("moe_layer", "oracles.tools.gpu_ports:moe_layer"),
)
