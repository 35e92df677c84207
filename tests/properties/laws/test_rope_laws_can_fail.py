"""Every law of rope and write_kv turns red on an implementation that breaks what it states."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from oracles import reference
from oracles.properties import check, subject
from oracles.properties.operations import operation_named

from .rejection import rejects

Function = Callable[..., Any]


def rope(x: Any, positions: Any, *, pairing: str, **options: Any) -> Any:
    """The oracle in the dtype of its input: right in everything."""
    return reference.rope(x, positions, pairing=pairing, **options).astype(x.dtype)


def write_kv(k_cache: Any, v_cache: Any, k: Any, v: Any, slots: Any) -> Any:
    """A loop over tokens: right in everything, bits included."""
    k_cache, v_cache = k_cache.copy(), v_cache.copy()
    for t, slot in enumerate(slots):
        if slot >= 0:
            k_cache[slot], v_cache[slot] = k[t], v[t]
    return k_cache, v_cache


# What is broken: a function of the right results and the arguments, or of the arguments ------------------------------------


def turned(change: Callable[..., Any]) -> Function:
    def broken(x: Any, positions: Any, *, pairing: str, **options: Any) -> Any:
        return change(rope(x, positions, pairing=pairing, **options), x, positions).astype(x.dtype)

    return broken


def asked(**changes: Callable[..., Any]) -> Function:
    """Called with other arguments, each made from x, positions and the one given (None where none is)."""
    def broken(x: Any, positions: Any, *, pairing: str, **options: Any) -> Any:
        given = {"x": x, "positions": positions, "pairing": pairing, **options}
        return rope(**{**given, **{name: change(x, positions, given.get(name)) for name, change in changes.items()}})

    return broken


def without_last(out: Any, x: Any, positions: Any) -> Any:
    return out[..., :-1]


def nudged(array: Any) -> Any:
    return np.nextafter(array, np.asarray(np.inf, array.dtype))


def scribbling(x: Any, positions: Any, *, pairing: str, **options: Any) -> Any:
    out = rope(x, positions, pairing=pairing, **options)
    x[...] = 0
    return out


class Sometimes:
    """Another last bit in every second call."""

    def __init__(self, right: Function) -> None:
        self.right, self.calls = right, 0

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        self.calls += 1
        results = self.right(*arguments, **named)
        wrong = tuple(nudged(r) for r in results) if isinstance(results, tuple) else nudged(results)
        return wrong if self.calls % 2 else results


def dense_alone(x: Any, positions: Any, given: Any) -> Any:
    return x if x.flags.c_contiguous else x + x.dtype.type(1)


def half_written(x: Any, positions: Any, out: Any, *, pairing: str, **options: Any) -> None:
    out[..., 1:] = rope(x, positions, pairing=pairing, **options)[..., 1:]


# law: (the declaration it needs, the function that breaks it)
ROPE: dict[str, tuple[dict[str, Any], Function]] = {
    "answers": ({}, turned(without_last)),
    "out_agrees_with_the_oracle": ({}, turned(lambda out, x, p: out * (1 + 1e-4))),
    "a_coordinate_turns_into_its_partner_alone": ({}, turned(lambda out, x, p: out + out.dtype.type(2**-13) * x[..., ::-1])),
    "position_zero_is_the_identity": ({}, turned(lambda out, x, p: nudged(out))),
    "what_is_not_rotated_stays": ({}, turned(lambda out, x, p: nudged(out))),
    "norms_of_pairs_are_kept": ({}, turned(lambda out, x, p: out * (1 + 1e-4))),
    "far_positions_keep_their_phases": ({}, asked(positions=lambda x, p, given: np.minimum(p, 65536))),
    "positions_broadcast": ({}, asked(positions=lambda x, p, given: p.reshape(-1)[: p.shape[-1]] if p.ndim == x.ndim - 1 > 1 else p)),
    "products_depend_on_the_distance_alone": ({}, asked(positions=lambda x, p, given: p + (p // 100) % 3)),
    "turning_twice_adds_the_positions": ({}, asked(positions=lambda x, p, given: np.maximum(p, 0))),
    "one_pairing_is_the_other_permuted": ({}, asked(pairing=lambda x, p, given: "half")),
    "strides_are_respected": ({}, asked(x=dense_alone)),
    "inputs_stay_untouched": ({}, scribbling),
    "buffers_are_fully_written": ({"buffers": ("out",)}, half_written),
    "repeats_give_the_same_bits": ({"promises": ("deterministic",)}, Sometimes(rope)),
}  # fmt: skip


def written(change: Callable[..., Any]) -> Function:
    """`change` gets the results as a list of two and the arguments in order, and puts right what is wrong with them."""
    def broken(k_cache: Any, v_cache: Any, k: Any, v: Any, slots: Any) -> Any:
        caches = list(write_kv(k_cache, v_cache, k, v, slots))
        change(caches, k_cache, v_cache, k, v, slots)
        return tuple(caches)

    return broken


def without_keys(caches: Any, *given: Any) -> None:
    caches[0] = caches[0][..., :0]


def keys_off(caches: Any, *given: Any) -> None:
    caches[0] = nudged(caches[0])


def values_from_keys(caches: Any, k_cache: Any, v_cache: Any, k: Any, v: Any, slots: Any) -> None:
    if k.shape == v.shape:
        caches[1] = write_kv(k_cache, v_cache, k, k, slots)[1]


def first_wins(k_cache: Any, v_cache: Any, k: Any, v: Any, slots: Any) -> Any:
    return write_kv(k_cache, v_cache, k[::-1], v[::-1], slots[::-1])


def wraps_around(k_cache: Any, v_cache: Any, k: Any, v: Any, slots: Any) -> Any:
    return write_kv(k_cache, v_cache, k, v, slots % len(k_cache) if len(k_cache) else slots)


def one_nan_for_all(caches: Any, *given: Any) -> None:
    for cache in caches:
        cache[np.isnan(cache.astype(np.float64))] = np.nan


def no_negative_zero(k_cache: Any, v_cache: Any, k: Any, v: Any, slots: Any) -> Any:
    return write_kv(k_cache, v_cache, k + k.dtype.type(0), v, slots)


def clears_without_tokens(caches: Any, k_cache: Any, v_cache: Any, k: Any, v: Any, slots: Any) -> None:
    if not len(k):
        caches[0] = np.ones_like(caches[0])


def clears_what_it_does_not_write(caches: Any, k_cache: Any, v_cache: Any, k: Any, v: Any, slots: Any) -> None:
    caches[0][~np.isin(np.arange(len(k_cache)), slots)] = 0


def scribbling_writer(k_cache: Any, v_cache: Any, k: Any, v: Any, slots: Any) -> Any:
    caches = write_kv(k_cache, v_cache, k, v, slots)
    k[...] = 0
    return caches


def dense_cache_alone(k_cache: Any, v_cache: Any, k: Any, v: Any, slots: Any) -> Any:
    return write_kv(k_cache, v_cache, k if k.flags.c_contiguous else k + k.dtype.type(1), v, slots)


WRITE_KV: dict[str, tuple[dict[str, Any], Function]] = {
    "answers": ({}, written(without_keys)),
    "k_cache_agrees_with_the_oracle": ({}, written(keys_off)),
    "v_cache_agrees_with_the_oracle": ({}, written(values_from_keys)),
    "skipped_tokens_write_nothing": ({}, wraps_around),
    "the_last_token_of_a_slot_wins": ({}, first_wins),
    "other_slots_keep_their_bits": ({}, written(one_nan_for_all)),
    "tokens_are_copied_bit_for_bit": ({}, no_negative_zero),
    "no_tokens_change_nothing": ({}, written(clears_without_tokens)),
    "tokens_one_by_one_are_tokens_at_once": ({}, written(clears_what_it_does_not_write)),
    "strides_are_respected": ({}, dense_cache_alone),
    "inputs_stay_untouched": ({}, scribbling_writer),
    "repeats_give_the_same_bits": ({"promises": ("deterministic",)}, Sometimes(write_kv)),
}  # fmt: skip

BREAKERS = {"rope": ROPE, "write_kv": WRITE_KV}
RIGHT = {"rope": rope, "write_kv": write_kv}
ALL = [(operation, law) for operation, laws in BREAKERS.items() for law in laws]


def declared(operation: str, function: Function, **declaration: Any) -> Function:
    """The function under the names of the contract, marked."""
    header = {"rope": "x, positions, {}*, pairing, **options", "write_kv": "{}k_cache, v_cache, k, v, slots"}[operation]
    call = {"rope": "x, positions, {}pairing=pairing, **options", "write_kv": "{}k_cache, v_cache, k, v, slots"}[operation]
    buffers = "".join(f"{name}, " for name in declaration.get("buffers", ()))
    wrapped = eval(f"lambda {header.format(buffers)}: function({call.format(buffers)})", {"function": function})
    return subject(operation, name="broken", **declaration)(wrapped)


@pytest.mark.parametrize(("operation", "law"), ALL, ids=[f"{operation}-{law}" for operation, law in ALL])
def test_the_law_rejects_what_breaks_it(operation: str, law: str) -> None:
    declaration, function = BREAKERS[operation][law]
    assert rejects(operation, law, declared(operation, function, **declaration)) != ""


@pytest.mark.parametrize("operation", BREAKERS)
def test_no_law_is_left_out(operation: str) -> None:
    assert {law.name for law in operation_named(operation).laws} == set(BREAKERS[operation])


FORMATS = ("float32", "float64", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")


@pytest.mark.parametrize("operation", BREAKERS)
def test_what_is_right_keeps_all_laws_in_every_format(operation: str) -> None:
    right = declared(operation, RIGHT[operation], promises=("deterministic",), dtypes=FORMATS)
    report = check(operation, right, budget=40)
    assert report.held
    assert {v.law for v in report.verdicts if v.status != "held"} <= {"buffers_are_fully_written"}
    assert not [line for line in report.not_covered if "declared" in line]


def test_a_wrong_angle_keeps_norms_and_breaks_the_bound() -> None:
    """The two laws see different things: far out the norm alone is still sharp."""
    early = declared("rope", asked(positions=lambda x, p, given: p + 1))
    longer = declared("rope", turned(lambda out, x, p: out * (1 + 3e-6)), dtypes=("float32",))
    laws = ("norms_of_pairs_are_kept", "far_positions_keep_their_phases")
    assert [v.status for v in check("rope", early, budget="quick", laws=laws).verdicts] == ["held", "failed"]
    assert next(v.status for v in check("rope", longer, budget="quick", laws=laws).verdicts) == "failed"
