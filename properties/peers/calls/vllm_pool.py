"""vLLM's KVCacheManager with one group of full attention, under the names of the contract. It runs without a GPU.

Nothing but the library is imported, inside the functions, so that this file runs alone. What the manager has no call for (a fork, a
roll-back to fewer blocks, eviction by number) is left out. The null block of its pool is not counted.
"""

from __future__ import annotations

import importlib
import os
from typing import Any


def _library(module: str) -> Any:
    return importlib.import_module(f"vllm.{module}")


class OutOfBlocks(Exception):
    """allocate_slots returned None."""


class VLLMPool:
    """See the module."""

    def __init__(self, num_blocks: int, block_size: int, *, prefix_caching: bool = True) -> None:
        os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
        import torch

        sha256, hashes, shapes = _library("utils.hashing").sha256, _library("v1.core.kv_cache_utils"), _library("v1.kv_cache_interface")
        hashes.init_none_hash(sha256)
        spec = shapes.FullAttentionSpec(block_size=block_size, num_kv_heads=1, head_size=8, dtype=torch.float32)
        config = shapes.KVCacheConfig(num_blocks + 1, [], [shapes.KVCacheGroupSpec(["layer"], spec)])
        self.manager = _library("v1.core.kv_cache_manager").KVCacheManager(
            config, max_model_len=4096, scheduler_block_size=block_size, hash_block_size=block_size, enable_caching=prefix_caching
        )
        self.hasher = hashes.get_request_block_hasher(block_size, sha256)
        self.num_blocks = num_blocks
        self.requests: dict[str, Any] = {}
        self.committed: dict[str, int] = {}

    def allocate(self, seq: str, tokens: list[int], *, salt: bytes = b"") -> int:
        if seq in self.requests:
            raise ValueError(f"{seq} is in use")
        if not tokens:
            raise NotImplementedError("a request without tokens")
        request = self._request(seq, tokens, salt)
        found, n = self.manager.get_computed_blocks(request)[:2]
        # Caching is delayed: the data of these tokens are written later, which the caller tells by commit.
        if self.manager.allocate_slots(request, len(tokens) - n, n, found, delay_cache_blocks=True) is None:
            raise OutOfBlocks
        request.num_computed_tokens = len(tokens)
        self.requests[seq], self.committed[seq] = request, n
        return int(n)

    def append(self, seq: str, token: int) -> None:
        request = self._known(seq)
        if self.manager.allocate_slots(request, 1, delay_cache_blocks=True) is None:
            raise OutOfBlocks
        request.append_output_token_ids(token)
        request.num_computed_tokens = request.num_tokens

    def commit(self, seq: str, n: int) -> None:
        request = self._known(seq)
        if not 0 <= n <= request.num_tokens:
            raise ValueError(f"n = {n} of {request.num_tokens} tokens")
        if n > self.committed[seq]:
            self.committed[seq] = n
            self.manager.cache_blocks(request, n)

    def free(self, seq: str) -> None:
        self.manager.free(self._known(seq))
        del self.requests[seq], self.committed[seq]

    def table(self, seq: str) -> list[int]:
        self._known(seq)
        return [block - 1 for block in self.manager.get_block_ids(seq)[0]]

    def match_prefix(self, tokens: list[int], *, salt: bytes = b"") -> list[int]:
        if not tokens:
            return []
        found = self.manager.get_computed_blocks(self._request("looks up", tokens, salt))[0]
        return [block - 1 for block in found.get_block_ids()[0]]

    def stats(self) -> dict[str, int]:
        unnamed = self.manager.block_pool.free_block_queue.get_all_free_blocks()
        cached = sum(block.block_hash is not None for block in unnamed)
        return {"num_blocks": self.num_blocks, "used": self.num_blocks - len(unnamed), "cached": cached, "free": len(unnamed) - cached}

    def _request(self, seq: str, tokens: list[int], salt: bytes) -> Any:
        parameters = _library("sampling_params").SamplingParams(max_tokens=4096)
        return _library("v1.request").Request(seq, list(tokens), parameters, None, cache_salt=salt.hex() or None, block_hasher=self.hasher)

    def _known(self, seq: str) -> Any:
        if seq not in self.requests:
            raise ValueError(f"{seq} is unknown")
        return self.requests[seq]
