"""The oracles: pure NumPy, float64, one algorithm a file, each readable beside its paper."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .attention import attention, attention_scores, softmax_over_visible
from .attention_backward import attention_backward
from .attention_packed import attention_packed, attention_packed_backward
from .decoder_cache import ContiguousCache, DecoderCache, PagedCache, PagePool
from .deferred import HOME
from .distillation import distillation_loss, distillation_loss_backward
from .distilled_student import distilled_student
from .embedding_backward import embedding_backward
from .experts import combine, dispatch, expert_slots, moe_layer, moe_layer_backward
from .flash_attention import flash_attention
from .flash_attention_backward import flash_attention_backward
from .float_format import FloatFormat
from .gqa import group_heads, repeat_heads
from .kv_cache import KVCache, padded_positions, write_kv
from .losses import cross_entropy, next_token_targets, perplexity, vocab_parallel_cross_entropy
from .losses_backward import cross_entropy_backward
from .memory_traffic import AttentionTraffic, memory_traffic
from .mixed_precision import master_weight_step
from .mla import mla_attention, mla_attention_absorbed, mla_compress, mla_scale
from .model_config import ModelConfig
from .moe_swiglu import moe_balance, moe_swiglu, moe_swiglu_backward
from .mtp import mtp_loss, mtp_positions
from .optimizers import adamw_step, clip_grad_norm
from .paged_attention import paged_attention, slot_mapping
from .paging import BlockAllocator, OutOfBlocks
from .paging_waste import PagingWaste, paging_waste
from .prefix_salt import prefix_salt
from .pruning import gradual_masks, prune_magnitude, prune_units
from .pruning_2_4 import pack_2_4, prune_2_4, unpack_2_4
from .quantization import dequantize, quantize
from .quantized_blocks import NF4, dequantize_blockwise, fp8_quantize, nf4_quantize, pack_int4, unpack_int4
from .quantized_cache import QuantizedKVCache
from .quantized_matmul import matmul_with_outliers, quantization_errors, quantized_matmul
from .rms_norm import rms_norm
from .rms_norm_backward import rms_norm_backward
from .rope import rope
from .rope_backward import rope_backward
from .rope_scaling import rope_frequencies, yarn_mscale
from .routing import balance_bias, balance_loss, balance_loss_backward, expert_counts, route, route_backward
from .sampling import apply_penalties, filter_probabilities, sample
from .softmax import log_sum_exp, merge_attention, online_softmax, softmax
from .speculative import acceptance_rate, expected_tokens, speculative_verify, speed_up, typical_acceptance, verify_block
from .speculative_generate import self_speculate, speculative_generate
from .swiglu import swiglu
from .swiglu_backward import swiglu_backward
from .token_accuracy import token_accuracy
from .train_step import Trained, decoder_gradients, decoder_loss, train_step
from .transformer import Decoder, transformer_forward, transformer_generate
from .transformer_backward import transformer_backward
from .visibility import query_positions, visible_keys

if TYPE_CHECKING:
    from .collectives import Traffic, all_gather, all_reduce, all_to_all, broadcast, exchange, reduce_scatter
    from .context_all_to_all import all_to_all_attention, all_to_all_attention_backward
    from .context_parallel import ring_attention, ring_attention_backward
    from .costs_flops import attention_pairs, model_flops, utilisation
    from .costs_kv import kv_bytes, kv_elements, largest_batch
    from .costs_memory import Layout, activation_bytes, lora_bytes, lora_parameters, training_bytes, training_parts
    from .costs_parameters import ParameterCount, parameter_count
    from .costs_roofline import DecodeStep, attainable_flops, decode_steps, matmul_intensity, ridge_point
    from .costs_scaling import (
        chinchilla_loss,
        chinchilla_split,
        chinchilla_tokens,
        kaplan_ratio,
        pipeline_bubble,
        training_flops,
        words,
        zero_traffic,
    )
    from .costs_serving import Latency, latency, queue_wait, steady_batch
    from .data_parallel import DataParallel, accumulate_gradients, bucketed_all_reduce, tied_gradients
    from .exchanged_norm import exchanged_norm_backward
    from .expert_parallel import expert_parallel_backward, expert_parallel_layer
    from .guided import advance, compile_json_schema, compile_regex, forced_tokens, guided_process, token_mask
    from .loss_scaler import LossScaler
    from .master_weights import MasterWeights
    from .parallel_decoder import ParallelDecoder, ParallelStep
    from .parallel_layout import ParallelLayout
    from .pipeline_parallel import PipelineRun, pipeline_loss, pipeline_step, run_schedule
    from .pipeline_schedule import Schedule, schedule, schedule_limits
    from .placement import Mesh, Partial, Placed, PlacementError, Replicated, Shard
    from .sequence_shards import shard_positions
    from .sharded_cache import cache_place, sharded_cache_attention
    from .speculative_tables import mtp_loop, speculative_loop
    from .speculative_tree import tree_mask, tree_positions, verify_tree
    from .statistics import Interval, bootstrap_interval, paired_permutation_test, two_sample_law_test
    from .tensor_parallel import (
        clip_grad_norm_sharded,
        column_parallel,
        norm_backward_sharded,
        row_parallel,
        shard_fused_qkv,
        shard_qkv,
    )
    from .token_automaton import draft_masks
    from .torch_stream import TorchStream
    from .units import in_unit, of_unit, show_bytes
    from .vocab_parallel import (
        vocab_parallel_cross_entropy_backward,
        vocab_parallel_embedding,
        vocab_parallel_embedding_backward,
        vocab_parallel_head,
        vocab_parallel_head_backward,
        vocab_shards,
    )
    from .zero import Zero
    from .zero_state import FlatBuffer, flat_layout


def __getattr__(name: str) -> Any:
    """A name of a module that is not loaded yet, which from then on is here."""
    if name not in HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = getattr(import_module(f".{HOME[name]}", __name__), name)
    return globals()[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *HOME})


__all__ = [
    "NF4",
    "AttentionTraffic",
    "BlockAllocator",
    "ContiguousCache",
    "DataParallel",
    "DecodeStep",
    "Decoder",
    "DecoderCache",
    "FlatBuffer",
    "FloatFormat",
    "Interval",
    "KVCache",
    "Latency",
    "Layout",
    "LossScaler",
    "MasterWeights",
    "Mesh",
    "ModelConfig",
    "OutOfBlocks",
    "PagePool",
    "PagedCache",
    "PagingWaste",
    "ParallelDecoder",
    "ParallelLayout",
    "ParallelStep",
    "ParameterCount",
    "Partial",
    "PipelineRun",
    "Placed",
    "PlacementError",
    "QuantizedKVCache",
    "Replicated",
    "Schedule",
    "Shard",
    "TorchStream",
    "Traffic",
    "Trained",
    "Zero",
    "acceptance_rate",
    "accumulate_gradients",
    "activation_bytes",
    "adamw_step",
    "advance",
    "all_gather",
    "all_reduce",
    "all_to_all",
    "all_to_all_attention",
    "all_to_all_attention_backward",
    "apply_penalties",
    "attainable_flops",
    "attention",
    "attention_backward",
    "attention_packed",
    "attention_packed_backward",
    "attention_pairs",
    "attention_scores",
    "balance_bias",
    "balance_loss",
    "balance_loss_backward",
    "bootstrap_interval",
    "broadcast",
    "bucketed_all_reduce",
    "cache_place",
    "chinchilla_loss",
    "chinchilla_split",
    "chinchilla_tokens",
    "clip_grad_norm",
    "clip_grad_norm_sharded",
    "column_parallel",
    "combine",
    "compile_json_schema",
    "compile_regex",
    "cross_entropy",
    "cross_entropy_backward",
    "decode_steps",
    "decoder_gradients",
    "decoder_loss",
    "dequantize",
    "dequantize_blockwise",
    "dispatch",
    "distillation_loss",
    "distillation_loss_backward",
    "distilled_student",
    "draft_masks",
    "embedding_backward",
    "exchange",
    "exchanged_norm_backward",
    "expected_tokens",
    "expert_counts",
    "expert_parallel_backward",
    "expert_parallel_layer",
    "expert_slots",
    "filter_probabilities",
    "flash_attention",
    "flash_attention_backward",
    "flat_layout",
    "forced_tokens",
    "fp8_quantize",
    "gradual_masks",
    "group_heads",
    "guided_process",
    "in_unit",
    "kaplan_ratio",
    "kv_bytes",
    "kv_elements",
    "largest_batch",
    "latency",
    "log_sum_exp",
    "lora_bytes",
    "lora_parameters",
    "master_weight_step",
    "matmul_intensity",
    "matmul_with_outliers",
    "memory_traffic",
    "merge_attention",
    "mla_attention",
    "mla_attention_absorbed",
    "mla_compress",
    "mla_scale",
    "model_flops",
    "moe_balance",
    "moe_layer",
    "moe_layer_backward",
    "moe_swiglu",
    "moe_swiglu_backward",
    "mtp_loop",
    "mtp_loss",
    "mtp_positions",
    "next_token_targets",
    "nf4_quantize",
    "norm_backward_sharded",
    "of_unit",
    "online_softmax",
    "pack_2_4",
    "pack_int4",
    "padded_positions",
    "paged_attention",
    "paging_waste",
    "paired_permutation_test",
    "parameter_count",
    "perplexity",
    "pipeline_bubble",
    "pipeline_loss",
    "pipeline_step",
    "prefix_salt",
    "prune_2_4",
    "prune_magnitude",
    "prune_units",
    "quantization_errors",
    "quantize",
    "quantized_matmul",
    "query_positions",
    "queue_wait",
    "reduce_scatter",
    "repeat_heads",
    "ridge_point",
    "ring_attention",
    "ring_attention_backward",
    "rms_norm",
    "rms_norm_backward",
    "rope",
    "rope_backward",
    "rope_frequencies",
    "route",
    "route_backward",
    "row_parallel",
    "run_schedule",
    "sample",
    "schedule",
    "schedule_limits",
    "self_speculate",
    "shard_fused_qkv",
    "shard_positions",
    "shard_qkv",
    "sharded_cache_attention",
    "show_bytes",
    "slot_mapping",
    "softmax",
    "softmax_over_visible",
    "speculative_generate",
    "speculative_loop",
    "speculative_verify",
    "speed_up",
    "steady_batch",
    "swiglu",
    "swiglu_backward",
    "tied_gradients",
    "token_accuracy",
    "token_mask",
    "train_step",
    "training_bytes",
    "training_flops",
    "training_parts",
    "transformer_backward",
    "transformer_forward",
    "transformer_generate",
    "tree_mask",
    "tree_positions",
    "two_sample_law_test",
    "typical_acceptance",
    "unpack_2_4",
    "unpack_int4",
    "utilisation",
    "verify_block",
    "verify_tree",
    "visible_keys",
    "vocab_parallel_cross_entropy",
    "vocab_parallel_cross_entropy_backward",
    "vocab_parallel_embedding",
    "vocab_parallel_embedding_backward",
    "vocab_parallel_head",
    "vocab_parallel_head_backward",
    "vocab_shards",
    "words",
    "write_kv",
    "yarn_mscale",
    "zero_traffic",
]
