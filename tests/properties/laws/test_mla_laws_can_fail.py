"""Every law of latent attention turns red on an implementation that breaks what it states."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from oracles import reference
from oracles.properties import Arithmetic, check, subject
from oracles.properties.operations import operation_named

from .rejection import Broken, Function, rejects

FORMATS = ("float32", "float64", "float16", "bfloat16")


def rounded(results: Any, given: dict[str, Any]) -> Any:
    (out, lse), dtype = results, given["q_nope"].dtype
    return out.astype(dtype), lse.astype(np.float64 if dtype == np.float64 else np.float32)


def latent(**given: Any) -> Any:
    """The oracle in the dtype of its queries: right in everything."""
    return rounded(reference.mla_attention(**given), given)


def absorbed(**given: Any) -> Any:
    """The oracle's other form, as right."""
    return rounded(reference.mla_attention_absorbed(**given), given)


# What is broken: a function of the right results and the arguments, or of the arguments ------------------------------------


broken = Broken(latent)
returning, asked, grown = broken.returning, broken.asked, broken.grown


def scribbling(out: Any, lse: Any, given: dict[str, Any]) -> Any:
    given["latent"][...] = 0
    return out, lse


def own_scale(given: dict[str, Any]) -> dict[str, Any]:
    return {"scale": (given["q_nope"].shape[-1] + given["q_rope"].shape[-1]) ** -0.5}


def seen_from_the_start(given: dict[str, Any]) -> dict[str, Any]:
    return {"causal": given["causal"] and "top_left"}


def nan_somewhere(given: dict[str, Any]) -> Any:
    return 0.0 if np.isfinite(given["latent"].astype(np.float64)).all() else np.nan


# law: (what the subject declares, the function that breaks it)
BREAKERS: dict[str, tuple[dict[str, Any], Function]] = {
    "answers": ({}, returning(lambda out, lse, given: (out[..., :-1], lse))),
    "out_agrees_with_the_oracle": ({}, grown(lambda given: 1e-2)),
    "lse_agrees_with_the_oracle": ({}, returning(lambda out, lse, given: (out, lse * lse.dtype.type(1 + 1e-3)))),
    "absorbed_and_reconstructed_agree": ({}, grown(lambda given: 1e-2)),
    "queries_without_keys_are_empty": ({}, returning(
        lambda out, lse, given: (np.where(np.isneginf(lse)[..., None], out.dtype.type(1), out), lse))),
    "identity_projections_are_multi_query_attention": ({}, asked(lambda given: {"w_uk": given["w_uk"][:, ::-1]})),
    "heads_read_their_own_values": ({}, asked(lambda given: {"w_uv": given["w_uv"][::-1]})),
    "heads_in_another_order_answer_in_that_order": ({}, asked(
        lambda given: {"w_uk": np.broadcast_to(given["w_uk"][:1], given["w_uk"].shape)})),
    "four_times_q_and_a_quarter_of_the_scale_change_no_bit": ({}, asked(own_scale)),
    "equal_scores_average_exactly": ({}, returning(lambda out, lse, given: (np.nextafter(out, out.dtype.type(9)), lse))),
    "the_order_of_latents_does_not_matter": ({}, asked(
        lambda given: {"latent": given["latent"] * np.linspace(1, 2, given["latent"].shape[1]).astype(given["latent"].dtype)[:, None]})),
    "each_step_of_decoding_is_its_row": ({}, asked(seen_from_the_start)),
    "a_prompt_in_chunks_is_the_whole_prompt": ({}, asked(seen_from_the_start)),
    "each_item_of_a_batch_stands_alone": ({}, grown(lambda given: 0.1 * (len(given["latent"]) - 1))),
    "strides_are_respected": ({}, asked(lambda given: {} if given["latent"].flags.c_contiguous else {"latent": given["latent"] + 1})),
    "inputs_stay_untouched": ({}, returning(scribbling)),
    "nan_behind_the_mask_is_ignored": ({"conventions": {"nonfinite_behind_mask": "ignored"}}, grown(nan_somewhere)),
    "repeats_give_the_same_bits": ({"promises": ["deterministic"]}, broken.sometimes()),
    "bad_shapes_are_refused": ({"promises": ["validates_input"]}, lambda **given: given["q_nope"]),
}  # fmt: skip


