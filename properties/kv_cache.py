"""The operation of writing tokens into the slots of a cache. Caches that are objects are played with, not called: see `play`."""

from __future__ import annotations

from typing import Any

from oracles import reference

from . import bounds
from .laws.kv_cache import WRITE_KV_LAWS
from .operation import Operation


def _write_cases() -> Any:
    from .cases.kv_cache import WRITE_CASES

    return WRITE_CASES


WRITE_KV = Operation(
    name="write_kv",
    summary="Keys and values of tokens written into slots of a cache; -1 skips, of a slot given twice the last token wins.",
    oracle=reference.write_kv,
    answer=lambda case, conventions: dict(zip(("k_cache", "v_cache"), reference.write_kv(**case.arguments()))),
    bound=lambda arithmetic, case, conventions: bounds.write_kv_bound(arithmetic, **case.arguments()),
    cases=_write_cases,
    laws=WRITE_KV_LAWS,
    source="reshape_and_cache of vLLM (Kwon et al. 2023, arXiv 2309.06180, section 5.1)",
)
