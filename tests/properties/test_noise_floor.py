"""The noise floor: it accepts what is legal, finds what the bound lets through, and in float32 only warns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from oracles.properties import Arithmetic, subject
from oracles.properties.arithmetic import ResolvedArithmetic
from oracles.properties.bounds import attention_bound
from oracles.properties.case import Case
from oracles.properties.comparison import compare
from oracles.properties.declaration import declaration_of
from oracles.properties.law import NOTHING, Judgement
from oracles.properties.laws.attention_noise import errors_stay_at_the_noise_floor as the_law
from oracles.properties.noise_floor import BASELINE, LIMITS, NoiseFloor, Ratios, noise_floor, normalised
from oracles.properties.operations import operation_named
from oracles.properties.run import begin, judge_one, recipes_of
from oracles.properties.simulated_kernels import Plan, as_problem, forward
from oracles.properties.subjects import InProcess
from oracles.properties.trial import Trial
from oracles.properties.zoo import keeper
from oracles.properties.zoo import variants_steps as steps
from oracles.properties.zoo.specimen import Specimen
from oracles.reference import FloatFormat, attention

L, D = 128, 32
PLAIN, FLASH = Arithmetic(), Arithmetic(probabilities="input", truncating=True)
LEGAL = (
    Plan(tile=16), Plan(tile=64), Plan(tile=64, reverse=True), Plan(splits=2), Plan(splits=7), Plan(tile=32, base2=True),
    Plan(product="backward"), Plan(product="backward", tile=16), Plan(product="blocks", tile=64), Plan(product="blocks"),
    Plan(normalise="reciprocal", tile=32), Plan(normalise="each_step", tile=32), Plan(normalise="first", base2=True),
    Plan(tile=32, sloppiness=1.0), Plan(sloppiness=-1.0), *BASELINE,
)  # fmt: skip


class Measured:
    """One call on N(0, 1) inputs, its floor, and simulated kernels run on it."""

    def __init__(self, dtype: str, arithmetic: Arithmetic, seed: int = 0, L: int = L) -> None:
        drawn = np.random.default_rng(seed).standard_normal((3, 1, 2, L, D))
        self.a: ResolvedArithmetic = arithmetic.resolve(dtype)
        self.arrays = dict(zip("qkv", (FloatFormat(dtype).cast(x) for x in drawn)))
        self.options: dict[str, Any] = {"causal": "bottom_right"}
        self.wanted = dict(zip(("out", "lse"), attention(**self.arrays, **self.options)))
        self.allowed = attention_bound(self.a, **self.arrays, **self.options)
        floor = noise_floor(self.a, self.arrays, self.options, wanted=self.wanted, allowed=self.allowed)
        assert floor is not None
        self.floor: NoiseFloor = floor

    def run(self, plan: Plan) -> dict[str, Any]:
        out, lse = forward(self.a, plan, as_problem(self.arrays, self.options))
        return {"out": out.reshape(self.wanted["out"].shape), "lse": lse.reshape(self.wanted["lse"].shape)}

    def within_the_bound(self, outputs: Mapping[str, Any]) -> bool:
        return not any(compare(name, outputs[name], self.wanted[name], self.allowed[name]).failed for name in outputs)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("arithmetic", [PLAIN, FLASH], ids=["plain", "flash"])
def test_legal_kernels_stay_at_the_floor(dtype: str, arithmetic: Arithmetic) -> None:
    measured = Measured(dtype, arithmetic)
    assert {measured.floor.ratios(measured.run(plan)).over(LIMITS[dtype]) for plan in LEGAL} == {""}


def test_a_bfloat16_accumulator_is_far_above_it_and_within_the_bound() -> None:
    measured = Measured("bfloat16", FLASH, L=256)
    faulty = measured.run(Plan(tile=64, fault="bfloat16_accumulator"))
    assert measured.within_the_bound(faulty)
    assert measured.floor.ratios(faulty).rms > LIMITS["bfloat16"].rms


@pytest.mark.parametrize("fault", ["p_float8", "bfloat16_accumulator"])
@pytest.mark.parametrize("arithmetic", [PLAIN, FLASH], ids=["plain", "flash"])
def test_faults_of_formats_are_found(fault: str, arithmetic: Arithmetic) -> None:
    measured = Measured("bfloat16", arithmetic)
    assert "the rms error of out" in measured.floor.ratios(measured.run(Plan(tile=16, fault=fault))).over(LIMITS["bfloat16"])


def test_a_scale_a_thousandth_off_is_found_in_out_alone_where_p_is_not_rounded() -> None:
    measured = Measured("bfloat16", PLAIN)
    faulty = {"out": measured.run(Plan(tile=64, fault="scale"))["out"]}
    assert measured.floor.ratios(faulty).over(LIMITS["bfloat16"])


def test_one_row_far_off_is_found_and_named() -> None:
    measured = Measured("bfloat16", FLASH)
    good = measured.run(Plan(tile=64))
    bad = {**good, "out": good["out"].copy()}
    bad["out"][0, 1, 100] = measured.wanted["out"][0, 1, 100] + 0.9 * measured.allowed["out"][0, 1, 100]
    ratios = measured.floor.ratios(bad)
    assert ratios.row_at == (0, 1, 100)
    assert ratios.row > LIMITS["bfloat16"].row


def test_errors_are_in_units_of_the_bound() -> None:
    got, wanted = np.array([1.0, 2.0, 3.0, 4.0]), np.array([1.0, 1.5, 3.0, 9.0])
    allowed = np.array([0.0, 0.25, 1.0, np.inf])
    assert normalised(got, wanted, allowed).tolist() == [0.0, 2.0, 0.0, 0.0]


def test_a_doubled_error_doubles_the_ratios() -> None:
    measured = Measured("float32", PLAIN)
    once = {name: x.astype(np.float64) for name, x in measured.run(Plan(tile=64)).items()}
    twice = {name: measured.wanted[name] + 2.0 * (x - measured.wanted[name]) for name, x in once.items()}
    a, b = measured.floor.ratios(once), measured.floor.ratios(twice)
    growth = 1e-9                                                               # float64 around values of 1, errors near 1e-8
    assert all(abs(getattr(b, name) / getattr(a, name) - 2.0) < 2.0 * growth / 1e-2 for name in ("rms", "row", "lse"))


def test_rows_of_few_keys_and_short_calls_have_no_floor() -> None:
    q = np.random.default_rng(0).standard_normal((1, 1, 16, 8)).astype(np.float32)
    options: dict[str, Any] = {"causal": "bottom_right"}
    wanted = dict(zip(("out", "lse"), attention(q, q, q, **options)))
    a = PLAIN.resolve("float32")
    allowed = attention_bound(a, q, q, q, **options)
    assert noise_floor(a, {"q": q, "k": q, "v": q}, options, wanted=wanted, allowed=allowed) is None


def test_what_passes_a_limit_is_said_in_words() -> None:
    assert Ratios(2.0, 1.0, 1.0, (0, 0, 7)).over(Ratios(1.25, 2.0, 4.0)) == "the rms error of out is 2 times the usual (at most 1.25)"


# The law -----------------------------------------------------------------------------------------------------------------


def judged(function: Any, dtype: str, **options: Any) -> Judgement:
    """What the law says of a subject on one case of these options."""
    drawn = np.random.default_rng(3).standard_normal((3, 1, 2, L, D))
    arrays = dict(zip("qkv", (FloatFormat(dtype).cast(x) for x in drawn)))
    case = the_law.prepare(Case("attention", arrays, {"causal": None, **options}))
    assert case is not None
    return the_law.judge(Trial(operation_named("attention"), InProcess(function, declaration_of(function, "attention")), case))


def _attention(acc: Any, *, rounded: Any = steps.kept, **declared: Any) -> Any:
    """A tiled kernel whose products with V end in `acc`, and whose P goes through `rounded`."""

    @subject("attention", **declared)
    def kernel(q: Any, k: Any, v: Any, *, causal: Any, scale: Any = None) -> Any:
        chosen = steps.Steps(tile=16, stored=rounded, product=lambda a, b: acc(a @ b))
        return steps.online(chosen, q, k, v, causal=causal, scale=scale)

    return kernel


def test_the_law_holds_of_a_legal_kernel() -> None:
    judgement = judged(_attention(steps.kept, dtypes=["bfloat16"]), "bfloat16")
    assert judgement.compared == 2 * L * D
    assert not judgement.failed


def test_the_law_fails_an_undeclared_bfloat16_product() -> None:
    judgement = judged(_attention(steps.in_format("bfloat16"), dtypes=["bfloat16"]), "bfloat16")
    assert judgement.failed
    assert judgement.worst_ratio > 1.0
    assert "times the usual" in judgement.reason


def test_float32_is_warned_of_and_never_failed() -> None:
    judgement = judged(_attention(steps.in_format("tfloat32")), "float32")
    assert not judgement.failed
    assert judgement.worst_ratio == 1.0
    assert "times the usual" in judgement.warning


def test_declaring_the_rounding_makes_it_usual() -> None:
    declared = Arithmetic(probabilities="float8_e4m3fn")
    kernel = _attention(steps.kept, rounded=steps.in_format("float8_e4m3fn"), dtypes=["bfloat16"], arithmetic=declared)
    undeclared = _attention(steps.kept, rounded=steps.in_format("float8_e4m3fn"), dtypes=["bfloat16"])
    assert not judged(kernel, "bfloat16").failed
    assert judged(undeclared, "bfloat16").failed


def test_out_alone_is_judged() -> None:
    @subject("attention", dtypes=["bfloat16"])
    def out_alone(q: Any, k: Any, v: Any, *, causal: Any) -> Any:
        return steps.online(steps.Steps(product=lambda a, b: steps.in_format("bfloat16")(a @ b), tile=16), q, k, v, causal=causal)[0]

    assert judged(out_alone, "bfloat16").failed


def test_formats_without_limits_are_left_alone() -> None:
    declared = subject("attention", dtypes=["float8_e4m3fn"])
    kernel = declared(lambda q, k, v, *, causal: steps.online(steps.Steps(), q, k, v, causal=causal))
    assert judged(kernel, "float8_e4m3fn") == NOTHING


def test_short_calls_are_no_cases_of_the_law() -> None:
    x = np.ones((1, 1, 15, 16), np.float32)
    assert the_law.prepare(Case("attention", {"q": x, "k": x, "v": x}, {"causal": None})) is None


VARIANTS = [s for s in keeper.inhabitants() if s.kind == "variant" and s.operation == "attention"]
SIXTEEN = [s for s in VARIANTS if set(s.declaration.coverage.dtypes) & {"float16", "bfloat16"}]
SAMPLE = ("flash-on-tensor-cores", "gqa-interleaved-heads", "row-sum-of-rounded-p")


def accused(specimen: Specimen, budget: str) -> str:
    """What the law alone, on every case, says against a variant."""
    operation = replace(operation_named("attention"), laws=(replace(the_law, every=1),))
    run = begin(operation, InProcess(specimen.function, specimen.declaration))
    for index, recipe in enumerate([recipe for recipes in recipes_of(run, budget, 0) for recipe in recipes]):
        judge_one(run, index, recipe)
    (tally,) = run.tallies
    return tally.broken or (tally.failure.judgement.reason if tally.failure else "")


@pytest.mark.parametrize("name", SAMPLE)
def test_legal_variants_are_not_accused(name: str) -> None:
    (specimen,) = [s for s in VARIANTS if s.id == name]
    assert accused(specimen, "quick") == ""


@pytest.mark.long
@pytest.mark.parametrize("specimen", SIXTEEN, ids=[s.id for s in SIXTEEN])
def test_no_legal_variant_is_accused(specimen: Specimen) -> None:
    assert accused(specimen, "default") == ""
