"""Each kind of standard fault is named by its hint, on a case drawn as the checker draws them, and a right answer gets none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from oracles.properties import Arithmetic
from oracles.properties.case import Case
from oracles.properties.declaration import declaration_of, subject
from oracles.properties.diagnosis import diagnose
from oracles.properties.operations import operation_named
from oracles.properties.subjects import InProcess
from oracles.properties.trial import Trial
from oracles.reference import FloatFormat, attention

Function = Callable[..., Any]


def case(*, B: int = 2, Hkv: int = 2, G: int = 2, Lq: int = 24, Lk: int = 80, D: int = 16, seed: int = 0, **options: Any) -> Case:
    """A plain float32 case of 80 keys, so that tiles of 64 have a border in it."""
    g = np.random.default_rng(seed)
    arrays = {"q": g.standard_normal((B, Hkv * G, Lq, D)), "k": g.standard_normal((B, Hkv, Lk, D)), "v": g.standard_normal((B, Hkv, Lk, D))}
    arrays = {name: array.astype(np.float32) for name, array in arrays.items()}
    arrays |= {name: options.pop(name) for name in [n for n, value in options.items() if isinstance(value, np.ndarray)]}
    return Case("attention", arrays, {"causal": None, **options})


def hint(function: Function, on: Case, **declared: Any) -> str:
    declared_function = subject("attention", name="suspect", **declared)(function)
    return diagnose(Trial(operation_named("attention"), InProcess(declared_function, declaration_of(declared_function, "attention")), on))


def answered(out: Any, lse: Any) -> Any:
    return np.asarray(out).astype(np.float32), np.asarray(lse).astype(np.float32)


def right(q: Any, k: Any, v: Any, *, causal: Any = None, **options: Any) -> Any:
    return answered(*attention(q, k, v, causal=causal, **options))


def called_with(change: Callable[[dict[str, Any]], dict[str, Any]]) -> Function:
    def broken(q: Any, k: Any, v: Any, *, causal: Any = None, **options: Any) -> Any:
        return right(**change({"q": q, "k": k, "v": v, "causal": causal, **options}))

    return broken


def answering(change: Callable[[Any, Any], Any]) -> Function:
    def broken(q: Any, k: Any, v: Any, *, causal: Any = None, **options: Any) -> Any:
        return answered(*change(*(x.copy() for x in right(q, k, v, causal=causal, **options))))

    return broken


def scaled_by(factor: float) -> Function:
    return called_with(lambda a: {**a, "scale": (a.get("scale") or a["q"].shape[-1] ** -0.5) * factor})


def without(*names: str) -> Function:
    return called_with(lambda a: {name: value for name, value in a.items() if name not in names})


def tiled_heads(a: dict[str, Any]) -> dict[str, Any]:
    G = a["q"].shape[1] // a["k"].shape[1]
    return {**a, "k": np.tile(a["k"], (1, G, 1, 1)), "v": np.tile(a["v"], (1, G, 1, 1))}


def not_rescaled(q: Any, k: Any, v: Any, *, causal: Any = None) -> Any:
    """Two tiles of 64 keys; the accumulator of the first keeps the first tile's maximum."""
    k, v = (np.repeat(x, q.shape[1] // x.shape[1], axis=1).astype(np.float64) for x in (k, v))
    s = q.astype(np.float64) @ k.swapaxes(-1, -2) * q.shape[-1] ** -0.5
    first = s[..., :64].max(-1, keepdims=True)
    m = s.max(-1, keepdims=True)
    p, l = np.exp(s - m), np.exp(s - m).sum(-1, keepdims=True)
    out = (np.exp(s[..., :64] - first) @ v[:, :, :64] + p[..., 64:] @ v[:, :, 64:]) / l
    return answered(out, (m + np.log(l))[..., 0])


def rounded_weights(name: str) -> Function:
    def broken(q: Any, k: Any, v: Any, *, causal: Any = None) -> Any:
        k, v = (np.repeat(x, q.shape[1] // x.shape[1], axis=1).astype(np.float64) for x in (k, v))
        s = q.astype(np.float64) @ k.swapaxes(-1, -2) * q.shape[-1] ** -0.5
        m = s.max(-1, keepdims=True)
        p = np.exp(s - m)
        l = p.sum(-1, keepdims=True)
        return answered(FloatFormat(name).round(p) @ v / l, (m + np.log(l))[..., 0])

    return broken


def last_rows(value: float) -> Function:
    def change(out: Any, lse: Any) -> Any:
        out[:, :, -4:], lse[:, :, -4:] = value, value
        return out, lse

    return answering(change)


LENGTHS = np.array([30, 80])
KEPT = np.random.default_rng(5).uniform(size=(2, 4, 24, 80)) < 0.5
BIAS = np.random.default_rng(6).standard_normal((2, 4, 24, 80)).astype(np.float32)
FAULTS: dict[str, tuple[Function, Case, str]] = {
    "scale off by 0.1 %": (scaled_by(1.001), case(), "scale: off by a factor of 1.001"),
    "scale off by 3": (scaled_by(3.0), case(), "scale: off by a factor of 3"),
    "scores not scaled": (scaled_by(4.0), case(), "scale: q k^T not scaled"),
    "scale argument ignored": (without("scale"), case(scale=0.7), "scale: the argument ignored"),
    "one key of the future": (
        called_with(lambda a: {**a, "causal": None, "window": (None, 1)}), case(causal="bottom_right"),
        "mask off by one: one key of the future"),
    "window one too wide": (
        called_with(lambda a: {**a, "window": (6, 0)}), case(window=(5, 0)), "mask off by one: the window's left side lets one"),
    "last key dropped": (
        called_with(lambda a: {**a, "kv_lengths": np.full(2, 79)}), case(), "mask off by one: the last key that a row sees is dropped"),
    "one tile not rescaled": (not_rescaled, case(), "accumulator not rescaled at the tile of keys 64 to 79"),
    "P in float16": (rounded_weights("float16"), case(), "precision: as if P were rounded to float16"),
    "P in bfloat16": (rounded_weights("bfloat16"), case(), "precision: as if P were rounded to bfloat16"),
    "lse in base 2": (answering(lambda out, lse: (out, lse / np.log(2.0))), case(), "lse in base 2"),
    "heads tiled": (called_with(tiled_heads), case(), "head map: query head h reads key/value head h % Hkv"),
    "top left": (called_with(lambda a: {**a, "causal": "top_left"}), case(causal="bottom_right"), "causal: aligned top left"),
    "causal ignored": (called_with(lambda a: {**a, "causal": None}), case(causal="bottom_right"), "causal: ignored"),
    "padding keys taken in": (without("kv_lengths"), case(kv_lengths=LENGTHS), "kv_lengths: padding keys are taken in"),
    "softcap ignored": (without("softcap"), case(softcap=2.0), "softcap: ignored"),
    "a window without its left side": (
        called_with(lambda a: {**a, "window": (None, 2)}), case(window=(0, 2)), "window: its left side is ignored"),
    "dropout not made up for": (
        answering(lambda out, lse: (0.5 * out, lse)), case(dropout_mask=KEPT, dropout_p=0.5), "dropout: P is not divided"),
    "bias of head 0": (
        called_with(lambda a: {**a, "bias": a["bias"][:, :1]}), case(bias=BIAS), "bias: every head reads that of head 0"),
    "sinks of the key/value heads": (
        called_with(lambda a: {**a, "sinks": a["sinks"][[0, 0, 1, 1]]}), case(sinks=BIAS[0, :, 0, 0]),
        "sinks: query head h reads that of head h // (Hq / Hkv)"),
    "mask of item 0": (
        called_with(lambda a: {**a, "mask": a["mask"][:1]}), case(mask=KEPT), "mask: every batch item reads that of item 0"),
    "mask ignored where it hides whole rows": (
        without("mask"), case(mask=np.broadcast_to(np.arange(24)[:, None] % 3 > 0, (24, 80)).copy()), "mask: ignored"),
    "last rows are zeros": (last_rows(0.0), case(), "unwritten: rows 20 to 23, the last of 24, hold zeros"),
    "last rows are NaN": (last_rows(np.nan), case(), "unwritten: rows 20 to 23, the last of 24, hold NaN"),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_the_hint_names_the_fault(name: str) -> None:
    function, on, wanted = FAULTS[name]
    assert hint(function, on).startswith(wanted)


@pytest.mark.parametrize("options", [{}, {"causal": "bottom_right"}, {"softcap": 2.0}, {"kv_lengths": LENGTHS}], ids=str)
def test_a_right_answer_gets_no_hint(options: dict[str, Any]) -> None:
    assert hint(right, case(**options)) == ""


def test_what_looks_like_no_known_fault_gets_no_hint() -> None:
    noise = np.random.default_rng(1)
    assert hint(answering(lambda out, lse: (out + noise.standard_normal(out.shape), lse)), case()) == ""


def test_one_wrong_head_is_told() -> None:
    def change(out: Any, lse: Any) -> Any:
        out[:, 3] += np.random.default_rng(2).standard_normal(out[:, 3].shape)
        return out, lse

    assert hint(answering(change), case()) == "wrong in head 3 of 4 only"


def test_a_subject_without_lse_gets_hints_too() -> None:
    assert hint(lambda q, k, v, *, causal=None: scaled_by(1.01)(q, k, v)[0], case()).startswith("scale: off by a factor of 1.01")


def test_declared_roundings_are_no_fault() -> None:
    assert hint(rounded_weights("bfloat16"), case(), arithmetic=Arithmetic(probabilities="bfloat16")) == ""
