"""The error model: componentwise bounds on what legal rounding may do, derived from a declared arithmetic."""

from .attention import attention_bound, attention_packed_bound
from .attention_backward import attention_backward_bound, attention_packed_backward_bound
from .context_parallel import ring_attention_backward_bound, ring_attention_bound
from .costs import kv_bytes_bound, model_flops_bound, token_accuracy_bound, training_bytes_bound
from .decoder import decoder_bound
from .distillation import distillation_loss_backward_bound, distillation_loss_bound
from .exchanged_ranks import exchanged_norm_backward_bound, sharded_cache_attention_bound
from .experts import (
    balance_loss_backward_bound,
    balance_loss_bound,
    expert_parallel_backward_bound,
    moe_layer_bound,
    route_bound,
)
from .kv_cache import padded_positions_bound, write_kv_bound
from .losses import (
    cross_entropy_backward_bound,
    cross_entropy_bound,
    next_token_targets_bound,
    vocab_parallel_cross_entropy_bound,
)
from .merge import merge_attention_bound
from .mixed_precision import master_weight_step_bound
from .mla import mla_attention_bound
from .mtp import mtp_loss_bound
from .optimizers import adamw_step_bound, clip_grad_norm_bound, decayed_bound
from .paged_attention import paged_attention_bound
from .parallel import (
    accumulate_gradients_bound,
    all_gather_bound,
    all_reduce_bound,
    bucketed_all_reduce_bound,
    clip_grad_norm_sharded_bound,
    column_parallel_bound,
    flat_layout_bound,
    norm_backward_sharded_bound,
    reduce_scatter_bound,
    row_parallel_bound,
    shard_qkv_bound,
    tied_gradients_bound,
    vocab_parallel_cross_entropy_backward_bound,
    vocab_parallel_embedding_bound,
)
from .pipeline import pipeline_loss_bound, pipeline_step_bound, schedule_bound
from .pruning import gradual_masks_bound, prune_2_4_bound, prune_magnitude_bound
from .quantization import dequantize_blockwise_bound, dequantize_bound, quantize_bound, quantized_matmul_bound
from .rope import rope_bound
from .sampling import apply_penalties_bound, filter_probabilities_bound, sample_bound
from .softmax import log_sum_exp_bound, softmax_bound
from .speculative import speculative_verify_bound, tree_positions_bound
from .speculative_loop import mtp_loop_bound, speculative_loop_bound

__all__ = [
    "accumulate_gradients_bound",
    "adamw_step_bound",
    "all_gather_bound",
    "all_reduce_bound",
    "apply_penalties_bound",
    "attention_backward_bound",
    "attention_bound",
    "attention_packed_backward_bound",
    "attention_packed_bound",
    "balance_loss_backward_bound",
    "balance_loss_bound",
    "bucketed_all_reduce_bound",
    "clip_grad_norm_bound",
    "clip_grad_norm_sharded_bound",
    "column_parallel_bound",
    "cross_entropy_backward_bound",
    "cross_entropy_bound",
    "decayed_bound",
    "decoder_bound",
    "dequantize_blockwise_bound",
    "dequantize_bound",
    "distillation_loss_backward_bound",
    "distillation_loss_bound",
    "exchanged_norm_backward_bound",
    "expert_parallel_backward_bound",
    "filter_probabilities_bound",
    "flat_layout_bound",
    "gradual_masks_bound",
    "kv_bytes_bound",
    "log_sum_exp_bound",
    "master_weight_step_bound",
    "merge_attention_bound",
    "mla_attention_bound",
    "model_flops_bound",
    "moe_layer_bound",
    "mtp_loop_bound",
    "mtp_loss_bound",
    "next_token_targets_bound",
    "norm_backward_sharded_bound",
    "padded_positions_bound",
    "paged_attention_bound",
    "pipeline_loss_bound",
    "pipeline_step_bound",
    "prune_2_4_bound",
    "prune_magnitude_bound",
    "quantize_bound",
    "quantized_matmul_bound",
    "reduce_scatter_bound",
    "ring_attention_backward_bound",
    "ring_attention_bound",
    "rope_bound",
    "route_bound",
    "row_parallel_bound",
    "sample_bound",
    "schedule_bound",
    "shard_qkv_bound",
    "sharded_cache_attention_bound",
    "softmax_bound",
    "speculative_loop_bound",
    "speculative_verify_bound",
    "tied_gradients_bound",
    "token_accuracy_bound",
    "training_bytes_bound",
    "tree_positions_bound",
    "vocab_parallel_cross_entropy_backward_bound",
    "vocab_parallel_cross_entropy_bound",
    "vocab_parallel_embedding_bound",
    "write_kv_bound",
]
