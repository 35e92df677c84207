"""Sets: which operations have golden values, their cases, and the ball arithmetic that proves what is expected."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from oracles.properties.case import Case

from . import (
    ball_attention,
    ball_collectives,
    ball_decoding,
    ball_experts,
    ball_gathered,
    ball_losses,
    ball_optimizers,
    ball_pipeline,
    ball_quantization,
    ball_ring,
    ball_rope,
    ball_rows,
    ball_shards,
)
from .attention_cases import attention_backward_cases, attention_cases
from .cache_cases import mla_attention_cases, paged_attention_cases, rope_cases
from .certified import Balls
from .collective_cases import (
    accumulate_gradients_cases,
    all_gather_cases,
    all_reduce_cases,
    bucketed_all_reduce_cases,
    reduce_scatter_cases,
    tied_gradients_cases,
)
from .compression_cases import compression_traces
from .count_cases import count_traces
from .decoding_cases import filter_probabilities_cases, mtp_loss_cases
from .expert_cases import (
    balance_loss_backward_cases,
    balance_loss_cases,
    expert_parallel_backward_cases,
    moe_layer_cases,
    route_cases,
)
from .kv_cache_cases import kv_cache_traces
from .loop_cases import loop_traces
from .loss_cases import (
    cross_entropy_backward_cases,
    cross_entropy_cases,
    distillation_loss_backward_cases,
    distillation_loss_cases,
    vocab_parallel_cross_entropy_cases,
)
from .optimizer_cases import adamw_step_cases, clip_grad_norm_cases, master_weight_step_cases
from .packed_cases import attention_packed_backward_cases, attention_packed_cases
from .pipeline_cases import pipeline_loss_cases, pipeline_step_cases
from .quantization_cases import dequantize_blockwise_cases, dequantize_cases, quantize_cases, quantized_matmul_cases
from .ring_cases import (
    exchanged_norm_backward_cases,
    ring_attention_backward_cases,
    ring_attention_cases,
    sharded_cache_attention_cases,
)
from .row_cases import log_sum_exp_cases, merge_attention_cases, softmax_cases
from .schedule_cases import schedule_traces
from .shard_cases import (
    clip_grad_norm_sharded_cases,
    column_parallel_cases,
    norm_backward_sharded_cases,
    row_parallel_cases,
    shard_qkv_cases,
    vocab_parallel_cross_entropy_backward_cases,
    vocab_parallel_embedding_cases,
)
from .trace_cases import function_traces, object_traces
from .trace_stream import stream_traces
from .traces import Trace
from .training_cases import training_traces


@dataclass(frozen=True)
class GoldenSet:
    """One operation: its cases, named by their `origin`, and the function from a case's arguments to balls of its results."""

    operation: str
    cases: Callable[[], list[Case]]
    balls: Callable[..., Mapping[str, Balls]]


