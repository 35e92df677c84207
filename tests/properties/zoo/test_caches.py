"""Mutants and variants of paged and latent attention: every report has one, all die by a law, no variant is accused."""

from __future__ import annotations

import numpy as np
import pytest

from oracles import reference
from oracles.properties.zoo import keeper, textbook_latents, textbook_pages, triggers_latents, triggers_pages
from oracles.properties.zoo.specimen import Specimen

MLA = ("mla-softmax-scale-from-wrong-mscale", "uninitialised-history-of-empty-chunk", "mla-rope-mscale-not-a-ratio",
       "sparse-invalid-index-mapped-to-zero", "nan-in-unrelated-page-leaks", "mla-softmax-scale-missing")  # fmt: skip
PAGED = ("beams-read-blocks-of-their-own", "full-last-block-not-attended", "length-taken-from-the-room-of-blocks",
         "values-read-from-key-pages", "past-length-uniform-over-tables", "padding-queries-counted-as-new",
         "partial-last-page-values-of-another", "pages-tiled-instead-of-repeated")  # fmt: skip

FOUND = {s.id: s for s in keeper.inhabitants(("mla", "paged-attention")) if s.operation in ("paged_attention", "mla_attention")}
MUTANTS = [s for s in FOUND.values() if s.kind == "mutant"]
VARIANTS = [s for s in FOUND.values() if s.kind == "variant"]
# One of each operation; all of them take minutes.
SAMPLE = ("all-sequences-at-once", "absorbed-kept-in-bfloat16")


def named(specimens: list[Specimen]) -> object:
    return pytest.mark.parametrize("specimen", specimens, ids=[s.id for s in specimens])


def test_every_report_has_one_mutant() -> None:
    assert sorted(s.id for s in MUTANTS) == sorted([*MLA, *PAGED])
    assert all(FOUND[id].family == "mla" for id in MLA)


def test_there_are_twenty_variants_or_more() -> None:
    assert sum(s.operation == "paged_attention" for s in VARIANTS) >= 10
    assert sum(s.operation == "mla_attention" for s in VARIANTS) >= 10


@named(MUTANTS)
def test_its_source_is_an_address_and_its_fault_a_sentence(specimen: Specimen) -> None:
    assert all(address.startswith("https://github.com/") for address in specimen.source.split())
    assert specimen.fault.endswith(".")


@named(MUTANTS)
def test_it_differs_on_its_own_trigger(specimen: Specimen) -> None:
    assert keeper.why_invalid(specimen) == ""


@named(MUTANTS)
def test_it_dies_by_a_law_on_the_designed_cases(specimen: Specimen) -> None:
    assert keeper.fate_of(specimen, budget="quick").status == "killed"


@named([FOUND[id] for id in SAMPLE])
def test_no_law_accuses_it(specimen: Specimen) -> None:
    fate = keeper.fate_of(specimen, budget="quick")
    assert (fate.status, fate.law, fate.reason) == ("lives", "", "")


@pytest.mark.long
@pytest.mark.parametrize("budget", ["quick", "default"])
@named(VARIANTS)
def test_no_law_accuses_any(specimen: Specimen, budget: str) -> None:
    fate = keeper.fate_of(specimen, budget=budget)
    assert (fate.status, fate.law, fate.reason) == ("lives", "", "")


# The textbooks they are made of -------------------------------------------------------------------------------------------


def test_the_textbook_of_pages_is_the_oracle_in_float64() -> None:
    given = triggers_pages.paged([3, 0, 8], [[3, 1, -1, -1], [-1] * 4, [0, 2, 4, 5]], Hkv=2, G=2, Lq=2, causal="bottom_right",
                                 query_lengths=np.array([1, 2, 2]))
    given = {name: x.astype(np.float64) if isinstance(x, np.ndarray) and x.dtype == np.float32 else x for name, x in given.items()}
    out, lse = textbook_pages.paged_attention(**given)
    exact_out, exact_lse = reference.paged_attention(**given)
    assert np.abs(out - exact_out).max() <= 64 * 2.0**-53 * np.abs(given["v_pages"]).max()       # 8 keys, D = 4: well below 64 roundings
    assert np.array_equal(np.isneginf(lse), np.isneginf(exact_lse))


@pytest.mark.parametrize("form", [textbook_latents.latent_attention, textbook_latents.absorbed_attention])
def test_the_textbook_of_latents_is_the_oracle_in_float64(form) -> None:
    given = triggers_latents.latent(B=2, Lq=2, causal="bottom_right", kv_lengths=np.array([5, 0]))
    given = {name: x.astype(np.float64) if isinstance(x, np.ndarray) and x.dtype == np.float32 else x for name, x in given.items()}
    out, lse = form(**given)
    exact_out, exact_lse = reference.mla_attention(**given)
    values = np.abs(given["latent"]).max() * np.abs(given["w_uv"]).sum(axis=1).max()
    assert np.abs(out - exact_out).max() <= 512 * 2.0**-53 * values             # 5 keys, three products of at most 6 terms
    assert np.array_equal(np.isneginf(lse), np.isneginf(exact_lse))
