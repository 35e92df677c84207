"""The oracles: pure NumPy, float64, one algorithm a file, each readable beside its paper."""

from .attention import attention, attention_scores, softmax_over_visible
from .float_format import FloatFormat
from .softmax import log_sum_exp, merge_attention, online_softmax, softmax
from .visibility import query_positions, visible_keys

__all__ = [
    "FloatFormat",
    "attention",
    "attention_scores",
    "log_sum_exp",
    "merge_attention",
    "online_softmax",
    "query_positions",
    "softmax",
    "softmax_over_visible",
    "visible_keys",
]
