"""All stateful operations that can be checked: one explicit tuple."""

from __future__ import annotations

from ..declaration import UsageError
from .block_allocator import BLOCK_ALLOCATOR
from .kv_cache import KV_CACHE
from .loss_scaler import LOSS_SCALER
from .master_weights import MASTER_WEIGHTS
from .operation import StatefulOperation
from .token_mask import TOKEN_MASK
from .zero import ZERO

STATEFUL_OPERATIONS: tuple[StatefulOperation, ...] = (BLOCK_ALLOCATOR, KV_CACHE, TOKEN_MASK, LOSS_SCALER, MASTER_WEIGHTS, ZERO)


def stateful_named(name: str) -> StatefulOperation:
    """The stateful operation of that name. Raises UsageError listing the names there are."""
    for operation in STATEFUL_OPERATIONS:
        if operation.name == name:
            return operation
    raise UsageError(f"OPERATION: got {name!r}; want one of {', '.join(operation.name for operation in STATEFUL_OPERATIONS)}")
