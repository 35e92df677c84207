"""The oracles: pure NumPy, float64, one algorithm a file, each readable beside its paper."""

from .attention import attention, attention_scores, softmax_over_visible
from .attention_backward import attention_backward
from .attention_packed import attention_packed, attention_packed_backward
from .decoder_cache import ContiguousCache, DecoderCache, PagedCache, PagePool
from .flash_attention import flash_attention
from .flash_attention_backward import flash_attention_backward
from .float_format import FloatFormat
from .gqa import group_heads, repeat_heads
from .guided import advance, compile_json_schema, compile_regex, forced_tokens, guided_process, token_mask
from .kv_cache import KVCache, padded_positions, write_kv
from .memory_traffic import AttentionTraffic, memory_traffic
from .mla import mla_attention, mla_attention_absorbed, mla_compress, mla_scale
from .mtp import mtp_loss, mtp_positions
from .paged_attention import paged_attention, slot_mapping
from .paging import BlockAllocator, OutOfBlocks
from .paging_waste import PagingWaste, paging_waste
from .prefix_salt import prefix_salt
from .rms_norm import rms_norm
from .rope import rope
from .rope_scaling import rope_frequencies, yarn_mscale
from .sampling import apply_penalties, filter_probabilities, sample
from .softmax import log_sum_exp, merge_attention, online_softmax, softmax
from .speculative import acceptance_rate, expected_tokens, speculative_verify, speed_up, typical_acceptance, verify_block
from .speculative_generate import self_speculate, speculative_generate
from .speculative_tree import tree_mask, tree_positions, verify_tree
from .swiglu import swiglu
from .token_automaton import draft_masks
from .transformer import Decoder, transformer_forward, transformer_generate
from .visibility import query_positions, visible_keys

__all__ = [
    "AttentionTraffic",
    "BlockAllocator",
    "ContiguousCache",
    "Decoder",
    "DecoderCache",
    "FloatFormat",
    "KVCache",
    "OutOfBlocks",
    "PagePool",
    "PagedCache",
    "PagingWaste",
    "acceptance_rate",
    "advance",
    "apply_penalties",
    "attention",
    "attention_backward",
    "attention_packed",
    "attention_packed_backward",
    "attention_scores",
    "compile_json_schema",
    "compile_regex",
    "draft_masks",
    "expected_tokens",
    "filter_probabilities",
    "flash_attention",
    "flash_attention_backward",
    "forced_tokens",
    "group_heads",
    "guided_process",
    "log_sum_exp",
    "memory_traffic",
    "merge_attention",
    "mla_attention",
    "mla_attention_absorbed",
    "mla_compress",
    "mla_scale",
    "mtp_loss",
    "mtp_positions",
    "online_softmax",
    "padded_positions",
    "paged_attention",
    "paging_waste",
    "prefix_salt",
    "query_positions",
    "repeat_heads",
    "rms_norm",
    "rope",
    "rope_frequencies",
    "sample",
    "self_speculate",
    "slot_mapping",
    "softmax",
    "softmax_over_visible",
    "speculative_generate",
    "speculative_verify",
    "speed_up",
    "swiglu",
    "token_mask",
    "transformer_forward",
    "transformer_generate",
    "tree_mask",
    "tree_positions",
    "typical_acceptance",
    "verify_block",
    "verify_tree",
    "visible_keys",
    "write_kv",
    "yarn_mscale",
]
