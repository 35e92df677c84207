"""vLLM's block pool behind its KVCacheManager, as a block allocator.

Address: https://github.com/vllm-project/vllm/blob/main/vllm/v1/core/kv_cache_manager.py. Its documentation's conventions: a prompt that
is found whole leaves its last block to be computed, blocks without a hash are reused before cached ones, and block 0 is nobody's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..declaration import UsageError
from .calls.vllm_pool import VLLMPool

OBJECT = "block_allocator"                                                      # the operation whose object it is
PEERS: dict[str, Callable[..., Any]] = {"vllm_pool": VLLMPool}


def library_versions(name: str) -> dict[str, str]:
    """The version of vLLM. Raises UsageError where it is missing."""
    from importlib import metadata

    try:
        return {"vllm": metadata.version("vllm")}
    except metadata.PackageNotFoundError:
        raise UsageError("SUBJECT: vllm cannot be imported; want it: pip install vllm") from None


def subjects(name: str) -> tuple[Callable[..., Any], ...]:
    """No function: it is an object."""
    return ()


def objects(name: str) -> dict[str, Callable[..., Any]]:
    """The allocator, by the name of its operation. Raises UsageError where the library is missing."""
    library_versions(name)
    return {OBJECT: PEERS[name]}
