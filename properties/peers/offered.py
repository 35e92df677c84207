"""Offered: the operations of each peer, known without its library, so that none is started in vain and a missing one can be told of."""

from __future__ import annotations

# Operations and the peers that have just these. A test compares them with what the modules declare.
_GROUPS: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    (("attention", "attention_backward"), (
        "torch_sdpa", "torch_sdpa_negative_scale", "torch_sdpa_16bit", "torch_sdpa_math", "torch_sdpa_flash",
        "torch_sdpa_flash_16bit", "jax", "jax_any_shape", "jax_bias", "jax_float64", "jax_pallas_mha",
    )),
    (("attention",), (
        "torch_flex", "torch_flex_compiled", "onnxruntime_gqa", "onnxruntime_gqa_bias", "onnxruntime_attention",
        "onnxruntime_attention_float64", "onnxruntime_attention_cache", "onnxruntime_attention_scores", "onnxruntime_mha",
        "onnxruntime_mha_top_left", "onnxruntime_mha_bias", "onnxruntime_mha_padding", "onnx_reference", "onnx_reference_float64",
        "jax_pallas_decode", "jax_pallas_tpu_flash", "jax_splash", "mlx", "mlx_bias", "mlx_sinks", "triton_flash",
    )),
    (("attention", "softmax", "log_sum_exp"), ("tinygrad",)),
    (("attention", "softmax"), ("tinygrad_single_key",)),
    (("token_mask",), ("xgrammar", "outlines_core", "llguidance", "llguidance_unforced")),
    (("softmax", "log_sum_exp"), ("torch_softmax", "torch_softmax_16bit", "jax_softmax", "onnxruntime_softmax")),
    (("rope",), (
        "transformers_llama", "transformers_gpt_neox", "transformers_glm", "transformers_deepseek_v3", "onnxruntime_rope",
        "onnxruntime_rope_standard", "onnx_reference_rope",
    )),
    (("write_kv",), ("torch_index_put", "jax_scatter", "jax_scatter_bfloat16")),
    (("mla_attention",), ("deepseek_v2_eager", "deepseek_v3_eager", "deepseek_v3_sdpa")),
    (("paged_attention",), ("torch_flex_paged", "jax_pallas_paged")),
    (("filter_probabilities", "apply_penalties", "speculative_verify", "mtp_loss"), ("transformers",)),
    (("speculative_verify",), ("transformers_own_draws",)),
    (("sample",), ("torch_multinomial", "torch_multinomial_16bit", "torch_categorical")),
    (("block_allocator",), ("vllm_pool", "sglang_radix")),
    (("cross_entropy", "cross_entropy_backward", "distillation_loss", "distillation_loss_backward", "adamw_step", "clip_grad_norm",
      "loss_scaler"), ("torch",)),
    (("adamw_step",), ("torch_foreach", "torch_fused", "optax_eps_root")),
    (("adamw_step", "clip_grad_norm"), ("optax",)),
    (("loss_scaler",), ("torch_scaler_any_size",)),
    (("quantize", "dequantize", "quantized_matmul"), ("onnxruntime", "torch_quantize")),
    (("quantize",), ("onnxruntime_dynamic", "torch_dynamic", "torch_fake_quantize")),
    (("prune_magnitude",), ("torch_prune",)),
    (("quantize", "dequantize_blockwise"), ("bitsandbytes",)),
    (("ring_attention", "ring_attention_backward"), ("torch_ring",)),
    (("pipeline_step",), ("torch_pipelining",)),
    (("all_reduce", "reduce_scatter", "all_gather"), ("torch_gloo",)),
    (("bucketed_all_reduce",), ("torch_ddp",)),
    (("column_parallel", "row_parallel", "vocab_parallel_embedding", "vocab_parallel_cross_entropy_backward", "clip_grad_norm_sharded"),
     ("torch_dtensor",)),
    (("route", "balance_loss"), ("transformers_mixtral",)),
    (("zero",), ("torch_zero_redundancy", "torch_fully_shard", "deepspeed")),
)  # fmt: skip
OFFERED: dict[str, tuple[str, ...]] = {peer: operations for operations, peers in _GROUPS for peer in peers}
