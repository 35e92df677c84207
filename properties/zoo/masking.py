"""Mutants of the masking family: which keys a query sees."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import textbook, triggers
from .specimen import mutant
from .textbook import Array, Call

FAMILY = "masking"
BLOCK = 4


@mutant(
    "attention", id="causal-mask-per-group-of-four-rows", family=FAMILY, dtypes=("float32", "float16", "bfloat16"),
    source="https://github.com/pytorch/pytorch/issues/195910",
    trigger=lambda: triggers.forward(Lq=8, Lk=8, causal="bottom_right", dtype="float16"),
)  # fmt: skip
def one_limit_for_four_rows(q: Any, k: Any, v: Any, *, causal: Any, scale: Any = None) -> tuple[Array, Array]:
    """In 16 bits four neighbouring queries share the causal limit of the last of them, so three see the future."""

    def causal_by_fours(call: Call) -> Array:
        i = np.arange(call.Lq)[:, None]
        ahead = np.arange(call.Lk) - (textbook.positions(call) - i)
        return np.asarray((causal is None) | (ahead <= i // 4 * 4 + 3))

    wide = q.dtype.itemsize > 2
    return textbook.attention(q, k, v, causal=causal, scale=scale, visible=textbook.visible if wide else causal_by_fours)


@mutant(
    "attention", id="one-sided-window-leaks-future", family=FAMILY, source="https://github.com/jax-ml/jax/pull/39576",
    trigger=lambda: triggers.forward(Lq=6, Lk=6, window=(2, 0)),
)  # fmt: skip
def right_side_of_zero_is_no_limit(q: Any, k: Any, v: Any, *, causal: Any, scale: Any = None, window: Any = None) -> tuple[Array, Array]:
    """A window of (left, 0) without a causal mask bounds the past only: its right side of 0 is taken for no limit."""
    sides = None if window is None else (window[0], window[1] or None)
    return textbook.attention(q, k, v, causal=causal, scale=scale, window=sides)


@mutant(
    "attention_packed", id="packed-segments-ignored", family=FAMILY, source="https://github.com/AI-Hypercomputer/maxtext/pull/4478",
    trigger=lambda: triggers.packed([3, 5], [3, 5], causal="bottom_right"),
)  # fmt: skip
def borders_ignored(q: Any, k: Any, v: Any, cu_q: Any, cu_k: Any, *, causal: Any, scale: Any = None) -> tuple[Array, Array]:
    """Tokens attend across the borders of packed sequences: the causal mask of the whole buffer is the only one."""
    out, lse = textbook.attention(textbook.batch(q), textbook.batch(k), textbook.batch(v), causal=causal, scale=scale)
    return out[0].swapaxes(0, 1).copy(), lse[0]


def more_keys_claimed_than_given() -> dict[str, Any]:
    """Offsets of 20 keys beside 10. The oracle refuses them."""
    given = triggers.packed([4, 6], [4, 6])
    return {**given, "cu_k": 2 * given["cu_k"]}


@mutant(
    "attention_packed", id="block-diagonal-longer-than-keys-accepted", family=FAMILY, promises=["validates_input"],
    source="https://github.com/facebookresearch/xformers/issues/1122", trigger=more_keys_claimed_than_given,
)  # fmt: skip
def offsets_past_the_end_accepted(q: Any, k: Any, v: Any, cu_q: Any, cu_k: Any, *, causal: Any, scale: Any = None) -> tuple[Array, Array]:
    """Offsets that end past the last key are computed with whatever keys there are, though bad input is said to be refused."""
    _, heads, size = k.shape
    wrong = {
        "q": q.shape[1] % heads or q.shape[2] != size, "v": v.shape[:2] != k.shape[:2], "cu_q": cu_q[-1] != len(q),
        "cu_k": len(cu_k) != len(cu_q) or cu_k[-1] < len(k),
    }  # fmt: skip
    wrong |= {name: wrong[name] or cu[0] != 0 or (np.diff(cu) < 0).any() for name, cu in (("cu_q", cu_q), ("cu_k", cu_k))}
    for name in (name for name, is_wrong in wrong.items() if is_wrong):
        raise ValueError(f"{name}: does not fit the other arguments")
    return textbook.attention_packed(q, k, v, cu_q, cu_k, causal=causal, scale=scale)


@mutant(
    "attention", id="mask-plus-causal-silently-drops-one", family=FAMILY,
    source="https://github.com/pytorch/pytorch/pull/187966 https://github.com/facebookresearch/xformers/issues/103",
    trigger=lambda: triggers.forward(Lq=4, Lk=4, causal="bottom_right", mask=np.array([0, 1, 1, 1], bool)[None, None, None]),
)  # fmt: skip
def mask_replaces_causal(q: Any, k: Any, v: Any, *, causal: Any, scale: Any = None, mask: Any = None) -> tuple[Array, Array]:
    """A mask given together with causal takes its place instead of being combined with it."""
    return textbook.attention(q, k, v, causal=causal if mask is None else None, scale=scale, mask=mask)


@mutant(
    "attention", id="window-narrower-than-trained", family=FAMILY, source="https://github.com/vllm-project/vllm/issues/3385",
    trigger=lambda: triggers.forward(Lq=11, Lk=11, causal="bottom_right", window=(4, None)),
)  # fmt: skip
def current_key_counted(q: Any, k: Any, v: Any, *, causal: Any, scale: Any = None, window: Any = None) -> tuple[Array, Array]:
    """A window of W keys before the current one shows W - 1 of them: the current key is counted, and that is not declared."""

    def narrower(call: Call) -> Array:
        left = call.window[0]
        behind = textbook.positions(call) - np.arange(call.Lk)
        return textbook.visible(call) & (left is None or behind < max(left, 1))

    return textbook.attention(q, k, v, causal=causal, scale=scale, window=window, visible=narrower)


_TABLES: dict[Any, Array] = {}                                                  # the kernel's cache of block tables


def _blocks_seen(call: Call) -> Array:
    """(Lq, Lk) from a table of the sequence's last BLOCK keys, kept under the number of blocks."""
    blocks = -(-call.Lk // BLOCK)
    rest = _TABLES.setdefault(blocks, np.arange(BLOCK) < call.Lk - (blocks - 1) * BLOCK)
    keys = np.concatenate([np.ones(max(blocks - 1, 0) * BLOCK, bool), rest])[: call.Lk]
    return np.asarray(textbook.visible(call) & keys)


def _after_another_length() -> dict[str, Any]:
    _TABLES.clear()
    block_table_reused(**triggers.forward(Lk=18))
    return triggers.forward(Lk=20)


@mutant(
    "attention", id="block-mask-built-for-other-length", family=FAMILY, source="https://github.com/pytorch/pytorch/pull/141625",
    trigger=_after_another_length,
)  # fmt: skip
def block_table_reused(q: Any, k: Any, v: Any, *, causal: Any, scale: Any = None) -> tuple[Array, Array]:
    """The block mask built for one number of keys serves for every other with as many blocks: which keys of the last one count is old."""
    return textbook.attention(q, k, v, causal=causal, scale=scale, visible=_blocks_seen)


@mutant(
    "attention", id="window-right-bound-exclusive", family=FAMILY, source="https://github.com/huggingface/transformers/pull/47010",
    trigger=lambda: triggers.forward(Lq=10, Lk=10, window=(None, 4)),
)  # fmt: skip
def one_key_less_ahead(q: Any, k: Any, v: Any, *, causal: Any, scale: Any = None, window: Any = None) -> tuple[Array, Array]:
    """A window that looks R keys ahead shows R - 1 of them."""
    sides = None if window is None else (window[0], window[1] and window[1] - 1)
    return textbook.attention(q, k, v, causal=causal, scale=scale, window=sides)


def seen_by_the_kernel(call: Call) -> Array:
    """The kernel's mask, which its own verifier imports."""
    return np.asarray((call.causal is None) | (np.arange(call.Lk) <= np.arange(call.Lq)[:, None]))


def verifier(q: Any, k: Any, v: Any, *, causal: Any, scale: Any = None) -> tuple[Array, Array]:
    """The kernel's bundled check: attention in float64, with the kernel's own mask. It accepts the kernel."""
    return textbook.attention(*(x.astype(np.float64) for x in (q, k, v)), causal=causal, scale=scale, visible=seen_by_the_kernel)


@mutant(
    "attention", id="causal-top-left-in-reference-too", family=FAMILY, source="https://github.com/NVIDIA/cutlass/issues/2336",
    trigger=lambda: triggers.forward(Lq=3, Lk=128, causal="bottom_right"),
)  # fmt: skip
def its_own_verifier_agrees(q: Any, k: Any, v: Any, *, causal: Any, scale: Any = None) -> tuple[Array, Array]:
    """Query i sees keys 0..i also where there are more keys than queries, and the kernel's verifier shares that mask."""
    return textbook.attention(q, k, v, causal=causal, scale=scale, visible=seen_by_the_kernel)


@mutant(
    "attention", id="window-negative-left-disables-window", family=FAMILY, source="https://github.com/proger/hippogriff/issues/7",
    trigger=lambda: triggers.forward(Lq=16, Lk=16, causal="bottom_right", window=(4, 0)),
)  # fmt: skip
def left_side_passed_on_negative(q: Any, k: Any, v: Any, *, causal: Any, scale: Any = None, window: Any = None) -> tuple[Array, Array]:
    """The left side is passed on as -W, which the kernel below reads as no limit."""
    sides = None if window is None else tuple(None if side is None or side < 0 else side for side in (window[0] and -window[0], window[1]))
    return textbook.attention(q, k, v, causal=causal, scale=scale, window=sides)


@mutant(
    "attention", id="causal-mask-top-left-when-lengths-differ", family=FAMILY,
    source="https://github.com/Dao-AILab/flash-attention/issues/282 https://github.com/Dao-AILab/flash-attention/issues/517",
    trigger=lambda: triggers.forward(Lq=2, Lk=5, causal="bottom_right"),
)  # fmt: skip
def newest_keys_unseen(
    q: Any, k: Any, v: Any, *, causal: Any, scale: Any = None, softcap: Any = None, kv_lengths: Any = None
) -> tuple[Array, Array]:
    """With more keys than queries the causal mask starts at the first key instead of ending at the last, and hides the newest."""

    def from_the_first(call: Call) -> Array:
        return textbook.in_length(call) & ((causal is None) | (np.arange(call.Lk) <= np.arange(call.Lq)[:, None]))

    return textbook.attention(q, k, v, causal=causal, scale=scale, softcap=softcap, kv_lengths=kv_lengths, visible=from_the_first)


def _uniform_where_blind(s: Array, seen: Array, sinks: Array | None) -> tuple[Array, Array]:
    lowest = np.finfo(s.dtype).min
    return textbook.weights(np.where(seen, s, lowest), np.ones_like(seen), sinks)


@mutant(
    "attention", id="more-queries-than-keys-rows-zero", family=FAMILY, source="https://github.com/Dao-AILab/flash-attention/issues/1778",
    trigger=lambda: triggers.forward(Lq=5, Lk=2, causal="bottom_right"),
)  # fmt: skip
def blind_rows_average_everything(q: Any, k: Any, v: Any, *, causal: Any, scale: Any = None) -> tuple[Array, Array]:
    """Hidden scores are set to the lowest number rather than -inf, so queries before the first key weigh all keys alike."""
    return textbook.attention(q, k, v, causal=causal, scale=scale, weights=_uniform_where_blind)
