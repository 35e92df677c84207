"""Block allocator: its contract as a stateful operation. The oracle is `oracles.reference.BlockAllocator`."""

from __future__ import annotations

from oracles.reference import BlockAllocator

from .allocator_laws import ALLOCATOR_LAWS
from .allocator_model import AllocatorModel
from .allocator_sequences import WEIGHTS, designed_sequences, drawn_call, drawn_new, in_bounds, kept, new
from .operation import Probe, StatefulOperation
from .sequence import Answer, Call


def _finds(answers: list[Answer]) -> bool:
    """That the last answer tells of tokens found."""
    value = answers[-1].value
    return isinstance(value, int) and value > 0


BLOCK_ALLOCATOR = StatefulOperation(
    name="block_allocator",
    summary="which block of a pool holds which tokens: on demand, shared, copied on write, kept for equal prefixes",
    oracle=BlockAllocator,
    required=("allocate", "free", "table"),
    optional=("append", "commit", "fork", "truncate", "match_prefix", "evict", "stats"),
    arguments=("new.prefix_caching", "allocate.salt", "match_prefix.salt"),
    sample=new(4, 2),
    probes=(
        Probe("finds", (new(8, 2), *kept("a", 1, 2, 3, 4, 5), Call("allocate", ("b", (1, 2, 3, 4, 5)))), _finds,
              "prefix caching: of tokens that were allocated, committed and freed, allocate found none again"),
    ),
    model=AllocatorModel,
    laws=ALLOCATOR_LAWS,
    designed=designed_sequences,
    weights=WEIGHTS,
    drawn_new=drawn_new,
    drawn_call=drawn_call,
    in_bounds=in_bounds,
    carried=("sequence", "play", "allocator_moment", "allocator_model", "allocator_laws"),
    model_name="allocator_model:AllocatorModel",
    laws_name="allocator_laws:ALLOCATOR_LAWS",
    source="Kwon et al. 2023 (arXiv 2309.06180), sections 4.2 to 4.5",
)  # fmt: skip
