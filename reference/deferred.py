"""Deferred: the modules of the oracles that are loaded when a name of theirs is first asked for, and the names they offer.

Together they take longer to import than NumPy does, 0.25 s of processor time beside 0.19 s. None has the name of a function: a loaded
module is an attribute of its package, so it would stand where the function is looked for.

>>> HOME["kv_bytes"], DEFERRED["costs_kv"]
('costs_kv', ('kv_bytes', 'kv_elements', 'largest_batch'))
"""

from __future__ import annotations

# module: what it offers, as in the imports for type checkers in `__init__`.
DEFERRED: dict[str, tuple[str, ...]] = {
    "collectives": ("Traffic", "all_gather", "all_reduce", "all_to_all", "broadcast", "exchange", "reduce_scatter"),
    "context_all_to_all": ("all_to_all_attention", "all_to_all_attention_backward"),
    "context_parallel": ("ring_attention", "ring_attention_backward"),
    "costs_flops": ("attention_pairs", "model_flops", "utilisation"),
    "costs_kv": ("kv_bytes", "kv_elements", "largest_batch"),
    "costs_memory": ("Layout", "activation_bytes", "lora_bytes", "lora_parameters", "training_bytes", "training_parts"),
    "costs_parameters": ("ParameterCount", "parameter_count"),
    "costs_roofline": ("DecodeStep", "attainable_flops", "decode_steps", "matmul_intensity", "ridge_point"),
    "costs_scaling": (
        "chinchilla_loss", "chinchilla_split", "chinchilla_tokens", "kaplan_ratio", "pipeline_bubble", "training_flops", "words",
        "zero_traffic",
    ),
    "costs_serving": ("Latency", "latency", "queue_wait", "steady_batch"),
    "data_parallel": ("DataParallel", "accumulate_gradients", "bucketed_all_reduce", "tied_gradients"),
    "exchanged_norm": ("exchanged_norm_backward",),
    "expert_parallel": ("expert_parallel_backward", "expert_parallel_layer"),
    "guided": ("advance", "compile_json_schema", "compile_regex", "forced_tokens", "guided_process", "token_mask"),
    "loss_scaler": ("LossScaler",),
    "master_weights": ("MasterWeights",),
    "parallel_decoder": ("ParallelDecoder", "ParallelStep"),
    "parallel_layout": ("ParallelLayout",),
    "pipeline_parallel": ("PipelineRun", "pipeline_loss", "pipeline_step", "run_schedule"),
    "pipeline_schedule": ("Schedule", "schedule", "schedule_limits"),
    "placement": ("Mesh", "Partial", "Placed", "PlacementError", "Replicated", "Shard"),
    "sequence_shards": ("shard_positions",),
    "sharded_cache": ("cache_place", "sharded_cache_attention"),
    "speculative_tables": ("mtp_loop", "speculative_loop"),
    "speculative_tree": ("tree_mask", "tree_positions", "verify_tree"),
    "statistics": ("Interval", "bootstrap_interval", "paired_permutation_test", "two_sample_law_test"),
    "tensor_parallel": (
        "clip_grad_norm_sharded", "column_parallel", "norm_backward_sharded", "row_parallel", "shard_fused_qkv", "shard_qkv",
    ),
    "token_automaton": ("draft_masks",),
    "torch_stream": ("TorchStream",),
    "units": ("in_unit", "of_unit", "show_bytes"),
    "vocab_parallel": (
        "vocab_parallel_cross_entropy_backward", "vocab_parallel_embedding", "vocab_parallel_embedding_backward",
        "vocab_parallel_head", "vocab_parallel_head_backward", "vocab_shards",
    ),
    "zero": ("Zero",),
    "zero_state": ("FlatBuffer", "flat_layout"),
}  # fmt: skip
HOME = {name: module for module, names in DEFERRED.items() for name in names}
