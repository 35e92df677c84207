"""The legal variants: enough of them, each told apart, and none accused."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from oracles import reference
from oracles.properties.signatures import SIGNATURES
from oracles.properties.stateful.names import STATEFUL_NAMES
from oracles.properties.zoo import ZOO_MODULES, keeper, triggers, variants_steps
from oracles.properties.zoo.specimen import Specimen
from oracles.reference import FloatFormat

VARIANTS = {s.id: s for s in keeper.inhabitants() if s.kind == "variant"}
# One for each operation and each way in which a law could be unjust; all of them take minutes.
SAMPLE = (
    "softmax-online-each-entry", "lse-tree-of-pairs", "merge-by-logistic", "split-3-in-bfloat16", "empty-rows-mean-v",
    "gradient-kept-in-bfloat16", "gqa-grouped-rows", "packed-block-diagonal-mask", "packed-gradient-delta-from-p",
)  # fmt: skip
# What they are told apart by, each in the declaration of some variant.
KINDS_OF_ROUNDING = ("truncating", "flush_to_zero", "scaled_q", "merges_lse", "recomputes", "row_sum_rounded")


def test_there_are_sixty_of_them() -> None:
    assert len(VARIANTS) >= 60


def test_no_two_share_a_name() -> None:
    assert max(Counter(s.id for s in keeper.inhabitants()).values()) == 1


def test_every_operation_has_some() -> None:
    assert {s.operation for s in VARIANTS.values()} == {*SIGNATURES, *STATEFUL_NAMES}


def test_every_family_has_some() -> None:
    assert {s.family for s in VARIANTS.values()} >= {"softmax", "masking", "attention-forward", "attention-backward", "gqa", "rope",
                                                     "kv-cache"}  # fmt: skip


def test_every_module_of_variants_is_visited() -> None:
    written = {path.stem for path in Path(variants_steps.__file__).parent.glob("variants_*.py")}
    assert {name for name in ZOO_MODULES if name.startswith("variants_")} == written - {"variants_steps"}


@pytest.mark.parametrize("name", KINDS_OF_ROUNDING)
def test_every_kind_of_rounding_is_declared_by_some(name: str) -> None:
    assert any(getattr(s.declaration.arithmetic, name) for s in VARIANTS.values())


@pytest.mark.parametrize("name", ["empty_rows", "empty_lse", "nonfinite_behind_mask", "head_map", "window_counts_current"])
def test_every_convention_is_followed_by_some(name: str) -> None:
    usual = {"zero", "minus_infinity", "undeclared", "contiguous", "no"}
    assert any(s.declaration.conventions[name] not in usual for s in VARIANTS.values() if s.operation in SIGNATURES)


@pytest.mark.parametrize("specimen", VARIANTS.values(), ids=list(VARIANTS))
def test_it_says_what_is_peculiar_in_a_sentence(specimen: Specimen) -> None:
    assert re.fullmatch(r"\S.{15,250}\.", specimen.fault)


@pytest.mark.parametrize("name", SAMPLE)
def test_no_law_accuses_it(name: str) -> None:
    fate = keeper.fate_of(VARIANTS[name], budget="quick")
    assert (fate.status, fate.law, fate.reason) == ("lives", "", "")


@pytest.mark.long
@pytest.mark.parametrize("budget", ["quick", "default"])
@pytest.mark.parametrize("specimen", VARIANTS.values(), ids=list(VARIANTS))
def test_no_law_accuses_any(specimen: Specimen, budget: str) -> None:
    fate = keeper.fate_of(specimen, budget=budget)
    assert (fate.status, fate.law, fate.reason) == ("lives", "", "")


# The steps they are made of ----------------------------------------------------------------------------------------------

SUMS = ("pairwise_sum", "sequential_sum", "reversed_sum", "sum_in_lanes")
PRODUCTS = ("fused_product", "backward_product", "truncating_product", "transposed_product")


@pytest.mark.parametrize("name", SUMS)
@pytest.mark.parametrize("n", [0, 1, 7, 8, 19])
def test_sums_of_integers_are_exact(name: str, n: int) -> None:
    x = np.arange(2 * n, dtype=np.float32).reshape(2, n)
    assert np.array_equal(getattr(variants_steps, name)(x), x.sum(axis=-1, keepdims=True))


@pytest.mark.parametrize("name", PRODUCTS)
@pytest.mark.parametrize("n", [0, 1, 9])
def test_products_of_integers_are_exact(name: str, n: int) -> None:
    a, b = np.arange(6 * n, dtype=np.float32).reshape(2, 3, n), np.arange(2 * n * 4, dtype=np.float32).reshape(2, n, 4)
    assert np.array_equal(getattr(variants_steps, name)(a, b), a @ b)


def test_a_truncating_product_never_grows() -> None:
    a, b = np.ones((1, 16), np.float32), np.full((16, 1), 1 + 2.0**-23, np.float32)
    a[0, 8] = 2.0**-24                                                          # a half of the last bit, cut off
    exact = a.astype(np.float64) @ b.astype(np.float64)
    assert 0.0 < float((exact - variants_steps.truncating_product(a, b)).item()) < 2.0**-19


def test_a_fused_product_rounds_once() -> None:
    e = 2.0**-23
    a, b = np.array([[1.0, 1 + e]], np.float32), np.array([[-1.0], [1 - e]], np.float32)
    assert variants_steps.fused_product(a, b).item() == -e * e                  # a product rounded first is 1, and the sum 0


@pytest.mark.parametrize("order", ["forwards", "backwards", "interleaved", "from_the_middle"])
@pytest.mark.parametrize("n", [0, 1, 2, 5])
def test_orders_visit_every_tile_once(order: str, n: int) -> None:
    assert sorted(getattr(variants_steps, order)(n)) == [*range(n)]


def test_a_format_is_rounded_to_once_and_saturates_in_eight_bits() -> None:
    x = np.array([1 + 2.0**-9, 1e6], np.float32)
    assert variants_steps.in_format("bfloat16")(x)[0] == 1.0
    assert variants_steps.in_format("float8_e4m3fn")(x)[1] == FloatFormat("float8_e4m3fn").max


def test_parts_share_no_key_and_leave_none_out() -> None:
    arguments = triggers.forward(Lk=50, dtype="float64")
    whole = reference.attention(**arguments)
    options = {name: value for name, value in arguments.items() if name not in ("q", "k", "v")}
    for parts in range(1, 8):
        steps = variants_steps.Steps(tile=8, parts=parts)
        out, lse = variants_steps.online(steps, arguments["q"], arguments["k"], arguments["v"], **options)
        bound = 64 * 2.0**-53 * np.abs(arguments["v"]).max()                    # 50 keys, D = 4: well below 64 roundings of |v|
        assert np.abs(out - whole[0]).max() <= bound
        assert np.abs(lse - whole[1]).max() <= 64 * 2.0**-53 * np.abs(whole[1]).max()
