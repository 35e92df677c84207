"""Declarations: what a signature says, what a decorator says, and messages that name argument, what came and what is wanted."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from oracles.properties import Arithmetic, UsageError, subject
from oracles.properties.declaration import Declaration, declaration_of, of_function


def plain(q: Any, k: Any, v: Any) -> Any: ...
def with_options(q: Any, k: Any, v: Any, *, causal: Any, window: Any = None, scale: Any = None) -> Any: ...
def with_is_causal(q: Any, k: Any, v: Any, *, is_causal: bool = False) -> Any: ...
def with_boolean_default(q: Any, k: Any, v: Any, causal: Any = False) -> Any: ...
def with_boolean_annotation(q: Any, k: Any, v: Any, causal: bool | None = None, *, scale: Any = None) -> Any: ...
def with_other_names(query: Any, key: Any, value: Any, scale: Any = None) -> Any: ...
def with_positional_only(q: Any, k: Any, v: Any, /, scale: Any = None) -> Any: ...
def with_any_keywords(q: Any, k: Any, v: Any, **options: Any) -> Any: ...
def with_anything(*arrays: Any, **options: Any) -> Any: ...
def with_own_options(q: Any, k: Any, v: Any, *, block_size: int = 64) -> Any: ...
def with_a_buffer(q: Any, k: Any, v: Any, out: Any) -> Any: ...
def with_unknown_argument(q: Any, k: Any, v: Any, *, stream: Any, workspace: Any) -> Any: ...
def with_too_few(q: Any, k: Any) -> Any: ...


with_boolean_annotation.__annotations__["causal"] = "bool"

# function: optional arguments taken, called by position, boolean causal, alignments
READINGS: dict[str, tuple[Callable[..., Any], dict[str, Any], set[str], bool, bool, tuple[str | None, ...]]] = {
    "arrays alone": (plain, {}, set(), False, False, (None,)),
    "options": (with_options, {}, {"causal", "window", "scale"}, False, False, (None, "bottom_right")),
    "is_causal with an alignment": (with_is_causal, {"causal": ("top_left",)}, {"causal"}, False, True, (None, "top_left")),
    "a boolean default": (with_boolean_default, {"causal": ("bottom_right",)}, {"causal"}, False, True, (None, "bottom_right")),
    "a boolean annotation": (with_boolean_annotation, {"causal": ("top_left",)}, {"causal", "scale"}, False, True, (None, "top_left")),
    "query, key, value": (with_other_names, {}, {"scale"}, True, False, (None,)),
    "arguments by position only": (with_positional_only, {}, {"scale"}, True, False, (None,)),
    "own options with defaults": (with_own_options, {}, set(), False, False, (None,)),
    "one alignment": (with_options, {"causal": ("top_left",)}, {"causal", "window", "scale"}, False, False, ("top_left",)),
    "query, key, value renamed": (with_other_names, {"rename": {"q": "query", "k": "key", "v": "value"}}, {"scale"}, False, False, (None,)),
    "another name for causal": (with_own_options, {"rename": {"window": "block_size"}}, {"window"}, False, False, (None,)),
    "a buffer": (with_a_buffer, {"buffers": ("out",)}, set(), False, False, (None,)),
}


@pytest.mark.parametrize("name", READINGS)
def test_the_signature_says(name: str) -> None:
    function, options, takes, by_position, boolean, causal = READINGS[name]
    found = of_function(function, "attention", **options)
    assert found.coverage.arguments == takes
    assert (found.by_position, found.causal_is_boolean, found.coverage.causal) == (by_position, boolean, causal)


@pytest.mark.parametrize("function", [with_any_keywords, with_anything])
def test_any_keywords_mean_every_argument(function: Callable[..., Any]) -> None:
    found = of_function(function, "attention")
    assert {"window", "sinks", "dropout_mask", "alibi_slopes"} < found.coverage.arguments
    assert not found.by_position


def declare(function: Callable[..., Any] = with_options, operation: str = "attention", **options: Any) -> Declaration:
    def fresh(q: Any, k: Any, v: Any, *, causal: Any = None, window: Any = None, scale: Any = None) -> Any: ...

    return declaration_of(subject(operation, **options)(fresh if function is with_options else function), operation)


# what is done: the message, as a pattern
MESSAGES: dict[str, tuple[Callable[[], Any], str]] = {
    "an unknown operation": (lambda: declare(operation="atention"), r"OPERATION: got 'atention'; want one of .*, such as attention"),
    "no operation": (lambda: declaration_of(plain, None), r"OPERATION: not given, and plain declares none; want one of `oracles list`"),
    "an unknown layout": (lambda: declare(layout="hbld"), r"layout: got 'hbld'; want one of bhld, blhd"),
    "an unknown framework": (lambda: declare(framework="tinygrad"), r"framework: got 'tinygrad'; want one of numpy, torch, jax, cupy"),
    "an unknown refusal": (lambda: declare(refuses=["gqa"]), r"refuses: got 'gqa'; want one of grouped, value_dim, cross_lengths"),
    "an unknown promise": (lambda: declare(promises=["fast"]), r"promises: got 'fast'; want one of deterministic, batch_invariant"),
    "an unknown buffer": (lambda: declare(buffers=["p"]), r"buffers: got 'p'; want one of out, lse"),
    "an unknown alignment": (lambda: declare(causal=["left"]), r"causal: got 'left'; want one of None, bottom_right, top_left"),
    "an unknown arithmetic": (lambda: declare(arithmetic="fast"), r"arithmetic: got 'fast'; want an Arithmetic or one of default"),
    "an unknown convention": (lambda: declare(conventions={"rows": "nan"}), r"conventions: got 'rows'; want one of empty_rows"),
    "an unknown value of a convention": (
        lambda: declare(conventions={"empty_rows": "one"}), r"conventions\['empty_rows'\]: got 'one'; want one of zero, nan, mean_v"),
    "a rename of no argument": (
        lambda: declare(rename={"queries": "q"}), r"rename: 'queries' is no argument of attention; want one of q, k"),
    "a boolean causal without alignment": (
        lambda: of_function(with_is_causal, "attention"), r"causal: with_is_causal takes a boolean and does not say which .*--causal NAME"),
    "a boolean causal with two alignments": (
        lambda: of_function(with_is_causal, "attention", causal=("top_left", "bottom_right")),
        r"causal: got \['top_left', 'bottom_right'\] for a boolean argument of with_is_causal; want one alignment"),
    "an argument that nobody fills": (
        lambda: of_function(with_unknown_argument, "attention"),
        r"with_unknown_argument: needs stream, workspace, which attention does not have; want a default for it, or rename=.*'stream'"),
    "too few arguments": (
        lambda: of_function(with_too_few, "attention"), r"with_too_few: takes q, k; want attention's arguments q, k, v"),
    "a built-in without a signature": (
        lambda: of_function(min, "softmax"), r"min: its signature cannot be read; wrap it in a function"),
}  # fmt: skip


def turns(x: Any, positions: Any, *, pairing: str, scaling: Any = None) -> Any: ...
def turns_one_way(x: Any, positions: Any) -> Any: ...
def writes(k_cache: Any, v_cache: Any, k: Any, v: Any, slots: Any) -> Any: ...


MESSAGES |= {
    "a choice that is neither taken nor declared": (
        lambda: of_function(turns_one_way, "rope"),
        r"pairing: turns_one_way does not take it and does not say which it means; declare it: only={'pairing': \['half'\]} "
        r"or --only pairing=half, one of half, interleaved"),
    "a choice that is not taken and declared twice": (
        lambda: of_function(turns_one_way, "rope", only={"pairing": ["half", "interleaved"]}), r"pairing: .* does not say which it means"),
    "an unknown value of a choice": (
        lambda: of_function(turns, "rope", only={"pairing": ["halves"]}),
        r"only\['pairing'\]: got 'halves'; want one of half, interleaved"),
    "an unknown kind of a record": (
        lambda: of_function(turns, "rope", only={"scaling": ["linaer"]}),
        r"only\['scaling'\]: got 'linaer'; want one of none, linear, ntk, yarn, llama3"),
    "a choice of nothing": (
        lambda: of_function(turns, "rope", only={"pairing": []}), r"only\['pairing'\]: got nothing; want at least one"),
    "a choice that is no list": (
        lambda: of_function(turns, "rope", only={"pairing": "half"}), r"only\['pairing'\]: got the text 'half'; want a list"),
    "values of an option that has any number of them": (
        lambda: of_function(turns, "rope", only={"base": ["10000"]}),
        r"only: 'base' is no option of few values of rope; want some of pairing, scaling"),
    "an argument that is no result, in place": (
        lambda: subject("write_kv", in_place=["k"])(writes), r"in_place: got 'k'; want one of k_cache, v_cache"),
    "a buffer that is an argument too": (
        lambda: subject("write_kv", buffers=["k_cache"])(writes),
        r"buffers: got 'k_cache', which is an argument too; want in_place=\['k_cache'\]"),
}  # fmt: skip


@pytest.mark.parametrize("what", MESSAGES)
def test_the_message_names_what_came_and_what_is_wanted(what: str) -> None:
    act, pattern = MESSAGES[what]
    with pytest.raises(ValueError, match=r".") as raised:
        act()
    assert re.search(pattern, str(raised.value)), str(raised.value)


def test_a_function_declared_for_one_operation_is_not_taken_for_another() -> None:
    @subject("attention")
    def kernel(q: Any, k: Any, v: Any) -> Any: ...

    with pytest.raises(UsageError, match="kernel: declared for attention; want softmax"):
        declaration_of(kernel, "softmax")


def test_one_function_can_be_declared_for_two_operations() -> None:
    @subject("softmax", version="2")
    @subject("log_sum_exp", version="1")
    def row(x: Any, *, axis: int = -1) -> Any: ...

    assert [declaration_of(row, name).version for name in ("softmax", "log_sum_exp")] == ["2", "1"]


def test_the_decorator_returns_the_function_itself() -> None:
    assert subject("attention")(plain) is plain


FULL = {"layout": "blhd", "dtypes": ["bfloat16", "float16"], "causal": ["top_left", None], "head_dims": [64, 128], "length_multiple": 8,
        "refuses": ["grouped", "empty"], "arithmetic": Arithmetic(probabilities="bfloat16", truncating=True, exp_ulps=2.5),
        "conventions": {"empty_rows": "nan"}, "framework": "torch", "rename": {"scale": "softmax_scale"}, "buffers": ["out"],
        "promises": ["deterministic"], "name": "mine", "version": "1.2"}  # fmt: skip


def renamed(q: Any, k: Any, v: Any, out: Any, *, causal: Any, softmax_scale: Any = None) -> Any: ...


@pytest.mark.parametrize("declaration", [of_function(plain, "attention"), of_function(with_any_keywords, "attention"),
                                         declaration_of(subject("attention", **FULL)(renamed), "attention")])  # type: ignore[arg-type]  # fmt: skip
def test_a_declaration_survives_json(declaration: Declaration) -> None:
    text = json.dumps(declaration.to_json(), allow_nan=False)
    assert Declaration.from_json(json.loads(text)) == declaration


def test_a_full_declaration_says_what_was_declared() -> None:
    d = declaration_of(subject("attention", **FULL)(renamed), "attention")      # type: ignore[arg-type]
    c = d.coverage
    assert (d.layout, d.framework, d.name, d.version) == ("blhd", "torch", "mine", "1.2")
    assert (d.buffers, d.promises) == (("out",), ("deterministic",))
    assert (c.dtypes, c.causal, c.head_dims, c.length_multiple) == (("bfloat16", "float16"), ("top_left", None), (64, 128), 8)
    assert (c.grouped, c.empty, c.value_dim, c.cross_lengths, c.negative_scale) == (False, False, True, True, True)
    assert c.arguments == {"causal", "scale"}
    assert d.conventions["empty_rows"] == "nan"
    assert d.conventions["head_map"] == "contiguous"


def test_only_says_which_values_of_an_option_are_taken() -> None:
    coverage = of_function(turns, "rope", only={"scaling": ["none", "yarn"]}).coverage
    assert coverage.levels("scaling", ("none", "linear", "yarn")) == ("none", "yarn")
    assert coverage.levels("pairing", ("half", "interleaved")) == ("half", "interleaved")


def test_what_is_declared_of_choices_and_places_survives_json() -> None:
    d = declaration_of(subject("rope", only={"pairing": ["interleaved"]})(turns_one_way), "rope")
    assert Declaration.from_json(json.loads(json.dumps(d.to_json()))) == d
    d = declaration_of(subject("write_kv", in_place=["v_cache", "k_cache"])(writes), "write_kv")
    again = Declaration.from_json(json.loads(json.dumps(d.to_json())))
    assert (again, again.in_place) == (d, ("v_cache", "k_cache"))
