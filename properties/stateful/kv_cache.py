"""KV cache: the contract of a cache object as a stateful operation. The oracle is `oracles.reference.KVCache`."""

from __future__ import annotations

from oracles.reference import KVCache

from .kv_cache_laws import KV_CACHE_LAWS
from .kv_cache_model import KVCacheModel, new_cache
from .kv_cache_sequences import WEIGHTS, designed_sequences, drawn_call, drawn_new, in_bounds
from .operation import StatefulOperation

KV_CACHE = StatefulOperation(
    name="kv_cache",
    summary="keys and values of one layer between steps: appended, seen through a window, rolled back, selected for beams",
    oracle=KVCache,
    required=("append", "view", "__len__"),
    optional=("crop", "select"),
    arguments=("new.window",),
    sample=new_cache(),
    probes=(),
    model=KVCacheModel,
    laws=KV_CACHE_LAWS,
    designed=designed_sequences,
    weights=WEIGHTS,
    drawn_new=drawn_new,
    drawn_call=drawn_call,
    in_bounds=in_bounds,
    carried=("sequence", "play", "kv_cache_model", "kv_cache_laws"),
    model_name="kv_cache_model:KVCacheModel",
    laws_name="kv_cache_laws:KV_CACHE_LAWS",
    source="Shazeer 2019 (arXiv 1911.02150), section 2.4; rolling back: Leviathan et al. 2022 (arXiv 2211.17192)",
)
