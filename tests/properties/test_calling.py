"""One call: arguments in the subject's own names, order and layout; results by name; side effects seen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from oracles.properties import subject
from oracles.properties.calling import call, unwritten
from oracles.properties.case import Case
from oracles.properties.declaration import declaration_of
from oracles.properties.outcome import MALFORMED, RAISED, REFUSED, RETURNED, Outcome

R = np.random.default_rng(0)
CASE = Case("attention", {"q": R.normal(size=(2, 4, 3, 8)), "k": R.normal(size=(2, 2, 5, 8)), "v": R.normal(size=(2, 2, 5, 6)),
                          "sinks": R.normal(size=4)}, {"causal": "bottom_right", "scale": 0.5, "window": (2, None)})  # fmt: skip
OUT = R.normal(size=(2, 4, 3, 6))


def run(function: Callable[..., Any], case: Case = CASE, *, shapes: dict[str, Any] | None = None, **declared: Any) -> Outcome:
    declaration = declaration_of(subject("attention", **declared)(function), "attention")
    return call(function, declaration, case, shapes or {})


def test_it_gets_copies_of_the_arrays_and_the_options_it_takes() -> None:
    seen: dict[str, Any] = {}

    def kernel(q: Any, k: Any, v: Any, *, causal: Any, scale: Any = None) -> Any:
        seen.update(q=q, k=k, v=v, causal=causal, scale=scale)
        return OUT

    assert run(kernel).kind == RETURNED
    assert (seen["causal"], seen["scale"]) == ("bottom_right", 0.5)
    for name in "qkv":
        assert seen[name].tobytes() == CASE.arrays[name].tobytes()
        assert not np.shares_memory(seen[name], CASE.arrays[name])


def test_arguments_go_by_position_where_the_names_are_others() -> None:
    def kernel(query: Any, key: Any, value: Any, scale: Any = None) -> Any:
        assert (query.shape[2], key.shape[2], value.shape[3], scale) == (3, 5, 6, 0.5)
        return OUT

    assert run(kernel).kind == RETURNED


def test_arguments_go_by_the_names_they_were_renamed_to() -> None:
    def kernel(value: Any, key: Any, query: Any, *, softmax_scale: Any = None) -> Any:
        assert (query.shape[2], value.shape[3], softmax_scale) == (3, 6, 0.5)
        return OUT

    assert run(kernel, rename={"q": "query", "k": "key", "v": "value", "scale": "softmax_scale"}).kind == RETURNED


@pytest.mark.parametrize(("causal", "wanted"), [(None, False), ("top_left", True)])
def test_a_boolean_causal_gets_a_boolean(causal: str | None, wanted: bool) -> None:
    def kernel(q: Any, k: Any, v: Any, *, is_causal: bool = False) -> Any:
        assert is_causal is wanted
        return OUT

    assert run(kernel, CASE.with_options(causal=causal), causal=["top_left"]).kind == RETURNED


@pytest.mark.parametrize(("window", "wanted"), [((2, None), (3, None)), ((0, 1), (1, 1)), ((None, 1), (None, 1)), (None, None)])
def test_a_window_that_counts_the_current_key_is_one_longer(window: Any, wanted: Any) -> None:
    def kernel(q: Any, k: Any, v: Any, *, window: Any = None) -> Any:
        assert window == wanted
        return OUT

    assert run(kernel, CASE.with_options(window=window), conventions={"window_counts_current": "yes"}).kind == RETURNED


def test_the_layout_with_heads_behind_lengths_goes_in_and_comes_out() -> None:
    def kernel(q: Any, k: Any, v: Any, *, sinks: Any = None) -> Any:
        assert (q.shape, k.shape, v.shape, sinks.shape) == ((2, 3, 4, 8), (2, 5, 2, 8), (2, 5, 2, 6), (4,))
        assert q.flags.c_contiguous
        assert np.array_equal(q, CASE.arrays["q"].swapaxes(1, 2))
        return np.ascontiguousarray(OUT.swapaxes(1, 2)), np.zeros((2, 4, 3))

    outputs = run(kernel, layout="blhd").outputs
    assert outputs["out"].tobytes() == OUT.tobytes()
    assert outputs["lse"].shape == (2, 4, 3)


def test_a_strided_input_stays_a_view_in_the_other_layout() -> None:
    strided = np.ascontiguousarray(CASE.arrays["q"].swapaxes(1, 2)).swapaxes(1, 2)

    def kernel(q: Any, k: Any, v: Any) -> Any:
        assert q.strides == strided.swapaxes(1, 2).strides
        return np.ascontiguousarray(OUT.swapaxes(1, 2))

    assert run(kernel, CASE.with_arrays(q=strided), layout="blhd").kind == RETURNED


def test_buffers_come_filled_with_nan_and_are_the_results() -> None:
    def kernel(q: Any, k: Any, v: Any, out: Any) -> None:
        assert np.isnan(out).all()
        out[..., :3] = 1

    outcome = run(kernel, buffers=["out"], shapes={"out": ((2, 4, 3, 6), "float64")})
    assert np.isnan(outcome.outputs["out"]).sum() == 2 * 4 * 3 * 3


# Results that are written in place, options that are records or choices ---------------------------------------------------

CACHE = Case("write_kv", {"k_cache": R.normal(size=(5, 1, 2)), "v_cache": R.normal(size=(5, 1, 3)), "k": R.normal(size=(2, 1, 2)),
                          "v": R.normal(size=(2, 1, 3)), "slots": np.array([4, 1])}, {})  # fmt: skip
TURN = Case("rope", {"x": R.normal(size=(3, 4)), "positions": np.arange(3)},
            {"pairing": "half", "scaling": {"kind": "linear", "factor": 2.5}})  # fmt: skip


def run_on(operation: str, case: Case, function: Callable[..., Any], **declared: Any) -> Outcome:
    declaration = declaration_of(subject(operation, **declared)(function), operation)
    return call(function, declaration, case, {})


def writes(k_cache: Any, v_cache: Any, k: Any, v: Any, slots: Any) -> Any:
    k_cache[slots], v_cache[slots] = k, v
    return k_cache


def test_what_is_written_in_place_is_the_result_and_no_change_of_an_input() -> None:
    outcome = run_on("write_kv", CACHE, writes, in_place=["k_cache", "v_cache"])
    assert (outcome.kind, outcome.changed, outcome.shared) == (RETURNED, (), ())
    assert np.array_equal(outcome.outputs["k_cache"][[4, 1]], CACHE.arrays["k"])
    assert np.array_equal(outcome.outputs["v_cache"][[0, 2, 3]], CACHE.arrays["v_cache"][[0, 2, 3]])


def test_the_case_keeps_what_it_held_when_a_cache_is_written_in_place() -> None:
    before = CACHE.hash
    run_on("write_kv", CACHE, writes, in_place=["k_cache", "v_cache"])
    assert CACHE.hash == before


def test_a_cache_written_in_place_that_is_not_declared_so_is_a_changed_input_that_shares_memory() -> None:
    outcome = run_on("write_kv", CACHE, writes)
    assert (outcome.changed, outcome.shared) == (("k_cache", "v_cache"), ("k_cache with k_cache",))


def test_an_input_beside_the_caches_must_stay_as_it_is() -> None:
    def scribbles(k_cache: Any, v_cache: Any, k: Any, v: Any, slots: Any) -> None:
        k[...] = 0

    assert run_on("write_kv", CACHE, scribbles, in_place=["k_cache", "v_cache"]).changed == ("k",)


def test_what_is_written_in_place_keeps_its_strides() -> None:
    seen = []

    def looks(k_cache: Any, v_cache: Any, k: Any, v: Any, slots: Any) -> None:
        seen.append(k_cache.strides)
        k_cache[0] = 7

    strided = np.asfortranarray(CACHE.arrays["k_cache"])
    outcome = run_on("write_kv", CACHE.with_arrays(k_cache=strided), looks, in_place=["k_cache", "v_cache"])
    assert seen == [strided.strides]
    assert (outcome.outputs["k_cache"][0] == 7).all()


def test_a_record_comes_as_it_is() -> None:
    def turns(x: Any, positions: Any, *, pairing: str, scaling: Any = None) -> Any:
        assert (pairing, scaling) == ("half", {"kind": "linear", "factor": 2.5})
        return x.copy()

    assert run_on("rope", TURN, turns).kind == RETURNED


def test_a_choice_goes_only_to_who_takes_it() -> None:
    def turns_halves(x: Any, positions: Any) -> Any:
        return x.copy()

    assert run_on("rope", TURN, turns_halves, only={"pairing": ["half"]}).kind == RETURNED


@pytest.mark.parametrize(("dtype", "held"), [("int64", -(2**63)), ("int32", -(2**31)), ("bool", False)])
def test_buffers_of_integers_come_filled_with_the_least_there_is(dtype: str, held: Any) -> None:
    buffer = unwritten((2, 3), dtype)
    assert (buffer.dtype.name, buffer.tolist()) == (dtype, [[held] * 3] * 2)


def test_what_was_changed_and_what_is_shared_is_seen() -> None:
    def kernel(q: Any, k: Any, v: Any) -> Any:
        k[0, 0, 0, 0] += 1
        return q[..., :6]

    outcome = run(kernel)
    assert (outcome.changed, outcome.shared) == (("k",), ("out with q",))


def test_the_sign_of_a_zero_counts_as_a_change() -> None:
    def kernel(q: Any, k: Any, v: Any) -> Any:
        q[...] = -q
        return OUT

    assert run(kernel, CASE.with_arrays(q=np.zeros((2, 4, 3, 8)))).changed == ("q",)


def test_the_results_are_copies() -> None:
    kept = OUT.copy()

    def kernel(q: Any, k: Any, v: Any) -> Any:
        return kept

    outcome = run(kernel)
    kept[...] = 0
    assert outcome.outputs["out"].tobytes() == OUT.tobytes()


LSE = np.zeros((2, 4, 3))
# what is returned: the results
RESULTS = {
    "one array": (OUT, ["out"]),
    "a tuple of one": ((OUT,), ["out"]),
    "a list of two": ([OUT, LSE], ["out", "lse"]),
    "None for what is not given": ((OUT, None), ["out"]),
    "a dict": ({"lse": LSE, "out": OUT}, ["lse", "out"]),
    "a dict with None": ({"out": OUT, "lse": None}, ["out"]),
}


@pytest.mark.parametrize("what", RESULTS)
def test_results_are_named(what: str) -> None:
    returned, names = RESULTS[what]
    assert list(run(lambda q, k, v: returned).outputs) == names


MALFORMED_RESULTS = {
    "an empty tuple": ((), "returned 0 values; want out, lse"),
    "three values": ((OUT, LSE, LSE), "returned 3 values; want out, lse"),
    "an empty dict": ({}, "returned a dict with nothing; want some of out, lse"),
    "a dict of another name": ({"o": OUT}, "returned a dict with 'o'; want some of out, lse"),
    "a list in a tuple": (([1.0],), "out: got list [1.0]; want an array"),
    "text": ("done", "out: got str 'done'; want an array"),
    "nothing": (None, "out: got None; want an array"),
}


@pytest.mark.parametrize("what", MALFORMED_RESULTS)
def test_what_is_no_result_is_malformed_and_told(what: str) -> None:
    returned, message = MALFORMED_RESULTS[what]
    outcome = run(lambda q, k, v: returned)
    assert (outcome.kind, outcome.message) == (MALFORMED, message)


@pytest.mark.parametrize(("error", "kind", "message"), [
    (ValueError("k: too short"), RAISED, "ValueError: k: too short"),
    (SystemExit(3), RAISED, "SystemExit: 3"),
    (NotImplementedError("windows"), REFUSED, "windows"),
    (NotImplementedError(), REFUSED, "NotImplementedError"),
    (RecursionError("deep"), RAISED, "RecursionError: deep"),
])  # fmt: skip
def test_an_exception_is_an_outcome(error: BaseException, kind: str, message: str) -> None:
    def kernel(q: Any, k: Any, v: Any) -> Any:
        raise error

    outcome = run(kernel)
    assert (outcome.kind, outcome.message) == (kind, message)


def test_the_traceback_leads_to_the_line_that_raised() -> None:
    def kernel(q: Any, k: Any, v: Any) -> Any:
        raise KeyError("a line to be found")

    assert "a line to be found" in run(kernel).traceback
    assert "test_calling.py" in run(kernel).traceback


def test_a_keyboard_interrupt_is_the_users() -> None:
    def kernel(q: Any, k: Any, v: Any) -> Any:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(kernel)


# Results that there are only with an argument --------------------------------------------------------------------------------

WITH_SINKS = Case("attention_backward", {name: R.normal(size=(1, 1, 2, 3)) for name in ("q", "k", "v", "out", "dout")}
                  | {"lse": R.normal(size=(1, 1, 2)), "sinks": R.normal(size=1)}, {"causal": None})  # fmt: skip
GRADIENTS = {"dq": R.normal(size=(1, 1, 2, 3)), "dk": R.normal(size=(1, 1, 2, 3)), "dv": R.normal(size=(1, 1, 2, 3)),
             "dsinks": R.normal(size=1)}  # fmt: skip


@pytest.mark.parametrize("names", [("dq", "dk", "dv", "dsinks"), ("dq", "dk", "dv", "dbias", "dsinks")])
def test_gradients_of_what_is_not_given_may_be_left_out_of_the_tuple_or_be_none_in_it(names: tuple[str, ...]) -> None:
    def backward(q: Any, k: Any, v: Any, out: Any, lse: Any, dout: Any, *, causal: Any, bias: Any = None, sinks: Any = None) -> Any:
        return tuple(GRADIENTS.get(name) for name in names)

    outputs = run_on("attention_backward", WITH_SINKS, backward).outputs
    assert {name: output.tobytes() for name, output in outputs.items()} == {name: x.tobytes() for name, x in GRADIENTS.items()}