def declared(function: Function, **declaration: Any) -> Any:
    """The function as a subject that takes every argument of the contract."""
    def mla_attention(q_nope: Any, q_rope: Any, latent: Any, k_rope: Any, w_uk: Any, w_uv: Any, *, causal: Any, scale: Any,
                      kv_lengths: Any = None, mask: Any = None) -> Any:
        return function(q_nope=q_nope, q_rope=q_rope, latent=latent, k_rope=k_rope, w_uk=w_uk, w_uv=w_uv, causal=causal, scale=scale,
                        kv_lengths=kv_lengths, mask=mask)

    return subject("mla_attention", **declaration)(mla_attention)


@pytest.mark.parametrize("law", BREAKERS)
def test_the_law_rejects_what_breaks_it(law: str) -> None:
    declaration, function = BREAKERS[law]
    assert rejects("mla_attention", law, declared(function, **declaration)), f"{law} accepts an implementation that breaks it"


def test_buffers_left_unwritten_are_found() -> None:
    @subject("mla_attention", buffers=("out",))
    def half_written(q_nope: Any, q_rope: Any, latent: Any, k_rope: Any, w_uk: Any, w_uv: Any, *, causal: Any, scale: Any,
                     out: Any) -> None:
        right, _ = reference.mla_attention(q_nope, q_rope, latent, k_rope, w_uk, w_uv, causal=causal, scale=scale)
        out[..., :-1] = right[..., :-1]

    assert "were not written" in rejects("mla_attention", "buffers_are_fully_written", half_written)


def test_no_law_is_left_out() -> None:
    assert {law.name for law in operation_named("mla_attention").laws} == {*BREAKERS, "buffers_are_fully_written"}


@pytest.mark.parametrize(("what", "accepts"), [
    ("q_rope of more queries", lambda g: g["q_rope"].shape[2] != g["q_nope"].shape[2]),
    ("latents of another batch", lambda g: len(g["latent"]) != len(g["q_nope"])),
    ("a rotary key more than latents", lambda g: g["k_rope"].shape[1] != g["latent"].shape[1]),
    ("w_uk for another latent", lambda g: g["w_uk"].shape[1] != g["latent"].shape[2]),
    ("w_uk for a head more", lambda g: len(g["w_uk"]) != g["q_nope"].shape[1]),
    ("w_uv for another latent", lambda g: g["w_uv"].shape[1] != g["latent"].shape[2]),
])  # fmt: skip
def test_each_kind_of_bad_shape_is_tried(what: str, accepts: Any) -> None:
    function = declared(lambda **given: given["q_nope"] if accepts(given) else latent(**given), promises=["validates_input"])
    assert rejects("mla_attention", "bad_shapes_are_refused", function) == f"{what}: returned; want an exception"


@pytest.mark.parametrize(("form", "arithmetic"), [
    pytest.param(latent, Arithmetic(), marks=pytest.mark.long), (absorbed, Arithmetic(absorbed=True)),
])
def test_both_forms_of_the_oracle_keep_every_law(form: Function, arithmetic: Arithmetic) -> None:
    exact = declared(form, promises=["deterministic", "validates_input"], conventions={"nonfinite_behind_mask": "ignored"}, dtypes=FORMATS,
                     causal=(None, "bottom_right", "top_left"), arithmetic=arithmetic)
    report = check("mla_attention", exact, budget="quick")
    assert [(v.law, v.reason) for v in report.verdicts if v.status == "failed"] == []
    assert all(v.compared > 0 for v in report.verdicts if v.status == "held")
