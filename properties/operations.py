"""All operations that can be checked: one explicit tuple."""

from __future__ import annotations

from .attention import ATTENTION, ATTENTION_BACKWARD, ATTENTION_PACKED, ATTENTION_PACKED_BACKWARD
from .context_parallel import EXCHANGED_NORM_BACKWARD, RING_ATTENTION, RING_ATTENTION_BACKWARD, SHARDED_CACHE_ATTENTION
from .costs import KV_BYTES, MODEL_FLOPS, TOKEN_ACCURACY, TRAINING_BYTES
from .declaration import UsageError
from .kv_cache import PADDED_POSITIONS, WRITE_KV
from .losses import (
    CROSS_ENTROPY,
    CROSS_ENTROPY_BACKWARD,
    DISTILLATION_LOSS,
    DISTILLATION_LOSS_BACKWARD,
    NEXT_TOKEN_TARGETS,
    VOCAB_PARALLEL_CROSS_ENTROPY,
)
from .mixed_precision import MASTER_WEIGHT_STEP
from .mla import MLA_ATTENTION
from .mtp import MTP_LOSS
from .operation import Operation
from .optimizers import ADAMW_STEP, CLIP_GRAD_NORM
from .paged_attention import PAGED_ATTENTION
from .pipeline import PIPELINE_LOSS, PIPELINE_STEP, SCHEDULE
from .pruning import GRADUAL_MASKS, PRUNE_2_4, PRUNE_MAGNITUDE
from .quantization import DEQUANTIZE, DEQUANTIZE_BLOCKWISE, QUANTIZE, QUANTIZED_MATMUL
from .rope import ROPE
from .sampling import APPLY_PENALTIES, FILTER_PROBABILITIES, SAMPLE
from .softmax import LOG_SUM_EXP, MERGE_ATTENTION, SOFTMAX
from .speculative import SPECULATIVE_VERIFY, TREE_POSITIONS
from .speculative_loop import MTP_LOOP, SPECULATIVE_LOOP

OPERATIONS: tuple[Operation, ...] = (
    SOFTMAX,
    LOG_SUM_EXP,
    MERGE_ATTENTION,
    ATTENTION,
    ATTENTION_BACKWARD,
    ATTENTION_PACKED,
    ATTENTION_PACKED_BACKWARD,
    ROPE,
    WRITE_KV,
    PADDED_POSITIONS,
    PAGED_ATTENTION,
    MLA_ATTENTION,
    FILTER_PROBABILITIES,
    APPLY_PENALTIES,
    SAMPLE,
    SPECULATIVE_VERIFY,
    TREE_POSITIONS,
    SPECULATIVE_LOOP,
    MTP_LOOP,
    MTP_LOSS,
    KV_BYTES,
    TRAINING_BYTES,
    MODEL_FLOPS,
    TOKEN_ACCURACY,
    ADAMW_STEP,
    CLIP_GRAD_NORM,
    MASTER_WEIGHT_STEP,
    NEXT_TOKEN_TARGETS,
    CROSS_ENTROPY,
    CROSS_ENTROPY_BACKWARD,
    VOCAB_PARALLEL_CROSS_ENTROPY,
    DISTILLATION_LOSS,
    DISTILLATION_LOSS_BACKWARD,
    SCHEDULE,
    PIPELINE_LOSS,
    PIPELINE_STEP,
    RING_ATTENTION,
    RING_ATTENTION_BACKWARD,
    SHARDED_CACHE_ATTENTION,
    EXCHANGED_NORM_BACKWARD,
    QUANTIZE,
    DEQUANTIZE,
    QUANTIZED_MATMUL,
    DEQUANTIZE_BLOCKWISE,
    PRUNE_MAGNITUDE,
    PRUNE_2_4,
    GRADUAL_MASKS,
)


def operation_named(name: str) -> Operation:
    """The operation of that name. Raises UsageError listing the names there are."""
    for operation in OPERATIONS:
        if operation.name == name:
            return operation
    raise UsageError(f"OPERATION: got {name!r}; want one of {', '.join(operation.name for operation in OPERATIONS)}")
