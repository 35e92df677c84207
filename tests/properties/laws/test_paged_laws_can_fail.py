"""Every law of paged attention turns red on an implementation that breaks what it states."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from oracles import reference
from oracles.properties import Arithmetic, check, subject
from oracles.properties.declaration import declaration_of
from oracles.properties.operations import operation_named

from .rejection import Broken, Function, rejects


def paged(*, causal: Any, **given: Any) -> Any:
    """The oracle in the dtype of its queries: right in everything."""
    out, lse = reference.paged_attention(causal=causal, **given)
    return out.astype(given["q"].dtype), lse.astype(np.float64 if given["q"].dtype == np.float64 else np.float32)


# What is broken: a function of the right results and the arguments, or of the arguments ------------------------------------


broken = Broken(paged)
returning, asked, grown = broken.returning, broken.asked, broken.grown


def scribbling(out: Any, lse: Any, given: dict[str, Any]) -> Any:
    given["k_pages"][...] = 0
    return out, lse


def seen_further(given: dict[str, Any]) -> dict[str, Any]:
    """Causal, but one key of the future is seen."""
    return {"causal": None, "window": (None, 1)} if given["causal"] and not given.get("window") else {}


def wider(given: dict[str, Any]) -> dict[str, Any]:
    left, right = given.get("window") or (None, None)
    return {"window": (left + 1, right)} if left is not None else {}


def heads_turned(given: dict[str, Any]) -> dict[str, Any]:
    return {name: given[name][:, :, ::-1] for name in ("k_pages", "v_pages")}


def heads_tiled(given: dict[str, Any]) -> dict[str, Any]:
    G = given["q"].shape[1] // given["k_pages"].shape[2]
    return {name: np.tile(given[name], (1, 1, G, 1)) for name in ("k_pages", "v_pages")}


def first_slot_added(given: dict[str, Any]) -> Any:
    """The size of what stands in slots that no sequence uses, or in the last page, leaks into the output."""
    return 0.0 if np.isfinite(given["v_pages"].astype(np.float64)).all() else np.nan


def tail_of_tables(given: dict[str, Any]) -> Any:
    needed = -(-given["kv_lengths"] // given["k_pages"].shape[1])
    tables = given["block_tables"]
    return 0.1 * bool((tables[np.arange(tables.shape[1]) >= needed[:, None]] >= 0).any())


def sharing(given: dict[str, Any]) -> Any:
    named = given["block_tables"][given["block_tables"] >= 0]
    return 0.1 * (len(np.unique(named)) < named.size)


def of_every_kind(**given: Any) -> Any:
    """Anything is taken: no argument is looked at before it is used."""
    return given["q"]


# law: (what the subject declares, the function that breaks it)
BREAKERS: dict[str, tuple[dict[str, Any], Function]] = {
    "answers": ({}, returning(lambda out, lse, given: (out[..., :-1], lse))),
    "out_agrees_with_the_oracle": ({}, grown(lambda given: 1e-4)),
    "lse_agrees_with_the_oracle": ({}, returning(lambda out, lse, given: (out, lse * lse.dtype.type(1 + 1e-4)))),
    "queries_without_keys_are_empty": ({}, returning(
        lambda out, lse, given: (np.where(np.isneginf(lse)[..., None], out.dtype.type(1), out), lse))),
    "what_stands_in_unused_slots_does_not_matter": ({}, grown(first_slot_added)),
    "entries_behind_the_length_do_not_matter": ({}, grown(tail_of_tables)),
    "one_hot_values_show_the_weights": ({}, asked(seen_further)),
    "equal_scores_average_exactly": ({}, returning(lambda out, lse, given: (np.nextafter(out, out.dtype.type(9)), lse))),
    "the_first_forbidden_key_stays_forbidden": ({}, asked(seen_further)),
    "each_row_sees_its_number_of_keys": ({}, asked(wider)),
    "heads_read_their_own_keys": ({}, asked(heads_turned)),
    "four_times_q_and_a_quarter_of_the_scale_change_no_bit": ({}, asked(lambda given: {"scale": None})),
    "the_numbering_of_pages_does_not_matter": ({}, grown(lambda given: 0.1 * (given["block_tables"].max(initial=0) % 2))),
    "the_size_of_blocks_does_not_matter": ({}, grown(lambda given: 0.1 / given["k_pages"].shape[1])),
    "shared_pages_are_like_copies": ({}, grown(sharing)),
    "each_step_of_decoding_is_its_row": ({}, asked(lambda given: {"causal": given["causal"] and "top_left"})),
    "a_prompt_in_chunks_is_the_whole_prompt": ({}, asked(lambda given: {"causal": given["causal"] and "top_left"})),
    "a_sequence_alone_is_the_same": ({}, grown(lambda given: 0.1 * (len(given["q"]) - 1))),
    "grouped_heads_are_repeated_heads": ({}, asked(heads_tiled)),
    "strides_are_respected": ({}, asked(lambda given: {} if given["v_pages"].flags.c_contiguous else {"v_pages": given["v_pages"] + 1})),
    "inputs_stay_untouched": ({}, returning(scribbling)),
    "nan_behind_the_mask_is_ignored": ({"conventions": {"nonfinite_behind_mask": "ignored"}}, grown(first_slot_added)),
    "repeats_give_the_same_bits": ({"promises": ["deterministic"]}, broken.sometimes()),
    "bad_tables_are_refused": ({"promises": ["validates_input"]}, of_every_kind),
}  # fmt: skip


def declared(function: Function, **declaration: Any) -> Any:
    """The function as a subject that takes every argument of the contract."""
    def paged_attention(q: Any, k_pages: Any, v_pages: Any, block_tables: Any, kv_lengths: Any, *, causal: Any, query_lengths: Any = None,
                        window: Any = None, scale: Any = None, softcap: Any = None, sinks: Any = None) -> Any:
        return function(q=q, k_pages=k_pages, v_pages=v_pages, block_tables=block_tables, kv_lengths=kv_lengths, causal=causal,
                        query_lengths=query_lengths, window=window, scale=scale, softcap=softcap, sinks=sinks)

    return subject("paged_attention", **declaration)(paged_attention)


@pytest.mark.parametrize("law", BREAKERS)
def test_the_law_rejects_what_breaks_it(law: str) -> None:
    declaration, function = BREAKERS[law]
    assert rejects("paged_attention", law, declared(function, **declaration)), f"{law} accepts an implementation that breaks it"


def test_buffers_left_unwritten_are_found() -> None:
    @subject("paged_attention", buffers=("out",))
    def half_written(q: Any, k_pages: Any, v_pages: Any, block_tables: Any, kv_lengths: Any, *, causal: Any, out: Any) -> None:
        right, _ = paged(q=q, k_pages=k_pages, v_pages=v_pages, block_tables=block_tables, kv_lengths=kv_lengths, causal=causal)
        out[..., :-1] = right[..., :-1]

    assert "were not written" in rejects("paged_attention", "buffers_are_fully_written", half_written)


def test_no_law_is_left_out() -> None:
    assert {law.name for law in operation_named("paged_attention").laws} == {*BREAKERS, "buffers_are_fully_written"}


@pytest.mark.parametrize(("what", "accepts"), [
    ("a page that does not exist", lambda given: given["block_tables"].max() >= len(given["k_pages"])),
    ("-1 before the length", lambda given: given["kv_lengths"].max() > 0 and (given["block_tables"][given["kv_lengths"] > 0, 0] < 0).any()),
    ("lengths beyond the table", lambda given: given["kv_lengths"].max() > given["block_tables"].shape[1] * given["k_pages"].shape[1]),
    ("lengths below 0", lambda given: given["kv_lengths"].min() < 0),
    ("tables of another batch", lambda given: len(given["block_tables"]) != len(given["q"])),
    ("heads that do not divide", lambda given: given["q"].shape[1] % given["k_pages"].shape[2] != 0),
    ("values of another number of pages", lambda given: len(given["k_pages"]) != len(given["v_pages"])),
    ("more queries than there are",
     lambda given: given["query_lengths"] is not None and given["query_lengths"].max() > given["q"].shape[2]),
])  # fmt: skip
def test_each_kind_of_bad_table_is_tried(what: str, accepts: Any) -> None:
    function = declared(lambda **given: given["q"] if accepts(given) else paged(**given), promises=["validates_input"])
    assert rejects("paged_attention", "bad_tables_are_refused", function) == f"{what}: returned; want an exception"


def test_the_oracle_keeps_every_law() -> None:
    exact = declared(paged, promises=["deterministic", "validates_input"], conventions={"nonfinite_behind_mask": "ignored"},
                     causal=(None, "bottom_right", "top_left"))
    report = check("paged_attention", exact, budget="quick")
    assert [(v.law, v.reason) for v in report.verdicts if v.status == "failed"] == []
    assert all(v.compared > 0 for v in report.verdicts if v.status == "held")


def test_a_bound_declared_for_tiles_of_one_token_is_the_larger() -> None:
    """Rescaling at every page of one token costs more than at tiles of sixteen, and has to be declared."""
    source = operation_named("paged_attention").cases()
    case = next(source.build(r) for r in source.designed(declaration_of(declared(paged), "paged_attention").coverage)
                if r.S == 1 and r.Lk == 129 and r.dtype == "float32")
    bounds = [operation_named("paged_attention").bound(Arithmetic(tile_min=n).resolve("float32"), case, {
        "empty_rows": "zero", "empty_lse": "minus_infinity", "padding_queries": "empty"})["out"] for n in (1, 16)]  # fmt: skip
    assert (bounds[0] >= bounds[1]).all()
    assert bounds[0].max() > bounds[1].max()