SETS: tuple[GoldenSet, ...] = (
    GoldenSet("softmax", softmax_cases, ball_rows.softmax),
    GoldenSet("log_sum_exp", log_sum_exp_cases, ball_rows.log_sum_exp),
    GoldenSet("merge_attention", merge_attention_cases, ball_rows.merge_attention),
    GoldenSet("attention", attention_cases, ball_attention.attention),
    GoldenSet("attention_backward", attention_backward_cases, ball_attention.attention_backward),
    GoldenSet("attention_packed", attention_packed_cases, ball_gathered.attention_packed),
    GoldenSet("attention_packed_backward", attention_packed_backward_cases, ball_gathered.attention_packed_backward),
    GoldenSet("rope", rope_cases, ball_rope.rope),
    GoldenSet("paged_attention", paged_attention_cases, ball_gathered.paged_attention),
    GoldenSet("mla_attention", mla_attention_cases, ball_gathered.mla_attention),
    GoldenSet("filter_probabilities", filter_probabilities_cases, ball_decoding.filter_probabilities),
    GoldenSet("mtp_loss", mtp_loss_cases, ball_decoding.mtp_loss),
    GoldenSet("cross_entropy", cross_entropy_cases, ball_losses.cross_entropy),
    GoldenSet("cross_entropy_backward", cross_entropy_backward_cases, ball_losses.cross_entropy_backward),
    GoldenSet("vocab_parallel_cross_entropy", vocab_parallel_cross_entropy_cases, ball_losses.vocab_parallel_cross_entropy),
    GoldenSet("distillation_loss", distillation_loss_cases, ball_losses.distillation_loss),
    GoldenSet("distillation_loss_backward", distillation_loss_backward_cases, ball_losses.distillation_loss_backward),
    GoldenSet("quantize", quantize_cases, ball_quantization.quantize),
    GoldenSet("dequantize", dequantize_cases, ball_quantization.dequantize),
    GoldenSet("dequantize_blockwise", dequantize_blockwise_cases, ball_quantization.dequantize_blockwise),
    GoldenSet("quantized_matmul", quantized_matmul_cases, ball_quantization.quantized_matmul),
    GoldenSet("adamw_step", adamw_step_cases, ball_optimizers.adamw_step),
    GoldenSet("master_weight_step", master_weight_step_cases, ball_optimizers.master_weight_step),
    GoldenSet("clip_grad_norm", clip_grad_norm_cases, ball_optimizers.clip_grad_norm),
    GoldenSet("all_reduce", all_reduce_cases, ball_collectives.all_reduce),
    GoldenSet("reduce_scatter", reduce_scatter_cases, ball_collectives.reduce_scatter),
    GoldenSet("all_gather", all_gather_cases, ball_collectives.all_gather),
    GoldenSet("bucketed_all_reduce", bucketed_all_reduce_cases, ball_collectives.bucketed_all_reduce),
    GoldenSet("accumulate_gradients", accumulate_gradients_cases, ball_collectives.accumulate_gradients),
    GoldenSet("tied_gradients", tied_gradients_cases, ball_collectives.tied_gradients),
    GoldenSet("column_parallel", column_parallel_cases, ball_shards.column_parallel),
    GoldenSet("row_parallel", row_parallel_cases, ball_shards.row_parallel),
    GoldenSet("shard_qkv", shard_qkv_cases, ball_shards.shard_qkv),
    GoldenSet("vocab_parallel_embedding", vocab_parallel_embedding_cases, ball_shards.vocab_parallel_embedding),
    GoldenSet(
        "vocab_parallel_cross_entropy_backward", vocab_parallel_cross_entropy_backward_cases,
        ball_shards.vocab_parallel_cross_entropy_backward,
    ),
    GoldenSet("norm_backward_sharded", norm_backward_sharded_cases, ball_shards.norm_backward_sharded),
    GoldenSet("clip_grad_norm_sharded", clip_grad_norm_sharded_cases, ball_shards.clip_grad_norm_sharded),
    GoldenSet("ring_attention", ring_attention_cases, ball_ring.ring_attention),
    GoldenSet("ring_attention_backward", ring_attention_backward_cases, ball_ring.ring_attention_backward),
    GoldenSet("sharded_cache_attention", sharded_cache_attention_cases, ball_ring.sharded_cache_attention),
    GoldenSet("exchanged_norm_backward", exchanged_norm_backward_cases, ball_ring.exchanged_norm_backward),
    GoldenSet("route", route_cases, ball_experts.route),
    GoldenSet("balance_loss", balance_loss_cases, ball_experts.balance_loss),
    GoldenSet("balance_loss_backward", balance_loss_backward_cases, ball_experts.balance_loss_backward),
    GoldenSet("moe_layer", moe_layer_cases, ball_experts.moe_layer),
    GoldenSet("expert_parallel_backward", expert_parallel_backward_cases, ball_experts.expert_parallel_backward),
    GoldenSet("pipeline_loss", pipeline_loss_cases, ball_pipeline.pipeline_loss),
    GoldenSet("pipeline_step", pipeline_step_cases, ball_pipeline.pipeline_step),
)


def trace_questions() -> list[Trace]:
    """The calls of every exact case, without answers."""
    return [
        *function_traces(), *object_traces(), *compression_traces(), *count_traces(), *loop_traces(), *stream_traces(), *schedule_traces(),
        *training_traces(), *kv_cache_traces(),
    ]  # fmt: skip
