"""All operations that can be checked: one explicit tuple."""

from __future__ import annotations

from .attention import ATTENTION, ATTENTION_BACKWARD, ATTENTION_PACKED, ATTENTION_PACKED_BACKWARD
from .declaration import UsageError
from .kv_cache import WRITE_KV
from .operation import Operation
from .rope import ROPE
from .softmax import LOG_SUM_EXP, MERGE_ATTENTION, SOFTMAX

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
)


def operation_named(name: str) -> Operation:
    """The operation of that name. Raises UsageError listing the names there are."""
    for operation in OPERATIONS:
        if operation.name == name:
            return operation
    raise UsageError(f"OPERATION: got {name!r}; want one of {', '.join(operation.name for operation in OPERATIONS)}")
