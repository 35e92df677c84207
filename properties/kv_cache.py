"""Writing tokens into the slots of a cache, and positions beside one. Caches that are objects are played with, not called: see `play`."""

from __future__ import annotations

from typing import Any

from oracles import reference

from . import bounds
from .laws.kv_cache import WRITE_KV_LAWS
from .laws.padded_positions import PADDED_POSITIONS_LAWS
from .operation import Operation, as_float64


def _write_cases() -> Any:
    from .cases.kv_cache import WRITE_CASES

    return WRITE_CASES


def _padding_cases() -> Any:
    from .cases.padded_positions import PADDING_CASES

    return PADDING_CASES


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

PADDED_POSITIONS = Operation(
    name="padded_positions",
    summary="The position of each token of padded rows behind what stands in the cache, padding not counted.",
    oracle=reference.padded_positions,
    answer=lambda case, conventions: as_float64({"positions": reference.padded_positions(**case.arguments())}),
    bound=lambda arithmetic, case, conventions: bounds.padded_positions_bound(arithmetic, **case.arguments()),
    cases=_padding_cases,
    laws=PADDED_POSITIONS_LAWS,
    source="position_ids of the generate method of huggingface/transformers; cut after the count: mosaicml/examples#257",
)
