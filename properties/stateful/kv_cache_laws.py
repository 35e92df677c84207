"""Laws of a KV cache: what holds after every call, however it stores keys and values.

They need nothing but NumPy and their neighbours, so that a repro can carry a copy.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .kv_cache_model import CacheMoment
from .play import SILENT, Found, SequenceLaw, answers, sequence_law
from .sequence import RAISED, RETURNED


@sequence_law()
def a_wrong_call_is_refused(m: CacheMoment) -> Found:
    """ValueError for shapes that do not fit, for rows that are not there, for more tokens than are kept, and for a view of nothing yet."""
    if m.wrong_call and m.answer.kind == RETURNED:
        return Found(1, f"{m.call} returned, though {m.wrong_call}; want ValueError")
    shows = m.view is not None and m.model.k is None
    return Found(1, f"view returned after {m.call}, before anything was appended; want ValueError" if shows else "")


@sequence_law()
def what_raises_changes_nothing(m: CacheMoment) -> Found:
    """After a call that raised, length and view are what they were before it."""
    if m.answer.kind != RAISED:
        return SILENT
    if m.length != m.length_before:
        return Found(1, f"{m.call} raised, and len went from {m.length_before} to {m.length}")
    if (m.view is None) != (m.view_before is None):
        return Found(1, f"{m.call} raised, and view {'does not return' if m.view is None else 'returns'} any more")
    same = m.view is None or m.view_before is None or all(np.array_equal(a, b) for a, b in zip(m.view, m.view_before))
    return Found(1, "" if same else f"{m.call} raised, and the view is another one")


@sequence_law()
def the_length_counts_the_tokens_kept(m: CacheMoment) -> Found:
    """len(cache) = tokens appended and not cropped, outside the window too; never the room that is kept for them."""
    return Found(1, f"len is {m.length} after {m.call}; want {len(m.model)}" if m.length != len(m.model) else "")


@sequence_law()
def the_view_is_the_last_window(m: CacheMoment) -> Found:
    """A view has the last min(window, len) tokens, of all sequences and heads."""
    if m.view is None or m.model.k is None:
        return SILENT
    got, want = [array.shape for array in m.view], [array.shape for array in m.model.shown()]
    return Found(2, f"the view has shapes {got} after {m.call}; want {want}, window {m.model.window}" if got != want else "")


def _come_back(m: CacheMoment, which: int) -> Found:
    """That one array of the view is that of the model, where the shapes are equal."""
    if m.view is None or m.model.k is None or m.view[which].shape != m.model.shown()[which].shape:
        return SILENT
    got, want = m.view[which], m.model.shown()[which]
    if np.array_equal(got, want):
        return Found(got.size)
    place = tuple(int(i) for i in np.argwhere(got != want)[0])
    return Found(got.size, f"{'kv'[which]}{list(place)} of the view is {got[place]:g} after {m.call}; want {want[place]:g}")


@sequence_law()
def keys_come_back_as_they_were_appended(m: CacheMoment) -> Found:
    """The keys of the view are those that were appended, each where it was, after a select each sequence's own; exactly."""
    return _come_back(m, 0)


@sequence_law()
def values_come_back_as_they_were_appended(m: CacheMoment) -> Found:
    """The values of the view are those that were appended, each where it was, after a select each sequence's own; exactly."""
    return _come_back(m, 1)


@sequence_law()
def attention_over_the_view_is_windowed_attention_over_the_tokens(m: CacheMoment) -> Found:
    """Attention of the next query over the view equals attention over all tokens, of which only the last `window` are visible.

        softmax(q K_view^T) V_view = softmax(q K^T + mask) V,   mask[j] = 0 for j >= len - window, -inf before
    """
    if m.view is None or m.model.k is None or not m.view[0].size or m.view[0].shape[:3] != m.view[1].shape[:3]:
        return SILENT
    n = len(m.model)
    hidden = 0 if m.model.window is None else max(0, n - m.model.window)
    want = _attention(m.model.k, m.model.v, np.arange(n) < hidden)
    if m.view[0].shape[3] != m.model.k.shape[3] or m.view[0].shape[2] > n:
        return SILENT
    k, v = (_at_the_end(array, n) for array in m.view)
    got = _attention(k, v, np.arange(n) < n - m.view[0].shape[2])
    return Found(want.size, "" if np.array_equal(got, want) else f"attention over the view is {got.ravel()[:4]} after {m.call}; "
                 f"want {want.ravel()[:4]}")  # fmt: skip


def _at_the_end(array: Any, n: int) -> Any:
    """The tokens of a view in their places among all n, so that both sums run in one order."""
    padded = np.zeros((*array.shape[:2], n, array.shape[3]))
    padded[:, :, n - array.shape[2] :] = array
    return padded


def _attention(k: Any, v: Any, hidden: Any) -> Any:
    """softmax(q K^T) V of the query (1, -1, 1, …) / 8; (B, H, Dv)."""
    q = np.where(np.arange(k.shape[3]) % 2, -1.0, 1.0) / 8
    s = np.where(hidden, -np.inf, k @ q)                                        # (B, H, n)
    p = np.exp(s - s.max(axis=-1, keepdims=True))
    return (p[..., None] * np.where(hidden[:, None], 0.0, v)).sum(axis=2) / p.sum(axis=-1)[..., None]


KV_CACHE_LAWS: tuple[SequenceLaw, ...] = (
    answers, a_wrong_call_is_refused, what_raises_changes_nothing, the_length_counts_the_tokens_kept, the_view_is_the_last_window,
    keys_come_back_as_they_were_appended, values_come_back_as_they_were_appended,
    attention_over_the_view_is_windowed_attention_over_the_tokens,
)  # fmt: skip
