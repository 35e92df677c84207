"""The error model: componentwise bounds on what legal rounding may do, derived from a declared arithmetic."""

from .attention import attention_bound, attention_packed_bound
from .attention_backward import attention_backward_bound, attention_packed_backward_bound
from .kv_cache import write_kv_bound
from .merge import merge_attention_bound
from .rope import rope_bound
from .softmax import log_sum_exp_bound, softmax_bound

__all__ = [
    "attention_backward_bound",
    "attention_bound",
    "attention_packed_backward_bound",
    "attention_packed_bound",
    "log_sum_exp_bound",
    "merge_attention_bound",
    "rope_bound",
    "softmax_bound",
    "write_kv_bound",
]
